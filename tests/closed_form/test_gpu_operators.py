"""Operators load by load against closed forms: arithmetic of tiles and waves, roofs, streams, and extended parts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trine.cluster.load import load_cluster
from trine.common.units import PS_PER_S
from trine.compute.origin import known_gpu
from trine.gpu.collective.time_split import without_bandwidth
from trine.gpu.model.files import gpu_model_of
from trine.gpu.operators import run
from trine.gpu.operators.gemm import STAGES, WAVEFRONTS, GemmKernel, GemmPart, GemmShape, gemm_kernel
from trine.gpu.operators.run import Gpu, time_of_gemm, time_of_stream, time_without_bandwidth
from trine.gpu.operators.stream import StreamKernel, StreamShape
from trine.gpu.operators.tensor_cores import TensorCores, at_clock, tensor_cores
from trine.gpu.program import COMPUTE, LOAD, STORE

CLUSTER = load_cluster("dgx-h100")
DEVICE = CLUSTER.gpus[0]
H100 = gpu_model_of(CLUSTER, [DEVICE])
#: A GPU of 8 compute units, so that products of many waves are small.
SMALL = replace(H100, num_cus=8)
CORES = TensorCores(flop_per_cycle=4096, flop_per_s=10**15, multicast=2)


def kernel(m: int, n: int, k: int, model=SMALL, **options) -> GemmKernel:
    return gemm_kernel(GemmShape(m=m, n=n, k=k, **options), model, CORES)


def gpu(model=SMALL) -> Gpu:
    return Gpu(CLUSTER, DEVICE, model)


@pytest.mark.parametrize(
    ("name", "precision", "flop_per_cycle"),
    [
        ("h100-sxm", "bfloat16", 4096),  # NVIDIA H100 white paper: 1,024 FMA x 4 tensor cores / 2 per SM and cycle
        ("h100-sxm", "float8", 8192),
        ("a100-80gb", "bfloat16", 2048),  # NVIDIA A100 white paper: 1,024 FMA per SM and cycle
        ("mi300x", "bfloat16", 2048),  # AMD CDNA 3 white paper: 2,048 FLOPs per CU and cycle
    ],
)
def test_matrix_cores_do_the_published_flops_per_cycle(name: str, precision: str, flop_per_cycle: int):
    from trine.gpu.model.files import load_gpu_model

    assert tensor_cores(known_gpu(name), load_gpu_model(name), precision).flop_per_cycle == flop_per_cycle


@pytest.mark.parametrize(("tiles", "waves"), [(1, 1), (7, 1), (8, 1), (9, 2), (16, 2), (17, 3)])
def test_without_bandwidth_a_product_takes_whole_waves_of_arithmetic(tiles: int, waves: int):
    """Without limits of bandwidth, only the first loads and the last stores come on top of whole waves."""
    one = kernel(128, 256 * tiles, 1024)
    one = replace(one, rows=128, columns=256, splits=1)
    assert (one.num_units, one.waves, one.steps) == (tiles, waves, 16)
    cycles = 2 * 128 * 256 * 64 // 4096
    assert one.arithmetic_ps == waves * 16 * cycles * SMALL.cycle_ps
    time_ps = time_without_bandwidth(gpu(), one)
    least_ps = SMALL.launch_ps + one.arithmetic_ps
    access_ps = 2 * SMALL.noc.hop_ps + SMALL.l2.latency_ps + SMALL.memory.latency_ps
    assert least_ps + access_ps <= time_ps <= least_ps + 8 * access_ps


@pytest.mark.parametrize(("m", "n", "k"), [(256, 512, 2048), (64, 64, 8192), (2048, 2048, 512), (100, 300, 1000)])
def test_a_product_is_never_faster_than_its_lower_bound(m: int, n: int, k: int):
    one = kernel(m, n, k)
    time_ps = time_of_gemm(gpu(), one).time_ps
    assert time_ps >= SMALL.launch_ps + one.least_ps
    roof_ps = 2 * m * n * k * SMALL.cycle_ps // (4096 * SMALL.num_cus)
    assert one.arithmetic_ps >= roof_ps


def test_a_product_that_its_loads_limit_takes_the_time_of_the_crossbar():
    """Small tiles load more than the link into a compute unit carries beside their arithmetic."""
    one = replace(kernel(512, 1024, 4096), rows=64, columns=64, splits=1)
    message_bytes = SMALL.line_bytes + SMALL.header_bytes
    lines = one.waves * one.steps * (64 + 32)  # B is shared by two workgroups
    loads_ps = lines * message_bytes * PS_PER_S // SMALL.noc.bytes_per_s
    assert loads_ps > one.arithmetic_ps
    assert time_of_gemm(gpu(), one).time_ps == pytest.approx(loads_ps + SMALL.launch_ps, rel=0.05)


def test_the_program_loads_each_operand_once_per_tile_and_stores_the_result_once():
    one = replace(kernel(256, 512, 640), rows=128, columns=256, splits=1)
    program = one.program(one.whole)
    loads = int(program.op_amount[program.op_kind == LOAD].sum())
    assert loads == 4 * 10 * (128 + 128)
    stores = int(program.op_amount[program.op_kind == STORE].sum())
    assert stores * SMALL.line_bytes == 256 * 512 * 2
    assert int((program.op_kind == COMPUTE).sum()) == 4 * 10
    cycles = int(program.op_amount[program.op_kind == COMPUTE].sum()) * WAVEFRONTS
    assert cycles * 4096 == 2 * 256 * 512 * 640


def test_a_tall_product_is_split_along_its_inner_dimension():
    """One tile of a long inner dimension leaves the other compute units idle, unless it is split."""
    one = kernel(128, 128, 65536)
    assert one.splits == 8
    whole = replace(one, splits=1)
    assert time_of_gemm(gpu(), one).time_ps < 0.3 * time_of_gemm(gpu(), whole).time_ps


@pytest.mark.parametrize(("m", "n", "k"), [(2048, 1024, 4096), (1024, 4096, 2048)])
def test_an_extended_product_takes_the_time_of_the_whole_one(monkeypatch, m: int, n: int, k: int):
    one = kernel(m, n, k)
    assert one.waves > run.WHOLE_WAVES
    whole = time_of_gemm(gpu(), one)
    assert whole.extension == ""
    monkeypatch.setattr(run, "WHOLE_LINES", 0)
    extended = time_of_gemm(gpu(), one)
    assert extended.extension.startswith(f"extended from 24 of {one.steps} steps")
    assert extended.time_ps == pytest.approx(whole.time_ps, rel=0.02)
    assert time_without_bandwidth(gpu(), one) == pytest.approx(
        run._gemm_ps(gpu(without_bandwidth(SMALL)), one, one.whole), rel=0.02
    )


def test_a_part_has_the_first_units_and_steps():
    one = replace(kernel(1024, 1024, 4096), rows=128, columns=256, splits=1)
    program = one.program(GemmPart(5, 3))
    assert int((program.op_kind == COMPUTE).sum()) == 15
    assert program.num_workgroups == 5
    assert STAGES == 3


def test_at_half_the_clock_arithmetic_takes_twice_as_long():
    slow = at_clock(SMALL, 990.0)
    assert slow.cycle_ps == 2 * SMALL.cycle_ps
    assert slow.noc.bytes_per_s == pytest.approx(SMALL.noc.bytes_per_s / 2, rel=1e-3)
    assert kernel(256, 256, 256, slow).arithmetic_ps == 2 * kernel(256, 256, 256).arithmetic_ps


@pytest.mark.parametrize("read", [0.25, 0.5, 1.0])
def test_a_stream_takes_the_memorys_bandwidth(read: float):
    """With an L2 full of an equal stream's lines, each byte read or written moves one byte of memory."""
    size_bytes = 48 << 20
    shape = StreamShape(read_bytes=round(read * size_bytes), written_bytes=size_bytes - round(read * size_bytes))
    one = StreamKernel(shape=shape, model=H100)
    assert one.memory_ps == size_bytes * PS_PER_S // (80 * H100.memory.bytes_per_s)
    time_ps = time_of_stream(gpu(H100), one).time_ps
    assert time_ps == pytest.approx(one.memory_ps + H100.launch_ps, rel=0.08)


def test_a_stream_of_rows_waits_for_each_row():
    shape = StreamShape(read_bytes=8 << 20, written_bytes=8 << 20)
    rows = replace(shape, has_rows=True)
    times = [time_of_stream(gpu(H100), StreamKernel(shape=each, model=H100)).time_ps for each in (shape, rows)]
    assert times[1] > times[0]
    assert rows.part(4 << 20) == StreamShape(read_bytes=2 << 20, written_bytes=2 << 20, has_rows=True)
