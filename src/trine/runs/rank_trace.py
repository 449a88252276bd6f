"""The trace of one rank of a measured run, reduced to what the GPU and the launching thread did."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class GroupKey(NamedTuple):
    """A process group: its name, and its ranks if the trace tells them, else ()."""

    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """What one rank knows of a collective.

    kind: such as ``all_reduce``, ``send``. number: position in the order of its group, from 0. size_bytes: of the
    larger side, None if unknown. out_elements: elements that the rank gets, None if unknown. group_size: ranks of the
    group. algorithm: from the kernel's name, such as ``RING_LL``, "" if the name has none.
    """

    kind: str
    group: GroupKey
    number: int
    size_bytes: int | None
    out_elements: int | None
    group_size: int | None
    algorithm: str


@dataclass(slots=True)
class GpuActivity:
    """One kernel or copy on the GPU.

    operator: name of the outermost call that launched it, else of the kernel. phase: ``forward``, ``backward`` or
    ``optimizer``. launch: index into the rank's CPU calls, -1 if unknown. work: a value that is equal for equal work,
    such as the grid of the kernel; None if the trace has none. collective: None for computation and copies.
    """

    name: str
    stream: object
    start_ps: int
    end_ps: int
    operator: str
    phase: str
    launch: int = -1
    work: object = None
    collective: CollectiveCall | None = None

    @property
    def duration_ps(self) -> int:
        return self.end_ps - self.start_ps


@dataclass(slots=True)
class CpuCall:
    """A call of the CUDA runtime by the launching threads.

    is_wait: it waits for the GPU. operator: the call around it. event_waits: times that its thread let a stream wait
    for another one since its last call.
    """

    start_ps: int
    end_ps: int
    is_wait: bool
    operator: str
    event_waits: int = 0


@dataclass(frozen=True, slots=True)
class ProfiledStep:
    """A step that the profiler recorded: its number in the run, start and end on the CPU."""

    number: int
    start_ps: int
    end_ps: int


@dataclass(slots=True)
class RankTrace:
    """One rank: activities by start, CPU calls by start, and profiled steps by number.

    host: its name, "" if unknown. groups: ranks of each process group by name, as far as the trace tells them.
    """

    file: str
    rank: int
    world_size: int | None
    host: str
    gpu: str
    activities: list[GpuActivity]
    calls: list[CpuCall]
    steps: list[ProfiledStep]
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def start_ps(self) -> int:
        """The first moment of the trace."""
        starts = [self.activities[0].start_ps] if self.activities else []
        if self.calls:
            starts.append(self.calls[0].start_ps)
        return min(starts)

    @property
    def end_ps(self) -> int:
        """The last moment of the trace on the GPU."""
        return max(activity.end_ps for activity in self.activities)

    def shift(self, offset_ps: int) -> None:
        """Move all times by ``offset_ps``."""
        for activity in self.activities:
            activity.start_ps += offset_ps
            activity.end_ps += offset_ps
        for call in self.calls:
            call.start_ps += offset_ps
            call.end_ps += offset_ps
        moved = []
        for step in self.steps:
            moved.append(ProfiledStep(step.number, step.start_ps + offset_ps, step.end_ps + offset_ps))
        self.steps = moved
