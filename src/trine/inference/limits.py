"""Limits of one attention replica: tokens and sequences of a step, and requests that the KV cache holds."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trine.common.units import format_bytes
from trine.errors import InputError
from trine.inference.job import ServingJob
from trine.inference.memory import ServingMemory, kv_bytes, kv_bytes_per_token, serving_memory
from trine.inference.steps import Deployment


class NoRoomError(InputError):
    """Not one request fits. missing_bytes: on each GPU."""

    def __init__(self, message: str, missing_bytes: int) -> None:
        super().__init__(message, field="cluster")
        self.missing_bytes = missing_bytes


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one replica. budget, sequences: of a step. capacity_tokens: of the KV cache, 0 if no token adds to it.

    in_memory: requests of the asked length that the KV cache holds.
    """

    budget: int
    sequences: int
    memory: ServingMemory
    capacity_tokens: int
    in_memory: int

    @property
    def running(self) -> int:
        """Requests that run at a time."""
        return min(self.in_memory, self.sequences)

    @property
    def name(self) -> str:
        """The limit that binds: ``KV cache`` or ``sequences``."""
        return "KV cache" if self.in_memory <= self.sequences else "sequences"


def limits_of(job: ServingJob, deployment: Deployment) -> Limits:
    """Return the limits. Raises NoRoomError if not one request fits, with the missing bytes."""
    engine, gpu = deployment.engine, deployment.gpu
    budget = job.max_batched_tokens or engine.default_for(gpu, engine.max_batched_tokens)
    sequences = job.max_sequences or engine.default_for(gpu, engine.max_sequences)
    memory = serving_memory(deployment, budget, sequences, job.memory_fraction)
    tokens = job.input_tokens + job.output_tokens
    request = kv_bytes(deployment, tokens)
    if memory.kv_bytes < request:
        missing = math.ceil(request - memory.kv_bytes)
        room = f"weights take {format_bytes(memory.weights_bytes)}, its memory is {format_bytes(gpu.memory_bytes)}"
        raise NoRoomError(
            f"no room for one request of {tokens:,} tokens: each {gpu.name.upper()} needs {format_bytes(missing)} more "
            f"({room})", missing,
        )  # fmt: skip
    per_token = kv_bytes_per_token(deployment)
    capacity = int(memory.kv_bytes / per_token) if per_token else 0
    return Limits(budget, sequences, memory, capacity, int(memory.kv_bytes / request) if request else sequences)
