"""Are Chakra traces read correctly, and do errors name the file and node?"""

from __future__ import annotations

import gzip
import json
import re

import numpy as np
import pytest
from chakra_files import (
    ALL_GATHER,
    ALL_REDUCE,
    BARRIER,
    BLOCK,
    BROADCAST,
    COLL,
    COMP,
    DATA,
    GATHER,
    LOAD,
    METADATA,
    RECV,
    REDUCE,
    SCATTER,
    SEND,
    STORE,
    Metadata,
    collective,
    encoded,
    node,
    receive,
    send,
    write,
)
from google.protobuf import descriptor_pb2

from trine.cluster import build_topology, load_cluster
from trine.engine import run
from trine.errors import DeadlockError, InputError, PlanError, TraceError
from trine.formats.chakra import NodeRoofline, read_chakra, simulate_chakra, trace_graph, trace_job
from trine.formats.chakra.schema import DESCRIPTOR
from trine.graph.program import Collective, Compute, Recv, Send

US, MIB = 10**6, 2**20


def cluster_of(ranks):
    return build_topology("full", "100 GB/s", "1 us", ranks)


def result_of(prefix, ranks, **options):
    return simulate_chakra(read_chakra(prefix), cluster_of(ranks), **options)


def test_the_descriptor_has_the_fields_of_the_schema():
    file = descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTOR.read_bytes()).file[0]
    text = DESCRIPTOR.with_suffix(".proto").read_text()
    stated = {}
    for name, body in re.findall(r"^(?:message|enum) (\w+) \{(.*?)^\}", text, re.MULTILINE | re.DOTALL):
        stated[name] = re.findall(r"(?:(repeated )?(\w+) )?(\w+) = (\d+);", body)
    kinds = descriptor_pb2.FieldDescriptorProto
    described = {enum.name: [("", "", v.name, str(v.number)) for v in enum.value] for enum in file.enum_type}
    for message in file.message_type:
        described[message.name] = [
            (
                "repeated " if field.label == kinds.LABEL_REPEATED else "",
                field.type_name.rpartition(".")[2] or kinds.Type.Name(field.type).removeprefix("TYPE_").lower(),
                field.name,
                str(field.number),
            )
            for field in message.field
        ]
    assert described == stated


@pytest.mark.parametrize("ranks", [4, 8])
@pytest.mark.parametrize(
    ("kind", "payload"),
    [("all_reduce", MIB), ("all_gather", None), ("reduce_scatter", MIB), ("all_to_all", MIB)],
)
def test_micro_benchmarks_of_astra_sim(kind, payload, ranks):
    trace = read_chakra(DATA / "microbenchmarks" / kind / f"{ranks}npus_1MB" / kind)
    job, _ = trace_job(trace)
    assert job.axes == (("axis0", ranks),)
    assert job.program_of == (0,) * ranks
    (step,) = job.programs[0].steps
    assert (step.kind, step.size_bytes) == (kind, ranks * MIB if payload is None else payload)


def test_custom_collective_of_astra_sim_is_read_from_gzip():
    trace = read_chakra(DATA / "custom_ring_allreduce_8npus_1MB" / "custom_allreduce")
    kinds = [type(step) for step in trace.programs[0].steps]
    assert (kinds.count(Send), kinds.count(Recv), kinds.count(Compute)) == (14, 14, 7)
    assert {step.duration_ps for step in trace.programs[0].steps if isinstance(step, Compute)} == {7 * US}


def test_both_kinds_of_dependencies_count(tmp_path):
    both = node(3, COMP, [1], micros=5)
    both.ctrl_deps.append(2)
    prefix = write(tmp_path, [[node(1, COMP, micros=3), node(2, COMP, micros=4, is_cpu_op=True), both]])
    result = result_of(prefix, 1)
    assert result.records.start_ps.tolist() == [0, 0, 4 * US]


def test_nodes_come_in_any_order_and_metadata_passes_dependencies_on(tmp_path):
    nodes = [node(9, COMP, [5], micros=1), node(5, METADATA, [7]), node(7, COMP, micros=2), node(1, 0, [9])]
    program = read_chakra(write(tmp_path, [nodes])).programs[0]
    assert program.nodes == (7, 9)
    assert [step.after for step in program.steps] == [(), (0,)]


def test_messages_pair_up_by_tag_size_and_order(tmp_path):
    first = [send(0, 1, MIB), send(1, 1, MIB), send(2, 1, 4), send(3, 1, MIB, tag=7)]
    second = [receive(0, 0, 4), receive(1, 0, MIB, tag=7), receive(2, 0, MIB), receive(3, 0, MIB)]
    trace = read_chakra(write(tmp_path, [first, second]))
    graph = trace_graph(trace, cluster_of(2))
    pairs = {task: graph.predecessor_idx[graph.predecessor_ptr[task]] for task in range(4, 8)}
    assert pairs == {4: 2, 5: 3, 6: 0, 7: 1}


def test_sizes_count_as_astra_sim_counts_them(tmp_path):
    kinds = [ALL_REDUCE, REDUCE, ALL_GATHER, GATHER, SCATTER, BROADCAST, BLOCK]
    nodes = [collective(i, kind, 64) for i, kind in enumerate(kinds)]
    steps = read_chakra(write(tmp_path, [nodes] * 4)).programs[0].steps
    assert [step.size_bytes for step in steps] == [64, 64, 256, 256, 64, 64, 64]
    assert steps[-1].kind == "reduce_scatter"
    assert [step.root for step in steps] == [-1, 0, -1, 0, 0, 0, -1]


def test_a_barrier_ends_when_the_last_has_come(tmp_path):
    barrier = node(2, COLL, [1], comm_type=BARRIER)
    ranks = [[node(1, COMP, micros=10 * rank), barrier, node(3, COMP, [2], micros=1)] for rank in range(4)]
    result = result_of(write(tmp_path, ranks), 4)
    after = [task for task in range(result.graph.num_tasks) if result.graph.duration_ps[task] == US]
    assert min(result.records.start_ps[after]) >= 30 * US


def test_groups_from_the_file_and_from_the_metadata_node(tmp_path):
    ranks = [[collective(1, ALL_REDUCE, MIB, pg_name=str(1 + rank % 2))] for rank in range(4)]
    groups = {"1": [0, 2], "2": [1, 3]}
    prefix = write(tmp_path, ranks)
    (tmp_path / "groups.json").write_text(json.dumps(groups))
    from_file = read_chakra(prefix, comm_groups=tmp_path / "groups.json")
    assert sorted(from_file.groups.values()) == [(0, 2), (1, 3)]
    described = [{"pg_name": name, "ranks": members, "pg_desc": "x"} for name, members in groups.items()]
    for quotes in ("['%s']", "[[%s]]"):
        head = node(0, METADATA, name="## process_group:init ##")
        head.inputs.values = quotes % json.dumps(described)
        named = read_chakra(write(tmp_path, [[head, *nodes] for nodes in ranks], "named"))
        assert named.groups == from_file.groups
    job, _ = trace_job(from_file)
    assert job.axes == (("axis0", 2), ("axis1", 2))
    assert job.program_of == (0, 0, 0, 0)


def test_a_group_without_ranks_is_all_of_them(tmp_path):
    head = node(0, METADATA, name="## process_group:init ##")
    head.inputs.values = '[\'[{"pg_name": "5", "ranks": []}]\']'
    trace = read_chakra(write(tmp_path, [[head, collective(1, ALL_REDUCE, 64, pg_name="5")]] * 3))
    assert list(trace.groups.values()) == [(0, 1, 2)]


def test_all_ranks_and_parts_of_them_are_axes_of_one_grid(tmp_path):
    (tmp_path / "g.json").write_text('{"1": [0, 1, 2, 3], "2": [4, 5, 6, 7]}')
    ranks = [
        [collective(1, ALL_REDUCE, MIB, pg_name="2" if rank > 3 else "1"), collective(2, ALL_GATHER, MIB, [1])]
        for rank in range(8)
    ]
    trace = read_chakra(write(tmp_path, ranks), comm_groups=tmp_path / "g.json")
    job, _ = trace_job(trace)
    assert [step.axis for step in job.programs[0].steps] == ["axis0", "axis0+axis1"]
    assert len(job.programs) == 1
    check_both_ways(trace, cluster_of(8))


def test_groups_that_are_no_axes_run_rank_by_rank(tmp_path):
    (tmp_path / "g.json").write_text('{"1": [0, 1, 2], "2": [4, 3]}')
    ranks = [[collective(1, ALL_REDUCE, MIB, pg_name="2" if rank > 2 else "1")] for rank in range(5)]
    trace = read_chakra(write(tmp_path, ranks), comm_groups=tmp_path / "g.json")
    job, reason = trace_job(trace)
    assert job is None
    assert "axes" in reason
    result = simulate_chakra(trace, cluster_of(5))
    # each group has separate wires: 2 (n - 1) messages of one part each
    wanted = [2 * (n - 1) * (-(-MIB // n) * 10 + US) for n in (3, 2)]
    ends = [int(result.records.end_ps[result.graph.labels.collective == i].max()) for i in range(2)]
    assert ends == wanted


def check_both_ways(trace, cluster):
    """Check that a rank's tasks end at the same times with and without a rank grid."""
    from trine.parallel.instantiate import instantiate
    from trine.training import placement_of

    job, _ = trace_job(trace)
    by_grid = instantiate(job, placement_of(cluster, trace.num_ranks))[0]
    by_rank = trace_graph(trace, cluster)
    ends = [np.sort(run(graph).end_ps[graph.kind != 1]) for graph in (by_grid, by_rank)]
    assert np.array_equal(*ends)


def test_roofline_takes_the_longer_of_computing_and_moving(tmp_path):
    nodes = [
        node(1, COMP, micros=9, num_ops=4 * 10**9, tensor_size=10**6),
        node(2, COMP, [1], micros=9, num_ops=10, tensor_size=2 * 10**7),
        node(3, COMP, [2], micros=9, num_ops=10),
        node(4, COMP, [3], micros=9, is_cpu_op=True, num_ops=10, tensor_size=10),
    ]
    prefix = write(tmp_path, [nodes])
    trace = read_chakra(prefix, roofline=NodeRoofline(flop_per_s=10**12, memory_bytes_per_s=10**11))
    assert [step.duration_ps for step in trace.programs[0].steps] == [4000 * US, 200 * US, 0, 9 * US]
    assert any("tensor_size" in note for note in trace.notes)
    assert [step.duration_ps for step in read_chakra(prefix).programs[0].steps] == [9 * US] * 4
    with pytest.raises(InputError, match="positive"):
        NodeRoofline(flop_per_s=0, memory_bytes_per_s=1)


def test_memory_nodes_cross_the_links_of_the_host(tmp_path):
    load, store = node(1, LOAD, tensor_size=MIB), node(2, STORE, [1], tensor_size=2 * MIB)
    both = read_chakra(write(tmp_path, [[load, store]]))
    result = simulate_chakra(both, load_cluster("dgx-h100"), collective_costs="links")
    assert result.graph.size_bytes.tolist() == [MIB, 2 * MIB]
    crossed = np.split(result.graph.route_links, result.graph.route_ptr[1:-1])
    assert len(crossed[0]) == len(crossed[1]) > 0
    assert not set(crossed[0]) & set(crossed[1])
    on_grid, by_rank = result, trace_graph(both, load_cluster("dgx-h100"))
    assert on_grid.plan["tasks_from"].startswith("1 rank program on")
    for column in ("kind", "size_bytes", "predecessor_idx", "route_ptr", "route_links"):
        assert np.array_equal(getattr(on_grid.graph, column), getattr(by_rank, column)), column
    alone = read_chakra(write(tmp_path, [[load]], "load"))
    assert trace_job(alone)[0] is not None
    with pytest.raises(PlanError, match="no host memory"):
        simulate_chakra(alone, cluster_of(1))


def test_algorithms_are_chosen_and_refused_where_they_cannot_matter(tmp_path):
    prefix = write(tmp_path, [[collective(1, ALL_REDUCE, MIB)]] * 4)
    slow = read_chakra(prefix)
    fast = read_chakra(prefix, algorithms={"all_reduce": "direct"})
    times = [simulate_chakra(trace, cluster_of(4)).end_time_ps for trace in (slow, fast)]
    assert times[1] < times[0]
    with pytest.raises(InputError, match="all_gather"):
        read_chakra(prefix, algorithms={"all_gather": "direct"})
    timeless = write(tmp_path, [[node(1, COMP, micros=3)]], "timeless")
    for place in (prefix, timeless):
        with pytest.raises(InputError, match="tensor_size to time"):
            read_chakra(place, roofline=NodeRoofline(flop_per_s=1, memory_bytes_per_s=1))


def test_nodes_that_wait_for_each_other_over_ranks_are_named(tmp_path):
    ranks = [[receive(1, 1, 4), send(2, 1, 4, [1])], [receive(1, 0, 4), send(2, 0, 4, [1])]]
    with pytest.raises(DeadlockError, match="wait for each other"):
        result_of(write(tmp_path, ranks), 2)


BAD = {
    "a message that nobody receives": ([[send(4, 1, 8)], []], r"job\.0\.et: node 4.*rank 1 has no receive"),
    "a receive of other bytes": ([[send(4, 1, 8)], [receive(6, 0, 9)]], r"node 4.*its node 6 has 9 bytes"),
    "a message that nobody sends": ([[], [receive(6, 0, 9)]], r"job\.1\.et: node 6.*rank 0 does not send"),
    "a message to oneself": ([[send(1, 0, 8), receive(2, 0, 8)], []], "sends to itself"),
    "a message to a rank beyond": ([[send(1, 2, 8)], []], r"comm_dst is 2.*0 to 1"),
    "a send in another's name": ([[node(1, SEND, comm_src=1, comm_dst=1, comm_size=4)], []], "its own end is rank 1"),
    "a receive for another": ([[node(1, RECV, comm_src=1, comm_dst=1, comm_size=4)], []], "its own end is rank 1"),
    "a send without bytes": ([[node(1, SEND, comm_dst=1)], []], "'comm_size' is missing"),
    "bytes as text": ([[node(1, SEND, comm_dst=1, comm_size="4")], []], "must be a whole number, is string_val"),
    "negative bytes": ([[node(1, SEND, comm_dst=1, comm_size=-4)], []], "from 0 to"),
    "another collective": (
        [[collective(1, ALL_REDUCE, 8)], [collective(2, ALL_GATHER, 8)]],
        r"job\.1\.et: node 2.*all_gather of 16 bytes on rank 1, but all_reduce of 8 bytes on rank 0 \(node 1\)",
    ),
    "a collective too few": ([[collective(1, ALL_REDUCE, 8)], []], "has 0 collectives .* rank 0 has 1"),
    "an unknown collective": ([[collective(1, 10, 8)]] * 2, "no collective of comm_type 10"),
    "an unknown group": ([[collective(1, ALL_REDUCE, 8, pg_name="3")]] * 2, "no process group '3'"),
    "communication on the CPU": ([[collective(1, ALL_REDUCE, 8, is_cpu_op=True)]] * 2, "CPU"),
    "part of the dimensions": ([[collective(1, ALL_REDUCE, 8, involved_dim=[True, False])]] * 2, "involved_dim"),
    "a dependency on nothing": ([[node(1, COMP, [8])], []], "depends on node 8, which is not there"),
    "a circle": ([[node(1, COMP, [2]), node(2, COMP, [3]), node(3, COMP, [1])], []], "1 after 2 after 3 after 1"),
    "a node twice": ([[node(1, COMP), node(1, COMP)], []], "node 1 is there twice"),
    "an unknown type": ([[node(1, 9)], []], "no node type 9"),
    "a time beyond all": ([[node(1, COMP, micros=2**63)], []], "more than a run may take"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_wrong_traces_are_refused_with_file_and_node(name, tmp_path):
    ranks, message = BAD[name]
    with pytest.raises(TraceError, match=message):
        read_chakra(write(tmp_path, ranks))


def test_equal_files_of_ranks_that_name_themselves_are_refused(tmp_path):
    alike = [node(1, SEND, comm_src=0, comm_dst=2, comm_size=4)]
    with pytest.raises(TraceError, match=r"job\.1\.et: node 1: its own end is rank 0"):
        read_chakra(write(tmp_path, [alike, alike, [receive(1, 0, 4)]]))


def test_an_attribute_twice_is_refused(tmp_path):
    twice = node(1, COMP, is_cpu_op=False)
    twice.attr.add(name="is_cpu_op").bool_val = True
    with pytest.raises(TraceError, match="is there twice"):
        read_chakra(write(tmp_path, [[twice]]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"1": [0, 7]}', "rank 7"),
        ('{"1": [0, 0]}', "twice"),
        ('{"1": []}', "list of ranks"),
        ('{"1": "01"}', "list of ranks"),
        ("[[0, 1]]", "must be an object"),
        ('{"1": [0], "1": [1]}', "twice"),
        ('{"1": [1]}', r"rank 0 is not in the group"),
    ],
)
def test_wrong_groups_are_refused(text, message, tmp_path):
    prefix = write(tmp_path, [[collective(1, ALL_REDUCE, 8, pg_name="1")]] * 2)
    (tmp_path / "g.json").write_text(text)
    with pytest.raises(TraceError, match=message):
        read_chakra(prefix, comm_groups=tmp_path / "g.json")


def test_groups_that_contradict_each_other_are_refused(tmp_path):
    head = node(0, METADATA, name="## process_group:init ##")
    head.inputs.values = '[\'[{"pg_name": "1", "ranks": [0]}]\']'
    prefix = write(tmp_path, [[head]] * 2)
    (tmp_path / "g.json").write_text('{"1": [0, 1]}')
    with pytest.raises(TraceError, match="elsewhere"):
        read_chakra(prefix, comm_groups=tmp_path / "g.json")
    head.inputs.values = "['[{\"name\": 3}]']"
    with pytest.raises(TraceError, match="cannot be read"):
        read_chakra(write(tmp_path, [[head]] * 2))


def test_files_that_are_no_traces(tmp_path):
    good = encoded([node(1, COMP)])
    for data, message in [
        (b"", "is empty"),
        (good[:-3], "ends within a message"),
        (good + b"\xff\xff\xff\xff\xff\xff", "no valid length"),
        (b"\xff\xff\xff\xff\x0f" + good, "has a message of"),
        (good[: len(good) - 4] + b"\xff\xff\xff\xff", "no message of the Chakra schema"),
        (gzip.compress(good, mtime=0)[:-9], "gzip"),
    ]:
        (tmp_path / "a.0.et").write_bytes(data)
        with pytest.raises(TraceError, match=message):
            read_chakra(tmp_path / "a")


def test_ranks_without_gaps_and_the_nearest_prefix(tmp_path):
    write(tmp_path, [[]] * 3)
    with pytest.raises(TraceError, match="did you mean 'job'"):
        read_chakra(tmp_path / "jog")
    (tmp_path / "job.1.et").unlink()
    with pytest.raises(TraceError, match="rank 1 has no trace, but rank 2 has"):
        read_chakra(tmp_path / "job")
    (tmp_path / "job.1.et").write_bytes(encoded([]))
    (tmp_path / "job.1.et.gz").write_bytes(gzip.compress(encoded([])))
    with pytest.raises(TraceError, match="is the trace of rank 1, like"):
        read_chakra(tmp_path / "job")


def test_trines_own_attributes_count_in_its_own_traces_only(tmp_path):
    nodes = [node(1, COMP, micros=3, duration_ps=2_750_001), collective(2, ALL_REDUCE, 8, algorithm="direct")]
    foreign = read_chakra(write(tmp_path, [nodes] * 2)).programs[0].steps
    assert foreign[0].duration_ps == 3 * US
    assert foreign[1].algorithm is None
    head = Metadata(version="0.0.4")
    head.attr.add(name="writer").string_val = "trine"
    for rank in range(2):
        (tmp_path / f"own.{rank}.et").write_bytes(encoded(nodes, head))
    own = read_chakra(tmp_path / "own").programs[0].steps
    assert own[0].duration_ps == 2_750_001
    assert own[1].algorithm == "direct"
    assert isinstance(own[1], Collective)


def test_a_cluster_with_circuits_runs_on_them(tmp_path):
    trace = read_chakra(write(tmp_path, [[collective(1, ALL_REDUCE, MIB)]] * 4))
    wafer = load_cluster("wafer-a100-photonic")
    result = simulate_chakra(trace, wafer)
    assert result.plan["network"] == "circuit"
    assert result.end_time_ps > wafer.circuits.setup_ps
    with pytest.raises(InputError, match="joined by circuits"):
        simulate_chakra(trace, wafer, network="fair")
