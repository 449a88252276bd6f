"""The layout that :func:`trine.decide.size.size` uses for a number of GPUs: the seam for a full layout search.

``best_layout`` tries few layouts: each degree of tensor parallelism inside a node, the fewest pipeline stages whose
memory may fit, and replicas with a sharded optimizer (ZeRO-1) for the rest. Estimates of memory only choose what to
simulate; the simulation decides.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trine.cluster import load_cluster, load_gpu
from trine.common.observer import unobserved
from trine.decide.cost import RunStep
from trine.errors import InputError, PlanError
from trine.graph.workload import SYNTHESISED
from trine.parallel.plan import Plan
from trine.results import headline
from trine.training import simulate

if TYPE_CHECKING:
    from trine.cluster import Cluster
    from trine.results import Result
    from trine.training.options import SimulateOptions

#: Tokens of a micro-batch above which GEMMs get no faster.
MICRO_BATCH_TOKENS = 8192
#: Layouts to simulate per number of GPUs.
MAX_TRIES = 2
#: Bytes per parameter: weights and gradients (bfloat16, float32), and the optimizer's states, which replicas share.
_REPLICATED_BYTES, _SHARDED_BYTES = 6, 12
#: Activations of a layer per token and hidden feature in bytes, with fused attention: Korthikanti et al.,
#: arXiv 2205.05198, table 2. With full recomputation only the layer's input stays.
_ACTIVATION_BYTES, _INPUT_BYTES = 34, 2
#: Share of the memory that estimates may use.
_USABLE = 0.92


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Numbers of a model that choose a layout. text: as ``trine train`` takes it. experts: 0 for a dense model."""

    text: str
    parameters: int
    layers: int
    hidden: int
    sequence: int
    experts: int

    @staticmethod
    def of(text: str) -> ModelShape:
        """Return the shape of a model. Raises InputError for a trace, and for a model without tokens."""
        from trine.training.setup import load_workload

        workload = load_workload(text, None)
        metadata = workload.metadata
        names = ("parameters", "layers", "hidden", "sequence")
        if workload.format != SYNTHESISED or any(name not in metadata for name in names):
            raise InputError(f"{text!r:.80} has no layers and tokens: name a model, such as model:llama-3-8b")
        parameters, layers, hidden, sequence = (int(str(metadata[name])) for name in names)
        return ModelShape(text, parameters, layers, hidden, sequence, int(str(metadata.get("num_experts", 0))))


@dataclass(frozen=True, slots=True)
class Layout:
    """A layout that fits the memory, its step, and the MFU (None if the GPU's peak is unknown)."""

    plan: Plan
    step: RunStep
    mfu: float | None


def best_layout(
    model: ModelShape, cluster: str, num_gpus: int, global_batch: int, options: SimulateOptions
) -> Layout | None:
    """Return the fastest of at most MAX_TRIES layouts of ``num_gpus`` GPUs, or None if no layout fits the memory.

    cluster: a preset or file; it is filled node after node.
    """
    machine = load_cluster(cluster, gpus=num_gpus)
    changed = replace(options, cluster=machine, compare=False)
    results = ((plan, _simulated(model, plan, changed)) for plan in candidates(model, machine, num_gpus, global_batch))
    valid = itertools.islice(((plan, result) for plan, result in results if result is not None), MAX_TRIES)
    layouts = [Layout(plan, RunStep.of(result), headline.mfu(result)) for plan, result in valid if _fits(result)]
    return min(layouts, key=lambda layout: layout.step.step_ps, default=None)


def _simulated(model: ModelShape, plan: Plan, options: SimulateOptions) -> Result | None:
    """Return the result of a layout; None if the software cannot run it."""
    try:
        with unobserved():
            return simulate(model.text, plan, options=options)
    except PlanError:
        return None


def _fits(result: Result) -> bool:
    return bool(result.memory_uses) and all(use.verdict != "does not fit" for use in result.memory_uses)


def has_layout(model: ModelShape, machine: Cluster, num_gpus: int, global_batch: int) -> bool:
    """Return whether the GPUs divide into equal replicas of some layout."""
    return next(candidates(model, machine, num_gpus, global_batch), None) is not None


def candidates(model: ModelShape, machine: Cluster, num_gpus: int, global_batch: int) -> Iterator[Plan]:
    """Yield layouts of ``num_gpus`` GPUs in the order of the simulations.

    Layouts without recomputation come first, then those with the fewest GPUs per replica, then with fewer stages.
    """
    degrees = [tp for tp in (1, 2, 4, 8) if tp <= gpus_of_node(machine) and num_gpus % tp == 0]
    plans = [_with_fewest_stages(model, machine, num_gpus, global_batch, tp) for tp in degrees]
    valid = [plan for plan in plans if plan is not None]
    yield from sorted(valid, key=lambda plan: (plan.recompute != "none", plan.tp * plan.pp, plan.pp))


def gpus_of_node(machine: Cluster) -> int:
    """Return the largest number of GPUs of the cluster in one scale-up domain or node."""
    return int(machine.node_of[list(machine.gpus)].tolist().count(machine.node_of[machine.gpus[0]]))


def _with_fewest_stages(model: ModelShape, machine: Cluster, num_gpus: int, global_batch: int, tp: int) -> Plan | None:
    capacity = _USABLE * load_gpu(machine.devices[machine.gpus[0]].gpu or "").memory_bytes
    for pp in (stages for stages in range(1, model.layers + 1) if model.layers % stages == 0):
        dp, rest = divmod(num_gpus, tp * pp)
        if rest or not dp or global_batch % dp:
            continue
        batch = global_batch // dp
        if pp > 1 and batch < pp:
            continue  # more than half of the step would be bubble
        for recompute, micro_batch in itertools.product(("none", "full"), _micro_batches(model, batch, pp)):
            if memory_bytes(model, tp, pp, dp, micro_batch, batch // micro_batch, recompute) <= capacity:
                return _plan(model, tp, pp, dp, batch, micro_batch, recompute)
    return None


def _micro_batches(model: ModelShape, batch: int, pp: int) -> list[int]:
    """Return sizes of a micro-batch, the largest first: up to MICRO_BATCH_TOKENS, and one micro-batch per stage."""
    most = min(batch // pp, max(1, MICRO_BATCH_TOKENS // model.sequence))
    return [size for size in (8, 4, 2, 1) if size <= most and batch % size == 0]


def _plan(model: ModelShape, tp: int, pp: int, dp: int, batch: int, micro_batch: int, recompute: str) -> Plan:
    return Plan(
        tp=tp, pp=pp, dp=dp, batch=batch, micro_batch=micro_batch, recompute=recompute,
        schedule="1f1b" if pp > 1 else None, sharding="zero1" if dp > 1 else "none",
        sequence_parallel=True if tp > 1 else None, ep=math.gcd(model.experts, dp) if model.experts else 1,
    )  # fmt: skip


def memory_bytes(
    model: ModelShape, tp: int, pp: int, dp: int, micro_batch: int, micro_batches: int, recompute: str
) -> float:
    """Return an estimate of the fullest GPU's memory, to choose which layouts to simulate."""
    experts = math.gcd(model.experts, dp) if model.experts else 1  # nearly all parameters of such models are experts'
    held = model.parameters / (tp * pp * experts)
    states = held * (_REPLICATED_BYTES + _SHARDED_BYTES / (dp / experts))
    in_flight = min(pp, micro_batches) * model.layers / pp
    tokens = micro_batch * model.sequence * model.hidden
    layers = in_flight if recompute == "none" else 1.0
    kept = 0.0 if recompute == "none" else _INPUT_BYTES * in_flight
    return states + tokens * (_ACTIVATION_BYTES * layers + kept) / tp
