import sys

import pytest
from results_graphs import full_result, overlap, result

from trine.errors import InputError, MissingExtraError
from trine.results import plot_breakdown, plot_timeline
from trine.results.plot import breakdown


def bars(path):
    """Colours filled in an SVG drawing, in order of appearance."""
    import re

    return list(dict.fromkeys(re.findall(r"fill: (#[0-9a-f]{6})", path.read_text())))


def test_timeline_draws_phases_communication_and_input_copies(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "timeline.svg"
    plot_timeline(full_result(), path)
    colours = bars(path)
    assert {"#56b4e9", "#0072b2", "#009e73", "#e69f00", "#cc79a7"} <= set(colours)
    only_b = tmp_path / "b.svg"
    plot_timeline(full_result(), only_b, ranks=[1])
    assert "#0072b2" not in bars(only_b)


def test_breakdown_draws_only_parts_that_occur(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "breakdown.svg"
    plot_breakdown([full_result(), full_result()], ["one", "two"], path)
    colours = bars(path)
    assert {"#56b4e9", "#e69f00", "#dddddd"} <= set(colours)
    assert "#d55e00" not in colours


def test_breakdown_has_the_unit_of_the_longest_step():
    pytest.importorskip("matplotlib")
    import trine

    long = trine.simulate("vgg13-h100-b128", trine.Plan(dp=2), cluster="dgx-h100")
    assert breakdown([full_result(), long], ["short", "long"]).axes[0].get_ylabel() == "step time (ms)"


def test_png_begins_like_a_png(tmp_path):
    pytest.importorskip("matplotlib")
    plot_timeline(full_result(), tmp_path / "t.png")
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")


def test_wrong_input_is_refused(tmp_path):
    pytest.importorskip("matplotlib")
    with pytest.raises(InputError, match="there is no rank 2, ranks are 0 to 1"):
        plot_timeline(full_result(), tmp_path / "t.svg", ranks=[2])
    with pytest.raises(InputError, match="one label a result"):
        plot_breakdown([full_result()], [], tmp_path / "t.svg")
    with pytest.raises(InputError, match=r"t\.xyz: cannot be drawn"):
        plot_timeline(full_result(), tmp_path / "t.xyz")


def test_without_matplotlib_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"trine\[plot\]"):
        plot_timeline(result(*overlap()), tmp_path / "t.png")


def test_a_timeline_names_the_job_and_draws_one_of_identical_ranks(tmp_path):
    pytest.importorskip("matplotlib")
    import trine

    job = trine.Plan(dp=4, pp=2, micro_batch=32)
    for fold in ("on", "off"):
        result = trine.simulate("vgg13-h100-b128", job, cluster="dgx-h100", fold=fold)
        axes = result.plot("timeline").axes[0]
        assert [label.get_text() for label in axes.get_yticklabels()] == [
            "gpu0 x 4 compute", "gpu0 x 4 transfers", "gpu4 x 4 compute", "gpu4 x 4 transfers",
        ]  # fmt: skip
        assert axes.get_title(loc="left").startswith("vgg13-h100-b128 on 8 x h100-sxm (dgx-h100): pp 2 x dp 4")
    all_ranks = result.plot("timeline", ranks=range(8)).axes[0]
    assert len(all_ranks.get_yticklabels()) == 16
    assert "vgg13-h100-b128" in result.plot("breakdown").axes[0].get_title(loc="left")
