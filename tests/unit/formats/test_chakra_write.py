"""Do trine's traces follow the schema, with every attribute that ASTRA-sim reads and only nodes it can run?

Traces are decoded by protobuf with protoc's reading of the schema; section 7 of our ASTRA-sim notes has the attributes.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest
from chakra_files import COLL, COMP, LOAD, METADATA, RECV, SEND, decoded
from google.protobuf.unknown_fields import UnknownFieldSet

from trine.errors import InputError, PlanError
from trine.formats.chakra import read_chakra, trace_job, write_chakra
from trine.graph.program import Collective, Compute, HostCopy, Job, Label, Peer, RankProgram, Recv, Send

NONE, US = Label(), 10**6
#: attribute that ASTRA-sim reads -> the value's type, for each type of node
READ = {
    COMP: {"is_cpu_op": "bool_val"},
    LOAD: {"is_cpu_op": "bool_val", "tensor_size": "uint64_val"},
    SEND: {
        "is_cpu_op": "bool_val", "comm_src": "int32_val", "comm_dst": "int32_val", "comm_size": "int64_val",
        "comm_tag": "int32_val",
    },
    RECV: {
        "is_cpu_op": "bool_val", "comm_src": "int32_val", "comm_dst": "int32_val", "comm_size": "int64_val",
        "comm_tag": "int32_val",
    },
    COLL: {"is_cpu_op": "bool_val", "comm_type": "int64_val", "comm_size": "int64_val", "pg_name": "string_val"},
}  # fmt: skip
#: attributes that trine adds and ASTRA-sim ignores
OWN = {
    "duration_ps": "int64_val", "payload_bytes": "int64_val", "stream_name": "string_val", "label": "sint32_list",
    "root": "int32_val", "algorithm": "string_val", "queue": "string_val",
}  # fmt: skip


def compute(ps, after=(), stream="compute"):
    return Compute(stream, ps, tuple(after), Label(operator=0, layer=1, step=0))


def collective(kind, axis, size, after=(), turn=0, **options):
    return Collective(
        kind, axis, (kind, axis, turn), size, options.pop("root", -1), None, tuple(after), NONE, **options
    )


def job_of(*programs, axes, program_of):
    return Job(
        axes=axes,
        programs=tuple(RankProgram(name="p", steps=steps, memory=(), resident_bytes=(0,) * 6) for steps in programs),
        program_of=program_of,
        operator_names=("aten::linear",),
        layer_names=("embedding", "linear.1"),
    )


def example():
    """Return two stages of two by two ranks: tp gathers, stage 0 sends to stage 1, dp and all ranks reduce."""
    first = (
        compute(1_400_000),
        collective("all_gather", "tp", 1001, [0]),
        Send(Peer("pp", 1), 77, ("x", 0), (1,), NONE),
        collective("all_reduce", "dp", 4096, [0]),
        collective("reduce_scatter", "tp+dp+pp", 64, [3]),
    )
    second = (
        Recv(Peer("pp", 0), ("x", 0), (), NONE),
        compute(2_400_000, [0]),
        collective("all_gather", "tp", 1001, [1]),
        collective("all_reduce", "dp", 4096, [1]),
        collective("reduce_scatter", "tp+dp+pp", 64, [3]),
    )
    return job_of(first, second, axes=(("tp", 2), ("dp", 2), ("pp", 2)), program_of=(0,) * 4 + (1,) * 4)


def files_of(prefix, ranks):
    return [decoded(prefix.with_name(f"{prefix.name}.{rank}.et").read_bytes()) for rank in range(ranks)]


def attributes(node):
    return {attribute.name: attribute for attribute in node.attr}


def value(node, name):
    attribute = attributes(node)[name]
    return getattr(attribute, attribute.WhichOneof("value"))


@pytest.mark.parametrize("target", ["astra-sim", "chakra"])
def test_every_node_has_what_astra_sim_reads_in_the_schemas_types(target, tmp_path):
    written = write_chakra(example(), tmp_path / "x", target=target)
    num_nodes = 0
    for rank, (head, nodes) in enumerate(files_of(tmp_path / "x", 8)):
        assert head.version == "0.0.4"
        assert not any(len(UnknownFieldSet(message)) for message in (head, *nodes))
        ids = [node.id for node in nodes]
        assert ids == sorted(set(ids))
        num_nodes += len(nodes)
        for node in nodes:
            assert set(node.data_deps) <= {other for other in ids if other < node.id}
            if node.type == METADATA:
                assert target == "chakra"
                continue
            found = {name: attribute.WhichOneof("value") for name, attribute in attributes(node).items()}
            assert len(found) == len(node.attr)
            assert found.items() >= READ[node.type].items(), (rank, node)
            assert {**READ[node.type], **OWN}.items() >= found.items()
    assert (written.num_ranks, written.num_nodes) == (8, num_nodes)
    assert written.num_bytes == sum((tmp_path / f"x.{rank}.et").stat().st_size for rank in range(8))


def test_bytes_that_we_encode_are_protobufs_own(tmp_path):
    """Protobuf parses and re-serialises the bytes to the same length, so it skipped no unknown fields."""
    write_chakra(example(), tmp_path / "x")
    for rank in range(8):
        data = (tmp_path / f"x.{rank}.et").read_bytes()
        head, nodes = decoded(data)
        again = [message.SerializeToString() for message in (head, *nodes)]
        assert sum(map(len, again)) + sum(1 + (len(part) > 127) for part in again) == len(data)


def test_peers_groups_and_sizes_of_each_rank(tmp_path):
    write_chakra(example(), tmp_path / "x")
    groups = json.loads((tmp_path / "x.groups.json").read_text())
    assert groups == {
        "1": [0, 1], "2": [2, 3], "3": [4, 5], "4": [6, 7], "5": [0, 2], "6": [1, 3], "7": [4, 6], "8": [5, 7],
    }  # fmt: skip
    for rank, (_, nodes) in enumerate(files_of(tmp_path / "x", 8)):
        by_type = {kind: [node for node in nodes if node.type == kind] for kind in (SEND, RECV, COLL)}
        for node in (*by_type[SEND], *by_type[RECV]):
            assert (value(node, "comm_src"), value(node, "comm_dst")) == (rank % 4, rank % 4 + 4)
            assert (value(node, "comm_size"), value(node, "comm_tag")) == (77, 0)
        gather, reduce, scatter = by_type[COLL]
        assert rank in groups[value(gather, "pg_name")]
        assert len(groups[value(reduce, "pg_name")]) == 2
        assert value(scatter, "pg_name") == "0"
        assert [value(node, "comm_type") for node in by_type[COLL]] == [2, 0, 7]
        assert [value(node, "comm_size") for node in by_type[COLL]] == [501, 4096, 64]  # all_gather: bytes of one rank
        assert value(gather, "payload_bytes") == 1001


def test_the_list_of_all_files_is_what_sha256sum_checks(tmp_path):
    write_chakra(example(), tmp_path / "x")
    rows = dict(reversed(line.split("  ")) for line in (tmp_path / "x.SHA256SUMS").read_text().splitlines())
    assert set(rows) == {each.name for each in tmp_path.iterdir()} - {"x.SHA256SUMS"}
    assert "x.groups.json" in rows
    assert {name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in rows} == rows


def test_process_groups_stand_in_a_metadata_node_too(tmp_path):
    write_chakra(example(), tmp_path / "x", target="chakra")
    (tmp_path / "x.groups.json").unlink()
    head = files_of(tmp_path / "x", 8)[3][1][0]
    assert (head.type, head.name) == (METADATA, "## process_group:init ##")
    # ASTRA-sim parses the text without its first two and last two characters
    rows = json.loads(head.inputs.values[2:-2])
    assert [row["ranks"] for row in rows] == [[2, 3], [1, 3]]
    trace = read_chakra(tmp_path / "x")
    assert trace_job(trace)[0].axes == example().axes


def test_whole_microseconds_keep_their_sum(tmp_path):
    steps = tuple(compute(400_000) for _ in range(10))
    write_chakra(job_of(steps, axes=(("dp", 1),), program_of=(0,)), tmp_path / "x")
    ((_, nodes),) = files_of(tmp_path / "x", 1)
    micros = [node.duration_micros for node in nodes]
    assert sum(micros) == 4
    assert set(micros) == {0, 1}
    assert [value(node, "duration_ps") for node in nodes] == [400_000] * 10
    assert [list(node.data_deps) for node in nodes] == [[], *([i] for i in range(1, 10))]  # stream order


def test_collectives_of_one_rank_are_left_out_and_their_dependencies_kept(tmp_path):
    steps = (compute(US), collective("all_reduce", "tp", 8, [0]), compute(US, [1], "other"))
    job = job_of(steps, axes=(("tp", 1), ("dp", 2)), program_of=(0, 0))
    write_chakra(job, tmp_path / "x", target="chakra")
    _, nodes = files_of(tmp_path / "x", 2)[0]
    assert [(node.id, list(node.data_deps)) for node in nodes] == [(1, []), (3, [1])]
    assert not (tmp_path / "x.groups.json").exists()


REFUSED = {
    "host copies": ((HostCopy(8, (), NONE),), "--inputs none"),
    "CPU launches": ((compute(5, stream="cpu"),), "--no-cpu"),
    "a reduction to one": ((collective("reduce", "dp", 8, root=0),), "ASTRA-sim has no reduce"),
    "a barrier": ((collective("barrier", "dp", 0),), "ASTRA-sim has no barrier"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_astra_sim_cannot_run_is_refused_with_a_remedy_and_written_for_others(name, tmp_path):
    steps, message = REFUSED[name]
    job = job_of(steps, axes=(("dp", 2),), program_of=(0, 0))
    with pytest.raises(PlanError, match=message):
        write_chakra(job, tmp_path / "x")
    assert list(tmp_path.iterdir()) == []
    write_chakra(job, tmp_path / "x", target="chakra")
    (back,) = trace_job(read_chakra(tmp_path / "x"))[0].programs
    assert [type(step) for step in back.steps] == [type(step) for step in steps]


def test_what_the_schema_cannot_hold_is_refused(tmp_path):
    job = job_of((collective("all_to_all_v", "dp", 8),), axes=(("dp", 2),), program_of=(0, 0))
    with pytest.raises(PlanError, match="all_to_all_v is no collective of Chakra"):
        write_chakra(job, tmp_path / "x", target="chakra")


def test_notes_say_what_astra_sim_does_otherwise(tmp_path):
    steps = (collective("broadcast", "dp", 8, root=1), compute(US), compute(US, [], "copy"))
    job = job_of(steps, axes=(("tp", 2), ("dp", 2)), program_of=(0,) * 4)
    notes = " ".join(write_chakra(job, tmp_path / "x").notes)
    for word in ("broadcast", "roofline", "2 streams", "ring of every process group", "one collective or send"):
        assert word in notes
    assert trace_job(read_chakra(tmp_path / "x"))[0].programs[0].steps[0].root == 1


def test_files_that_would_be_taken_for_ours_are_refused(tmp_path):
    job = example()
    (tmp_path / "x.8.et").write_bytes(b"")
    with pytest.raises(InputError, match="take another prefix"):
        write_chakra(job, tmp_path / "x")
    with pytest.raises(InputError, match="folder that exists"):
        write_chakra(job, tmp_path / "no" / "x")
    with pytest.raises(PlanError, match="empty"):
        write_chakra(job, tmp_path / "emptyish")
    with pytest.raises(InputError, match="did you mean 'chakra'"):
        write_chakra(job, tmp_path / "y", target="chakras")
    with pytest.raises(PlanError, match="more than 1 KiB"):
        write_chakra(job, tmp_path / "y", max_bytes=1024)
    lonely = replace(job.programs[1], steps=(Recv(Peer("pp", 0), ("z",), (), NONE),))
    with pytest.raises(PlanError, match="never sends"):
        write_chakra(replace(job, programs=(job.programs[0], lonely)), tmp_path / "z")
