"""The timeline, read back with protobuf's own decoder and descriptors that name the fields after Perfetto's."""

import gzip
from dataclasses import replace

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from results_graphs import full_result, records, result

from trine.graph.builder import TaskGraphBuilder

# message -> [(field, number, type)]; a type that is not a scalar is a message, "*" marks a repeated field
SCHEMA = {
    "Trace": [("packet", 1, "*TracePacket")],
    "TracePacket": [
        ("timestamp", 8, "uint64"), ("trusted_packet_sequence_id", 10, "uint32"), ("track_event", 11, "TrackEvent"),
        ("interned_data", 12, "InternedData"), ("sequence_flags", 13, "uint32"),
        ("track_descriptor", 60, "TrackDescriptor"),
    ],
    "TrackEvent": [
        ("debug_annotations", 4, "*DebugAnnotation"), ("type", 9, "int32"), ("name_iid", 10, "uint64"),
        ("track_uuid", 11, "uint64"), ("name", 23, "string"), ("counter_value", 30, "int64"),
        ("flow_ids", 47, "*fixed64"), ("terminating_flow_ids", 48, "*fixed64"),
    ],
    "DebugAnnotation": [
        ("name_iid", 1, "uint64"), ("uint_value", 3, "uint64"), ("name", 10, "string"),
        ("string_value_iid", 17, "uint64"),
    ],
    "InternedData": [
        ("event_names", 2, "*Name"), ("debug_annotation_names", 3, "*Name"),
        ("debug_annotation_string_values", 29, "*Name"),
    ],
    "Name": [("iid", 1, "uint64"), ("name", 2, "string")],
    "TrackDescriptor": [
        ("uuid", 1, "uint64"), ("name", 2, "string"), ("parent_uuid", 5, "uint64"), ("counter", 8, "CounterDescriptor"),
        ("child_ordering", 11, "int32"), ("sibling_order_rank", 12, "int32"),
    ],
    "CounterDescriptor": [("unit", 3, "int32")],
}  # fmt: skip
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4


@pytest.fixture(scope="module")
def trace_type():
    file = descriptor_pb2.FileDescriptorProto(name="trace.proto", package="test", syntax="proto2")
    for name, fields in SCHEMA.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            entry = message.field.add(name=field, number=number, label=3 if kind.startswith("*") else 1)
            scalar = f"TYPE_{kind.lstrip('*').upper()}"
            if scalar in descriptor_pb2.FieldDescriptorProto.Type.keys():  # noqa: SIM118 - an enum, not a dict
                entry.type = descriptor_pb2.FieldDescriptorProto.Type.Value(scalar)
            else:
                entry.type, entry.type_name = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE, kind.lstrip("*")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("test.Trace"))


def unknown_fields(message):
    from google.protobuf.unknown_fields import UnknownFieldSet

    found = len(UnknownFieldSet(message))
    for field, value in message.ListFields():
        if field.message_type:
            found += sum(map(unknown_fields, value if field.is_repeated else [value]))
    return found


class Timeline:
    """Tracks, slices (track name, name, start, end, arguments, flows) and counters of a trace."""

    def __init__(self, trace):
        assert unknown_fields(trace) == 0
        interned = trace.packet[0].interned_data
        assert trace.packet[0].sequence_flags == 1
        names = {entry.iid: entry.name for entry in interned.event_names}
        keys = {entry.iid: entry.name for entry in interned.debug_annotation_names}
        strings = {entry.iid: entry.name for entry in interned.debug_annotation_string_values}
        self.tracks = {}
        self.slices, self.counters, opened = [], {}, {}
        for packet in trace.packet[1:]:
            assert packet.trusted_packet_sequence_id == 1
            if packet.HasField("track_descriptor"):
                self.tracks[packet.track_descriptor.uuid] = packet.track_descriptor
                continue
            assert packet.sequence_flags == 2
            event = packet.track_event
            if event.type == COUNTER:
                self.counters.setdefault(event.track_uuid, []).append((packet.timestamp, event.counter_value))
            elif event.type == BEGIN:
                assert event.track_uuid not in opened, "slices of one track overlap"
                opened[event.track_uuid] = (packet.timestamp, event)
            else:
                start, begin = opened.pop(event.track_uuid)
                arguments = {
                    keys[a.name_iid]: strings[a.string_value_iid] if a.HasField("string_value_iid") else a.uint_value
                    for a in begin.debug_annotations
                }
                flows = (list(begin.flow_ids), list(begin.terminating_flow_ids))
                name = names[begin.name_iid]
                self.slices.append((self.path(event.track_uuid), name, start, packet.timestamp, arguments, flows))
        assert not opened

    def path(self, uuid):
        track = self.tracks[uuid]
        return (*self.path(track.parent_uuid), track.name) if track.parent_uuid else ()


def read(trace_type, found, path):
    found.to_perfetto(path)
    data = path.read_bytes()
    return Timeline(trace_type.FromString(gzip.decompress(data) if path.suffix == ".gz" else data))


def in_nanoseconds(found):
    """The same run with every picosecond made a nanosecond."""
    times = {name: getattr(found.records, name) * 1000 for name in ("ready_ps", "start_ps", "end_ps")}
    return replace(found, records=replace(found.records, **times))


def test_slices_tracks_arguments_and_flows(trace_type, tmp_path):
    timeline = read(trace_type, in_nanoseconds(full_result()), tmp_path / "out.pftrace")
    assert [(track, name, start, end) for track, name, start, end, _, _ in timeline.slices] == [
        (("a", "compute"), "conv", 10, 40),
        (("a", "compute"), "conv", 40, 70),
        (("a", "compute"), "linear", 90, 100),
        (("b", "compute"), "conv", 0, 20),
        (("a", "send"), "input copy", 0, 10),
        (("a", "send"), "broadcast", 50, 90),
        (("a", "receive"), "input copy", 0, 10),
        (("b", "receive"), "broadcast", 50, 90),
    ]
    forward = timeline.slices[0]
    assert forward[4] == {
        "layer": "features.0", "phase": "forward", "wait_reason": "input copy", "step": 0, "duration_ps": 30_000,
    }  # fmt: skip
    sent, received = timeline.slices[5], timeline.slices[7]
    assert (sent[5], received[5]) == (([4], []), ([], [4]))
    assert sent[4]["bytes"] == 40


def test_memory_is_a_counter_in_bytes(trace_type, tmp_path):
    timeline = read(trace_type, in_nanoseconds(full_result()), tmp_path / "out.pftrace")
    by_rank = {timeline.path(uuid): values for uuid, values in timeline.counters.items()}
    assert by_rank == {
        ("a", "memory"): [(0, 1200), (10, 1700), (40, 2000), (70, 1500), (90, 1600)],
        ("b", "memory"): [(0, 1050)],
    }
    assert {timeline.tracks[uuid].counter.unit for uuid in timeline.counters} == {3}


def test_rank_10_comes_after_rank_9(trace_type, tmp_path):
    builder = TaskGraphBuilder([], [])
    for rank in range(12):
        builder.compute(rank, "compute", 5)
    found = result(builder.build(), records(*[(0, 0, 5)] * 12))
    timeline = read(trace_type, found, tmp_path / "out.pftrace")
    assert all(track.child_ordering == 3 for track in timeline.tracks.values())
    ranks = [t for t in timeline.tracks.values() if t.parent_uuid and not timeline.tracks[t.parent_uuid].parent_uuid]
    ranks.sort(key=lambda track: track.sibling_order_rank)
    assert [track.name for track in ranks] == [f"rank {rank}" for rank in range(12)]


def test_transfers_that_overlap_lie_on_tracks_of_their_own(trace_type, tmp_path):
    builder = TaskGraphBuilder([1], [0])
    for _ in range(3):
        builder.transfer(0, 1, [0], 7)
    found = result(builder.build(), records((0, 0, 9000), (0, 4000, 9000), (0, 9000, 9000)))
    timeline = read(trace_type, found, tmp_path / "out.pftrace")
    ends = (("rank 0", "send"), ("rank 1", "receive"))
    wanted = [(rank, f"{what}{lane}") for rank, what in ends for lane in ("", "", " 2")]
    assert [track for track, *_ in timeline.slices] == wanted


def test_times_are_rounded_down_and_keep_their_order(trace_type, tmp_path):
    builder = TaskGraphBuilder([], [])
    builder.compute(0, "compute", 1999)
    builder.compute(0, "compute", 2)
    found = result(builder.build(), records((0, 0, 1999), (0, 1999, 2001)))
    timeline = read(trace_type, found, tmp_path / "out.pftrace")
    assert [(start, end, arguments["duration_ps"]) for *_, start, end, arguments, _ in timeline.slices] == [
        (0, 1, 1999), (1, 2, 2),
    ]  # fmt: skip


def test_compressed_output_is_the_same_trace_and_the_same_bytes_every_time(trace_type, tmp_path):
    found = full_result()
    plain, packed, again = tmp_path / "a.pftrace", tmp_path / "b.pftrace.gz", tmp_path / "c.pftrace.gz"
    found.to_perfetto(plain)
    found.to_perfetto(packed)
    full_result().to_perfetto(again)
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    assert packed.read_bytes() == again.read_bytes()


def test_large_numbers_survive(trace_type, tmp_path):
    builder = TaskGraphBuilder([1], [0])
    builder.transfer(0, 1, [0], 2**62)
    end = 2**60 + 12345
    timeline = read(trace_type, result(builder.build(), records((0, 0, end))), tmp_path / "out.pftrace")
    assert timeline.slices[0][3] == end // 1000
    assert timeline.slices[0][4]["bytes"] == 2**62
    assert timeline.slices[0][4]["duration_ps"] == end


def test_names_in_any_script_survive(trace_type, tmp_path):
    builder = TaskGraphBuilder([], [], rank_names=["größte GPU"])
    builder.compute(0, "compute", 1, name="層")
    timeline = read(trace_type, result(builder.build(), records((0, 0, 1))), tmp_path / "out.pftrace")
    assert timeline.slices[0][:2] == (("größte GPU", "compute"), "層")
    assert np.array_equal(list(timeline.counters), [])
