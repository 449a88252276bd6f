"""Match nodes of an execution trace to calls of the profiler.

The two files may cover different parts of one run: an observer for one iteration, a profiler for forty. "Record
function id" names the same call in both. If the profiler did not write it, autograd's sequence numbers (or external
ids) tie calls of one name together, and the calls between two ties are matched in order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from trine.errors import TraceError
from trine.workload.pytorch.execution_trace import CallNode
from trine.workload.pytorch.kineto import Kineto

#: Minimum share of matching calls; calls in a row that must agree after a difference; calls searched ahead.
_MIN_SHARE, _RUN, _LOOKAHEAD = 0.9, 3, 48
#: Limits of the search for the shift between numbers: names, nodes per name, calls per name.
_RARE, _ASKED, _VOTES = 50, 20, 5000


def join(kineto: Kineto, nodes: list[CallNode], path: Path) -> tuple[dict[int, int], str]:
    """Return node id -> index of its profiler call, and the method of matching; ``path``: the execution trace.

    Raises TraceError if the names of the calls disagree, or if the two files have no part of the run in common.
    """
    by_record = {number: i for i, op in enumerate(kineto.ops) if (number := op.number("Record function id"))}
    called = [node for node in nodes if node.rf_id and not node.name.startswith("[pytorch|profiler|")]
    joined, how = (_by_record(kineto, nodes, by_record, path), "record function ids") if by_record else ({}, "")
    if not joined:
        ties = _ties(kineto, called, "Sequence number", lambda node: node.seq_id)
        how = "autograd's sequence numbers"
        if not ties:
            ties, how = _ties(kineto, called, "External id", lambda node: node.rf_id), "external ids"
        joined = _by_thread(kineto, called, ties)
        if len(joined) < _MIN_SHARE * min(len(kineto.ops), len(called)):
            ordered = _by_thread(kineto, called, {})
            joined, how = (ordered, "") if len(ordered) > len(joined) else (joined, how)
        how = how if ties and how else "the order of calls on each thread"
    _check(kineto, called, joined, path)
    return joined, how


def _by_record(kineto: Kineto, nodes: list[CallNode], by_record: dict[int, int], path: Path) -> dict[int, int]:
    joined: dict[int, int] = {}
    taken: dict[int, int] = {}
    for node in nodes:
        index = by_record.get(node.rf_id)
        if not node.rf_id or index is None:
            continue
        if taken.setdefault(index, node.id) != node.id:
            raise TraceError(f"has the record function id of node {taken[index]}", file=path, field=f"node {node.id}")
        if kineto.ops[index].name != node.name:
            raise TraceError(
                f"is {kineto.ops[index].name[:100]!r}, but node {node.id} of the execution trace, {node.name[:100]!r}, "
                "has its record function id: the files are of different runs",
                file=kineto.path,
                field=f"traceEvents[{kineto.ops[index].event}]",
            )
        joined[node.id] = index
    return joined


def _ties(kineto: Kineto, nodes: list[CallNode], field: str, number_of: Callable[[CallNode], int]) -> dict[int, int]:
    """Return node id -> call for calls of one name whose numbers in ``field`` differ by one constant.

    The constant is 0 if the files cover the same steps, and another number if they cover different ones.
    """
    calls: dict[tuple[str, int], list[int]] = {}
    by_name: dict[str, list[int]] = {}
    for index, op in enumerate(kineto.ops):
        number = op.number(field)
        if number is not None:
            calls.setdefault((op.name, number), []).append(index)
            by_name.setdefault(op.name, []).append(number)
    numbered: dict[tuple[str, int], list[int]] = {}
    for node in nodes:
        if number_of(node) >= 0:
            numbered.setdefault((node.name, number_of(node)), []).append(node.id)
    votes, asked = Counter[int](), Counter[str]()
    rare = set(sorted(by_name, key=lambda name: (len(by_name[name]), name))[:_RARE])
    for (name, number), ids in numbered.items():
        if len(ids) == 1 and name in rare and asked[name] < _ASKED:
            asked[name] += 1
            votes.update({other - number for other in by_name[name][:_VOTES]})
    if not votes:
        return {}
    shift = max(votes, key=lambda each: (votes[each], each == 0, each))
    shift = 0 if votes[0] >= _MIN_SHARE * votes[shift] else shift
    found: dict[int, int] = {}
    for (name, number), ids in numbered.items():
        same = calls.get((name, number + shift), [])
        if len(same) == len(ids):
            found.update(zip(ids, same, strict=True))
    return found


def _by_thread(kineto: Kineto, nodes: list[CallNode], ties: dict[int, int]) -> dict[int, int]:
    """Match the calls of each thread of the execution trace with the calls of one profiler thread, in order."""
    threads: dict[str, list[int]] = {}
    for index, op in enumerate(kineto.ops):
        threads.setdefault(str(op.tid), []).append(index)
    sequences: dict[int, list[CallNode]] = {}
    for node in nodes:
        sequences.setdefault(node.tid, []).append(node)
    joined: dict[int, int] = {}
    for _, sequence in sorted(sequences.items(), key=lambda item: (-len(item[1]), item[0])):
        tied = Counter(str(kineto.ops[ties[node.id]].tid) for node in sequence if node.id in ties)
        names = [thread for thread in threads if thread in tied] or list(threads)
        matches = {thread: _match(kineto, threads[thread], sequence, ties) for thread in names}
        if matches:
            thread = max(matches, key=lambda name: len(matches[name]))
            joined.update(matches[thread])
            del threads[thread]
    return joined


def _match(kineto: Kineto, calls: list[int], sequence: list[CallNode], ties: dict[int, int]) -> dict[int, int]:
    """Match calls from tie to tie, backwards before the first tie and forwards after the last."""
    at = {index: place for place, index in enumerate(calls)}
    names = [kineto.ops[index].name for index in calls]
    wanted = [node.name for node in sequence]
    marks: list[tuple[int, int]] = []
    for place, node in enumerate(sequence):
        other = at.get(ties.get(node.id, -1))
        if other is not None and (not marks or other > marks[-1][1]):
            marks.append((place, other))
    pairs: list[tuple[int, int]] = []
    if marks:
        first, there = marks[0]
        before = _align(wanted[:first][::-1], names[max(0, there - 4 * first - _LOOKAHEAD) : there][::-1])
        pairs += [(first - 1 - a, there - 1 - b) for a, b in before]
    else:
        marks.append((-1, -1))
    for (place, other), (next_place, next_other) in zip(marks, [*marks[1:], (len(wanted), len(names))], strict=True):
        pairs += [(place, other)] if place >= 0 else []
        part = _align(wanted[place + 1 : next_place], names[other + 1 : next_other])
        pairs += [(place + 1 + a, other + 1 + b) for a, b in part]
    return {sequence[a].id: calls[b] for a, b in pairs}


def _align(wanted: Sequence[str], names: Sequence[str]) -> list[tuple[int, int]]:
    """Return places of equal names in both sequences, in order; calls missing from one sequence are skipped.

    After a difference, matching resumes at the nearest pair of places with a few agreeing calls in a row. It stops
    after too many differences: such sequences come from different runs.
    """
    pairs: list[tuple[int, int]] = []
    a = b = 0
    patience = 8 + len(wanted) // 10
    while a < len(wanted) and b < len(names) and patience:
        if wanted[a] == names[b]:
            pairs.append((a, b))
            a, b = a + 1, b + 1
            continue
        patience -= 1
        for distance in range(1, 2 * _LOOKAHEAD):
            steps = range(max(0, distance - _LOOKAHEAD), min(distance, _LOOKAHEAD) + 1)
            ahead = next((i for i in steps if _agree(wanted, a + i, names, b + distance - i)), None)
            if ahead is not None:
                a, b = a + ahead, b + distance - ahead
                break
        else:
            a, b = a + 1, b + 1
    return pairs


def _agree(wanted: Sequence[str], a: int, names: Sequence[str], b: int) -> bool:
    if a >= len(wanted) or b >= len(names) or wanted[a] != names[b]:
        return False
    run = min(_RUN, len(wanted) - a, len(names) - b)
    return wanted[a : a + run] == names[b : b + run]


def _check(kineto: Kineto, nodes: list[CallNode], joined: dict[int, int], path: Path) -> None:
    """Raise TraceError unless nearly all calls of the shorter file are in the other one."""
    if joined and len(joined) >= _MIN_SHARE * min(len(kineto.ops), len(nodes)):
        return
    known = {op.name for op in kineto.ops}
    strange = next((node for node in nodes if node.name not in known), None)
    where = f"{path.name}: only {len(joined)} of {len(nodes)} calls of the execution trace are in the profiler trace"
    if strange is None and joined:
        inside = [node for node in nodes if min(joined) <= node.id <= max(joined)]
        if len(joined) >= _MIN_SHARE * len(inside):
            return  # the profiler started or stopped within the observer's part: the common part agrees
    missed = strange or next(node for node in nodes if node.id not in joined)
    raise TraceError(
        f"{where}; the first that is not: node {missed.id}, {missed.name[:100]!r}: the files are of different runs "
        "(move the profiler trace to another folder to read it alone)",
        file=kineto.path,
    )
