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
