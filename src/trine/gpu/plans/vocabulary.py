"""Names and moves of MSCCL++ plans in both generations, and of MSCCL's XML: docs/formats/mscclpp.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

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

#: v0.5 and v0.6 use sm, proxy and nvls for today's memory, port and switch
_KINDS_V1 = {"memory": ir.MEMORY, "port": ir.PORT, "nvls": ir.SWITCH, "sm": ir.MEMORY, "proxy": ir.PORT}
_ANY = (*_KINDS_V1, "none")

#: April 2024 to v0.7.0, July 2025
V1 = PlanVocabulary(
    format="mscclpp-1",
    by_buffers=True,
    kinds=_KINDS_V1,
    moves={
        "put": Move(ir.PAIRS, Side(repeated=LOCAL), Side(repeated=REMOTE), _ANY),
        "pws": Move(ir.PAIRS, Side(repeated=LOCAL), Side(repeated=REMOTE), _ANY),
        "pwsf": Move(ir.PAIRS, Side(repeated=LOCAL), Side(repeated=REMOTE), _ANY),
        "get": Move(ir.PAIRS, Side(repeated=REMOTE), Side(repeated=LOCAL), _ANY),
        "copy": Move(ir.PAIRS, Side((LOCAL,)), Side((LOCAL,)), _ANY),
        "re": Move(ir.REDUCE, Side((LOCAL,), LOCAL), Side((LOCAL,)), _ANY),
        "rs": Move(ir.REDUCE, Side((LOCAL,), LOCAL), Side((LOCAL,), REMOTE), _ANY),
        "rrc": Move(ir.REDUCE, Side((LOCAL,), REMOTE), Side((LOCAL,)), _ANY),
        "rrcs": Move(ir.REDUCE, Side((LOCAL,), REMOTE), Side((LOCAL,), REMOTE), _ANY),
        "ppkt": Move(ir.PAIRS, Side(repeated=LOCAL), Side(repeated=REMOTE_PACKET), _ANY),
        "rspkt": Move(ir.REDUCE, Side((LOCAL,), POLLED), Side((LOCAL,), REMOTE_PACKET), _ANY),
        "rpkt": Move(ir.REDUCE, Side((LOCAL,), POLLED), Side((LOCAL,)), _ANY),
        "cpkt": Move(ir.PAIRS, Side((POLLED,)), Side((LOCAL,)), _ANY),
        "tpkt": Move(ir.PAIRS, Side((LOCAL,)), Side((PACKET,)), _ANY),
        "glres": Move(ir.REDUCE, Side((MULTICAST,)), Side((MULTICAST,)), ("nvls",)),
    },
    controls=("signal", "wait", "flush", "nop", "barrier"),
    kind="type",
    peers="connectedTo",
    groups="rankGroups",
    listed_kind="ctype",
    listed="cids",
    chunks=("inputChunks", "outputChunks", "scratchChunks"),
    barrier_blocks="nthread_blocks",
)

#: v0.8.0, October 2025, to 1f5f065, August 2026
V2 = PlanVocabulary(
    format="mscclpp-2",
    by_buffers=False,
    kinds={kind: kind for kind in (ir.MEMORY, ir.PORT, ir.SWITCH)},
    moves={
        "put": Move(ir.PAIRS, Side((LOCAL,), LOCAL), Side((REMOTE,), REMOTE), (ir.MEMORY, ir.PORT)),
        "pws": Move(ir.PAIRS, Side((LOCAL,), LOCAL), Side((REMOTE,), REMOTE), (ir.PORT,)),
        "pwsf": Move(ir.PAIRS, Side((LOCAL,), LOCAL), Side((REMOTE,), REMOTE), (ir.PORT,)),
        "get": Move(ir.PAIRS, Side((REMOTE,), REMOTE), Side((LOCAL,), LOCAL), (ir.MEMORY,)),
        "copy": Move(ir.PAIRS, Side((LOCAL,)), Side((LOCAL,))),
        "re": Move(ir.REDUCE, Side((LOCAL, LOCAL), LOCAL), Side((LOCAL,))),
        "res": Move(ir.REDUCE, Side((LOCAL, LOCAL), LOCAL), Side((LOCAL,), REMOTE), (ir.MEMORY,)),
        "rre": Move(ir.REDUCE, Side((LOCAL,), REMOTE), Side((LOCAL,)), (ir.MEMORY,)),
        "rres": Move(ir.REDUCE, Side((LOCAL,), REMOTE), Side((LOCAL,), REMOTE), (ir.MEMORY,)),
        "ppkt": Move(ir.PAIRS, Side((LOCAL,), LOCAL), Side((REMOTE_PACKET,), REMOTE_PACKET), (ir.MEMORY, ir.PORT)),
        "rppkt": Move(ir.REDUCE, Side((POLLED,)), Side((REMOTE_PACKET,), REMOTE_PACKET), (ir.MEMORY, ir.PORT)),
        "respkt": Move(ir.REDUCE, Side((LOCAL, POLLED), POLLED), Side((LOCAL,), REMOTE_PACKET), (ir.MEMORY,)),
        "repkt": Move(ir.REDUCE, Side((LOCAL, POLLED), POLLED), Side((LOCAL,))),
        "recpkt": Move(ir.REDUCE, Side((LOCAL, POLLED), POLLED), Side((LOCAL, PACKET))),
        "recspkt": Move(ir.REDUCE, Side((LOCAL, POLLED), POLLED), Side((LOCAL, PACKET), REMOTE_PACKET), (ir.MEMORY,)),
        "cpkt": Move(ir.PAIRS, Side((LOCAL,)), Side((PACKET,))),
        "upkt": Move(ir.PAIRS, Side((POLLED,)), Side((LOCAL,))),
        "glres": Move(ir.REDUCE, Side((MULTICAST,)), Side((MULTICAST,)), (ir.SWITCH,)),
        "gstore": Move(ir.REDUCE, Side((LOCAL,)), Side((MULTICAST,)), (ir.SWITCH,)),
        "gstorepkt": Move(ir.REDUCE, Side((LOCAL,)), Side((MULTICAST_PACKET,)), (ir.SWITCH,)),
    },
    controls=(*SIGNALS, "nop", "barrier", "sem_acquire", "sem_release", "pipeline"),
    kind="channel_type",
    peers="connected_to",
    groups="rank_groups",
    listed_kind="channel_type",
    listed="channel_ids",
    chunks=("input_chunks", "output_chunks", "scratch_chunks"),
    barrier_blocks="num_threadblocks",
)

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
