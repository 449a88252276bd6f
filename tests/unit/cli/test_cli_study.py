"""The command `trine study`."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from envelope import opened

from trine.cli.main import app
from trine.errors import InputError
from trine.gpu.cases import CASES
from trine.gpu.cases.case import CaseStudy, Curve, Finding, Panel


def run(*arguments):
    return CliRunner().invoke(app, ["study", *arguments])


def test_without_a_name_it_lists_them():
    done = run()
    assert done.exit_code == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(CASES)


def test_a_study_as_text_json_and_picture(tmp_path):
    picture = tmp_path / "clos.svg"
    done = run("clos", "--json", str(tmp_path / "clos.json"), "--plot", str(picture))
    assert done.exit_code == 0, done.output
    assert "agrees in direction  paper: completion us" in done.stdout  # the paper states no rate of a link
    answer = opened((tmp_path / "clos.json").read_text(), "study", "study")
    assert set(answer) == {"study", "title", "settings", "rows", "findings", "agrees", "verdict"}
    assert answer["rows"][0]["completion us"] == 165.98
    assert (answer["agrees"], answer["verdict"]) == (False, "differs")  # the slowest flow
    assert {(f["agrees"], f["verdict"]) for f in answer["findings"]} == {
        (False, "agrees in direction"), (False, "differs"), (None, None)
    }  # fmt: skip
    assert "<svg" in picture.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("clo",), "did you mean 'clos'"),
        (("clos", "--plot", "clos.gif"), "a picture is a file of .png, .svg, .pdf"),
        (("--json", "-"), "which study?"),
    ],
)
def test_wrong_input_is_refused(arguments, message):
    done = run(*arguments)
    assert done.exit_code == 2
    assert message in done.output


def study(holds, assumed=""):
    curve = Curve(label="a", x=(1024.0, 2048.0), y=(1.0, 20.0))
    return CaseStudy(
        name="x", title="X", settings=("S.",), columns=("size bytes", "us", "wall"),
        rows=((1024, 1.234, 5.0), (1 << 20, 1234.5, 50.0)),
        findings=(Finding(paper="p", here="h", holds=holds, assumed=assumed),
                  Finding(paper="", here="b", holds=None, volatile=True)),
        panels=(Panel(title="t", x_label="x", y_label="y", curves=(curve,), sizes=True, log="xy"),), volatile=("wall",),
    )  # fmt: skip


def test_text():
    lines = study(True).text(volatile=False).splitlines()
    assert lines == [
        "X",
        "S.",
        "",
        "size     us",
        "  1K   1.23",
        "  1M  1,234",
        "",
        "agrees   paper: p",
        "         here: h",
    ]
    assert study(True).text().splitlines()[-1] == "besides  b"
    assert "wall" in study(True).text()


def test_agrees():
    assert study(True).agrees
    assert study(None).agrees
    assert not study(False).agrees
    assert "differs  paper: p" in study(False).text()


def test_what_rests_on_assumptions_agrees_in_direction_at_most():
    found = study(True, assumed="32 wavefronts")
    assert not found.agrees
    assert found.verdict == "agrees in direction"
    assert "agrees in direction  paper: p\n         here: h\n         assumed: 32 wavefronts" in found.text()
    assert study(False, assumed="32 wavefronts").verdict == "differs"


def test_pictures_of_other_kinds_are_refused(tmp_path):
    study(True).plot(tmp_path / "a.png")
    with pytest.raises(InputError, match="a picture is a file"):
        study(True).plot(tmp_path / "a.gif")
    with pytest.raises(InputError, match="cannot write"):
        study(True).plot(tmp_path / "no" / "a.png")
