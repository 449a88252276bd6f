"""Which GPU programs a collective can be built as: "op/algorithm" -> function that builds it."""

from __future__ import annotations

from collections.abc import Callable

from trine.collectives.kernels.options import KernelOptions
from trine.errors import InputError, nearest
from trine.gpu.program import GpuProgram
from trine.plugins import Registry

#: A function of its own file, or an entry point "op/algorithm" of another package.
KernelBuilder = Callable[[KernelOptions], GpuProgram]

_HERE = "trine.collectives.kernels"

KERNELS: Registry[KernelBuilder] = Registry(
    "GPU kernel algorithm",
    "trine.kernels",
    {
        "all_gather/put": f"{_HERE}.direct:all_gather_put",
        "all_gather/get": f"{_HERE}.direct:all_gather_get",
        "all_gather/ring": f"{_HERE}.ring:all_gather",
        "all_gather/ring-get": f"{_HERE}.ring:all_gather_get",
        "all_gather/peer-put": f"{_HERE}.peers:all_gather_put",
        "all_gather/peer-get": f"{_HERE}.peers:all_gather_get",
        "reduce_scatter/get": f"{_HERE}.direct:reduce_scatter_get",
        "reduce_scatter/put": f"{_HERE}.direct:reduce_scatter_put",
        "reduce_scatter/ring": f"{_HERE}.ring:reduce_scatter",
        "reduce_scatter/ring-get": f"{_HERE}.ring:reduce_scatter_get",
        "all_reduce/oneshot": f"{_HERE}.allreduce:oneshot",
        "all_reduce/oneshot-get": f"{_HERE}.allreduce:oneshot_get",
        "all_reduce/twoshot": f"{_HERE}.allreduce:twoshot",
        "all_reduce/twoshot-put": f"{_HERE}.allreduce:twoshot_put",
        "all_reduce/twoshot-get": f"{_HERE}.allreduce:twoshot_get",
        "all_reduce/ring": f"{_HERE}.ring:all_reduce",
        "all_reduce/ring-get": f"{_HERE}.ring:all_reduce_get",
        "all_to_all/put": f"{_HERE}.direct:all_to_all_put",
        "all_to_all/get": f"{_HERE}.direct:all_to_all_get",
        "all_to_all/peer-put": f"{_HERE}.peers:all_to_all_put",
        "all_to_all/peer-get": f"{_HERE}.peers:all_to_all_get",
    },
)

#: Those that read from other ranks: a flag can only be waited for where it lies, so LL and LL128 cannot run them.
READING = frozenset(
    name for name in KERNELS.built_in if name.endswith(("/get", "-get")) or name == "all_reduce/twoshot"
)


#: Names of several programs, of which the fastest is meant; the one that is never hopeless first.
FAMILIES = {
    ("all_reduce", "get"): ("twoshot-get", "oneshot-get"),
    ("all_reduce", "put"): ("twoshot-put", "oneshot"),
}


def known_ops() -> tuple[str, ...]:
    """The collectives that can be built as a GPU program."""
    return tuple(dict.fromkeys(name.partition("/")[0] for name in KERNELS.names()))


def known_kernels(op: str) -> tuple[str, ...]:
    """The algorithms of one collective; none if it has none."""
    return tuple(name.partition("/")[2] for name in KERNELS.names() if name.partition("/")[0] == op)


def has_kernel(op: str, algorithm: str) -> bool:
    """Whether ``algorithm`` names a program of the collective, or several (FAMILIES)."""
    return algorithm in known_kernels(op) or (op, algorithm) in FAMILIES


def kernel_name(op: str, algorithm: str) -> str:
    """``op/algorithm``; of a name of several programs, the first.

    Raises
    ------
    InputError: unknown collective or algorithm; names the nearest.
    """
    known = known_kernels(op)
    if not known:
        raise InputError(f"no GPU program for collective {op!r}{nearest(op, known_ops())}", field="op")
    algorithm = FAMILIES.get((op, algorithm), (algorithm,))[0]
    if algorithm not in known:
        raise InputError(f"{op} has no GPU program {algorithm!r}{nearest(algorithm, known)}", field="algorithm")
    return f"{op}/{algorithm}"
