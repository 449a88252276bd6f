"""Does an overlap option of tensor parallelism ever make a step slower?"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

import trine
from trine.graph.workload import Workload

MACHINES = {"h100-sxm": "dgx-h100", "a100-80gb": "dgx-a100", "b200": "hgx-b200", "gb200": "gb200-nvl72"}
#: Models and their longest sequences.
MODELS = {"gpt-2": 1024, "llama-2-7b": 4096, "llama-3-8b": 8192, "llama-3-70b": 8192, "gpt-3-175b": 2048}


def random_job(seed: int) -> tuple[Workload, trine.Plan, dict[str, Any], dict[str, Any]]:
    """Return two or four layers of a model, a plan, an overlap option and the options of the simulation."""
    rng = random.Random(seed)
    model, gpu = rng.choice(list(MODELS)), rng.choice(list(MACHINES))
    software = rng.choice(("megatron-core", "megatron-core", None))
    sequence = min(rng.choice((512, 1024, 2048, 4096, 8192)), MODELS[model])
    workload = trine.synthesize(
        model, gpu=gpu, layers=rng.choice((2, 4)), sequence=sequence, software=software
    )  # fmt: skip
    dp, micro_batch = rng.choice((1, 2)), rng.choice((1, 2, 4))
    plan = trine.Plan(
        tp=rng.choice((2, 4) if model == "gpt-2" else (2, 4, 8)), pp=rng.choice((1, 1, 2)), dp=dp,
        batch=micro_batch * rng.choice((1, 2, 4)), micro_batch=micro_batch, schedule="1f1b", sequence_parallel=True,
        sharding=rng.choice(("none", "zero1")) if dp > 1 else "none", recompute=rng.choice(("none", "full")),
        overlap=rng.choice(("modelled", "modelled", "ideal")),
    )  # fmt: skip
    plan = plan if plan.pp > 1 else replace(plan, schedule=None)
    option: dict[str, Any] = rng.choice(({"userbuffers": True}, {"userbuffers": True}, {"tp_overlap": 2 << seed % 3}))
    cluster = trine.load_cluster(MACHINES[gpu], gpus=plan.num_ranks)
    return workload, plan, option, {"cluster": cluster, "software": software or "none", "compare": False}


@pytest.mark.parametrize("seed", range(200))
def test_an_overlap_option_never_makes_a_step_slower(seed: int) -> None:
    workload, plan, overlap, options = random_job(seed)
    without = trine.simulate(workload, plan, **options).step_time_ps
    assert trine.simulate(workload, replace(plan, **overlap), **options).step_time_ps <= without
