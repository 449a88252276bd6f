"""Do the examples run, and print what their .out files say?"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
README = EXAMPLES.parent / "README.md"
#: the time that the simulation itself took differs from run to run
WALL = re.compile(r"events in .* by trine")


def run(script: Path, folder: Path) -> str:
    copy = folder / script.name  # pictures are written beside the script
    copy.write_text(script.read_text())
    if script.parent == EXAMPLES:
        shutil.copytree(EXAMPLES / "data", folder / "data")
    done = subprocess.run([sys.executable, str(copy)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return WALL.sub("events in ... by trine", done.stdout)


@pytest.mark.parametrize("script", sorted(EXAMPLES.glob("[0-9]*.py")), ids=lambda path: path.stem)
def test_example_prints_what_it_says(script, tmp_path):
    assert run(script, tmp_path) == WALL.sub("events in ... by trine", script.with_suffix(".out").read_text())
    if script.with_suffix(".png").exists():
        assert (tmp_path / script.with_suffix(".png").name).stat().st_size > 5000


def test_the_list_names_every_example_in_order():
    listed = re.findall(r"^\| `(\d\w+)`", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert listed == sorted(path.stem for path in EXAMPLES.glob("[0-9]*.py"))


def test_the_readme_prints_what_it_says(tmp_path):
    text = README.read_text()
    code = re.search(r"```python\n(.*?)```\n\nprints\n\n((?:    [^\n]*\n)+)", text, re.DOTALL)
    assert code is not None
    script = tmp_path / "readme.py"
    script.write_text(code[1])
    assert run(script, tmp_path) == "".join(line[4:] + "\n" for line in code[2].splitlines())
