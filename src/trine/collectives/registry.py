"""Which algorithms a collective has: "kind/name" -> function that makes the schedule."""

from __future__ import annotations

from collections.abc import Callable

from trine.errors import InputError, nearest
from trine.model.schedule import Schedule
from trine.plugins import Registry

#: number of ranks, payload in bytes, root (-1: none) -> schedule
Algorithm = Callable[[int, int, int], Schedule]

#: The first algorithm of a collective is its default. Another package adds one as an entry point "kind/name".
ALGORITHMS: Registry[Algorithm] = Registry(
    "collective algorithm",
    "trine.collectives",
    {
        "all_reduce/ring": "trine.collectives.ring:all_reduce",
        "reduce_scatter/ring": "trine.collectives.ring:reduce_scatter",
        "all_gather/ring": "trine.collectives.ring:all_gather",
        "broadcast/ring": "trine.collectives.ring:broadcast",
        "reduce/ring": "trine.collectives.ring:reduce",
        "gather/direct": "trine.collectives.direct:gather",
        "scatter/direct": "trine.collectives.direct:scatter",
        "send_recv/direct": "trine.collectives.direct:send_recv",
    },
)

#: Collectives in which one rank is the root: the one that has the data, or gets it.
ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter", "send_recv"})


def known_kinds() -> tuple[str, ...]:
    """The collectives that have an algorithm."""
    return tuple(dict.fromkeys(name.partition("/")[0] for name in ALGORITHMS.names()))


def known_algorithms(kind: str) -> tuple[str, ...]:
    """The algorithms of one collective, the default first."""
    return tuple(name.partition("/")[2] for name in ALGORITHMS.names() if name.startswith(f"{kind}/"))


def make_schedule(kind: str, num_ranks: int, size_bytes: int, algorithm: str | None = None, root: int = -1) -> Schedule:
    """Make the schedule of one collective.

    Parameters
    ----------
    kind: one of :func:`known_kinds`.
    num_ranks: size of the group, at least 1.
    size_bytes: payload as nccl-tests counts it: all_gather and gather the output, reduce_scatter and scatter the input,
        all others the buffer.
    algorithm: one of :func:`known_algorithms`; None takes the first.
    root: position of the root in the group, -1 for the collectives that have none.

    Raises
    ------
    InputError: unknown kind or algorithm, or a number out of range.
    """
    name = _default(kind) if algorithm is None else f"{kind}/{algorithm}"
    if name not in ALGORITHMS:
        if not known_algorithms(kind):
            raise InputError(f"unknown collective {kind!r}{nearest(kind, known_kinds())}")
        raise InputError(f"{kind} has no algorithm {algorithm!r}{nearest(str(algorithm), known_algorithms(kind))}")
    if num_ranks < 1:
        raise InputError(f"a collective needs at least one rank, got {num_ranks}")
    if size_bytes < 0:
        raise InputError(f"the size of a collective must not be negative, got {size_bytes}")
    if kind in ROOTED and not 0 <= root < num_ranks:
        raise InputError(f"{kind} needs a root from 0 to {num_ranks - 1}, got {root}")
    if kind not in ROOTED and root != -1:
        raise InputError(f"{kind} has no root, got {root}")
    return ALGORITHMS.get(name)(num_ranks, size_bytes, root)


def _default(kind: str) -> str:
    """Name of the first algorithm of ``kind``, and if it has none, a name that is not known."""
    own = (name for name in ALGORITHMS.built_in if name.startswith(f"{kind}/"))
    return next(own, None) or f"{kind}/{next(iter(known_algorithms(kind)), '')}"
