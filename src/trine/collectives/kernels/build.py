"""Builds the GPU program of a collective."""

from __future__ import annotations

from trine.collectives.kernels.options import JOINT, SIMPLE, WAVEFRONTS, WORKGROUPS, KernelOptions
from trine.collectives.kernels.registry import KERNELS, READING, kernel_name, known_kernels, known_ops
from trine.collectives.options import AUTO
from trine.errors import InputError
from trine.gpu.program import GpuProgram

__all__ = ["ONESHOT_BYTES", "automatic", "build_kernel", "known_kernels", "known_ops"]

#: Up to this many bytes divided by the number of ranks all-reduce takes one step: where vLLM's custom all-reduce
#: changes over (csrc/custom_all_reduce.cuh: 512 KiB on 4 GPUs, 256 KiB on 8; 2 GPUs always).
ONESHOT_BYTES = 2 << 20


def build_kernel(
    op: str,
    num_ranks: int,
    size_bytes: int,
    *,
    algorithm: str = AUTO,
    workgroups: int = WORKGROUPS,
    wavefronts: int = WAVEFRONTS,
    protocol: str = SIMPLE,
    sync: str = "auto",
    waits: str = JOINT,
    line_bytes: int = 128,
    unroll: int = 0,
) -> GpuProgram:
    """Build the GPU program of a collective: one kernel a rank, ``workgroups`` workgroups each.

    Parameters
    ----------
    op: ``all_gather``, ``reduce_scatter``, ``all_reduce`` or ``all_to_all``.
    num_ranks: at least 2.
    size_bytes: payload as nccl-tests counts it: all_gather the output, reduce_scatter the input, all_reduce and
        all_to_all the buffer of a rank. Each rank's part is rounded up to whole cache lines.
    algorithm: one of :func:`known_kernels`, or ``auto`` (:func:`automatic`).
    workgroups, wavefronts: of a kernel, of a workgroup.
    protocol: ``simple`` (semaphores behind the data), ``ll`` (half of each line is data, the rest flags), ``ll128``
        (15/16).
    sync: whether ranks meet besides: ``start`` (before remote reads and writes), ``end`` (after them: nobody leaves
        while its memory is in use), ``both``, ``none``; ``auto``: what the algorithm usually does.
    waits: ``joint``: the signals of all peers add up on one semaphore, of which a workgroup takes all at once;
        ``single``: one semaphore for each peer, one wait after the other.
    line_bytes: a cache line of the GPU model. unroll: requests of a wavefront in flight, 0: what the GPU model says.

    Raises
    ------
    InputError: unknown op, algorithm, protocol, sync or waits, a number out of range, or a protocol with flags for an
        algorithm that reads from other ranks.
    """
    options = KernelOptions(
        op=op,
        num_ranks=num_ranks,
        size_bytes=size_bytes,
        workgroups=workgroups,
        wavefronts=wavefronts,
        protocol=protocol,
        sync=sync,
        waits=waits,
        line_bytes=line_bytes,
        unroll=unroll,
    )
    name = kernel_name(op, automatic(options) if algorithm == AUTO else algorithm)
    if options.flagged and name in READING:
        raise InputError(
            f"{name} reads from other ranks, and flags can only be waited for in the own memory: protocol "
            f"{protocol!r} needs one of {', '.join(a for a in known_kernels(op) if f'{op}/{a}' not in READING)}",
            field="protocol",
        )
    return KERNELS.get(name)(options)


def automatic(options: KernelOptions) -> str:
    """The algorithm that ``auto`` takes: a rule of thumb, not a search.

    all_gather and all_to_all put; reduce_scatter gets, with flags it puts; all_reduce takes one step for two ranks and
    up to ONESHOT_BYTES / ranks, else two. Raises InputError for an op that has no rule.
    """
    if options.op in ("all_gather", "all_to_all"):
        return "put"
    if options.op == "reduce_scatter":
        return "put" if options.flagged else "get"
    if options.op == "all_reduce":
        if options.num_ranks == 2 or options.size_bytes * options.num_ranks <= ONESHOT_BYTES:
            return "oneshot"
        return "twoshot-put" if options.flagged else "twoshot"
    known = known_kernels(options.op)
    if not known:
        kernel_name(options.op, AUTO)
    raise InputError(f"{options.op} needs an algorithm: {', '.join(known)}", field="algorithm")
