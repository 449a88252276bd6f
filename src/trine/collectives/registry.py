"""Algorithms of each collective: "kind/name" -> record, which the file of the schedule declares."""

from __future__ import annotations

import inspect
import re

from trine.collectives.algorithm import Algorithm, MakeSchedule, MessageTime, Rounds
from trine.collectives.schedule import ROOTED, Parameter, Schedule
from trine.common.plugins import Registry
from trine.common.units import whole_number
from trine.errors import InputError, nearest

#: The first algorithm of a collective is its default. Another package adds one as an entry point "kind/name": a record,
#: or the function that makes the schedule.
ALGORITHMS: Registry[MakeSchedule] = Registry(
    "collective algorithm",
    "trine.collectives",
    {
        "all_reduce/ring": "trine.collectives.schedules.ring:all_reduce",
        "all_reduce/tree": "trine.collectives.schedules.tree:all_reduce",
        "all_reduce/double-binary-tree": "trine.collectives.schedules.tree:double_all_reduce",
        "all_reduce/halving-doubling": "trine.collectives.schedules.halving:all_reduce",
        "all_reduce/direct": "trine.collectives.schedules.direct:all_reduce",
        "all_reduce/one-shot": "trine.collectives.schedules.direct:one_shot",
        "all_reduce/hierarchical": "trine.collectives.schedules.hierarchical:all_reduce",
        "all_reduce/torus": "trine.collectives.schedules.hierarchical:torus_all_reduce",
        "all_reduce/nvls": "trine.collectives.schedules.innetwork:nvls_all_reduce",
        "all_reduce/sharp": "trine.collectives.schedules.innetwork:sharp_all_reduce",
        "reduce_scatter/ring": "trine.collectives.schedules.ring:reduce_scatter",
        "reduce_scatter/halving-doubling": "trine.collectives.schedules.halving:reduce_scatter",
        "reduce_scatter/direct": "trine.collectives.schedules.direct:reduce_scatter",
        "reduce_scatter/pat": "trine.collectives.schedules.bruck:pat_reduce_scatter",
        "reduce_scatter/hierarchical": "trine.collectives.schedules.hierarchical:reduce_scatter",
        "reduce_scatter/torus": "trine.collectives.schedules.hierarchical:torus_reduce_scatter",
        "reduce_scatter/nvls": "trine.collectives.schedules.innetwork:nvls_reduce_scatter",
        "all_gather/ring": "trine.collectives.schedules.ring:all_gather",
        "all_gather/halving-doubling": "trine.collectives.schedules.halving:all_gather",
        "all_gather/direct": "trine.collectives.schedules.direct:all_gather",
        "all_gather/bruck": "trine.collectives.schedules.bruck:all_gather",
        "all_gather/pat": "trine.collectives.schedules.bruck:pat_all_gather",
        "all_gather/hierarchical": "trine.collectives.schedules.hierarchical:all_gather",
        "all_gather/torus": "trine.collectives.schedules.hierarchical:torus_all_gather",
        "all_gather/nvls": "trine.collectives.schedules.innetwork:nvls_all_gather",
        "broadcast/ring": "trine.collectives.schedules.ring:broadcast",
        "broadcast/tree": "trine.collectives.schedules.tree:broadcast",
        "broadcast/direct": "trine.collectives.schedules.direct:broadcast",
        "reduce/ring": "trine.collectives.schedules.ring:reduce",
        "reduce/tree": "trine.collectives.schedules.tree:reduce",
        "all_to_all/direct": "trine.collectives.schedules.direct:all_to_all",
        "all_to_all/bruck": "trine.collectives.schedules.bruck:all_to_all",
        "all_to_all/hierarchical": "trine.collectives.schedules.hierarchical:all_to_all",
        "all_to_all_v/direct": "trine.collectives.schedules.direct:all_to_all_v",
        "gather/direct": "trine.collectives.schedules.direct:gather",
        "scatter/direct": "trine.collectives.schedules.direct:scatter",
        "send_recv/direct": "trine.collectives.schedules.direct:send_recv",
        "shift/direct": "trine.collectives.schedules.direct:shift",
        "barrier/dissemination": "trine.collectives.schedules.direct:barrier",
    },
)

_SHAPE = re.compile(r"\d{1,7}(x\d{1,7})+")


def known_kinds() -> tuple[str, ...]:
    """Return the collectives that have an algorithm."""
    return tuple(dict.fromkeys(name.partition("/")[0] for name in ALGORITHMS.names()))


def known_algorithms(kind: str) -> tuple[str, ...]:
    """Return the algorithms of one collective, the default first."""
    return tuple(name.partition("/")[2] for name in ALGORITHMS.names() if name.startswith(f"{kind}/"))


def make_schedule(
    kind: str, num_ranks: int, size_bytes: int, algorithm: str | None = None, root: int = -1, **parameters: object
) -> Schedule:
    """Make the schedule of one collective.

    kind: one of :func:`known_kinds`.
    num_ranks: size of the group, at least 1.
    size_bytes: payload as nccl-tests counts it: all_gather and gather the output, reduce_scatter and scatter the input,
        all_to_all the data sent by one rank, all others the buffer. all_to_all_v: the most that one rank sends.
    algorithm: one of :func:`known_algorithms`; None takes the first. It may carry parameters: ``ring:4`` (the first of
        its parameters), ``hierarchical:2x8``, ``hierarchical:2x8:inner=ring``.
    root: position of the root in the group, -1 for collectives without a root.
    parameters: the algorithm's keyword-only parameters, such as ``channels=4``.

    Raises InputError: unknown kind, algorithm or parameter, or a number out of range.
    """
    text = "" if algorithm is None else algorithm.partition(":")[2]
    name = known_name(kind, algorithm)
    if num_ranks < 1:
        raise InputError(f"a collective needs at least one rank, got {num_ranks}")
    if size_bytes < 0:
        raise InputError(f"the size of a collective must not be negative, got {size_bytes}")
    if kind in ROOTED and not 0 <= root < num_ranks:
        raise InputError(f"{kind} needs a root from 0 to {num_ranks - 1}, got {root}")
    if kind not in ROOTED and root != -1:
        raise InputError(f"{kind} has no root, got {root}")
    make = ALGORITHMS.get(name)
    if isinstance(make, Algorithm):
        make = make.make
    if not text and not parameters:
        return make(num_ranks, size_bytes, root)
    return make(num_ranks, size_bytes, root, **_parameters(name, make, text, parameters))


def known_name(kind: str, algorithm: str | None) -> str:
    """Return ``kind/name`` of an algorithm, without its parameters; None takes the first.

    Raises InputError: unknown kind or algorithm; names the nearest.
    """
    if algorithm is not None and "," in algorithm:
        raise InputError(
            f"one algorithm at a time, got {algorithm!r:.80}: give one of them, or auto for the library's choice"
        )
    base = "" if algorithm is None else algorithm.partition(":")[0]
    name = _default(kind) if algorithm is None else f"{kind}/{base}"
    if name not in ALGORITHMS:
        if not known_algorithms(kind):
            raise InputError(f"unknown collective {kind!r}{nearest(kind, known_kinds())}")
        raise InputError(f"{kind} has no algorithm {base!r}{nearest(base, known_algorithms(kind))}")
    return name


def record_of(schedule: Schedule) -> Algorithm | None:
    """Return the record of a schedule's algorithm; None if it has none."""
    name = f"{schedule.kind}/{schedule.algorithm}"
    algorithm = ALGORITHMS.get(name) if name in ALGORITHMS else None
    return algorithm if isinstance(algorithm, Algorithm) else None


def rounds_of(schedule: Schedule, time: MessageTime) -> Rounds:
    """Return the rounds of a schedule of two or more ranks by its algorithm's closed form.

    time: of a message. Raises InputError: the algorithm has no closed form.
    """
    algorithm = record_of(schedule)
    if algorithm is None:
        text, known = f"{schedule.kind} {schedule.algorithm}", (name.replace("/", " ") for name in ALGORITHMS.built_in)
        raise InputError(f"no closed form for {text!r}{nearest(text, known)}")
    return algorithm.rounds(schedule, time)


def _default(kind: str) -> str:
    """Return the first algorithm of ``kind``, or an unknown name if the kind has no algorithm."""
    names = (name for name in ALGORITHMS.built_in if name.startswith(f"{kind}/"))
    return next(names, None) or f"{kind}/{next(iter(known_algorithms(kind)), '')}"


def _parameters(name: str, make: MakeSchedule, text: str, keywords: dict[str, object]) -> dict[str, object]:
    """Return the parameters in ``text``, such as ``2x8:inner=ring``, and those passed by keyword."""
    names = [p.name for p in inspect.signature(make).parameters.values() if p.kind is p.KEYWORD_ONLY]
    values = dict(keywords)
    for i, item in enumerate(text.split(":") if text else ()):
        key, equals, value = item.partition("=")
        if not equals:
            if i >= len(names):
                raise InputError(f"{name} takes {len(names)} parameters ({', '.join(names)}), got {text!r}")
            key, value = names[i], item
        if key in values:
            raise InputError(f"{name} is given {key!r} twice")
        values[key] = _value(value)
    for key in values:
        if key not in names:
            raise InputError(f"{name} has no parameter {key!r}{nearest(key, names)}")
    return values


def _value(text: str) -> Parameter:
    """Parse a whole number, a shape such as 2x8, or a word."""
    if (number := whole_number(text)) is not None:
        return number
    if _SHAPE.fullmatch(text):
        return tuple(int(number) for number in text.split("x"))
    return text
