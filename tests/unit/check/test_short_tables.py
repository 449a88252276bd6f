"""Is a table with a size and a time or bandwidth per line read as the log of nccl-tests with the same numbers?"""

from __future__ import annotations

from pathlib import Path

import pytest
from nccl_logs import log, table

from trine.check.compare import check_log
from trine.check.nccl_tests import NcclLog, read_log, read_runs
from trine.check.two_runs import compare_logs
from trine.cluster import load_cluster
from trine.collectives.query import collective
from trine.errors import InputError

#: Sizes, and times in microseconds, of an all-reduce of eight ranks.
POINTS = ((1 << 20, 26.62), (1 << 23, 84.5), (1 << 26, 301.5), (1 << 30, 4190.0))
SHORT = {1 << 20: "1M", 1 << 23: "8M", 1 << 26: "64M", 1 << 30: "1G"}
RATIO = 2 * 7 / 8
CLUSTER = "dgx-h100"


def read(folder: Path, text: str, op: str | None = None, name: str = "log.txt") -> NcclLog:
    (folder / name).write_text(text, encoding="utf-8")
    return read_log(folder / name, op)


def times_us(found: NcclLog) -> list[float]:
    return [row.out_of_place.time_ps / 1e6 for row in found.rows if row.out_of_place]


def rates(size: int, time: float) -> tuple[float, float]:
    return size / time / 1e3, size / time / 1e3 * RATIO


def lines(head: str, form: str) -> str:
    """Return a header and a line per point; the form may use s, unit, t, a and b."""
    made = [head]
    for size, time in POINTS:
        alg, bus = rates(size, time)
        made.append(
            form.format(
                s=size,
                unit=SHORT[size],
                t=time,
                a=alg,
                b=bus,
                ms=time / 1e3,
                alg8=8 * alg,
                mb=size / 1e6,
                mib=size / 2**20,
            )
        )
    return "\n".join(made) + "\n"


FORMS = {
    "csv of times": ("size_bytes,time_us", "{s},{t}", "all_reduce"),
    "csv of algbw": ("Message Size,algbw (GB/s)", "{unit},{a:.4f}", "all_reduce"),
    "three columns": ("size,time,busbw", "{s},{t},{b:.3f}", None),
    "milliseconds": ("size (B);latency (ms)", "{s};{ms:.5f}", "all_reduce"),
    "tabs": ("bytes\ttime_us\talgbw\tbusbw", "{s}\t{t}\t{a:.3f}\t{b:.3f}", None),
    "bits": ("size,algbw_Gbps", "{s},{alg8:.4f}", "all_reduce"),
    "markdown": ("| Size | Time (us) | AlgBW (GB/s) | BusBW (GB/s) |\n|---:|---:|---:|---:|",
                 "| {unit}B | {t} | {a:.2f} | {b:.2f} |", None),
    "units in the cells": ("| payload | busbw | algbw |\n| --: | --: | --: |",
                           "| {unit}iB | {b:.3f}GBps | {a:.3f}GBps |", None),
    "bits in the cells": ("size,algbw", "{s},{alg8:.4f} Gb/s", "all_reduce"),
    "decimal megabytes": ("size_mb,latency_us", "{mb},{t}", "all_reduce"),
    "binary megabytes": ("size_MiB,time_us,algbw_gbs", "{mib},{t},{a:.3f}", "all_reduce"),
    "blanks": ("# size   time   busbw", "  {unit}iB   {t}   {b:.3f}", None),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_times(tmp_path: Path, form: str) -> None:
    head, row, op = FORMS[form]
    found = read(tmp_path, "Results of Monday\n" + lines(head, row), op)
    assert [row.size_bytes for row in found.rows] == [size for size, _ in POINTS]
    assert times_us(found) == pytest.approx([time for _, time in POINTS], rel=1e-3)
    assert found.op == "all_reduce"
    assert found.num_ranks == (None if op else 8)


def test_bus_bandwidths_alone_need_the_collective_and_the_ranks(tmp_path: Path) -> None:
    text = lines("size,busbw", "{s},{b:.4f}") + "\n"
    with pytest.raises(InputError, match="give --op all_reduce, --op all_gather, --op reduce_scatter"):
        read(tmp_path, text)
    found = read(tmp_path, text, "all_reduce")
    answer = check_log(found, load_cluster(CLUSTER))
    assert [row.measured_ps / 1e6 for row in answer.rows] == pytest.approx([time for _, time in POINTS], rel=1e-3)
    with pytest.raises(InputError, match="bus bandwidths without times"):
        compare_logs(found, found)


def test_times_alone_show_the_bandwidth_of_the_collective(tmp_path: Path) -> None:
    answer = check_log(read(tmp_path, lines("size,time_us", "{s},{t}"), "all_reduce"), load_cluster(CLUSTER))
    assert [row.busbw_bytes_per_s for row in answer.rows] == pytest.approx([rates(*p)[1] * 1e9 for p in POINTS])


def test_units_that_no_header_states_are_marked_as_guesses(tmp_path: Path) -> None:
    notes = read(tmp_path, lines("size,time,busbw", "{s},{t},{b:.3f}")).notes
    assert "guess: times are microseconds: the header names no unit" in notes
    assert "guess: busbw is in GB/s: the header names no unit" in notes
    stated = read(tmp_path, lines("size (B),time (us),busbw (GB/s)", "{s},{t},{b:.3f}")).notes
    assert not [note for note in stated if "names no unit" in note]


@pytest.mark.parametrize(
    ("head", "form"),
    [
        ("size,time_us", "{s},{whole}"),
        ("size;time_us", '"{s:,}";{whole}'),
        ("size,time_us", '"{s:,}",{whole}'),
        ("size (KiB),time (seconds)", "{kib},{seconds:.6f}"),
        ("size_kb,latency_sec", "{kib},{seconds:.6f}"),
        ("size,time (\u00b5s)", "{s},{whole}"),
    ],
)
def test_whole_times_and_written_out_units_are_read(tmp_path: Path, head: str, form: str) -> None:
    made = [head]
    for size, time in POINTS:
        made.append(form.format(s=size, whole=round(time), kib=size >> 10, seconds=round(time) / 1e6))
    found = read(tmp_path, "\n".join(made), "all_reduce")
    assert [row.size_bytes for row in found.rows] == [size for size, _ in POINTS]
    assert times_us(found) == pytest.approx([round(time) for _, time in POINTS])
    assert found.notes == ()


@pytest.mark.parametrize(
    ("unit", "bytes_per_s"),
    [
        ("B/s", 1.0), ("kB/s", 1e3), ("MB/s", 1e6), ("MiB/s", 2**20), ("GB/s", 1e9), ("GBps", 1e9), ("GB/sec", 1e9),
        ("gb/s", 1e9), ("Mb/s", 1e6 / 8), ("Mbps", 1e6 / 8), ("Mbit/s", 1e6 / 8), ("Gb/s", 1e9 / 8),
        ("gbit/s", 1e9 / 8), ("TB/s", 1e12),
    ],
)  # fmt: skip
def test_bandwidths_have_their_unit(tmp_path: Path, unit: str, bytes_per_s: float) -> None:
    found = read(tmp_path, f"size,busbw ({unit})\n8M,{200e9 / bytes_per_s:.6f}\n", "all_reduce")
    result = found.rows[0].out_of_place
    assert result is not None
    assert result.busbw_bytes_per_s == pytest.approx(200e9)
    assert bool(found.notes) == (unit == "gb/s")  # small letters: bytes or bits


@pytest.mark.parametrize(
    ("head", "needed"),
    [
        ("size (elements),time_us", "write B, KiB"),
        ("size,time (days)", "write ns, us"),
        ("size,busbw (%)", "write GB/s"),
    ],
)
def test_an_unknown_unit_is_refused_with_those_to_write(tmp_path: Path, head: str, needed: str) -> None:
    with pytest.raises(InputError, match=needed) as refused:
        read(tmp_path, f"{head}\n1048576,40\n", "all_reduce")
    assert refused.value.file == str(tmp_path / "log.txt")


def test_a_given_collective_keeps_the_guesses_of_units(tmp_path: Path) -> None:
    notes = read(tmp_path, lines("size,time", "{s},{t}"), "all_reduce").notes
    assert notes == ("guess: times are microseconds: the header names no unit",)


def test_further_tables_are_noted(tmp_path: Path) -> None:
    text = lines("size,time_us", "{s},{t}")
    found = read(tmp_path, f"{text}\n{text}", "all_reduce")
    assert len(found.rows) == len(POINTS)
    assert found.notes == ("only the first of 2 tables is read",)


def test_a_row_without_a_result_does_not_end_the_table(tmp_path: Path) -> None:
    head, first, *rest = lines("size,busbw", "{s},{b:.2f}").splitlines()
    found = read(tmp_path, "\n".join([head, first, "4M,N/A", "# pause", *rest]), "all_reduce")
    assert [row.size_bytes for row in found.rows if row.out_of_place] == [size for size, _ in POINTS]
    assert "1 line without a size in the table: left out" in found.notes


def test_a_size_without_a_bandwidth_is_left_out_with_a_note(tmp_path: Path) -> None:
    head, *rows = lines("size,busbw", "{s},{b:.2f}").splitlines()
    text = "\n".join([head, "8,0.00", *rows])
    answer = check_log(read(tmp_path, text, "all_reduce"), load_cluster(CLUSTER))
    assert [row.size_bytes for row in answer.rows] == [size for size, _ in POINTS]
    assert "1 row has no out-of-place result: left out" in answer.notes


def test_busbw_equal_to_algbw_is_no_proof_of_a_collective(tmp_path: Path) -> None:
    text = lines("size,time_us,algbw,busbw", "{s},{t},{a:.3f},{a:.3f}")
    with pytest.raises(InputError, match="give --op all_reduce, --op send_recv, --op broadcast"):
        read(tmp_path, text)


@pytest.mark.parametrize("suffix", ["", "iB", "B", " MiB"])
def test_sizes_with_a_unit_are_powers_of_1024(tmp_path: Path, suffix: str) -> None:
    unit = suffix.strip().removeprefix("M") if "M" in suffix else suffix
    text = "\n".join(table([(size, time, time) for size, time in POINTS]))
    for size, name in SHORT.items():
        written = f"{name[:-1]} {name[-1]}{unit}" if " " in suffix else name + unit
        text = text.replace(f"{size:12d}  {size // 4:12d}", f"{written}  {size // 4:12d}")
    found = read(tmp_path, text)
    assert [row.size_bytes for row in found.rows] == [size for size, _ in POINTS]
    assert [row.count for row in found.rows] == [size // 4 for size, _ in POINTS]


def test_the_count_column_decides_between_powers_of_1000_and_1024(tmp_path: Path) -> None:
    rows = "\n".join(f"{n}MB {n * 250_000} float sum -1 {n * 10.0} 100.00 175.00 0" for n in (8, 64, 512))
    head = "size count type redop root time algbw busbw #wrong\n"
    assert [row.size_bytes for row in read(tmp_path, head + rows).rows] == [8_000_000, 64_000_000, 512_000_000]


def test_a_unit_in_a_columns_name_is_no_column(tmp_path: Path) -> None:
    head = "| size (B) | count (elements) | type | redop | root | time (ms) | algbw (GB/s) | busbw (GB/s) | #wrong |\n"
    rows = lines("|---|", "| {unit} | 1 | float | sum | -1 | {ms:.5f} | {a:.2f} | {b:.2f} | 0 |").replace(
        "| 1 |", "| 9 |"
    )
    found = read(tmp_path, head + rows)
    assert times_us(found) == pytest.approx([time for _, time in POINTS], rel=1e-3)


# -- what a log says about itself --------------------------------------------------------------------------------------


def test_a_test_that_trine_does_not_model_is_named(tmp_path: Path) -> None:
    rows = [(size, time, time) for size, time in POINTS]
    text = "# Collective test starting: hypercube_perf\n" + log(rows, "alltoall", named=False)
    with pytest.raises(InputError, match="is a run of hypercube_perf, which trine does not model"):
        read(tmp_path, text)
    assert read(tmp_path, text, "all_to_all").op == "all_to_all"


def predicted(sizes: tuple[int, ...]) -> list[tuple[int, float, float]]:
    cluster = load_cluster(CLUSTER)
    return [
        (row.size_bytes, row.time_ps / 1e6, row.time_ps / 1e6) for row in collective("all_reduce", sizes, cluster).rows
    ]


def with_counts(text: str, warmups: int, aggregated: int) -> str:
    """Return a log whose header states the calls before each size and in each group."""
    counts = f"warmup iters: {warmups} iters: 20 agg iters: {aggregated} validation: 1 graph: 0"
    lines = text.splitlines()
    place = next(i for i, line in enumerate(lines) if "nThread" in line)
    lines[place] = f"# nThread 1 nGpus 1 minBytes 1024 maxBytes 1073741824 step: 4(factor) {counts}"
    return "\n".join(lines)


SIZES = tuple(1 << power for power in range(10, 31, 2))


def test_grouped_calls_are_no_reason_to_blame_the_clusters_numbers(tmp_path: Path) -> None:
    usual = predicted(SIZES)
    rows = [(size, 0.3 * time if time < 60 else time, time) for size, time, _ in usual]
    body = log(rows)
    alone = check_log(read(tmp_path, with_counts(body, 5, 1)), load_cluster(CLUSTER))
    grouped = check_log(read(tmp_path, with_counts(body, 5, 50)), load_cluster(CLUSTER))
    assert alone.state == "model does not fit"
    assert grouped.state == "cannot decide"
    assert "50 calls are launched as one group (-m)" in grouped.reason
    slow = [(size, time if time < 60 else 3 * time, time) for size, time, _ in usual]
    assert check_log(read(tmp_path, with_counts(log(slow), 5, 50)), load_cluster(CLUSTER)).state == "slow"


def test_missing_warm_up_calls_stand_in_the_verdict_of_a_slow_run(tmp_path: Path) -> None:
    rows = [(size, 9000.0 if size < 20_000 else time, time) for size, time, _ in predicted(SIZES)]
    cold = check_log(read(tmp_path, with_counts(log(rows), 0, 1)), load_cluster(CLUSTER))
    warm = check_log(read(tmp_path, with_counts(log(rows), 5, 1)), load_cluster(CLUSTER))
    assert "no warm-up calls (-w 0)" in cold.verdict()
    assert "warm-up" not in warm.verdict()


@pytest.mark.parametrize(
    ("version", "is_covered"), [("2.17.1", False), ("2.18.3", True), ("2.29.1", True), ("2.31.2", False)]
)
def test_a_version_outside_the_predictions_is_noted(tmp_path: Path, version: str, is_covered: bool) -> None:
    text = f"NCCL version {version}+cuda12.4\n" + log(predicted(SIZES))
    notes = check_log(read(tmp_path, text), load_cluster(CLUSTER)).notes
    assert any(f"the log is of NCCL {version}" in note for note in notes) is not is_covered


def test_the_form_of_an_old_table_shows_an_older_library(tmp_path: Path) -> None:
    old = check_log(read(tmp_path, log(predicted(SIZES), old=True)), load_cluster(CLUSTER))
    new = check_log(read(tmp_path, log(predicted(SIZES))), load_cluster(CLUSTER))
    assert any("nccl-tests before 2022" in note for note in old.notes)
    assert not any("before 2022" in note for note in new.notes)


def test_a_log_of_the_other_vendors_library_names_the_machine_to_give(tmp_path: Path) -> None:
    found = read(tmp_path, "RCCL version : 2.22.3-HEAD\n" + log(predicted(SIZES)))
    with pytest.raises(InputError, match="give --cluster a machine with GPUs of AMD"):
        check_log(found, load_cluster(CLUSTER))


def test_rows_of_no_bytes_have_a_reason_of_their_own(tmp_path: Path) -> None:
    rows = [(0, 1.5, 1.4), (0, 1.6, 1.4), *predicted(SIZES)]
    assert (
        "2 rows of 0 bytes left out: no data moves" in check_log(read(tmp_path, log(rows)), load_cluster(CLUSTER)).notes
    )


def test_long_delays_are_printed_in_milliseconds(tmp_path: Path) -> None:
    rows = [(size, time + 4000, time) for size, time, _ in predicted(SIZES)]
    answer = check_log(read(tmp_path, log(rows)), load_cluster(CLUSTER))
    assert answer.cause is not None
    assert answer.cause.name.startswith("each call starts ")
    assert " ms late" in answer.cause.name


def test_a_short_table_is_one_run(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(lines("size,time_us", "{s},{t}"))
    assert len(read_runs(tmp_path / "t.csv")) == 1
