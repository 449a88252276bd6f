"""The layout that :func:`trine.decide.size.size` uses for a number of GPUs: the best of a layout search."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trine.cluster import load_cluster
from trine.common.observer import unobserved
from trine.compute.origin import known_gpu
from trine.decide.cost import RunStep
from trine.errors import InputError, PlanError
from trine.graph.workload import SYNTHESISED
from trine.parallel.plan import Plan
from trine.results import headline
from trine.search.plan import plan
from trine.search.space import Layout
from trine.training import simulate

if TYPE_CHECKING:
    from trine.cluster import Cluster
    from trine.training.options import SimulateOptions

#: Layouts to simulate per number of GPUs, besides those that do not fit the memory.
MAX_TRIES = 6
#: Bytes of a weight that training keeps on a GPU, however much is sharded or offloaded.
LEAST_WEIGHT_BYTES = 2


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
    if gpu is not None and LEAST_WEIGHT_BYTES * model.parameters > num_gpus * gpu.memory_bytes:
        return None
    try:
        with unobserved():
            found = plan(model.text, gpus=num_gpus, cluster=machine, global_batch=global_batch,
                         software=options.software, top=1, workers=1, most_simulated=MAX_TRIES)  # fmt: skip
            layout = found.best.layout
            chosen = Plan(batch=global_batch // layout.dp, **layout._asdict())
            result = simulate(model.text, chosen, options=replace(options, cluster=machine, compare=False))
    except PlanError:
        return None
    return FoundLayout(layout, RunStep.of(result), headline.mfu(result), result.work and result.work.dtype)


def has_layout(model: ModelShape, num_gpus: int, global_batch: int) -> bool:
    """Return whether the GPUs divide into equal replicas and stages of equally many layers."""
    ways = [tp * pp for tp in (1, 2, 4, 8) for pp in range(1, model.layers + 1) if model.layers % pp == 0]
    return any(num_gpus % each == 0 and global_batch % (num_gpus // each) == 0 for each in ways)


def gpus_of_node(machine: Cluster) -> int:
    """Return the largest number of GPUs of the cluster in one scale-up domain or node."""
    return int(machine.node_of[list(machine.gpus)].tolist().count(machine.node_of[machine.gpus[0]]))
