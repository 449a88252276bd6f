"""Pictures: are ticks, legends and colours there to be read?"""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest

from trine.errors import InputError
from trine.gpu.replay.sweep import Sweep
from trine.results.axes import heading, time_scale, title
from trine.results.picture import check_ending, in_full, log_scale, save, subplots

pytest.importorskip("matplotlib")


def labels(axes) -> list[str]:
    axes.figure.canvas.draw()
    low, high = axes.get_ylim()
    ticks = zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)
    return [label.get_text() for tick, label in ticks if low <= tick <= high]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((3.3, 8.1), ["5"]),
        ((0.04, 3), ["0.05", "0.1", "0.2", "0.5", "1", "2"]),
        ((1, 1e7), ["1", "100", "10,000", "1,000,000"]),
    ],
)
def test_logarithmic_axes_have_numbers_also_within_a_decade(values, expected):
    _, axes = subplots(figsize=(6, 4))
    axes.plot([1, 2], values)
    log_scale(axes)
    assert set(expected) <= set(labels(axes))


def row(rows: int, peers: int, sync: str, wakeup_s: float) -> dict[str, object]:
    counts = {"flag_reads": rows, "non_flag_reads": 10 * rows, "time_s": 1e-5}
    return {"rows": rows, "cols": 64, "peers": peers, "sync": sync, "wakeup_s": wakeup_s, **counts}


def drawn(rows, peers, sync):
    """The figure of a sweep."""
    found = tuple(row(*values, 1e-6 * t) for values in itertools.product(rows, peers, sync) for t in (1, 2))
    varied = ("wakeup", "rows", "peers", "sync")
    return Sweep(rows=found, varied=varied, fits=(), wall_s=1.0).plot()


def test_many_curves_are_told_apart_and_named_beside_the_panels():
    figure = drawn((1024, 2048, 4096), (3, 15, 31), ("spin", "mwait"))
    first = figure.axes[0]
    assert [axes.get_legend() for axes in figure.axes] == [None] * 3
    (legend,) = figure.legends
    assert len(legend.get_texts()) == 18
    looks = [(str(line.get_color()), line.get_linestyle()) for line in first.get_lines()]
    assert len(set(looks)) == 18
    assert len({colour for colour, _ in looks}) == 9, "a workload has one colour, whichever way it waits"
    figure.canvas.draw()
    assert legend.get_window_extent().y1 <= first.get_window_extent().y0


def test_ways_to_wait_have_colours_where_nothing_else_varies():
    figure = drawn((1024,), (3,), ("spin", "mwait", "sleep"))
    assert len({line.get_color() for line in figure.axes[0].get_lines()}) == 3
    alone = drawn((1024,), (3,), ("spin",))
    assert not alone.legends


def test_files_that_are_no_pictures_or_cannot_be_written(tmp_path):
    with pytest.raises(InputError, match=r"a\.txt: a picture is a file of"):
        check_ending("a.txt")
    check_ending("a.PNG")
    figure, _ = subplots(figsize=(6, 4))
    with pytest.raises(InputError, match="cannot write: No such file or directory"):
        save(figure, tmp_path / "none" / "a.png")


def test_drawing_leaves_the_backend_and_the_figures_of_pyplot_alone():
    code = "import matplotlib, sys\nfrom trine.results.picture import subplots\nsubplots(figsize=(6, 4))\n"
    done = subprocess.run([sys.executable, "-c", f"{code}assert 'matplotlib.pyplot' not in sys.modules"], check=False)
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (0.00002, "0.00002"), (-0.00002, "-0.00002"), (0.5, "0.5"), (1234.5, "1,234.5"), (999999, "999,999"),
        (1e6, "1,000,000"), (-2e9, "-2,000,000,000"),
    ],
)  # fmt: skip
def test_ticks_are_numbers_in_full(value, text):
    assert in_full(value) == text


@pytest.mark.parametrize(
    ("longest_ps", "unit", "divisor"), [(0, "ps", 1), (999, "ps", 1), (1000, "ns", 1e3), (10**12, "s", 1e12)]
)
def test_times_have_the_largest_unit_that_fits(longest_ps, unit, divisor):
    assert time_scale(longest_ps) == (unit, divisor)


def test_titles_write_microseconds_as_the_axes_do():
    figure, axes = subplots(figsize=(6, 4))
    title(axes, "status: 4.5 us to 20 ms")
    heading(figure, "used 12 us, 3 users")
    assert axes.get_title("left") == "status: 4.5 µs to 20 ms"
    assert figure.get_suptitle() == "used 12 µs, 3 users"
