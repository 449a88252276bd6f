"""Do lists, ranges and random samples give the values that their texts describe?"""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trine.collectives.sizes import parse_size, parse_sizes
from trine.errors import InputError
from trine.experiments.values import RandomValues, parse_values


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1,2,4", (1, 2, 4)),
        ("1..4", (1, 2, 3, 4)),
        ("8..64*2", (8, 16, 32, 64)),
        ("8..30+8", (8, 16, 24)),
        ("0..1/5", (0, 0.25, 0.5, 0.75, 1)),
        ("0.1..0.4+0.1", (0.1, 0.2, 0.3, 0.4)),
        ("200..400+100 GB/s", ("200 GB/s", "300 GB/s", "400 GB/s")),
        ("1,8..32*2,64M", (1, 8, 16, 32, "64M")),
        ("true,false", (True, False)),
        ("a,b;c", ("a,b", "c")),
        ([1, "1..2", 0.5], None),
        ([True, "x"], (True, "x")),
        (7, (7,)),
        ("8:64", (8, 16, 32, 64)),
        ("8:64:x4", (8, 32)),
        ("8:64:*2", (8, 16, 32, 64)),
        ("8:40:16", (8, 24, 40)),
        ("1K..1M*32", ("1K", "32K", "1M")),
        ("1K:1M:x32", ("1K", "32K", "1M")),
        ("1M..4M", ("1M", "2M", "4M")),
        ("16M:64M:16M", ("16M", "32M", "48M", "64M")),
        ("1K..3K+512", ("1K", "1536", "2K", "2560", "3K")),
        ("1M..3M/3", ("1M", "2M", "3M")),
        ("1 us..3 us+1 us", ("1 us", "2 us", "3 us")),
        ("200 GB/s..400 GB/s+100", ("200 GB/s", "300 GB/s", "400 GB/s")),
        ("fat-tree:2", ("fat-tree:2",)),
        ("rank=3:1.5", ("rank=3:1.5",)),
    ],
)  # fmt: skip
def test_values_of_a_text_or_list(text, values):
    if values is None:
        with pytest.raises(InputError, match="twice"):
            parse_values("f", text)
    else:
        assert parse_values("f", text) == values
        assert list(map(type, parse_values("f", text))) == list(map(type, values))


@pytest.mark.parametrize(
    "text",
    [
        "", "1,,2", "4..1", "0..8*2", "1..8*1", "1..2+0", "1..2/1", "1,1", "uniform(2..1)", "log(0..1)", [[1]], [None],
        "0..1e9", "1e309", "1..1e309", "1e309..2", "9" * 5000, "9" * 5000 + "..2",
        f"1..{'9' * 5000}", "1..2*1.0000000001",
        "1e-300..1e300*1.0001", "8:4", "0:8", "8:64:x1", "1M..2K", "1 us..2 ms", "1.5..3K", "uniform(0..1e309)",
        "log(1..1e99999)", [float("inf")], [float("nan")], [10**30], [{}], {"a": 1},
    ],
)  # fmt: skip
def test_empty_endless_and_repeated_values_are_refused_with_the_field(text):
    with pytest.raises(InputError, match=r"^tp: "):
        parse_values("tp", text)


def test_slow_by_keeps_its_own_colon():
    assert parse_values("slow_by", "1:10") == ("1:10",)


@pytest.mark.parametrize(
    "text", ["1K:1M", "1K:1M:x4", "16M:128M:16M", "8:64", "4,1K:8K", "1K..1M", "1K..1M*4", "16M..128M+16M"]
)
def test_a_range_of_sizes_means_the_same_as_on_the_option(text):
    values = [parse_size(str(value)) for value in parse_values("size", text)]
    assert sorted(values) == parse_sizes(text)


@given(st.text("0123456789.:+*/xKMG eE-", max_size=20))
def test_no_text_is_a_traceback(text):
    with contextlib.suppress(InputError):
        parse_values("f", text)
    with contextlib.suppress(InputError):
        parse_sizes(text)


@given(st.integers(1, 50), st.integers(0, 60), st.integers(1, 9))
def test_a_range_with_a_step_is_pythons_range(start, length, step):
    assert parse_values("f", f"{start}..{start + length}+{step}") == tuple(range(start, start + length + 1, step))


@given(st.integers(0, 99), st.integers(0, 10**6))
def test_draws_depend_on_seed_field_and_sample_and_stay_inside(seed, sample):
    whole, real = parse_values("f", "log(8..64)"), parse_values("f", "uniform(0.5..2.5 GB/s)")
    assert isinstance(whole, RandomValues)
    drawn = whole.draw(seed, "f", sample)
    assert isinstance(drawn, int)
    assert 8 <= drawn <= 64
    assert drawn == whole.draw(seed, "f", sample)
    number, unit = real.draw(seed, "f", sample).split()
    assert 0.5 <= float(number) <= 2.5
    assert unit == "GB/s"


def test_fields_of_a_sample_are_independent():
    axis = parse_values("f", "uniform(0.0..1.0)")
    pairs = [(axis.draw(0, "a", sample), axis.draw(0, "b", sample)) for sample in range(1000)]
    both_low = sum(a < 0.5 and b < 0.5 for a, b in pairs)
    assert 200 < both_low < 300  # 250 of 1,000 if they are independent, 500 if they are equal


def test_a_logarithmic_draw_rises_with_the_uniform_one():
    """The same random part of the range, between the logarithms of its ends."""
    for sample in range(20):
        part = parse_values("f", "uniform(0.0..1.0)").draw(0, "f", sample)
        assert parse_values("f", "log(1.0..1000.0)").draw(0, "f", sample) == pytest.approx(1000**part)


def test_uniform_whole_numbers_are_equally_frequent_with_both_ends():
    axis = parse_values("f", "uniform(1..4)")
    counts = [sum(axis.draw(0, "f", i) == value for i in range(4000)) for value in (1, 2, 3, 4)]
    assert sum(counts) == 4000
    assert all(900 < count < 1100 for count in counts)


def test_a_logarithmic_sample_has_as_many_values_in_each_octave():
    axis = parse_values("f", "log(1.0..16.0)")
    values = [axis.draw(3, "f", i) for i in range(4000)]
    octaves = [sum(2**i <= value < 2 ** (i + 1) for value in values) for i in range(4)]
    assert all(900 < count < 1100 for count in octaves)


@pytest.mark.parametrize("text", ["1,2,4", "x;y", "uniform(0.1..0.9)", "log(1..64)"])
def test_the_resolved_form_reads_back(text):
    values = parse_values("f", text)
    assert parse_values("f", list(values) if isinstance(values, tuple) else str(values)) == values
