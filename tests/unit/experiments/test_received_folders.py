"""A folder from somebody else: does it run no code, write nowhere else, and is every fault of it named?"""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from experiment_questions import __name__ as QUESTIONS
from experiment_questions import square, sweep

import trine
from trine.cli.main import app
from trine.errors import InputError, StorageError
from trine.experiments.journal import WorkerJournal, journals, with_checksum
from trine.experiments.locks import locked
from trine.experiments.spec import ExperimentSpec, Shard


def spec(points=12, **changes):
    return ExperimentSpec(
        **{"command": "q", "vary": {"n": f"1..{points}"}, "question": f"{QUESTIONS}:square", **changes}
    )


def stored(folder, **changes):
    """Write the file of an experiment as a stranger may."""
    folder.mkdir()
    document = {"command": "open('ran', 'w')", "settings": {}, "vary": {"n": [1, 2]}, "question": "builtins:exec"}
    (folder / "experiment.json").write_text(json.dumps(document | changes))
    return folder


def run(*words):
    return subprocess.run(
        [sys.executable, "-m", "trine", *map(str, words)], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip


def refused(folder, **options):
    """Return the error of a sweep in a folder."""
    with pytest.raises(InputError) as caught:
        sweep(folder, processes=1, **options)
    assert len(f"error: {caught.value}") <= 400
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


@pytest.mark.parametrize(
    "question", ["builtins:exec", "os:system", "trine.cli.record:option_name", "nothing", "", "a:b:c"]
)
@pytest.mark.parametrize("extra", [[], ["--processes", "2"], ["--shard", "0/2"], ["--repair"]])
def test_a_folder_chooses_no_function(tmp_path, monkeypatch, question, extra, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        app.main(["sweep", str(stored(tmp_path / "e", question=question)), *extra])
    assert ended.value.code == 2
    assert "which trine does not import" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()


def test_python_needs_the_function_of_the_folder(tmp_path):
    sweep(spec(), tmp_path / "e", processes=1)
    with pytest.raises(InputError, match="which trine does not import"):
        trine.sweep(tmp_path / "e")
    with pytest.raises(InputError, match="which trine does not import"):
        trine.sweep(trine.Experiment(tmp_path / "e").spec, tmp_path / "e")
    with pytest.raises(InputError, match="asks 'experiment_questions:square', and the function is"):
        trine.sweep(tmp_path / "e", question=run)
    with pytest.raises(InputError, match="must be a function of a module"):
        trine.sweep(spec(), tmp_path / "f", question=lambda command, settings: {})
    assert trine.sweep(tmp_path / "e", question=square, processes=1).left == 0


@pytest.mark.parametrize("command", ["trace capture", "measure", "sweep", "cluster export", "warmup"])
def test_no_command_of_a_folder_runs_a_function_of_the_user_or_writes(tmp_path, command, capsys):
    """``trace capture evil.py:main`` imports a file, so no experiment may ask it."""
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\ndef main(): pass\n")
    settings = {"function": f"{tmp_path / 'evil.py'}:main", "into": str(tmp_path / "out")}
    folder = stored(
        tmp_path / "e", command=command, settings=settings, question="trine.cli.record:answer_point", vary={"n": [1]}
    )
    with pytest.raises(SystemExit) as ended:
        app.main(["sweep", str(folder), "--processes", "1"])
    assert ended.value.code in (1, 2)
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "out").exists()


def test_workers_import_no_module_of_the_current_folder(tmp_path):
    """``python -c``, which starts a worker, would look into the current folder first."""
    for name in ("multiprocessing", "yaml", "numba"):
        (tmp_path / f"{name}.py").write_text("open('ran', 'w')\nraise ImportError\n")
    (tmp_path / "e.yaml").write_text(
        "command: collective\nsettings: {op: all_reduce, cluster: dgx-h100}\nvary: {size: [1M, 2M, 3M, 4M, 5M, 6M]}\n"
    )
    code = "import sys; sys.path.remove(''); from trine.cli.main import main; main()"
    words = [sys.executable, "-c", code, "sweep", "e.yaml", "--processes", "2"]
    path = os.pathsep.join(each for each in sys.path if each)
    ended = subprocess.run(words, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert not (tmp_path / "ran").exists()


def test_a_copied_journal_is_counted_once(tmp_path):
    answer = sweep(spec(), tmp_path / "e", processes=1)
    (path,) = journals(tmp_path / "e")
    shutil.copy(path, path.with_name("copy.jsonl"))
    answer = trine.Experiment(tmp_path / "e")
    assert answer.counts == (12, 0)
    assert answer.left == 0
    assert len(answer.rows) == 12


def test_shards_that_share_points_are_refused_until_one_is_finished(tmp_path):
    place = tmp_path / "e"
    sweep(spec(60), place, processes=1, shard="0/2")
    (path,) = journals(place)
    whole = path.read_bytes()
    path.write_bytes(b"".join(whole.splitlines(keepends=True)[:20]))
    with pytest.raises(InputError, match=r"shard 0/3 shares points with shard 0/2, which is not finished.* i/2"):
        sweep(spec(60), place, processes=1, shard="0/3")
    sweep(spec(60), place, processes=1, shard="1/2")
    path.write_bytes(whole)
    sweep(spec(60), place, processes=1, shard="2/3")
    assert trine.Experiment(place).counts == (60, 0)


def test_drivers_at_the_same_time_share_no_point(tmp_path):
    """Shards 0/2 and 1/4 have no point in common; the whole experiment has points of both."""
    place = tmp_path / "e"
    sweep(spec(60), place, processes=1, shard="0/2")
    with locked(place, spec(60), Shard(0, 2)):
        sweep(spec(60), place, processes=1, shard="1/4")
        with pytest.raises(InputError, match="another process is answering shard 0/2 of it, which shares points"):
            sweep(spec(60), place, processes=1)
        with pytest.raises(InputError, match="another process is answering shard 0/2"):
            trine.Experiment(place).repair()
    assert sweep(spec(60), place, processes=1).counts == (60, 0)


@pytest.mark.parametrize("size", [5, 60, 61])
@pytest.mark.parametrize(
    ("one", "other"), [("0/2", "1/4"), ("3/4", "1/6"), ("0/1", "2/5"), ("5/6", "1/4"), ("0/4", "1/6")]
)
def test_shared_points_are_those_of_both_shards(one, other, size):
    first, second = Shard.parse(one), Shard.parse(other)
    both = set(range(first.number, size, first.of)) & set(range(second.number, size, second.of))
    assert set(first.shared(second, size)) == set(second.shared(first, size)) == both


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EFBIG, errno.EDQUOT])
def test_a_failed_write_is_cut_back_and_ends_the_run_with_its_reason(tmp_path, monkeypatch, number):
    real, written = os.write, []

    def write(handle, content):
        if written:
            raise OSError(number, os.strerror(number))
        if content.startswith(b'{"point":5'):
            written.append(real(handle, content[:30]))
            return written[0]
        return real(handle, content)

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(StorageError, match=f"cannot write: {os.strerror(number)} .*the same call goes on"):
        sweep(spec(), tmp_path / "e", processes=1)
    (path,) = journals(tmp_path / "e")
    assert path.read_bytes().endswith(b"\n")
    assert trine.Experiment(tmp_path / "e").counts == (5, 0)
    monkeypatch.undo()
    assert sweep(tmp_path / "e", processes=1).counts == (12, 0)


def test_a_limit_of_the_file_size_ends_the_run_at_once(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (9000, limits[1]))
    try:
        with pytest.raises(StorageError, match="File too large"):
            sweep(spec(300), tmp_path / "e", processes=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    answered, failed = trine.Experiment(tmp_path / "e").counts
    assert answered > 5
    assert failed == 0


DAMAGE = {
    "a changed digit": lambda text: text.replace(b'"square":9', b'"square":8'),
    "a cut line": lambda text: text.replace(b'"status":"done"', b"\n", 1),
    "UTF-16": lambda text: text.decode().encode("utf-16"),
    "latin-1": lambda text: b"\xe9\xff\n" + text,
    "another file": lambda text: b"%PDF-1.4\n\x00\n",
    "an image without line ends": lambda text: b"\x89PNG" * 40000,
    "a list": lambda text: b"[1, 2]\n",
    "many digits in the header": lambda text: b'{"experiment":' + b"9" * 5000 + b"}\n",
    "deep nesting": lambda text: b"[" * 100_000 + b"\n",
    "another experiment": lambda text: text.replace(b'{"experiment":"', b'{"experiment":"0'),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named_and_repair_goes_on(tmp_path, damage, capsys):
    sweep(spec(), tmp_path / "e", processes=1)
    (path,) = journals(tmp_path / "e")
    content = path.read_bytes()
    path.write_bytes(DAMAGE[damage](content))
    problem = refused(tmp_path / "e")
    assert path.name in problem
    assert f"'trine sweep {tmp_path / 'e'} --repair'" in problem
    aside = trine.Experiment(tmp_path / "e").repair()
    assert [each.suffix for each in aside] == [".damaged"]
    assert sweep(tmp_path / "e", processes=1).to_frame()["square"].tolist() == [n * n for n in range(1, 13)]


@pytest.mark.parametrize(
    "change",
    [
        {"point": 10**30}, {"point": -1}, {"point": 12}, {"point": 1.5}, {"point": "3"}, {"point": None},
        {"fields": None},
        {"fields": [1]}, {"status": "lost"}, {"key": 3}, {"result": [1]}, {"seconds": "1"}, {"result": None},
        {"result": {"square": float("inf")}},
    ],
)  # fmt: skip
def test_lines_that_no_worker_writes_are_damaged(tmp_path, change):
    """A stranger can also compute a checksum."""
    sweep(spec(), tmp_path / "e", processes=1)
    (path,) = journals(tmp_path / "e")
    lines = path.read_bytes().splitlines(keepends=True)
    entry = json.loads(lines[3])
    del entry["crc32"]
    text = json.dumps(entry | change, separators=(",", ":")).replace("Infinity", "1e309")
    path.write_bytes(b"".join([*lines[:3], with_checksum(text), *lines[4:]]))
    with pytest.raises(InputError, match="is damaged"):
        trine.Experiment(tmp_path / "e").to_frame("points")
    assert len(trine.Experiment(tmp_path / "e").repair()) == 1
    assert sweep(tmp_path / "e", processes=1).counts == (12, 0)


def link(place: Path, target: Path) -> None:
    """Replace a path by a link."""
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    place.symlink_to(target)


def test_compact_and_plot_replace_links(tmp_path):
    pytest.importorskip("matplotlib")
    answer = sweep(spec(), tmp_path / "e", processes=1)
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    for name in ("points.parquet", "square-by-n.png"):
        link(tmp_path / "e" / name, mine)
    answer.compact()
    with pytest.raises(SystemExit) as ended:
        app.main(["plot", str(tmp_path / "e"), "x=n", "y=square"])
    assert ended.value.code == 0
    assert mine.read_text() == "mine"
    assert (tmp_path / "e" / "points.parquet").stat().st_size > 500
    answer.to_parquet(tmp_path / "tables")
    link(tmp_path / "tables" / "points.parquet", mine)
    answer.to_parquet(tmp_path / "tables")
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("name", ["journal", "journal/0-of-1", "running", "files"])
def test_folders_of_an_experiment_are_no_links(tmp_path, name):
    other = tmp_path / "other"
    (other / "0-of-1").mkdir(parents=True)
    (other / "0-of-1" / "mine.txt").write_text("mine")
    settings = {"workload": "model:gpt-2,layers=1", "cluster": "dgx-h100", "dp": 2}
    asked = spec(2, command="train", settings=settings, vary={"cluster.fabric.link": "ib-ndr,ib-xdr"})
    place = tmp_path / "e"
    sweep(asked, place, processes=1, shard="0/2")
    (place / "running").mkdir(exist_ok=True)
    link(place / name, other)
    with pytest.raises(StorageError, match="is a symbolic link"):
        sweep(asked, place, processes=1)
    assert [path.name for path in other.rglob("*")] == ["0-of-1", "mine.txt"]


def test_a_pipe_in_the_place_of_a_journal_is_refused_at_once(tmp_path):
    sweep(spec(), tmp_path / "e", processes=1)
    os.mkfifo(tmp_path / "e" / "journal" / "0-of-1" / "a.jsonl")
    assert "a pipe, not a regular file" in refused(tmp_path / "e")


def test_a_journal_closes_after_a_full_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(
        os, "fsync", lambda handle: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device"))
    )
    (tmp_path / "e").mkdir()
    journal = WorkerJournal(tmp_path / "e", spec(), Shard())
    with pytest.raises(StorageError, match="No space left on device"):
        journal.sync()
    journal.close()
