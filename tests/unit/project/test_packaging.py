"""Do the recipes of other package formats state what pyproject.toml states?

No container engine and no conda exist where these tests run: the recipes are compared and linted, not built.
"""

import re
import shlex
import tomllib
from pathlib import Path

from click.testing import CliRunner

from trine.__main__ import main
from trine.cli.main import app

ROOT = Path(__file__).parents[3]
PACKAGING = ROOT / "packaging"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def without_space(requirement: str) -> str:
    """Return ``name>=1`` of ``name >=1``."""
    return requirement.replace(" ", "")


def runs_of(recipe: str, section: str) -> set[str]:
    """Return the list of a section of meta.yaml, without spaces."""
    block = re.search(rf"^  {section}:\n((?:    - .*\n)+)", recipe, re.MULTILINE)
    assert block is not None, section
    return {without_space(line.removeprefix("    - ")) for line in block[1].splitlines()}


def test_the_conda_recipe_asks_for_the_same_packages():
    recipe = (PACKAGING / "conda" / "meta.yaml").read_text()
    python = f"python{PROJECT['requires-python']}"
    assert runs_of(recipe, "run") == {python, *map(without_space, PROJECT["dependencies"])}
    assert {python, "pip"} < runs_of(recipe, "host")
    assert f"trine = {PROJECT['scripts']['trine']}" in recipe
    assert callable(main)
    assert PROJECT["description"] in recipe
    for name in PROJECT["license-files"]:
        assert (ROOT / name).is_file()
        assert f"    - {name}\n" in recipe


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile: word and text, continued lines joined."""
    text = re.sub(r"^#.*\n", "", (PACKAGING / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in text.splitlines() if line.strip()]


def test_the_image_runs_without_rights_and_with_compiled_kernels():
    found = instructions()
    known = {"FROM", "COPY", "RUN", "ENV", "USER", "WORKDIR", "ENTRYPOINT", "CMD"}
    assert {word for word, _ in found} <= known
    words = [word for word, _ in found]
    warmup = next(index for index, (word, text) in enumerate(found) if word == "RUN" and "trine warmup" in text)
    assert words.index("USER") > warmup  # root compiles, and the user only reads
    assert dict(found)["USER"] not in ("root", "0")
    extras = re.search(r"/source\[([a-z,]+)\]", str(found))
    assert extras is not None
    assert set(extras[1].split(",")) <= set(PROJECT["optional-dependencies"])


def test_the_recipes_commands_are_valid():
    """Each ``trine ...`` line of the recipes is a command with these options."""
    for path in (PACKAGING / "Dockerfile", PACKAGING / "conda" / "meta.yaml"):
        lines = re.findall(r"(?:run --rm trine|^    - trine) (train .*)$", path.read_text(), re.MULTILINE)
        assert lines, path
        for line in lines:
            done = CliRunner().invoke(app, [*shlex.split(line), "--brief"])
            assert done.exit_code == 0, (line, done.output)
