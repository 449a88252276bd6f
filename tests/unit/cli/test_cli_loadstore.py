"""Does ``trine collective --fidelity loadstore`` print, write and stop as documented?"""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from envelope import opened

import trine
from trine.cli.main import app
from trine.gpu.collective import LoadStoreOptions, loadstore_collective
from trine.gpu.collective.runs import LoadStoreRuns

DATA = Path(__file__).parents[2] / "data"
MACHINE = ("--cluster", "dgx-h100", "--gpus", "4")
INSIDE = (*MACHINE, "--fidelity", "loadstore", "--workgroups", "4", "--wavefronts", "2")


def invoke(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def answer(*arguments: object):
    done = invoke("collective", *arguments, "--json", "-")
    assert done.exit_code == 0, done.output
    schema = "fidelity" if "--compare-fidelity" in arguments else "loadstore-collective"
    return opened(done.stdout, "collective", schema), done.stderr


def test_one_size_is_shown_in_full_and_several_as_a_table() -> None:
    data, text = answer("all_reduce", "--size", "64K", *INSIDE)
    assert "bottleneck: " in text
    assert data["run"]["time_s"] * 1e6 == pytest.approx(data["rows"][0]["time_us"])
    assert (data["fidelity"], data["num_ranks"], data["gpu_model"], data["finished"]) == (
        "loadstore",
        4,
        "h100-sxm",
        True,
    )
    data, text = answer("allreduce", "--size", "1K,64K", *INSIDE)
    assert [row["size_bytes"] for row in data["rows"]] == [1 << 10, 1 << 16]
    assert data["run"] is None
    assert "bottleneck: " not in text
    for row in data["rows"]:
        assert f"{row['time_us']:.2f}" in text
        assert row["time_us"] == min(each["time_us"] for each in row["tried"] if each["time_us"] is not None)


def test_it_says_what_the_function_says() -> None:
    data, _ = answer("all_gather", "--size", "1K,64K", *INSIDE, "--unroll", 4, "--algorithm", "get")
    cluster = trine.load_cluster("dgx-h100", gpus=4)
    options = trine.LoadStoreOptions(algorithm="get", workgroups=4, wavefronts=2, unroll=4)
    found = trine.loadstore_collective("all_gather", [1 << 10, 1 << 16], cluster, options=options)
    assert data == json.loads(json.dumps(found.document()))


def test_the_gpu_model_says_how_many_wavefronts_a_workgroup_has_and_may_have() -> None:
    """The default is a CU's requests in flight / a wavefront's, regardless of other limits; a CU's room is the most."""
    asked = ("--size", "16K", "--fidelity", "loadstore", "--gpus", "2", "--algorithm", "put")
    for cluster, wavefronts in (("dgx-h100", 256 // 32), ("astra3-generic", 512 // 16)):
        known = ("all_gather", *asked, "--cluster", cluster)
        for limit in ((), ("--unroll", "2")):
            plain, said = answer(*known, *limit), answer(*known, *limit, "--wavefronts", wavefronts)
            assert plain[0]["run"]["time_s"] == said[0]["run"]["time_s"]
    done = CliRunner().invoke(
        app, ["collective", "all_gather", *asked, "--cluster", "mi300x-node", "--wavefronts", "33"]
    )
    assert done.exit_code == 2
    assert (
        "--wavefronts: a workgroup is on one CU, and one of GPU 'mi300x' holds no more than 32, got 33" in done.output
    )


def test_both_levels_side_by_side() -> None:
    data, text = answer("all_reduce", "--size", "64K", *MACHINE, "--compare-fidelity", "--algorithm", "ring")
    (row,) = data["rows"]
    assert row["operator"]["algorithm"] == row["loadstore"]["algorithm"] == "ring"
    assert row["ratio"] == pytest.approx(row["loadstore"]["time_us"] / row["operator"]["time_us"])
    for level in ("operator", "loadstore"):
        assert sum(part[f"{level}_us"] or 0 for part in row["parts"]) == pytest.approx(row[level]["time_us"])
    assert "most of the difference" in text
    data, _ = answer(
        "all_reduce", "--size", "64K", *MACHINE, "--compare-fidelity", "--network", "fair", "--launch", "graph"
    )
    assert data["network"] == "fair"
    data, _ = answer("all_reduce", "--size", "64K", *MACHINE, "--compare-fidelity", "--protocol", "none")
    assert (data["rows"][0]["operator"]["protocol"], data["rows"][0]["loadstore"]["protocol"]) == ("none", "simple")


def test_pictures_and_timelines(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    noc, line, table = (tmp_path / name for name in ("noc.png", "line.pftrace", "table.png"))
    assert (
        invoke("collective", "all_gather", "--size", "64K", *INSIDE, "--plot-noc", noc, "--perfetto", line).exit_code
        == 0
    )
    assert invoke("collective", "all_gather", "--size", "1K,64K", *INSIDE, "--plot", table).exit_code == 0
    assert all(path.stat().st_size > 2000 for path in (noc, line, table))


def test_what_was_run_before_an_interrupt_is_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    row = LoadStoreRuns.row

    def interrupted(self, size):
        if size > 1 << 10:
            raise KeyboardInterrupt
        return row(self, size)

    monkeypatch.setattr(LoadStoreRuns, "row", interrupted)
    found = loadstore_collective(
        "all_gather", [1 << 10, 1 << 16], trine.load_cluster("dgx-h100", gpus=4), options=LoadStoreOptions(workgroups=4)
    )
    assert (len(found.rows), found.finished) == (1, False)
    done = invoke("collective", "all_gather", "--size", "1K,64K", *INSIDE)
    assert done.exit_code == 130
    assert " 1024 " in done.stdout
    done = invoke("collective", "all_gather", "--size", "64K", *INSIDE)
    assert done.exit_code == 130
    assert "interrupted" in done.stderr


def test_a_program_that_was_stopped_is_not_among_those_whose_times_are_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, names = LoadStoreRuns.run, []

    def stopped(self, program, **how):
        names.append(program.name)
        done = run(self, program, **how)
        return done if len(names) == 1 else dataclasses.replace(done, finished=False)

    monkeypatch.setattr(LoadStoreRuns, "run", stopped)
    cluster = trine.load_cluster("dgx-h100", gpus=4)
    found = loadstore_collective("all_reduce", [1 << 14], cluster, options=LoadStoreOptions(workgroups=4))
    assert names == ["all_reduce/twoshot", "all_reduce/oneshot"]
    (row,) = found.rows
    assert (row.finished, row.time.algorithm, [name for name, _ in row.tried]) == (False, "oneshot", ["twoshot"])
    assert "the fastest simulated" not in found.table()


def test_ctrl_c_shows_what_there_is() -> None:
    command = [sys.executable, "-m", "trine", "collective", "all_gather", "--size", "1K,1G", *MACHINE, "--no-fold"]
    done = subprocess.Popen(
        [*command, "--fidelity", "loadstore"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert done.stderr is not None
    for line in done.stderr:  # progress appears after two seconds, during the run of 1 GiB
        if "% of" in line:
            break
    time.sleep(0.2)
    done.send_signal(signal.SIGINT)
    out, err = done.communicate(timeout=60)
    assert done.returncode == 130, err
    assert "PARTIAL" in out
    assert " 1024 " in out


def test_training_with_load_store_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    invoke("collective", "all_gather", "--size", "1K", *INSIDE)  # load the kernels from the user's cache
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = tmp_path / "llama.trine.json"
    made = invoke("trace", "synthesize", "llama-3-8b", "--layers", 1, "--sequence", 16, "--batch", 1, "--output", model)
    assert made.exit_code == 0, made.output
    command = (
        "train",
        model,
        "--tp",
        2,
        "--gpus",
        2,
        "--cluster",
        "dgx-h100",
        "--no-cpu",
    )  # launches would hide the messages
    first = invoke(*command, "--collective-costs", "loadstore", "--json", "-")
    assert first.exit_code == 0, first.output
    files = {path: path.read_bytes() for path in (tmp_path / "trine" / "loadstore").iterdir()}
    assert files
    again = invoke(*command, "--collective-costs", "loadstore", "--json", "-")
    assert files == {path: path.read_bytes() for path in (tmp_path / "trine" / "loadstore").iterdir()}
    one, other = json.loads(first.stdout), json.loads(again.stdout)
    assert one["step_time_s"] == other["step_time_s"]
    (said,) = (row for row in one["evidence"] if row["what"] == "communication time")
    assert "GPU programs" in said["detail"]
    usual = json.loads(invoke(*command, "--json", "-").stdout)
    assert usual["step_time_s"] != one["step_time_s"]


def keys(data: object) -> set[str]:
    """Return all keys except those inside a run, whose document has a separate test."""
    if isinstance(data, list):
        return {key for item in data for key in keys(item)}
    if not isinstance(data, dict):
        return set()
    return {key for name, value in data.items() for key in ({name} | (set() if name == "run" else keys(value)))}


def test_all_keys_are_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "loadstore-json.md").read_text()
    for arguments in (
        ("all_reduce", "--size", "1K", *INSIDE),
        ("all_gather", "--size", "1K", *MACHINE, "--compare-fidelity"),
    ):
        for key in keys(answer(*arguments)[0]):
            assert f"`{key}`" in page, key


def test_of_two_programs_those_that_fold_are_verified() -> None:
    wanted = ("all_reduce", "--size", "64K", "--cluster", "astra3-generic", "--gpus", "4", "--fidelity", "loadstore")
    for option in ((), ("--details",)):
        data, text = answer(*wanted, "--verify-fold", *option)
        assert "folded and unfolded runs gave the same" in text
    assert data["rows"][0]["gpus_simulated"] == 1
    # on the H100, two-shot's parts use different ports and channels on each rank; one-shot's do not
    data, text = answer("all_reduce", "--size", "64K", *INSIDE, "--verify-fold")
    assert "twoshot: verify: nothing to verify: each works on another slice" in " ".join(text.split())
    one_step, _ = answer("all_reduce", "--size", "64K", *INSIDE, "--verify-fold", "--algorithm", "oneshot")
    assert any("folded and unfolded runs gave the same" in note for note in one_step["notes"])
    alone = invoke("collective", "all_reduce", "--size", "64K", *INSIDE, "--verify-fold", "--algorithm", "twoshot")
    assert alone.exit_code == 2
    assert "nothing to verify" in alone.stderr


def test_a_picture_of_another_kind_is_refused_before_the_run() -> None:
    done = invoke("collective", "all_gather", "--size", "64K", *INSIDE, "--plot-noc", "noc.gif")
    assert done.exit_code == 2
    assert "a picture is a file of .png, .svg, .pdf" in done.stderr
    assert not done.stdout


def test_names_of_plans_do_not_shift_columns() -> None:
    plan = DATA / "mscclpp" / "v2_HEAD_allreduce_allpairs_4gpu.json"
    done = invoke("collective", "all_reduce", "--size", "64K", *MACHINE, "--fidelity", "loadstore", "--algorithm", plan)
    head, row = (line for line in done.stdout.splitlines() if "decides" in line or " 65536 " in line)
    assert head.index("protocol") == row.index("simple")


@pytest.mark.parametrize(
    ("name", "members"), [("get", ("twoshot-get", "oneshot-get")), ("put", ("twoshot-put", "oneshot"))]
)
def test_get_and_put_of_an_all_reduce_are_the_faster_of_two(name: str, members: tuple[str, str]) -> None:
    cluster = trine.load_cluster("dgx-h100", gpus=4)
    times = [
        loadstore_collective(
            "all_reduce", [1 << 14], cluster, options=LoadStoreOptions(algorithm=one, workgroups=4)
        ).to_json()["rows"][0]["time_us"]
        for one in (name, *members)
    ]
    assert times[0] == min(times[1:])
    assert times[1] != times[2]
