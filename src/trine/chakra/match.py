"""Whether the traces of all ranks fit together: every message is sent and received, collectives agree."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from trine.errors import TraceError
from trine.model.program import Collective, Recv, Send
from trine.chakra.trace import ChakraTrace


class _Call(NamedTuple):
    """What the members of a group must agree on, and the node that says it."""

    kind: str
    size_bytes: int
    root: int
    algorithm: str | None
    node: int


def check(trace: ChakraTrace) -> None:
    """Raise TraceError, naming files and nodes, at the first thing that does not fit."""
    _check_layers(trace)
    _check_messages(trace)
    _check_collectives(trace)


def _check_layers(trace: ChakraTrace) -> None:
    for rank, number in _first_ranks(trace):
        program = trace.programs[number]
        for step, node in zip(program.steps, program.nodes, strict=True):
            if step.label.layer >= len(trace.layer_names):
                raise TraceError(
                    f"node {node}: label names layer {step.label.layer}, there are {len(trace.layer_names)}",
                    file=trace.files[rank],
                )


def _check_messages(trace: ChakraTrace) -> None:
    """Sends and receives pair up one to one: by both ranks, tag, bytes, and order among those that are alike."""
    sent: dict[tuple[object, ...], tuple[int, int]] = {}
    received: dict[tuple[object, ...], tuple[int, int]] = {}
    for rank, number in enumerate(trace.program_of):
        program = trace.programs[number]
        for step, node in zip(program.steps, program.nodes, strict=True):
            if isinstance(step, Send):
                sent[rank, step.peer.position, step.tag] = rank, node
            elif isinstance(step, Recv):
                received[step.peer.position, rank, step.tag] = rank, node
    for ours, theirs, verb, other in (
        (sent, received, "sends", "has no receive for it"),
        (received, sent, "receives", "does not send it"),
    ):
        for key, (rank, node) in ours.items():
            if key in theirs:
                continue
            peer = key[1] if rank == key[0] else key[0]
            tag, size, turn = key[2]  # type: ignore[misc]
            near = _nearest(key, theirs)
            raise TraceError(
                f"node {node}: rank {rank} {verb} {size} bytes under tag {tag} ({turn + 1}. such message), but rank "
                f"{peer} {other}{near}",
                file=trace.files[rank],
            )


def _nearest(key: tuple[object, ...], others: dict[tuple[object, ...], tuple[int, int]]) -> str:
    """A message between the same ranks that is nearly the one that is missing."""
    ends, wanted = key[:2], key[2][0]  # type: ignore[index]
    alike = [(other[2], node) for other, (_, node) in others.items() if other[:2] == ends]
    same = next(((tag, node) for tag, node in alike if tag[0] == wanted), None)  # type: ignore[index]
    if same is None:
        return ""
    return f"; its node {same[1]} has {same[0][1]} bytes under this tag"  # type: ignore[index]


def _check_collectives(trace: ChakraTrace) -> None:
    calls = [_calls(trace, number) for number in range(len(trace.programs))]
    for axis, ranks in trace.groups.items():
        first = calls[trace.program_of[ranks[0]]].get(axis, [])
        for rank in ranks[1:]:
            mine = calls[trace.program_of[rank]].get(axis, [])
            if mine is first:
                continue
            for turn, (wanted, call) in enumerate(zip(first, mine, strict=False)):
                if wanted[:-1] != call[:-1]:
                    raise TraceError(
                        f"node {call.node}: collective {turn + 1} of group {_shown(ranks)} is {_said(call)} on rank "
                        f"{rank}, but {_said(wanted)} on rank {ranks[0]} (node {wanted.node})",
                        file=trace.files[rank],
                    )
            if len(mine) != len(first):
                raise TraceError(
                    f"rank {rank} has {len(mine)} collectives of group {_shown(ranks)}, but rank {ranks[0]} has "
                    f"{len(first)}",
                    file=trace.files[rank],
                )


def _calls(trace: ChakraTrace, number: int) -> dict[str, list[_Call]]:
    """The collectives of one program, by group."""
    found: dict[str, list[_Call]] = defaultdict(list)
    program = trace.programs[number]
    for step, node in zip(program.steps, program.nodes, strict=True):
        if isinstance(step, Collective):
            found[step.axis].append(_Call(step.kind, step.size_bytes, step.root, step.algorithm, node))
    return dict(found)


def _first_ranks(trace: ChakraTrace) -> Iterator[tuple[int, int]]:
    """Each program with the first rank that runs it."""
    for number in range(len(trace.programs)):
        yield trace.program_of.index(number), number


def _said(call: _Call) -> str:
    root = f" from {call.root}" if call.root >= 0 else ""
    by = f" by {call.algorithm}" if call.algorithm else ""
    return f"{call.kind} of {call.size_bytes} bytes{root}{by}"


def _shown(ranks: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, ranks[:8]))}{', ...' if len(ranks) > 8 else ''}]"
