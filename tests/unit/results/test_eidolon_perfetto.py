"""Does the timeline of a replay have what peers write, when and how much?"""

import numpy as np
import pytest
from test_perfetto_trace import COUNTER, INSTANT, trace_type, unknown_fields  # noqa: F401

from trine.gpu.peers import LOAD
from trine.gpu.replay import plot
from trine.gpu.replay.options import EidolonOptions
from trine.gpu.replay.run import run_eidolon


def read(message, path):
    """Tracks by name, the instants (track, name, ns, arguments) and the values of counters (track -> [(ns, value)])."""
    trace = message.FromString(path.read_bytes())
    assert unknown_fields(trace) == 0
    tracks, instants, counters = {}, [], {}
    for packet in trace.packet[1:]:
        event = packet.track_event
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            tracks[track.uuid] = (*tracks.get(track.parent_uuid, ()), track.name)
        elif event.type == INSTANT:
            said = {item.name: item.uint_value for item in event.debug_annotations}
            instants.append((tracks[event.track_uuid], event.name, packet.timestamp, said))
        elif event.type == COUNTER:
            counters.setdefault(tracks[event.track_uuid], []).append((packet.timestamp, event.counter_value))
    return tracks, instants, counters


def written(message, tmp_path, **options):
    result = run_eidolon(EidolonOptions(rows=128, cols=128, **options))
    path = tmp_path / "out.pftrace"
    notes = result.to_perfetto(path)
    return result, notes, *read(message, path)


@pytest.mark.parametrize(("fabric", "where"), [("ideal", "as they land"), ("modelled", "as they set out")])
def test_each_write_is_an_instant_of_its_peer(trace_type, tmp_path, fabric, where):  # noqa: F811
    result, _, tracks, instants, counters = written(
        trace_type, tmp_path, fabric=fabric, distribution="uniform(1us,9us)"
    )
    outside, root = result.incoming.outside, f"writes of peers, {where}"
    assert {path for path in tracks.values() if len(path) == 2 and path[0] == root} == {
        (root, name) for name in ("data so far", "flags so far", "rank 1", "rank 2", "rank 3")
    }
    flags = outside.semaphore >= 0
    expected = sorted(
        (f"rank {peer}", "flag" if flag else "data", time_ps, address, value if flag else size)
        for peer, flag, time_ps, address, value, size in zip(
            outside.peer.tolist(), flags.tolist(), outside.time_ps.tolist(), outside.address.tolist(),
            outside.value.tolist(), outside.size_bytes.tolist(), strict=True,
        )
    )  # fmt: skip
    assert (
        sorted(
            (path[1], name, said["time_ps"], said["address"], said["value" if name == "flag" else "bytes"])
            for path, name, _, said in instants
        )
        == expected
    )
    assert all(at_ns == said["time_ps"] // 1000 for _, _, at_ns, said in instants)
    assert [at_ns for *_, at_ns, _ in instants] == sorted(at_ns for *_, at_ns, _ in instants)
    assert counters[root, "data so far"][-1][1] == outside.size_bytes[~flags].sum()
    assert [value for _, value in counters[root, "flags so far"]] == list(range(1, int(flags.sum()) + 1))


def test_what_comes_out_of_the_port_of_a_recorded_run(trace_type, tmp_path):  # noqa: F811
    result, _, _, instants, counters = written(trace_type, tmp_path, symmetric=True)
    arrivals, root = result.incoming.outside, "writes of peers, as the port delivers them"
    assert len(instants) == np.count_nonzero(arrivals.kind != LOAD)
    assert counters[root, "flags so far"][-1][1] == np.count_nonzero(arrivals.semaphore >= 0)


def test_writes_that_come_later_or_are_too_many_are_not_drawn(trace_type, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(plot, "MAX_WRITES", 5)
    result, notes, _, instants, counters = written(trace_type, tmp_path)
    writes = len(result.incoming.outside.time_ps)
    assert len(instants) == 5
    assert f"the last {writes - 5} writes of peers are counted, but not drawn" in notes
    assert counters["writes of peers, as they land", "flags so far"] == [(instants[-1][2], 6)]
