"""Small traces of the PyTorch profiler and dumps of its flight recorder, for tests of measured runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Event = dict[str, Any]


def kernel(
    name: str, start_us: float, duration_us: float, *, stream: int = 7, correlation: int = 0, **args: Any
) -> Event:
    """Return a kernel on the GPU."""
    return {
        "ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": start_us, "dur": duration_us,
        "args": {"stream": stream, "correlation": correlation, **args},
    }  # fmt: skip


def launch(start_us: float, duration_us: float, correlation: int, name: str = "cudaLaunchKernel") -> Event:
    """Return a call of the CUDA runtime on the main thread."""
    return {
        "ph": "X", "cat": "cuda_runtime", "name": name, "pid": 1, "tid": 1, "ts": start_us, "dur": duration_us,
        "args": {"correlation": correlation},
    }  # fmt: skip


def call(name: str, start_us: float, duration_us: float, category: str = "cpu_op", **args: Any) -> Event:
    """Return a call of an operator on the main thread."""
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 1,
        "tid": 1,
        "ts": start_us,
        "dur": duration_us,
        "args": args,
    }


def all_reduce(
    start_us: float, end_us: float, correlation: int, ranks: Sequence[int], *, group: str = "0", elements: int = 1024
) -> Event:
    """Return the kernel of an all-reduce with the arguments that PyTorch records."""
    return kernel(
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", start_us, end_us - start_us,
        stream=20, correlation=correlation, **{
            "Collective name": "allreduce", "dtype": "Float", "In msg nelems": elements, "Out msg nelems": elements,
            "Group size": len(ranks), "Process Group Name": group, "Process Group Ranks": str(list(ranks)),
        },
    )  # fmt: skip


def trace(rank: int, world_size: int, events: Sequence[Event], **header: Any) -> dict[str, Any]:
    """Return the trace of a rank."""
    return {
        "schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world_size},
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}], **header, "traceEvents": list(events),
    }  # fmt: skip


def two_ranks(late_us: float = 40.0, clock_us: float = 0.0) -> list[dict[str, Any]]:
    """Return two ranks with three rounds of a kernel and an all-reduce; rank 1's kernels take ``late_us`` longer."""
    ranks = []
    for rank in range(2):
        offset = 1000.0 + (clock_us if rank else 0.0)
        events = []
        for number in range(3):
            begin = offset + number * (160 + late_us)
            length = 100 + (late_us if rank else 0)
            first, second = 2 * number + 1, 2 * number + 2
            events += [launch(offset - 60 + 5 * first, 5, first), launch(offset - 60 + 5 * second, 5, second)]
            events.append(kernel("gemm", begin, length, correlation=first, grid=[8, 1, 1]))
            events.append(all_reduce(begin + length, begin + 150 + late_us, second, (0, 1)))
        ranks.append(trace(rank, 2, events))
    return ranks


def entry(number: int, state: str = "completed", *, group: str = "0", operation: str = "all_reduce",
          shape: Sequence[int] = (8,), created_ns: int = 0) -> dict[str, Any]:  # fmt: skip
    """Return an entry of a flight recorder's dump."""
    return {
        "record_id": number, "pg_id": 0, "process_group": [group, "default_pg"], "collective_seq_id": number,
        "p2p_seq_id": 0, "op_id": number, "profiling_name": f"nccl:{operation}", "time_created_ns": created_ns,
        "input_sizes": [list(shape)], "input_dtypes": ["Float"], "output_sizes": [list(shape)],
        "output_dtypes": ["Float"], "state": state, "time_discovered_started_ns": 0,
        "time_discovered_completed_ns": 0, "retired": False, "timeout_ms": 600000, "is_p2p": False,
    }  # fmt: skip


def dump(entries: Sequence[dict[str, Any]], groups: dict[str, str] | None = None) -> dict[str, Any]:
    """Return a dump; ``groups``: ranks of each process group, as text."""
    config = {}
    for name, ranks in (groups or {"0": "[0, 1, 2, 3]"}).items():
        config[name] = {"name": name, "desc": "default_pg", "ranks": ranks}
    return {"version": "2.10", "comm_lib_version": "2.27.5", "pg_config": config, "pg_status": {}, "entries": entries}


def write(folder: Path, contents: Sequence[dict[str, Any]], name: str = "rank{}.json") -> Path:
    """Write one file per rank."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, content in enumerate(contents):
        (folder / name.format(rank)).write_text(json.dumps(content))
    return folder
