"""The kernels that trine measures: their number, sizes, and order."""

from __future__ import annotations

from collections import Counter

import pytest

from trine.cluster.measured_gpu import SHAPES
from trine.measure.kernels import PRECISIONS, Kernel, cpu_kernels, gpu_kernels

ALL = gpu_kernels(set(PRECISIONS.values()))


def test_the_guide_states_the_numbers_of_kernels():
    counts = Counter((kernel.kind, kernel.dtype) for kernel in ALL)
    assert counts == {
        ("gemm", "bfloat16"): 75, ("gemm", "float8"): 27, ("gemm", "tfloat32"): 12, ("gemm", "float32"): 12,
        ("attention", "bfloat16"): 28, ("attention_backward", "bfloat16"): 12, ("elementwise", "bfloat16"): 9,
        ("copy", "bfloat16"): 9, ("norm", "bfloat16"): 12, ("softmax", "bfloat16"): 8, ("launch", "float32"): 1,
    }  # fmt: skip
    assert sum(counts.values()) == 205
    assert len(cpu_kernels(("float32", "bfloat16"))) == 47


@pytest.mark.parametrize("kernels", [ALL, cpu_kernels(("float32", "bfloat16")), gpu_kernels(("float32", "float16"))])
def test_kernels_are_different_and_have_their_kind_s_sizes(kernels):
    assert len(set(kernels)) == len(kernels)
    for kernel in kernels:
        assert len(kernel.shape) == len(SHAPES[kernel.kind])


def test_a_gpu_without_bfloat16_has_the_same_kernels_in_float16():
    older = gpu_kernels(("float32", "float16"))
    newer = gpu_kernels(("float32", "bfloat16"))
    assert [(each.kind, each.shape) for each in older] == [(each.kind, each.shape) for each in newer]
    assert {each.dtype for each in older} == {"float32", "float16"}


def test_a_chosen_precision_has_its_gemms_and_the_memory_bound_kernels():
    counts = Counter((kernel.kind, kernel.dtype) for kernel in gpu_kernels(("tfloat32",)))
    assert counts["gemm", "tfloat32"] == 12
    assert counts["norm", "float32"] == 12
    assert not counts["attention", "bfloat16"]


@pytest.mark.parametrize("part", [20, 40, 100])
def test_any_first_part_covers_all_kinds_in_proportion(part):
    whole, first = (Counter((k.kind, k.dtype) for k in kernels) for kernels in (ALL, ALL[:part]))
    for group, count in whole.items():
        assert abs(first[group] - count * part / len(ALL)) <= 1.5, group


def test_the_first_gemms_span_the_sizes():
    rows = [kernel.shape[0] for kernel in ALL if kernel.kind == "gemm" and kernel.dtype == "bfloat16"][:10]
    assert min(rows) <= 16
    assert max(rows) >= 2048


def test_bytes_and_flops_by_hand():
    assert Kernel("gemm", "bfloat16", (2, 3, 5)).flops == 60
    assert Kernel("gemm", "bfloat16", (2, 3, 5)).num_bytes == 2 * (10 + 15 + 6)
    assert Kernel("gemm", "float8", (2, 3, 5)).num_bytes == (10 + 15) + 2 * 6
    assert Kernel("gemm", "float32", (2, 3, 5)).num_bytes == 4 * (10 + 15 + 6)
    # queries and results of 8 heads, keys and values of 2 heads, 16 tokens of 4 numbers of 2 bytes
    assert Kernel("attention", "bfloat16", (1, 8, 2, 16, 4)).num_bytes == 2 * 16 * 4 * (8 + 8 + 2 + 2)
    assert Kernel("attention_backward", "bfloat16", (1, 8, 2, 16, 4)).num_bytes == 2 * 2 * 16 * 4 * (8 + 8 + 2 + 2)
    assert Kernel("elementwise", "float32", (3, 7)).num_bytes == 3 * 4 * 21
    assert Kernel("copy", "bfloat16", (3, 7)).num_bytes == 2 * 2 * 21
    assert Kernel("launch", "float32", ()).num_bytes == 0
