"""Are help pages complete, fast, grouped in panels and as wide as the terminal, and do shells complete values?"""

from __future__ import annotations

import io
import os
import shlex
import subprocess
import sys

import pytest
from click.testing import CliRunner
from command_tree import built

from trine.cli.colour import has_colour
from trine.cli.commands import COMMANDS, COMMON, GROUPS, MAX_LISTED, below, find
from trine.cli.help import command_page, group_page
from trine.cli.main import app, page
from trine.cli.output import coloured, show_table
from trine.cli.parameters import all_parameters, varied_parameters

HEAVY = ("numba", "numpy", "click", "rich", "yaml")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.words)
def test_the_table_of_commands_says_what_the_commands_say(command):
    text = command.function().__doc__ or ""
    about = " ".join(text.partition("Example:")[0].split())
    assert about == command.about
    assert built(command.words).name == command.words.split()[-1]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.words)
def test_every_command_has_an_example_with_options_that_it_has(command):
    example = (command.function().__doc__ or "").partition("Example: ")[2].strip()
    words = shlex.split(example)
    assert words[: 1 + len(command.words.split())] == ["trine", *command.words.split()]
    known = {name for each in all_parameters(command.function()) for form in each.names for name in form.split("/")}
    assert {word for word in words if word.startswith("--")} <= known


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.words)
def test_every_option_is_on_its_page_in_a_panel(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "90")
    text = command_page(command.words, command.function(), is_all=True)
    for each in all_parameters(command.function()):
        for name in each.names if not each.option.is_argument else ():
            assert name in text
        assert each.option.help, f"{command.words} {each.name} has no help"
    assert all(len(line) <= 90 for line in text.splitlines() if not line.startswith((" Example", "Usage"))), text
    for option, is_all in (("--help", False), ("--help-all", True)):
        done = CliRunner().invoke(app, [*command.words.split(), option], prog_name="trine")
        assert done.exit_code == 0
        assert done.output.strip() == command_page(command.words, command.function(), is_all=is_all).strip()
        assert page([*command.words.split(), option]) == command_page(command.words, command.function(), is_all=is_all)


def test_help_lists_the_options_that_are_used_most():
    for command in COMMANDS:
        options = [each for each in all_parameters(command.function()) if not each.option.is_argument]
        text = command_page(command.words, command.function())
        listed = [each for each in options if f"{each.long} " in text or f"{each.long}/" in text]
        if command.words in COMMON:
            assert len(options) > MAX_LISTED - 1
            assert {each.long.removeprefix("--") for each in options} >= set(COMMON[command.words])
            assert len(listed) <= (15 if command.words == "train" else MAX_LISTED)
            assert "--details" in text or "--details" not in (each.long for each in options)
            hidden = len(options) - len(listed) + len(varied_parameters(command.words, options)[1:])
            assert f"Show {hidden} more options." in text
        else:
            assert len(all_parameters(command.function())) <= MAX_LISTED, command.words
            assert len(listed) == len(options)


def test_commands_stand_in_the_order_of_use_and_groups_are_whole():
    names = [name for name, _, _ in below("")]
    assert names[:3] == ["train", "plan", "collective"]
    assert set(GROUPS) <= set(names)
    text = group_page()
    assert all(f" {name} " in text for name in names)
    assert CliRunner().invoke(app, ["--help"]).output.strip() == text.strip()


def test_pages_are_found_from_what_is_typed():
    assert "Usage: trine [OPTIONS] COMMAND" in (page(["--help"]) or "")
    assert "Usage: trine cluster [OPTIONS]" in (page(["cluster", "-h"]) or "")
    assert "Usage: trine train [OPTIONS] WORKLOAD" in (page(["train", "x", "--dp", "2", "--help"]) or "")
    assert page(["no-such-command", "--help"]) is None
    assert page(["train", "x"]) is None


@pytest.mark.parametrize("words", [["--help"], ["cluster", "--help"], ["--version"]])
def test_pages_of_groups_import_nothing_heavy(words):
    code = (
        "import sys, os\nfrom trine.cli import main\n"
        f"main._run({words!r})\nprint([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert "trine" in done.stdout


def test_the_page_of_train_imports_neither_numpy_nor_click():
    code = (
        "import sys\nfrom trine.cli import main\n"
        f"main._run(['train', '--help'])\nprint([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_colour_only_where_it_is_wanted(monkeypatch):
    class Terminal:
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert has_colour(Terminal())
    monkeypatch.setenv("TERM", "dumb")
    assert not has_colour(Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not has_colour(Terminal())
    assert "\x1b" not in group_page()
    assert "\x1b[1;36mtrain\x1b[0m" in group_page(colour=True)


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        ("train", "cluster", "dgx-h100"),
        ("train", "workload", "vgg13-h100-b128"),
        ("train", "workload", "model:llama-3-8b"),
        ("train", "schedule", "zb-h1"),
        ("train", "algorithm", "all_reduce=ring"),
        ("train", "network", "fair"),
        ("train", "sharding", "fsdp"),
        ("train", "gpu", "h100-sxm"),
        ("train", "compute", "roofline"),
        ("collective", "op", "all_reduce"),
        ("collective", "algorithm", "ring"),
        ("eidolon run", "kernel", "gemv-allreduce"),
        ("gpu show", "name", "eidola"),
        ("study", "name", "all-gather"),
        ("cluster import", "format", "infragraph"),
    ],
)
def test_values_are_completed(words, name, value):
    function = next(each for each in COMMANDS if each.words == words).function()
    parameter = next(each for each in all_parameters(function) if each.name == name)
    assert value in parameter.values()


def test_a_shell_completes_names_of_clusters():
    environment = {
        **os.environ,
        "_TRINE_COMPLETE": "bash_complete",
        "COMP_WORDS": "trine train x --cluster dgx-h1",
        "COMP_CWORD": "4",
    }
    code = "import sys\nsys.argv = ['trine']\nfrom trine.cli.main import main\nmain()"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**environment}, check=False
    )
    assert "dgx-h100" in done.stdout, done


def test_what_is_wrong_is_red_at_a_terminal_and_plain_in_a_pipe(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = "warning: out of memory: 8 of 8 ranks do not fit"
    pipe, terminal = io.StringIO(), io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    assert coloured(text, pipe) == text
    assert (
        coloured(text, terminal) == "\x1b[1;31mwarning:\x1b[0m \x1b[1;31mout of memory\x1b[0m: 8 of 8 ranks do not fit"
    )
    monkeypatch.setenv("NO_COLOR", "1")
    assert coloured(text, terminal) == text


def test_tables_fit_the_terminal_and_stay_as_they_are_in_a_pipe(monkeypatch, capsys):
    rows = [("dgx-h100", "eight GPUs " * 12)]
    show_table("{:12} {}", ("name", "what it is"), rows, None)
    plain = capsys.readouterr().out
    assert plain.splitlines() == ["name         what it is", "dgx-h100     " + "eight GPUs " * 12]
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    show_table("{:12} {}", ("name", "what it is"), rows, None)
    shown = capsys.readouterr().out
    assert shown.count("eight") == 12
    assert all(len(line) <= 100 for line in shown.splitlines())


@pytest.mark.parametrize(
    "words", [("train", "vgg13-h100-b128"), ("collective", "all_reduce", "--size", "1M", "--cluster", "dgx-h100")]
)
def test_brief_prints_the_headline_only(words):
    done = CliRunner().invoke(app, [*words, "--brief"])
    assert done.exit_code == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1
    assert "warning" not in done.stderr, "a slow run may show its progress there, and nothing else"


def test_no_option_of_train_is_left_in_a_panel_of_its_own():
    """Every option belongs to a panel with a topic, not to the default panel ``Options``."""
    assert not [each.name for each in all_parameters(find("train").function()) if each.option.panel == "Options"]
