"""Are rocprofv3's databases read as what they show, several in one file too, and other schemas refused?"""

from __future__ import annotations

import sqlite3

import pytest

from trine.errors import InputError, SpecError
from trine.gpu.replay import profile_rows
from trine.gpu.replay.profile_events import read_events
from trine.gpu.replay.profiles import read_profile
from trine.gpu.replay.rocpd import ROCPD

GUID = "_0123abcd_0000_7000_8000_00000000000a"
#: The tables of schema 3 that matter, with the columns that do.
TABLES = {
    "metadata": "id INTEGER PRIMARY KEY, tag TEXT, value TEXT",
    "string": "id INTEGER PRIMARY KEY, guid TEXT, string TEXT",
    "info_agent": "id INTEGER PRIMARY KEY, guid TEXT, type TEXT, absolute_index INTEGER, logical_index INTEGER",
    "info_kernel_symbol": "id INTEGER PRIMARY KEY, guid TEXT, kernel_name TEXT, display_name TEXT",
    "event": "id INTEGER PRIMARY KEY, guid TEXT, category_id INTEGER, extdata TEXT",
    "region": "id INTEGER PRIMARY KEY, guid TEXT, start BIGINT, end BIGINT, name_id INTEGER, event_id INTEGER",
    "kernel_dispatch": "id INTEGER PRIMARY KEY, guid TEXT, agent_id INTEGER, kernel_id INTEGER, start BIGINT, "
    "end BIGINT",
    "memory_copy": "id INTEGER PRIMARY KEY, guid TEXT, start BIGINT, end BIGINT, name_id INTEGER, "
    "dst_agent_id INTEGER, src_agent_id INTEGER, size INTEGER",
}
#: Agent 10 is a CPU, 11 (logical index 1) the target, 12 (2) its peer.
ROWS = {
    "metadata": [(1, "schema_version", "3")],
    "string": [
        (1, "g", "MEMORY_COPY_DEVICE_TO_DEVICE"), (2, "g", "MARKER_CORE_API"), (3, "g", "HIP_RUNTIME_API_EXT"),
        (4, "g", "roctxRangePushA"), (5, "g", "write peer=1 address=flags+0x80 bytes=8 value=1"), (6, "g", "hipMemcpy"),
    ],
    "info_agent": [(10, "g", "CPU", 0, 0), (11, "g", "GPU", 4, 1), (12, "g", "GPU", 5, 2)],
    "info_kernel_symbol": [(1, "g", "gemv.kd", "gemv_allreduce(float*)"), (2, "g", "notify.kd", "notify(int*)")],
    "event": [
        (1, "g", 2, '{"message": "write peer=1 address=flags+0x40 bytes=8 value=1"}'),
        (2, "g", 2, "{}"), (3, "g", 3, "{}"),
    ],
    "region": [(1, "g", 113_500, 115_501, 4, 1), (2, "g", 116_000, 117_000, 5, 2), (3, "g", 100_000, 118_000, 6, 3)],
    "kernel_dispatch": [(1, "g", 11, 1, 100_250, 130_750), (2, "g", 12, 2, 112_125, 113_125)],
    "memory_copy": [
        (1, "g", 105_000, 108_500, 1, 11, 12, 8192),  # from the peer to the target
        (2, "g", 105_000, 108_500, 1, 12, 11, 8192),
        (3, "g", 106_000, 107_000, 1, 12, 12, 64),  # on one device
        (4, "g", 106_000, 107_000, 1, 11, 10, 64),  # from the host
    ],
}  # fmt: skip
EXPECTED = [
    (8_250_000, "input+0x0", 8192), (12_875_000, "flags+0x0", 8), (15_251_000, "flags+0x40", 8),
    (16_750_000, "flags+0x80", 8),
]  # fmt: skip


def database(tmp_path, guids=(GUID,), tables=TABLES, rows=ROWS):
    path = tmp_path / "1234_results.db"
    with sqlite3.connect(path) as made:
        for guid in guids:
            for name, columns in tables.items():
                made.execute(f"CREATE TABLE rocpd_{name}{guid} ({columns})")
                for row in rows.get(name, ()):
                    made.execute(f"INSERT INTO rocpd_{name}{guid} VALUES ({', '.join('?' * len(row))})", row)
            made.execute(
                f"CREATE VIEW IF NOT EXISTS rocpd_region AS SELECT * FROM rocpd_region{guid}"
            ) if guid else None
    made.close()
    return path


def mapping(tmp_path):
    path = tmp_path / "map.yaml"
    path.write_text(
        "target: Agent 1\npeers: {Agent 2: 1}\nkernel: 'gemv_allreduce(*'\nwrites:\n"
        "  - {rows: copy, address: input}\n"
        "  - {rows: kernel, name: 'notify(*', address: flags, bytes: 8 B, value: 1}\n"
    )
    return path


@pytest.mark.parametrize("guid", [GUID, ""], ids=["with its guid", "plain"])
def test_a_database_of_rocprofv3(tmp_path, guid):
    profile = read_profile(database(tmp_path, (guid,)), mapping(tmp_path))
    table, columns = profile.table, profile.table.columns
    found = [(int(columns.time_ps[i]), table.address_text(i), int(columns.size_bytes[i])) for i in range(len(table))]
    assert sorted(found) == EXPECTED
    assert set(columns.peer.tolist()) == {1}
    assert f"{ROCPD}, 6 rows" in profile.notes[0]


def test_what_does_not_go_between_two_gpus_and_what_is_no_marker_is_left_out(tmp_path):
    name, rows = read_events(database(tmp_path), None, False)
    assert name == ROCPD
    assert [(row.kind, row.device, row.other, row.size_bytes) for row in rows if row.kind == "copy"] == [
        ("copy", "2", "1", 8192), ("copy", "1", "2", 8192),
    ]  # fmt: skip
    assert {row.name for row in rows if row.kind == "range"} == {
        "write peer=1 address=flags+0x40 bytes=8 value=1", "write peer=1 address=flags+0x80 bytes=8 value=1",
    }  # fmt: skip
    assert "hipMemcpy" not in {row.name for row in rows}


def test_a_merged_file_has_the_rows_of_all(tmp_path):
    _, rows = read_events(database(tmp_path, (GUID, GUID[:-1] + "b")), None, False)
    assert len(rows) == 12


@pytest.mark.parametrize(
    ("table", "columns", "message"),
    [
        (
            "memory_copy",
            "id INTEGER PRIMARY KEY, start_id INT, end_id INT",
            "has no 'start': it is of a schema of rocpd",
        ),
        ("info_agent", "id INTEGER PRIMARY KEY, type TEXT", "has no 'absolute_index'"),
        ("string", "id INTEGER PRIMARY KEY", "has no 'string'"),
    ],
)
def test_another_schema_is_refused_by_what_is_missing(tmp_path, table, columns, message):
    path = database(tmp_path, tables={**TABLES, table: columns}, rows={})
    with pytest.raises(SpecError, match=message) as error:
        read_events(path, None, False)
    assert f"rocpd_{table}" in str(error.value)


def test_times_and_numbers_of_rows_are_checked(tmp_path, monkeypatch):
    wrong = {**ROWS, "kernel_dispatch": [(7, "g", 11, 1, 5, 4)]}
    with pytest.raises(InputError, match=r"rocpd_kernel_dispatch\w*:7: is no span of nanoseconds: 5 to 4"):
        read_events(database(tmp_path, rows=wrong), None, False)
    (tmp_path / "1234_results.db").unlink()
    monkeypatch.setattr(profile_rows, "MAX_ROWS", 1)
    with pytest.raises(SpecError, match="more than 1 rows in rocpd_kernel_dispatch"):
        read_events(database(tmp_path), None, False)
