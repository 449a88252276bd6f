"""Operators load by load: the compiled loop and its plain-Python twin agree on every operation of small kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from trine.cluster.load import load_cluster
from trine.gpu.model.files import gpu_model_of
from trine.gpu.operators.gemm import GemmShape, gemm_kernel
from trine.gpu.operators.stream import StreamKernel, StreamShape
from trine.gpu.operators.tensor_cores import TensorCores
from trine.gpu.run import GpuRunOptions, run_gpus

CLUSTER = load_cluster("dgx-h100")
H100 = gpu_model_of(CLUSTER, CLUSTER.gpus[:1])
SMALL = replace(H100, num_cus=4, workgroups_per_cu=1, l2=replace(H100.l2, capacity_bytes=80 * 16 * 128))
CORES = TensorCores(flop_per_cycle=4096, flop_per_s=10**15, multicast=2)


def programs():
    for shape in (
        GemmShape(m=192, n=128, k=256),
        GemmShape(m=64, n=64, k=2048),
        GemmShape(m=128, n=64, k=128, batch=3, out_bytes=4, accumulates=True),
        GemmShape(m=65, n=33, k=100, item_bytes=1.0),
    ):
        kernel = gemm_kernel(shape, SMALL, CORES)
        yield kernel.program(kernel.whole)
    yield StreamKernel(
        shape=StreamShape(read_bytes=100_000, written_bytes=50_000, has_rows=True), model=SMALL
    ).program()


@pytest.mark.parametrize("program", list(programs()), ids=lambda program: program.name)
def test_both_engines_agree(program):
    runs = []
    for engine in ("compiled", "reference"):
        options = GpuRunOptions(engine=engine)
        runs.append(run_gpus(program, CLUSTER, CLUSTER.gpus[:1], SMALL, options=options))
    first, second = runs
    assert first.end_ps == second.end_ps > 0
    for column in ("op_start_ps", "op_end_ps", "workgroup_cu"):
        assert np.array_equal(getattr(first.gpu, column), getattr(second.gpu, column))
