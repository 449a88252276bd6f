"""What does ``trine check FOLDER`` read, and what does it refuse?"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from run_traces import all_reduce, dump, entry, kernel, launch, trace, two_ranks, write

from trine.cli.main import app
from trine.errors import InputError, TraceError
from trine.runs.causes import STRAGGLER
from trine.runs.folder import check_folder, read_run
from trine.runs.result import RunCheck


def check(folder: Path) -> RunCheck:
    answer = check_folder(folder)
    assert isinstance(answer, RunCheck)
    return answer


def test_a_slow_rank_is_named_with_its_gain(tmp_path: Path) -> None:
    answer = check(write(tmp_path, two_ranks()))
    (cause,) = answer.causes
    assert (cause.kind, cause.ranks, cause.operator) == (STRAGGLER, (1,), "gemm")
    assert cause.slowdown == pytest.approx(1.4)
    assert cause.gain_ps == 3 * 40 * 10**6  # each round waits 40 us for the kernel of rank 1
    assert [row.waited_for_ps for row in answer.waits] == [0, 120 * 10**6]
    assert [row.waiting_ps for row in answer.waits] == [120 * 10**6, 0]


def test_clocks_are_aligned_by_the_ends_of_collectives(tmp_path: Path) -> None:
    shifted = check(write(tmp_path / "shifted", two_ranks(clock_us=7777.5)))
    straight = check(write(tmp_path / "straight", two_ranks()))
    assert shifted.run.offsets_ps == (0, -7_777_500_000)
    assert shifted.run.time_ps == straight.run.time_ps
    assert shifted.causes == straight.causes


def test_equal_ranks_are_healthy(tmp_path: Path) -> None:
    answer = check(write(tmp_path, two_ranks(late_us=0)))
    assert answer.is_healthy
    assert "healthy" in answer.verdict


def test_compressed_files_and_other_files_beside_them(tmp_path: Path) -> None:
    for rank, content in enumerate(two_ranks()):
        with gzip.open(tmp_path / f"worker{rank}.pt.trace.json.gz", "wt") as file:
            json.dump(content, file)
    (tmp_path / "config.json").write_text('{"learning_rate": 1}')
    (tmp_path / "notes.txt").write_text("hello")
    answer = check(tmp_path)
    assert [row.rank for row in answer.waits] == [0, 1]
    assert len(answer.notes) == 1
    assert "config.json" in answer.notes[0]


def test_the_rank_comes_from_the_name_if_the_trace_has_none(tmp_path: Path) -> None:
    contents = two_ranks()
    for content in contents:
        del content["distributedInfo"]
    answer = check(write(tmp_path, contents, "trace_rank-{}.json"))
    assert [row.rank for row in answer.waits] == [0, 1]


def test_only_steps_that_all_ranks_profiled_count(tmp_path: Path) -> None:
    contents = two_ranks(late_us=0)
    for content in contents:
        for number in range(3):
            content["traceEvents"].append({
                "ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "pid": 1, "tid": 1,
                "ts": 975 + number * 160, "dur": 160, "args": {},
            })  # fmt: skip
        for event in content["traceEvents"]:
            if event["cat"] == "cuda_runtime":  # launched within its step
                number, second = divmod(event["args"]["correlation"] - 1, 2)
                event["ts"] = 980 + number * 160 + 5 * second
    events = contents[1]["traceEvents"]
    contents[1]["traceEvents"] = [each for each in events if each["name"] != "ProfilerStep#0"]
    run = read_run(write(tmp_path, contents))
    assert run.num_steps == 2
    assert [len(rank.activities) for rank in run.ranks] == [4, 4]
    assert [instance.call.number for instance in run.instances] == [0, 1]


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        ([], "has no readable rank"),
        ([{"a": 1}, {"a": 2}], "has no readable rank"),
        ([trace(0, 2, [launch(1, 2, 3)])], "records no kernel on a GPU"),
        ([{**trace(0, 2, []), "traceEvents": [5]}], "must be an object, got 5"),
        ([trace(0, 2, [{**kernel("a", 1, 2), "ts": "x"}])], "must be a number of microseconds"),
        ([trace(0, 2, [kernel("a", 1, 2)]), trace(0, 2, [kernel("a", 1, 2)])], "is a second trace of rank 0"),
        ([trace(0, 2, [kernel("a", 1, 2)]), trace(1, 4, [kernel("a", 1, 2)])], "is of another job: it has 4 ranks"),
        ([trace(0, 2, [kernel("a", 1, 2)]), trace(5, 2, [kernel("a", 1, 2)])], "is of rank 5, in a job of 2 ranks"),
        ([trace(0, 2, [all_reduce(1, 2, 0, (0, 1))]), trace(1, 2, [all_reduce(1, 2, 0, (0, 1), elements=7)])],
         "has no collective in common"),
        ([trace(0, 2, [kernel("a", 1, 2)]), dump([entry(1)])], "mixes traces"),
    ],
)  # fmt: skip
def test_wrong_folders_are_refused_in_one_line(tmp_path: Path, contents: list[dict[str, object]], words: str) -> None:
    with pytest.raises(InputError) as caught:
        check_folder(write(tmp_path, contents))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_groups_with_other_ranks_are_another_job(tmp_path: Path) -> None:
    contents = two_ranks()
    for rank, content in enumerate(contents):
        content["distributedInfo"]["pg_config"] = [{"pg_name": "0", "ranks": [0, 1 + rank]}]
    with pytest.raises(InputError, match="process group '0' has other ranks"):
        check_folder(write(tmp_path, contents))


def test_a_pickle_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "nccl_trace_rank_0").write_bytes(b"\x80\x04}.")
    with pytest.raises(TraceError, match="write the dump as JSON"):
        check_folder(tmp_path)


@pytest.mark.parametrize("cut", [1, 10, 200, 500])
def test_truncated_traces_are_refused(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps(two_ranks()[0])[:-cut])
    with pytest.raises(TraceError, match="not complete JSON"):
        check_folder(tmp_path)


@pytest.mark.parametrize(("late_us", "exit_code"), [(0.0, 0), (40.0, 1)])
def test_fail_if_suspicious_ends_with_1_for_a_slow_run_alone(tmp_path, late_us, exit_code):
    folder = str(write(tmp_path / "run", two_ranks(late_us=late_us)))
    assert CliRunner().invoke(app, ["check", folder]).exit_code == 0
    assert CliRunner().invoke(app, ["check", folder, "--fail-if-suspicious"]).exit_code == exit_code
