"""Are PyTorch profiler traces and nsys exports read correctly, and are other files rejected?"""

import gzip
import json
import sqlite3

import pytest

from trine.errors import InputError, SpecError
from trine.gpu.replay import profile_events, profile_rows
from trine.gpu.replay.profile_events import KINETO, NSYS, read_events
from trine.gpu.replay.profiles import read_profile

BASE_NS = 1_711_964_646_000_000_000
PEER_COPY = "Memcpy PtoP (Device -> Device)"


def event(cat, name, ts, dur, **args):
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": args.get("device", 0),
        "tid": 7,
        "ts": ts,
        "dur": dur,
        "args": args,
    }


def events():
    """Return events in Kineto's format, times in microseconds; device 0 is the target, device 1 its peer."""
    return [
        {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": "python"}},
        event("cpu_op", "aten::mm", 1.0, 5.0),
        event("kernel", "gemv_allreduce(float*)", 100.25, 30.5, device=0, stream=7),
        event("kernel", "notify(int*)", 112.125, 1.0, device=1, stream=7),
        event("gpu_memcpy", PEER_COPY, 105, 3.5, fromDevice=1, inDevice=1, toDevice=0, bytes=8192),
        event("gpu_memcpy", PEER_COPY, 105, 3.5, fromDevice=0, inDevice=0, toDevice=1, bytes=8192),
        event("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 106.0, 1.0, device=1, bytes=4096),
        event("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 106.0, 1.0, device=0, bytes=4096),
        event("user_annotation", "write peer=1 address=flags+0x40 bytes=8 value=1", 101.0, 2.0),
        event("gpu_user_annotation", "write peer=1 address=flags+0x40 bytes=8 value=1", 113.5, 2.001),
    ]  # fmt: skip


def trace(tmp_path, name="rank0.json", made=None, **more):
    document = {"schemaVersion": 1, "traceEvents": events() if made is None else made, **more}
    text = json.dumps(document).encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return path


def mapping(tmp_path, target="0", peer="1"):
    path = tmp_path / "map.yaml"
    path.write_text(
        f"target: {target}\npeers: {{{peer}: 1}}\nkernel: 'gemv_allreduce(*'\nwrites:\n"
        "  - {rows: copy, address: input, bytes: 8 KiB}\n"
        "  - {rows: kernel, name: 'notify(*', address: flags, bytes: 8 B, value: 1}\n"
    )
    return path


def writes(profile):
    table, columns = profile.table, profile.table.columns
    return sorted(
        (int(columns.time_ps[i]), int(columns.peer[i]), table.address_text(i), int(columns.size_bytes[i]))
        for i in range(len(table))
    )


#: Ends of copy, kernel and range in ps after the start of the target's kernel.
EXPECTED = [(8_250_000, 1, "input+0x0", 8192), (12_875_000, 1, "flags+0x0", 8), (15_251_000, 1, "flags+0x40", 8)]


@pytest.mark.parametrize("name", ["rank0.json", "rank0.json.gz"])
@pytest.mark.parametrize("more", [{}, {"baseTimeNanoseconds": BASE_NS, "displayTimeUnit": "ms"}])
def test_a_trace_of_pytorch(tmp_path, name, more):
    profile = read_profile(trace(tmp_path, name, **more), mapping(tmp_path))
    assert writes(profile) == EXPECTED
    assert f"{KINETO}, 5 rows" in profile.notes[0]


def test_times_are_exact_and_count_from_the_base(tmp_path):
    _, rows = read_events(trace(tmp_path, baseTimeNanoseconds=BASE_NS), None, False)
    assert (rows[0].kind, rows[0].device, rows[0].start_ps) == ("kernel", "0", BASE_NS * 1000 + 100_250_000)
    assert [row.kind for row in rows] == ["kernel", "kernel", "copy", "copy", "range"]
    old = [
        {**each, "cat": {"kernel": "Kernel", "gpu_memcpy": "Memcpy"}.get(each.get("cat"), each.get("cat"))}
        for each in events()
    ]
    (tmp_path / "old.json").write_text(json.dumps(old))
    _, same = read_events(tmp_path / "old.json", None, False)
    assert [row.kind for row in same] == [row.kind for row in rows]


def test_traces_of_processes_that_see_one_gpu_each_are_told_apart_by_rank(tmp_path):
    zero = trace(tmp_path, "a.json", [events()[2]], distributedInfo={"rank": 0, "world_size": 2})
    of_one = [{**each, "args": {**each["args"], "device": 0}} for each in (events()[3], events()[9])]
    one = trace(tmp_path, "b.json", of_one, distributedInfo={"rank": 1, "world_size": 2})
    profile = read_profile([zero, one], mapping(tmp_path, "rank 0", "rank 1"))
    assert writes(profile) == EXPECTED[1:]
    with pytest.raises(SpecError, match="has no rank"):
        read_profile([trace(tmp_path, "c.json")], mapping(tmp_path, "rank 0", "rank 1"))


def database(tmp_path, between=True):
    path = tmp_path / "report.sqlite"
    with sqlite3.connect(path) as made:
        made.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL)")
        made.executemany("INSERT INTO StringIds VALUES (?, ?)", [(1, "gemv_allreduce(float*)"), (2, "notify(int*)")])
        made.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, deviceId INT, demangledName INT)")
        made.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?)",
            [(100_250, 130_750, 0, 1), (112_125, 113_125, 1, 2)],
        )
        ends = ", srcDeviceId INT, dstDeviceId INT" if between else ""
        made.execute(
            f"CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INT, end INT, deviceId INT, bytes INT, copyKind INT{ends})"
        )
        for copy in (
            (105_000, 108_500, 1, 8192, 10, 1, 0),
            (106_000, 107_000, 1, 64, 8, 1, 1),
            (106_000, 107_000, 0, 64, 1, 0, 0),
        ):
            given = copy if between else copy[:5]
            made.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES ({', '.join('?' * len(given))})", given)
        made.execute("CREATE TABLE NVTX_EVENTS (start INT, end INT, eventType INT, text TEXT, textId INT)")
        made.execute("INSERT INTO StringIds VALUES (3, 'write peer=1 address=flags+0x40 bytes=8 value=1')")
        made.executemany(
            "INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?)",
            [(113_500, 115_501, 59, None, 3), (1, None, 34, "mark", None)],
        )
    made.close()
    return path


@pytest.mark.parametrize("between", [True, False])
def test_an_export_of_nsys(tmp_path, between):
    profile = read_profile(database(tmp_path, between), mapping(tmp_path))
    assert writes(profile) == EXPECTED
    assert f"{NSYS}, 4 rows" in profile.notes[0]
    assumed = "1 copies without a destination in the profile assumed to go to the target"
    assert (assumed in profile.notes) != between


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is no JSON"),
        (b"[1, 2", "is no JSON"),
        (b'{"a": 1}', "has no list of events"),
        (b'{"traceEvents": {}}', "has no list of events"),
        (b'{"traceEvents": [], "baseTimeNanoseconds": -1}', "must be whole nanoseconds"),
        (b'[{"ph": "X", "cat": "kernel", "name": "k", "ts": "x", "dur": 1}]', "event 0.*ts: must be microseconds"),
        (b'[{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": -1}]', "event 0.*dur: must be microseconds"),
        (b'[{"ph": "X", "cat": "kernel", "name": "k", "ts": NaN, "dur": 1}]', "ts: must be microseconds"),
        (b"SQLite format 3\0" + bytes(200), "is no export of nsys or rocprofv3"),
        (gzip.compress(b'{"traceEvents": []}', mtime=0)[:-9], "is cut short"),
    ],
)
def test_what_is_no_such_file_is_refused(tmp_path, content, message):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_events(path, None, False)


def test_limits_and_other_databases(tmp_path, monkeypatch):
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as made:
        made.execute("CREATE TABLE t (a INT)")
    made.close()
    with pytest.raises(SpecError, match="no table of kernels, copies or ranges"):
        read_events(path, None, False)
    monkeypatch.setattr(profile_rows, "MAX_ROWS", 1)
    with pytest.raises(SpecError, match="more than 1 rows in CUPTI_ACTIVITY_KIND_KERNEL"):
        read_events(database(tmp_path), None, False)
    monkeypatch.setattr(profile_events, "MAX_UNPACKED_BYTES", 10)
    with pytest.raises(SpecError, match="larger than 10 bytes when unpacked"):
        read_events(trace(tmp_path, "big.json.gz"), None, False)
