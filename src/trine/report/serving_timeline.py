"""The timeline of single steps of an inference engine: one row per step, its kernels layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trine.report.blocks import SpanTrack, TimelineBlock, TrackGroup

#: Track of each part that does not run on the stream of compute kernels.
_TRACKS = {"communication": "communication", "CPU": "CPU"}
_COMPUTE = "compute"
_REASONS = ("nothing: the step begins with it", "the span before it")


@dataclass(frozen=True, slots=True)
class StepSpan:
    """Consecutive kernels of one part of a step. layer: such as ``layer 3``, empty outside of layers."""

    name: str
    layer: str
    part: str
    duration_ps: int


@dataclass(frozen=True, slots=True)
class StepRow:
    """A step: its kind, its load, and its spans, each of which starts at the end of the one before."""

    kind: str
    load: str
    spans: tuple[StepSpan, ...]


@dataclass(frozen=True, slots=True)
class _PlacedSpan:
    """A span in its row: the start in ps, the track, and the number of the span in its step."""

    span: StepSpan
    start_ps: int
    track: str
    number: int


#: Colour of each part of a step.
PART_COLOURS = {
    "GEMMs": "compute", "experts": "forward", "attention and KV cache": "optimizer", "small kernels": "launch",
    "communication": "communication", "head and sampling": "backward", "CPU": "idle",
}  # fmt: skip


def steps_timeline(rows: Sequence[StepRow], note: str = "") -> TimelineBlock | None:
    """Return the timeline of the steps, all from time 0; None without a span."""
    placed = [_placed(row) for row in rows]
    found = [each for row in placed for each in row]
    if not found:
        return None
    cause = _causes(placed)
    words = (*PART_COLOURS, "other")
    names = tuple(dict.fromkeys(each.span.name for each in found))
    layers = tuple(dict.fromkeys(each.span.layer for each in found if each.span.layer))
    name_codes = {name: code for code, name in enumerate(names)}
    layer_codes = {"": -1, **{layer: code for code, layer in enumerate(layers)}}
    part_codes = {part: code for code, part in enumerate(words)}
    colour = [part_codes.get(each.span.part, len(PART_COLOURS)) for each in found]
    return TimelineBlock(
        title="Single steps, kernel by kernel",
        unit_ps=1_000,
        length=max(1, -(-max(each.start_ps + each.span.duration_ps for each in found) // 1_000)),
        groups=_groups(rows, placed),
        names=names,
        details=layers,
        colours=(*PART_COLOURS.values(), "other"),
        reasons=_REASONS,
        start=np.array([each.start_ps // 1_000 for each in found], np.uint32),
        duration=np.array([each.span.duration_ps // 1_000 for each in found], np.uint32),
        name=np.array([name_codes[each.span.name] for each in found], np.int32),
        detail=np.array([layer_codes[each.span.layer] for each in found], np.int32),
        colour=np.array(colour, np.uint8),
        cause=np.array(cause, np.int32),
        reason=np.array([int(before >= 0) for before in cause], np.int8),
        critical=np.ones(len(found), np.uint8),
        legend=words,
        note=note,
    )


def _placed(row: StepRow) -> list[_PlacedSpan]:
    """Return the spans of a step, sorted by track and start."""
    found, start_ps = [], 0
    for number, span in enumerate(row.spans):
        found.append(_PlacedSpan(span, start_ps, _TRACKS.get(span.part, _COMPUTE), number))
        start_ps += span.duration_ps
    return sorted(found, key=lambda each: (each.track, each.number))


def _causes(placed: Sequence[Sequence[_PlacedSpan]]) -> list[int]:
    """Return the index of the span before each span of its step; -1 for the first."""
    cause: list[int] = []
    for row in placed:
        first = len(cause)
        index = {each.number: first + place for place, each in enumerate(row)}
        cause += [index.get(each.number - 1, -1) for each in row]
    return cause


def _groups(rows: Sequence[StepRow], placed: Sequence[Sequence[_PlacedSpan]]) -> tuple[TrackGroup, ...]:
    """Return one group of tracks per step."""
    groups, first = [], 0
    for row, spans in zip(rows, placed, strict=True):
        tracks = []
        for name in dict.fromkeys(each.track for each in spans):
            count = sum(each.track == name for each in spans)
            tracks.append(SpanTrack(name=name, first=first, count=count, is_compute=name == _COMPUTE))
            first += count
        groups.append(TrackGroup(name=row.kind, tracks=tuple(tracks), note=row.load))
    return tuple(groups)
