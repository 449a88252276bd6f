"""The global batch of a number of GPUs: near the requested one, and divisible into equal replicas."""

from __future__ import annotations

from trine.decide.layout import ModelShape, has_layout

#: Bytes per parameter of bfloat16 weights and float32 gradients, which replicas do not share without FSDP.
_UNSHARDED_BYTES = 6
#: Share of a GPU's memory for them, and the most GPUs that share one replica's weights by tensor parallelism.
_SHARE, _MAX_WAYS = 0.5, 8
#: The most GPUs of a replica for which the batch is changed.
_LARGEST_REPLICA = 64


def batch_for(model: ModelShape, num_gpus: int, batch: int, change: float, gpu_bytes: int) -> int | None:
    """Return the global batch for ``num_gpus`` GPUs, nearest to ``batch``, or None if no layout divides one.

    change: largest relative difference from ``batch``. gpu_bytes: memory of a GPU, which decides how many GPUs a
    replica needs at least; replicas of this size, or two, four or more times it, divide the batch.
    """
    ways = replica_gpus(model, gpu_bytes)
    while ways <= _LARGEST_REPLICA:
        candidate = None if num_gpus % ways else nearest_multiple(num_gpus // ways, batch, change)
        if candidate is not None:
            return candidate
        ways *= 2
    return batch if has_layout(model, num_gpus, batch) else None


def nearest_multiple(unit: int, batch: int, change: float) -> int | None:
    """Return the multiple of ``unit`` nearest to ``batch``, or None if it differs by more than ``change``."""
    candidate = max(1, round(batch / unit)) * unit
    return candidate if abs(candidate - batch) <= change * batch else None


def replica_gpus(model: ModelShape, gpu_bytes: int) -> int:
    """Return the fewest GPUs whose memory comfortably holds the weights and gradients of a replica, at most 8."""
    ways = 1
    while ways < _MAX_WAYS and _UNSHARDED_BYTES * model.parameters > ways * gpu_bytes * _SHARE:
        ways *= 2
    return ways
