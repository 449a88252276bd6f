"""Does every malformed trace give one clear TraceError, with file and line or event, within bounded time?"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cpu_time import computes_for_less_than

from trine.errors import TraceError
from trine.workload import load

TENSORS = """Index,TensorID,TensorShape,TensorNumElement,TensorEachByte,TensorType,TensorStorgeid,gpuid
0,4,"[8, 3]",24,4,input,5,0
1,6,"[10, 3]",30,4,weight,7,0
2,14,"[8, 10]",80,4,output,15,0
"""
TRACE = (
    "OperatorID,OperatorName,Operator_input,Operator_output,Operator_cudatime,Operator_cudatimenooverlap,InputSize,"
    "OutputSize,gpuid,stage,tpflag\n"
    "1,aten::linear,[4; 6],[14],10,9,[24; 30],[80],0,forward,1\n"
    "2,aten::relu_,[14],[14],5,5,[80],[80],0,forward,0\n"
)


def write_pair(folder: Path, trace: str = TRACE, tensors: str = TENSORS) -> Path:
    (folder / "trace.csv").write_text(trace)
    (folder / "tensor.csv").write_text(tensors)
    return folder


def refused(load_it: Callable[[], object]) -> str:
    with computes_for_less_than(5), pytest.raises(TraceError) as error:
        load_it()
    assert len(str(error.value)) < 1000
    return str(error.value)


def test_the_unchanged_pair_is_an_inference_step(tmp_path: Path) -> None:
    workload = load(write_pair(tmp_path))
    assert not workload.is_training
    assert workload.batch == 8
    assert [op.gpu_time_ps for op in workload.operators] == [9_000_000, 5_000_000]
    assert [workload.tensors[p.weight].shape for p in workload.parameters] == [(10, 3)]
    assert workload.parameters[0].gradient_operator is None


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ("stage,", "phase,", "trace.csv:1"),
        ("forward,1", "forwards,1", "trace.csv:2: stage"),
        (",9,[24", ",NaN,[24", "trace.csv:2: Operator_cudatimenooverlap"),
        (",9,[24", ",-9,[24", "trace.csv:2: Operator_cudatimenooverlap"),
        (",9,[24", ",9.5.5,[24", "trace.csv:2: Operator_cudatimenooverlap"),
        (",9,[24", ",٣,[24", "trace.csv:2: Operator_cudatimenooverlap"),
        (",9,[24", ",inf,[24", "trace.csv:2: Operator_cudatimenooverlap"),
        (",9,[24", "," + "9" * 1_000_000 + ",[24", "trace.csv:2: Operator_cudatimenooverlap"),
        (",9,[24", ",9223372036854775807,[24", "trace.csv:2: Operator_cudatimenooverlap"),
        ("[4; 6]", "[4; 7]", "trace.csv:2: InputSize"),
        ("[4; 6]", "[4, 6]", "trace.csv:2"),
        ("[4; 6]", "4; 6", "trace.csv:2: Operator_input"),
        ("[4; 6]", "[-4; 6]", "trace.csv:2: Operator_input"),
        ("[4; 6]", "[" + "4; " * 300_000 + "6]", "trace.csv:2: InputSize"),
        ("[24; 30]", "[24]", "trace.csv:2: InputSize"),
        ("[24; 30]", "[24; 31]", "trace.csv:2: InputSize"),
        ("\n2,aten", "\n1,aten", "trace.csv:3: OperatorID"),
        ("aten::linear", "x" * 1_000_000, "trace.csv:2: OperatorName"),
        ("aten::linear", "", "trace.csv:2: OperatorName"),
        ("0,forward,0\n", "0,forw", "trace.csv:3"),
        ("aten::linear", '"aten::linear', "trace.csv"),
        ("aten::linear", "aten\0linear", "trace.csv"),
    ],
)
def test_operator_rows(tmp_path: Path, old: str, new: str, where: str) -> None:
    assert old in TRACE
    folder = write_pair(tmp_path, trace=TRACE.replace(old, new, 1))
    assert where in refused(lambda: load(folder))


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ("TensorStorgeid", "Storage", "tensor.csv:1"),
        ('"[8, 3]",24', '"[8, 3]",25', "tensor.csv:2: TensorNumElement"),
        ('"[8, 3]"', '"[8, __import__]"', "tensor.csv:2: TensorShape"),
        ('"[8, 3]"', '"[8, -3]"', "tensor.csv:2: TensorShape"),
        ('"[8, 3]"', '"' + "[" * 1_000_000 + '"', "tensor.csv:2: TensorShape"),
        ("24,4,input", "24,5,input", "tensor.csv:2: TensorEachByte"),
        ("24,4,input", "24,0,input", "tensor.csv:2: TensorEachByte"),
        ("0,4,", "0,four,", "tensor.csv:2: TensorID"),
        ("2,14,", "2,4,", "tensor.csv:4: TensorShape"),
        ("input,5", "input,99999999999999999999", "tensor.csv:2: TensorStorgeid"),
        (",15,0", ",15", "tensor.csv:4"),
    ],
)
def test_tensor_rows(tmp_path: Path, old: str, new: str, where: str) -> None:
    assert old in TENSORS
    folder = write_pair(tmp_path, tensors=TENSORS.replace(old, new, 1))
    assert where in refused(lambda: load(folder))


def test_missing_and_empty_files(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(TRACE)
    assert "tensor.csv" in refused(lambda: load(tmp_path))
    assert "tensor.csv:1" in refused(lambda: load(write_pair(tmp_path, tensors="")))
    assert "no operator" in refused(lambda: load(write_pair(tmp_path, trace=TRACE.splitlines()[0] + "\n")))
    assert "tensor 4 is not in" in refused(lambda: load(write_pair(tmp_path, tensors=TENSORS.splitlines()[0] + "\n")))


def node(id_number: int, name: str, parent: int, **other: Any) -> dict[str, Any]:
    fields = {"rf_id": 0, "fw_parent": 0, "seq_id": -1, "scope": 0, "tid": 1, "fw_tid": 0, "op_schema": ""}
    empty = {"values": [], "shapes": [], "types": []}
    fields.update({key: other.pop(key) for key in list(other) if key in fields})
    attrs = [{"name": key, "type": "", "value": value} for key, value in fields.items()]
    return {
        "id": id_number,
        "name": name,
        "ctrl_deps": parent,
        "inputs": empty,
        "outputs": empty,
        "attrs": attrs,
        **other,
    }


def arguments(*tensors: tuple[int, tuple[int, ...]]) -> dict[str, Any]:
    values, shapes = [], []
    for number, shape in tensors:
        elements = 1
        for size in shape:
            elements *= size
        values.append([number, number + 100, 0, elements, 4, "cuda:0"])
        shapes.append(list(shape))
    return {"values": values, "shapes": shapes, "types": ["Tensor(float)"] * len(values)}


def pair() -> tuple[dict[str, Any], dict[str, Any]]:
    """Two operators, one kernel each."""
    nodes = [
        node(1, "[process]", 1, scope=7),
        node(2, "[thread]", 1, scope=7),
        node(
            3,
            "aten::linear",
            2,
            rf_id=11,
            inputs=arguments((4, (8, 3)), (6, (10, 3))),
            outputs=arguments((14, (8, 10))),
        ),
        node(5, "aten::relu", 2, rf_id=12, inputs=arguments((14, (8, 10))), outputs=arguments((16, (8, 10)))),
    ]
    events: list[dict[str, Any]] = []
    for i, (name, record) in enumerate([("aten::linear", 11), ("aten::relu", 12)]):
        at = 1000 + 100 * i
        common = {"ph": "X", "pid": 1, "tid": 1}
        args = {"Record function id": record}
        events += [
            {**common, "cat": "cpu_op", "name": name, "ts": at, "dur": 50, "args": args},
            {
                **common,
                "cat": "cuda_runtime",
                "name": "cudaLaunchKernel",
                "ts": at + 5,
                "dur": 3,
                "args": {"correlation": i},
            },
            {
                **common,
                "cat": "kernel",
                "name": "k",
                "ts": at + 60,
                "dur": 30.125,
                "args": {"correlation": i, "device": 0},
            },
        ]
    return {"traceEvents": events}, {"schema": "1.1.1-chakra.0.0.4", "nodes": nodes}


def write_json(folder: Path, kineto: Any, trace: Any) -> Path:
    (folder / "a_kineto.json").write_text(json.dumps(kineto))
    (folder / "a_et.json").write_text(json.dumps(trace))
    return folder


def test_the_unchanged_json_pair_loads(tmp_path: Path) -> None:
    workload = load(write_json(tmp_path, *pair()))
    assert [(op.name, op.gpu_time_ps) for op in workload.operators] == [
        ("aten::linear", 30_125_000),
        ("aten::relu", 30_125_000),
    ]
    assert [op.launch_start_ps for op in workload.operators] == [0, 100_000_000]
    assert workload.batch == 8


def set_at(document: Any, path: list[Any], value: Any) -> Any:
    changed = copy.deepcopy(document)
    place = changed
    for key in path[:-1]:
        place = place[key]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return changed


EVENT = ["traceEvents"]


@pytest.mark.parametrize(
    ("path", "value", "where"),
    [
        ([*EVENT], {}, "traceEvents"),
        ([*EVENT, 0], 7, "traceEvents[0]"),
        ([*EVENT, 0, "ts"], ..., "traceEvents[0].ts"),
        ([*EVENT, 2, "dur"], ..., "traceEvents[2].dur"),
        ([*EVENT, 0, "ts"], "soon", "traceEvents[0].ts"),
        ([*EVENT, 0, "dur"], -1, "traceEvents[0].dur"),
        ([*EVENT, 2, "dur"], float("nan"), "traceEvents[2].dur"),
        ([*EVENT, 2, "dur"], float("inf"), "traceEvents[2].dur"),
        ([*EVENT, 2, "ts"], 10**29, "traceEvents[2].ts"),
        ([*EVENT, 2, "ts"], True, "traceEvents[2].ts"),
        ([*EVENT, 0, "name"], None, "traceEvents[0].name"),
        ([*EVENT, 0, "name"], "x" * 1_000_000, "traceEvents[0].name"),
        ([*EVENT, 0, "tid"], [], "traceEvents[0].tid"),
        ([*EVENT, 0, "args"], [], "traceEvents[0].args"),
        ([*EVENT, 1, "args", "correlation"], "one", "traceEvents[1].args.correlation"),
        ([*EVENT, 0, "name"], "aten::conv2d", "traceEvents[0]"),
    ],
)
def test_profiler_events(tmp_path: Path, path: list[Any], value: Any, where: str) -> None:
    kineto, trace = pair()
    write_json(tmp_path, set_at(kineto, path, value), trace)
    message = refused(lambda: load(kineto=tmp_path / "a_kineto.json", execution_trace=tmp_path / "a_et.json"))
    assert where in message
    assert "a_kineto.json" in message


@pytest.mark.parametrize(
    ("path", "value", "where"),
    [
        (["nodes"], 3, "nodes"),
        (["nodes", 2], [], "nodes[2]"),
        (["nodes", 2, "id"], "three", "nodes[2].id"),
        (["nodes", 2, "id"], 5, "node 5"),
        (["nodes", 2, "name"], "", "node 3.name"),
        (["nodes", 2, "ctrl_deps"], 99, "node 3"),
        (["nodes", 2, "ctrl_deps"], 5, "node 3"),
        (["nodes", 2, "ctrl_deps"], ..., "node 3.parent"),
        (["nodes", 2, "attrs"], [], "node 3"),
        (["nodes", 2, "inputs", "shapes", 0], [8, 4], "node 3.inputs[0]"),
        (["nodes", 2, "inputs", "shapes", 0], [-8, -3], "node 3.inputs[0]"),
        (["nodes", 2, "inputs", "shapes", 0], [8, "3"], "node 3.inputs[0]"),
        (["nodes", 2, "inputs", "values", 0], [1, 2], "node 3.inputs[0]"),
        (["nodes", 2, "inputs", "values", 0], "tensor", "node 3.inputs[0]"),
        (["nodes", 2, "inputs", "types"], ["Tensor(float)"], "node 3.inputs"),
        (["nodes", 2, "inputs", "types", 0], 4, "node 3.inputs[0]"),
        (["nodes", 2, "outputs"], ..., "node 3.outputs"),
        (["nodes", 3, "attrs", 0, "value"], 11, "node 5"),
    ],
)
def test_execution_trace_nodes(tmp_path: Path, path: list[Any], value: Any, where: str) -> None:
    kineto, trace = pair()
    write_json(tmp_path, kineto, set_at(trace, path, value))
    message = refused(lambda: load(kineto=tmp_path / "a_kineto.json", execution_trace=tmp_path / "a_et.json"))
    assert where in message
    assert ".json" in message


def test_deep_trees_and_long_schemas_take_bounded_time(tmp_path: Path) -> None:
    kineto, trace = pair()
    trace["nodes"] += [node(i, "aten::x", i - 1) for i in range(6, 8_006)]
    trace["nodes"] += [node(30_000, "aten::y", 2, op_schema="aten::y(" * 50_000)]
    with computes_for_less_than(5):
        load(write_json(tmp_path, kineto, trace))


def test_unknown_paths_say_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    for place in (tmp_path, tmp_path / "notes.txt"):
        message = refused(lambda place=place: load(place))
        assert "trace.csv" in message
        assert "Kineto" in message
        assert ".trine.json" in message
    assert "vgg13-h100-b128" in refused(lambda: load("vgg13-h100-b12"))
    assert "batch" in refused(lambda: load("vgg13-h100-b128", batch=0))
    assert "kineto" in refused(load)


def test_an_execution_trace_alone_has_no_times(tmp_path: Path) -> None:
    _, trace = pair()
    (tmp_path / "only_et.json").write_text(json.dumps(trace))
    assert "without times" in refused(lambda: load(tmp_path / "only_et.json"))
