"""Do Chakra traces in JSON hold the same job as in the binary form, and do errors name the place?"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from chakra_files import ALL_REDUCE, BROADCAST, COLL, COMP, Metadata, collective, node, receive, send, write
from click.testing import CliRunner
from google.protobuf.json_format import MessageToJson

from trine.cli.main import app
from trine.cluster import load_cluster
from trine.errors import SpecError, TraceError
from trine.formats.chakra import read_chakra, simulate_chakra
from trine.formats.clusters import read_any
from trine.workload.load import load

MIB = 2**20


def jobs() -> list[list[Any]]:
    """Two ranks: a kernel, an all-reduce, a message from the first to the second rank."""
    common = [node(1, COMP, micros=30, name="gemm"), collective(2, ALL_REDUCE, 8 * MIB, [1])]
    return [[*common, send(3, 1, MIB, [2], tag=7)], [*common, receive(3, 0, MIB, [2], tag=7)]]


def jsonized(nodes: list[Any], folder: Path, name: str) -> Path:
    """Write messages one after the other, as the jsonizer of mlcommons/chakra does."""
    messages = [Metadata(version="0.0.4"), *nodes]
    (folder / name).write_text("".join(MessageToJson(message) for message in messages))
    return folder / name


def feeder(rows: list[dict[str, Any]], folder: Path, name: str = "job.0.json", **document: Any) -> Path:
    """Write the form of the feeder of mlcommons/chakra."""
    (folder / name).write_text(json.dumps({"workload_graph": rows, "workload_name": "w", **document}))
    return folder / name


def row(number: int, kind: int = COMP, deps: tuple[int, ...] = (), **more: Any) -> dict[str, Any]:
    base = {"Id": number, "Name": f"node {number}", "NodeType": kind, "ctrlDeps": [], "data_deps": list(deps)}
    return {**base, "runtime": 10, "is_cpu_op": False, **more}


def time_of(prefix: str | Path) -> float:
    return simulate_chakra(read_chakra(prefix), load_cluster("dgx-h100", gpus=2)).step_time_ps


def test_the_jsonizers_form_is_the_same_job(tmp_path: Path) -> None:
    write(tmp_path, jobs(), "binary")
    for rank, nodes in enumerate(jobs()):
        jsonized(nodes, tmp_path, f"text.{rank}.json")
    assert time_of(tmp_path / "text") == time_of(tmp_path / "text.0.json") == time_of(tmp_path / "binary")
    trace = read_chakra(tmp_path / "text")
    assert trace.num_ranks == 2
    assert trace.notes[0] == "read from Chakra's JSON (messages of its jsonizer)"


def test_a_list_of_messages_and_gzip_are_read_too(tmp_path: Path) -> None:
    write(tmp_path, jobs(), "binary")
    for rank, nodes in enumerate(jobs()):
        text = ",".join(MessageToJson(message) for message in [Metadata(version="0.0.4"), *nodes])
        (tmp_path / f"list.{rank}.json.gz").write_bytes(gzip.compress(f"[{text}]".encode()))
    assert time_of(tmp_path / "list") == time_of(tmp_path / "binary")


def test_the_feeders_form_is_the_same_job(tmp_path: Path) -> None:
    write(tmp_path, jobs(), "binary")
    common = [
        row(1, runtime=30, ctrlDeps=[99]),
        row(2, COLL, (1,), comm_type=ALL_REDUCE, comm_size=8 * MIB, comm_priority=0),
    ]
    feeder([*common, row(3, 5, (2,), comm_dst=1, comm_size=MIB, comm_tag=7)], tmp_path, "job.0.json", ngpus=2)
    feeder([*common, row(3, 6, (2,), comm_src=0, comm_size=MIB, comm_tag=7)], tmp_path, "job.1.json", ngpus=2)
    assert time_of(tmp_path / "job") == time_of(tmp_path / "binary")
    notes = read_chakra(tmp_path / "job").notes
    assert notes[0] == "read from Chakra's JSON (workload_graph)"
    assert any(note.startswith("the file says ngpus 2; ") for note in notes)
    assert "1 control dependencies on nodes that the file does not have are left out" in notes


def test_collectives_without_a_size_take_their_recorded_time(tmp_path: Path) -> None:
    rows = [
        row(1, COLL, is_cpu_op=True, comm_type=BROADCAST, comm_size=4),
        row(2, COLL, (1,), runtime=28),
        row(3, deps=(2,)),
    ]
    path = feeder(rows, tmp_path, "prof.0.json", ngpus=8, soc="x")
    trace = read_chakra(path)
    assert "2 communication nodes of the CPU's side, or without comm_size, take their recorded time" in trace.notes
    answer = CliRunner().invoke(app, ["chakra", "inspect", str(path)])
    assert answer.exit_code == 0
    assert "48 us" in answer.output


def test_control_dependencies_hold_where_their_node_is(tmp_path: Path) -> None:
    after = [row(1, runtime=50), row(2, runtime=20, ctrlDeps=[1], is_cpu_op=True)]
    beside = [row(1, runtime=50), row(2, runtime=20, is_cpu_op=True)]
    feeder(after, tmp_path, "after.0.json")
    feeder(beside, tmp_path, "beside.0.json")
    assert time_of(tmp_path / "after") - time_of(tmp_path / "beside") == 20_000_000


def test_a_json_trace_without_a_rank_in_its_name_is_rank_0(tmp_path: Path) -> None:
    assert read_chakra(feeder([row(1)], tmp_path, "mine.json")).num_ranks == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"workload_graph": 4}', "workload_graph must be a list, got 4"),
        ('{"workload_graph": [4]}', "workload_graph[0]: must be an object with Id and NodeType, got 4"),
        ('{"workload_graph": [{"Id": 1}]}', "workload_graph[0]: must be an object with Id and NodeType"),
        ('{"workload_graph": [{"Id": true, "NodeType": 4}]}', "workload_graph[0]: is no message"),
        ('{"workload_graph": [{"Id": 1, "NodeType": 9}]}', "node 1: there is no node type 9"),
        ('{"workload_graph": [{"Id": 1, "NodeType": 4, "data_deps": 3}]}', "dataDeps"),
        ('{"workload_graph": [{"Id": 1, "NodeType": 4, "data_deps": ["x"]}]}', "dataDeps"),
        ('{"workload_graph": [{"Id": 1, "NodeType": 4, "is_cpu_op": 1}]}', "is_cpu_op: must be a bool, got 1"),
        ('{"workload_graph": [{"Id": 1, "NodeType": 4, "Name": 5}]}', "name"),
        ('{"workload_graph": [{"Id": 1, "NodeType": 4, "runtme": 5}]}', "unknown key"),
        ('{"workload_graph": [{"Id": 1, "NodeType": 4, "runtime": -5}]}', "durationMicros"),
        ('{"workload_graph": [{"Id": 1, "NodeType": 4, "data_deps": [7]}]}', "node 1 depends on node 7"),
        ('{"workload_graph": [{"Id": 1, "NodeType": 4}, {"Id": 1, "NodeType": 4}]}', "node 1 is there twice"),
        ('{"workload_graph": [' + "1" * 50 + "]}", "holds a number of 50 characters"),
        ('{"workload_graph": [NaN]}', "holds NaN, which is not a number in JSON"),
        ('{"workload_graph": [', "is not complete JSON"),
        ('{"version": "1"}{"id": "x"}', "node number 0: is no message of the Chakra schema"),
        ('{"version": "1"}{"speed": 3}', "node number 0: is no message of the Chakra schema"),
        ('{"version": "1"}' + '{"inputs":' * 60, "is not complete JSON"),
        ('{"a": 1}', "is JSON, but no Chakra trace"),
        ("[1, 2]", "is JSON, but no Chakra trace"),
        ("", "is JSON, but no Chakra trace"),
        ("[" * 100_000, "nests JSON too deeply"),
        ("\x00", "is not complete JSON"),
    ],
)  # fmt: skip
def test_faults_name_the_place_and_the_value(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "job.0.json"
    path.write_text(text)
    with pytest.raises(TraceError) as found:
        read_chakra(path)
    assert words in str(found.value)
    assert len(str(found.value)) <= 400


def test_binary_traces_come_first_and_other_files_are_named(tmp_path: Path) -> None:
    write(tmp_path, jobs(), "job")
    feeder([row(1)], tmp_path, "job.0.json")
    assert read_chakra(tmp_path / "job").num_ranks == 2
    assert read_chakra(tmp_path / "job.1.et").num_ranks == 2  # any file of the job
    with pytest.raises(TraceError, match=r"is a Chakra trace: trine chakra inspect FILE"):
        load(str(tmp_path / "job.1.et"))
    with pytest.raises(SpecError, match=r"is a Chakra trace: trine chakra inspect FILE"):
        read_any(tmp_path / "job.1.et")
    (tmp_path / "kineto.json").write_text('{"schemaVersion": 1, "traceEvents": []}')
    with pytest.raises(TraceError, match="is a profiler trace of PyTorch: trine trace inspect"):
        read_chakra(tmp_path / "kineto.json")
    (tmp_path / "notes.txt").write_text("notes")
    with pytest.raises(TraceError, match=r"is no Chakra trace; those are PREFIX\.<rank>\.et"):
        read_chakra(tmp_path / "notes.txt")
