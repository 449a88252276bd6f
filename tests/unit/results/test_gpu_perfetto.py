"""The timeline of workgroups, read back with protobuf's own decoder."""

import gzip

import numpy as np
import pytest
from gpu_results import US, replayed, result
from test_perfetto_trace import BEGIN, END, trace_type, unknown_fields  # noqa: F401

from trine.errors import InputError
from trine.gpu.results import timeline as gpu_perfetto


def read(message, path):
    """Tracks (uuid -> path of names, order) and slices (track, name, start, end, arguments, depth), in file order."""
    data = path.read_bytes()
    trace = message.FromString(gzip.decompress(data) if path.suffix == ".gz" else data)
    assert unknown_fields(trace) == 0
    interned = trace.packet[0].interned_data
    names = {entry.iid: entry.name for entry in interned.event_names}
    keys = {entry.iid: entry.name for entry in interned.debug_annotation_names}
    tracks, open_slices, slices = {}, {}, []
    for packet in trace.packet[1:]:
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            assert track.uuid not in tracks
            tracks[track.uuid] = (*tracks.get(track.parent_uuid, ()), track.name)
            continue
        event = packet.track_event
        stack = open_slices.setdefault(event.track_uuid, [])
        if event.type == BEGIN:
            arguments = {keys[item.name_iid]: item.uint_value for item in event.debug_annotations}
            entry = [tracks[event.track_uuid], names[event.name_iid], packet.timestamp, None, arguments, len(stack)]
            assert not stack or stack[-1][2] <= packet.timestamp
            stack.append(entry)
            slices.append(entry)
        else:
            assert event.type == END
            stack.pop()[3] = packet.timestamp
            assert not stack or stack[-1][3] is None
    assert not any(open_slices.values())
    return tracks, [tuple(entry) for entry in slices]


def written(message, found, tmp_path, name="out.pftrace"):
    notes = found.to_perfetto(tmp_path / name)
    return (*read(message, tmp_path / name), notes)


def test_a_workgroup_holds_its_operations(trace_type, tmp_path):  # noqa: F811
    tracks, slices, notes = written(trace_type, result(), tmp_path)
    assert notes == ()
    root = "toy get (times rounded down to the ns)"
    assert [path[1:] for path in tracks.values() if len(path) in (2, 3)] == [
        ("rank 0",), ("rank 1",), ("rank 0", "cu0"), ("rank 0", "cu1"), ("rank 1", "cu0"), ("rank 1", "cu1"),
    ]  # fmt: skip
    on_cu1 = (root, "rank 0", "cu1")
    assert [(name, start, end, depth) for path, name, start, end, _, depth in slices if path == on_cu1] == [
        ("get", 2000, 10000, 0),
        ("copy from the peer", 2000, 7000, 1),
        ("waitcnt", 7000, 7000, 1),
        ("acquire peer done", 7000, 9000, 1),
    ]


def test_operations_at_the_same_time_lie_on_further_tracks(trace_type, tmp_path):  # noqa: F811
    _, slices, _ = written(trace_type, result(ranks=(0,)), tmp_path)
    beside = [(path[1:], name, start, end) for path, name, start, end, _, _ in slices if len(path) == 4]
    assert beside == [
        (("rank 0 (and 1 alike)", cu, "at the same time 1"), "barrier", 8000, 10000) for cu in ("cu0", "cu1")
    ]


def test_arguments(trace_type, tmp_path):  # noqa: F811
    _, slices, _ = written(trace_type, result(), tmp_path)
    of_rank_1 = [entry for entry in slices if entry[0][1] == "rank 1" and entry[0][2] == "cu1"]
    workgroup, copy, _, acquire, _ = (entry[4] for entry in of_rank_1)
    assert workgroup == {"workgroup": 1, "duration_ps": 8 * US}
    assert copy == {"operation": 0, "peer_rank": 0, "lines": 16, "bytes": 2048, "duration_ps": 5 * US}
    assert acquire == {"operation": 2, "count": 1, "duration_ps": 2 * US}


def test_workgroups_at_the_same_time_on_one_cu_have_places(trace_type, tmp_path):  # noqa: F811
    found = result(records_changes={"workgroup_cu": np.zeros(4, np.int32)})
    tracks, slices, _ = written(trace_type, found, tmp_path)
    assert {path[2] for path in tracks.values() if len(path) == 3} == {"cu0", "cu0 place 2"}
    assert sum(depth == 0 and len(path) == 3 for path, *_, depth in slices) == 4


def test_long_programs_keep_all_workgroups_and_say_what_is_missing(trace_type, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(gpu_perfetto, "MAX_SLICES", 12)
    tracks, slices, notes = written(trace_type, result(), tmp_path)
    assert notes == ("the timeline omits operations of 2 of 4 workgroups",)
    assert notes[0] in tracks[1][0]
    assert sum(name == "get" for _, name, *_ in slices) == 4
    assert sum(name.startswith("copy") for _, name, *_ in slices) == 2
    monkeypatch.setattr(gpu_perfetto, "MAX_SLICES", 3)
    with pytest.raises(InputError, match="a timeline holds 3 workgroups, these are 4"):
        result().to_perfetto(tmp_path / "none.pftrace")
    assert not (tmp_path / "none.pftrace").exists()


def test_a_stopped_run_is_drawn_up_to_there(trace_type, tmp_path):  # noqa: F811
    changes = {"workgroup_end_ps": np.full(4, -1), "op_end_ps": np.full(16, -1), "op_start_ps": np.full(16, -1)}
    _, slices, notes = written(trace_type, result(records_changes=changes, finished=False), tmp_path)
    assert "stopped" in notes[0]
    assert {(start, end) for _, _, start, end, _, _ in slices} == {(2000, 10000)}


def test_replayed_peers_have_no_tracks(trace_type, tmp_path):  # noqa: F811
    tracks, _, notes = written(trace_type, replayed(), tmp_path)
    assert notes == ("1 peer replayed: no tracks",)
    assert [path[1:] for path in tracks.values() if len(path) == 2] == [("rank 1",)]
    assert next(iter(tracks.values()))[0].endswith("; 1 peer replayed: no tracks")


def test_the_same_run_gives_the_same_bytes(tmp_path):
    result().to_perfetto(tmp_path / "a.pftrace")
    result().to_perfetto(tmp_path / "b.pftrace.gz")
    assert gzip.decompress((tmp_path / "b.pftrace.gz").read_bytes()) == (tmp_path / "a.pftrace").read_bytes()
