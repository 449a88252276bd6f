"""Are kernels, steps, phases and operands read from a PyTorch pair as PyTorch meant them?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trine.graph.workload import Workload
from trine.workload import load

Shape = tuple[int, ...]
AUTOGRAD = "autograd::engine::evaluate_function: "


class Recorder:
    """Writes a pair as PyTorch would. Times in microseconds; ids of tensors are also their storages."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.stack = [self.node("[thread]", scope=7)]
        self.correlation = 0
        self.gpu_at = 0.0

    def node(
        self, name: str, ins: Any = (), outs: Any = (), schema: str = "", rf: int = 0, seq: int = -1, scope: int = 0
    ) -> int:
        number = len(self.nodes) + 1
        attrs = {"rf_id": rf, "fw_parent": 0, "seq_id": seq, "scope": scope, "tid": 1, "fw_tid": 0, "op_schema": schema}
        self.nodes.append({
            "id": number, "name": name, "ctrl_deps": self.stack[-1] if rf else 1, "inputs": self.arguments(ins),
            "outputs": self.arguments(outs), "attrs": [{"name": k, "type": "", "value": v} for k, v in attrs.items()],
        })  # fmt: skip
        return number

    @staticmethod
    def arguments(values: Any) -> dict[str, Any]:
        def tensor(id_number: int, shape: Shape, storage: int | None = None) -> list[Any]:
            elements = 1
            for size in shape:
                elements *= size
            return [id_number, storage or 1000 + id_number, 0, elements, 4, "cuda:0"]

        shown: dict[str, list[Any]] = {"values": [], "shapes": [], "types": []}
        for value in values:
            if isinstance(value, tuple):
                shown["values"].append(tensor(*value))
                shown["shapes"].append(list(value[1]))
                shown["types"].append("Tensor(float)")
            elif isinstance(value, list) and value and isinstance(value[0], tuple):
                shown["values"].append([tensor(*v) for v in value])
                shown["shapes"].append([list(v[1]) for v in value])
                shown["types"].append(f"GenericList[{','.join(['Tensor(float)'] * len(value))}]")
            else:
                shown["values"].append(value)
                shown["shapes"].append([])
                shown["types"].append("Int")
        return shown

    def call(
        self, name: str, at: float, dur: float, ins: Any = (), outs: Any = (), kernels: list[float] | None = None,
        schema: str = "", seq: int = -1, inside: list[tuple[Any, ...]] | None = None, annotation: bool = False,
        stream: int = 7, gpu_at: float | None = None,
    ) -> None:  # fmt: skip
        record = len(self.nodes) + 500
        number = self.node(name, ins, outs, schema, record, seq, 7 if annotation else 0)
        category = "user_annotation" if annotation else "cpu_op"
        self.events.append({"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": at, "dur": dur,
                            "args": {"Record function id": record}})  # fmt: skip
        for i, length in enumerate(kernels or []):
            self.correlation += 1
            start = self.gpu_at if gpu_at is None else gpu_at
            common = {
                "ph": "X",
                "pid": 1,
                "tid": 1,
                "args": {"correlation": self.correlation, "device": 0, "stream": stream},
            }
            self.events.append(
                {**common, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at + 0.1 * (i + 1), "dur": 0.05}
            )
            self.events.append({**common, "cat": "kernel", "name": "k", "ts": start, "dur": length})
            self.gpu_at = max(self.gpu_at, start + length)
        self.stack.append(number)
        for args, options in [(x[:-1], x[-1]) for x in inside or []]:
            self.call(*args, **options)
        self.stack.pop()

    def load(self, folder: Path, **options: Any) -> Workload:
        nodes = [dict(n, id=n["id"]) for n in self.nodes]
        nodes[0]["ctrl_deps"] = 1
        (folder / "kineto.json").write_text(json.dumps({"traceEvents": self.events}))
        (folder / "execution_trace.json").write_text(json.dumps({"schema": "x", "nodes": nodes}))
        return load(folder, **options)


LINEAR = "aten::linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor"


def test_overlapping_kernels_are_not_counted_twice(tmp_path: Path) -> None:
    record = Recorder()
    record.call("aten::linear", 0, 5, [(1, (8, 4)), (2, (6, 4))], [(3, (8, 6))], [10.0], LINEAR, gpu_at=100)
    record.call("aten::relu", 10, 5, [(3, (8, 6))], [(4, (8, 6))], [10.0], gpu_at=104, stream=9)
    record.call("aten::tanh", 20, 5, [(4, (8, 6))], [(5, (8, 6))], [2.5], gpu_at=105, stream=11)
    workload = record.load(tmp_path)
    assert [op.gpu_time_ps for op in workload.operators] == [10_000_000, 4_000_000, 0]
    assert [op.kernel_times_ps for op in workload.operators] == [(10_000_000,), (10_000_000,), (2_500_000,)]
    assert [op.launch_start_ps for op in workload.operators] == [0, 10_000_000, 20_000_000]


def test_the_last_complete_step_is_taken(tmp_path: Path) -> None:
    record = Recorder()
    for step in range(3):
        at, base = 1000.0 * step, 10 * step
        kernels = [5.0 + step] if step < 2 else []  # the profiler stopped before the last step's kernels
        inner = (
            "aten::linear",
            at + 1,
            5.0,
            [(base + 1, (8, 4)), (base + 2, (6, 4))],
            [(base + 3, (8, 6))],
            kernels,
            LINEAR,
        )
        record.call(f"ProfilerStep#{step}", at, 100.0, annotation=True, inside=[(*inner, {})])
    workload = record.load(tmp_path)
    assert [op.gpu_time_ps for op in workload.operators] == [6_000_000]
    assert workload.operators[0].launch_start_ps == 1_000_000
    assert any("ProfilerStep#1" in text for text in workload.assumptions)


MUL = "aten::_foreach_mul_.Scalar(Tensor(a!)[] self, Scalar scalar) -> ()"
ADD = "aten::_foreach_add_.List(Tensor(a!)[] self, Tensor[] a, Tensor[] b) -> ()"


def training(record: Recorder) -> None:
    """One linear layer without bias, backward, and a foreach optimizer that lists the weight after its state."""
    x, w, y, dy, dw = (1, (8, 4)), (2, (6, 4)), (3, (8, 6)), (9, (8, 6), 1005), (20, (6, 4))
    record.call("aten::linear", 0, 5, [x, w], [y], [10.0], LINEAR, seq=40)
    record.call(
        "aten::sum",
        10,
        5,
        [y, "<None>"],
        [(4, ())],
        [1.0],
        "aten::sum(Tensor self, *, ScalarType? dtype=None) -> Tensor",
        seq=41,
    )
    record.call("aten::ones_like", 20, 5, [(4, ())], [(5, ())], [1.0])
    expand = "aten::expand(Tensor(a) self, SymInt[] size, *, bool implicit=False) -> Tensor(a)"
    record.call(f"{AUTOGRAD}SumBackward0", 30, 5, inside=[
        ("SumBackward0", 30.5, 4.0, [(5, ())], [], None, "", 41, [
            ("aten::expand", 31, 2.0, [(5, ()), [8, 6]], [(9, (8, 6), 1005)], [1.0], expand, {}),
        ], {}),
    ])  # fmt: skip
    mm = "aten::mm(Tensor self, Tensor mat2) -> Tensor"
    t = "aten::t(Tensor(a) self) -> Tensor(a)"
    record.call(f"{AUTOGRAD}MmBackward0", 40, 5, inside=[
        ("MmBackward0", 40.5, 4.0, [dy], [], None, "", 40, [
            ("aten::t", 41, 0.5, [dy], [(19, (6, 8), 1005)], None, t, {}),
            ("aten::mm", 42, 1.0, [(19, (6, 8), 1005), x], [dw], [7.0], mm, {}),
        ], {}),
    ])  # fmt: skip
    record.call(f"{AUTOGRAD}torch::autograd::AccumulateGrad", 46, 1, inside=[
        ("torch::autograd::AccumulateGrad", 46.1, 0.5, [dw], [], {}),
    ])  # fmt: skip
    record.call("Optimizer.step#SGD.step", 50, 20, annotation=True, inside=[
        ("aten::_foreach_mul_", 51, 5.0, [[(30, (6, 4))], 0.9], [], [2.0], MUL, {}),
        ("aten::_foreach_add_", 57, 5.0, [[w], [(30, (6, 4))], [dw]], [], [3.0], ADD, {}),
    ])  # fmt: skip


def test_a_training_step(tmp_path: Path) -> None:
    record = Recorder()
    training(record)
    workload = record.load(tmp_path)
    assert [(op.name.removeprefix(AUTOGRAD), op.phase, op.forward_id) for op in workload.operators] == [
        ("aten::linear", "forward", None),
        ("aten::sum", "forward", None),
        ("aten::ones_like", "forward", None),
        ("SumBackward0", "backward", 2),
        ("MmBackward0", "backward", 1),
        ("aten::_foreach_mul_", "optimizer", None),
        ("aten::_foreach_add_", "optimizer", None),
    ]
    assert [op.layer for op in workload.operators[3:]] == ["sum.1", "linear.1", "optimizer", "optimizer"]
    (parameter,) = workload.parameters
    weight = workload.tensors[parameter.weight]
    assert (weight.shape, weight.role, weight.batch_dims) == ((6, 4), "weight", ())
    assert parameter.gradient_operator == 5
    assert parameter.gradient is not None
    assert workload.tensors[parameter.gradient].role == "gradient"
    product = workload.operators[4]
    assert [workload.tensors[i].batch_dims for i in product.inputs] == [(1,), (0,)]  # transposed
    assert [workload.tensors[i].batch_dims for i in product.outputs] == [()]
    state = workload.tensors[workload.operators[5].inputs[0]]
    assert state.role == "optimizer_state"


def test_a_reused_address_is_a_new_tensor(tmp_path: Path) -> None:
    """The observer's numbers are addresses: tensor 3 on storage 1003 comes twice, once as a view's base."""
    record = Recorder()
    record.call("aten::linear", 0, 5, [(1, (8, 4)), (2, (6, 4))], [(3, (8, 6))], [1.0], LINEAR)
    record.call("aten::relu", 10, 5, [(3, (8, 6))], [(4, (8, 6))], [1.0])
    record.call("aten::tanh", 20, 5, [(4, (8, 6))], [(3, (8, 6))], [1.0])
    record.call("aten::relu_", 30, 5, [(3, (8, 6))], [(3, (8, 6))], [1.0])
    workload = record.load(tmp_path)
    first, tanh, in_place = (workload.operators[i].outputs[0] for i in (0, 2, 3))
    assert first != tanh
    assert workload.tensors[first].storage != workload.tensors[tanh].storage
    assert tanh == in_place


def test_kernels_without_an_operator_are_kept(tmp_path: Path) -> None:
    record = Recorder()
    record.call("aten::linear", 0, 5, [(1, (8, 4)), (2, (6, 4))], [(3, (8, 6))], [1.0], LINEAR)
    event = {
        "ph": "X",
        "cat": "kernel",
        "name": "graph_kernel",
        "pid": 0,
        "tid": 7,
        "ts": 50,
        "dur": 4,
        "args": {"device": 0},
    }
    record.events.append(event)
    workload = record.load(tmp_path)
    assert [op.name for op in workload.operators] == ["aten::linear", "kernel: graph_kernel"]
    assert workload.operators[1].gpu_time_ps == 4_000_000
    assert any("no launching operator" in text for text in workload.assumptions)


def test_only_the_busiest_gpu_counts(tmp_path: Path) -> None:
    record = Recorder()
    record.call("aten::linear", 0, 5, [(1, (8, 4)), (2, (6, 4))], [(3, (8, 6))], [1.0, 1.0], LINEAR)
    record.events.append({"ph": "X", "cat": "kernel", "name": "other", "ts": 9, "dur": 4, "args": {"device": 1}})
    workload = record.load(tmp_path)
    assert [op.gpu_time_ps for op in workload.operators] == [2_000_000]
    assert any("2 GPUs" in text for text in workload.assumptions)


def test_sequence_first_data_with_the_batch_given(tmp_path: Path) -> None:
    record = Recorder()
    record.call("aten::linear", 0, 5, [(1, (32, 4, 16)), (2, (6, 16))], [(3, (32, 4, 6))], [1.0], LINEAR)
    assert record.load(tmp_path).batch == 32
    workload = record.load(tmp_path, batch=4)
    assert workload.batch == 4
    assert workload.tensors[workload.operators[0].outputs[0]].batch_dims == (1,)
