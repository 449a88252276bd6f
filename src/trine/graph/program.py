"""Rank programs: what one rank does, with symbolic references to other ranks. Frozen data without logic.

All ranks that play the same role (the same pipeline stage, say) share one program. A reference to another rank is
by its position on an axis of the rank grid (stage 3, all other coordinates mine), never by number: that is what folding
needs, because a program is then the same object for every rank that behaves alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

#: The streams of a rank: operators on the GPU, their launches by the CPU thread, and work that the host does for it.
COMPUTE_STREAM, LAUNCH_STREAM, HOST_STREAM = "compute", "cpu", "host"


class Phase(IntEnum):
    """What part of a training step a task belongs to; -1 in labels: none."""

    FORWARD = 0
    BACKWARD = 1
    OPTIMIZER = 2
    INPUT = 3
    RECOMPUTE = 4
    OFFLOAD = 5


class Label(NamedTuple):
    """What a step is for; -1 where it does not apply. ``operator`` and ``layer`` index the job's name tables."""

    phase: int = -1
    operator: int = -1
    layer: int = -1
    stage: int = -1
    microbatch: int = -1
    step: int = -1


class Peer(NamedTuple):
    """Another rank on an axis of the grid: ``position`` is its coordinate there, all others are one's own.

    An axis may join several of the grid, fastest first: ``"cp+dp"``, see :class:`trine.graph.grid.RankGrid`.
    """

    axis: str
    position: int


@dataclass(frozen=True, slots=True)
class Compute:
    """Occupy an in-order stream of this rank for a time."""

    stream: str
    duration_ps: int
    after: tuple[int, ...]
    label: Label


@dataclass(frozen=True, slots=True)
class Send:
    """Send bytes to a peer, whose program has the :class:`Recv` with the same ``tag``.

    ``pressure_ppm``: millionths of its speed that the compute stream loses while the message is on its way.
    """

    peer: Peer
    size_bytes: int
    tag: tuple[int | str, ...]
    after: tuple[int, ...]
    label: Label
    pressure_ppm: int = 0


@dataclass(frozen=True, slots=True)
class Recv:
    """Wait for what a peer sends under ``tag``."""

    peer: Peer
    tag: tuple[int | str, ...]
    after: tuple[int, ...]
    label: Label


@dataclass(frozen=True, slots=True)
class HostCopy:
    """Copy bytes from the memory of this rank's host to the rank, or ``to_host``."""

    size_bytes: int
    after: tuple[int, ...]
    label: Label
    to_host: bool = False


@dataclass(frozen=True, slots=True)
class Collective:
    """Take part in a collective of the group along ``axis``; all members name it by the same ``key``.

    ``axis`` may join several axes of the grid, fastest first (``"cp+dp"``). ``size_bytes`` is the payload as nccl-tests
    counts it, ``root`` the position of the root in the group (or -1), ``algorithm`` the name of the schedule to use
    (None: the default of the kind).
    Collectives of one ``queue`` run in the order of the program, one after the other; an empty queue is that of the
    axis. (Libraries run those of one communicator and stream in order.)
    ``pressure_ppm``: millionths of its speed that the compute stream loses from the entry to the end of the collective.
    """

    kind: str
    axis: str
    key: tuple[int | str, ...]
    size_bytes: int
    root: int
    algorithm: str | None
    after: tuple[int, ...]
    label: Label
    queue: str = ""
    pressure_ppm: int = 0


Step = Compute | Send | Recv | HostCopy | Collective


class MemoryChange(NamedTuple):
    """``delta_bytes`` of memory category ``category`` when step ``step`` starts (or, ``at_end``, ends).

    ``block``: the same number where a block is taken and given back; -1 for bytes that are no block of their own.
    ``user``: of a block that is given back, the collective that was recorded to use it; -1 for none.
    """

    step: int
    at_end: bool
    delta_bytes: int
    category: int
    block: int = -1
    user: int = -1


class LaunchClock(NamedTuple):
    """When the launching thread comes to a step: ``more_ps`` after the end of step ``launch``, and not before the end
    of step ``behind``, which its queue of launches waits for; -1 for no such step."""

    launch: int
    more_ps: int
    behind: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RankProgram:
    """Steps in program order; ``after`` of a step names earlier steps by index.

    ``resident_bytes`` are held throughout, one number a memory category (:data:`trine.graph.memory.MEMORY_CATEGORIES`).
    ``clocks``: of each step, where blocks that collectives use are held for them; else empty.
    """

    name: str
    steps: tuple[Step, ...]
    memory: tuple[MemoryChange, ...]
    resident_bytes: tuple[int, ...]
    clocks: tuple[LaunchClock, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """All that runs: distinct programs, and which of them each rank runs (``program_of[rank]``).

    ``axes`` are the axes of the rank grid with their sizes, fastest first: rank = sum of coordinate x stride.
    ``program_of`` may be any sequence of numbers, such as an array.
    """

    axes: tuple[tuple[str, int], ...]
    programs: tuple[RankProgram, ...]
    program_of: tuple[int, ...]
    operator_names: tuple[str, ...]
    layer_names: tuple[str, ...]
