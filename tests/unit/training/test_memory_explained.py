"""Tensors that hold the peak, effects of other options, and the snapshot for PyTorch's memory_viz."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from trine.parallel.plan import Plan
from trine.results.snapshot import write_snapshot
from trine.training import simulate
from trine.training.explained import explain_memory, memory_snapshot, other_plans
from trine.training.options import SimulateOptions
from trine.workload.synthesis.model import synthesize

PLAN = Plan(dp=2, tp=2, batch=4, micro_batch=2)
HOW = SimulateOptions(cluster="dgx-h100", software="megatron-core")


@pytest.fixture(scope="module")
def model() -> object:
    return synthesize("llama-3-8b", layers=2, sequence=1024)


def test_the_peak_is_that_of_the_simulation(model) -> None:
    found = explain_memory(model, PLAN, HOW)
    use = max(simulate(model, PLAN, options=HOW).memory_uses, key=lambda one: one.needed_bytes)
    assert found.use == use
    # Blocks are rounded up to 512 B, and the rest of an unsplit block counts as allocated.
    held = sum(one.size_bytes for one in found.held)
    assert held <= found.use.allocated_bytes <= 1.01 * held
    assert {one.module for one in found.held} >= {"optimizer_state", "weights", "layers.*.mlp"}
    assert any("reserved" not in line and "loss" in line for line in found.text())
    phases = dict(found.phases)
    assert max(phases.values()) == pytest.approx(found.use.allocated_bytes, rel=0.01)
    assert phases["optimizer"] < phases["forward"] <= max(phases.values())


@pytest.mark.parametrize(
    ("plan", "options"),
    [
        (Plan(dp=4, sharding="zero2", micro_batch=2),
         "sharding fsdp; recompute selective; recompute full; micro-batch 1; tp 2; pp 2; "
         "offload activations; offload optimizer"),
        (Plan(dp=3, sharding="zero1", batch=1, offload="optimizer", recompute="full", tp=2, pp=3),
         "sharding zero2; sharding fsdp; recompute selective; tp 4; pp 6; offload activations"),
        (Plan(pp=4, batch=2, offload="activations"),
         "recompute selective; recompute full; micro-batch 1; tp 2; pp 8; offload optimizer"),
    ],
)  # fmt: skip
def test_other_options_are_those_that_the_plan_has_not(plan: Plan, options: str) -> None:
    found = list(other_plans(plan, 8))
    assert "; ".join(text for text, _ in found) == options
    for text, fields in found:
        name, value = text.split(" ")
        assert fields.get(name.replace("-", "_")) in (value, int(value) if value.isdigit() else value)


def test_other_options_are_asked_of_the_same_simulation(model) -> None:
    found = explain_memory(model, PLAN, HOW)
    options = {one.option: one for one in found.options}
    zero = simulate(model, Plan(dp=2, tp=2, batch=4, micro_batch=2, sharding="zero1"), options=HOW)
    assert options["sharding zero1"].use == max(zero.memory_uses, key=lambda one: one.needed_bytes)
    assert options["micro-batch 1"].use.needed_bytes < found.use.needed_bytes
    assert options["tp 4"].num_ranks == 4
    assert options["tp 4"].use.needed_bytes < found.use.needed_bytes
    rows = found.document()["options"]
    assert [row["option"] for row in rows] == [one.option for one in found.options]


def test_an_option_that_cannot_be_says_why(model) -> None:
    found = explain_memory(model, Plan(dp=2, tp=2, batch=1), HOW)
    assert next(one for one in found.options if one.option == "pp 2").use is not None
    alone = explain_memory(model, Plan(batch=1), SimulateOptions(software="none"))
    assert all(one.why_not for one in alone.options if one.option in ("tp 2", "offload optimizer"))


def test_a_snapshot_is_plain_data_that_adds_up(model, tmp_path: Path) -> None:
    write_snapshot(memory_snapshot(model, PLAN, HOW), tmp_path / "memory.pickle")
    found = pickle.loads((tmp_path / "memory.pickle").read_bytes())
    (trace,) = found["device_traces"]
    live: dict[int, int] = {}
    for event in trace:
        if event["action"] == "alloc":
            assert event["addr"] not in live
            live[event["addr"]] = event["size"]
        elif event["action"] == "free_completed":
            assert live.pop(event["addr"]) == event["size"]
    blocks = [block for segment in found["segments"] for block in segment["blocks"]]
    assert live == {b["address"]: b["size"] for b in blocks if b["state"] == "active_allocated"}
    assert any(event["frames"][0]["name"].startswith("layers.1.mlp") for event in trace)


@pytest.mark.torch
def test_pytorch_draws_a_snapshot(model, tmp_path: Path) -> None:
    viz = pytest.importorskip("torch.cuda._memory_viz")
    found = memory_snapshot(model, PLAN, HOW)
    assert "MemoryViz" in viz.trace_plot(found)
    assert "MemoryViz" in viz.segment_plot(found)
    assert "segments:" in viz.segsum(found)
    assert "cudaMalloc" in viz.trace(found)
    assert "optimizer_state" in viz.segments(found, format_flamegraph=lambda lines: lines)
