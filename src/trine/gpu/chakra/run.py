"""Traces at the load-store level: compute and communication nodes as kernels that share the compute units."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trine.cluster.load import as_cluster
from trine.common._version import __version__
from trine.common.arrays import Int64
from trine.common.evidence import Evidence
from trine.common.observer import ignore, observing
from trine.common.units import PS_PER_S, format_time
from trine.errors import InputError, PlanError, nearest
from trine.formats.chakra.simulate import trace_facts
from trine.gpu.chakra.compute import Alone, ComputeKernel, fit_kernels, movable_bytes, turns_for
from trine.gpu.chakra.graph import GraphBuilder, LoadStoreGraph, is_kernel
from trine.gpu.chakra.kernels import JobKernels, KernelChoices, address_period, memory_end
from trine.gpu.collective.options import plain_model
from trine.gpu.join import PlacedProgram, join_programs
from trine.gpu.results.result import GpuResult
from trine.gpu.run import GpuRun, GpuRunOptions, run_gpus
from trine.gpu.system import KernelTasks
from trine.graph.builder import TaskGraphBuilder
from trine.graph.program import Collective, Compute
from trine.graph.taskgraph import TRANSFER, Records, TaskGraph
from trine.results import Result, Simulator
from trine.results.link_use import LinkUse
from trine.results.report import Row, Timeline

if TYPE_CHECKING:
    from trine.cluster import Cluster
    from trine.common.observer import OnCompile, Progress
    from trine.formats.chakra.trace import ChakraTrace
    from trine.gpu.model import GpuModel
    from trine.gpu.program import GpuProgram


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class LoadStoreResult(Result):
    """Result of a run. Tasks of communication kernels are transfers of their rank, from launch to the kernel's end.

    gpu: activity of CUs, wavefronts and requests, for all ranks and the whole run. drawn: the graph that timelines
    show, with collectives on separate streams.
    """

    gpu: GpuResult
    drawn: TaskGraph

    @cached_property
    def link_uses(self) -> tuple[LinkUse, ...]:
        """Bytes (with headers) and utilisation of each link that messages crossed in the run."""
        time_ps = self.gpu.time_ps
        return tuple(
            LinkUse(
                link=use.link,
                name=use.name,
                size_bytes=use.data_bytes + use.control_bytes,
                bytes_per_s=use.bytes_per_s,
                utilisation=_busy(use.data_bytes + use.control_bytes, use.bytes_per_s, time_ps),
            )
            for use in self.gpu.links
        )

    def details(self) -> str:
        """Return the job, then the inside of its GPUs, as text."""
        return f"{super().details()}\n\ninside the GPUs\n{self.gpu.details()}"

    def document(self) -> Row:
        """Return the result as plain data (docs/reference/result-json.md), with the GPUs' result as ``gpus``."""
        return super().document() | {"gpus": self.gpu.document()}

    def timeline(self) -> Timeline:
        """Return the timeline of tasks; ``.gpu.timeline`` returns the timeline of workgroups."""
        result = self if self.part is not None else replace(self, graph=self.drawn)
        return super(LoadStoreResult, result).timeline()


def _busy(size_bytes: int, bytes_per_s: int, time_ps: int) -> float:
    return size_bytes * PS_PER_S / (bytes_per_s * time_ps) if time_ps else 0.0


def drawn_graph(seen: TaskGraph, ran: TaskGraph) -> TaskGraph:
    """Return the graph of the results, but with collectives as work on the streams that ran them."""
    is_collective = (ran.stream >= 0) & (seen.kind == TRANSFER)
    return replace(
        seen,
        kind=np.where(is_collective, ran.kind, seen.kind).astype(np.int8),
        peer=np.where(is_collective, ran.peer, seen.peer).astype(np.int32),
        stream=np.where(is_collective, ran.stream, seen.stream).astype(np.int32),
    )


def end_unfinished(records: Records, end_ps: int) -> tuple[Records, int]:
    """Return the records of a run stopped at ``end_ps``, where unfinished tasks now end, and the number of those."""

    def ended(column: Int64) -> Int64:
        return np.where(column < 0, end_ps, column)

    num_unfinished = int(np.count_nonzero(records.end_ps < 0))
    return replace(
        records, ready_ps=ended(records.ready_ps), start_ps=ended(records.start_ps), end_ps=ended(records.end_ps)
    ), num_unfinished


#: Maximum number of lines that a job's compute nodes move, over all ranks: some minutes of simulation.
MAX_LINES = 100_000_000
WHY_UNFOLDED = "tasks that wait for each other are not folded at the load-store level"
NOT_MODELLED = (
    "memory that the job needs: the traces do not list it",
    "what compute nodes do: their kernels move tensor_size bytes and keep ALUs busy for the rest of their duration",
    "that messages wait for room at their receiver",
)

#: (duration in ps, bytes) of compute nodes
_Node = tuple[int, int]


def simulate_chakra_loadstore(
    trace: ChakraTrace,
    cluster: Cluster | str | os.PathLike[str],
    *,
    model: GpuModel | str | None = None,
    kernels: KernelChoices | None = None,
    engine: str = "compiled",
    progress: Progress | None = None,
    on_compile: OnCompile | None = None,
    warnings: tuple[str, ...] = (),
) -> LoadStoreResult:
    """Simulate the traces of all ranks load by load and store by store, rank i on the i-th GPU of ``cluster``.

    Compute nodes become kernels that take their duration if they have the GPU to themselves. Collectives use the
    kernels of :func:`trine.gpu.kernels.build.build_kernel`. Kernels share compute units, memory and links
    (ASTRA-sim 3.0, arXiv 2606.10440).

    Parameters
    ----------
    model: the inside of the GPUs, or its name or file; None: the model of the cluster's GPUs.
    kernels: choices for the kernels; None: the defaults of :class:`KernelChoices`.
    engine: ``compiled``, or ``reference``, its plain-Python twin.
    progress: called with (requests issued, requests in total, current time in ps).

    Raises
    ------
    InputError: choices that do not fit the GPU or the traces.
    PlanError: fewer GPUs than ranks, nodes that have no kernel, or too much to simulate.
    DeadlockError: kernels that wait for each other; names their wavefronts.
    """
    began = time.perf_counter()
    cluster = as_cluster(cluster)
    if trace.num_ranks > len(cluster.gpus):
        raise PlanError(
            f"there are traces of {trace.num_ranks} ranks, but cluster {cluster.name!r} has {len(cluster.gpus)} GPUs"
        )
    with observing(progress=progress, on_compile=on_compile):
        gpu = plain_model(model, cluster, cluster.gpus[: trace.num_ranks], is_plan=False)
        job = loadstore_job(trace, cluster, gpu, kernels or KernelChoices())
        run = run_gpus(
            job.program, cluster, cluster.gpus[: trace.num_ranks], replace(job.model, launch_ps=0),
            tasks=KernelTasks(job.tasks.graph, job.tasks.task_kernel),
            options=GpuRunOptions(fold="off", engine=engine),
        )  # fmt: skip
    return _result(trace, job, run, warnings, time.perf_counter() - began)


class LoadStoreJob(NamedTuple):
    """All kernels, and the tasks that carry them. ``model`` has the launch time; launches are separate tasks."""

    program: GpuProgram
    tasks: LoadStoreGraph
    model: GpuModel
    notes: tuple[str, ...]


def loadstore_job(trace: ChakraTrace, cluster: Cluster, model: GpuModel, choices: KernelChoices) -> LoadStoreJob:
    """Return the kernels and tasks of traces; times compute kernels alone. Raises as simulate_chakra_loadstore."""
    kinds = {step.kind for program in trace.programs for step in program.steps if isinstance(step, Collective)}
    for kind, name in choices.algorithms.items():
        if kind not in kinds:
            raise InputError(f"no trace has a {kind} to run by {name!r}{nearest(kind, kinds)}", field="algorithms")
    trace = _with_traffic(trace, choices)
    nodes, shape = _compute_nodes(trace), choices.shape(model)
    _check_lines(nodes, model)
    turns = turns_for(sum(nodes.values()), shape)
    with observing(progress=ignore):
        compute_kernels = fit_kernels(nodes, model, shape, turns, _alone_on(cluster, model))
    kernels = JobKernels(cluster, trace.num_ranks, model, choices)
    programs = {node: kernel.program for node, kernel in compute_kernels.items() if kernel is not None}
    tasks = GraphBuilder(trace, cluster, kernels, model.launch_ps, programs).build()
    if not len(kernels):
        raise PlanError("nothing in these traces is a kernel: --fidelity operator")
    notes = (*_notes(nodes, compute_kernels, choices), *kernels.notes)
    return LoadStoreJob(kernels.program(os.path.basename(trace.prefix)), tasks, model, notes)


def _with_traffic(trace: ChakraTrace, choices: KernelChoices) -> ChakraTrace:
    """Return the trace, without the bytes of its tensors unless ``choices.compute_traffic``."""
    if choices.compute_traffic:
        return trace
    bare = tuple(program._replace(tensor_bytes=(0,) * len(program.steps)) for program in trace.programs)
    return replace(trace, programs=bare)


def _compute_nodes(trace: ChakraTrace) -> Counter[_Node]:
    """Count the nodes of each (duration, bytes) over all ranks."""
    counts: Counter[_Node] = Counter()
    for number, count in Counter(trace.program_of).items():
        program = trace.programs[number]
        for step, size in zip(program.steps, program.tensor_bytes, strict=True):
            if isinstance(step, Compute) and is_kernel(step):
                counts[step.duration_ps, size] += count
    return counts


def _check_lines(nodes: Mapping[_Node, int], model: GpuModel) -> None:
    lines = sum(
        count * min(size, movable_bytes(duration_ps, model)) // model.line_bytes
        for (duration_ps, size), count in nodes.items()
    )
    if lines > MAX_LINES:
        raise PlanError(
            f"compute nodes move {lines:,} lines of {model.line_bytes} B, more than {MAX_LINES:,}: leave their "
            "tensors out (--no-compute-traffic), or simulate less of the job"
        )


def _alone_on(cluster: Cluster, model: GpuModel) -> Alone:
    """Return a function that runs kernels of one rank one after another on the first GPU, and returns their times."""
    idle = replace(model, launch_ps=0)

    def run_alone(programs: Sequence[GpuProgram]) -> Sequence[int]:
        period, address = address_period(model), 0
        parts: list[PlacedProgram] = []
        builder = TaskGraphBuilder((), ())
        for program in programs:
            parts.append(PlacedProgram(program=program, ranks=(0,), address_shift=address))
            address += -(-memory_end(program) // period) * period
            builder.compute(0, "alone", 0)
        tasks = KernelTasks(builder.build(), np.arange(len(parts), dtype=np.int32))
        options = GpuRunOptions(fold="off")
        run = run_gpus(join_programs(parts, 1), cluster, cluster.gpus[:1], idle, tasks=tasks, options=options)
        records = run.whole().records
        times: list[int] = (records.end_ps - records.start_ps).tolist()
        return times

    return run_alone


def _notes(
    nodes: Mapping[_Node, int], kernels: Mapping[_Node, ComputeKernel | None], choices: KernelChoices
) -> list[str]:
    unfit = [node for node, kernel in kernels.items() if kernel is None]
    notes = []
    if unfit:
        longest = format_time(max(duration_ps for duration_ps, _ in unfit))
        notes.append(
            f"{sum(nodes[node] for node in unfit)} compute nodes of up to {longest} are too short to be kernels: they "
            "take their time without compute units"
        )
    slow = [node for node, kernel in kernels.items() if kernel is not None and 100 * kernel.moved_bytes < 98 * node[1]]
    large = [node for node in slow if node[1] > 2**16]
    if large:
        notes.append(
            f"{sum(nodes[node] for node in large)} compute nodes have more bytes than a GPU moves in their time: they "
            "move as many as fit"
        )
    if nodes and choices.compute_traffic and not any(size for _, size in nodes):
        notes.append("compute nodes have no tensor_size: their kernels compute, and move nothing")
    return notes


def _result(
    trace: ChakraTrace, job: LoadStoreJob, run: GpuRun, warnings: tuple[str, ...], wall_s: float
) -> LoadStoreResult:
    records, left = end_unfinished(run.records, run.gpu.end_ps)
    texts = [*warnings, *trace.notes, *job.notes]
    if not run.finished:
        total = job.tasks.graph.num_tasks
        texts.insert(0, f"PARTIAL: stopped at {format_time(run.gpu.end_ps)}; {total - left} of {total} tasks had ended")
    gpu = GpuResult(
        program=run.program, model=job.model, cluster=run.cluster, group=run.group, records=run.gpu,
        fold=replace(run.fold, why_unfolded=WHY_UNFOLDED), finished=run.finished, wall_s=wall_s,
    )  # fmt: skip
    facts = dict(trace_facts(trace, run.cluster, "loadstore", f"{run.program.num_kernels} kernels, rank by rank"))
    return LoadStoreResult(
        graph=job.tasks.seen,
        records=records,
        memory=None,
        plan=facts | {"gpu_model": job.model.name},
        evidence=_evidence(trace, gpu),
        warnings=tuple(texts),
        not_modelled=NOT_MODELLED,
        simulator=Simulator(
            version=__version__, wall_s=wall_s, events=run.gpu.num_events, ranks_simulated=trace.num_ranks
        ),
        gpu=gpu,
        drawn=drawn_graph(job.tasks.seen, job.tasks.graph),
    )


def _evidence(trace: ChakraTrace, gpu: GpuResult) -> tuple[Evidence, ...]:
    operators = Evidence("operator time alone", "assumed", "taken from the traces, which do not state its source")
    if trace.roofline is not None:
        operators = Evidence("operator time alone", "modelled", "roofline on num_ops and tensor_size of the traces")
    cluster = gpu.cluster
    sources = "; ".join(f"{name}: {text}" for name, text in cluster.sources.items())
    return (
        operators,
        Evidence(f"links of {cluster.name}", cluster.evidence, sources),
        Evidence("contention for compute units", "modelled", f"kernels on the GPU model {gpu.model.name}"),
        Evidence("communication time", "modelled", "trine's kernels, load by load and store by store"),
    )
