"""Files that cannot be written are refused before a command does anything, in every command."""

from __future__ import annotations

import os
import sys

import pytest
from click.testing import CliRunner
from command_tree import all_commands

from trine.cli import output_files
from trine.cli.main import app
from trine.cli.output_files import check_outputs
from trine.errors import InputError, MissingExtraError

#: What captures make: a folder that must not be there; it is looked at when the capture begins.
OWN = {("trace", "capture"): "into"}


def commands():
    return ((tuple(words.split()), command) for words, command in all_commands())


def test_every_option_that_writes_is_looked_at():
    known = {*output_files.FILES, *output_files.PICTURES, *output_files.FOLDERS, *output_files.PREFIXES}
    found = {}
    for path, command in commands():
        for parameter in command.params:
            words = getattr(parameter, "help", None) or ""
            is_output = parameter.name == "output" or words.startswith(("Write ", "Draw ", "Picture to write"))
            if is_output or "to write" in words:
                found[path, parameter.name] = words
    looked_at = {key for key in found if key[1] in known}
    assert set(found) - looked_at == set(OWN.items())
    assert len(looked_at) > 40


def test_parameters_with_these_names_always_name_files():
    known = {*output_files.FILES, *output_files.PICTURES, *output_files.FOLDERS, *output_files.PREFIXES}
    for path, command in commands():
        for parameter in command.params:
            if parameter.name in known and parameter.param_type_name == "option":
                words = getattr(parameter, "help", "") or ""
                assert words.split()[0] in ("Write", "Draw", "File", "Picture", "The"), (path, parameter.name, words)


@pytest.mark.parametrize(
    ("name", "target", "problem"),
    [
        ("json", "none/a.json", "cannot write: No such file or directory: {tmp}/none"),
        ("json", "", "cannot write: Is a directory"),
        ("json", "file/a.json", "cannot write: Not a directory: {tmp}/file"),
        ("json", "x" * 300, "cannot write: File name too long"),
        ("csv", "none/a.csv", "cannot write: No such file or directory: {tmp}/none"),
        ("plot", "a.txt", "a picture is a file of .png, .svg, .pdf"),
        ("timeline", "none/a.png", "cannot write: No such file or directory: {tmp}/none"),
        ("parquet", "file/deeper", "cannot write: Not a directory: {tmp}/file"),
        ("chakra", "none/job", "cannot write: No such file or directory: {tmp}/none"),
    ],
)
def test_what_is_refused_and_why(tmp_path, name, target, problem):
    (tmp_path / "file").write_text("")
    path = f"{tmp_path}/{target}"
    with pytest.raises(InputError) as caught:
        check_outputs({name: path})
    assert f"{target[-40:]}: {problem.format(tmp=tmp_path)}" in str(caught.value)
    assert len(target) > 100 or str(caught.value).startswith(path)
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_what_may_be_written_is_left_as_it_is(tmp_path):
    kept = tmp_path / "kept.json"
    kept.write_text("old")
    before = kept.stat().st_mtime_ns
    (tmp_path / "link.csv").symlink_to(tmp_path / "made-by-writing.csv")
    check_outputs(
        {
            "json": str(kept), "perfetto": f"{tmp_path}/new", "parquet": f"{tmp_path}/a/b/c", "chakra": f"{tmp_path}/p",
            "csv": f"{tmp_path}/link.csv", "plot": None, "rows": 5, "plot_noc": f"{tmp_path}/p.PNG",
        }
    )  # fmt: skip
    assert kept.read_text() == "old"
    assert kept.stat().st_mtime_ns == before
    assert sorted(each.name for each in tmp_path.iterdir()) == ["kept.json", "link.csv"]
    check_outputs({"json": "-", "csv": "/dev/null", "perfetto": "/dev/null"})


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_is_read_only(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="cannot write: Permission denied"):
        check_outputs({"json": f"{tmp_path}/a.json"})


def test_two_answers_do_not_go_into_one_file(tmp_path):
    with pytest.raises(InputError, match="--json and --perfetto both write it"):
        check_outputs({"json": f"{tmp_path}/a", "perfetto": f"{tmp_path}/./a"})
    with pytest.raises(InputError, match="--perfetto - names no file: only --json writes to stdout"):
        check_outputs({"perfetto": "-"})
    with pytest.raises(InputError, match="--csv names no file"):
        check_outputs({"csv": ""})


@pytest.mark.parametrize(
    "words",
    [
        ("collective", "all_gather", "--size", "64M", "--cluster", "no-such-cluster"),
        ("eidolon", "run", "no-such-kernel"),
        ("eidolon", "sweep", "no-such-kernel"),
        ("train", "no-such-trace", "--gpus", "1"),
        ("kernel", "run", "no-such-file"),
        ("study", "no-such-study"),
        ("chakra", "run", "no-such-trace"),
    ],
)
def test_commands_look_at_files_before_anything_else(words):
    done = CliRunner().invoke(app, [*words, "--json", "/no/such/folder/a.json"])
    assert done.exit_code == 2
    assert done.stderr == "error: /no/such/folder/a.json: cannot write: No such file or directory: /no/such/folder\n"


def test_parquet_is_refused_before_the_run_where_pyarrow_is_missing(tmp_path, monkeypatch):
    """A step of an hour should not end with the advice to install something."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match="needs pyarrow"):
        check_outputs({"parquet": str(tmp_path / "records")})
    assert not (tmp_path / "records").exists()
