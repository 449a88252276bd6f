"""Does click accept every command line in the code blocks of the documentation, with values that exist?"""

from __future__ import annotations

from pathlib import Path

import pytest
from command_tree import all_commands
from page_commands import commands, named_options, problem, spans

ROOT = Path(__file__).parents[3]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "examples").glob("*.md")])
LINES = {line: page.relative_to(ROOT) for page in PAGES if page.name != "CHANGELOG.md" for line in commands(page)}
SPANS = {line: page.relative_to(ROOT) for page in PAGES if page.name != "CHANGELOG.md" for line in spans(page)}
#: Command lines that are wrong on purpose, with the reason.
EXCEPTIONS: dict[str, str] = {}
#: Options of other programs that the text names.
OTHERS = {
    "--comm-group-configuration": "ASTRA-sim",
    "--all": "examples/42_eidola_size.py",
    "--sample": "python -m validation",
    "--stored": "python -m validation",
    "--leave": "benchmarks/fit_collectives.py",
    "--slow-nic": "examples/18_llama_405b_at_scale.py",
    "--zero": "DeepSpeed's, which trine answers with its own",
    "--help": "click's",
}


@pytest.mark.parametrize("line", [line for line in LINES if line not in EXCEPTIONS])
def test_click_accepts_the_command(line):
    said = problem(line)
    assert said is None, f"{LINES[line]}: {line}: {said}"


@pytest.mark.parametrize("line", SPANS)
def test_text_names_commands_and_options_that_exist(line):
    said = problem(line) or ""
    assert not said.startswith("No such") or "COMMAND" in line, f"{SPANS[line]}: {line}: {said}"


def test_text_names_options_that_some_command_has():
    known = {
        name for _, command in all_commands() for each in command.params for name in (*each.opts, *each.secondary_opts)
    } | {"--version", "--show-completion", *OTHERS}
    pages = [page for page in PAGES if page.name != "CHANGELOG.md"]
    found = {name: page.relative_to(ROOT) for page in pages for name in named_options(page)}
    assert {name: str(page) for name, page in found.items() if name not in known} == {}
    assert set(OTHERS) <= set(found)


def test_exceptions_are_in_the_pages_and_wrong():
    assert [line for line in EXCEPTIONS if line not in LINES or problem(line) is None] == []


def test_wrong_lines_are_noticed():
    assert len(LINES) > 80
    for line, says in (
        ("trine train vgg13-h100-b128 --gpu-count 8", "No such option"),
        ("trine train vgg13-h100-b128 --parallel dddp", "has no value"),
        ("trine train vgg13-h100-b128 --dp two", "whole number"),
        ("trine collective all_reduce --size 1M --cluster dgx-h200x", "has no value"),
        ("trine colective all_reduce", "No such command"),
        ("trine train vgg13-h100-b128 --tp", "requires an argument"),
    ):
        assert says in (problem(line) or ""), line
