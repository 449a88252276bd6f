"""One kernel of one rank of a training step, simulated load by load and store by store.

The operator level gives the start time of each rank's collective; late ranks make the others wait. From these times on,
all ranks of the group run the kernel at the load-store level. trine records the writes to one rank and replays that
rank to examine its wavefronts. With in-switch reduction, it uses the recording run itself instead of a replay.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np

from trine.cluster.cluster import Cluster
from trine.common.arguments import takes
from trine.common.evidence import Evidence
from trine.common.observer import announce_stage
from trine.common.units import format_time
from trine.errors import InputError
from trine.gpu.collective.options import LoadStoreOptions
from trine.gpu.collective.runs import LoadStoreRuns
from trine.gpu.detail.choice import BOTH, DEFAULT, ChosenCollective, DetailOptions, choose
from trine.gpu.model import GpuModel
from trine.gpu.model.options import MWAIT, ModelOptions
from trine.gpu.peers import LOAD, Arrivals
from trine.gpu.replay.result import EidolonResult
from trine.gpu.replay.run import BegunKernel
from trine.graph.grid import RankGrid
from trine.graph.workload import Workload
from trine.parallel.plan import Plan
from trine.results import Result
from trine.results.columns import Column, Columns, to_row
from trine.results.report import Report, Row, Table, Timeline, seconds
from trine.results.text import aligned, wrapped
from trine.training.options import SimulateOptions, observed
from trine.training.run import simulate
from trine.training.setup import Setup, setup_of

PEER = Columns(
    Column(key="rank", unit="integer", meaning="Rank of the job."),
    Column(key="start_s", unit="s", meaning="Arrival."),
    Column(
        key="waits_ended_s", unit="s",
        meaning="Part of a wavefront's mean wait at acquires that this peer's flag ended. For the rank itself: waits "
                "without a write of a peer.",
    ),
    Column(key="first_write_s", unit="s", meaning="First store or flag out of the port.", null_if="no such write"),
    Column(key="last_write_s", unit="s", meaning="Last store or flag out of the port.", null_if="no such write"),
    Column(key="writes", unit="integer", meaning="Stores and flags that arrived."),
    Column(key="flags", unit="integer", meaning="Flags among them."),
    Column(key="loads", unit="integer", meaning="Loads that arrived."),
)  # fmt: skip

WAY = Columns(
    Column(key="sync", unit="text", meaning="`spin`, `mwait`, `sleep` or `answered`."),
    Column(key="time_s", unit="s", meaning="From the rank's arrival to the end of its kernel."),
    Column(key="flag_reads", unit="integer", meaning="Acquires and flagged loads; each repetition counts."),
    Column(key="wait_s", unit="s", meaning="Mean over the wavefronts that acquire.", null_if="no wavefront acquires"),
    Column(key="wait_total_s", unit="s", meaning="Sum over all wavefronts."),
    Column(key="wakeups", unit="integer", meaning="[Counts of the monitor](eidolon-json.md)."),
    Column(key="spurious_wakeups", unit="integer", meaning="[Counts of the monitor](eidolon-json.md)."),
    Column(key="monitor_full", unit="integer", meaning="[Counts of the monitor](eidolon-json.md)."),
)  # fmt: skip

#: Not part of the detail: the kernel is alone on its GPU, its links and its ranks.
NOT_MODELLED = "other kernels of the rank that run meanwhile, and what else crosses the links"
_STARTS = "the operator level gives each rank's arrival at the kernel; from there trine simulates every rank"
#: Number of peers in the text, the last to arrive first; number of other collectives in the text.
_SHOWN_PEERS, _SHOWN_OTHERS = 8, 3
_LABEL = 24


@dataclass(frozen=True, kw_only=True, slots=True)
class PeerUse:
    """A rank of the group, seen from the detailed rank. Times count from the arrival of the group's first rank.

    start_ps: its arrival. waits_ended_ps: the part of a wavefront's mean wait that its flags ended. first_write_ps,
    last_write_ps: at the port; None if it writes nothing. writes: stores and flags; flags; loads.
    """

    rank: int
    start_ps: int
    waits_ended_ps: int
    first_write_ps: int | None
    last_write_ps: int | None
    writes: int
    flags: int
    loads: int


@dataclass(frozen=True, kw_only=True, slots=True)
class WayUse:
    """A way to wait. time_ps: from the rank's arrival to the end. wait_ps: mean per waiting wavefront."""

    sync: str
    time_ps: int
    flag_reads: int
    wait_ps: int | None
    wait_total_ps: int
    wakeups: int
    spurious_wakeups: int
    monitor_full: int


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class KernelDetail(Report):
    """One kernel of one rank. chosen: the step's collective, at the operator level. algorithm, protocol: the kernel's.

    ways: a replay for each way to wait, the requested one first (for sums in switches: the rank in the run of all).
    why_fewer: reasons for missing ways.
    """

    SCHEMA: ClassVar[str] = "detail"

    chosen: ChosenCollective
    algorithm: str
    protocol: str
    ways: tuple[EidolonResult, ...]
    why_fewer: tuple[str, ...] = ()

    @property
    def kernel(self) -> EidolonResult:
        """The rank alone, with the requested way to wait; times count from the arrival of the group's first rank."""
        return self.ways[0]

    @property
    def late_ps(self) -> int:
        """Delay of this rank's arrival after the first rank of the group."""
        return int(self.chosen.start_ps[self.chosen.position] - self.chosen.start_ps.min())

    @property
    def time_ps(self) -> int:
        """Time from the rank's arrival at the kernel to its end, load by load and store by store."""
        return self.kernel.end_ps - self.late_ps

    @property
    def after_last_ps(self) -> int:
        """Time from the last rank's arrival to the end, load by load and store by store."""
        return self.kernel.end_ps - int(self.chosen.start_ps.max() - self.chosen.start_ps.min())

    @property
    def operator_ps(self) -> int:
        """Time from the rank's arrival to the end, at the operator level."""
        return self._operator_end_ps - int(self.chosen.start_ps[self.chosen.position])

    @property
    def operator_after_last_ps(self) -> int:
        """Time from the last rank's arrival to the end, at the operator level."""
        return self._operator_end_ps - int(self.chosen.start_ps.max())

    @property
    def _operator_end_ps(self) -> int:
        return int(self.chosen.end_ps[self.chosen.position])

    @cached_property
    def peers(self) -> tuple[PeerUse, ...]:
        """The ranks of the group, by position."""
        record, kernel = self.kernel.incoming.outside, self.kernel
        assert isinstance(record, Arrivals)
        ended_ps, uses = kernel.waits_ended_ps, []
        starts = (self.chosen.start_ps - self.chosen.start_ps.min()).tolist()
        for position, start_ps in enumerate(starts):
            is_from_peer = record.rank == position
            writes = record.time_ps[is_from_peer & (record.kind != LOAD)].tolist()
            first_ps = writes[0] if writes else None
            last_ps = writes[-1] if writes else None
            uses.append(
                PeerUse(
                    rank=self.chosen.group[position], start_ps=start_ps,
                    waits_ended_ps=ended_ps.get(position, 0) // max(1, kernel.waiting_wavefronts),
                    first_write_ps=first_ps, last_write_ps=last_ps,
                    writes=len(writes), loads=int(np.count_nonzero(is_from_peer)) - len(writes),
                    flags=int(np.count_nonzero(is_from_peer & (record.kind != LOAD) & (record.semaphore >= 0))),
                ),
            )  # fmt: skip
        return tuple(uses)

    @cached_property
    def waits(self) -> tuple[WayUse, ...]:
        """Times and counts of each way to wait."""
        return tuple(
            WayUse(
                sync=way.work.way, time_ps=way.end_ps - self.late_ps, flag_reads=way.flag_reads, wait_ps=way.wait_ps,
                wait_total_ps=way.wait_total_ps, wakeups=gpu.wakeups, spurious_wakeups=gpu.spurious_wakeups,
                monitor_full=gpu.monitor_full,
            )
            for way in self.ways
            for gpu in way.inside.gpus
        )  # fmt: skip

    # Views

    @property
    def headline(self) -> str:
        """Rank, collective, and both levels' times."""
        op = self.chosen.what
        return (
            f"rank {self.chosen.rank}, {op.kind} of {op.layer or op.axis}: {format_time(self.time_ps)} load by "
            f"load ({self.algorithm}), {format_time(self.operator_ps)} at the operator level"
        )

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        return (Evidence("when ranks begin", "modelled", _STARTS), *self.kernel.evidence)

    @property
    def notes(self) -> tuple[str, ...]:
        return (*self._note_lines(), f"not modelled: {NOT_MODELLED}", *self.kernel.notes)

    def _note_lines(self) -> Iterator[str]:
        alternatives = self.chosen.others
        if alternatives:
            rest = f" and {len(alternatives) - _SHOWN_OTHERS} more" if len(alternatives) > _SHOWN_OTHERS else ""
            other_names = "; ".join(alternatives[:_SHOWN_OTHERS])
            yield f"others fit as well (op, phase, microbatch, step or number chooses): {other_names}{rest}"
        yield from self.why_fewer

    def details(self) -> str:
        """Return times at both levels, peers, ways to wait, and the work of the wavefronts."""
        lines = [
            *wrapped("in detail", self.chosen.what.words), *aligned(self._level_lines(), _LABEL), "",
            *aligned(self._peer_lines(), _LABEL), "", *aligned(self._way_lines(), _LABEL), "", *self.kernel.body(),
        ]  # fmt: skip
        lines += [line for note in self._note_lines() for line in wrapped("note", note)]
        return "\n".join(line.rstrip() for line in (*lines, *wrapped("not modelled", NOT_MODELLED)))

    def _level_lines(self) -> list[tuple[str, ...]]:
        chosen, simulated = self.chosen, self.chosen.group[self.kernel.work.target]
        stand_in = "" if simulated == chosen.rank else f", which does as {simulated} does"
        operator = format_time(self.operator_ps), format_time(self.operator_after_last_ps), chosen.what.algorithm
        loadstore = format_time(self.time_ps), format_time(self.after_last_ps), f"{self.algorithm}/{self.protocol}"
        return [
            (f"rank {chosen.rank}{stand_in}", "time", "after the last rank comes", "algorithm"),
            ("operator level", *operator),
            ("load by load", *loadstore),
        ]

    def _peer_lines(self) -> list[tuple[str, ...]]:
        lines: list[tuple[str, ...]] = [
            ("ranks, last first", "comes after", "waited for it", "first write", "last write", "flags", "lines")
        ]
        order = sorted(self.peers, key=lambda use: (-use.start_ps, use.rank))
        heard = [use for use in order if use is order[0] or use.writes or use.loads or use.rank == self.chosen.rank]
        for peer in heard[:_SHOWN_PEERS]:
            times = (peer.start_ps, peer.waits_ended_ps, peer.first_write_ps, peer.last_write_ps)
            name = f"{peer.rank}{' itself' if peer.rank == self.chosen.rank else ''}"
            counts = f"{peer.flags:,}", f"{peer.writes - peer.flags + peer.loads:,}"
            lines.append((name, *map(_time, times), *counts))
        return lines

    def _way_lines(self) -> list[tuple[str, ...]]:
        lines: list[tuple[str, ...]] = [("way to wait", "time", "flag reads", "wait of each", "wake-ups", "spurious")]
        for use in self.waits:
            counts = f"{use.wakeups:,}", f"{use.spurious_wakeups:,}"
            lines.append((use.sync, _time(use.time_ps), f"{use.flag_reads:,}", _time(use.wait_ps), *counts))
        return lines

    def document(self) -> Row:
        """Return the result as plain data (docs/reference/detail-json.md)."""
        chosen, op = self.chosen, self.chosen.what
        return {
            "rank": chosen.rank,
            "simulated_rank": chosen.group[self.kernel.work.target],
            "collective": {
                "kind": op.kind, "axis": op.axis, "layer": op.layer or None, "phase": op.phase or None,
                "microbatch": op.microbatch if op.microbatch >= 0 else None, "step": op.step,
                "bytes": op.size_bytes, "ranks": list(chosen.group), "others": list(chosen.others),
            },
            "operator": {
                "algorithm": op.algorithm, "start_s": seconds(self._operator_end_ps - self.operator_ps),
                "end_s": seconds(self._operator_end_ps), "time_s": seconds(self.operator_ps),
                "after_last_start_s": seconds(self.operator_after_last_ps),
            },
            "loadstore": {
                **to_row(self, "algorithm", "protocol", "time_s"), "after_last_start_s": seconds(self.after_last_ps),
            },
            **self._rows(),
            "kernel": self.kernel.document(),
            "notes": list(self.notes),
        }  # fmt: skip

    def tables(self) -> dict[str, Table]:
        """Return peers, ways to wait, and the tables of the GPU."""
        return {**self._rows(), **self.kernel.tables()}

    def _rows(self) -> dict[str, Table]:
        return {"peers": PEER.rows(self.peers), "ways": WAY.rows(self.waits)}

    def timeline(self) -> Timeline | None:
        """Return the work of the rank's workgroups, and the writes of its peers meanwhile."""
        return self.kernel.timeline()


def _time(value_ps: int | None) -> str:
    return "-" if value_ps is None else format_time(value_ps)


class SimulatedStep(NamedTuple):
    """A step on a cluster: its inputs, and its result."""

    setup: Setup
    machine: Cluster
    result: Result


def simulated_step(
    workload: Workload | str | os.PathLike[str], plan: Plan, result: Result | None, options: SimulateOptions, what: str
) -> SimulatedStep:
    """Return the step, simulated unless ``result`` is known. Raises InputError, naming ``what``, without a machine."""
    setup = setup_of(workload, plan, options)
    if setup.machine is None:
        raise InputError(f"{what} a collective of several GPUs of a cluster")
    if result is None:
        result = simulate(setup.workload, setup.plan, options=replace(options, compare=False))
    return SimulatedStep(setup, setup.machine, result)


@takes(SimulateOptions)
@observed
def kernel_detail(
    workload: Workload | str | os.PathLike[str],
    plan: Plan,
    detail: DetailOptions,
    result: Result | None = None,
    *,
    options: SimulateOptions,
) -> KernelDetail:
    """Simulate one kernel of a step load by load and store by store.

    Parameters
    ----------
    workload, plan, options: the step, as in :func:`trine.simulate`. detail: the kernel, and its wait method. result:
        the step's result, if known.

    Each wait method costs one load-store run on all ranks of the collective's group.

    Raises
    ------
    InputError, SpecError, PlanError: for a step without machine, a missing rank, layer, ..., or input that the
        load-store level or its recording does not support. KeyboardInterrupt: on Ctrl-C before the end.
    """
    setup, machine, result = simulated_step(workload, plan, result, options, "a kernel in detail is")
    return detailed_kernel(setup, machine, result, detail).answer()


def detailed_kernel(setup: Setup, machine: Cluster, result: Result, detail: DetailOptions) -> DetailedKernel:
    """Return the kernel that the options choose, ready to run. Raises as :func:`kernel_detail`."""
    if result.scope is not None and result.scope.estimate_ps is not None:
        raise InputError("the step is an estimate, so that when ranks come to a kernel is not known")
    chosen = choose(result, RankGrid(setup.plan.axes), detail)
    loadstore_options = LoadStoreOptions(
        algorithm=detail.algorithm, protocol=detail.protocol, workgroups=detail.workgroups, gpu_model=detail.gpu_model
    )
    places = [int(setup.places[rank]) for rank in chosen.group]
    return DetailedKernel(detail, chosen, LoadStoreRuns(chosen.what.kind, machine, places, loadstore_options))


@dataclass(frozen=True, slots=True)
class DetailedKernel:
    """Inputs of a kernel detail. part_of_bytes: size of the message that the collective is the first part of."""

    detail: DetailOptions
    chosen: ChosenCollective
    runs: LoadStoreRuns
    part_of_bytes: int | None = None

    def part(self, size_bytes: int) -> DetailedKernel:
        """Return the same kernel for the first ``size_bytes`` of the message."""
        what = replace(self.chosen.what, size_bytes=size_bytes)
        whole_bytes = self.chosen.what.size_bytes
        return replace(self, chosen=replace(self.chosen, what=what), part_of_bytes=whole_bytes)

    def after_last_ps(self, name: str) -> int:
        """Return the time of a program from the last rank's arrival to the end on the rank, without a replay."""
        kernel = self._begun(name, ModelOptions(poll=self.detail.poll).of(self.runs.model), None)
        return kernel.end_ps(self.chosen.position) - int(kernel.starts_ps.max())

    def fastest_name(self) -> str:
        """Return the fastest candidate kernel, which is run only if there is a choice."""
        size_bytes = self.chosen.what.size_bytes
        best, best_ps = "", 0
        for name in self.runs.programs.names(size_bytes):
            if not best:
                best = name
                continue
            best_ps = best_ps or self.after_last_ps(best)
            if self.runs.is_hopeless(name, size_bytes, best_ps):
                continue
            time_ps = self.after_last_ps(name)
            if time_ps < best_ps:
                best, best_ps = name, time_ps
        return best

    def answer(self, name: str | None = None) -> KernelDetail:
        """Run a kernel with the requested wait method; for BOTH, also with a monitor. name: None: the fastest one."""
        poll, sync = self.detail.poll, None if self.detail.sync in (BOTH, DEFAULT) else self.detail.sync
        model = ModelOptions(sync=sync, poll=poll).of(self.runs.model)
        if name is None:
            name, first = self._fastest(model, sync)
        else:
            first = self._run(name, model, sync)
        results, why_fewer = [first], []
        if self.detail.sync == BOTH and model.poll_ps is not None and model.monitor is None:
            try:
                results.append(self._run(name, ModelOptions(sync=MWAIT, poll=poll).of(self.runs.model), MWAIT))
            except InputError as problem:
                why_fewer.append(f"mwait is not compared: {problem}")
        return KernelDetail(
            chosen=self.chosen, algorithm=name, protocol=self.runs.programs.protocol, ways=tuple(results),
            why_fewer=tuple(why_fewer),
        )  # fmt: skip

    def _fastest(self, model: GpuModel, sync: str | None) -> tuple[str, EidolonResult]:
        size, best = self.chosen.what.size_bytes, None
        last_start_ps = int(self.chosen.start_ps.max() - self.chosen.start_ps.min())
        for name in self.runs.programs.names(size):
            if best is not None and self.runs.is_hopeless(name, size, best[1].end_ps - last_start_ps):
                continue
            candidate = self._run(name, model, sync)
            if best is None or candidate.end_ps < best[1].end_ps:
                best = (name, candidate)
        assert best is not None
        return best

    def _run(self, name: str, model: GpuModel, sync: str | None) -> EidolonResult:
        return self._begun(name, model, sync).replayed(self.chosen.position)

    def _begun(self, name: str, model: GpuModel, sync: str | None) -> BegunKernel:
        chosen, runs = self.chosen, self.runs
        sync_text = "" if sync is None else f", {sync}"
        announce_stage(f"{len(chosen.group)} GPUs load by load: {name}{sync_text}")
        return BegunKernel(
            program=runs.programs.program(name, chosen.what.size_bytes, self.part_of_bytes),
            cluster=runs.cluster, group=runs.group, model=model, sync=sync,
            starts_ps=chosen.start_ps - chosen.start_ps.min(),
            origin="peers that begin when they do in the step, recorded in a run of all GPUs of the group",
        )  # fmt: skip
