"""Find a distributed job's own communication in its trace, so that no recorded collective counts as compute.

A kernel is communication if a collective library's name is in its name, or if a communicating call launched it. The
bucket copies of ``DistributedDataParallel`` and FSDP belong to the recorded layout as well. The simulated layout
gets different collectives.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from trine.common.precision import ITEM_BYTES, TORCH_DTYPES, plain_name
from trine.graph.workload import RecordedCollective

#: Kernels of NCCL (``ncclKernel_``, ``ncclDevKernel_``), RCCL, MSCCL and MSCCL++, oneCCL, HCCL, NVSHMEM, PyTorch's
#: symmetric memory, one-node all-reduces of vLLM, AITER and TensorRT-LLM, Transformer Engine's user buffers, DeepEP.
#: All-reduces of a warp or a block of threads are compute, and so are kernels whose type parameters name one.
_KERNEL = re.compile(
    r"nccl|rccl|msccl|oneccl|hccl|xccl|\bccl::|nvshmem|userbuffers_|\b(deep_ep|ep::(inter|intra)node\w*)::"
    r"|^[^<(]*cross_device_reduce|^(?![^<(]*(warp|block))[^<(]*(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all)",
    re.IGNORECASE,
)
#: ``(anonymous namespace)`` in a kernel's name is no parameter.
_ANONYMOUS = "(anonymous namespace)"
#: Calls of torch.distributed (``c10d::allreduce_``), their annotations (``nccl:all_reduce``), recorders of both, and
#: operators of inference engines (``vllm::all_reduce``).
_CALL = re.compile(
    r"\w+::((in|out)place_)?(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all)\w*|"
    r"(_?c10d(_functional(_autograd)?)?|symm_mem|nccl|rccl|gloo|mpi|ucc|hccl|xccl|oneccl)::?\S.*|record_param_comms"
)
#: Copies of the recorded layout, by the calls and annotations of DDP's reducer and of FSDP 1 and 2.
_COPIES = (
    ("DDP's bucket copies", re.compile(r"torch(::|\.)distributed(::|\.ddp\.)reducer::.*")),
    ("FSDP's copies", re.compile(r"fsdp::.*|FSDP::(all_gather|post_backward_(reduce|accumulate)).*"
                                 r"|FullyShardedDataParallel\._(pre_|post_)?(unshard|backward_hook|reduce)\w*")),
)  # fmt: skip
_SCALING = ("aten::mul", "aten::mul_", "aten::div", "aten::div_")
#: TorchRec's calls that start and end an exchange, and the nodes of autograd that do so for gradients.
_EXCHANGE = re.compile(r"(All2All|AllToAll|AllGather|ReduceScatter|AllReduce)\w*_(Req|Wait)(Backward\d*)?")
_OPERATIONS = (
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "barrier", "send_recv", "send", "recv",
    "gather", "scatter", "reduce",
)  # fmt: skip
_ITEM_BYTES = {plain_name(name): int(ITEM_BYTES[dtype]) for name, dtype in TORCH_DTYPES.items()}
UNNAMED = "collective"
_MAX_SIZE = 2**48
T = TypeVar("T")


def is_communication_kernel(name: str) -> bool:
    """Return whether a kernel of this name is a collective's."""
    return _KERNEL.search(name.replace(_ANONYMOUS, "")) is not None


def is_communication(name: str) -> bool:
    """Return whether a call of this name communicates."""
    return _CALL.fullmatch(name) is not None


def is_exchange(name: str) -> bool:
    """Return whether a call does nothing but communicate: a collective, or TorchRec's start or end of one."""
    return is_communication(name) or _EXCHANGE.fullmatch(name.rpartition(": ")[2]) is not None


def layout_copies(name: str, parent: str = "") -> str | None:
    """Return the owner of the copies that a call inside ``parent`` makes; None for a call outside the layout.

    Autograd only adds gradients; a scaling inside ``AccumulateGrad`` is DDP's reducer, unnamed in older PyTorch.
    """
    if name in _SCALING and parent.endswith("AccumulateGrad"):
        return _COPIES[0][0]
    return next((owner for owner, pattern in _COPIES if pattern.fullmatch(name)), None)


def is_layout(name: str, parent: str = "") -> bool:
    """Return whether a call is the recorded layout's: a collective, or a copy for one."""
    return is_communication(name) or layout_copies(name, parent) is not None


def operation(name: str) -> str:
    """Return the collective that a call or kernel names: ``c10d::_allgather_base_`` -> ``all_gather``."""
    if re.search(r"\b(deep_)?ep::", name):
        return "all_to_all"
    flat = re.sub(r"[^a-z0-9]", "", name.lower()).replace("all2all", "alltoall")
    return next((each for each in _OPERATIONS if each.replace("_", "") in flat), UNNAMED)


def message_bytes(args: Mapping[str, object]) -> int | None:
    """Return the bytes of the larger side of a collective from the profiler's arguments of its call or kernel."""
    elements = [args.get(key) for key in ("In msg nelems", "Out msg nelems")]
    shapes, types = args.get("Input Dims"), args.get("Input type")
    if isinstance(args.get("dtype"), str) and any(isinstance(n, int) for n in elements):
        shapes, types = [[n] for n in elements], [args["dtype"]] * 2
    if not isinstance(shapes, list) or not isinstance(types, list):
        return None
    sizes = []
    for shape, type_ in zip(shapes, types, strict=False):
        if not isinstance(type_, str) or not isinstance(shape, list) or not shape:
            continue
        if all(isinstance(n, int) and 0 <= n < _MAX_SIZE for n in shape):
            sizes.append(math.prod(shape) * _item_bytes(type_))
    return max((size for size in sizes if size < _MAX_SIZE), default=None)


def _item_bytes(dtype: str) -> int:
    return _ITEM_BYTES.get(plain_name(dtype), 1)


def total(rows: Sequence[tuple[str, int | None, int]]) -> tuple[RecordedCollective, ...]:
    """Add up (operation, bytes, picoseconds) of single collectives, the longest operation first."""
    rows_by_name: dict[str, list[tuple[int | None, int]]] = {}
    for name, size, time in rows:
        rows_by_name.setdefault(name, []).append((size, time))
    collectives = []
    for name, members in rows_by_name.items():
        is_partly_unknown = any(size is None for size, _ in members)
        time_ps = sum(time for _, time in members)
        collectives.append(
            RecordedCollective(
                operation=name,
                count=len(members),
                size_bytes=None if is_partly_unknown else sum(size or 0 for size, _ in members),
                time_ps=time_ps,
            )
        )
    return tuple(sorted(collectives, key=lambda row: (-row.time_ps, row.operation)))


def from_parents(parents: Sequence[int | None], root: T, value: Callable[[int, T], T]) -> list[T]:
    """Return ``value(index, value of its parent)`` of each call; ``root`` stands for the parent of an outermost one.

    Calls are in no order, so each is reached by climbing to the first ancestor that is known.
    """
    values: dict[int, T] = {}
    for start in range(len(parents)):
        path: list[int] = []
        index: int | None = start
        while index is not None and index not in values:
            path.append(index)
            index = parents[index]
        above = root if index is None else values[index]
        for inner in reversed(path):
            above = values[inner] = value(inner, above)
    return [values[index] for index in range(len(parents))]
