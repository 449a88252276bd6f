"""Published communication kernels on a machine: their programs by name, and the times of rounds that follow each other.

The kernels follow their source code (:mod:`trine.gpu.kernels.published`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from trine.cluster import Cluster, load_cluster
from trine.common.arrays import Int64
from trine.gpu.kernels import published as kernels
from trine.gpu.kernels.build import build_kernel
from trine.gpu.model import GpuModel
from trine.gpu.model.files import gpu_model_of
from trine.gpu.program import COLUMNS, GpuProgram
from trine.gpu.run import GpuRunOptions, run_gpus
from trine.gpu.system import kernel_tasks
from trine.graph.assembler import csr

#: Larger kernels run only once, since L2 contents left by an earlier round do not change their time.
WARM_BYTES = 8 << 20

Build = Callable[[int, int], GpuProgram]


def _loads(algorithm: str) -> Build:
    """Return FBGEMM's all-reduce, assumed to use 36 blocks of 512 threads and to read from all ranks at once."""

    def build(size_bytes: int, ranks: int) -> GpuProgram:
        return build_kernel(
            "all_reduce", ranks, size_bytes, algorithm=algorithm, workgroups=36, wavefronts=16, sync="both", unroll=32
        )

    return build


def _vllm(size_bytes: int, ranks: int) -> GpuProgram:
    """Build vLLM's one- or two-stage all-reduce, chosen as in allreduce in csrc/custom_all_reduce.cuh."""
    one_stage_below = {2: size_bytes + 1, 4: 512 << 10}.get(ranks, 256 << 10)
    kernel = kernels.reads_between_meetings if size_bytes < one_stage_below else kernels.reads_in_two_stages
    return kernel(size_bytes, ranks)


def _tensorrt_llm(size_bytes: int, ranks: int) -> GpuProgram:
    """Build TensorRT-LLM's one- or two-step all-reduce, chosen as in sglang's trt_reduce_internal.cuh."""
    oneshot_below = {2: size_bytes + 1, 4: 1 << 20}.get(ranks, 512 << 10)
    return (kernels.oneshot_copied if size_bytes < oneshot_below else kernels.twoshot_copied)(size_bytes, ranks)


#: Builders of the measured programs by name: (payload, ranks) -> program. Of several, the library takes the fastest.
PROGRAMS: Mapping[str, Build] = {
    "put": lambda size, ranks: kernels.copy_kernel("put", size),
    "get": lambda size, ranks: kernels.copy_kernel("get", size),
    "packets": lambda size, ranks: kernels.copy_kernel("packets", size),
    "one-shot packets": lambda size, ranks: kernels.oneshot_packets(size, ranks),
    "allreduce6": lambda size, ranks: kernels.twoshot_packets(size, ranks, blocks=21, code=kernels.ALLREDUCE_6),
    "NVLS packets, 8 blocks": lambda size, ranks: kernels.nvls_packets(size, ranks, blocks=8),
    "NVLS packets, 16 blocks": lambda size, ranks: kernels.nvls_packets(size, ranks, blocks=16),
    "two-shot packets, 28 blocks": lambda size, ranks: kernels.twoshot_packets(size, ranks, blocks=28),
    "two-shot packets, 56 blocks": lambda size, ranks: kernels.twoshot_packets(size, ranks, blocks=56),
    "two-shot between meetings": lambda size, ranks: kernels.twoshot_between_meetings(size, ranks),
    "NVLS between meetings": lambda size, ranks: kernels.nvls_between_meetings(size, ranks),
    "copied": lambda size, ranks: _tensorrt_llm(size, ranks),
    "two-shot zero copy, 32 blocks": lambda size, ranks: kernels.twoshot_zero_copy(size, ranks, blocks=32),
    "two-shot zero copy, 64 blocks": lambda size, ranks: kernels.twoshot_zero_copy(size, ranks, blocks=64),
    "one-stage reads": lambda size, ranks: kernels.reads_between_meetings(size, ranks),
    "two-stage reads": lambda size, ranks: kernels.reads_in_two_stages(size, ranks),
    "one step of loads": _loads("oneshot-get"),
    "two steps of loads": _loads("twoshot-get"),
    "reads": lambda size, ranks: _vllm(size, ranks),
    "oneshot": lambda size, ranks: build_kernel("all_reduce", ranks, size, algorithm="oneshot", bookkeeping=True),
    "twoshot": lambda size, ranks: build_kernel("all_reduce", ranks, size, algorithm="twoshot", bookkeeping=True),
}


@cache
def program_times_ps(program: str, cluster: str, gpus: int, size_bytes: int) -> tuple[int, ...]:
    """Return the time of one of PROGRAMS on the first ``gpus`` GPUs of a preset, ps: two rounds, or one if large."""
    machine = load_cluster(cluster)
    group = machine.gpus[:gpus]
    built = PROGRAMS[program](size_bytes, gpus)
    rounds = 2 if size_bytes <= WARM_BYTES else 1
    return round_times_ps(built, machine, group, gpu_model_of(machine, group), rounds)


def round_times_ps(
    program: GpuProgram, cluster: Cluster, group: Sequence[int], model: GpuModel, rounds: int = 2
) -> tuple[int, ...]:
    """Return the time from the end of each round to the end of the next, ps.

    On each GPU a kernel starts when the previous one has ended. Only the first round finds an empty L2.
    The program needs one kernel per rank, and its semaphores must return to their initial values.
    """
    all_rounds, ranks = repeated(program, rounds), program.num_ranks
    before = []
    for task in range(all_rounds.num_kernels):
        before.append([] if task < ranks else [task - ranks])
    ptr, idx = csr(before)
    tasks = kernel_tasks(all_rounds)
    graph = replace(
        tasks.graph, predecessor_ptr=ptr, predecessor_idx=idx, num_required=np.diff(ptr).astype(np.int32)
    )  # fmt: skip
    options = GpuRunOptions(fold="off")
    run = run_gpus(all_rounds, cluster, group, model, tasks=tasks._replace(graph=graph), options=options).whole()
    ends = run.records.end_ps.reshape(rounds, ranks).max(axis=1)
    return tuple(int(each) for each in np.diff(ends, prepend=0))


def repeated(program: GpuProgram, rounds: int) -> GpuProgram:
    """Return a program with the kernels of all ranks ``rounds`` times in a row, on the same buffers and semaphores."""

    def ptr(offsets: Int64) -> Int64:
        total = int(offsets[-1])
        starts = offsets[:-1] + np.arange(rounds, dtype=np.int64)[:, None] * total
        return np.append(starts.ravel(), total * rounds)

    columns: dict[str, Any] = {name: np.tile(getattr(program, name), rounds) for name in COLUMNS}
    return replace(
        program, kernel_ptr=ptr(program.kernel_ptr), workgroup_ptr=ptr(program.workgroup_ptr),
        operand_ptr=ptr(program.operand_ptr), kernel_names=program.kernel_names * rounds, **columns,
    )  # fmt: skip
