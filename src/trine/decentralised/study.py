"""Decentralised training with Hop on a cluster: its speed, waiting times, and the age of updates."""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from trine.cluster import Cluster, load_cluster
from trine.cluster.parts import SCALE_UP, Device, Link
from trine.cluster.select import slow_down
from trine.cluster.tables import LinkTable
from trine.common.arguments import named_arguments
from trine.common.arrays import Int64
from trine.common.evidence import Evidence
from trine.common.units import PS_PER_S, format_bytes, format_time
from trine.decentralised.choices import HopRun, run_hop
from trine.decentralised.protocol import HopProtocol, WorkerGraph, worker_graph
from trine.decentralised.tasks import HopNetwork, HopWork, Visit, VisitTasks
from trine.engine.circuit_model import network_on
from trine.errors import InputError, PlanError
from trine.graph.taskgraph import TRANSFER
from trine.graph.workload import Workload
from trine.parallel.draws import uniform
from trine.parallel.plan import Plan
from trine.parallel.stragglers import Stragglers, scaled_ps
from trine.results import Result, timeline
from trine.results.columns import to_row
from trine.results.records import record_table
from trine.results.report import Report, Row, Table, Timeline
from trine.results.screen import Listing, Screen
from trine.results.summary import basis
from trine.results.text import wrapped, wrapped_at
from trine.results.waits import releasers, wait_reasons
from trine.training import simulate
from trine.training.recorded import first_known, gpus_under, timing
from trine.training.setup import load_workload

if TYPE_CHECKING:
    from trine.engine.models import Network


# Metrics of the workers of a Hop run: waiting times, ages of updates, bytes.


class _WorkerArrivals(NamedTuple):
    """Updates from one neighbour, in arrival order (also the send order)."""

    ends_ps: list[int]
    iterations: list[int]
    tasks: list[int]


@dataclass(frozen=True, kw_only=True, eq=False)
class HopNumbers:
    """Metrics of a settled run per worker; int64[workers] unless noted."""

    graph: WorkerGraph
    protocol: HopProtocol
    run: HopRun

    @cached_property
    def end_ps(self) -> Int64:
        """End of each worker's last iteration."""
        ends = self.run.records.end_ps
        return np.array([ends[visits[-1].finish] for visits in self.run.tasks.visits], np.int64)

    @cached_property
    def trained(self) -> Int64:
        """Number of iterations that each worker computed."""
        visits = []
        for path in self.run.choices.paths:
            visits.append(sum(visit.trains for visit in path))
        return np.array(visits, np.int64)

    @cached_property
    def skipped(self) -> Int64:
        """Number of iterations that each worker skipped."""
        return self.protocol.iterations - self.trained

    @cached_property
    def waiting_updates_ps(self) -> Int64:
        """Time each worker waited for updates after its own work of the iteration was done."""
        end = "gradient" if self.protocol.order == "parallel" else "apply"
        ends = self.run.records.end_ps

        def waited(visit: VisitTasks) -> int:
            return max(0, int(ends[visit.arrive] - ends[getattr(visit, end) if visit.gradient >= 0 else visit.enter]))

        return np.array([sum(map(waited, visits)) for visits in self.run.tasks.visits], np.int64)

    @cached_property
    def waiting_tokens_ps(self) -> Int64:
        """Time each worker waited to enter the next iteration because it was too far ahead."""
        ends = self.run.records.end_ps
        waits = ((ends[b.enter] - ends[a.finish] for a, b in pairwise(v)) for v in self.run.tasks.visits)
        return np.array([sum(map(int, each)) for each in waits], np.int64)

    @cached_property
    def computing_ps(self) -> Int64:
        """Compute time of each worker."""
        tasks = self.run.tasks.graph
        is_compute = tasks.stream >= 0
        total = np.zeros(self.graph.num_workers, np.int64)
        np.add.at(total, tasks.rank[is_compute], tasks.duration_ps[is_compute])
        return total

    @cached_property
    def staleness(self) -> dict[int, int]:
        """Age in iterations -> number of updates averaged; age 0 is the same iteration's update.

        With a staleness of 0 only the same iteration's update counts, otherwise the newest arrived update.
        """
        return dict(sorted((age, count) for age, count in self._ages.items() if age is not None))

    @cached_property
    def num_missed(self) -> int:
        """Number of averages taken without an in-neighbour's update, over all in-neighbours."""
        return self._ages[None]

    @cached_property
    def num_sent(self) -> int:
        """Number of updates sent."""
        return int((self.run.tasks.graph.kind == TRANSFER).sum())

    @property
    def num_unused(self) -> int:
        """Number of updates sent but never averaged: too late, or overtaken by a newer one."""
        return self.num_sent - len(self._used_updates)

    @property
    def sent_bytes(self) -> int:
        """Bytes of all updates sent."""
        return int(self.run.tasks.graph.size_bytes.sum())

    @cached_property
    def _ages(self) -> Counter[int | None]:
        return Counter(age for _, age in self._averaged)

    @cached_property
    def _used_updates(self) -> set[int]:
        return {task for task, _ in self._averaged if task >= 0}

    @cached_property
    def _averaged(self) -> list[tuple[int, int | None]]:
        """For each average and in-neighbour: the update (its task, or -1) and its age (None: missed)."""
        averages: list[tuple[int, int | None]] = []
        for worker, path in enumerate(self.run.choices.paths):
            for sender in self.graph.into[worker]:
                arrived = self._arrivals(sender, worker)
                for visit, tasks in zip(path, self.run.tasks.visits[worker], strict=True):
                    averages.append(self._averaged_update(visit, self._averaged_ps(tasks), arrived))
        return averages

    def _averaged_ps(self, tasks: VisitTasks) -> int:
        """Return the time of a visit's average; it includes every update that has arrived by then."""
        records = self.run.records
        if tasks.apply >= 0 and self.protocol.order == "parallel":
            return int(records.start_ps[tasks.apply])
        return int(records.end_ps[tasks.finish])

    def _arrivals(self, sender: int, receiver: int) -> _WorkerArrivals:
        """Return the updates that ``sender`` sends to ``receiver``."""
        place = self.graph.out[sender].index(receiver)
        arrivals = _WorkerArrivals([], [], [])
        for visit, tasks in zip(self.run.choices.paths[sender], self.run.tasks.visits[sender], strict=True):
            if visit.trains and (sender, receiver, visit.iteration) not in self.run.choices.dropped:
                task = tasks.sends[place]
                arrivals.ends_ps.append(int(self.run.records.end_ps[task]))
                arrivals.iterations.append(visit.iteration)
                arrivals.tasks.append(task)
        return arrivals

    def _averaged_update(self, visit: Visit, now_ps: int, arrived: _WorkerArrivals) -> tuple[int, int | None]:
        newest = bisect_right(arrived.ends_ps, now_ps) - 1
        if self.protocol.staleness == 0:
            newest = min(newest, bisect_right(arrived.iterations, visit.iteration) - 1)
        if newest < 0 or visit.iteration - arrived.iterations[newest] > self.protocol.staleness:
            return -1, None
        return arrived.tasks[newest], max(0, visit.iteration - arrived.iterations[newest])


def edge_cluster(
    graph: WorkerGraph, bandwidth: int, latency_ps: int, gpu: str | None = None, name: str | None = None
) -> Cluster:
    """Return a cluster with one link of ``bandwidth`` bytes/s per edge of the graph; workers do not forward."""
    devices = tuple(Device(name=f"gpu{i}", gpu=gpu) for i in range(graph.num_workers))
    link = Link(bytes_per_s=bandwidth, latency_ps=latency_ps, link_class=SCALE_UP)
    rows = ((a, b, link) for a, b in graph.edges)
    return Cluster(
        name=name or f"{graph.name} of {graph.num_workers} GPUs",
        devices=devices,
        links=LinkTable.joined(tuple(device.name for device in devices), rows),
        sources={"links": "given: one link an edge of the communication graph and direction"},
    )


def slowed_links(cluster: Cluster, factors: tuple[float, float], seed: int, per: str = "link") -> Cluster:
    """Return the cluster with each bandwidth divided by a random factor, uniform between the two.

    ``per``: ``link`` draws a factor for each pair of linked devices, the same in both directions; ``gpu`` draws one for
    each GPU, and a link has the larger factor of its two ends.

    Raises InputError for factors below 1 or in the wrong order, or another ``per``.
    """
    low, high = factors
    if not 1 <= low <= high < 1e6:
        raise InputError(f"factors are at least 1, the smaller first; got {low:g}:{high:g}", field="slow_by")
    if per not in ("link", "gpu"):
        raise InputError(f"factors are per link or per gpu, got {per!r}", field="slow_per")

    def factor(a: int, b: int) -> float:
        return low + (high - low) * float(uniform(seed, np.array([a]), np.array([b]))[0])

    gpus, slow = set(cluster.gpus), []
    for link in cluster.links:
        if per == "link":
            slow.append((link.name, 1 / factor(min(link.source, link.target), max(link.source, link.target))))
        elif ends := {link.source, link.target} & gpus:
            slow.append((link.name, 1 / max(factor(end, end) for end in ends)))
    note = f"slowed by {low:g} to {high:g} per {per}, seed {seed}"
    slower = slow_down(cluster, slow)
    return replace(slower, name=f"{cluster.name}, {note}", sources={**cluster.sources, "slow-down": f"assumed: {note}"})


NOT_MODELLED = (
    "the time to average the updates, to copy them into queues, and to exchange tokens",
    "slow-down of compute by communication kernels (SMs and memory bandwidth are not shared)",
    "how averaging fewer or older updates changes convergence: iterations are counted, not accuracy",
)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class HopResult(Report):
    """Result of a run of Hop; ``numbers`` has the values of single workers."""

    SCHEMA: ClassVar[str] = "hop"

    graph: WorkerGraph
    protocol: HopProtocol
    numbers: HopNumbers
    cluster: Cluster
    gradient_ps: int
    apply_ps: int
    update_bytes: int
    network: str
    wall_s: float
    evidence: tuple[Evidence, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def end_ps(self) -> int:
        """Time at which the last worker finished its iterations."""
        return int(self.numbers.end_ps.max())

    @cached_property
    def iterations_per_s(self) -> float:
        """Iterations that a worker trains per second, averaged over the workers; skipped ones do not count."""
        return float((self.numbers.trained / (self.numbers.end_ps / PS_PER_S)).mean())

    @property
    def run(self) -> HopRun:
        """Task graph, records and choices."""
        return self.numbers.run

    def shares(self) -> dict[str, float]:
        """Return the workers' average time shares: computing, waiting for updates, waiting for tokens."""
        total = float(self.numbers.end_ps.sum())
        return {
            "computing": float(self.numbers.computing_ps.sum()) / total,
            "waiting_for_updates": float(self.numbers.waiting_updates_ps.sum()) / total,
            "waiting_for_tokens": float(self.numbers.waiting_tokens_ps.sum()) / total,
        }

    @property
    def headline(self) -> str:
        """Workers, graph, iterations and their rate."""
        return (
            f"Hop: {self.graph.num_workers} workers, {self.graph.name} graph, {_options(self.protocol)}: "
            f"{self.protocol.iterations} iterations in {format_time(self.end_ps)}"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        return (*self.warnings, *(f"not modelled: {words}" for words in NOT_MODELLED))

    def tables(self) -> dict[str, Table]:
        """Return ``workers``: each worker's time breakdown."""
        return {"workers": self._workers()}

    def document(self) -> Row:
        """Return plain data, see docs/background/hop.md."""
        numbers, protocol = self.numbers, self.protocol
        return {
            "graph": {"name": self.graph.name, "workers": self.graph.num_workers, "edges": len(self.graph.edges)},
            "protocol": to_row(protocol, *_PROTOCOL),
            "cluster": self.cluster.name,
            "cluster_fingerprint": self.cluster.fingerprint,
            **to_row(self, "network", "gradient_s", "apply_s", "update_bytes", "end_s", "iterations_per_s"),
            "shares": self.shares(),
            "staleness": {str(age): count for age, count in numbers.staleness.items()},
            "missed_updates": numbers.num_missed,
            "sent_updates": numbers.num_sent,
            "unused_updates": numbers.num_unused,
            "dropped_updates": len(self.run.choices.dropped),
            "sent_bytes": numbers.sent_bytes,
            "workers": self._workers(),
            "evidence": [to_row(each, "what", "kind", "detail") for each in self.evidence],
            "warnings": list(self.warnings),
            "not_modelled": list(NOT_MODELLED),
            "simulator": {"runs": self.run.num_runs, "events": self.run.records.num_events, "wall_s": self.wall_s},
        }  # fmt: skip

    def _workers(self) -> list[Row]:
        numbers = self.numbers
        return [
            {
                "end_s": int(numbers.end_ps[i]) / PS_PER_S,
                "trained": int(numbers.trained[i]),
                "skipped": int(numbers.skipped[i]),
                "computing_s": int(numbers.computing_ps[i]) / PS_PER_S,
                "waiting_for_updates_s": int(numbers.waiting_updates_ps[i]) / PS_PER_S,
                "waiting_for_tokens_s": int(numbers.waiting_tokens_ps[i]) / PS_PER_S,
            }
            for i in range(self.graph.num_workers)
        ]

    def summary(self) -> str:
        """Return time, rate, and the workers' waits, on one screen."""
        shares, ages, numbers = self.shares(), self.numbers.staleness, self.numbers
        averaged = sum(ages.values()) + numbers.num_missed
        fates = [(f"{age} iterations", f"{100 * count / averaged:.1f} %") for age, count in ages.items()]
        fates += [("missed", f"{100 * numbers.num_missed / averaged:.1f} %")] if numbers.num_missed else []
        slow = "".join(f", {item.detail}" for item in self.evidence if item.what == "stragglers")
        step = format_time(self.gradient_ps + self.apply_ps)
        return Screen(
            question=f"Hop on {self.cluster.name}: {self.graph.num_workers} workers, {self.graph.name} graph, "
            f"{_options(self.protocol)}, {self.protocol.iterations} iterations{slow}",
            numbers=[
                ("time", format_time(self.end_ps), f"an iteration computes {step}"),
                ("rate", f"{self.iterations_per_s:.3f} iterations/s", "a worker, on average"),
                ("sent", format_bytes(numbers.sent_bytes), f"{numbers.num_sent} updates of "
                 f"{format_bytes(self.update_bytes)}, {numbers.num_unused} unused"),
            ],
            listings=(
                Listing(
                    title="time of the workers",
                    rows=[(name.replace("_", " "), f"{100 * share:.1f} %") for name, share in shares.items()],
                ),
                Listing(title="age of the averaged updates", rows=fates),
            ),
            warnings=self.warnings,
            closing=(
                ("rests on", basis(self.evidence)),
                ("next", "--details (evidence), --perfetto FILE, --plot FILE; --compare (with standard training); "
                 "trine help hop"),
            ),
        ).text()  # fmt: skip

    def details(self) -> str:
        """Return the full text of the result, with evidence and warnings."""
        numbers, protocol = self.numbers, self.protocol
        num_used = sum(numbers.staleness.values())
        ages = ", ".join(f"{age}: {100 * count / (num_used + numbers.num_missed):.1f} %" for age, count in
                         numbers.staleness.items())  # fmt: skip
        shares = self.shares()
        lines = [
            f"Hop: {self.graph.num_workers} workers, {self.graph.name} graph, {_options(protocol)}",
            f"{protocol.iterations} iterations in {format_time(self.end_ps)}: {self.iterations_per_s:.3f} per second "
            "and worker",
            f"an iteration computes {format_time(self.gradient_ps + self.apply_ps)} and sends "
            f"{format_bytes(self.update_bytes)} to each neighbour",
            f"workers compute {100 * shares['computing']:.1f} % of the time, wait for updates "
            f"{100 * shares['waiting_for_updates']:.1f} %, for tokens {100 * shares['waiting_for_tokens']:.1f} %",
            f"age of the updates averaged, in iterations: {ages}; missed {numbers.num_missed} of "
            f"{num_used + numbers.num_missed}",
            f"{numbers.num_sent} updates sent ({format_bytes(numbers.sent_bytes)}), {numbers.num_unused} unused",
        ]
        if protocol.drop_late:
            lines.append(f"{len(self.run.choices.dropped)} updates were not sent: their receivers were past them")
        if protocol.max_skip:
            lines.append(
                f"{int(numbers.skipped.sum())} iterations skipped, most by one worker: {numbers.skipped.max()}"
            )
        lines = [line for text in lines for line in wrapped_at("", text, 0)]
        lines += [line for e in self.evidence for line in wrapped(e.kind, f"{e.what}: {e.detail}")]
        lines += [line for warning in self.warnings for line in wrapped("warning", warning)]
        return "\n".join(lines)

    def pictures(self) -> Mapping[str, Callable[..., Any]]:
        """Return ``workers``: the time of each worker, and the age of the averaged updates."""
        from trine.decentralised.picture import WorkerTimes, draw_workers

        def draw() -> Any:
            numbers = self.numbers
            times = WorkerTimes(
                numbers.computing_ps, numbers.waiting_updates_ps, numbers.waiting_tokens_ps, numbers.end_ps
            )
            heading = f"{self.headline}\n{self.cluster.name}"
            return draw_workers(heading, times, numbers.staleness, numbers.num_missed)

        return {"workers": draw}

    def timeline(self) -> Timeline:
        """Return the work of the workers, and the updates that they send."""
        graph, records = self.run.tasks.graph, self.run.records
        reasons = wait_reasons(graph, records, releasers(graph, records))
        return Timeline(timeline.packets(graph, record_table(graph, records, reasons), None))


#: Options of the protocol in JSON, under their names.
_PROTOCOL = (
    "iterations", "backup", "staleness", "max_gap", "max_skip", "skip_behind", "order", "drop_late",
)  # fmt: skip


@named_arguments
def hop(
    workload: Workload | str | os.PathLike[str],
    protocol: HopProtocol | None = None,
    *,
    graph: WorkerGraph | str = "ring-based",
    workers: int | None = None,
    cluster: Cluster | str | os.PathLike[str],
    batch: int | None = None,
    compute: str = "auto",
    gpu: str | None = None,
    trace_gpu: str | None = None,
    cpu: bool | None = None,
    network: str | Network | None = None,
    engine: str = "compiled",
    stragglers: Stragglers | None = None,
) -> HopResult:
    """Simulate decentralised training with Hop (Luo et al., ASPLOS 2019).

    Each worker is one GPU with the whole model. An iteration takes the time that :func:`trine.simulate` predicts for
    one GPU with its inputs on the device; an update is all trained parameters. docs/background/hop.md: the protocol.

    workload: a loaded workload, or an argument of :func:`trine.load`; a training step.
    protocol: the workers' rules for waiting; None: standard decentralised training.
    graph: ``ring``, ``ring-based``, ``double-ring``, ``full``, or a WorkerGraph.
    workers: number of workers; None: all GPUs of the cluster. Worker i is GPU i of the cluster.
    cluster: links between the workers; :func:`trine.decentralised.study.edge_cluster` creates one link per edge.
    batch, compute, gpu, trace_gpu, cpu: as in :func:`trine.simulate`; the workers have the cluster's GPUs.
    network, engine: as in :func:`trine.run`; network None: ``circuit`` on a cluster with circuits, else ``fair``.
    stragglers: slow workers and jitter; an index is the iteration.

    Raises InputError and its subclasses if the input is unusable, SimulationError if the run cannot finish.
    """
    from trine.engine import run

    began = time.perf_counter()
    protocol = HopProtocol() if protocol is None else protocol
    machine = load_cluster(os.fspath(cluster)) if isinstance(cluster, str | os.PathLike) else cluster
    network = network_on(machine, network)
    graph = _graph_on(machine, graph, workers)
    workload = load_for(workload, machine, graph, gpu, trace_gpu)
    gpus = _gpus_of(machine, graph)
    times = timing(workload, compute, gpu, gpus).of_one_gpu()
    step = simulate(workload, Plan(batch=batch, inputs="none"), compute=compute, gpu=times.predicted_for, cpu=cpu)
    gradient_ps, apply_ps = _iteration(step)
    source = "of the trace" if gpu is None or times.is_recorded else "asked for"
    work = _work(graph, protocol, gradient_ps, apply_ps, _update_bytes(workload), stragglers)
    settled = run_hop(
        graph, protocol, work, _network(machine, graph), lambda tasks: run(tasks, network=network, engine=engine)
    )
    return HopResult(
        graph=graph, protocol=protocol, numbers=HopNumbers(graph=graph, protocol=protocol, run=settled),
        cluster=machine, gradient_ps=gradient_ps, apply_ps=apply_ps, update_bytes=work.update_bytes,
        network=network if isinstance(network, str) else network.name, evidence=_evidence(step, machine, stragglers),
        warnings=(*step.warnings, *times.warnings(source)), wall_s=time.perf_counter() - began,
    )  # fmt: skip


def load_for(
    workload: Workload | str | os.PathLike[str], machine: Cluster, graph: WorkerGraph, gpu: str | None = None,
    trace_gpu: str | None = None,
) -> Workload:  # fmt: skip
    """Load the trace once for many runs of :func:`hop`; a model is synthesised for the workers' GPUs."""
    return load_workload(workload, trace_gpu, gpu if gpu is not None else first_known(_gpus_of(machine, graph)))


def _gpus_of(machine: Cluster, graph: WorkerGraph) -> tuple[str | None, ...]:
    return gpus_under(machine, np.arange(min(graph.num_workers, len(machine.gpus))))


def _graph_on(machine: Cluster, graph: WorkerGraph | str, workers: int | None) -> WorkerGraph:
    """Return the named graph, or the graph itself; raise PlanError if the machine has too few GPUs for it."""
    if isinstance(graph, str):
        graph = worker_graph(graph, len(machine.gpus) if workers is None else workers)
    elif workers not in (None, graph.num_workers):
        raise PlanError(f"the graph has {graph.num_workers} workers, which contradicts {workers}")
    if graph.num_workers > len(machine.gpus):
        raise PlanError(f"{graph.num_workers} workers do not fit on the {len(machine.gpus)} GPUs of {machine.name!r}")
    return graph


def _iteration(step: Result) -> tuple[int, int]:
    """Return the time until the last gradient, and the time of the optimizer after it."""
    is_optimizer = step.graph.labels.phase == 2
    if not (step.graph.labels.phase == 1).any():
        raise InputError("the trace has no backward pass: Hop exchanges trained parameters")
    begin_ps = int(step.records.start_ps[is_optimizer].min()) if is_optimizer.any() else step.step_time_ps
    return begin_ps, step.step_time_ps - begin_ps


def _update_bytes(workload: Workload) -> int:
    size = sum(p.size_bytes for p in workload.parameters if p.gradient_operator is not None)
    if not size:
        raise InputError(f"the trace {workload.name!r} names no weights with gradients: there is nothing to exchange")
    return size


def _work(
    graph: WorkerGraph, protocol: HopProtocol, gradient_ps: int, apply_ps: int, size: int, stragglers: Stragglers | None
) -> HopWork:
    shape = (graph.num_workers, protocol.iterations)
    gradient, apply = np.full(shape, gradient_ps, np.int64), np.full(shape, apply_ps, np.int64)
    if stragglers is not None:
        if stragglers.jitter is not None and stragglers.per != "step":
            raise InputError("the jitter of Hop is per step: an iteration is one task", field="per")
        stragglers.check(graph.num_workers)
        factors = stragglers.factors(np.arange(shape[0])[:, None], np.arange(shape[1])[None, :])
        gradient, apply = scaled_ps(gradient, factors), scaled_ps(apply, factors)
    return HopWork(gradient_ps=gradient, apply_ps=apply, update_bytes=size)


def _network(machine: Cluster, graph: WorkerGraph) -> HopNetwork:
    gpus = machine.gpus

    def route(sender: int, receiver: int) -> Sequence[int]:
        return machine.route(gpus[sender], gpus[receiver])

    return HopNetwork(
        route=route,
        link_bytes_per_s=machine.link_bytes_per_s.tolist(),
        link_latency_ps=machine.link_latency_ps.tolist(),
        link_names=machine.link_names,
        rank_names=[machine.device_name(gpu) for gpu in gpus[: graph.num_workers]],
    )


def _evidence(step: Result, machine: Cluster, stragglers: Stragglers | None) -> tuple[Evidence, ...]:
    sources: Mapping[str, str] = machine.sources
    rows = [*step.evidence, Evidence("links", machine.evidence, "; ".join(f"{k}: {v}" for k, v in sources.items()))]
    if stragglers is not None:
        rows.append(Evidence("stragglers", "assumed", "; ".join(stragglers.sentences)))
    return tuple(rows)


def _options(protocol: HopProtocol) -> str:
    """Return the protocol in words."""
    parts = []
    if protocol.backup:
        parts.append(f"{protocol.backup} backup worker{'s' if protocol.backup > 1 else ''}")
    if protocol.staleness:
        parts.append(f"updates up to {protocol.staleness} iterations old")
    if protocol.max_gap is not None:
        parts.append(f"neighbours at most {protocol.max_gap} iterations apart")
    if protocol.max_skip:
        parts.append(f"skips up to {protocol.max_skip} iterations when {protocol.skip_behind} behind")
    if protocol.drop_late:
        parts.append("late updates not sent")
    return ", ".join(parts) or "standard (every update is waited for)"
