"""Do the examples run and print the text of their .out files?"""

import re
import runpy
import shutil
import sys
import warnings
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from unittest.mock import patch

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
README = EXAMPLES.parent / "README.md"
#: the simulation's own run time differs from run to run
WALL = re.compile(r"events in .* by trine")


#: Examples that take too long: the arguments that shorten them, and the number of .out lines that they then print.
SHORTER = {"18_llama_405b_at_scale": (["--dp", "128"], 4)}
#: Examples that `make test` runs, one per subject; the others take seconds each: `make test-slow`.
QUICK = ("01_quick_start", "06_any_task_graph", "09_any_cluster", "16_chakra", "20_gpu_program")
SCRIPTS = sorted(EXAMPLES.glob("[0-9]*.py"))


def run(script: Path, folder: Path, words: Sequence[str] = ()) -> str:
    """Return a script's output; it runs in this process, as a new one would load all kernels again."""
    copy = folder / script.name  # pictures are written beside the script
    copy.write_text(script.read_text())
    if script.parent == EXAMPLES:
        shutil.copytree(EXAMPLES / "data", folder / "data")
        shutil.copy(EXAMPLES / "paper_models.py", folder)  # two of them import it
    printed = StringIO()
    with (
        patch.object(sys, "argv", [str(copy), *words]),
        patch.object(sys, "path", [str(folder), *sys.path]),
        warnings.catch_warnings(),
        redirect_stdout(printed),
    ):
        warnings.simplefilter("default")
        runpy.run_path(str(copy), run_name="__main__")
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")
    return WALL.sub("events in ... by trine", printed.getvalue())


@pytest.mark.parametrize("stem", SHORTER)
def test_an_example_of_minutes_prints_at_a_smaller_size_what_it_says(stem, tmp_path):
    words, lines = SHORTER[stem]
    script = EXAMPLES / f"{stem}.py"
    assert (
        run(script, tmp_path, words).splitlines()[:lines] == script.with_suffix(".out").read_text().splitlines()[:lines]
    )


@pytest.mark.parametrize(
    "script",
    [pytest.param(each, marks=[pytest.mark.slow] * (each.stem not in QUICK), id=each.stem) for each in SCRIPTS],
)
def test_example_prints_what_it_says(script, tmp_path):
    assert run(script, tmp_path) == WALL.sub("events in ... by trine", script.with_suffix(".out").read_text())
    if script.with_suffix(".png").exists():
        assert (tmp_path / script.with_suffix(".png").name).stat().st_size > 5000


def test_the_list_names_every_example_in_order():
    listed = re.findall(r"^\| `(\d\w+)`", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert listed == [each.stem for each in SCRIPTS]
    assert set(QUICK) <= set(listed)


def test_the_readme_prints_what_it_says(tmp_path):
    text = README.read_text()
    code = re.search(r"```python\n(.*?)```\n\nprints\n\n((?:    [^\n]*\n)+)", text, re.DOTALL)
    assert code is not None
    script = tmp_path / "readme.py"
    script.write_text(code[1])
    assert run(script, tmp_path) == "".join(line[4:] + "\n" for line in code[2].splitlines())
