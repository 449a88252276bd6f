"""Does the reader of nccl-tests logs understand what people paste?"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from nccl_logs import devices, log, row, table

from trine.check.compare import check_log
from trine.check.fit_cluster import fit_cluster
from trine.check.nccl_tests import NcclLog, op_named, read_log, read_runs
from trine.check.two_runs import compare_logs
from trine.cluster import load_cluster
from trine.errors import InputError

ROWS = [(1024, 12.5, 12.25), (1 << 20, 26.62, 26.1), (1 << 30, 4190.0, 4188.0)]


def read(tmp_path: Path, text: str, op: str | None = None) -> NcclLog:
    path = tmp_path / "log.txt"
    path.write_text(text, encoding="utf-8")
    return read_log(path, op)


def times_us(found: NcclLog) -> list[tuple[int, float | None, float | None]]:
    return [
        (r.size_bytes, *(None if m is None else m.time_ps / 1e6 for m in (r.out_of_place, r.in_place)))
        for r in found.rows
    ]


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("program", ["all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "sendrecv"])
def test_both_print_forms_of_every_program(tmp_path: Path, program: str, old: bool) -> None:
    found = read(tmp_path, log(ROWS, program, old=old))
    assert times_us(found) == ROWS
    assert found.op == op_named(program)
    assert found.rows[1].out_of_place is not None
    assert found.rows[1].out_of_place.algbw_bytes_per_s == pytest.approx((1 << 20) / 26.62e-6, rel=1e-3)
    assert found.rows[0].root == (None if old else 0 if program == "broadcast" else -1)


def test_a_header_says_who_ran_where(tmp_path: Path) -> None:
    found = read(tmp_path, "NCCL version 2.19.3+cuda12.3\n" + log(ROWS, ranks=16))
    assert (found.num_ranks, found.hosts, found.gpu_names) == (16, ("host0", "host1"), ("NVIDIA H100 80GB HBM3",))
    assert (found.library, found.version, found.launch) == ("nccl", "2.19.3", "process-per-gpu")
    assert found.average_busbw_bytes_per_s == pytest.approx(41.8846e9)


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("# nccl-tests version 2.17.6 nccl-headers=22707 nccl-library=22707", ("nccl", "2.27.7")),
        ("RCCL version : 2.22.3-HEAD:9ac3ea5", ("rccl", "2.22.3")),
        ("host:1:1 [0] NCCL INFO NCCL version 2.8.3+cuda11.0", ("nccl", "2.8.3")),
    ],
)
def test_versions(tmp_path: Path, line: str, version: tuple[str, str]) -> None:
    found = read(tmp_path, f"{line}\n" + log(ROWS))
    assert (found.library, found.version) == version


@pytest.mark.parametrize(
    "prefix",
    ["[1,0]<stdout>:", "[1,0]<stdout>: ", "0: ", "2025-02-03T10:11:12.123456789Z ", "[2025-02-03 10:11:12] ", "> ",
     "\x1b[0m\x1b[32m", "[1,0]<stdout>:2024-01-01 00:00:00,123 "],
)  # fmt: skip
def test_what_stands_before_a_line_is_taken_off(tmp_path: Path, prefix: str) -> None:
    found = read(tmp_path, "".join(f"{prefix}{line}\r\n" for line in log(ROWS).splitlines()))
    assert times_us(found) == ROWS
    assert found.num_ranks == 8


def test_messages_of_the_library_in_between(tmp_path: Path) -> None:
    noise = "node7:4711:4811 [3] NCCL INFO Channel 00/24 : 0 1 2 3 4 5 6 7"
    found = read(tmp_path, f"\n{noise}\n".join(log(ROWS).splitlines()))
    assert times_us(found) == ROWS


def test_no_in_place_results(tmp_path: Path) -> None:
    rows = [(size, first, None) for size, first, _ in ROWS]
    assert times_us(read(tmp_path, log(rows, "alltoall"))) == rows


def test_a_cut_line_is_left_out_and_said(tmp_path: Path) -> None:
    text = "\n".join(table(ROWS))
    cut = text.rindex("4190")
    found = read(tmp_path, text[: cut + 6])
    assert times_us(found) == ROWS[:2]
    assert found.notes[0] == "line 7 is cut: ignored"
    assert found.incomplete == "the row of 1073741824 bytes has no result"


def test_a_line_cut_in_the_second_result_keeps_the_first(tmp_path: Path) -> None:
    text = "\n".join(table(ROWS))
    found = read(tmp_path, text[: text.rindex("4188") + 2])
    assert times_us(found) == [*ROWS[:2], (1 << 30, 4190.0, None)]


def test_rows_without_any_header(tmp_path: Path) -> None:
    for old in (False, True):
        found = read(tmp_path, "\n".join(row(s, (a, b), "all_reduce", 8, old=old) for s, a, b in ROWS))
        assert times_us(found) == ROWS
        assert (found.op, found.num_ranks, found.ranks_from) == ("all_reduce", 8, "busbw / algbw")


def test_other_units_of_time(tmp_path: Path) -> None:
    text = "\n".join(table(ROWS))
    assert times_us(read(tmp_path, text.replace("(us)", "(ms)")))[0] == (1024, 12500.0, 12250.0)
    suffixed = text.replace("  12.50  ", "12.50us  ").replace("  26.62  ", "0.02662ms  ")
    assert times_us(read(tmp_path, suffixed))[:2] == [(1024, 12.5, 12.25), (1 << 20, 26.62, 26.1)]


def test_statistics_of_iterations_after_each_result(tmp_path: Path) -> None:
    text = (
        "# size count type redop root time algbw busbw #wrong min max p99 cv% time algbw busbw #wrong min max p99 cv%\n"
        "1024 256 float sum -1 12.5 0.08 0.14 0 12.0 13.0 12.9 1.0 12.25 0.08 0.15 0 12.1 12.4 12.4 0.5\n"
    )
    assert times_us(read(tmp_path, text, "all_reduce")) == [ROWS[0]]


def test_the_collective_from_the_columns_or_asked_for(tmp_path: Path) -> None:
    assert read(tmp_path, "\n".join(table(ROWS, "all_reduce", 2))).op == "all_reduce"
    assert read(tmp_path, "\n".join(table(ROWS, "reduce_scatter"))).op == "reduce_scatter"
    assert read(tmp_path, "\n".join(table(ROWS, "broadcast"))).op == "broadcast"
    guessed = read(tmp_path, "\n".join(table(ROWS, "all_gather")))
    assert (guessed.op, guessed.op_others) == ("all_gather", ("all_to_all",))
    assert "guess: the collective is all_gather" in guessed.notes[-1]
    assert "which also fit all_to_all (--op)" in guessed.notes[-1]
    found = read(tmp_path, "\n".join(table(ROWS, "alltoall")), "alltoall")
    assert (found.op, found.op_from, found.rows[0].size_bytes) == ("all_to_all", "as given", 1024)


def test_the_option_overrules_the_log_with_a_note(tmp_path: Path) -> None:
    found = read(tmp_path, log(ROWS), "all_gather")
    assert (found.op, found.op_from) == ("all_gather", "as given")
    assert "the log names all_reduce; --op all_gather overrules it" in found.notes


def test_several_runs_in_one_file(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text(log(ROWS) + log(ROWS[:2], "all_gather", ranks=4))
    assert [(run.op, len(run.rows), run.num_ranks) for run in read_runs(path)] == [
        ("all_reduce", 3, 8),
        ("all_gather", 2, 4),
    ]
    assert read_log(path, "all_gather_perf").num_ranks == 4
    with pytest.raises(InputError, match=r"holds 2 runs \(all_reduce, all_gather\)"):
        read_log(path)


def test_how_processes_were_launched(tmp_path: Path) -> None:
    one = "\n".join(devices(8, one_process=True) + table(ROWS))
    assert read(tmp_path, one).launch == "single-process"
    counts = "# nThread 1 nGpus 8 minBytes 8 maxBytes 1024\n"
    assert read(tmp_path, counts + "\n".join(table(ROWS))).launch == "single-process"
    assert read(tmp_path, log(ROWS).replace("graph: 0", "graph: 1")).launch == "graph"
    assert read(tmp_path, "\n".join(table(ROWS))).launch is None


def test_settings_of_the_library_are_kept(tmp_path: Path) -> None:
    text = "mpirun -x NCCL_ALGO=Ring -x NCCL_DEBUG=INFO ./all_reduce_perf -b 8\n"
    text += "h:1:1 [0] NCCL INFO NCCL_NVLS_ENABLE set by environment to 0.\n" + log(ROWS)
    environment = read(tmp_path, text).environment
    assert environment["ALGO"] == "Ring"
    assert environment["NVLS_ENABLE"] == "0"


def test_wrong_results_are_said(tmp_path: Path) -> None:
    text = "\n".join(table(ROWS))
    broken = text.replace(
        row(1 << 20, (26.62, 26.1), "all_reduce", 8), row(1 << 20, (26.62, 26.1), "all_reduce", 8)[:-1] + "7"
    )
    assert "the test found wrong results, first at 1048576 bytes" in read(tmp_path, broken).notes[0]


@pytest.mark.parametrize("text", [" \n", ""])
def test_an_empty_log_is_said_to_be_empty(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match="is empty: the test printed nothing"):
        read(tmp_path, text)


@pytest.mark.parametrize("text", ["hello\n", "# size count type redop root time algbw busbw #wrong\n"])
def test_no_rows_says_what_a_row_is(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match="a row is size, count, type"):
        read(tmp_path, text)


def test_an_unknown_collective_names_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'all_reduce'"):
        op_named("allredcue")


def test_a_file_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trine.check.nccl_tests.MAX_BYTES", 100)
    with pytest.raises(InputError, match="larger than"):
        read(tmp_path, log(ROWS))


LABELS = [
    "    ",
    "    [1,0]<stdout>:",
    "[1,mpirank:0,algo-1]<stdout>:",
    "[prterun-host-1234@1,0]<stdout>: ",
    "[0] ",
    "[rank0]: ",
    "node-12: ",
    "nccl-1  | ",
    "[pod/nccl-launcher-abcde/launcher] ",
    "(RayTrainWorker pid=1234, ip=10.0.0.1) ",
    "2025-01-01T00:00:00.123456789Z stdout F ",
    "Jan  1 00:00:07 node1 nccl[123]: ",
    "    12\t",
    "+",
]


@pytest.mark.parametrize("label", LABELS)
def test_any_label_before_a_line(tmp_path: Path, label: str) -> None:
    found = read(tmp_path, "".join(f"{label}{line}\n" for line in log(ROWS).splitlines()))
    assert times_us(found) == ROWS
    assert (found.num_ranks, found.hosts, found.launch) == (8, ("host0",), "process-per-gpu")


def test_a_label_that_changes_from_line_to_line_is_one_run(tmp_path: Path) -> None:
    lines = log(ROWS).splitlines()
    assert times_us(read(tmp_path, "".join(f"T+{i}ms {line}\n" for i, line in enumerate(lines)))) == ROWS


def docker(text: str) -> str:
    return "".join(json.dumps({"log": f"{line}\n", "stream": "stdout"}) + "\n" for line in text.splitlines())


def cells(text: str, separator: str) -> str:
    """The rows alone, as a table of another program."""
    words = [line.split() for line in text.splitlines() if line.startswith(" ")]
    result = ["time", "algbw", "busbw", "#wrong"]
    header = ["size", "count", "type", "redop", "root", *result, *result]
    return "\n".join(separator.join(row) for row in [header, *words])


@pytest.mark.parametrize(
    "change",
    [docker, lambda text: cells(text, ","), lambda text: cells(text, ";"), lambda text: cells(text, " | ")],
    ids=["json", "csv", "semicolon", "markdown"],
)
def test_other_containers_of_the_same_table(tmp_path: Path, change: Callable[[str], str]) -> None:
    assert times_us(read(tmp_path, change(log(ROWS)))) == ROWS


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
def test_other_encodings(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "log.txt"
    path.write_bytes(log(ROWS).encode(encoding))
    assert times_us(read_log(path)) == ROWS


SLOWER = [(size, 2 * out, 2 * (ins or 0)) for size, out, ins in ROWS]


@pytest.mark.parametrize("form", ["node{0}: {1}\n", "2025-01-01T00:00:0{0}Z node{0} | {1}\n"])
def test_runs_of_two_hosts_that_write_at_the_same_time(tmp_path: Path, form: str) -> None:
    both = zip(log(ROWS).splitlines(), log(SLOWER).splitlines(), strict=True)
    path = tmp_path / "log.txt"
    path.write_text("".join(form.format(1, one) + form.format(2, two) for one, two in both))
    assert [times_us(run) for run in read_runs(path)] == [ROWS, SLOWER]
    assert times_us(read_log(path, run=2)) == SLOWER


def test_two_tables_side_by_side(tmp_path: Path) -> None:
    both = zip(log(ROWS).splitlines(), log(SLOWER).splitlines(), strict=True)
    path = tmp_path / "log.txt"
    path.write_text("".join(f"{one:140} | {two}\n" for one, two in both))
    assert [times_us(run) for run in read_runs(path)] == [ROWS, SLOWER]


def test_one_of_several_runs(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text(log(ROWS) + log(SLOWER))
    with pytest.raises(
        InputError, match=r"holds 2 runs.*give --run N \(1: all_reduce of 8 ranks, 1K to 1G, line 17; 2"
    ):
        read_log(path)
    assert times_us(read_log(path, run=2)) == SLOWER
    with pytest.raises(InputError, match="--run: must be 1 to 2"):
        read_log(path, run=3)


def test_a_redop_with_small_sizes_is_a_reduction(tmp_path: Path) -> None:
    small = [(size, 14.0, 14.1) for size in (4, 8, 16, 32)]
    assert read(tmp_path, "\n".join(table(small, old=True))).op == "all_reduce"
    blocks = "\n".join(f"{8 * size} {size // 4} float sum -1 14.0 0.00 0.00 0 14.1 0.00 0.00 0" for size in (4, 8, 16))
    found = read(tmp_path, blocks)
    assert (found.op, found.num_ranks, found.ranks_from) == ("reduce_scatter", 8, "the count column")


def test_ranks_of_incomplete_device_lines(tmp_path: Path) -> None:
    last = "#  Rank 71 Group  0 Pid 1000 on host17 device  3 [0x01] NVIDIA GB200\n"
    text = last + "\n".join(table([(1 << 30, 3108.8, 2924.7)], ranks=72))
    found = read(tmp_path, text)
    assert (found.num_ranks, found.num_hosts) == (72, None)
    first = "\n".join([*devices(8), *table([(1 << 30, 3108.8, 2924.7)], ranks=16)])
    found = read(tmp_path, first)
    assert (found.num_ranks, found.ranks_from) == (16, "busbw / algbw")
    assert "8 of at least 16 device lines are in the log" in found.notes


def test_an_uncertain_number_of_ranks_is_a_range(tmp_path: Path) -> None:
    found = read(tmp_path, "\n".join(table([(1 << 30, 40000.0, 40100.0)], ranks=512)))
    assert found.fewest_ranks is not None
    assert found.most_ranks is not None
    assert found.fewest_ranks < found.num_ranks == 512 < found.most_ranks  # type: ignore[operator]
    assert (
        f"guess: busbw / algbw fits {found.fewest_ranks} to {found.most_ranks} ranks; without --gpus 512 are assumed"
        in found.notes[0]
    )


def test_a_log_that_stops_early_is_said_to_be_truncated(tmp_path: Path) -> None:
    text = log(ROWS[:2])
    assert read(tmp_path, text).incomplete == "rows end at 1M, the run was to go to 128M"
    whole = read(tmp_path, text.replace("maxBytes 134217728", "maxBytes 1048576"))
    assert (whole.incomplete, whole.notes) == (None, ())


def test_a_time_that_contradicts_its_bandwidth(tmp_path: Path) -> None:
    text = log(ROWS)
    found = read(tmp_path, text.replace("  26.62  ", "  2662.0"))
    assert times_us(found)[1] == (1 << 20, None, 26.1)
    assert any(
        "1M out-of-place: a time of 2662 us contradicts its algbw of 39.39 GB/s by 100 x" in n for n in found.notes
    )


def test_a_time_of_three_times_its_bandwidth_is_left_out(tmp_path: Path) -> None:
    found = read(tmp_path, log(ROWS).replace("  26.62  ", "  79.86  "))
    assert times_us(found)[1] == (1 << 20, None, 26.1)
    kept = read(tmp_path, log(ROWS).replace("  26.62  ", "  30.61  "))
    assert times_us(kept)[1] == (1 << 20, 30.61, 26.1)


def test_processes_without_mpi_are_refused(tmp_path: Path) -> None:
    alone = [line.replace("Pid    100", "Pid    777") for line in devices(1)]
    with pytest.raises(InputError, match=r"2 processes are rank 0.*MPI=1"):
        read(tmp_path, "\n".join([*devices(1), *alone, *table(ROWS, ranks=2)]))


def test_evidence_of_transports(tmp_path: Path) -> None:
    text = "h:1:1 [0] NCCL INFO Using network Socket\nh:1:1 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1.\n"
    found = read(tmp_path, text + log(ROWS))
    assert (found.network, found.environment["P2P_DISABLE"], found.num_hosts) == ("Socket", "1", 1)


def test_other_programs_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is a table of nccom-test .AWS Neuron.: trine check reads nccl-tests"):
        read(tmp_path, "nccom-test -r 2 allr\n 33554432 33554432 uint8 768 40.69 40.69\n")


def test_results_that_the_librarys_messages_cut_from_their_sizes(tmp_path: Path) -> None:
    noise = "node7:4711:4811 [3] NCCL INFO AllReduce: opCount 0 count 16"
    lines = log(ROWS, "all_reduce", old=True).splitlines()
    for form in range(3):
        torn = []
        for line in lines:
            if " sum " not in line:
                torn.append(line)
                continue
            head, results = line.split(" sum ")[0] + " sum", line.split(" sum ")[1].split()
            first, second = ("  ".join(["", *part]) for part in (results[:4], results[4:]))
            torn += (
                [f"{head}{noise}", f"{first}{second}"],
                [f"{head}{noise}", noise, f"{first}{noise}", second],
                [f"{head}{first}{noise}", noise, second],
            )[form]
        found = read(tmp_path, "\n".join(torn))
        assert times_us(found) == ROWS
        assert found.notes == ()


def test_a_label_that_each_flush_repeats(tmp_path: Path) -> None:
    label = "[1,0]<stdout>:"
    lines = [
        line.replace(" -1 ", f" -1{label} ").replace("  0  ", f"  0{label}  ") if " sum " in line else line
        for line in log(ROWS).splitlines()
    ]
    assert any(line.count(label) > 1 for line in lines)
    assert times_us(read(tmp_path, "".join(f"{label}{line}\n" for line in lines))) == ROWS


def test_runs_of_one_size_each_are_one_sweep(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text("".join(log([each], named=False) for each in ROWS))
    found = read_log(path)
    assert times_us(found) == ROWS
    assert (found.op, found.num_alone) == ("all_reduce", 1)
    assert "3 runs of one size each are compared as one" in found.notes
    path.write_text("".join(log([each]) for each in (*ROWS, ROWS[0])))  # a repeated size begins another sweep
    assert [len(run.rows) for run in read_runs(path)] == [3, 1]
    path.write_text("".join(log([each], gpu=f"GPU {each[0]}") for each in ROWS))
    assert len(read_runs(path)) == 3


def test_a_run_that_broke_off_at_its_first_row_leaves_nothing_behind(tmp_path: Path) -> None:
    broken = log(ROWS, named=False).split(" sum ")[0] + " sum\n"
    found = read(tmp_path, broken + log(ROWS, named=False).replace("Pid    10", "Pid    20"))
    assert (times_us(found), found.num_alone) == (ROWS, 1)


def test_the_json_file_of_nccl_tests_is_read_as_what_it_prints(tmp_path: Path) -> None:
    def side(size: int, time: float) -> dict[str, object]:
        return {"time": time, "alg_bw": size / time / 1e3, "bus_bw": size / time / 1e3 * 1.75, "nwrong": None}

    run = {
        "version": 3, "args": ["/opt/build/all_reduce_perf", "-g", "1"], "env": ["NCCL_ALGO=Ring", "HOME=/root"],
        "nccl_version": 22707,
        "config": {
            "nthreads": 1, "ngpus": 1, "graph": 0,
            "devices": [
                {"rank": rank, "group": 0, "pid": 100 + rank, "hostname": "host0", "device": rank,
                 "device_hex": "0x00", "device_info": "NVIDIA H100 80GB HBM3"}
                for rank in range(8)
            ],
        },
        "results": [
            {"size": size, "count": size // 4, "type": "float", "redop": "sum", "root": "    -1",
             "out_of_place": side(size, first), "in_place": side(size, second)}
            for size, first, second in ROWS
        ],
    }  # fmt: skip
    found = read(tmp_path, json.dumps(run))
    assert times_us(found) == ROWS
    assert (found.op, found.num_ranks, found.num_hosts, found.version) == ("all_reduce", 8, 1, "2.27.7")
    assert (found.gpu_names, found.environment) == (("NVIDIA H100 80GB HBM3",), {"ALGO": "Ring"})
    run["results"] = [{"size": 8, "out_of_place": None}]
    with pytest.raises(InputError, match="lacks 'count'"):
        read(tmp_path, json.dumps(run))
    with pytest.raises(InputError, match=r"JSON output of nccl-tests is no complete JSON.*line 1"):
        read(tmp_path, json.dumps(run)[:-3])


def json_file(per_process: int, ranks: int, **other: object) -> dict[str, object]:
    """Return the JSON file of a broadcast: nccl-tests names the first GPU of each process only."""
    devices = [
        {"rank": rank, "group": 0, "pid": 100 + rank, "hostname": f"host{rank // 8}", "device": rank % 8,
         "device_hex": "0x00", "device_info": "NVIDIA H100 80GB HBM3"}
        for rank in range(0, ranks, per_process)
    ]  # fmt: skip
    results = []
    for size, time, _ in ROWS:
        side = {"time": time, "alg_bw": size / time / 1e3, "bus_bw": size / time / 1e3, "nwrong": 0.0}
        row = {"size": size, "count": size // 4, "type": "float", "redop": "none", "root": "     0"}
        results.append({**row, "out_of_place": side, "in_place": side})
    config = {"nthreads": 1, "ngpus": per_process, "graph": 0, "devices": devices, **other}
    return {"args": ["broadcast_perf"], "nccl_version": 22907, "config": config, "results": results}


@pytest.mark.parametrize(
    ("per_process", "ranks", "launch"),
    [(8, 8, "single-process"), (4, 16, "single-process"), (1, 8, "process-per-gpu")],
)
def test_a_json_file_counts_all_gpus_of_a_process(tmp_path: Path, per_process: int, ranks: int, launch: str) -> None:
    found = read(tmp_path, json.dumps(json_file(per_process, ranks)))
    assert (found.op, found.num_ranks, found.num_hosts, found.launch) == ("broadcast", ranks, -(-ranks // 8), launch)


@pytest.mark.parametrize("wrong", [1e999, "many", {}])
def test_a_json_file_with_a_wrong_count_is_refused(tmp_path: Path, wrong: object) -> None:
    with pytest.raises(InputError, match="has a value of the wrong type"):
        read(tmp_path, json.dumps(json_file(1, 8, ngpus=wrong)))


def test_a_json_file_cut_before_its_first_result_is_named(tmp_path: Path) -> None:
    text = json.dumps(json_file(1, 8))
    with pytest.raises(InputError, match="the JSON output of nccl-tests is no complete JSON"):
        read(tmp_path, text[: text.index('"results"')])


def test_columns_that_name_their_side(tmp_path: Path) -> None:
    head = "size,count,type,redop,root,time_oop,algbw_oop,busbw_oop,wrong_oop,time_ip,algbw_ip,busbw_ip,wrong_ip"
    text = "\n".join([head, *cells(log(ROWS), ",").splitlines()[1:]])
    assert times_us(read(tmp_path, text)) == ROWS
    assert times_us(read(tmp_path, text.replace("_oop", "_out_of_place").replace("_ip", "_in_place"))) == ROWS
    swapped = text.replace("_oop", "_x").replace("_ip", "_oop").replace("_x", "_ip")
    with pytest.raises(InputError, match="which are not those of nccl-tests"):
        read(tmp_path, swapped)


def test_settings_after_a_run_belong_to_the_next(tmp_path: Path) -> None:
    setting = "export NCCL_ALGO=RING\n"
    first, second = log(ROWS), log(SLOWER)
    path = tmp_path / "log.txt"
    path.write_text(first + setting + second)
    assert [run.environment for run in read_runs(path)] == [{}, {"ALGO": "RING"}]
    path.write_text(first + setting)
    assert [run.environment for run in read_runs(path)] == [{"ALGO": "RING"}]
    labelled = "".join(f" 0: {line}\n" for line in second.splitlines())
    path.write_text(first + setting + labelled)
    assert [run.environment for run in read_runs(path)] == [{}, {"ALGO": "RING"}]


def test_runs_are_numbered_by_their_places_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    labelled = "".join(f" 0: {line}\n" for line in log(SLOWER).splitlines())
    path.write_text(log(ROWS) + labelled + log(ROWS))
    runs = read_runs(path)
    assert [times_us(run) for run in runs] == [ROWS, SLOWER, ROWS]
    assert [run.first_line for run in runs] == sorted(run.first_line for run in runs)
    rows = path.read_text().splitlines()
    for run in runs:
        assert str(ROWS[0][0]) in rows[run.first_line - 1]


def test_cpu_times_decide_nothing(tmp_path: Path) -> None:
    text = log(ROWS).replace(" time", " cputime")
    found = read(tmp_path, text)
    assert found.fault is not None
    result = check_log(found, load_cluster("dgx-h100"))
    assert result.state == "cannot decide"
    assert "CPU times" in result.reason
    with pytest.raises(InputError, match=r"CPU times.*leave this log out"):
        fit_cluster("dgx-h100", [found])
    usual = read(tmp_path, log(ROWS))
    assert any(note.startswith("B: the times are CPU times") for note in compare_logs(usual, found).notes)
    short = read(tmp_path, log(ROWS).replace("maxBytes 134217728", "maxBytes 68719476736"))
    assert any(note.startswith("A is incomplete: rows end") for note in compare_logs(short, usual).notes)


def test_blocking_calls_are_noted(tmp_path: Path) -> None:
    line = "# Blocking Enabled: wait and barrier after each inner iteration (-m)\n"
    text = log(ROWS)
    assert not any("blocking" in note for note in read(tmp_path, text).notes)
    assert any("calls were blocking (-z)" in note for note in read(tmp_path, line + text).notes)
    blocking = json_file(1, 8, blocking_collectives="true")
    assert any("calls were blocking (-z)" in note for note in read(tmp_path, json.dumps(blocking)).notes)


def test_hosts_of_one_name_are_not_one_host(tmp_path: Path) -> None:
    text = log(ROWS, ranks=16)
    assert read(tmp_path, text).num_hosts == 2
    for rank in range(8, 16):
        text = text.replace(f"[0x{rank:02x}]", f"[0x{rank - 8:02x}]")
    assert read(tmp_path, text).num_hosts == 2
    same = read(tmp_path, text.replace(" host1 ", " host0 "))
    assert (same.num_ranks, same.num_hosts) == (16, None)
    assert any("name a GPU twice" in note for note in same.notes)
    assert not any("the log is of 1 host" in note for note in check_log(same, load_cluster("dgx-h100", nodes=2)).notes)


def test_a_program_without_a_model_is_named(tmp_path: Path) -> None:
    text = "# Collective test starting: alltoallv_perf\n" + log(ROWS, "alltoall", named=False)
    with pytest.raises(InputError, match=r"is a run of alltoallv_perf, which trine does not model; --op NAME"):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("gpu", "is_noted"),
    [("NVIDIA XYZ 9000", True), ("MXC500", True), ("Device 0x740f", False), ("NVIDIA H100 80GB HBM3", False)],
)
def test_a_gpu_that_trine_does_not_know_is_noted(tmp_path: Path, gpu: str, is_noted: bool) -> None:
    result = check_log(read(tmp_path, log(ROWS, gpu=gpu)), load_cluster("dgx-h100"))
    assert any(f"the log names {gpu}, the cluster has h100-sxm" in note for note in result.notes) == is_noted


def test_a_fit_to_another_machine_is_noted(tmp_path: Path) -> None:
    rows = [(1 << 20, 26.6, 26.0), (1 << 23, 84.5, 84.0), (1 << 26, 301.5, 301.0), (1 << 30, 4190.0, 4189.0)]
    fitted = fit_cluster("dgx-h100", [read(tmp_path, log(rows, gpu="NVIDIA A100-SXM4-80GB"))])
    assert any("is of another machine: the log names NVIDIA A100-SXM4-80GB" in note for note in fitted.notes)
    assert not any("another machine" in note for note in fit_cluster("dgx-h100", [read(tmp_path, log(rows))]).notes)


def test_a_json_file_without_counts_of_threads_keeps_its_results(tmp_path: Path) -> None:
    results = []
    for size, first, _ in ROWS:
        side = {"time": first, "alg_bw": size / first / 1e3, "bus_bw": size / first / 1e3 * 1.75, "nwrong": 0}
        results.append({"size": size, "count": size // 4, "type": "float", "redop": "sum", "out_of_place": side})
    found = read(tmp_path, json.dumps({"config": {"ngpus": 8}, "results": results}, indent=1))
    assert times_us(found) == [(size, first, None) for size, first, _ in ROWS]
    assert (found.op, found.num_ranks) == ("all_reduce", 8)


def test_rccl_tests_name_their_library(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text("NCCL version 2.29.3\n" + log(ROWS) + "rccl-tests: Version develop:a52452e\n".join(
        log(SLOWER).partition("# Using devices")[::2]))  # fmt: skip
    assert [(run.library, run.version) for run in read_runs(path)] == [("nccl", "2.29.3"), ("rccl", None)]
