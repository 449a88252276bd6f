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
from trine.common.units import PS_PER_S
from trine.decide.cost import RunStep
from trine.errors import InputError, PlanError
from trine.parallel.plan import Plan
from trine.training import simulate

if TYPE_CHECKING:
    from trine.cluster import Cluster
    from trine.results import Result
    from trine.training.options import SimulateOptions

#: Simulated micro-batches of the shorter of two steps that a longer one follows from, times the pipeline's depth.
EXTENDED_FROM = 3
#: Tokens of a micro-batch above which GEMMs get no faster.
MICRO_BATCH_TOKENS = 8192
#: Layouts to simulate per number of GPUs.
MAX_TRIES = 3
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

        metadata = load_workload(text, None).metadata
        names = ("parameters", "layers", "hidden", "sequence")
        if not text.startswith("model:") or any(name not in metadata for name in names):
            raise InputError(f"{text!r:.80} has no layers and tokens: name a model, such as model:llama-3-8b")
        parameters, layers, hidden, sequence = (int(str(metadata[name])) for name in names)
        return ModelShape(text, parameters, layers, hidden, sequence, int(str(metadata.get("num_experts", 0))))


@dataclass(frozen=True, slots=True)
class Layout:
    """A layout and its step. result: of a step with fewer micro-batches if ``is_extended``."""

    plan: Plan
    step: RunStep
    result: Result
    is_extended: bool = False

    @property
    def mfu(self) -> float | None:
        """Model FLOP/s over the GPUs' dense peak; None if the peak is unknown."""
        work = self.result.work
        if work is None or not work.peak_flops or not work.tokens:
            return None
        flops = work.model_flops / work.tokens * self.step.tokens
        return flops * PS_PER_S / self.step.step_ps / self.step.num_gpus / work.peak_flops


def best_layout(
    model: ModelShape, cluster: str, num_gpus: int, global_batch: int, options: SimulateOptions
) -> Layout | None:
    """Return the fastest of at most MAX_TRIES layouts of ``num_gpus`` GPUs, or None if none of them fits the memory.

    cluster: a preset or file; it is filled node after node.
    """
    machine = load_cluster(cluster, gpus=num_gpus)
    best: Layout | None = None
    tries = 0
    for plan in candidates(model, machine, num_gpus, global_batch):
        layout = _simulated(model, plan, replace(options, cluster=machine, compare=False))
        tries += layout is not None
        if layout is not None and layout.result.memory_uses and _fits(layout.result):
            is_faster = best is None or layout.step.step_ps < best.step.step_ps
            best = layout if is_faster else best
        if tries == MAX_TRIES:
            break
    return best


def _simulated(model: ModelShape, plan: Plan, options: SimulateOptions) -> Layout | None:
    """Return the simulated layout; None if the software cannot run it.

    From twice the pipeline's depth on, each further micro-batch adds the same time. So a step of many micro-batches
    follows from two short ones.
    """
    try:
        with unobserved():
            batch, round_ = plan.batch or 1, plan.pp * (plan.micro_batch or 1)
            short, long = (min(batch, (times + EXTENDED_FROM) * round_) for times in (0, 1))
            result = simulate(model.text, replace(plan, batch=long), options=options)
            if long == batch:
                return Layout(plan, RunStep.of(result), result)
            before = simulate(model.text, replace(plan, batch=short), options=options)
    except PlanError:
        return None
    return Layout(plan, _extended(RunStep.of(result), before.step_time_ps, short, long, batch), result, True)


def _extended(step: RunStep, short_ps: int, short: int, long: int, batch: int) -> RunStep:
    """Return the step of ``batch`` samples from those of ``short`` and ``long`` samples per replica."""
    more_ps = (step.step_ps - short_ps) * (batch - long) // (long - short)
    factor = (step.step_ps + more_ps) / step.step_ps
    ends = None if step.ends_ps is None else (round(step.ends_ps[0] * factor), round(step.ends_ps[1] * factor))
    return replace(step, step_ps=step.step_ps + more_ps, ends_ps=ends, tokens=step.tokens // long * batch)


def _fits(result: Result) -> bool:
    return all(use.verdict != "does not fit" for use in result.memory_uses)


def has_layout(model: ModelShape, machine: Cluster, num_gpus: int, global_batch: int) -> bool:
    """Return whether the GPUs divide into equal replicas of some layout."""
    return next(candidates(model, machine, num_gpus, global_batch), None) is not None


def candidates(model: ModelShape, machine: Cluster, num_gpus: int, global_batch: int) -> Iterator[Plan]:
    """Yield layouts of ``num_gpus`` GPUs in the order of the simulations: the least tensor parallelism first."""
    for tp in (1, 2, 4, 8):
        if tp > gpus_of_node(machine) or num_gpus % tp:
            continue
        plan = _with_fewest_stages(model, machine, num_gpus, global_batch, tp)
        if plan is not None:
            yield plan


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
