"""Does a job whose programs were kept from another job give the answer of a fresh one?"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

import trine
from trine.cluster import load_cluster
from trine.errors import TrineError
from trine.training import kept_programs

LLAMA, MOE = "model:llama-3.2-1b,layers=4,sequence=256", "model:mixtral-8x7b,layers=4,sequence=256"
REPLICAS = {"dp": 4, "tp": 2, "micro_batch": 1}
PIPELINE = {"dp": 2, "tp": 2, "pp": 2, "micro_batch": 1}


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_programs, "_kept", {})


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Micro-batches of each job whose programs are written."""
    numbers: list[int] = []
    write = kept_programs.write_job

    def noted(context: Any, has_host: bool) -> Any:
        numbers.append(len(context.all_micro_batches))
        return write(context, has_host)

    monkeypatch.setattr(kept_programs, "write_job", noted)
    return numbers


def answer(model: str, layout: dict[str, Any], batch: int, software: str, more_nodes: int = 0) -> dict[str, Any]:
    """Simulate a layout of dgx-h100; with more nodes, its ranks are spread over them at random."""
    plan = trine.Plan(**layout, batch=batch * layout["micro_batch"])
    cluster = load_cluster("dgx-h100", nodes=-(-plan.num_ranks // 8) + more_nodes)
    placement = "random:1" if more_nodes else None
    result = trine.simulate(model, plan, cluster=cluster, software=software, placement=placement)
    document: dict[str, Any] = result.document()
    document.pop("simulator")
    return document


def assert_equal_to_fresh(model: str, layout: dict[str, Any], batches: tuple[int, ...], software: str) -> None:
    later = [answer(model, layout, batch, software) for batch in batches]
    for batch, document in zip(batches, later, strict=True):
        kept_programs._kept.clear()
        assert document == answer(model, layout, batch, software), (layout, batch, software)


@pytest.mark.parametrize(
    ("model", "layout", "software"),
    [
        pytest.param(LLAMA, REPLICAS, "megatron-core", marks=pytest.mark.slow),
        pytest.param(LLAMA, {**REPLICAS, "sharding": "fsdp"}, "torchtitan", marks=pytest.mark.slow),
        (LLAMA, {**PIPELINE, "schedule": "1f1b", "offload": "activations"}, "none"),
        pytest.param(MOE, {**REPLICAS, "ep": 4}, "megatron-core", marks=pytest.mark.slow),
    ],
)
def test_another_batch_needs_no_new_programs(
    model: str, layout: dict[str, Any], software: str, written: list[int]
) -> None:
    assert_equal_to_fresh(model, layout, (16, 32, 24), software)
    assert 16 in written
    answer(model, layout, 16, software)
    written.clear()
    answer(model, layout, 48, software)
    assert written == []


def test_dualpipe_divides_the_micro_batches_by_their_number() -> None:
    assert_equal_to_fresh(LLAMA, {**PIPELINE, "schedule": "dualpipe"}, (16, 24, 32), "none")


def test_programs_do_not_depend_on_the_network(written: list[int]) -> None:
    fast = answer(LLAMA, REPLICAS, 64, "megatron-core")
    written.clear()
    slow = answer(LLAMA, REPLICAS, 64, "megatron-core", more_nodes=1)
    assert written == []
    assert slow["step_time_s"] > fast["step_time_s"]


@pytest.mark.parametrize(
    "others",
    [({"recompute": "full"},), pytest.param(({"recompute": "full"}, {"micro_batch": 2}), marks=pytest.mark.slow)],
)
def test_other_inputs_need_other_programs(others: tuple[dict[str, Any], ...], written: list[int]) -> None:
    for software in ("megatron-core", "torchtitan"):
        for fields in ({}, *others):
            before = len(written)
            answer(LLAMA, {**REPLICAS, **fields}, 16, software)
            assert len(written) > before


def test_the_kept_programs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(LLAMA, REPLICAS, 16, "megatron-core")
    (first,) = kept_programs._kept
    monkeypatch.setattr(kept_programs, "MAX_STEPS", kept_programs._kept[first].num_steps + 1)
    answer(LLAMA, {**REPLICAS, "recompute": "full"}, 16, "megatron-core")
    assert first not in kept_programs._kept
    assert sum(job.num_steps for job in kept_programs._kept.values()) <= kept_programs.MAX_STEPS


@pytest.mark.slow
def test_random_jobs_are_equal_to_fresh_ones() -> None:
    rng, found = Random(7), 0
    profiles = ("none", "megatron-core", "torchtitan", "pytorch-eager", "nanotron-2024", "megatron-core-0.6")
    while found < 25:
        pp, dp = rng.choice((1, 2, 4)), rng.choice((1, 2, 4))
        layout: dict[str, Any] = {
            "dp": dp, "pp": pp, "tp": rng.choice((1, 2)), "cp": rng.choice((1, 1, 2)),
            "micro_batch": rng.choice((1, 2)), "recompute": rng.choice(("none", "full", "selective")),
            "offload": rng.choice(("none", "none", "optimizer", "activations")), "steps": rng.choice((1, 1, 2)),
            "overlap": rng.choice((None, None, "none", "ideal")),
        }  # fmt: skip
        if dp > 1:
            layout["sharding"] = rng.choice(("none", "zero1", "zero2", "zero3", "fsdp"))
        if pp > 1:
            layout["schedule"] = rng.choice(("1f1b", "gpipe", "zb-h1", "interleaved", "dualpipe"))
            layout["virtual_stages"] = 2 if layout["schedule"] == "interleaved" and pp == 2 else 1
        try:
            assert_equal_to_fresh(rng.choice((LLAMA, MOE)), layout, (24, 48, 32), rng.choice(profiles))
        except TrineError:
            continue
        found += 1
