"""A second job, or background traffic, on the links of a job: both in one task graph and one run.

Every rank is simulated. Each job repeats its step until both take about the same time alone, so that they overlap from
beginning to end. A job's slowdown is its time beside the other over its time alone.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np

from trine.cluster import Cluster
from trine.common.arguments import named_arguments
from trine.common.arrays import Int64
from trine.common.schema import Bandwidth, Field, Spec
from trine.common.spec import read_spec
from trine.common.units import PS_PER_S, format_bandwidth, format_time
from trine.engine import run
from trine.errors import InputError, about, nearest
from trine.graph.builder import TaskGraphBuilder
from trine.graph.taskgraph import Labels, TaskGraph
from trine.graph.workload import Workload
from trine.parallel.build import build_job
from trine.parallel.contention import under_pressure
from trine.parallel.instantiate import instantiate
from trine.parallel.plan import Plan
from trine.results.columns import Column, Columns, to_row
from trine.results.report import Report, Row
from trine.results.text import columns, wrapped_at
from trine.training.options import SimulateOptions
from trine.training.setup import Setup, costs_on, placement_of, setup_of

JOB = Columns(
    Column(key="name", unit="text", meaning="Job; the first is the job itself."),
    Column(key="steps", unit="integer", meaning="Its steps in the shared run."),
    Column(key="slowdown", unit="number", meaning="Shared / alone."),
    Column(key="gpus", unit="list of integers", meaning="Positions of its GPUs."),
    Column(key="alone_s", unit="s", meaning="Time of all its steps alone."),
    Column(key="shared_s", unit="s", meaning="Time of all its steps beside the other job."),
)  # fmt: skip

#: Each job repeats its step at most this many times.
MAX_STEPS = 8
#: Background flows last this many times as long as the job alone.
FLOW_MARGIN = 4


class FlowSpec(Spec):
    """Background traffic between two devices at a rate, which other traffic may slow down."""

    source: str = Field(alias="from")
    target: str = Field(alias="to")
    rate: Bandwidth


class NeighbourFile(Spec):
    """A second job (``workload`` with ``plan``, ``placement`` and ``software``), or background ``flows``, or both."""

    workload: str | None = None
    plan: dict[str, Any] = Field(default_factory=dict)
    placement: list[int] | None = None
    software: str | None = None
    flows: list[FlowSpec] = Field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedJob:
    """One job of a shared run. alone_ps, shared_ps: of all its steps. gpus: positions among the cluster's GPUs."""

    name: str
    gpus: tuple[int, ...]
    steps: int
    alone_ps: int
    shared_ps: int

    @property
    def slowdown(self) -> float:
        """Time beside the other job over the time alone."""
        return self.shared_ps / self.alone_ps


@dataclass(frozen=True, kw_only=True, repr=False)
class SharedRun(Report):
    """The result of :func:`simulate_shared`: the jobs (the first is the one asked about), and the shared links.

    flows: background traffic in words. num_shared_links: links that both jobs, or the job and a flow, use.
    """

    SCHEMA: ClassVar[str] = "neighbour"

    jobs: tuple[SharedJob, ...]
    flows: tuple[str, ...]
    num_shared_links: int

    @property
    def headline(self) -> str:
        """The slowdown of each job in one line."""
        parts = ", ".join(f"{job.name} {job.slowdown:.3f} times" for job in self.jobs)
        return f"beside the neighbour each step takes: {parts} its time alone ({self.num_shared_links} shared links)"

    @property
    def notes(self) -> tuple[str, ...]:
        """Assumptions of the shared run."""
        assumed = "all jobs start at once; every rank is simulated; launch jitter and other jobs are not modelled"
        return (f"background: {'; '.join(self.flows)}", assumed) if self.flows else (assumed,)

    def details(self) -> str:
        """Return the headline, one row per job, and notes."""
        table: list[tuple[str, ...]] = [("job", "GPUs", "steps", "step alone", "step beside", "slowdown")]
        for job in self.jobs:
            times = (format_time(ps // job.steps) for ps in (job.alone_ps, job.shared_ps))
            table.append((job.name, str(len(job.gpus)), str(job.steps), *times, f"{job.slowdown:.3f}"))
        notes = [line for note in self.notes for line in wrapped_at("note", note, 6)]
        return "\n".join([*wrapped_at("", self.headline, 0), *columns(table), *notes])

    def document(self) -> Row:
        """Return plain data, as documented in docs/reference/json-keys.csv."""
        jobs = JOB.rows(self.jobs)
        return {"jobs": jobs, **to_row(self, "flows", "num_shared_links")}


def read_neighbour(path: str | os.PathLike[str]) -> NeighbourFile:
    """Read a neighbour's file. Raises SpecError for unknown fields, InputError for a file without job and flows."""
    found = read_spec(path, NeighbourFile)
    if found.workload is None and not found.flows:
        raise InputError("needs a 'workload' or 'flows'", file=path)
    if found.workload is None and (found.plan or found.placement or found.software):
        raise InputError("'plan', 'placement' and 'software' need a 'workload'", file=path)
    return found


@named_arguments
def simulate_shared(
    workload: Workload | str | os.PathLike[str],
    plan: Plan,
    neighbour: NeighbourFile | str | os.PathLike[str],
    *,
    options: SimulateOptions,
) -> SharedRun:
    """Simulate a job and its neighbour on the same cluster, and return the slowdown of each.

    The neighbour's ranks run on ``placement``, by default on the first GPUs that the job leaves free. Raises InputError
    for stragglers, for GPUs that both jobs want, unknown devices, and as :func:`trine.simulate`.
    """
    source = "" if isinstance(neighbour, NeighbourFile) else os.fspath(neighbour)
    other = neighbour if isinstance(neighbour, NeighbourFile) else read_neighbour(neighbour)
    if options.stragglers is not None:
        raise InputError("a shared run has no slow ranks or jitter", field="neighbour")
    first = setup_of(workload, plan, options)
    if first.machine is None or first.plan.num_ranks == 1:
        raise InputError("a neighbour shares the links of a job on several GPUs", field="neighbour")
    setups = [first]
    if other.workload is not None:
        with about(source):
            setups.append(_second_setup(first, other, options))
    graphs, alone = _balanced(setups, options)
    if other.flows:
        with about(source):
            graphs.append(_flow_graph(first.machine, other.flows, FLOW_MARGIN * max(alone)))
    merged, owner = _merged(graphs)
    ends = run(merged, network=first.network, engine=options.engine).end_ps
    used = [set(np.unique(graph.route_links).tolist()) for graph in graphs]
    shared_jobs = []
    for number, setup in enumerate(setups):
        shared_jobs.append(
            SharedJob(
                name=setup.workload.name if number == 0 else f"neighbour {setup.workload.name}",
                gpus=tuple(setup.places.tolist()),
                steps=setup.plan.steps,
                alone_ps=alone[number],
                shared_ps=int(ends[owner == number].max(initial=0)),
            )
        )
    jobs = tuple(shared_jobs)
    flows = tuple(f"{each.source} to {each.target} at {format_bandwidth(each.rate)}" for each in other.flows)
    return SharedRun(jobs=jobs, flows=flows, num_shared_links=len(used[0] & set().union(*used[1:])))


def _second_setup(first: Setup, other: NeighbourFile, options: SimulateOptions) -> Setup:
    """Return the neighbour's resolved inputs on the same cluster."""
    assert other.workload is not None
    assert first.machine is not None
    names = {each.name for each in fields(Plan)}
    for name in other.plan:
        if name not in names:
            raise InputError(f"unknown field {name!r} of the plan{nearest(name, names)}", field="plan")
    plan = Plan(**other.plan)
    taken = set(first.places.tolist())
    free = [gpu for gpu in range(len(first.machine.gpus)) if gpu not in taken]
    places = free[: plan.num_ranks] if other.placement is None else other.placement
    if len(places) < plan.num_ranks:
        raise InputError(f"needs {plan.num_ranks} GPUs, and the job leaves {len(free)} free", field="plan")
    if both := sorted(taken & set(places)):
        raise InputError(f"GPU {both[0]} runs both jobs", field="placement")
    changed = replace(options, placement=places, software=other.software, warnings=())
    return setup_of(other.workload, plan, changed)


def _balanced(setups: list[Setup], options: SimulateOptions) -> tuple[list[TaskGraph], list[int]]:
    """Return each job's graph and its time alone; shorter steps repeat to match the longest job."""

    def alone(setup: Setup) -> tuple[TaskGraph, int]:
        graph = _graph_of(setup)
        return graph, int(run(graph, network=setup.network, engine=options.engine).end_ps.max(initial=0))

    answers = [alone(setup) for setup in setups]
    longest = max(time_ps for _, time_ps in answers)
    for number, setup in enumerate(setups):
        steps = min(MAX_STEPS, max(1, round(setup.plan.steps * longest / answers[number][1])))
        if setup.plan.steps == 1 and steps > 1:
            setups[number] = replace(setup, plan=replace(setup.plan, steps=steps))
            answers[number] = alone(setups[number])
    graphs = [graph for graph, _ in answers]
    times = [time_ps for _, time_ps in answers]
    return graphs, times


def _graph_of(setup: Setup) -> TaskGraph:
    """Return the task graph of all ranks of a job, as :func:`trine.simulate` builds it."""
    profile = setup.software.profile
    job, _ = build_job(
        setup.workload, setup.plan, setup.model, launch=setup.launch, has_host=setup.has_host,
        host_bytes_per_s=setup.host_bytes_per_s, software=profile, mixed=setup.mixed,
    )  # fmt: skip
    costs = costs_on(
        setup.options.collective_costs, setup.machine, network=setup.network,
        factors=(1.0, 1.0) if profile is None else profile.communication_factors(),
    )  # fmt: skip
    kernels = setup.kernels(costs)
    if kernels:
        job = under_pressure(job, *kernels, of_rank=None if setup.mixed is None else setup.mixed.of_rank)
    return instantiate(job, placement_of(setup.machine, setup.plan.num_ranks, costs, setup.places))[0]


def _flow_graph(machine: Cluster, flows: Sequence[FlowSpec], time_ps: int) -> TaskGraph:
    """Return one transfer per background flow, limited to its rate and large enough for ``time_ps``."""
    builder = TaskGraphBuilder(machine.link_bytes_per_s.tolist(), machine.link_latency_ps.tolist())
    index = {device.name: number for number, device in enumerate(machine.devices)}
    for number, flow in enumerate(flows):
        if any((each.source, each.target) == (flow.source, flow.target) for each in flows[:number]):
            raise InputError(
                f"{flow.source} to {flow.target} is listed twice: add up the rates", field=f"flows[{number}]"
            )
        ends = []
        for name in (flow.source, flow.target):
            if name not in index:
                raise InputError(f"unknown device {name!r}{nearest(name, index)}", field=f"flows[{number}]")
            ends.append(index[name])
        links = machine.route(*ends)
        if not links:
            raise InputError(f"{flow.source} and {flow.target} share no link", field=f"flows[{number}]")
        size = max(1, flow.rate * time_ps // PS_PER_S)
        builder.transfer(2 * number, 2 * number + 1, list(links), size)
    graph = builder.build()
    caps = np.zeros(len(graph.route_latency_ps), np.int64)
    for number, flow in enumerate(flows):
        caps[graph.route[number]] = max(int(caps[graph.route[number]]), flow.rate)
    return replace(graph, route_cap_bytes_per_s=caps)


def _merged(graphs: Sequence[TaskGraph]) -> tuple[TaskGraph, Int64]:
    """Return one graph of all tasks on the same links, and int64[tasks], the graph that each task comes from."""
    sizes = [graph.num_tasks for graph in graphs]
    ranks, streams = ([len(getattr(graph, name)) for graph in graphs] for name in ("rank_names", "stream_names"))
    routes = [len(graph.route_latency_ps) for graph in graphs]

    def stacked(name: str, counts: Sequence[int], blank: int = 0) -> Any:
        """Return a column of all graphs, filled with ``blank`` for graphs without it."""
        columns = [getattr(graph, name) for graph in graphs]
        kind = next((column.dtype for column in columns if column is not None), np.int32)
        parts = []
        for column, count in zip(columns, counts, strict=True):
            parts.append(np.full(count, blank, kind) if column is None else column)
        return np.concatenate(parts)

    def moved(name: str, steps: Sequence[int], counts: Sequence[int] = sizes) -> Any:
        """Return a column of numbers; each graph's numbers follow the previous graph's. -1 stays."""
        column, starts = stacked(name, counts, -1), np.repeat(np.cumsum([0, *steps])[:-1], counts)
        return np.where(column >= 0, column + starts, column).astype(column.dtype)

    def chained(name: str) -> Int64:
        """Return CSR offsets of all graphs."""
        return np.concatenate([[0], np.cumsum(np.concatenate([np.diff(getattr(graph, name)) for graph in graphs]))])

    none = np.full(sum(sizes), -1, np.int32)
    has_caps, has_pressure = (
        any(getattr(graph, name) is not None for graph in graphs) for name in ("route_cap_bytes_per_s", "pressure_ppm")
    )
    starts = np.repeat(np.cumsum([0, *ranks])[:-1], streams)
    stacked_columns = {name: stacked(name, sizes) for name in ("kind", "duration_ps", "size_bytes", "num_required")}
    predecessor_counts = [len(graph.predecessor_idx) for graph in graphs]
    link_parts = [graph.route_links for graph in graphs]
    caps = stacked("route_cap_bytes_per_s", routes) if has_caps else None
    pressure = stacked("pressure_ppm", sizes) if has_pressure else None
    merged = replace(
        graphs[0], **stacked_columns, rank=moved("rank", ranks), peer=moved("peer", ranks),
        stream=moved("stream", streams), route=moved("route", routes), predecessor_ptr=chained("predecessor_ptr"),
        predecessor_idx=moved("predecessor_idx", sizes, predecessor_counts), route_ptr=chained("route_ptr"),
        route_links=np.concatenate(link_parts), route_latency_ps=stacked("route_latency_ps", routes),
        route_cap_bytes_per_s=caps, pressure_ppm=pressure,
        pressure_stream=moved("pressure_stream", streams) if has_pressure else None,
        stream_names=tuple(name for graph in graphs for name in graph.stream_names),
        stream_ranks=tuple((np.concatenate([graph.stream_ranks for graph in graphs]) + starts).tolist()),
        rank_names=tuple(f"{number}:{name}" for number, graph in enumerate(graphs) for name in graph.rank_names),
        labels=Labels(phase=none.astype(np.int8), operator=none, layer=none, collective=none, stage=none,
                      microbatch=none, step=none),
        operator_names=(), layer_names=(), collectives=(), task_names=(),
    )  # fmt: skip
    return merged, np.repeat(np.arange(len(graphs)), sizes)
