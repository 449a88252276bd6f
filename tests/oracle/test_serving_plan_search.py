"""Do the searches of plan and size find what an exhaustive search by ``trine.infer`` finds?"""

from __future__ import annotations

import math

import pytest
from serving_brute_force import LENGTHS, all_points

import trine
from trine.inference.point_search import FRONT_MARGIN

SPACES = [
    ("llama-3-8b", "dgx-h100", "vllm", "bf16", 4),
    ("llama-3-8b", "dgx-h100", "sglang", "fp8", 2),
    ("qwen3-30b-a3b", "hgx-h200", "vllm", "fp8", 2),
]
LIMITS = [(None, None), (None, 0.012), (0.2, None), (0.12, 0.01)]


def ask(space, gpus, **limits):
    model, cluster, engine, precision, _ = space
    return trine.plan_serving(model, cluster, gpus, engine=engine, precision=precision, **LENGTHS, **limits)


def layout_of(point):
    layout = point.answer.job.layout
    return layout.tp, layout.pp, layout.ep, layout.attention_dp


def meeting(space, ttft_s, tpot_s):
    return [
        point
        for point in all_points(*space)
        if point.ttft_s <= (ttft_s or math.inf) and point.tpot_s <= (tpot_s or math.inf)
    ]


@pytest.mark.parametrize("space", SPACES, ids=lambda space: f"{space[0]}-{space[2]}")
@pytest.mark.parametrize(("ttft", "tpot"), LIMITS)
def test_the_first_layout_is_the_best_of_all(space, ttft, tpot):
    gpus = space[-1]
    found = ask(space, gpus, ttft=ttft, tpot=tpot)
    best = max(meeting(space, ttft, tpot), key=lambda point: point.rate / point.gpus)
    # The last load of a layout fills it, and is in no octave of the exhaustive search.
    assert found.best.per_gpu >= best.rate / best.gpus * (1 - 1e-12)
    if found.best.answer.job.concurrency in {point.requests for point in meeting(space, ttft, tpot)}:
        assert found.best.per_gpu == pytest.approx(best.rate / best.gpus, rel=1e-12)
        assert layout_of(found.best) == best.layout


@pytest.mark.parametrize("space", SPACES, ids=lambda space: f"{space[0]}-{space[2]}")
def test_no_point_of_all_is_clearly_above_the_front(space):
    found = ask(space, space[-1])
    front = [(each.per_user, each.per_gpu) for each in found.front]
    for point in all_points(*space):
        user, gpu = 1 / point.tpot_s, point.rate / point.gpus
        assert any(u * FRONT_MARGIN >= user and g * FRONT_MARGIN >= gpu for u, g in front), point


@pytest.mark.parametrize(("rate", "tpot"), [(3.0, None), (40.0, 0.012), (300.0, 0.02)])
def test_the_size_is_the_smallest_of_all(rate, tpot):
    space = ("llama-3-8b", "dgx-h100", "vllm", "bf16", 4)
    found = trine.size_serving(
        space[0], space[1], rate, max_gpus=10_000, engine=space[2], precision=space[3], tpot=tpot, **LENGTHS
    )
    needed = rate / 0.8 * LENGTHS["output_tokens"]
    counts = [point.gpus * math.ceil(needed / point.rate) for point in meeting(space, None, tpot)]
    machine = found.machines[0]
    assert machine.num_gpus <= min(counts)
    one_copy = machine.requests_per_s / machine.point.copies
    assert machine.requests_per_s >= rate / 0.8 > machine.requests_per_s - one_copy
    if machine.num_gpus < min(counts):  # a load that fills the layout, or a copy of 8 GPUs or more
        loads = {point.requests for point in all_points(*space)}
        assert machine.point.answer.job.concurrency not in loads or machine.point.answer.gpus > space[-1]
