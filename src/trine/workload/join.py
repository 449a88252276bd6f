"""The two halves of a PyTorch pair joined: which node of the execution trace is which call of the profiler."""

from __future__ import annotations

from pathlib import Path

from trine.errors import TraceError
from trine.workload.execution_trace import Node
from trine.workload.kineto import Kineto

#: How far a name is looked for when the two sequences of one thread differ, and the least share that must match.
_LOOKAHEAD, _LEAST_SHARE = 64, 0.9


def join(kineto: Kineto, nodes: list[Node], path: Path) -> tuple[dict[int, int], str]:
    """Return node id -> index of its profiler call, and how they were joined. ``path`` is the execution trace's.

    By "Record function id" where the profiler wrote it, else by the order of names on each thread. Raises TraceError if
    the two files do not belong together.
    """
    by_record = {number: i for i, op in enumerate(kineto.ops) if (number := op.number("Record function id"))}
    if by_record:
        joined, how = _by_record(kineto, nodes, by_record, path), "record function ids"
    else:
        joined, how = _by_order(kineto, nodes), "the order of calls on each thread"
    if len(joined) < _LEAST_SHARE * min(len(kineto.ops), sum(node.rf_id != 0 for node in nodes)) or not joined:
        raise TraceError(
            f"only {len(joined)} of {len(kineto.ops)} profiler calls are in the execution trace: the files are of "
            "different runs",
            file=kineto.path,
        )
    return joined, how


def _by_record(kineto: Kineto, nodes: list[Node], by_record: dict[int, int], path: Path) -> dict[int, int]:
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


def _by_order(kineto: Kineto, nodes: list[Node]) -> dict[int, int]:
    """Match threads by how well their sequences of names agree; each thread is used once."""
    threads: dict[str, list[int]] = {}
    for index, op in enumerate(kineto.ops):
        threads.setdefault(str(op.tid), []).append(index)
    sequences: dict[int, list[Node]] = {}
    for node in nodes:
        if node.rf_id:
            sequences.setdefault(node.tid, []).append(node)
    joined: dict[int, int] = {}
    free = dict(threads)
    for _, sequence in sorted(sequences.items(), key=lambda item: (-len(item[1]), item[0])):
        matches = {thread: _match(kineto, calls, sequence) for thread, calls in free.items()}
        if matches:
            thread = max(matches, key=lambda name: len(matches[name]))
            joined.update(matches[thread])
            del free[thread]
    return joined


def _match(kineto: Kineto, calls: list[int], sequence: list[Node]) -> dict[int, int]:
    matched: dict[int, int] = {}
    place = 0
    for node in sequence:
        for ahead in range(place, min(place + _LOOKAHEAD, len(calls))):
            if kineto.ops[calls[ahead]].name == node.name:
                matched[node.id] = calls[ahead]
                place = ahead + 1
                break
    return matched
