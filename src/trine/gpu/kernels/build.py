"""Registry and builder of GPU programs of collectives, by name "op/algorithm"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trine.collectives.options import AUTO
from trine.common.plugins import Registry
from trine.errors import InputError, nearest
from trine.gpu.kernels.moe.options import MOE, MoeOptions, is_low_latency
from trine.gpu.kernels.options import JOINT, KernelOptions
from trine.gpu.program import GpuProgram

#: A function in another file of this package, or an entry point "op/algorithm" of another package.
KernelBuilder = Callable[[KernelOptions], GpuProgram]

_HERE = "trine.gpu.kernels"

KERNELS: Registry[KernelBuilder] = Registry(
    "GPU kernel algorithm",
    "trine.kernels",
    {
        "all_gather/put": f"{_HERE}.direct:put",
        "all_gather/get": f"{_HERE}.direct:get",
        "all_gather/ring": f"{_HERE}.ring:put",
        "all_gather/ring-get": f"{_HERE}.ring:get",
        "all_gather/peer-put": f"{_HERE}.peers:peer_put",
        "all_gather/peer-get": f"{_HERE}.peers:peer_get",
        "all_gather/nvls": f"{_HERE}.direct:nvls",
        "all_gather/hierarchical": f"{_HERE}.hierarchical:all_gather",
        "reduce_scatter/get": f"{_HERE}.direct:get_and_reduce",
        "reduce_scatter/put": f"{_HERE}.direct:put_and_reduce",
        "reduce_scatter/ring": f"{_HERE}.ring:put",
        "reduce_scatter/ring-get": f"{_HERE}.ring:get",
        "reduce_scatter/nvls": f"{_HERE}.direct:nvls",
        "reduce_scatter/hierarchical": f"{_HERE}.hierarchical:reduce_scatter",
        "all_reduce/oneshot": f"{_HERE}.direct:put_and_reduce",
        "all_reduce/oneshot-get": f"{_HERE}.direct:get_and_reduce",
        "all_reduce/twoshot": f"{_HERE}.direct:all_reduce_twoshot",
        "all_reduce/twoshot-put": f"{_HERE}.direct:all_reduce_twoshot_put",
        "all_reduce/twoshot-get": f"{_HERE}.direct:all_reduce_twoshot_get",
        "all_reduce/ring": f"{_HERE}.ring:put",
        "all_reduce/ring-get": f"{_HERE}.ring:get",
        "all_reduce/nvls": f"{_HERE}.direct:nvls",
        "all_reduce/hierarchical": f"{_HERE}.hierarchical:all_reduce",
        "all_to_all/put": f"{_HERE}.direct:put",
        "all_to_all/get": f"{_HERE}.direct:get",
        "all_to_all/peer-put": f"{_HERE}.peers:peer_put",
        "all_to_all/peer-get": f"{_HERE}.peers:peer_get",
        "all_to_all/hierarchical": f"{_HERE}.hierarchical:all_to_all",
        "all_to_all_v/put": f"{_HERE}.peers:all_to_all_v_put",
        "broadcast/put": f"{_HERE}.rooted:root_put",
        "broadcast/get": f"{_HERE}.rooted:get_from_root",
        "broadcast/ring": f"{_HERE}.rooted:broadcast_ring",
        "broadcast/hierarchical": f"{_HERE}.rooted:broadcast_nodes",
        "reduce/get": f"{_HERE}.rooted:root_get",
        "reduce/ring": f"{_HERE}.rooted:reduce_ring",
        "reduce/hierarchical": f"{_HERE}.rooted:reduce_nodes",
        "gather/put": f"{_HERE}.rooted:gather_put",
        "gather/get": f"{_HERE}.rooted:root_get",
        "gather/hierarchical": f"{_HERE}.rooted:gather_nodes",
        "scatter/put": f"{_HERE}.rooted:root_put",
        "scatter/get": f"{_HERE}.rooted:get_from_root",
        "scatter/hierarchical": f"{_HERE}.rooted:scatter_nodes",
        "moe_dispatch/normal": f"{_HERE}.moe.nodes:dispatch",
        "moe_dispatch/low-latency": f"{_HERE}.moe.low_latency:dispatch",
        "moe_combine/normal": f"{_HERE}.moe.nodes:combine",
        "moe_combine/low-latency": f"{_HERE}.moe.low_latency:combine",
    },
)

#: Programs that read from other ranks. LL and LL128 cannot run them: a rank can only wait for flags in local memory.
READING = frozenset(
    name for name in KERNELS.built_in if name.endswith(("/get", "-get")) or name == "all_reduce/twoshot"
)

#: Programs with reduction and multicast in switches: only one of the readers would consume a line with flags.
SWITCHED = frozenset(name for name in KERNELS.built_in if name.endswith("/nvls"))

#: Multi-node programs with puts across NICs.
ACROSS = frozenset(name for name in KERNELS.built_in if name.endswith(("/hierarchical", "/low-latency", "/normal")))

#: Collectives with a root, which is rank 0.
ROOTED = ("broadcast", "reduce", "gather", "scatter")
#: Collectives that need more inputs than a size.
DETAILED = ("all_to_all_v", *MOE)
#: Collectives with built-in waits and signals.
_SETTLED = (*ROOTED, *DETAILED)

#: Programs without support for flags in lines.
UNFLAGGED = READING | SWITCHED | ACROSS | {name for name in KERNELS.built_in if name.partition("/")[0] in _SETTLED}

#: Names that stand for the fastest of several programs; the safest choice for any size comes first.
FAMILIES = {("all_reduce", "get"): ("twoshot-get", "oneshot-get"), ("all_reduce", "put"): ("twoshot-put", "oneshot")}


def known_ops() -> tuple[str, ...]:
    """Return the collectives that can be built as a GPU program."""
    return tuple(dict.fromkeys(name.partition("/")[0] for name in KERNELS.names()))


def known_kernels(op: str) -> tuple[str, ...]:
    """Return the algorithms of one collective; empty for an unknown collective."""
    return tuple(name.partition("/")[2] for name in KERNELS.names() if name.partition("/")[0] == op)


def has_kernel(op: str, algorithm: str) -> bool:
    """Return True if ``algorithm`` names a program of the collective, or several (FAMILIES)."""
    return algorithm in known_kernels(op) or (op, algorithm) in FAMILIES


def kernel_name(op: str, algorithm: str) -> str:
    """Return ``op/algorithm``; for a name of several programs, the first.

    Raises InputError: unknown collective or algorithm; names the nearest.
    """
    algorithms = known_kernels(op)
    if not algorithms:
        raise InputError(f"no GPU program for collective {op!r}{nearest(op, known_ops())}", field="op")
    algorithm = FAMILIES.get((op, algorithm), (algorithm,))[0]
    if algorithm not in algorithms:
        raise InputError(f"{op} has no GPU program {algorithm!r}{nearest(algorithm, algorithms)}", field="algorithm")
    return f"{op}/{algorithm}"


__all__ = ["ONESHOT_BYTES", "automatic", "build_kernel", "known_kernels", "known_ops"]

#: All-reduce takes one step up to this many bytes divided by the number of ranks: the threshold of vLLM's custom
#: all-reduce (csrc/custom_all_reduce.cuh: 512 KiB on 4 GPUs, 256 KiB on 8; 2 GPUs always take one step).
ONESHOT_BYTES = 2 << 20


def build_kernel(op: str, num_ranks: int, size_bytes: int, *, algorithm: str = AUTO, **options: Any) -> GpuProgram:
    """Build the GPU program of a collective: one kernel per rank.

    Parameters
    ----------
    op: ``all_gather``, ``reduce_scatter``, ``all_reduce``, ``all_to_all``, one of ROOTED, or one of DETAILED.
    num_ranks: at least 2.
    size_bytes: payload as nccl-tests counts it. Each rank's chunk is rounded up to whole cache lines.
    algorithm: one of :func:`known_kernels`, or ``auto`` (:func:`automatic`).
    options: further fields of :class:`trine.gpu.kernels.options.KernelOptions`: ``workgroups``, ``wavefronts``,
        ``protocol``, ``sync``, ``waits``, ``line_bytes``, ``unroll``, ``num_nodes``, ``matrix``, ``moe``.

    Raises
    ------
    InputError: unknown op, algorithm, protocol, sync or waits; a number out of range; a flagged protocol for an
        algorithm that reads from other ranks or reduces in switches.
    """
    return kernel_of(KernelOptions(op=op, num_ranks=num_ranks, size_bytes=size_bytes, **options), algorithm)


def kernel_of(options: KernelOptions, algorithm: str) -> GpuProgram:
    """Build the program of :func:`build_kernel` from its options."""
    op = options.op
    name = kernel_name(op, automatic(options) if algorithm == AUTO else algorithm)
    if options.flagged and name in SWITCHED:
        raise InputError(
            f"{name} goes through switches that add up and multicast whole lines, without flags in the lines: "
            f"protocol {options.protocol!r} needs another algorithm, or take protocol 'simple'",
            field="protocol",
        )
    for field, default in (("sync", "auto"), ("waits", JOINT)) if op in _SETTLED else ():
        if getattr(options, field) != default:
            raise InputError(f"programs of {op} wait as they need to: leave it at {default!r}", field=field)
    if options.flagged and op in _SETTLED:
        raise InputError(f"programs of {op} signal behind their data: take protocol 'simple'", field="protocol")
    if options.flagged and name in ACROSS:
        raise InputError(
            f"{name} puts bytes through NICs, which set no flags in lines: take protocol 'simple'", field="protocol"
        )
    if options.flagged and name in READING:
        algorithms = ", ".join(a for a in known_kernels(op) if f"{op}/{a}" not in UNFLAGGED)
        raise InputError(
            f"{name} reads from other ranks, and flags can only be waited for in the own memory: protocol "
            f"{options.protocol!r} needs one of {algorithms}",
            field="protocol",
        )
    return KERNELS.get(name)(options)


def automatic(options: KernelOptions) -> str:
    """Return the algorithm for ``auto``: a rule of thumb, not a search.

    Experts: low-latency up to 256 tokens, otherwise normal. Several nodes: hierarchical. One node: get for reduce and
    reduce_scatter (put with flags); all_reduce takes one step for two ranks and up to ONESHOT_BYTES / ranks,
    otherwise two; put for all others. Raises InputError for an op without a rule.
    """
    if options.op in MOE:
        return "low-latency" if is_low_latency(options.moe or MoeOptions()) else "normal"
    if options.num_nodes > 1 and has_kernel(options.op, "hierarchical"):
        return "hierarchical"
    if options.op in ("all_gather", "all_to_all", "all_to_all_v", "broadcast", "gather", "scatter"):
        return "put"
    if options.op == "reduce":
        return "get"
    if options.op == "reduce_scatter":
        return "put" if options.flagged else "get"
    if options.op == "all_reduce":
        if options.num_ranks == 2 or options.size_bytes * options.num_ranks <= ONESHOT_BYTES:
            return "oneshot"
        return "twoshot-put" if options.flagged else "twoshot"
    algorithms = known_kernels(options.op)
    if not algorithms:
        kernel_name(options.op, AUTO)
    raise InputError(f"{options.op} needs an algorithm: {', '.join(algorithms)}", field="algorithm")
