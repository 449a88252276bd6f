"""Are FP8 GEMMs of a step as fast as on an H100, where the input is already in FP8?

The tables' FP8 calls quantise their 16-bit input first; ``gemm_in_step`` leaves that out. Times in
``tests/data/h100/products.csv`` are GEMMs alone, so they compare with it directly. The tables' clock is 1,570 MHz.
"""

import csv
from functools import cache
from pathlib import Path
from statistics import median

import pytest

from trine.cluster import load_gpu
from trine.compute.tables.operators import HIGHEST_SHARE, OperatorTables

DATA = Path(__file__).parents[2] / "data" / "h100" / "products.csv"
GPU = load_gpu("h100-sxm")
PRODUCTS = ("forward", "input", "weight")
#: FLOPs from which a product is large.
LARGE = 5e10


@cache
def rows():
    """Return (product, m, n, k, measured us, predicted us) of all FP8 products."""
    tables, found = OperatorTables(GPU), []
    with DATA.open() as file:
        for row in csv.DictReader(file):
            if row["dtype"] == "float8":
                shape = tuple(int(row[side]) for side in "mnk")
                time = tables.gemm_in_step(*shape, "float8", PRODUCTS.index(row["product"]))
                found.append((row["product"], *shape, float(row["us"]), time.us))
    return found


def flops(row):
    return 2.0 * row[1] * row[2] * row[3]


def large(product=None):
    return [row for row in rows() if flops(row) > LARGE and product in (None, row[0])]


def test_the_file_has_these_products():
    assert len(rows()) == 192
    assert len(large()) == 147


@pytest.mark.parametrize("product", PRODUCTS)
def test_large_products_take_the_measured_time(product):
    ratios = {row[:4]: row[4] / row[5] for row in large(product)}
    middle, worst = median(ratios.values()), max(ratios, key=lambda row: abs(ratios[row] - 1))
    print(f"{product}: {len(ratios)} products, median {middle:.3f}, worst {ratios[worst]:.2f}, {worst}")
    assert 0.93 <= middle <= 1.07
    assert min(ratios.values()) > 0.65
    assert max(ratios.values()) < 1.3


def test_half_of_all_large_products_are_within_a_tenth():
    errors = sorted(abs(row[4] / row[5] - 1) for row in large())
    assert errors[len(errors) // 2] < 0.10


@pytest.mark.parametrize("product", PRODUCTS)
def test_products_are_faster_than_the_call_that_quantises(product):
    tables = OperatorTables(GPU)
    for _, m, n, k, _, us in large(product):
        assert us < 1.08 * tables.gemm(m, n, k, "float8").us


def test_no_measured_product_is_above_the_highest_share():
    peak = GPU.flop_per_s["float8"]
    assert max(flops(row) / (row[4] * 1e-6) / peak for row in rows()) < HIGHEST_SHARE


def test_no_predicted_product_is_above_the_highest_share():
    """The highest share was measured at 1,570 MHz, the tables' clock, so the clock gives no more."""
    peak = GPU.flop_per_s["float8"]
    shares = {row[:4]: flops(row) / (row[5] * 1e-6) / peak for row in rows()}
    assert max(shares.values()) <= HIGHEST_SHARE * 1.001


def test_predictions_stay_below_the_peak_at_the_highest_clock():
    """0.78 of the peak at 1,570 MHz leaves 0.85 at the 1,710 MHz that GEMMs reach at most."""
    peak = GPU.flop_per_s["float8"]
    assert max(flops(row) / (row[5] * 1e-6) / peak for row in rows()) < HIGHEST_SHARE * 1710 / 1570


@pytest.mark.parametrize("rows", [1, 20, 64, 300, 5_000])
@pytest.mark.parametrize("product", [0, 1, 2])
def test_no_product_in_eight_bits_takes_longer_than_in_sixteen(rows: int, product: int) -> None:
    """Experts with few tokens: the kernels that quantise are no part of a product."""
    tables = OperatorTables(GPU)
    eight = tables.gemm_in_step(rows, 1_024, 2_048, "float8", product)
    sixteen = tables.gemm_in_step(rows, 1_024, 2_048, "bfloat16", product)
    assert 0 < eight.us <= sixteen.us * 1.02  # clocks of long products differ


@cache
def gains():
    """Return {(m, n, k): (measured, predicted)} of the time in FP8 over that in bfloat16, products up to LARGE."""
    measured = {}
    with DATA.open() as file:
        for row in csv.DictReader(file):
            shape = tuple(int(row[side]) for side in "mnk")
            if row["product"] != "weight" and 5e9 < 2.0 * shape[0] * shape[1] * shape[2] <= LARGE:
                measured.setdefault((row["product"], shape), {})[row["dtype"]] = float(row["us"])
    tables, found = OperatorTables(GPU), {}
    for (product, shape), times in measured.items():
        if {"float8", "bfloat16"} <= times.keys():
            eight, sixteen = (tables.gemm_in_step(*shape, dtype, 0).us for dtype in ("float8", "bfloat16"))
            found[product, shape] = times["float8"] / times["bfloat16"], eight / sixteen
    return found


def test_short_products_gain_as_much_as_was_measured():
    """The casts of the tables' calls take as long as a short product: alone, they would hide the gain."""
    errors = sorted(abs(predicted / measured - 1) for measured, predicted in gains().values())
    middle = median(predicted / measured for measured, predicted in gains().values())
    print(f"{len(errors)} short products: predicted over measured gain {middle:.3f}, median error {median(errors):.3f}")
    assert len(errors) > 20
    assert median(errors) < 0.08
    assert 0.95 < middle < 1.05


@pytest.mark.parametrize("gpu", ["h100-sxm", "h100-pcie", "h200"])
@pytest.mark.parametrize("tokens", [64, 640, 2_560, 16_384])
def test_products_in_eight_bits_save_what_the_roofline_saves(gpu: str, tokens: int) -> None:
    """Closed form at 1,024 outputs and 2,048 inputs, with the rates of the data sheet and a result in 16 bits."""
    spec, outputs, inputs = load_gpu(gpu), 1_024, 2_048
    tables = OperatorTables(spec)
    sixteen, eight = (tables.gemm_in_step(tokens, outputs, inputs, dtype, 0).us for dtype in ("bfloat16", "float8"))
    flop, operands = 2 * tokens * outputs * inputs, tokens * inputs + inputs * outputs
    roofs = []
    for dtype, size in (("bfloat16", 2), ("float8", 1)):
        moved = size * operands + 2 * tokens * outputs
        roofs.append(1e6 * max(flop / spec.flop_per_s[dtype], moved / spec.memory_bytes_per_s))
    assert roofs[0] > roofs[1]
    assert sixteen - eight > 0.8 * (roofs[0] - roofs[1])  # clocks of long products differ
    assert eight >= 1e6 * flop / spec.flop_per_s["float8"]
