"""A run: the graph with its records, the ranks that they represent, and all metrics derived from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt

from trine.common.arrays import Int64
from trine.common.evidence import Evidence
from trine.common.units import PS_PER_S
from trine.errors import InputError
from trine.graph.memory import MemoryEvents
from trine.graph.taskgraph import Records, TaskGraph
from trine.results import activity, headline, metrics, waits
from trine.results import energy as energy_use
from trine.results import memory as memory_use
from trine.results.columns import column
from trine.results.ends import Ends

if TYPE_CHECKING:
    from trine.results import terms, traffic
    from trine.results.host_memory import HostMemory
    from trine.results.link_use import LinkUse
    from trine.results.operator_work import OperatorWork
    from trine.results.record_table import RecordTable
    from trine.results.repeats import RepeatedSteps, Repeats


@dataclass(frozen=True, slots=True)
class FoldStage:
    """A stage of a folded run: its start (ps), classes of ranks and links, simulated tasks, events, and the ranks with
    work left.
    """

    begins_ps: int
    num_classes: int = field(metadata=column("classes"))
    num_link_classes: int = field(metadata=column("link_classes"))
    num_tasks: int = field(metadata=column("tasks"))
    num_events: int = field(metadata=column("events"))
    num_ranks: int = field(metadata=column("ranks"))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Part:
    """Some ranks of a job. ranks: the rank of each row of the graph; num_ranks: number of ranks of the job.

    ends: the ranks of each task, hidden ranks too. step_ends_ps: int64[simulated steps], end of each over all ranks of
    the job. reasons: returns each task's wait reason, int8[tasks], if the graph does not show it.
    """

    ranks: tuple[int, ...]
    num_ranks: int
    ends: Ends
    step_ends_ps: Int64
    reasons: Callable[[], npt.NDArray[np.int8]] | None = None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Scope:
    """The meaning of the rows of a folded result.

    ranks: the rank of each row of the graph. num_ranks: ranks of the job. stages: of the run. notes: reasons for the
    number of classes. links, totals: bytes on all links and numbers of collectives in the whole system; None if the
    graph shows everything. link_bytes: int64[links of the cluster], in the last step.
    observe: returns a result that shows the given ranks. class_of: the class of a rank in the last stage;
    class_size: the number of ranks in it. program_of: the program of a rank, and the number of ranks that run it.
    spread: a result of a few ranks that represent all, and how many ranks each one represents: float64[rows].
    step_ends_ps: int64[simulated steps], end of each over all ranks. estimate_ps: for an estimate, the step time
    without slow or dead links, and with all links of their places slow or dead.
    """

    ranks: tuple[int, ...]
    num_ranks: int
    stages: tuple[FoldStage, ...]
    notes: tuple[str, ...]
    links: tuple[LinkUse, ...] | None
    totals: Mapping[tuple[str, int, int], int] | None
    link_bytes: Int64
    observe: Callable[[Sequence[int]], TaskRun]
    class_of: Callable[[int], int]
    class_size: Callable[[int], int]
    program_of: Callable[[int], tuple[int, int]]
    spread: Callable[[], tuple[TaskRun, npt.NDArray[np.float64]]]
    step_ends_ps: Int64
    estimate_ps: tuple[int, int] | None = None

    @property
    def shows_all(self) -> bool:
        """Whether the result has a row for every rank."""
        return len(self.ranks) == self.num_ranks


@dataclass(frozen=True, slots=True)
class Simulator:
    """The simulator: trine's version, the simulation's wall time, the engine's events, and the simulated ranks."""

    version: str
    wall_s: float
    events: int
    ranks_simulated: int


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class TaskRun:
    """A simulated job and its metrics. Times describe its last step; after several steps, this is the steady state.

    plan: facts about workload, layout and cluster, in reading order.
    memory_capacity_bytes: capacity of each rank's device, 0 if unknown; empty if no capacity is known. power_w: maximum
    power of each device in watts, likewise. state_w: power of a device while it computes, communicates and idles, with
    a power cap; None: fractions of power_w.
    gpu_models: the GPU model of each rank; empty if all ranks use the same one.
    not_modelled: sentences about effects that the run leaves out.
    scope: the meaning of the graph's rows in a folded run; None if each rank was simulated separately.
    part: the ranks that the graph shows; None: all. link_tiers: groups of equivalent links; None: not known.
    work: samples and FLOPs of a step; band: likely range of its time. None: not known.
    memory_facts: memory settings besides the tensors. host_memory: offloaded data on the fullest host. repeats: windows
    that stand for a longer run; records are then stretched. repeated_steps: the window that stands for further steps;
    records and :attr:`window` have simulated steps only. inputs: the resolved inputs of the run, plain data by group.
    operator_work: computes FLOPs and bytes of the operators; None: not known.
    """

    graph: TaskGraph
    records: Records
    memory: MemoryEvents | None
    plan: Mapping[str, object]
    simulator: Simulator
    evidence: tuple[Evidence, ...] = ()
    warnings: tuple[str, ...] = ()
    not_modelled: tuple[str, ...] = ()
    memory_capacity_bytes: tuple[int, ...] = field(default=())
    scope: Scope | None = None
    power_w: tuple[int, ...] = field(default=())
    state_w: tuple[float, float, float] | None = None
    gpu_models: tuple[str, ...] = field(default=())
    part: Part | None = None
    link_tiers: traffic.LinkTiers | None = None
    work: headline.StepWork | None = None
    band: headline.Band | None = None
    memory_facts: memory_use.MemoryFacts = memory_use.NO_FACTS
    host_memory: HostMemory | None = None
    repeats: Repeats | None = None
    repeated_steps: RepeatedSteps | None = None
    inputs: Mapping[str, object] = field(default_factory=dict)
    operator_work: Callable[[], OperatorWork | None] | None = None

    def __post_init__(self) -> None:
        for name in ("memory_capacity_bytes", "power_w", "gpu_models"):
            num_ranks, num_entries = len(self.graph.rank_names), len(getattr(self, name))
            if num_entries not in (0, num_ranks):
                raise InputError(f"needs one entry a rank: {num_ranks}, got {num_entries}", field=name)

    def with_words(self, warnings: tuple[str, ...], evidence: tuple[Evidence, ...], band: headline.Band | None) -> Self:
        """Return the run with other warnings, evidence and likely range; metrics already computed are kept."""
        changed = replace(self, warnings=warnings, evidence=evidence, band=band)
        changed.__dict__.update({name: value for name, value in self.__dict__.items() if name not in changed.__dict__})
        return changed

    # Micro-batches and steps that the simulated ones stand for

    @cached_property
    def shown_records(self) -> Records:
        """The simulated tasks at their times in the run, which has further tasks if it repeats."""
        return self._step_records if self.repeated_steps is None else self.repeated_steps.later(self._step_records)

    @cached_property
    def _step_records(self) -> Records:
        """The simulated tasks at their times in the run of the simulated steps."""
        return self.records if self.repeats is None else self.repeats.shown(self.records)

    @property
    def shown_microbatches(self) -> npt.NDArray[np.integer]:
        """The micro-batch of each simulated task in the run: int[tasks], -1: none."""
        labels, repeats = self.graph.labels, self.repeats
        return labels.microbatch if repeats is None else repeats.shown_microbatch(labels, self._step_records.start_ps)

    @property
    def shown_columns(self) -> dict[str, npt.NDArray[np.integer]]:
        """Columns of the record table that have other numbers in the run: int[tasks] each."""
        columns = {} if self.repeats is None else {"microbatch": self.shown_microbatches}
        if self.repeated_steps is not None:
            columns["step"] = self.repeated_steps.shown_step(self.graph.labels.step, self._step_records.start_ps)
        return columns

    @cached_property
    def excerpt(self) -> Self:
        """The run as simulated: without the repetitions."""
        if self.repeats is None:
            return self if self.repeated_steps is None else replace(self, repeated_steps=None)
        part, records = self.part, self.repeats.unstretched(self.records)
        if part is not None:
            part = replace(part, step_ends_ps=self.repeats.simulated_ps(part.step_ends_ps))
        return replace(self, records=records, part=part, repeats=None, repeated_steps=None)

    @property
    def left_out_words(self) -> str:
        """Repetitions that an excerpt lacks, for pictures."""
        parts = [repeats.left_out_words for repeats in (self.repeats, self.repeated_steps) if repeats is not None]
        return f"; left out: {', '.join(parts)}" if parts else ""

    @property
    def weights(self) -> Int64 | None:
        """How many tasks each task stands for: int64[tasks]; None: one each."""
        labels = self.graph.labels
        return None if self.repeats is None else self.repeats.weights(labels.microbatch, labels.phase)

    # Ranks

    @property
    def num_ranks(self) -> int:
        """Number of ranks of the job; the graph may show only some of them."""
        return len(self.graph.rank_names) if self.part is None else self.part.num_ranks

    @property
    def shown_ranks(self) -> tuple[int, ...]:
        """The rank of each row of the graph and of :attr:`rank_times`."""
        return tuple(range(len(self.graph.rank_names))) if self.part is None else self.part.ranks

    # Steps

    @property
    def step_ends_ps(self) -> Int64:
        """End of each step: int64[steps]."""
        ends_ps = self.simulated_ends_ps
        return ends_ps if self.repeated_steps is None else self.repeated_steps.step_ends(ends_ps)

    @cached_property
    def simulated_ends_ps(self) -> Int64:
        """End of each simulated step: int64[simulated steps]."""
        if self.part is not None:
            return self.part.step_ends_ps
        return activity.step_ends(self.graph, self.records)

    @property
    def num_steps(self) -> int:
        return len(self.simulated_ends_ps) if self.repeated_steps is None else self.repeated_steps.steps

    @property
    def window(self) -> activity.Window:
        """The last simulated step, starting at the end of the previous one."""
        return activity.last_step(self.simulated_ends_ps)

    @property
    def step_time_ps(self) -> int:
        """Time of the last step; with several steps, the steady-state time."""
        return self.window.end_ps - self.window.start_ps

    @property
    def end_time_ps(self) -> int:
        """End of the whole run."""
        return self.window.end_ps + (0 if self.repeated_steps is None else self.repeated_steps.skipped_ps)

    # Times

    @cached_property
    def released_by(self) -> Int64:
        """The predecessor that released each task, or -1: int64[tasks]."""
        return waits.releasers(self.graph, self.records)

    @cached_property
    def wait_reasons(self) -> npt.NDArray[np.int8]:
        """Wait reason of each task, as an index into :data:`trine.results.waits.REASONS`: int8[tasks]."""
        if self.part is not None and self.part.reasons is not None:
            return self.part.reasons()
        return waits.wait_reasons(self.graph, self.records, self.released_by)

    @cached_property
    def rank_times(self) -> metrics.RankTimes:
        """Breakdown of each rank's step."""
        return metrics.rank_times(self.graph, self.records, self.window, self.wait_reasons)

    @cached_property
    def slowest_row(self) -> int:
        """The row of the rank whose last task ends last; the first row wins a tie.

        With several GPU models: of all ranks that end within 0.1 % of the step, the longest-computing one; others wait.
        """
        if not self.gpu_models:
            return metrics.slowest_rank(self.graph, self.records)
        ends = metrics.rank_ends(self.graph, self.records)
        is_last = ends >= ends.max() - self.step_time_ps // 1000
        return int(np.argmax(np.where(is_last, self.rank_times.compute, -1)))

    @property
    def slowest_rank(self) -> int:
        """The rank of :attr:`slowest_row`."""
        return self.shown_ranks[self.slowest_row]

    @cached_property
    def critical_path(self) -> list[int]:
        """The tasks that led to the end of the run, latest first."""
        return waits.critical_path(self.graph, self.records, self.released_by)

    @cached_property
    def critical_path_times(self) -> dict[str, int]:
        """Breakdown of the step's time along the critical path, ps."""
        return waits.path_times(self.graph, self.records, self.critical_path, self.window)

    @property
    def step_time_s(self) -> float:
        return self.step_time_ps / PS_PER_S

    @property
    def compute_s(self) -> float:
        """Compute time of the slowest rank."""
        return float(self.rank_times.compute[self.slowest_row] / PS_PER_S)

    @property
    def communication_s(self) -> float:
        """Communication time of the slowest rank, overlapped with compute or not."""
        return float(self.rank_times.communication[self.slowest_row] / PS_PER_S)

    @property
    def exposed_communication_s(self) -> float:
        """Communication time of the slowest rank during which it does not compute."""
        return float(self.rank_times.exposed[self.slowest_row] / PS_PER_S)

    @property
    def bubble_s(self) -> float:
        """Idle time of the slowest rank that the pipeline schedule causes."""
        return float(self.rank_times.bubble[self.slowest_row] / PS_PER_S)

    @cached_property
    def contention_ps(self) -> int:
        """Compute time that the slowest rank loses in a step because communication kernels share its GPU."""
        if self.graph.pressure_ppm is None:
            return 0
        tasks = activity.computing(self.graph) & activity.in_step(self.graph, self.window)
        tasks &= self.graph.rank == self.slowest_row
        records = self.records if self.repeats is None else self.repeats.unstretched(self.records)
        lost_ps = (records.end_ps - records.start_ps - self.graph.duration_ps)[tasks]
        return int(lost_ps.sum() if self.weights is None else (lost_ps * self.weights[tasks]).sum())

    @property
    def idle_s(self) -> float:
        """Other idle time of the slowest rank."""
        return float(self.rank_times.idle[self.slowest_row] / PS_PER_S)

    @cached_property
    def terms(self) -> terms.StepTerms:
        """Parts of the slowest rank's step, ps: compute by phase, exposed communication by axis, idle by cause."""
        from trine.results import terms

        return terms.step_terms(self.graph, self.records, self.window, self.wait_reasons, self.slowest_row)

    # Shares of the step

    @cached_property
    def layers(self) -> tuple[metrics.Share, ...]:
        """Time by layer."""
        return self._shares(self.graph.labels.layer, self.graph.layer_names)

    @cached_property
    def operators(self) -> tuple[metrics.Share, ...]:
        """Time by operator name."""
        return self._shares(self.graph.labels.operator, self.graph.operator_names)

    @cached_property
    def phases(self) -> tuple[metrics.Share, ...]:
        """Time by phase: forward, backward, optimizer, input copy, recompute (forward operators run again)."""
        return self._shares(self.graph.labels.phase, activity.PHASE_NAMES)

    @cached_property
    def stages(self) -> tuple[metrics.Share, ...]:
        """Time by pipeline stage."""
        stage = self.graph.labels.stage
        return self._shares(stage, tuple(str(number) for number in range(int(stage.max(initial=-1)) + 1)))

    def _shares(self, label: npt.NDArray[np.integer], names: tuple[str, ...]) -> tuple[metrics.Share, ...]:
        return metrics.shares(self.graph, self.records, activity.in_step(self.graph, self.window), label, names)

    # Network and memory

    @cached_property
    def collectives(self) -> tuple[traffic.CollectiveUse, ...]:
        """The collectives of the step, sorted by time, longest first."""
        totals: traffic.Totals | None = None if self.part is None else {}
        if self.scope is not None:
            totals = self.scope.totals
        from trine.results import traffic

        return traffic.collective_uses(self.graph, self.records, self.window, totals, self.weights)

    @property
    def links(self) -> tuple[LinkUse, ...]:
        """The same as :attr:`link_uses`."""
        return self.link_uses

    @cached_property
    def link_uses(self) -> tuple[LinkUse, ...]:
        """Bytes and utilisation of each link in the step; a folded run has one row per group of equal links."""
        if self.scope is not None and self.scope.links is not None:
            return self.scope.links
        tasks = activity.in_step(self.graph, self.window)
        from trine.results import traffic

        return traffic.link_uses(self.graph, tasks, self.step_time_ps, self.link_tiers, self.weights)

    @cached_property
    def memory_timeline(self) -> memory_use.MemoryTimeline | None:
        """Memory of each rank over time; None if the run has no memory events."""
        return None if self.memory is None else self.timeline_of(self.memory)

    def timeline_of(self, memory: MemoryEvents) -> memory_use.MemoryTimeline:
        """Return the memory over time that ``memory`` makes; its tasks are those of this run."""
        changes = memory, self._step_records
        if self.repeats is not None and self._memory_grows:
            from trine.results.repeats import repeated_changes

            changes = repeated_changes(memory, self.repeats.unstretched(self.records), self.repeats)
        timeline, steps = memory_use.memory_timeline(*changes), self.repeated_steps
        if steps is None:
            return timeline
        return replace(timeline, time_ps=timeline.time_ps + steps.later_ps(timeline.time_ps))

    @cached_property
    def memory_peaks(self) -> tuple[memory_use.MemoryPeak, ...]:
        """The peak of each rank over the whole run; empty if the run has no memory events."""
        timeline = self.memory_timeline
        if timeline is None:
            return ()
        return tuple(memory_use.memory_peak(timeline, r) for r in range(timeline.num_ranks))

    @property
    def memory_peak_bytes(self) -> int | None:
        """The largest peak over the ranks; None if the run has no memory events."""
        return max((peak.total_bytes for peak in self.memory_peaks), default=None)

    @cached_property
    def memory_uses(self) -> tuple[memory_use.MemoryUse, ...]:
        """GPU memory use of each rank: allocated, reserved, outside; empty if the run has no memory events."""
        if self.memory is None:
            return ()
        memory, records = self.memory, self.records
        if self.repeats is not None and self._memory_grows:
            from trine.results.repeats import repeated_memory

            memory, records = repeated_memory(memory, self.graph.labels, self._step_records, self.repeats)
        return memory_use.memory_uses(memory, self.memory_facts, self.memory_capacity_bytes, records)

    @cached_property
    def _memory_grows(self) -> bool:
        """Whether further micro-batches hold more memory, as in GPipe."""
        if self.repeats is None:
            return False
        assert self.memory is not None
        from trine.results.repeats import grows

        return grows(self.memory, self.repeats.unstretched(self.records), self.repeats)

    @property
    def repeats_each_step(self) -> bool:
        """Whether a step ends in each period, and the last one holds and reserves no more memory than those before."""
        steps, memory = self.repeated_steps, self.memory
        if steps is None or memory is None:
            return steps is None or len(self.step_ends_ps) == steps.steps
        is_before = self.graph.labels.step[memory.task] < steps.simulated - steps.period
        before = replace(self, memory=memory.only(is_before))
        from trine.results.repeats import grows

        is_same = not grows(memory, self.records, steps) and before.memory_uses == self.memory_uses
        return is_same and len(self.step_ends_ps) == steps.steps

    @cached_property
    def fullest_row(self) -> int:
        """The row of the rank with the least headroom, see :func:`trine.results.memory.least_headroom`."""
        return memory_use.least_headroom(self.memory_uses)

    @property
    def fullest_rank(self) -> int:
        """The rank with the least headroom on its GPU."""
        return self.shown_ranks[self.fullest_row]

    def verdict_of_row(self, row: int) -> str:
        """Return the verdict of a row: "fits", "tight", "does not fit" or "capacity unknown"."""
        return self.memory_uses[row].verdict

    @property
    def memory_verdict(self) -> str | None:
        """The worst verdict of GPU and host memory; None if memory was not modelled."""
        verdicts = [self.memory_uses[self.fullest_row].verdict] if self.memory_uses else []
        verdicts += [] if self.host_memory is None else [self.host_memory.verdict]
        return min(verdicts, key=memory_use.WORST_FIRST.index, default=None)

    @cached_property
    def energy(self) -> energy_use.Energy | None:
        """Energy and power of all GPUs in the step, an assumption; None if the power of a GPU is not known.

        In a folded result each row counts for the ranks of its class. If some classes have no rows, a sample spread
        over all ranks is used instead.
        """
        if not self.power_w or not all(self.power_w):
            return None
        sample: TaskRun = self
        weight, num_counted = self._ranks_alike(), self.num_ranks
        if weight.sum() != self.num_ranks:
            if self.scope is None:  # some ranks of an unfolded run: the rest are unknown
                return None
            sample, weight = self.scope.spread()
            num_counted = len(weight)
        times = metrics.busy_times(sample.graph, sample.records, sample.window)
        state_w = self.state_w
        return energy_use.energy(times, sample.power_w, weight, num_counted, self.num_ranks, state_w)

    def _ranks_alike(self) -> npt.NDArray[np.float64]:
        """Return how many ranks each row represents: float64[rows]; the first row of a class has all its ranks."""
        scope, ranks = self.scope, self.shown_ranks
        if scope is None or scope.shows_all:
            return np.ones(len(ranks))
        _, first = np.unique([scope.class_of(rank) for rank in ranks], return_index=True)
        weights = np.zeros(len(ranks))
        weights[first] = [scope.class_size(ranks[row]) for row in first.tolist()]
        return weights

    @cached_property
    def record_table(self) -> RecordTable:
        """One row per task: its description, its ready, start and end times, and its wait reason."""
        from trine.results.records import record_table

        ends = None if self.part is None else self.part.ends
        table = record_table(self.graph, self.shown_records, self.wait_reasons, ends)
        rows = slice(None) if ends is None else ~ends.is_copy
        return table._replace(
            columns={**table.columns, **{name: numbers[rows] for name, numbers in self.shown_columns.items()}}
        )
