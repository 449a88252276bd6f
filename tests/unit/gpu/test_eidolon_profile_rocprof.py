"""Is rocprofv3's JSON read correctly, also from several processes, and are other files rejected?"""

from __future__ import annotations

import copy
import gzip
import json

import pytest

from trine.errors import InputError
from trine.gpu.replay import profile_rows
from trine.gpu.replay.profile_events import ROCPROF, read_events
from trine.gpu.replay.profiles import read_profile


def span(start, end, **more):
    return {"size": 64, "thread_id": 9, "start_timestamp": start, "end_timestamp": end, **more}


def dispatch(start, end, agent, kernel):
    return span(start, end, kind=11, operation=1, dispatch_info={"agent_id": {"handle": agent}, "kernel_id": kernel})


def moved(start, end, source, target, **more):
    return span(
        start, end, kind=10, operation=4, src_agent_id={"handle": source}, dst_agent_id={"handle": target}, **more
    )


def marker(start, end, kind, correlation):
    return span(start, end, kind=kind, operation=2, correlation_id={"internal": correlation, "external": 0})


#: Agent 70 is a CPU, 71 (logical 1) the target, 72 (2) its peer; nested and named as in rocprofv3's files.
PROCESS = {
    "metadata": {"pid": 1234, "init_time": 1, "fini_time": 2, "command": ["gemv"]},
    "agents": [
        {"id": {"handle": 70}, "type": 1, "node_id": 0, "logical_node_id": 0},
        {"id": {"handle": 71}, "type": 2, "node_id": 4, "logical_node_id": 1},
        {"id": {"handle": 72}, "type": 2, "node_id": 5, "logical_node_id": 2},
    ],
    "counters": [],
    "strings": {
        "buffer_records": [
            {"kind": "NONE", "operations": []},
            {"kind": "MARKER_CORE_API", "operations": ["roctxMarkA", "roctxRangePushA"]},
            {"kind": "MARKER_CONTROL_API", "operations": ["roctxProfilerPause"]},
        ],
        "marker_api": [
            {"key": 5, "value": "write peer=1 address=flags+0x40 bytes=8 value=1"},
            {"key": 6, "value": "paused"},
        ],
    },
    "kernel_symbols": [
        {"kernel_id": 0},
        {"kernel_id": 1, "kernel_name": "gemv.kd", "formatted_kernel_name": "gemv_allreduce(float*)"},
        {"kernel_id": 2, "kernel_name": "notify.kd", "formatted_kernel_name": "notify(int*)"},
    ],
    "callback_records": {"counter_collection": []},
    "buffer_records": {
        "kernel_dispatch": [dispatch(100_250, 130_750, 71, 1), dispatch(112_125, 113_125, 72, 2)],
        "hip_api": [span(1, 2)],
        "marker_api": [marker(113_500, 115_501, 1, 5), marker(113_000, 113_001, 2, 6)],
        "memory_copy": [
            moved(105_000, 108_500, 72, 71, bytes=8192),  # from the peer to the target
            moved(105_000, 108_500, 71, 72, bytes=8192),
            moved(106_000, 107_000, 72, 72, bytes=64),  # on one device
            moved(106_000, 107_000, 70, 71, bytes=64),  # from the host
        ],
    },
}
EXPECTED = [(8_250_000, "input+0x0", 8192), (12_875_000, "flags+0x0", 8), (15_251_000, "flags+0x40", 8)]


def profile(tmp_path, process=PROCESS, name="1234_results.json"):
    path = tmp_path / name
    content = json.dumps({"rocprofiler-sdk-tool": [process] if isinstance(process, dict) else process}).encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


def changed(where, value):
    """Return the process with another value at a path such as ``buffer_records/memory_copy/0/src_agent_id``."""
    process = copy.deepcopy(PROCESS)
    *way, last = (int(part) if part.isdigit() else part for part in where.split("/"))
    place = process
    for part in way:
        place = place[part]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return process


def mapping(tmp_path, copied="{rows: copy, address: input}"):
    path = tmp_path / "map.yaml"
    path.write_text(
        f"target: Agent 1\npeers: {{Agent 2: 1}}\nkernel: 'gemv_allreduce(*'\nwrites:\n  - {copied}\n"
        "  - {rows: kernel, name: 'notify(*', address: flags, bytes: 8 B, value: 1}\n"
    )
    return path


def written(found):
    table, columns = found.table, found.table.columns
    return sorted(
        (int(columns.time_ps[i]), table.address_text(i), int(columns.size_bytes[i])) for i in range(len(table))
    )


@pytest.mark.parametrize("name", ["1234_results.json", "1234_results.json.gz"])
def test_what_peers_write(tmp_path, name):
    found = read_profile(profile(tmp_path, name=name), mapping(tmp_path))
    assert written(found) == EXPECTED
    assert set(found.table.columns.peer.tolist()) == {1}
    assert f"{ROCPROF}, 5 rows" in found.notes[0]


def test_what_does_not_go_between_two_gpus_and_what_is_no_range_is_left_out(tmp_path):
    name, rows = read_events(profile(tmp_path), None, False)
    assert name == ROCPROF
    assert [(row.kind, row.device, row.other, row.size_bytes) for row in rows if row.kind == "copy"] == [
        ("copy", "2", "1", 8192), ("copy", "1", "2", 8192),
    ]  # fmt: skip
    assert [row.name for row in rows if row.kind == "range"] == ["write peer=1 address=flags+0x40 bytes=8 value=1"]


def test_copies_without_their_bytes_take_those_of_the_mapping(tmp_path):
    older = changed("buffer_records/memory_copy/0/bytes", None)
    with pytest.raises(InputError, match="bytes"):
        read_profile(profile(tmp_path, older), mapping(tmp_path))
    found = read_profile(profile(tmp_path, older), mapping(tmp_path, "{rows: copy, address: input, bytes: 8 KiB}"))
    assert written(found) == EXPECTED


def test_several_processes_are_one_profile_and_numbers_are_those_of_each(tmp_path):
    """The second process has different handles and kernels for the same agents."""
    text = json.dumps(PROCESS).replace('"handle": 72', '"handle": 9').replace('"handle": 71', '"handle": 72')
    other = json.loads(text)
    other["agents"][1]["logical_node_id"], other["agents"][2]["logical_node_id"] = 3, 4
    _, rows = read_events(profile(tmp_path, [PROCESS, other]), None, False)
    assert len(rows) == 10
    assert [(row.device, row.other) for row in rows if row.kind == "copy"] == [
        ("2", "1"), ("1", "2"), ("4", "3"), ("3", "4"),
    ]  # fmt: skip
    alone = tmp_path / "alone.json"
    alone.write_text(json.dumps({"rocprofiler-sdk-tool": PROCESS}))
    assert len(read_events(alone, None, False)[1]) == 5


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        ("buffer_records", [1], r"rocprofiler-sdk-tool\[0\].buffer_records: must be an object, got '\[1\]'"),
        ("buffer_records/memory_copy", {}, r"\[0\].buffer_records.memory_copy: must be a list, got '{}'"),
        ("buffer_records/memory_copy/1", 7, r"buffer_records.memory_copy\[1\]: must be an object, got '7'"),
        (
            "buffer_records/memory_copy/0/src_agent_id",
            {"handle": 99},
            r"memory_copy:0: src_agent_id: names no agent of the file: \"{'handle': 99}\"",
        ),
        ("buffer_records/memory_copy/0/dst_agent_id", {"handle": [1]}, "dst_agent_id: names no agent"),
        ("buffer_records/memory_copy/0/end_timestamp", 5, "memory_copy:0: is no span of nanoseconds: 105000 to 5"),
        ("buffer_records/kernel_dispatch/1/start_timestamp", "7", "kernel_dispatch:1: is no span .*: '7' to 113125"),
        ("buffer_records/kernel_dispatch/1/start_timestamp", 1.5, "is no span of nanoseconds"),
        ("buffer_records/kernel_dispatch/1/end_timestamp", 2**63, "is no span of nanoseconds"),
        ("buffer_records/kernel_dispatch/1/dispatch_info", None, "kernel_dispatch:1: dispatch_info: is missing"),
        ("agents", "none", r"rocprofiler-sdk-tool\[0\].agents: must be a list, got 'none'"),
        ("strings", 1, r"strings: must be an object, got '1'"),
    ],
)
def test_what_is_no_such_thing_is_named(tmp_path, where, value, message):
    with pytest.raises(InputError, match=message) as error:
        read_events(profile(tmp_path, changed(where, value)), None, False)
    assert "1234_results.json" in str(error.value)


def test_names_that_are_no_numbers_do_no_harm(tmp_path):
    odd = changed("kernel_symbols/2/kernel_id", {"a": 1})
    odd["strings"]["marker_api"][0]["key"] = [5]
    _, rows = read_events(profile(tmp_path, odd), None, False)
    assert [row.name for row in rows if row.kind != "copy"] == ["gemv_allreduce(float*)", "", ""]


def test_too_many_rows_and_too_deep_a_file(tmp_path, monkeypatch):
    deep = tmp_path / "deep.json"
    deep.write_text('{"rocprofiler-sdk-tool": ' + "[" * 100_000)
    with pytest.raises(InputError, match="is no JSON"):
        read_events(deep, None, False)
    monkeypatch.setattr(profile_rows, "MAX_ROWS", 1)
    with pytest.raises(InputError, match="has more than 1 rows in kernel_dispatch"):
        read_events(profile(tmp_path), None, False)
