"""Bytes from the L2 at several batches: closed forms of random replacement."""

from __future__ import annotations

from dataclasses import replace
from math import exp

import pytest
from compute_cases import BATCH, Made

from trine.cluster import load_gpu
from trine.compute.cache import CachedTraffic
from trine.compute.cost import Sizing, Work
from trine.compute.law import Law
from trine.compute.linear import anchored
from trine.compute.resize import Split

GPU = load_gpu("h100-sxm")
HIT = GPU.memory_bytes_per_s / GPU.l2_bytes_per_s
CAPACITY = GPU.l2_bytes


def chain(size: int, count: int = 2) -> Made:
    """Operators that each read the previous one's output; every tensor has ``size`` bytes at the recorded batch."""
    made = Made()
    for number in range(count + 1):
        made.tensor(f"x{number}", (BATCH, size // BATCH // 4))
    for number in range(count):
        made.run("aten::relu", [f"x{number}"], [f"x{number + 1}"])
    return made


def weighted(made: Made, batch: int = BATCH, gpu=GPU) -> list[int]:  # type: ignore[no-untyped-def]
    workload = made.workload()
    sizing = Sizing(workload)
    traffic = CachedTraffic(workload, sizing, gpu)
    return [traffic.work(op, batch, sizing.work(op, Split(batch))).bytes for op in workload.operators]


@pytest.mark.parametrize("batch", [BATCH, 4 * BATCH])
def test_one_reader_behind_its_producer(batch: int) -> None:
    """The first operator misses: 2 S. Until the second reads a byte, half of the bytes of both have passed: 2 S."""
    size = 2**20 * batch // BATCH
    hit = exp(-2 * size / CAPACITY)
    assert weighted(chain(2**20), batch) == pytest.approx([2 * size, 2 * size - hit * size * (1 - HIT)], rel=1e-6)


def test_small_tensors_hit_and_large_ones_miss() -> None:
    _, small = weighted(chain(2**12))
    _, large = weighted(chain(2**32))
    assert small == pytest.approx((1 + HIT) * 2**12, rel=0.01)
    assert large == 2 * 2**32


def test_kernels_of_an_operator_exchange_its_output() -> None:
    made = chain(2**20, 1)
    made.operators = [replace(made.operators[0], kernel_times_ps=(1, 1, 1))]
    between = 2 * 2**20 * (2 - exp(-(2**20) / CAPACITY) * (1 - HIT))
    assert weighted(made) == pytest.approx([2 * 2**20 + between], rel=1e-6)


def test_time_per_byte_rises_once_with_the_batch() -> None:
    """From a batch that fits to one that does not, bytes grow by more than the batch, and then in proportion."""
    made = chain(2**22, 6)
    totals = [sum(weighted(made, BATCH * factor)) / factor for factor in (1, 2, 4, 16, 64, 256)]
    assert totals == sorted(totals)
    assert totals[-1] == pytest.approx(totals[-2], rel=0.01)
    assert totals[-1] > 1.2 * totals[0]


def test_compute_bound_operators_and_unknown_gpus_keep_their_bytes() -> None:
    made = chain(2**20)
    raw = [2 * 2**20] * 2
    assert weighted(made, gpu=None) == raw
    assert weighted(made, gpu=load_gpu("a100-80gb")) == raw
    made.operators = [replace(op, name="aten::conv2d") for op in made.operators]
    workload = made.workload()
    traffic = CachedTraffic(workload, Sizing(workload), GPU)
    assert traffic.work(workload.operators[1], BATCH, Work(7, 9)) == Work(7, 9)


def test_known_kernels_bound_the_fixed_excess() -> None:
    """A memory-bound operator of two kernels, 20 us above its law of 1 ms: 6 us may be fixed, 14 us scale."""
    before, after = Work(0, 10**9), Work(0, 4 * 10**9)
    found = anchored(Law(0.0, 1.0, 0.0), before, 102 * 10**7, after, kernels=2, has_algorithms=False)
    assert found == 4 * (102 * 10**7 - 6 * 10**6) + 2 * 6 * 10**6
