"""Rank programs: the steps of one rank, with symbolic references to other ranks. Frozen data without logic.

All ranks with the same role (such as the same pipeline stage) share one program. A program refers to another rank by
its position on an axis of the rank grid (stage 3, all other coordinates unchanged), never by number. Folding relies on
this: ranks that behave alike share the same program object.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

#: The streams of a rank: operators on the GPU, their launches by the CPU thread, and work that the host does for it.
COMPUTE_STREAM, LAUNCH_STREAM, HOST_STREAM = "compute", "cpu", "host"


class Phase(IntEnum):
    """Part of a training step that a task belongs to; -1 in labels: none."""

    FORWARD = 0
    BACKWARD = 1
    OPTIMIZER = 2
    INPUT = 3
    RECOMPUTE = 4
    OFFLOAD = 5


class Label(NamedTuple):
    """Purpose of a step; -1 for fields that do not apply. ``operator`` and ``layer`` index the job's name tables."""

    phase: int = -1
    operator: int = -1
    layer: int = -1
    stage: int = -1
    microbatch: int = -1
    step: int = -1


class Peer(NamedTuple):
    """Another rank on an axis of the grid: ``position`` is its coordinate there; all other coordinates are equal.

    An axis may join several of the grid, fastest first: ``"cp+dp"``, see :class:`trine.graph.grid.RankGrid`.
    """

    axis: str
    position: int


class Compute(NamedTuple):
    """Work that occupies an in-order stream of this rank for a time."""

    stream: str
    duration_ps: int
    after: tuple[int, ...]
    label: Label


class Send(NamedTuple):
    """A message to a peer, whose program has the :class:`Recv` with the same ``tag``.

    ``pressure_ppm``: slowdown of the compute stream while the message is on its way, in millionths of its speed.
    """

    peer: Peer
    size_bytes: int
    tag: tuple[int | str, ...]
    after: tuple[int, ...]
    label: Label
    pressure_ppm: int = 0


class Recv(NamedTuple):
    """A wait for the message that a peer sends under ``tag``."""

    peer: Peer
    tag: tuple[int | str, ...]
    after: tuple[int, ...]
    label: Label


class HostCopy(NamedTuple):
    """A copy from the memory of this rank's host to the rank, or the other way with ``to_host``."""

    size_bytes: int
    after: tuple[int, ...]
    label: Label
    to_host: bool = False


class Collective(NamedTuple):
    """A rank's part in a collective of the group along ``axis``; all members use the same ``key``.

    ``axis`` may join several axes of the grid, fastest first (``"cp+dp"``). ``size_bytes`` is the payload as nccl-tests
    counts it, ``root`` the position of the root in the group (or -1), ``algorithm`` the name of the schedule to use
    (None: the default of the kind).
    Collectives of one ``queue`` run one after the other in program order, as libraries do for one communicator and
    stream; an empty queue means the queue of the axis.
    ``pressure_ppm``: slowdown of the compute stream from the entry to the end, in millionths of its speed.
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


#: Named tuples: a program has hundreds of thousands of steps, and a frozen dataclass takes twice as long to create.
Step = Compute | Send | Recv | HostCopy | Collective


class MemoryChange(NamedTuple):
    """A change of ``delta_bytes`` in memory category ``category`` when ``step`` starts (with ``at_end``: ends).

    ``block``: the same number for the allocation and the free of a block; -1 for bytes outside blocks.
    ``user``: for a freed block, the collective recorded as its user; -1 for none.
    """

    step: int
    at_end: bool
    delta_bytes: int
    category: int
    block: int = -1
    user: int = -1


class LaunchClock(NamedTuple):
    """Time at which the launching thread reaches a step: ``more_ps`` after the end of step ``launch``, but not before
    the end of step ``behind``, which limits its launch queue; -1 for no step."""

    launch: int
    more_ps: int
    behind: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RankProgram:
    """Steps in program order; ``after`` of a step names earlier steps by index. ``steps`` and ``memory`` never change.

    ``resident_bytes``: allocated throughout, one number per category (:data:`trine.graph.memory.MEMORY_CATEGORIES`).
    ``host_bytes``: kept in host memory throughout. ``clocks``: one per step if blocks are kept while collectives use
    them; else empty.
    """

    name: str
    steps: Sequence[Step]
    memory: Sequence[MemoryChange]
    resident_bytes: tuple[int, ...]
    clocks: tuple[LaunchClock, ...] = ()
    host_bytes: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """Distinct programs, and the index of each rank's program (``program_of[rank]``).

    ``axes`` are the axes of the rank grid with their sizes, fastest first: rank = sum of coordinate x stride.
    ``program_of`` may be any sequence of numbers, such as an array.
    """

    axes: tuple[tuple[str, int], ...]
    programs: tuple[RankProgram, ...]
    program_of: tuple[int, ...]
    operator_names: tuple[str, ...]
    layer_names: tuple[str, ...]
