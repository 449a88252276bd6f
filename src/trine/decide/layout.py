"""The layout that :func:`trine.decide.size.size` uses for a number of GPUs: the best of a layout search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from trine.cluster import load_cluster
from trine.common.observer import unobserved
from trine.common.units import whole_number
from trine.common.work_reports import doing
from trine.compute.origin import known_gpu
from trine.decide.cost import RunStep
from trine.errors import InputError, PlanError
from trine.folding.run import showing_few
from trine.graph.workload import SYNTHESISED
from trine.parallel.plan import Plan
from trine.search.plan import plan
from trine.search.space import Layout
from trine.search.worker import Outcome, outcome_of
from trine.training import simulate

if TYPE_CHECKING:
    from trine.cluster import Cluster
    from trine.training.options import SimulateOptions

#: Layouts to simulate per number of GPUs, besides those that do not fit the memory.
MAX_TRIES = 6
#: Fields of the layouts that are tried first; the others follow if none of these fits.
_USUAL: Mapping[str, Any] = {"cp": 1, "offload": "none"}
#: Bytes of a weight that training keeps on a GPU, however much is sharded or offloaded.
MIN_WEIGHT_BYTES = 2


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
        sizes = [whole_number(str(metadata.get(name, 0))) or 0 for name in (*names, "num_experts")]
        return ModelShape(text, *sizes)


@dataclass(frozen=True, slots=True)
class FoundLayout:
    """A layout that fits the memory, its step, and the MFU (None if the GPU's peak is unknown) with its precision."""

    layout: Layout
    step: RunStep
    mfu: float | None
    precision: str | None = None


def best_layout(
    model: ModelShape, cluster: str, num_gpus: int, global_batch: int, options: SimulateOptions
) -> FoundLayout | None:
    """Return the fastest layout of ``num_gpus`` GPUs that a short search finds, or None if no layout fits the memory.

    cluster: a preset or file; it is filled node after node.
    """
    machine = load_cluster(cluster, gpus=num_gpus)
    gpu = known_gpu(machine.devices[machine.gpus[0]].gpu)
    if gpu is not None and MIN_WEIGHT_BYTES * model.parameters > num_gpus * gpu.memory_bytes:
        return None
    for fix in (_USUAL, {}):
        try:
            return _found(model, machine, global_batch, options, fix)
        except PlanError:
            continue
    return None


def _found(
    model: ModelShape, machine: Cluster, global_batch: int, options: SimulateOptions, fix: Mapping[str, Any]
) -> FoundLayout:
    """Return the best layout with the fields of ``fix``. Raises PlanError if none fits."""
    with doing(f"layouts on {machine.name}"), unobserved():
        best = plan(model.text, gpus=len(machine.gpus), cluster=machine, global_batch=global_batch,
                    software=options.software, gradient_dtype=options.gradient_dtype, loss=options.loss,
                    precision=options.precision, trainable=options.trainable,
                    top=1, workers=1, most_simulated=MAX_TRIES, fix=fix, with_power=True).best  # fmt: skip
    return _found_layout(best.layout, best.outcome, machine)


def scaled_layout(
    model: ModelShape, cluster: str, num_gpus: int, global_batch: int, like: Layout, options: SimulateOptions
) -> FoundLayout | None:
    """Return the layout ``like`` with as many replicas as ``num_gpus`` GPUs hold: one simulation in place of a search.

    Returns None if the numbers do not divide, or the layout lacks a margin of memory.
    """
    ranks = like.tp * like.pp * like.cp
    dp = num_gpus // ranks
    if num_gpus % ranks or not dp or global_batch % (dp * like.micro_batch):
        return None
    machine = load_cluster(cluster, gpus=num_gpus)
    layout = like._replace(dp=dp)
    chosen = Plan(batch=global_batch // dp, **layout._asdict())
    settings = replace(options, cluster=machine, compare=False)
    try:
        with doing(f"one layout on {machine.name}"), unobserved(), showing_few():
            outcome = outcome_of(simulate(model.text, chosen, options=settings), with_power=True)
    except InputError:
        return None
    return None if outcome.verdict in ("tight", "does not fit") else _found_layout(layout, outcome, machine)


def _found_layout(layout: Layout, outcome: Outcome, machine: Cluster) -> FoundLayout:
    """Return a layout with the facts of its step that a run's cost needs."""
    low_ps, high_ps = outcome.low_ps, outcome.high_ps
    gpu = known_gpu(machine.devices[machine.gpus[0]].gpu)
    ends_ps = None if low_ps is None or high_ps is None else (low_ps, high_ps)
    gpu_name = None if gpu is None else gpu.name
    step = RunStep(
        step_ps=outcome.step_ps, ends_ps=ends_ps, tokens=outcome.tokens or 0, num_gpus=len(machine.gpus),
        gpu=gpu_name, mean_w=outcome.mean_w,
    )  # fmt: skip
    return FoundLayout(layout, step, outcome.mfu, outcome.precision)


def has_layout(model: ModelShape, num_gpus: int, global_batch: int) -> bool:
    """Return whether the GPUs divide into equal replicas and stages of equally many layers."""
    ways = [tp * pp for tp in (1, 2, 4, 8) for pp in range(1, model.layers + 1) if model.layers % pp == 0]
    return any(num_gpus % each == 0 and global_batch % (num_gpus // each) == 0 for each in ways)


def gpus_of_node(machine: Cluster) -> int:
    """Return the largest number of GPUs of the cluster in one scale-up domain or node."""
    return int(machine.node_of[list(machine.gpus)].tolist().count(machine.node_of[machine.gpus[0]]))
