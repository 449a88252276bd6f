"""Do pictures write words and units, put ticks where the question has values, and show what does not fit?"""

import pytest

from trine.experiments.picture import DrawnPoint, draw_points, title_of
from trine.experiments.spec import ExperimentSpec
from trine.results.axes import axis_of, is_geometric, number

SPEC = ExperimentSpec(
    command="train",
    settings={"workload": "model:gpt-2", "gpus": 32, "sharding": "zero1", "cluster": "dgx-h100", "nodes": 4},
    vary={"tp": [1, 2, 8], "pp": [1, 2]},
)


@pytest.mark.parametrize(
    ("column", "words", "divisor"),
    [
        ("step_time_s", "step time (s)", 1),
        ("time_us", "time (µs)", 1),
        ("peak_bytes", "peak (GiB)", 1 << 30),
        ("tokens_per_s", "tokens per second", 1),
        ("busbw_GBps", "bus bandwidth (GB/s)", 1),
        ("window_ps", "window (s)", 1e12),
        ("mfu", "MFU (share of the peak)", 1),
        ("usd", "cost ($)", 1),
        ("nodes", "nodes", 1),
        ("cluster.fabric.latency", "cluster.fabric.latency", 1),
    ],
)
def test_columns_get_words_and_units(column, words, divisor):
    assert axis_of(column) == (words, divisor)


def test_doubled_and_wide_numbers_stand_on_a_logarithmic_axis():
    assert is_geometric([8, 16, 32])
    assert is_geometric([1, 10, 100])
    assert not is_geometric([1, 2])
    assert not is_geometric([1, 2, 3, 4])
    assert not is_geometric([0, 8, 64])


def test_numbers_are_written_in_full():
    assert number(280_936.4) == "280,936"
    assert number(1.86612) == "1.866"


def points() -> list[DrawnPoint]:
    times = {(1, 1): 1.5, (1, 2): 2.0, (2, 1): 1.75, (2, 2): 2.25, (8, 1): 3.0, (8, 2): 3.5}
    return [DrawnPoint(tp, time, pp, fits=(tp, pp) != (1, 1)) for (tp, pp), time in times.items()]


def test_the_picture_of_a_sweep():
    """Ticks at 1, 2, 8; lines through what fits only; the point that does not fit is hollow and never the best."""
    axes = draw_points(SPEC, ["tp", "step_time_s", "pp"], points()).axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2", "8"]
    lines = {line.get_label(): line for line in axes.lines if not line.get_label().startswith("_")}
    assert list(lines["1"].get_xdata()) == [2, 8]
    assert list(lines["2"].get_xdata()) == [1, 2, 8]
    hollow = [line for line in axes.lines if line.get_markerfacecolor() == "none" and line.get_markersize() < 10]
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in hollow] == [(1, 1.5)]
    assert [text.get_text() for text in axes.texts] == ["best: 1.75"]
    assert "hollow: 1 point whose job does not fit" in axes.get_xlabel()
    low, high = axes.get_ylim()
    assert low == 0
    assert high > 3.5


def test_the_best_rate_is_the_highest():
    rows = [point._replace(y=1 / point.y) for point in points()]
    axes = draw_points(SPEC, ["tp", "tokens_per_s", "pp"], rows).axes[0]
    assert [text.get_text() for text in axes.texts] == [f"best: {number(1 / 1.75)}"]


def test_messages_of_other_sizes_have_no_best():
    spec = ExperimentSpec(command="collective", settings={"op": "all_reduce"}, vary={"size": ["1K", "1M"]})
    rows = [DrawnPoint("1K", 8.0, None, True), DrawnPoint("1M", 9.0, None, True)]
    axes = draw_points(spec, ["size", "time_us"], rows).axes[0]
    assert list(axes.texts) == []
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1K", "1M"]


def test_the_title_names_model_layout_and_machine():
    text = title_of(SPEC, ["tp", "step_time_s"])
    assert text == "train gpt-2 · 32 GPUs, sharding zero1 · 4 x dgx-h100\nall values of pp"
