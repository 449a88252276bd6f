"""Is every file that trine writes complete or unchanged after a failure: full disks, kills, closed pipes?"""

from __future__ import annotations

import hashlib
import os
import signal
import stat
import subprocess
import sys
import threading

import numpy as np
import pytest
from full_disk import full_disk
from results_graphs import full_result

import trine
from trine.cluster import load_cluster
from trine.common.outputs import OutputFolder, open_output, write_bytes, write_text
from trine.errors import InputError, TraceError
from trine.formats.clusters import write_cluster
from trine.gpu.replay.write_files import save_writes
from trine.gpu.replay.writes import WriteTable
from trine.results.snapshot import write_snapshot

OLD = b"what was there before"
FULL = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="has no /dev/full")


def small_writes() -> WriteTable:
    table = WriteTable()
    table.register_writes(
        peer=np.array([1]), address=["input+0"], size_bytes=np.array([4]), value=0, time_ps=np.array([5])
    )
    return table


def save_trace(path):
    trine.save(trine.load("vgg13-h100-b128"), path)


#: Everything that writes one file: its ending and its writer.
WRITERS = {
    "json": (".json", lambda path: full_result().to_json(path)),
    "npz": (".npz", lambda path: full_result().to_npz(path)),
    "perfetto": (".pftrace", lambda path: full_result().to_perfetto(path)),
    "perfetto.gz": (".pftrace.gz", lambda path: full_result().to_perfetto(path)),
    "cluster": (".yaml", lambda path: write_cluster(load_cluster("dgx-h100"), path, "yaml")),
    "cluster-csv": (".csv", lambda path: write_cluster(load_cluster("dgx-h100"), path, "csv")),
    "snapshot": (".pickle", lambda path: write_snapshot({"segments": [{"device": 0}]}, path)),
    "writes.csv": (".csv", lambda path: save_writes(path, small_writes())),
    "writes.json": (".json", lambda path: save_writes(path, small_writes())),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_leaves_the_old_file_and_nothing_else(name, tmp_path):
    ending, write = WRITERS[name]
    path = tmp_path / f"kept{ending}"
    path.write_bytes(OLD[:20])
    with full_disk(20), pytest.raises(InputError, match=rf"^{path}: cannot write: File too large$"):
        write(path)
    assert path.read_bytes() == OLD[:20]
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@FULL
@pytest.mark.parametrize("name", WRITERS)
def test_devices_are_written_straight(name, tmp_path):
    ending, write = WRITERS[name]
    for device in ("null", "full"):
        (tmp_path / f"{device}{ending}").symlink_to(f"/dev/{device}")
    write(tmp_path / f"null{ending}")
    with pytest.raises(InputError, match="cannot write: No space left on device"):
        write(tmp_path / f"full{ending}")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)
    assert all(each.is_symlink() for each in tmp_path.iterdir())


def test_a_picture_is_whole_or_not_there(tmp_path):
    pytest.importorskip("matplotlib")
    from trine.results import plot_timeline

    path = tmp_path / "timeline.svg"
    plot_timeline(full_result(), path)
    first = path.read_bytes()
    path.write_bytes(OLD)
    (tmp_path / "link.svg").symlink_to(path)
    plot_timeline(full_result(), tmp_path / "link.svg")
    assert path.read_bytes() == first
    (tmp_path / "full.png").symlink_to("/dev/full")
    with pytest.raises(InputError, match="cannot write: No space left on device"):
        plot_timeline(full_result(), tmp_path / "full.png")


@pytest.mark.parametrize("problem", [ValueError("what"), KeyboardInterrupt()])
def test_what_goes_wrong_while_writing_leaves_the_old_file(problem, tmp_path):
    path = tmp_path / "file"
    for before in (None, OLD):
        if before is not None:
            path.write_bytes(before)
        with pytest.raises(type(problem)), open_output(path) as file:  # noqa: PT012
            file.write(b"half")
            file.flush()
            raise problem
        assert [each.read_bytes() for each in tmp_path.iterdir()] == ([] if before is None else [before])


def test_links_stay_and_what_they_point_to_is_replaced(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "there").write_bytes(OLD)
    for name, target in (("old", "deep/there"), ("new", "deep/made"), ("chain", "old"), ("loop", "loop")):
        (tmp_path / name).symlink_to(target)
    write_bytes(tmp_path / "new", b"1")
    write_bytes(tmp_path / "chain", b"2")
    with pytest.raises(InputError, match="cannot write: Too many levels of symbolic links"):
        write_bytes(tmp_path / "loop", b"3")
    assert all((tmp_path / name).is_symlink() for name in ("old", "new", "chain", "loop"))
    assert (tmp_path / "deep" / "made").read_bytes() == b"1"
    assert (tmp_path / "deep" / "there").read_bytes() == b"2"
    assert sorted(each.name for each in (tmp_path / "deep").iterdir()) == ["made", "there"]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_permissions_are_those_of_a_plain_open(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        write_text(tmp_path / "new", "1")
        (tmp_path / "old").write_bytes(OLD)
        (tmp_path / "old").chmod(0o640)
        write_text(tmp_path / "old", "2")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == mode
    assert stat.S_IMODE((tmp_path / "old").stat().st_mode) == 0o640


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_file_that_may_not_be_written_is_refused_and_one_in_a_closed_folder_is_overwritten(tmp_path):
    (tmp_path / "kept").write_bytes(OLD)
    (tmp_path / "kept").chmod(0o444)
    with pytest.raises(InputError, match="cannot write: Permission denied"):
        write_text(tmp_path / "kept", "new")
    (tmp_path / "kept").chmod(0o644)
    tmp_path.chmod(0o555)
    write_text(tmp_path / "kept", "new")
    assert (tmp_path / "kept").read_text() == "new"


def test_a_folder_that_takes_no_new_file_has_its_file_overwritten(tmp_path, monkeypatch):
    """As in a container that mounts a single file: no file can be renamed over it."""
    (tmp_path / "kept").write_bytes(OLD)

    def busy(*_):
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(os, "replace", busy)
    write_text(tmp_path / "kept", "new")
    assert [each.read_text() for each in tmp_path.iterdir()] == ["new"]
    with pytest.raises(InputError, match="busy"):
        write_text(tmp_path / "other", "new")
    assert [each.name for each in tmp_path.iterdir()] == ["kept"]


def test_a_pipe_is_written_straight_and_one_whose_reader_goes_is_named(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    write_bytes(tmp_path / "pipe", b"all of it")
    reader.join()
    assert found == [b"all of it"]
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    reader = threading.Thread(target=lambda: os.close(os.open(tmp_path / "pipe", os.O_RDONLY)))
    reader.start()
    with pytest.raises(InputError, match="cannot write: Broken pipe"), open_output(tmp_path / "pipe") as file:  # noqa: PT012
        reader.join()
        file.write(bytes(1 << 20))


def test_errors_name_the_file_and_are_of_the_kind_that_was_asked_for(tmp_path):
    with pytest.raises(TraceError, match=r"none/a: cannot write: No such file or directory"):
        write_text(tmp_path / "none" / "a", "", error=TraceError)
    with pytest.raises(InputError, match="has no NUL"):
        write_text(f"{tmp_path}/a\0b", "")
    with pytest.raises(InputError, match="Is a directory"):
        write_text(tmp_path, "")
    with pytest.raises(TraceError, match="cannot write: No such file"):
        save_trace(tmp_path / "none" / "a.trine.json")


def test_the_list_of_a_folder_is_what_sha256sum_checks(tmp_path):
    full_result().to_csv(tmp_path)
    rows = dict(reversed(line.split("  ")) for line in (tmp_path / "SHA256SUMS").read_text().splitlines())
    assert set(rows) == {each.name for each in tmp_path.iterdir()} - {"SHA256SUMS"}
    assert {name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in rows} == rows
    before = (tmp_path / "SHA256SUMS").read_bytes()
    with pytest.raises(KeyboardInterrupt), OutputFolder(tmp_path) as folder:  # noqa: PT012
        with folder.open("ranks.csv") as file:
            file.write(b"new")
        raise KeyboardInterrupt
    assert (tmp_path / "ranks.csv").read_bytes() == b"new"
    assert (tmp_path / "SHA256SUMS").read_bytes() == before


KILLED = """
import os, signal, sys
from trine.common.outputs import open_output
with open_output(sys.argv[1]) as file:
    file.write(b"half")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_leaves_the_old_file(tmp_path):
    (tmp_path / "file").write_bytes(OLD)
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "file"], check=False)
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "file").read_bytes() == OLD


# The command line


def run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how):
    return subprocess.run(
        [sys.executable, "-m", "trine", *map(str, words)], stdout=stdout, stderr=stderr, text=True, check=False, **how
    )


def closed_pipe() -> int:
    """Return the write end of a pipe whose reader has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


SHOW = ("cluster", "show", "dgx-h100")


def test_files_are_written_when_both_streams_are_closed(tmp_path):
    """As in ``2>&1 | head -4``."""
    writer = closed_pipe()
    done = run([*SHOW, "--json", tmp_path / "a.json", "--yaml", tmp_path / "a.yaml"], writer, writer)
    os.close(writer)
    assert done.returncode == 0
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.json", "a.yaml"]


def test_json_on_stdout_that_nobody_reads_is_missing():
    writer = closed_pipe()
    done = run([*SHOW, "--json", "-"], writer)
    os.close(writer)
    assert done.returncode == 1
    assert done.stderr.endswith("error: stdout: Broken pipe: the answer there is not whole\n")


@FULL
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_full_disk_under_a_stream_is_said_and_files_are_written(tmp_path, stream):
    with open("/dev/full", "wb") as full:
        done = run([*SHOW, "--json", tmp_path / "a.json"], **{stream: full})
    assert (tmp_path / "a.json").stat().st_size > 100
    assert done.returncode == (1 if stream == "stdout" else 0)
    if stream == "stdout":
        assert done.stderr.endswith("error: stdout: No space left on device: the answer there is not whole\n")


@FULL
def test_one_file_that_cannot_be_written_does_not_cost_the_others(tmp_path):
    done = run([*SHOW, "--json", "/dev/full", "--yaml", tmp_path / "a.yaml"])
    assert done.returncode == 2
    assert "error: /dev/full: cannot write: No space left on device\n" in done.stderr
    assert (tmp_path / "a.yaml").stat().st_size > 100


def test_a_file_that_stdout_goes_to_keeps_what_it_has(tmp_path):
    with (tmp_path / "all").open("wb") as file:
        done = run([*SHOW, "--json", tmp_path / "all"], file)
    assert done.returncode == 0
    text = (tmp_path / "all").read_text()
    assert "\0" not in text
    assert text.index("dgx-h100") < text.index("{\n")
    assert text.endswith("}\n")
