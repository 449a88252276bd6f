"""Whether the traces of all ranks fit together: every message is sent and received, collectives agree."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from trine.errors import TraceError
from trine.formats.chakra.trace import ChakraTrace
from trine.graph.program import Collective, Recv, Send


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


class _Message(NamedTuple):
    """Both ends and what tells alike messages apart: (tag, bytes, how many such messages came before)."""

    source: int
    target: int
    tag: tuple[int | str, ...]


#: message -> (rank, node) that sends or receives it
_Ends = dict[_Message, tuple[int, int]]


def _check_messages(trace: ChakraTrace) -> None:
    """Sends and receives pair up one to one."""
    sent: _Ends = {}
    received: _Ends = {}
    for rank, number in enumerate(trace.program_of):
        program = trace.programs[number]
        for step, node in zip(program.steps, program.nodes, strict=True):
            if isinstance(step, Send):
                sent[_Message(rank, step.peer.position, step.tag)] = rank, node
            elif isinstance(step, Recv):
                received[_Message(step.peer.position, rank, step.tag)] = rank, node
    for message in sent:
        if message not in received:
            raise _alone(trace, message, sent, received, "sends", "has no receive for it")
    for message in received:
        if message not in sent:
            raise _alone(trace, message, received, sent, "receives", "does not send it")


def _alone(trace: ChakraTrace, message: _Message, ours: _Ends, theirs: _Ends, verb: str, other: str) -> TraceError:
    """The error of a message with one end, and one between the same ranks that is nearly the other."""
    rank, node = ours[message]
    peer = message.target if rank == message.source else message.source
    tag, size, turn = message.tag
    near = next(((m.tag[1], n) for m, (_, n) in theirs.items() if m[:2] == message[:2] and m.tag[0] == tag), None)
    hint = "" if near is None else f"; its node {near[1]} has {near[0]} bytes under this tag"
    return TraceError(
        f"node {node}: rank {rank} {verb} {size} bytes under tag {tag} ({int(turn) + 1}. such message), but rank "
        f"{peer} {other}{hint}",
        file=trace.files[rank],
    )


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
