"""Is an execution trace joined with a profiler trace that covers more, or other, steps of the same run?"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from trine.errors import TraceError
from trine.workload import load

NODE = "autograd::engine::evaluate_function: "
#: Calls of one step: name, thread, whether autograd numbers it, nesting.
STEP = (
    ("Optimizer.zero_grad#SGD.zero_grad", 1, False, 0), ("aten::zero_", 1, False, 1), ("aten::zero_", 1, False, 1),
    ("aten::linear", 1, True, 0), ("aten::t", 1, True, 1), ("aten::addmm", 1, True, 1), ("aten::relu", 1, True, 0),
    ("aten::clamp_min", 1, True, 1), ("aten::linear", 1, True, 0), ("aten::t", 1, True, 1), ("aten::addmm", 1, True, 1),
    (NODE + "AddmmBackward0", 2, True, 0), ("AddmmBackward0", 2, True, 1), ("aten::mm", 2, False, 2),
    (NODE + "ReluBackward0", 2, True, 0), ("aten::threshold_backward", 2, False, 1),
    (NODE + "AddmmBackward0", 2, True, 0), ("aten::mm", 2, False, 1),
    ("Optimizer.step#SGD.step", 1, False, 0), ("aten::_foreach_add_", 1, False, 1),
)  # fmt: skip
LENGTH = len(STEP)


def profile(steps: range, *, numbered: str = "Sequence number", skip: tuple[int, ...] = ()) -> list[dict[str, Any]]:
    """Events of ``steps``; the kernel of a call in step n takes n microseconds. ``skip``: places left out."""
    events: list[dict[str, Any]] = []
    for step in steps:
        for place, (name, tid, seq, depth) in enumerate(STEP):
            if place in skip:
                continue
            at = 1000.0 * step + 10 * place
            inside = next((n for n, x in enumerate(STEP[place + 1 :]) if x[3] <= depth), LENGTH - place - 1)
            args = {"External id": step * LENGTH + place + 77}
            if seq and numbered == "Sequence number":
                args["Sequence number"] = 20 * step + place
            annotation = name.startswith("Optimizer")
            common = {"ph": "X", "pid": 1, "tid": tid, "ts": at}
            events.append({**common, "cat": "user_annotation" if annotation else "cpu_op", "name": name,
                           "dur": 10 * inside + 5, "args": args})  # fmt: skip
            if inside == 0:
                link = {"correlation": len(events), "device": 0}
                events.append({**common, "cat": "cuda_runtime", "name": "launch", "ts": at + 1, "dur": 1, "args": link})
                events.append({**common, "cat": "kernel", "name": "k", "ts": at + 500, "dur": step, "args": link})
    return events


def execution_trace(step: int, *, names: dict[int, str] | None = None, numbered: bool = True) -> list[dict[str, Any]]:
    """Nodes of one step."""
    empty = {"values": [], "shapes": [], "types": []}
    nodes: list[dict[str, Any]] = []

    def node(number: int, name: str, parent: int, rf: int, seq: int, tid: int, scope: int = 0) -> None:
        attributes = {
            "rf_id": rf,
            "fw_parent": 0,
            "seq_id": seq,
            "scope": scope,
            "tid": tid,
            "fw_tid": 0,
            "op_schema": "",
        }
        nodes.append({"id": number, "name": name, "ctrl_deps": parent, "inputs": empty, "outputs": empty,
                      "attrs": [{"name": k, "type": "", "value": v} for k, v in attributes.items()]})  # fmt: skip

    node(1, "[pytorch|profiler|execution_trace|process]", 1, 0, -1, 0, 7)
    node(2, "[pytorch|profiler|execution_trace|thread]", 1, 0, -1, 1, 7)
    stack = [2]
    for place, (name, tid, seq, depth) in enumerate(STEP):
        del stack[depth + 1 :]
        number = len(nodes) + 1
        shown = (names or {}).get(place, name)
        scope = 7 if name.startswith("Optimizer") else 0
        node(number, shown, stack[-1], place + 1, 20 * step + place if seq and numbered else -1, tid, scope)
        stack.append(number)
    return nodes


def join(folder: Path, events: list[dict[str, Any]], nodes: list[dict[str, Any]]) -> tuple[set[int], str]:
    """Load the pair; the microseconds that kernels took (that is, the steps they are of), and how it was joined."""
    (folder / "kineto.json").write_text(json.dumps({"traceEvents": events}))
    with gzip.open(folder / "execution_trace.json.gz", "wt") as file:
        json.dump({"schema": "x", "nodes": nodes}, file)
    workload = load(folder)
    assert len(workload.operators) == 9
    times = {time // 1_000_000 for op in workload.operators for time in op.kernel_times_ps}
    return times, next(text for text in workload.assumptions if "joined" in text)


@pytest.mark.parametrize("step", [1, 7, 40])
def test_one_step_is_found_among_forty_by_sequence_numbers(tmp_path: Path, step: int) -> None:
    times, how = join(tmp_path, profile(range(1, 41)), execution_trace(step))
    assert times == {step}  # 0.9.0: "the files are of different runs"
    assert "sequence numbers" in how


def test_the_step_after_the_recorded_one_is_joined(tmp_path: Path) -> None:
    times, how = join(tmp_path, profile(range(6, 7)), execution_trace(5))
    assert times == {6}
    assert "sequence numbers" in how


def test_calls_that_one_file_lacks_are_passed_over(tmp_path: Path) -> None:
    times, _ = join(tmp_path, profile(range(1, 41), skip=(4,)), execution_trace(12))
    assert times == {12}


def test_external_ids_tie_calls_where_autograd_numbers_none(tmp_path: Path) -> None:
    times, how = join(tmp_path, profile(range(1, 41), numbered="none"), execution_trace(9, numbered=False))
    assert len(times) == 1
    assert "external ids" in how


def test_order_is_the_last_resort(tmp_path: Path) -> None:
    events = profile(range(1, 41), numbered="none")
    for event in events:
        event["args"].pop("External id", None)
    times, how = join(tmp_path, events, execution_trace(9, numbered=False))
    assert len(times) == 1
    assert "order of calls" in how


def test_other_names_are_of_another_run_and_named(tmp_path: Path) -> None:
    names = dict.fromkeys(range(3, 18), "aten::softmax")
    with pytest.raises(TraceError, match=r"different runs") as refusal:
        join(tmp_path, profile(range(1, 41)), execution_trace(9, names=names))
    assert "aten::softmax" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_trace_without_marked_steps_is_not_one_step(tmp_path: Path) -> None:
    (tmp_path / "kineto.json").write_text(json.dumps({"traceEvents": profile(range(1, 41))}))
    workload = load(tmp_path)
    assert len(workload.operators) == 9  # 0.9.0: 360
    assert any("the last of 40" in text for text in workload.assumptions)


def test_optimizers_that_take_turns_make_one_step(tmp_path: Path) -> None:
    events = profile(range(1, 9))
    for event in events:
        if event["cat"] != "kernel" and (event["ts"] // 1000) % 2:
            event["name"] = event["name"].replace("linear", "conv2d").replace("addmm", "convolution")
            event["name"] = event["name"].replace("aten::t", "aten::s").replace("Addmm", "Convolution")
    (tmp_path / "kineto.json").write_text(json.dumps({"traceEvents": events}))
    workload = load(tmp_path)
    assert {time // 1_000_000 for op in workload.operators for time in op.kernel_times_ps} == {7, 8}
