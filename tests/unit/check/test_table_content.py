"""Does the reader infer program, collective, ranks and units from a table's content, and mark what it guessed?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from nccl_logs import log, row, table

from trine.check.nccl_tests import NcclLog, read_log, with_ranks
from trine.errors import InputError

ROWS = [(1 << 16, 14.0, 14.2), (1 << 20, 26.62, 26.1), (1 << 24, 190.2, 191.0), (1 << 30, 4190.0, 4188.0)]


def read(tmp_path: Path, text: str, op: str | None = None) -> NcclLog:
    path = tmp_path / "log.txt"
    path.write_text(text, encoding="utf-8")
    return read_log(path, op)


def times_us(found: NcclLog) -> list[float]:
    return [row.out_of_place.time_ps / 1e6 for row in found.rows if row.out_of_place]


def plain_row(size: int, count: int, head: str, results: Sequence[tuple[float, float, float, str]]) -> str:
    cells = "  ".join(f"{time:.2f} {alg:.2f} {bus:.2f} {wrong}" for time, alg, bus, wrong in results)
    return f"  {size} {count} float {head} {cells}"


def old_rows(ranks: int, head: str = "") -> str:
    """Rows of old nccl-tests: algbw = busbw = size / time x (n - 1) / n, and a count of one block."""
    lines = []
    for size, first, second in ROWS:
        rates = [size / time / 1e3 * (ranks - 1) / ranks for time in (first, second)]
        results = [(time, rate, rate, "0e+00") for time, rate in zip((first, second), rates, strict=True)]
        lines.append(plain_row(size, size // 4 // ranks, head, results))
    return "\n".join(lines)


@pytest.mark.parametrize("ranks", [2, 4, 8, 16, 64])
@pytest.mark.parametrize(("head", "op"), [("", "all_gather"), ("sum", "reduce_scatter")])
def test_old_tables_leave_a_block_out_of_algbw(tmp_path: Path, ranks: int, head: str, op: str) -> None:
    found = read(tmp_path, old_rows(ranks, head))
    assert (found.op, found.num_ranks, found.ranks_from) == (op, ranks, "the block that algbw leaves out")
    assert found.bus_ratio == pytest.approx((ranks - 1) / ranks, rel=1e-3)
    assert f"algbw leaves out one of {ranks} blocks, as old versions of nccl-tests did" in found.notes
    assert read(tmp_path, old_rows(ranks, head), op).num_ranks == ranks


@pytest.mark.parametrize("ranks", [2, 8])
def test_a_current_table_leaves_nothing_out(tmp_path: Path, ranks: int) -> None:
    found = read(tmp_path, "\n".join(table(ROWS, "reduce_scatter", ranks)))
    assert (found.op, found.num_ranks) == ("reduce_scatter", ranks)
    assert not any("algbw" in note and "blocks" in note for note in found.notes)


def test_a_count_of_one_block_alone_leaves_nothing_out(tmp_path: Path) -> None:
    """Eight blocks and busbw = algbw, as in old tables, but algbw is size / time: no block is missing from it."""
    lines = []
    for size, first, second in ROWS:
        results = [(time, size / time / 1e3, size / time / 1e3, "0") for time in (first, second)]
        lines.append(plain_row(size, size // 4 // 8, "none -1", results))
    found = read(tmp_path, "\n".join(lines), "all_gather")
    assert not any("algbw leaves out" in note for note in found.notes)
    last = found.rows[-1].out_of_place
    assert last is not None
    assert last.algbw_bytes_per_s == pytest.approx(ROWS[-1][0] / ROWS[-1][1] * 1e6, rel=1e-4)


UNITS = [
    (1e-3, 1.0, "times are milliseconds"),
    (1e-6, 1.0, "times are seconds"),
    (1e3, 1.0, "times are nanoseconds"),
    (1.0, 1e9 / 2**30, "bandwidths are GiB/s"),
    (1.0, 8.0, "bandwidths are Gb/s"),
]


@pytest.mark.parametrize(("time", "rate", "note"), UNITS)
def test_a_constant_factor_between_time_and_algbw_is_a_unit(
    tmp_path: Path, time: float, rate: float, note: str
) -> None:
    lines = []
    for size, first, second in ROWS:
        results = [
            f"{us * time:.9g} {size / us / 1e3 * rate:.3f} {size / us / 1e3 * 1.75 * rate:.3f} 0"
            for us in (first, second)
        ]
        lines.append(f"{size} {size // 4} float sum -1 {' '.join(results)}")
    found = read(tmp_path, "\n".join(lines))
    assert times_us(found) == pytest.approx([first for _, first, _ in ROWS], rel=0.02 if time == 1e-6 else 1e-4)
    assert any(each.startswith(note) for each in found.notes)
    measure = found.rows[-1].out_of_place
    assert measure is not None
    assert measure.algbw_bytes_per_s == pytest.approx(2**30 / 4190e-6, rel=2e-3)


@pytest.mark.parametrize("unit", ["GB/s", "MB/s", "MBps"])
def test_megabytes_per_second_where_the_header_names_the_unit_of_time(tmp_path: Path, unit: str) -> None:
    head = f"# (B) (elements) (us) ({unit}) ({unit}) (us) ({unit}) ({unit})\n"
    rows = [f"{s} {s // 4} float sum -1 {a} {s / a:.1f} {s / a * 1.75:.1f} 0" for s, a, _ in ROWS]
    found = read(tmp_path, head + "\n".join(rows))
    assert times_us(found) == [first for _, first, _ in ROWS]
    assert any(each.startswith("bandwidths are MB/s") for each in found.notes)


@pytest.mark.parametrize("form", ["constant", "random"])
def test_a_factor_that_no_unit_explains_stops_the_diagnosis(tmp_path: Path, form: str) -> None:
    factors = [3.3] * 4 if form == "constant" else [1.0, 4.0, 9.0, 17.0]
    lines = [
        plain_row(s, s // 4, "sum -1", [(a, k * s / a / 1e3, k * s / a / 1e3 * 1.75, "0")])
        for k, (s, a, _) in zip(factors, ROWS, strict=True)
    ]
    found = read(tmp_path, "\n".join(lines))
    assert found.fault is not None
    assert found.fault.startswith("time and algbw disagree: size / time is ")
    assert read(tmp_path, "\n".join(table(ROWS))).fault is None


def test_the_first_version_of_nccl_tests(tmp_path: Path) -> None:
    """Header ``bytes N type op``; times in milliseconds; no check of results."""
    rows = [
        f"{s:12} {s // 4:14}   float     sum {a / 1e3:8.3f} {s / a / 1e3:6.2f} {s / a / 1e3 * 1.75:6.2f}      N/A"
        for s, a, _ in ROWS
    ]
    found = read(
        tmp_path, "#      bytes             N    type      op     time  algbw  busbw      res\n" + "\n".join(rows)
    )
    assert times_us(found) == pytest.approx([first for _, first, _ in ROWS], rel=0.03)
    assert (found.op, found.num_ranks, found.rows[0].redop) == ("all_reduce", 8, "sum")


# -- the collective ----------------------------------------------------------------------------------------------------


def unchecked(text: str, program: str) -> str:
    """Return a table whose in-place results are not checked."""
    lines = [line.removesuffix("0") + "N/A" if " float " in line and program else line for line in text.splitlines()]
    return "\n".join(lines)


def test_sendrecv_prints_a_redop_and_checks_no_in_place_results(tmp_path: Path) -> None:
    rows = [
        plain_row(s, s // 4, "sum -1", [(a, s / a / 1e3, s / a / 1e3, "0"), (b, s / b / 1e3, s / b / 1e3, "N/A")])
        for s, a, b in ROWS
    ]
    found = read(tmp_path, "\n".join(rows))
    assert (found.op, found.num_ranks) == ("send_recv", None)
    assert (
        "guess: the collective is send_recv, from the columns, busbw / algbw and in-place checks (--op)" in found.notes
    )
    checked = read(tmp_path, "\n".join(rows).replace("N/A", "0"))
    assert (checked.op, checked.num_ranks, checked.op_others) == ("all_reduce", 2, ())
    unknown = read(tmp_path, "\n".join(line.replace("N/A", "0").replace(" 0", " N/A") for line in rows))
    assert (unknown.op, unknown.op_others) == ("all_reduce", ("send_recv",))
    assert (read(tmp_path, "\n".join(rows), "all_reduce").op, read(tmp_path, "\n".join(rows), "reduce").op) == (
        "all_reduce", "reduce",
    )  # fmt: skip


def test_all_to_all_checks_no_in_place_results_and_all_gather_does(tmp_path: Path) -> None:
    gathered = "\n".join(table(ROWS, "all_gather"))
    assert read(tmp_path, gathered).op == "all_gather"
    found = read(tmp_path, unchecked(gathered, "alltoall"))
    assert (found.op, found.op_others) == ("all_to_all", ())


def test_a_named_program_is_no_guess(tmp_path: Path) -> None:
    for program, op in (("all_gather", "all_gather"), ("sendrecv", "send_recv"), ("all_reduce", "all_reduce")):
        found = read(tmp_path, log(ROWS, program))
        assert (found.op, found.op_from) == (op, "the name of the program")
        assert not any(note.startswith("guess") for note in found.notes)


def test_a_rooted_table_without_redop_asks_for_the_collective(tmp_path: Path) -> None:
    rows = [plain_row(s, s // 32, "none 0", [(a, s / a / 1e3, s / a / 1e3 * 0.875, "0")]) for s, a, _ in ROWS]
    with pytest.raises(InputError, match="give --op gather, --op scatter"):
        read(tmp_path, "\n".join(rows))


def test_ranks_of_one_process(tmp_path: Path) -> None:
    rows = [plain_row(s, s // 4, "sum -1", [(a, s / a / 1e3, s / a / 1e3, "0")] * 2) for s, a, _ in ROWS]
    text = "# nThread 1 nGpus 4 minBytes 8 maxBytes 1024\n" + "\n".join(rows)
    found = read(tmp_path, text, "broadcast")
    assert (found.num_ranks, found.ranks_from) == (4, "nThread x nGpus")
    assert with_ranks(found, 4) is found
    given = with_ranks(found, 2)
    assert (given.num_ranks, given.ranks_from, given.fewest_ranks) == (2, "as given", None)


# -- columns -----------------------------------------------------------------------------------------------------------

NUMBERS: list[tuple[str, Callable[[int], str]]] = [
    ("comma", lambda n: f"{n:,}"),
    ("underscore", lambda n: f"{n:_}"),
    ("apostrophe", lambda n: f"{n:,}".replace(",", "'")),
    ("thin blank", lambda n: f"{n:,}".replace(",", "\u202f")),
    ("point", lambda n: f"{n:,}".replace(",", ".") if n >= 10**6 else str(n)),
]


@pytest.mark.parametrize(("name", "form"), NUMBERS)
def test_separators_of_thousands(tmp_path: Path, name: str, form: Callable[[int], str]) -> None:
    lines = []
    for size, first, second in ROWS:
        cells = row(size, (first, second), "all_reduce", 8).split()
        lines.append("  ".join([form(size), form(size // 4), *cells[2:]]))
    found = read(tmp_path, "\n".join(lines))
    assert [each.size_bytes for each in found.rows] == [size for size, _, _ in ROWS]
    assert [each.count for each in found.rows] == [size // 4 for size, _, _ in ROWS]


@pytest.mark.parametrize("separator", ["  ", ";", " | "])
def test_decimal_commas(tmp_path: Path, separator: str) -> None:
    """Spreadsheets of many countries write 1.048.576 for a size and 26,62 for a time."""
    lines = []
    for size, first, second in ROWS:
        cells = row(size, (first, second), "all_reduce", 8).split()
        sizes = [f"{int(cell):,}".replace(",", ".") for cell in cells[:2]]
        lines.append(separator.join([*sizes, *(cell.replace(".", ",") for cell in cells[2:])]))
    found = read(tmp_path, "\n".join(lines))
    assert [(each.size_bytes, each.count) for each in found.rows] == [(size, size // 4) for size, _, _ in ROWS]
    assert times_us(found) == [first for _, first, _ in ROWS]
    assert found.num_ranks == 8


def test_a_comma_in_csv_separates_cells(tmp_path: Path) -> None:
    text = "\n".join(f"{s},{s // 4},float,sum,-1,{a},{s / a / 1e3:.3f},{s / a / 1e3 * 1.75:.3f},0" for s, a, _ in ROWS)
    found = read(tmp_path, "512,128,float,sum,-1,11.5,0.045,0.078,0\n" + text)
    assert [each.size_bytes for each in found.rows] == [512, *(size for size, _, _ in ROWS)]


def test_columns_are_read_by_their_names_and_unknown_ones_are_listed(tmp_path: Path) -> None:
    head = "# size count type redop root stream time min max algbw busbw #wrong\n"
    rows = [f"{s} {s // 4} float sum -1 7 {a} 1.0 9.0 {s / a / 1e3:.2f} {s / a / 1e3 * 1.75:.2f} 0" for s, a, _ in ROWS]
    found = read(tmp_path, head + "\n".join(rows))
    assert times_us(found) == [first for _, first, _ in ROWS]
    assert found.num_ranks == 8
    assert "columns that trine does not read: stream, min, max" in found.notes


def test_cells_without_a_column_are_counted(tmp_path: Path) -> None:
    rows = [f"{line} 17.5 3" for line in table(ROWS) if " float " in line]
    found = read(tmp_path, "\n".join([*table(ROWS)[:4], *rows]))
    assert "the last 2 cells of 4 rows have no known column: not read" in found.notes


# -- other programs ----------------------------------------------------------------------------------------------------

FOREIGN = {
    "NVSHMEM's perftest": """#reduction_on_stream
size(B) count type redop latency(us) min_lat(us) max_lat(us) algbw(GB/s) busbw(GB/s)
8 2 int sum 7.19 7.194 7.194 0.001 0.002
""",
    "the OSU micro-benchmarks": """# OSU MPI-CUDA Allreduce Latency Test v7.2
# Size       Avg Latency(us)
8    12.31
""",
    "perftest": """ #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536 5000 23562 23561 0.37
""",
    "oneCCL's benchmark": """#bytes  #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]  stddev[%]
 4 16 12.5 13.1 12.8 1.2
""",
    "nvbandwidth": "nvbandwidth Version: v0.5\nRunning device_to_device_memcpy_read_ce.\n 0 1\n",
}


@pytest.mark.parametrize("program", FOREIGN)
def test_another_programs_table_is_refused_by_its_name(tmp_path: Path, program: str) -> None:
    with pytest.raises(InputError, match=program):
        read(tmp_path, FOREIGN[program])


def test_a_header_without_a_known_size_is_refused_with_its_columns(tmp_path: Path) -> None:
    head = "payload_bytes seconds alg_bandwidth bus_bandwidth"
    with pytest.raises(InputError, match=head):
        read(tmp_path, head + "\n1048576,262144,float,sum,26.62,39.39,68.93\n")


def test_an_unknown_header_is_refused_with_its_columns(tmp_path: Path) -> None:
    text = "size(bytes) count type redop lat(us) algbw(GB/s) busbw(GB/s)\n8 2 float sum 7.19 0.001 0.002 0\n"
    with pytest.raises(InputError, match=r"has the columns 'size.bytes. count type redop lat.us. algbw"):
        read(tmp_path, text)


def test_a_mark_of_another_program_beside_a_table_of_nccl_tests_is_no_obstacle(tmp_path: Path) -> None:
    assert read(tmp_path, "nvbandwidth Version: v0.5\n" + log(ROWS)).op == "all_reduce"


# -- incomplete logs ---------------------------------------------------------------------------------------------------


def test_how_a_log_is_incomplete(tmp_path: Path) -> None:
    counts = "# nThread 1 nGpus 1 minBytes 65536 maxBytes 1073741824 step: 16(factor)\n"
    rows = table([*ROWS[:1], (1 << 20, 26.62, 26.1)])
    assert read(tmp_path, counts + "\n".join(rows)).incomplete == "rows end at 1M, the run was to go to 1G"
    failed = "\n".join([*table(ROWS), "host: Test NCCL failure all_reduce.cu:44 'unhandled cuda error'"])
    assert str(read(tmp_path, failed).incomplete).startswith("the test failed: Test NCCL failure all_reduce.cu:44")
    hung = "\n".join([*table(ROWS), "  2147483648     536870912     float     sum      -1"])
    assert read(tmp_path, hung).incomplete == "the row of 2147483648 bytes has no result"
    assert read(tmp_path, "\n".join(table(ROWS))).incomplete is None
