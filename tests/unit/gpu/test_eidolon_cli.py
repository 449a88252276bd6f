"""Do the commands of `trine eidolon` answer, write their files, and report errors in one line?"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from eidolon_cases import TURN
from envelope import opened

import trine.gpu.replay.record
from trine.cli.main import app
from trine.gpu.replay.options import EidolonOptions
from trine.gpu.replay.record import record_run
from trine.gpu.replay.run import run_eidolon

REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "eidolon-json.md"
SMALL = ["gemv-allreduce", "--rows", "128", "--cols", "128"]


def call(*words, code=0):
    done = CliRunner().invoke(app, ["eidolon", *map(str, words)])
    assert done.exit_code == code, done.output
    return done


def answer(*words):
    return opened(call("run", *words, "--json", "-").stdout, "eidolon run", "eidolon")


def test_run_has_the_keys_that_are_asked_for_and_all_are_documented():
    found = answer(*SMALL, "--sync", "mwait")
    for key in ("time_s", "flag_reads", "non_flag_reads", "writes_delivered", "wait_s", "simulator"):
        assert found[key] is not None
    told = REFERENCE.read_text()
    for key in [*found, *found["options"], *found["inside"], *found["simulator"]]:
        assert f"`{key}`" in told, key
    assert found["options"]["sync"] == "mwait"
    assert found["evidence"][0]["kind"] == "assumed"


def test_a_sweep_writes_its_files(tmp_path):
    pytest.importorskip("matplotlib")
    files = {name: tmp_path / f"grid.{name}" for name in ("json", "csv", "png")}
    done = call(
        "sweep", *SMALL[:1], "--rows", "64,128", "--cols", "128", "--wakeup", "0:20us:10us", "--json", files["json"],
        "--csv", files["csv"], "--plot", files["png"],
    )  # fmt: skip
    assert "reads less from a wake-up time of" in done.stdout
    found = opened(files["json"].read_text(), "eidolon sweep", "eidolon-sweep")
    assert len(found["runs"]) == 2 * 3 * 2
    assert len(found["fits"]) == 2
    assert files["csv"].read_text().count("\n") == 13
    assert files["png"].stat().st_size > 5000
    told = REFERENCE.read_text()
    for key in [*found, *found["runs"][0], *found["fits"][0]]:
        assert f"`{key}`" in told, key


def test_a_record_replays_to_the_picosecond(tmp_path):
    record, program = tmp_path / "record.npz", tmp_path / "turn.txt"
    program.write_text(TURN)
    call("record", program, "-o", record)
    replayed = answer(program, "--arrivals", record)
    options = EidolonOptions(kernel=str(program))
    assert replayed["time_s"] == record_run(options, fold="off").run.end_ps / 1e12
    assert replayed["evidence"][0]["kind"] == "modelled"
    assert answer(program, "--symmetric")["time_s"] == replayed["time_s"]


@pytest.mark.parametrize("sync", ["spin", "mwait"])
@pytest.mark.parametrize("kernel", ["gemv-allreduce", "gemm-allreduce", "gemm-reducescatter", "embedding-alltoall"])
def test_symmetric_peers_give_the_times_of_a_run_of_all(kernel, sync):
    sizes = {"rows": 64, "cols": 128, **({} if kernel.startswith("gemv") else {"inner": 16})}
    alone = run_eidolon(EidolonOptions(kernel=kernel, **sizes, symmetric=True, sync=sync))
    options = EidolonOptions(kernel=kernel, **sizes, sync=sync)
    both = record_run(options, fold="off").run
    assert alone.end_ps == int(both.records.end_ps[alone.work.target])
    assert alone.flag_reads == int(both.gpu.acquires[alone.work.target])


def test_a_rank_that_is_folded_is_recorded_where_it_is_simulated(tmp_path):
    """One of three rotated but equal ranks is simulated: the others' records are its record, rotated."""
    program = tmp_path / "turn.txt"
    program.write_text(TURN)
    said = call("record", program, "--target", "2", "-o", tmp_path / "record.npz").stdout
    assert "came to rank 0, as which rank 2 does" in said
    found = answer(program, "--target", "2", "--symmetric")
    assert found["options"]["target"] == 0
    assert "rank 2 does as rank 0 does, which is simulated" in found["warnings"]
    alone = record_run(EidolonOptions(kernel=str(program), target=2), fold="off").run
    assert found["time_s"] == int(alone.records.end_ps[2]) / 1e12


def test_peers_that_write_no_flag_have_no_wake_up_time(tmp_path):
    program = tmp_path / "quiet.txt"
    program.write_text(TURN.partition("  for d")[0])
    assert "peers release no semaphore" in call("run", program, "--wakeup-from", "start", code=2).stderr


def test_a_record_that_could_not_be_replayed_is_not_simulated(tmp_path, monkeypatch):
    program = tmp_path / "multimem.txt"
    program.write_text(
        "program sums\nranks 4\nbuffer data 4 KiB\nkernel ranks all\ncopy 1 lines multimem all:data -> own:data\n"
    )
    monkeypatch.setattr(trine.gpu.replay.record, "run_gpus", lambda *_, **__: pytest.fail("it is simulated"))
    said = call("record", program, "-o", tmp_path / "r.npz", code=2).stderr
    assert "'sums': multimem operations, which switches copy for all members, are not replayed" in " ".join(
        said.split()
    )
    assert not (tmp_path / "r.npz").exists()


def test_writes_from_a_record(tmp_path):
    record, writes = tmp_path / "record.npz", tmp_path / "writes.csv"
    call("record", *SMALL, "-o", record)
    assert "to the ps" in call("writes-from", record, "-o", writes).stderr
    found = answer(*SMALL, "--writes", writes)
    assert found["writes_delivered"] == answer(*SMALL, "--arrivals", record)["writes_delivered"]
    assert found["options"]["writes_begin_at_memory"]


def test_writes_from_an_operator_level_run(tmp_path):
    records, writes = tmp_path / "records.csv", tmp_path / "writes.csv"
    rows = [f"transfer,,{peer},0,{peer}000000,{peer + 1}000000,4096" for peer in (1, 2, 3)]
    records.write_text("\n".join(["kind,name,rank,peer,start_ps,end_ps,size_bytes", *rows]) + "\n")
    call("writes-from", records, "--kernel", SMALL[0], *SMALL[1:], "-o", writes)
    late = answer(*SMALL, "--writes", writes)
    assert late["time_s"] > 4e-6  # the last transfer ends at 4 us
    early = tmp_path / "early.csv"
    call("writes-from", records, "--kernel", SMALL[0], *SMALL[1:], "--from", "first", "-o", early)
    first, there = (min(int(row.rsplit(",", 1)[1]) for row in file.read_text().split()[1:]) for file in (early, writes))
    assert there - first == 10**6  # the first transfer starts at 1 us
    listed = tmp_path / "listed.json"
    call("writes-from", records, "--buffer", "input", "-o", listed)
    assert len(json.loads(listed.read_text())["writes"]) >= 5


def test_a_profile_without_its_mapping_is_seen(tmp_path):
    profile = tmp_path / "profile.csv"
    profile.write_text("Kind,Agent_Id,Kernel_Name,Start_Timestamp,End_Timestamp\n")
    for words in ((), ("--buffer", "input"), ("--kernel", SMALL[0])):
        said = call("writes-from", profile, *words, "-o", tmp_path / "writes.csv", code=2).stderr
        assert "this is no table of records" in said
        assert "a profile needs --mapping FILE" in said
    records = tmp_path / "records.csv"
    records.write_text("kind,rank,peer,start_ps,end_ps,size_bytes\n")
    said = call("writes-from", records, "-o", tmp_path / "writes.csv", code=2).stderr
    assert f"{records}: where do transfers go?" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "gemv-alreduce"], "did you mean 'gemv-allreduce'"),
        (["run", *SMALL, "--tile", "64"], "tile"),
        (["run", *SMALL, "--tile", "a"], "--tile is like"),
        (["run", *SMALL, "--straggler", "2"], "--straggler is RANK:TIME"),
        (["run", *SMALL, "--straggler", "2:1us", "--straggler", "2:3us"], "--straggler names a rank twice"),
        (["run", *SMALL, "--writes", "none.csv"], "none.csv"),
        (["run", *SMALL, "--plot", "a.txt"], "a picture is a file of"),
        (["sweep", "--wakeup", "0:40us"], "FIRST:LAST:STEP"),
        (["sweep", "--rows", "12,x"], "--rows is whole numbers"),
        (["sweep", "--wakeup", "40us:0:5us"], "goes upwards"),
        (["sweep", *SMALL[:1], "--plot", "a.png"], "--plot draws curves"),
        (["record", *SMALL, "-o", "a.csv"], "a record is .npz"),
        (["writes-from", "a.csv", "-o", "b.csv"], "a.csv: cannot be read: No such file or directory"),
        (["writes-from", "a.csv", "b.csv", "-o", "c.csv", "--buffer", "x"], "which needs --mapping FILE"),
        (["writes-from", "a.csv", "-o", "b.csv", "--rows", "3"], "--rows is about a kernel"),
        (["writes-from", "a.csv", "-o", "b.csv", "--cluster", "dgx-h100"], "--cluster is about a kernel"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(words, message):
    done = call(*words, code=2)
    assert message in done.output
    assert len(re.findall(r"^error: ", done.stderr, re.MULTILINE)) == 1
