"""How one job is simulated: what :func:`trine.simulate` takes besides the workload and its plan."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trine.arguments import named_arguments, option

if TYPE_CHECKING:
    from trine.cluster import Cluster
    from trine.collectives.nccl.steps import StepCosts
    from trine.compute import Calibration
    from trine.engine.models import Network
    from trine.graph.program import Job
    from trine.graph.taskgraph import Progress
    from trine.parallel.stragglers import Stragglers
    from trine.software.profile import Software


@named_arguments
@dataclass(frozen=True, kw_only=True, slots=True)
class SimulateOptions:
    """How one job is simulated.

    cluster: a Cluster, the name of a preset, or a file. More than one rank needs one.
    compute: ``auto`` (recorded where sizes are the trace's, linear elsewhere), ``recorded``, ``linear``, or
        ``roofline`` (from the shapes, for ``gpu``, else the cluster's GPU, else the trace's; all that a trace of a CPU
        or of meta tensors is good for).
    gpu: predict for this GPU instead of the one that the trace was recorded on. On a cluster of another GPU than the
        trace's one of the two must be named: the cluster's (predicted) or the trace's (the recorded times are kept).
    trace_gpu: the GPU that the trace was recorded on, where the trace does not say and the cluster names its GPUs.
    network: ``fair`` (max-min), ``equal`` (TrioSim's per-link equal split), ``fifo`` (store and forward, each link
        serves whole messages in turn), ``circuit`` (the circuits of the cluster), or a model of your own, which needs
        ``engine="reference"``. None: ``circuit`` where the cluster has circuits, else ``fair``.
    collective_costs: with ``library`` collectives take, alone, what NCCL or RCCL takes (``trine collective``), as flows
        on the links that its algorithm uses; where an algorithm is asked for, or the network is neither ``fair`` nor
        ``equal``, its software costs are added to the messages of a schedule. ``links``: schedules on bare links;
        ``auto``: the library where the links are of a known kind.
        ``loadstore``: so much that a collective alone takes what its GPU program takes at the load-store level, with
        durations kept in the user's cache (:class:`trine.collectives.loadstore.LoadStoreCosts`, which is taken too).
    cpu: whether operators wait for the launching CPU thread; None does so where the trace has a CPU side.
    launch_cost_ps: CPU time of every launch, in place of what the trace says.
    software: the profile of the training software (:mod:`trine.software`), its name, or a file; ``none`` for none. Of
        a synthesised workload it says which operators there are and what launching them costs the CPU; of any, what a
        plan leaves open. None: what the workload was written for, else the default for the workload and GPU.
    calibration: fits over several traces, from :func:`trine.calibrate`.
    engine: ``compiled`` or ``reference``, its plain-Python twin.
    fold: ``on`` simulates one rank of each kind that behaves alike, exactly, or gives an estimate where a few slow
        links make very many kinds; ``exact`` never an estimate, as long as memory goes; ``off`` each by itself;
        ``verify`` both, and compares every task (docs/design/folding.md).
    placement: which GPU each rank is on: ``packed`` (the default: rank i on GPU i), ``round-robin`` over the nodes,
        ``random:SEED``, a list of positions among the cluster's GPUs, or a file with one a line.
    stragglers: slow ranks and jitter of compute durations.
    gpu_spread: standard deviation of the speed of GPUs of one kind, as a part of one: a step takes as long as the
        slowest of its GPUs needs (:mod:`trine.compute.spread`). None: 1.48 % where operator times come from tables and
        no jitter is given, which says how ranks differ; else 0.
    progress, on_compile: callbacks, see :func:`trine.engine.run`. on_stage: called with a sentence whenever the classes
        of ranks have been found. on_job: called with the rank programs before they run, for example to write them
        (:mod:`trine.formats.chakra`).
    warnings: sentences to carry into the result.
    compare: simulate small steps again without an option that is there to save time or memory (overlap of tensor
        parallelism, gathers further ahead, recomputation, offload of activations), and say where it does not
        (:mod:`trine.simulation.run`).
    """

    cluster: Cluster | str | os.PathLike[str] | None = None
    gpu: str | None = option(None, "Predict for this GPU; the trace's own keeps its times.")
    trace_gpu: str | None = option(None, "Name the GPU of the trace if the trace does not.")
    compute: str = option("auto", "Choose the source of operator times.")
    calibration: Calibration | None = option(None, "Use a file written by trine calibrate.")
    cpu: bool | None = option(None, "Simulate the CPU thread that launches kernels.")
    launch_cost_ps: int | None = option(None, 'Set the CPU time of a launch, e.g. "5 us" [the trace\'s].')
    network: str | Network | None = option(None, "Choose how flows share links [fair; circuit if any].")
    collective_costs: str | StepCosts = option(
        "auto", "Choose the cost model of collectives: library, links or loads and stores."
    )
    placement: str | os.PathLike[str] | Sequence[int] | None = option(
        None, "Choose which GPU runs which rank [packed]."
    )
    engine: str = "compiled"
    fold: str = "on"
    stragglers: Stragglers | None = None
    gpu_spread: float | None = option(
        None, "Set the spread of GPU speeds; all wait for the slowest [1.48% with tables]."
    )
    progress: Progress | None = None
    on_compile: Callable[[], None] | None = None
    on_stage: Callable[[str], None] | None = None
    on_job: Callable[[Job], None] | None = None
    software: Software | str | os.PathLike[str] | None = option(
        None, "Choose the software profile: name or file [by workload]."
    )
    warnings: tuple[str, ...] = ()
    compare: bool = True
