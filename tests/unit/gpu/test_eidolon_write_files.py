"""Do CSV, JSON and Parquet say the same, with units in the header or in the values, and are their faults named?"""

from __future__ import annotations

import json

import numpy as np
import pytest
from eidolon_cases import all_flags, same, target_program

from trine.errors import InputError
from trine.gpu.replay.resolve import peer_writes
from trine.gpu.replay.write_files import read_writes, save_writes
from trine.gpu.replay.writes import WriteTable

ROWS = """\
# who, where, how much, when
peer, address, bytes, value, time
0, input, 4 KiB, , 1.5 us
2, 0x10040, 64, 0, 250 ns

3, "flags + 64", 8 B, 1, 0
3, sem 5, 8, 0x2, 1 s
"""
EXPECTED = [
    (0, "input+0x0", 4096, 0, 1_500_000),
    (2, "0x10040", 64, 0, 250_000),
    (3, "flags+0x40", 8, 1, 0),
    (3, "sem 5", 8, 2, 10**12),
]


def rows_of(table):
    columns = table.columns
    numbers = zip(columns.peer, columns.size_bytes, columns.value, columns.time_ps, strict=True)
    return [
        (int(peer), table.address_text(row), int(size), int(value), int(time))
        for row, (peer, size, value, time) in enumerate(numbers)
    ]


def write(tmp_path, text, name="writes.csv"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_units_in_values(tmp_path):
    table = read_writes(write(tmp_path, ROWS))
    assert rows_of(table) == EXPECTED
    assert [table.where(row).rsplit("/")[-1] for row in range(4)] == [f"writes.csv:{line}" for line in (3, 4, 6, 7)]


@pytest.mark.parametrize(
    "header",
    ["peer,address,bytes,value,time_us", "peer,address,bytes (B),value,time (us)", "peer,address,bytes,value,time[us]"],
)
def test_units_in_the_header(tmp_path, header):
    table = read_writes(write(tmp_path, f"{header}\n1,0,8,1,0.0000015\n1,8,8,1,3\n1,16,8,1,2.5e0\n"))
    assert table.columns.time_ps.tolist() == [2, 3_000_000, 2_500_000]  # 1.5 ps are rounded up
    assert table.columns.size_bytes.tolist() == [8, 8, 8]


def test_columns_stand_in_any_order_and_value_may_be_left_out(tmp_path):
    table = read_writes(write(tmp_path, "time_ns,bytes_KiB,peer,address\n7,2,1,0x40\n"))
    assert rows_of(table) == [(1, "0x40", 2048, 0, 7000)]


def test_json_of_rows_and_of_columns(tmp_path):
    rows = [
        {"peer": 0, "address": "input", "bytes": "4 KiB", "value": None, "time": "1.5 us"},
        {"peer": 2, "address": 0x10040, "bytes": 64, "value": 0, "time": "250 ns"},
        {"peer": 3, "address": "flags+64", "bytes": 8, "value": 1, "time": 0},
        {"peer": 3, "address": "sem 5", "bytes": 8, "value": 2, "time": "1 s"},
    ]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    for content in (rows, columns):
        path = write(tmp_path, json.dumps({"writes": content}), "writes.json")
        assert rows_of(read_writes(path)) == EXPECTED


def test_parquet_of_numbers_and_of_texts(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    texts = {
        "peer": [0, 2, 3, 3],
        "address": ["input", "0x10040", "flags+64", "sem 5"],
        "bytes": [4096, 64, 8, 8],
        "value": [None, 0, 1, 2],
        "time": ["1.5 us", "250 ns", "0 s", "1 s"],
    }
    parquet.write_table(pa.table(texts), tmp_path / "a.parquet")
    assert rows_of(read_writes(tmp_path / "a.parquet")) == EXPECTED
    numbers = {
        "peer": np.array([1, 0], np.int8),
        "address": np.array([64, 2**40]),
        "bytes": [8, 8],
        "time_us": [1.5, 3],
    }
    parquet.write_table(pa.table(numbers), tmp_path / "b.parquet")
    read = read_writes(tmp_path / "b.parquet")
    assert rows_of(read) == [(1, "0x40", 8, 0, 1_500_000), (0, "0x10000000000", 8, 0, 3_000_000)]


@pytest.mark.parametrize("suffix", ["csv", "json", "parquet"])
@pytest.mark.parametrize("named", [True, False])
def test_what_is_saved_is_read_again(tmp_path, suffix, named):
    table = all_flags(WriteTable())
    if not named:
        numbers, table = table.columns, WriteTable()
        table.register_writes(
            peer=numbers.peer, address=0x20000 + numbers.address, size_bytes=8, value=1, time_ps=numbers.time_ps
        )
    path = tmp_path / f"writes.{suffix}"
    save_writes(path, table)
    again = read_writes(path)
    assert sorted(rows_of(again)) == sorted(rows_of(table))
    program = target_program()
    assert same(peer_writes(again, program, 1).writes, peer_writes(table, program, 1).writes)


@pytest.mark.parametrize("suffix", ["csv", "json", "parquet"])
def test_no_writes_are_a_file_too(tmp_path, suffix):
    path = tmp_path / f"writes.{suffix}"
    save_writes(path, WriteTable())
    assert len(read_writes(path)) == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("peer,adress,bytes,time_us\n", "unknown column 'adress'; did you mean 'address'"),
        ("peer,peer,address,bytes,time_us\n", "the column 'peer' is there twice"),
        ("peer,address,bytes\n", r"has no column 'time' \(time_us, or time with a unit in each value\)"),
        ("peer,address,bytes,time_lightyears\n", "unknown unit 'lightyears'"),
        ("peer_us,address,bytes,time\n", "peer: has no unit, but the header says 'us'"),
        ("peer,address,bytes,time\n1,0,8,10\n", "writes.csv:2: time: needs a unit, such as '1 us'; got '10'"),
        ("peer,address,bytes,time\n1,0,8,-1 us\n", "writes.csv:2: time: '-1 us' is in the past"),
        ("peer,address,bytes,time_us\n1,0,8,0\n1,0,8,-1\n", "writes.csv:3: time_ps: -1000000 ps is in the past"),
        ("peer,address,bytes,time_us\n1,0,8,1 ms\n", "writes.csv:2: time: must be a number, got '1 ms'"),
        ("peer,address,bytes,time_us\n1,0,8,nan\n", "writes.csv:2: time: must be a number"),
        ("peer,address,bytes,time_us\n1,0,8,1e30\n", "writes.csv:2: time: .1e30. is too large"),
        ("peer,address,bytes,time_us\n1,0,2.5,1\n", "writes.csv:2: bytes: unit|a number with a unit|needs a unit"),
        ("peer,address,bytes,time_us\n1,0,0,1\n", "writes.csv:2: size_bytes: must be from 1"),
        ("peer,address,bytes,time_us\n,0,8,1\n", "writes.csv:2: peer: is missing"),
        ("peer,address,bytes,time_us\nx,0,8,1\n", "writes.csv:2: peer: must be a whole number, got 'x'"),
        ("peer,address,bytes,time_us\n1.5,0,8,1\n", "writes.csv:2: peer: must be a whole number, got '1.5'"),
        ("peer,address,bytes,time_us\n-1,0,8,1\n", "writes.csv:2: peer: must be from 0"),
        ("peer,address,bytes,time_us\n1,flags+1 parsec,8,1\n", "writes.csv:2: address: the offset in a buffer"),
        ("peer,address,bytes,time_us\n1,0,8\n", "writes.csv:2: has 3 values, the header 4"),
        ('peer,address,bytes,time_us\n1,"0,8,1\n1,0,8,1"\n', "a quoted value goes over several lines|is not CSV"),
    ],
)
def test_faults_of_csv_are_named(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        read_writes(write(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "must be an object with 'writes' alone"),
        ('{"writes": 3}', "must be a list of writes"),
        ('{"writes": [3]}', "must be an object"),
        ('{"writes": [{"peer": 1, "address": 0, "bytes": 8, "time": "1 us"}, {"peer": 1}]}', "writes.json:1"),
        ('{"writes": {"peer": [1], "address": []}}', "must be lists of one length"),
        ('{"writes": [{"peer": 1, "address": [0], "bytes": 8, "time_us": 1}]}', "writes.json:0: address"),
        (
            '{"writes": [{"peer": true, "address": 0, "bytes": 8, "time_us": 1}]}',
            "writes.json:0: peer: must be a number",
        ),
        ('{"writes": [{"peer": 1, "address": 0, "bytes": 8, "time_us": NaN}]}', "'NaN' is not a number"),
        ('{"writes": [{"peer": 1, "address": 0, "bytes": 8, "time": 5}]}', "needs a unit"),
        ('{"writes": [{"peer": 99999999999999999999999, "address": 0, "bytes": 8, "time_us": 1}]}', "peer"),
    ],
)
def test_faults_of_json_are_named(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        read_writes(write(tmp_path, text, "writes.json"))


def test_faults_of_parquet_are_named(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    good = {"peer": [0], "address": [0], "bytes": [8], "time": [5]}
    for changes, message in (
        ({}, "needs a unit: name the column time_us"),
        ({"time": [None]}, "time: is missing"),
        ({"time": ["5 us"], "bytes": [[8]]}, "bytes: must be numbers or text"),
        ({"time": ["5 us"], "peer": [2**40]}, "peer: must be from 0 to"),
    ):
        parquet.write_table(pa.table(good | changes), tmp_path / "w.parquet")
        with pytest.raises(InputError, match=message):
            read_writes(tmp_path / "w.parquet")
    write(tmp_path, "peer", "w.parquet")
    with pytest.raises(InputError, match="is not Parquet"):
        read_writes(tmp_path / "w.parquet")
    with pytest.raises(InputError, match="No such file"):
        read_writes(tmp_path / "none.parquet")


def test_other_files_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"writes are .csv, .json or .parquet, not '.cvs'; did you mean '.csv'"):
        read_writes(tmp_path / "writes.cvs")


@pytest.mark.parametrize("suffix", ["csv", "json", "parquet"])
def test_where_nothing_can_be_written_is_named(tmp_path, suffix):
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    with pytest.raises(InputError, match=rf"writes.{suffix}: cannot write: No such file"):
        save_writes(tmp_path / "no" / f"writes.{suffix}", WriteTable())


def test_errors_found_later_name_the_line(tmp_path):
    path = write(tmp_path, "peer,address,bytes,value,time_us\n0,flags,8,1,1\n7,flags,8,1,1\n")
    with pytest.raises(InputError, match=r"writes.csv:3: peer: rank 7 is no rank"):
        peer_writes(read_writes(path), target_program(), 1)
