"""Is trine's own format lossless, strict and the same every time?"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trine.errors import TraceError
from trine.graph.workload import PHASES, ROLES, Operator, Parameter, Tensor, Workload
from trine.workload import load, save

DATA = Path(__file__).parents[1] / "data"
TEXT = st.text(max_size=12)
NUMBER = st.integers(0, 2**63 - 1)
SCALAR = st.one_of(
    st.booleans(), st.integers(-(10**18), 10**18), st.floats(allow_nan=False, allow_infinity=False), TEXT
)
ATTRIBUTES = st.dictionaries(TEXT, st.one_of(SCALAR, st.lists(SCALAR, max_size=3).map(tuple)), max_size=3)


@st.composite
def tensors(draw: st.DrawFn, number: int) -> Tensor:
    shape = tuple(draw(st.lists(st.integers(0, 9), max_size=4)))
    elements = 1
    for size in shape:
        elements *= size
    dims = draw(st.sets(st.integers(0, max(len(shape) - 1, 0)), max_size=2)) if shape else set()
    return Tensor(
        id=number, shape=shape, dtype="float32", size_bytes=4 * elements, storage=draw(NUMBER),
        role=draw(st.sampled_from(ROLES)), batch_dims=tuple(sorted(dims)),
    )  # fmt: skip


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    table = {i: draw(tensors(i)) for i in draw(st.sets(st.integers(0, 10**6), min_size=1, max_size=5))}
    some = st.lists(st.sampled_from(sorted(table)), max_size=3).map(tuple)
    operators: list[Operator] = []
    for number in range(draw(st.integers(0, 5))):
        phase = draw(st.sampled_from(PHASES))
        earlier = [op.id for op in operators if op.phase == "forward"]
        operators.append(Operator(
            id=number * 3, name=draw(TEXT), phase=phase, inputs=draw(some), outputs=draw(some),
            gpu_time_ps=draw(NUMBER),
            launch_start_ps=draw(st.none() | NUMBER), launch_duration_ps=draw(st.none() | NUMBER),
            forward_id=draw(st.sampled_from(earlier)) if phase == "backward" and earlier else None,
            layer=draw(TEXT),
            kernel_times_ps=tuple(draw(st.lists(NUMBER, max_size=2))), attributes=draw(ATTRIBUTES),
        ))  # fmt: skip
    backward = [op.id for op in operators if op.phase == "backward"]
    parameters = tuple(
        Parameter(weight=i, size_bytes=table[i].size_bytes, gradient=draw(st.none() | st.sampled_from(sorted(table))),
                  gradient_operator=draw(st.sampled_from(backward)) if backward else None)
        for i in sorted(draw(st.sets(st.sampled_from(sorted(table)), max_size=2)))
    )  # fmt: skip
    return Workload(
        name=draw(TEXT), source=draw(TEXT), format=draw(TEXT), gpu=draw(st.none() | TEXT),
        batch=draw(st.integers(1, 10**6)), operators=tuple(operators), tensors=table, parameters=parameters,
        missing=tuple(draw(st.lists(TEXT, max_size=2))),
        assumptions=tuple(draw(st.lists(TEXT, max_size=2))), unprofiled_step_ps=draw(st.none() | NUMBER),
        metadata=draw(st.dictionaries(TEXT, TEXT, max_size=2)),
    )  # fmt: skip


@given(workloads(), st.sampled_from([".trine.json", ".trine.json.gz"]))
@settings(max_examples=60, deadline=None)
def test_any_workload_survives(workload: Workload, suffix: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        first, second = Path(folder, f"a{suffix}"), Path(folder, f"b{suffix}")
        save(workload, first)
        again = load(first)
        assert again == workload
        save(again, second)
        assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize(
    "name",
    [
        "vgg13-h100-b128",
        "resnet50-h100-b128",
        "vgg13-raw-b512",
        "torch213-cpu/tf_et.json.gz",
        "torch213-cpu/cnn_et.json.gz",
    ],
)
def test_every_sample_survives(tmp_path: Path, name: str) -> None:
    workload = load(name if name.endswith("b128") else DATA / name)
    save(workload, tmp_path / "a.trine.json.gz")
    assert load(tmp_path / "a.trine.json.gz") == workload


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("native") / "a.trine.json"
    save(load("vgg13-h100-b128"), path)
    return json.loads(path.read_text())


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (["verson"], 1, "did you mean 'version'"),
        (["version"], 2, "version 2"),
        (["format"], "other", "other"),
        (["batch"], 0, "batch"),
        (["batch"], 1.5, "batch"),
        (["batch"], True, "batch"),
        (["missing"], "none", "missing"),
        (["metadata"], {"a": 1}, "metadata"),
        (["operators", 0, "gpu_time_ps"], -1, "operators[0].gpu_time_ps"),
        (["operators", 0, "gpu_tim_ps"], 1, "did you mean 'gpu_time_ps'"),
        (["operators", 0, "phase"], "foreward", "did you mean 'forward'"),
        (["operators", 1, "id"], 1, "operator 1"),
        (["operators", 0, "inputs"], [987654], "987654"),
        (["operators", 0, "forward_id"], 1, "forward_id"),
        (["operators", 36, "forward_id"], 103, "forward_id"),
        (["operators", 0, "attributes"], {"a": None}, "attributes"),
        (["operators", 0], [], "operators[0]"),
        (["tensors", 0, "size_bytes"], 5, "tensor"),
        (["tensors", 0, "role"], "wheight", "did you mean 'weight'"),
        (["tensors", 0, "batch_dims"], [9], "batch_dims"),
        (["tensors", 0, "batch_dims"], [1, 0], "batch_dims"),
        (["tensors", 1, "id"], 4, "twice"),
        (["parameters", 0, "weight"], 987654, "987654"),
        (["parameters", 0, "size_bytes"], 1, "bytes"),
        (["parameters", 0, "gradient_operator"], 1, "gradient_operator"),
    ],
)
def test_contradictions_and_unknown_fields_are_errors(
    document: Any, tmp_path: Path, path: list[Any], value: Any, says: str
) -> None:
    changed = json.loads(json.dumps(document))
    place = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    file = tmp_path / "b.trine.json"
    file.write_text(json.dumps(changed))
    with pytest.raises(TraceError) as error:
        load(file)
    assert says in str(error.value)
    assert "b.trine.json" in str(error.value)


def test_a_missing_field_is_an_error(document: Any, tmp_path: Path) -> None:
    for key in document:
        changed = {k: v for k, v in document.items() if k != key}
        file = tmp_path / "c.trine.json"
        file.write_text(json.dumps(changed))
        with pytest.raises(TraceError, match=key):
            load(file)


def test_other_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="must end in"):
        save(load("vgg13-h100-b128"), tmp_path / "a.json")
