"""Why a job hangs: the rank that did not enter a collective, from the flight recorder's dumps of its ranks.

A rank waits in a collective that it has called and that is not completed. A rank that has not called it holds the
others up, unless it waits in a collective of another group itself; then that one is the reason. The analysis follows
these waits to the ranks that wait for nobody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trine.errors import InputError, one_line
from trine.runs.flight_recorder import COMPLETED, SCHEDULED, Dump, DumpEntry

MISSING, MISMATCH, STUCK, NO_DUMP = "missing rank", "mismatch", "stuck transfer", "no dump"
#: Kinds with what to look at first.
ADVICE = {
    MISSING: "the stack of this rank (py-spy dump), an exception in its log, and conditions that skip a collective",
    MISMATCH: "code that calls collectives in another order or with other shapes on this rank",
    STUCK: "GPU errors and links of these ranks (dmesg, nvidia-smi -q, ibstat)",
    NO_DUMP: "the log of this rank: its process ended, or could not write its dump",
}


@dataclass(frozen=True, slots=True)
class Hang:
    """Why ranks wait.

    kind: one of ADVICE. ranks: those at fault. group: the process group, description: its purpose. number: of the
    collective in the group's order. operation: its name. waiting: ranks that wait in it. waited_ns: the time from the
    first of their calls to the last time in any dump. detail: what differs, for a mismatch.
    """

    kind: str
    ranks: tuple[int, ...]
    group: str
    description: str
    number: int
    operation: str
    waiting: tuple[int, ...]
    waited_ns: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class _Blocked:
    """A collective that some ranks wait in: entries by rank, and the ranks of the group that did not call it."""

    group: str
    number: int
    entries: Mapping[int, DumpEntry]
    missing: tuple[int, ...]

    @property
    def waiting(self) -> tuple[int, ...]:
        return tuple(sorted(rank for rank, entry in self.entries.items() if entry.state != COMPLETED))


def find_hangs(dumps: Sequence[Dump]) -> tuple[Hang, ...]:
    """Return why the job hangs, the reason of other waits first; () if no rank waits.

    Raises InputError for dumps of different jobs, and for a rank with two dumps.
    """
    _check_one_job(dumps)
    groups = {name: ranks for dump in dumps for name, ranks in dump.groups.items()}
    descriptions = {name: words for dump in dumps for name, words in dump.descriptions.items()}
    last_ns = max(dump.last_ns for dump in dumps)
    blocked = _blocked(dumps, groups)
    waits = {rank: each for each in blocked for rank in each.waiting}
    hangs = []
    for each in blocked:
        reason = _reason(each, waits, {dump.rank for dump in dumps})
        waiting = tuple(rank for rank in each.waiting if rank not in reason.ranks) or each.waiting
        first_ns = min((each.entries[rank].created_ns for rank in waiting), default=last_ns)
        operation = next(iter(each.entries.values())).operation
        hangs.append(
            Hang(
                reason.kind, reason.ranks, each.group, descriptions.get(each.group, ""), each.number, operation,
                waiting, max(0, last_ns - first_ns), reason.detail,
            )
        )  # fmt: skip
    roots = [hang for hang in hangs if hang.kind != MISSING or not any(rank in waits for rank in hang.ranks)]
    others = [hang for hang in hangs if hang not in roots]
    return (*sorted(roots, key=lambda hang: -hang.waited_ns), *sorted(others, key=lambda hang: -hang.waited_ns))


def _check_one_job(dumps: Sequence[Dump]) -> None:
    file_of: dict[int, str] = {}
    for dump in dumps:
        if dump.rank in file_of:
            raise InputError(f"is a second dump of rank {dump.rank}, besides {file_of[dump.rank]}", file=dump.file)
        file_of[dump.rank] = dump.file
    first = dumps[0]
    for dump in dumps[1:]:
        for name, ranks in dump.groups.items():
            if name in first.groups and set(ranks) & set(first.groups[name]) and ranks != first.groups[name]:
                raise InputError(f"is of another job: process group {one_line(name, 40)!r} has other ranks than in "
                                 f"{first.file}", file=dump.file)  # fmt: skip


def _blocked(dumps: Sequence[Dump], groups: Mapping[str, tuple[int, ...]]) -> list[_Blocked]:
    """Return, for each group, the first collective that is not completed on all of its ranks."""
    calls: dict[str, dict[int, dict[int, DumpEntry]]] = {}
    for dump in dumps:
        for entry in dump.entries:
            calls.setdefault(entry.group, {}).setdefault(dump.rank, {})[entry.number] = entry
    blocked = []
    for group, by_rank in sorted(calls.items()):
        ranks = groups.get(group) or tuple(sorted(by_rank))
        unfinished = [number for entries in by_rank.values() for number, entry in entries.items()
                      if entry.state != COMPLETED]  # fmt: skip
        if not unfinished:
            continue
        number = min(unfinished)
        entries = {rank: calls_of[number] for rank, calls_of in by_rank.items() if number in calls_of}
        missing = []
        for rank in ranks:
            last = max(by_rank.get(rank, {}), default=-1)
            if rank not in entries and last < number:
                missing.append(rank)
        blocked.append(_Blocked(group, number, entries, tuple(missing)))
    return blocked


@dataclass(frozen=True, slots=True)
class _Reason:
    kind: str
    ranks: tuple[int, ...]
    detail: str = ""


def _reason(blocked: _Blocked, waits: Mapping[int, _Blocked], known: set[int]) -> _Reason:
    """Return why a collective is blocked, and the ranks at fault."""
    if blocked.missing:
        silent = tuple(rank for rank in blocked.missing if rank not in known)
        present = tuple(rank for rank in blocked.missing if rank in known)
        free = tuple(rank for rank in present if rank not in waits)
        if free:
            return _Reason(MISSING, free)
        if silent:
            return _Reason(NO_DUMP, silent)
        return _Reason(MISSING, present)
    forms: dict[tuple[str, str], list[int]] = {}
    for rank, entry in blocked.entries.items():
        forms.setdefault((entry.operation, entry.shapes), []).append(rank)
    operations = {operation for operation, _ in forms}
    usual = max(forms, key=lambda form: len(forms[form]))
    can_differ = operations <= {"all_to_all", "all_gather", "gather", "scatter", "all_to_allv", "alltoall_base"}
    if len(forms) > 1 and not can_differ:
        odd = tuple(sorted(rank for form, ranks in forms.items() if form != usual for rank in ranks))
        other = next(form for form in forms if form != usual)
        return _Reason(MISMATCH, odd, f"{' '.join(other)} in place of {' '.join(usual)}")
    late = tuple(sorted(rank for rank, entry in blocked.entries.items() if entry.state == SCHEDULED))
    everyone = len(late) in (0, len(blocked.entries))
    return _Reason(STUCK, blocked.waiting if everyone else late)
