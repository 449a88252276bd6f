"""Names and moves of MSCCL++ plans in both generations, and of MSCCL's XML: docs/formats/mscclpp.md."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from trine.common.inputs import PRESETS
from trine.common.spec import load_mapping
from trine.gpu.plans import plan as ir


class OperandKind(NamedTuple):
    """Memory of an operand: ``local``, ``remote`` or ``switch``. packet: data with flags; polls: waits for them."""

    place: str
    packet: bool = False
    polls: bool = False


LOCAL, REMOTE, MULTICAST = OperandKind(ir.LOCAL), OperandKind("remote"), OperandKind(ir.SWITCH)
#: Packets: written to or sent from local memory, polled in local memory, written to a peer, and written to a group.
PACKET, POLLED = OperandKind(ir.LOCAL, packet=True), OperandKind(ir.LOCAL, packet=True, polls=True)
REMOTE_PACKET, MULTICAST_PACKET = OperandKind("remote", packet=True), OperandKind(ir.SWITCH, packet=True)


class Side(NamedTuple):
    """The sources or the targets of a move: the ``required`` ones, then any number of ``repeated`` ones."""

    required: tuple[OperandKind, ...] = ()
    repeated: OperandKind | None = None


class Move(NamedTuple):
    """An operation that moves data, and the file's names of the channels that it may go through."""

    action: str
    sources: Side
    targets: Side
    channels: tuple[str, ...] = ()

    @property
    def adds(self) -> bool:
        """Whether the operation adds up its sources."""
        return self.action == ir.REDUCE and (self.sources.repeated is not None or MULTICAST in self.sources.required)


class PlanVocabulary(NamedTuple):
    """Vocabulary of one generation.

    by_buffers: channels are identified by the buffers at both ends, and remote operands name a channel; else remote
    operands name a remote buffer. kinds: channel kinds by their names in the file. controls: operations without data.
    kind, peers, groups: keys of a GPU's channel. listed_kind, listed: keys of a thread block's channel. chunks: keys of
    the input's, output's and scratch's size. barrier_blocks: key of the thread blocks that meet.
    """

    format: str
    by_buffers: bool
    kinds: Mapping[str, str]
    moves: Mapping[str, Move]
    controls: tuple[str, ...]
    kind: str
    peers: str
    groups: str
    listed_kind: str
    listed: str
    chunks: tuple[str, str, str]
    barrier_blocks: str


#: Operations that signal, and whether they only order execution, without publishing memory.
SIGNALS = {
    "signal": (ir.SIGNAL, False),
    "rlxsignal": (ir.SIGNAL, True),
    "wait": (ir.WAIT, False),
    "rlxwait": (ir.WAIT, True),
    "flush": (ir.FLUSH, False),
}

#: Kinds of operands by their names in presets/formats/mscclpp.yaml.
_OPERANDS = {
    "local": LOCAL, "remote": REMOTE, "multicast": MULTICAST, "packet": PACKET, "polled": POLLED,
    "remote-packet": REMOTE_PACKET, "multicast-packet": MULTICAST_PACKET,
}  # fmt: skip


@cache
def vocabularies() -> tuple[PlanVocabulary, ...]:
    """Return the vocabularies of both generations, the older one first."""
    data: Any = load_mapping(PRESETS / "formats" / "mscclpp.yaml")
    result = []
    for format, words in data.items():
        channels = {"any": (*words["kinds"], "none")}
        moves = {
            name: Move(action, _side(sources), _side(targets), channels.get(through, tuple(through.split())))
            for name, (action, sources, targets, through) in words["moves"].items()
        }
        lists = {name: tuple(words[name]) for name in ("controls", "chunks")}
        result.append(PlanVocabulary(**{**words, **lists, "format": format, "moves": moves}))
    return tuple(result)


def _side(text: str) -> Side:
    *kinds, last = text.split()
    if last.endswith("*"):
        return Side(tuple(_OPERANDS[kind] for kind in kinds), _OPERANDS[last[:-1]])
    return Side(tuple(_OPERANDS[kind] for kind in (*kinds, last)))


#: Steps of MSCCL's XML: action, sources and targets, each the range named src or dst, or the FIFO from or to a peer.
STEPS: Mapping[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "s": (ir.PAIRS, ("src",), (ir.FIFO,)),
    "r": (ir.PAIRS, (ir.FIFO,), ("dst",)),
    "rcs": (ir.REDUCE, (ir.FIFO,), ("dst", ir.FIFO)),
    "rrc": (ir.REDUCE, (ir.FIFO, "src"), ("dst",)),
    "rrs": (ir.REDUCE, (ir.FIFO, "src"), (ir.FIFO,)),
    "rrcs": (ir.REDUCE, (ir.FIFO, "src"), ("dst", ir.FIFO)),
    "cpy": (ir.PAIRS, ("src",), ("dst",)),
    "re": (ir.REDUCE, ("src", "dst"), ("dst",)),
    "nop": (ir.SYNC, (), ()),
}
