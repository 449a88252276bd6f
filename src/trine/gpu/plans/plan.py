"""Program of each GPU's thread blocks for a collective, from an MSCCL++ or MSCCL plan. Frozen data.

Chunks are the plan's unit of size; their bytes follow from the message (``trine.gpu.plans``). Every reference
is resolved: an operand names its rank and buffer, a signal its receiving peer.
"""

from __future__ import annotations

from dataclasses import dataclass

from trine.errors import InputError

INPUT, OUTPUT, SCRATCH, FIFO = "input", "output", "scratch", "fifo"
BUFFERS = (INPUT, OUTPUT, SCRATCH)
MEMORY, PORT, SWITCH, LOCAL = "memory", "port", "switch", "local"

#: Actions of operations; each operation also keeps its name in the file. sync: all threads of the block meet. barrier:
#: thread blocks of one GPU meet. signal and wait: of connections. flush: wait until all puts through ports have left.
#: acquire and release: of semaphores of one GPU. pairs: source i is copied to destination i. reduce: the sum of all
#: sources is written to all destinations (with one source, a copy to many). pipeline: a loop over parts of its
#: operations' ranges.
SYNC, BARRIER, SIGNAL, WAIT, FLUSH = "sync", "barrier", "signal", "wait", "flush"
ACQUIRE, RELEASE, PIPELINE, PAIRS, REDUCE = "acquire", "release", "pipeline", "pairs", "reduce"


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelOperand:
    """``count`` chunks from chunk ``index`` on, in one buffer of one rank.

    ``rank``: the buffer's owner; -1 for the buffers of all members of multicast group ``group`` (a load adds up, a
    store goes to all). ``via``: path to the buffer: ``local``, ``memory`` (loads and stores over the scale-up wires),
    ``port`` (a proxy thread and RDMA or DMA), ``switch`` (multimem). ``packet``: data with flags, twice the bytes;
    ``polls``: the reader waits for the flags. ``connection``: index into the GPU's connections, if the file names one.
    In buffer ``fifo`` (MSCCL) ``rank`` is the peer, and ``index`` the chunk in the file.
    """

    rank: int
    buffer: str
    index: int
    count: int
    via: str = LOCAL
    packet: bool = False
    polls: bool = False
    connection: int | None = None
    group: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelOp:
    """One operation of a thread block.

    ``action``: SYNC to REDUCE above; ``name``: the operation's name in the file. ``sources``, ``targets``: operands, in
    order. ``connections``: indices into the GPU's connections: of a signal, wait or flush; of a put through ports, one
    a target. ``relaxed``: the signal or wait orders execution, but does not publish memory. ``signals``: a put that
    signals behind its data; ``flushes``: and then waits until it has left. ``part``, ``num_parts``: the block does this
    part of the range, its group the rest. ``dependencies``: (thread block, operation) of the same GPU that must end
    before it. ``operations``: the body of a pipeline, which walks through ``num_chunks`` chunks, ``unit_bytes`` a
    round.
    """

    action: str
    name: str
    sources: tuple[KernelOperand, ...] = ()
    targets: tuple[KernelOperand, ...] = ()
    connections: tuple[int, ...] = ()
    relaxed: bool = False
    signals: bool = False
    flushes: bool = False
    part: int = 0
    num_parts: int = 1
    reduce_op: str | None = None
    barrier: int = -1
    num_blocks: int = 0
    semaphores: tuple[int, ...] = ()
    dependencies: tuple[tuple[int, int], ...] = ()
    unit_bytes: int = 0
    num_chunks: int = 0
    operations: tuple[KernelOp, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Connection:
    """One end of a connection between two ranks: the ``pair``-th of its kind between them, as counted at both ends.

    The peer's end waits for signals through this end. ``kind``: ``memory``, ``port`` or ``fifo`` (MSCCL: ``pair`` is
    its channel). ``local_buffer``, ``remote_buffer``: buffers bound to it by v1 plans.
    """

    kind: str
    peer: int
    pair: int
    local_buffer: str | None = None
    remote_buffer: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class MulticastGroup:
    """Ranks whose ``buffer`` is bound to one multicast address; several may have the same ranks."""

    ranks: tuple[int, ...]
    buffer: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteBuffer:
    """A buffer of another rank, accessible to a GPU by these kinds of connection."""

    rank: int
    buffer: str
    access: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ThreadBlock:
    """Operations in order. ``connections``, ``groups``: the file's lists for the block, resolved."""

    id: int
    operations: tuple[KernelOp, ...]
    connections: tuple[int, ...] = ()
    groups: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelGpu:
    """Program of one rank. ``semaphores``: initial values. ``chunk_groups``: of v1 plans, groups of equal size."""

    rank: int
    input_chunks: int
    output_chunks: int
    scratch_chunks: int
    blocks: tuple[ThreadBlock, ...]
    connections: tuple[Connection, ...] = ()
    groups: tuple[int, ...] = ()
    semaphores: tuple[int, ...] = ()
    chunk_groups: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelPlan:
    """One collective for one number of ranks.

    ``collective``: trine's name of it. ``format``: ``mscclpp-1``, ``mscclpp-2`` or ``msccl``. ``protocol``: spelled as
    in the file (``Simple``, ``LL``, ``LL128``). ``max_bytes`` None: no limit. ``alignment``: of ranges, in bytes.
    ``chunks_of_size``: chunks in the message whose size nccl-tests prints. ``reuse_scratch``: scratch has a fixed size
    and is used in turns. ``double_scratch``: two halves, so that a run does not meet the packets of the run before.
    ``notes``: remarks on the file for the reader, one a line. ``is_proven``: False if it runs despite a failed proof.
    """

    name: str
    collective: str
    format: str
    protocol: str
    in_place: bool
    gpus: tuple[KernelGpu, ...]
    groups: tuple[MulticastGroup, ...] = ()
    threads_per_block: int | None = None
    reuse_scratch: bool = False
    double_scratch: bool = False
    alignment: int = 1
    min_bytes: int = 0
    max_bytes: int | None = None
    chunks_of_size: int = 0
    notes: tuple[str, ...] = ()
    file: str = ""
    is_proven: bool = True

    @property
    def num_ranks(self) -> int:
        return len(self.gpus)

    def fault(self, message: str, field: str | None = None) -> InputError:
        """Return an error that names the file, and a place in it."""
        return InputError(message, file=self.file, field=field)
