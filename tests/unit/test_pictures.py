"""Pictures: are ticks, legends and colours there to be read?"""

from __future__ import annotations

import itertools

import pytest

from trine.errors import InputError
from trine.replay import plot as eidolon_plot
from trine.replay.sweep import Sweep
from trine.results.picture import check_ending, log_scale, pyplot, save

pytest.importorskip("matplotlib")


def labels(axes) -> list[str]:
    axes.figure.canvas.draw()
    low, high = axes.get_ylim()
    ticks = zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)
    return [label.get_text() for tick, label in ticks if low <= tick <= high]


@pytest.mark.parametrize(
    ("values", "expected"),
    [((3.3, 8.1), ["5"]), ((0.04, 3), ["0.05", "0.1", "0.2", "0.5", "1", "2"]), ((1, 1e7), ["1", "100", "10000"])],
)
def test_logarithmic_axes_have_numbers_also_within_a_decade(values, expected):
    plt = pyplot()
    figure, axes = plt.subplots()
    axes.plot([1, 2], values)
    log_scale(axes)
    assert set(expected) <= set(labels(axes))
    plt.close(figure)


def row(rows: int, peers: int, sync: str, wakeup_s: float) -> dict[str, object]:
    counts = {"flag_reads": rows, "non_flag_reads": 10 * rows, "wall_s": 0.1}
    return {"rows": rows, "cols": 64, "peers": peers, "sync": sync, "wakeup_s": wakeup_s, **counts}


def drawn(monkeypatch, rows, peers, sync):
    """The figure of a sweep."""
    kept = []
    monkeypatch.setattr(eidolon_plot, "save", lambda figure, plt, path: kept.append(figure))
    found = tuple(row(*values, 1e-6 * t) for values in itertools.product(rows, peers, sync) for t in (1, 2))
    varied = ("wakeup", "rows", "peers", "sync")
    eidolon_plot.plot_sweep(Sweep(rows=found, varied=varied, fits=(), wall_s=1.0), "sweep.png")
    return kept[0]


def test_many_curves_are_told_apart_and_named_beside_the_panels(monkeypatch):
    figure = drawn(monkeypatch, (1024, 2048, 4096), (3, 15, 31), ("spin", "mwait"))
    first = figure.axes[0]
    assert [axes.get_legend() for axes in figure.axes] == [None] * 3
    (legend,) = figure.legends
    assert len(legend.get_texts()) == 18
    looks = [(str(line.get_color()), line.get_linestyle()) for line in first.get_lines()]
    assert len(set(looks)) == 18
    assert len({colour for colour, _ in looks}) == 9, "a workload has one colour, whichever way it waits"
    figure.canvas.draw()
    assert legend.get_window_extent().y1 <= first.get_window_extent().y0
    pyplot().close(figure)


def test_ways_to_wait_have_colours_where_nothing_else_varies(monkeypatch):
    figure = drawn(monkeypatch, (1024,), (3,), ("spin", "mwait", "sleep"))
    assert len({line.get_color() for line in figure.axes[0].get_lines()}) == 3
    pyplot().close(figure)
    alone = drawn(monkeypatch, (1024,), (3,), ("spin",))
    assert not alone.legends
    pyplot().close(alone)


def test_files_that_are_no_pictures_or_cannot_be_written(tmp_path):
    with pytest.raises(InputError, match=r"a\.txt: a picture is a file of"):
        check_ending("a.txt")
    check_ending("a.PNG")
    plt = pyplot()
    with pytest.raises(InputError, match="cannot write: No such file or directory"):
        save(plt.figure(), plt, tmp_path / "none" / "a.png")
    assert not plt.get_fignums()
