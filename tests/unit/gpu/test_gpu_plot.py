"""The picture of the inside of a GPU."""

import re
import sys

import pytest
from gpu_results import SLICES, model, replayed, result

from trine.errors import InputError, MissingExtraError
from trine.gpu.model import CROSSBAR


def fills(path):
    """Colours that areas of an SVG drawing are filled with, and how often."""
    found = re.findall(r"fill: (#[0-9a-f]{6})", path.read_text())
    return {colour: found.count(colour) for colour in found}


def test_a_mesh_is_a_map(tmp_path):
    mpl = pytest.importorskip("matplotlib")
    path = tmp_path / "noc.svg"
    result().plot("noc", path=path)
    colours, text = fills(path), mpl.colormaps["magma_r"]

    def of(share):
        return mpl.colors.to_hex(text(share / 0.5))  # the scale goes up to the busiest, rounded up: 50 %

    assert colours["#dddddd"] == 4  # halves of ports that nothing crossed
    assert colours[of(0.3)] == 1  # router0->router1
    assert colours[of(0.4)] == 1  # the way out at port 0
    assert colours[of(0.2)] == 2  # channel 5, the way out at port 1
    assert colours[of(0.1)] == 2  # CU 0, the way out at port 2
    assert colours[of(0.5)] == 1  # the way into port 0
    assert colours[of(0.0)] == 13 + 5 + 7  # the other links, channels and CUs


@pytest.mark.parametrize("gpu", [model(l2=SLICES), model(CROSSBAR), model(CROSSBAR, l2=SLICES)])
def test_every_kind_of_gpu_can_be_drawn(gpu, tmp_path):
    pytest.importorskip("matplotlib")
    result(gpu, finished=False).plot("noc", path=tmp_path / "noc.png", rank=1)
    assert (tmp_path / "noc.png").read_bytes().startswith(b"\x89PNG")


def test_of_a_replayed_run_the_target_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "noc.svg"
    replayed().plot("noc", path=path)
    assert "inside rank 1 (1 peer replayed), toy" in path.read_text()
    with pytest.raises(InputError, match="rank 0 was replayed"):
        replayed().plot("noc", path=path, rank=0)


def test_wrong_input_is_refused(tmp_path):
    pytest.importorskip("matplotlib")
    with pytest.raises(InputError, match="there is no rank 2"):
        result().plot("noc", path=tmp_path / "noc.png", rank=2)
    with pytest.raises(InputError, match=r"a picture is a file of \.png, \.svg, \.pdf"):
        result().plot("noc", path=tmp_path / "noc.gif")


def test_without_matplotlib_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"trine\[plot\]"):
        result().plot("noc", path=tmp_path / "noc.png")
