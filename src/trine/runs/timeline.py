"""The timeline of measured runs for a report: kernels of some ranks; collectives are split into wait and transfer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from trine.common.units import format_bytes
from trine.report.blocks import COLOURS, SpanTrack, TimelineBlock, TrackGroup
from trine.runs.measured_run import MeasuredRun
from trine.runs.rank_trace import GpuActivity

#: Most spans and ranks of a timeline.
MAX_SPANS, MAX_RANKS = 60_000, 8
_UNIT_PS = 1000
_REASONS = ("waits for the last rank",)
#: Colour of a kernel by phase, of a wait, and of a transfer.
_WAIT, _TRANSFER = "idle", "communication"


@dataclass(frozen=True, slots=True)
class TimelinePart:
    """A run to draw: its label, "" for none, and the ranks to show, in this order."""

    label: str
    run: MeasuredRun
    ranks: tuple[int, ...]


@dataclass(slots=True)
class _Spans:
    """Columns of the spans, in units of the timeline; cause: the index of a span or -1."""

    start: list[int] = field(default_factory=list)
    duration: list[int] = field(default_factory=list)
    name: list[int] = field(default_factory=list)
    detail: list[int] = field(default_factory=list)
    colour: list[int] = field(default_factory=list)
    cause: list[int] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)
    details: dict[str, int] = field(default_factory=dict)

    def add(self, start_ps: int, end_ps: int, name: str, detail: str, colour: str) -> int:
        """Add a span and return its index."""
        self.start.append(max(0, start_ps) // _UNIT_PS)
        self.duration.append(max(0, end_ps - start_ps) // _UNIT_PS)
        self.name.append(self.names.setdefault(name[:200], len(self.names)))
        self.detail.append(self.details.setdefault(detail[:200], len(self.details)) if detail else -1)
        self.colour.append(COLOURS.index(colour))
        self.cause.append(-1)
        return len(self.start) - 1


def measured_timeline(parts: Sequence[TimelinePart], title: str) -> TimelineBlock | None:
    """Return the timeline of some ranks of one or two runs, which all begin at 0; None without spans.

    parts: in this order; a run may have several.
    """
    spans = _Spans()
    groups = []
    length_ps = left_out = 0
    writers: dict[int, _RunWriter] = {}
    for part in parts:
        writer = writers.setdefault(id(part.run), _RunWriter(part.run, spans))
        for rank in part.ranks[:MAX_RANKS]:
            row = next((row for row, trace in enumerate(part.run.ranks) if trace.rank == rank), -1)
            if row < 0 or len(spans.start) + len(part.run.ranks[row].activities) > MAX_SPANS:
                left_out += 1
                continue
            name = f"{part.label}: rank {rank}" if part.label else f"rank {rank}"
            groups.append(TrackGroup(name=name, tracks=tuple(writer.tracks(row))))
        left_out += max(0, len(part.ranks) - MAX_RANKS)
        length_ps = max(length_ps, part.run.time_ps)
    if not spans.start:
        return None
    for writer in writers.values():
        writer.set_causes()
    note = f"{len(spans.start):,} spans" + (f"; {left_out} ranks left out" if left_out else "") + "."
    return TimelineBlock(
        title=title, unit_ps=_UNIT_PS, length=max(1, -(-length_ps // _UNIT_PS)), groups=tuple(groups),
        names=tuple(spans.names), details=tuple(spans.details), colours=COLOURS, reasons=_REASONS,
        start=np.array(spans.start, np.uint32), duration=np.array(spans.duration, np.uint32),
        name=np.array(spans.name, np.int32), detail=np.array(spans.detail, np.int32),
        colour=np.array(spans.colour, np.uint8), cause=np.array(spans.cause, np.int32),
        reason=np.where(np.array(spans.cause) >= 0, 0, -1).astype(np.int8),
        critical=np.zeros(len(spans.start), np.uint8), note=note,
    )  # fmt: skip


class _RunWriter:
    """The spans of one run."""

    def __init__(self, run: MeasuredRun, spans: _Spans) -> None:
        self._run, self._spans = run, spans
        self._start_ps = run.start_ps
        self._entry_ps: dict[tuple[int, int], int] = {}
        self._last: dict[tuple[int, int], tuple[int, int]] = {}
        for instance in run.instances:
            kernels = [(run.ranks[row].activities[place], (row, place)) for row, place in instance.members]
            latest, last = max(kernels, key=lambda each: each[0].start_ps)
            end_ps = min(kernel.end_ps for kernel, _ in kernels)
            for _, member in kernels:
                self._entry_ps[member] = min(latest.start_ps, end_ps)
                self._last[member] = last
        self._waits: list[tuple[int, tuple[int, int]]] = []
        self._span_of: dict[tuple[int, int], int] = {}

    def tracks(self, row: int) -> list[SpanTrack]:
        """Add the spans of a rank, and return a track for each stream with activities that do not overlap."""
        lanes: dict[str, list[int]] = {}
        free_ps: dict[str, int] = {}
        activities = self._run.ranks[row].activities
        for place, activity in enumerate(activities):
            lane = self._lane(activity, free_ps)
            lanes.setdefault(lane, []).append(place)
        tracks = []
        for lane, places in sorted(lanes.items(), key=lambda each: (not each[0].startswith("stream"), each[0])):
            first = len(self._spans.start)
            is_compute = any(activities[place].collective is None for place in places)
            for place in places:
                self._add(row, place, activities[place])
            tracks.append(SpanTrack(name=lane, first=first, count=len(self._spans.start) - first,
                                    is_compute=is_compute))  # fmt: skip
        return tracks

    def _lane(self, activity: GpuActivity, free_ps: dict[str, int]) -> str:
        """Return the name of the first track of the activity's stream or group that is free."""
        if activity.collective is None:
            base = f"stream {activity.stream}"
        else:
            base = f"group {activity.collective.group.name}"[:60]
        lane, number = base, 1
        while free_ps.get(lane, 0) > activity.start_ps:
            number += 1
            lane = f"{base} ({number})"
        free_ps[lane] = activity.end_ps
        return lane

    def _add(self, row: int, place: int, activity: GpuActivity) -> None:
        start_ps, end_ps = activity.start_ps - self._start_ps, activity.end_ps - self._start_ps
        call = activity.collective
        if call is None:
            detail = activity.name if activity.name != activity.operator else ""
            colour = activity.phase if activity.phase in COLOURS else "compute"
            self._span_of[row, place] = self._spans.add(start_ps, end_ps, activity.operator, detail, colour)
            return
        size = "" if call.size_bytes is None else f"{format_bytes(call.size_bytes)}, "
        detail = f"{size}number {call.number} of group {call.group.name} {call.algorithm}".strip()
        entry_ps = self._entry_ps.get((row, place), activity.start_ps) - self._start_ps
        if entry_ps > start_ps:
            wait = self._spans.add(start_ps, entry_ps, f"wait in {call.kind}", detail, _WAIT)
            self._waits.append((wait, self._last[row, place]))
        self._span_of[row, place] = self._spans.add(max(start_ps, entry_ps), end_ps, call.kind, detail, _TRANSFER)

    def set_causes(self) -> None:
        """Let each wait point to the last kernel that the last rank ran before it entered, if that rank is shown."""
        for wait, (row, place) in self._waits:
            activities = self._run.ranks[row].activities
            for before in range(place - 1, -1, -1):
                if activities[before].collective is None and activities[before].end_ps <= activities[place].start_ps:
                    self._spans.cause[wait] = self._span_of.get((row, before), -1)
                    break
