"""Is a run of few steps that repeat equal to the run of all, to the picosecond?"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from folded_cases import Case, chain, joined, random_case
from long_tests import enough_repeat, long

import trine
from trine.cluster import load_cluster
from trine.errors import TrineError
from trine.folding.steps import first_step_counts
from trine.parallel.stragglers import parse_jitter
from trine.results import Result
from trine.results.repeats import Repeat, RepeatedSteps
from trine.software.profile import known_software

#: Seeds whose steps repeat.
SEEDS = (0, 1, 4, 5, 10, 11, 12, 13, 14, 18, 21, 22, 23, 24, 25, 26, 28, 30, 33, 36, 43, 49, 61, 71, 83)
#: Keys that tell how the run was simulated.
HOW = ("folding", "repeats", "repeated_steps", "simulator")
NOT_WITH_LOCAL_SGD = ("bucket_bytes", "shard_ways", "reshard", "dp_overlap")
LAYOUTS_OF_PROFILES = (
    {"dp": 2, "sharding": "fsdp"},
    {"dp": 4, "sharding": "zero1"},
    {"dp": 4, "sharding": "zero1", "prefetch": 1},
    {"dp": 2, "tp": 2},
    {"dp": 2, "offload": "optimizer"},
    {"pp": 2, "dp": 2, "schedule": "1f1b"},
)


def many_steps(seed: int) -> Case | None:
    """Return a random job of at most 16 ranks with 6 to 12 steps; None if its layout cannot run."""
    rng = Random(seed)
    if rng.random() < 0.3:
        return with_launches(rng)
    case = random_case(seed, 16)
    fields: dict[str, Any] = {"steps": rng.randint(6, 12), "algorithm": ()}
    if rng.random() < 0.2:
        fields |= {"batch": 32, "micro_batch": 1}
    if rng.random() < 0.2:
        fields["offload"] = "activations"
    if rng.random() < 0.3:
        fields |= {"steps": 12, "sync_every": rng.choice((2, 3)), "sharding": "none", "prefetch": None}
        fields |= {name: trine.Plan.__dataclass_fields__[name].default for name in NOT_WITH_LOCAL_SGD}
    try:
        return replace(case, plan=replace(case.plan, **fields))
    except TrineError:
        return None


def with_launches(rng: Random) -> Case:
    """Return a transformer with the launching thread of a random software profile."""
    sequence, micro_batches = rng.choice((64, 2048)), rng.choice((1, 2, 32))
    workload = trine.load(f"model:llama-3-8b,layers=4,sequence={sequence},gpu=h100-sxm")
    plan = trine.Plan(
        steps=rng.randint(6, 12), batch=micro_batches, micro_batch=1,
        **rng.choice(LAYOUTS_OF_PROFILES),  # type: ignore[arg-type]
    )  # fmt: skip
    cluster = load_cluster("dgx-h100", gpus=plan.num_ranks)
    return Case(workload=workload, plan=plan, cluster=cluster, settings={"software": rng.choice(known_software())})


def answer(result: Result) -> dict[str, Any]:
    """Return the document without its sentences about folding."""
    document = {key: value for key, value in result.document().items() if key not in HOW}
    document["evidence"] = [row for row in document["evidence"] if row["what"] not in ("steps", "micro-batches")]
    document["warnings"] = [text for text in document["warnings"] if not text.startswith("trine simulated every rank")]
    return document


def assert_same(few: Result, every: Result) -> None:
    assert every.repeated_steps is None
    assert few.step_ends_ps.tolist() == every.step_ends_ps.tolist()
    for name in ("step_time_ps", "end_time_ps", "num_steps", "memory_peak_bytes"):
        assert getattr(few, name) == getattr(every, name), name
    if few.shown_ranks == every.shown_ranks:
        assert answer(few) == answer(every)


def compare(seed: int) -> bool:
    """Compare one random job; return whether few of its steps stood for all."""
    case = many_steps(seed)
    try:
        few = None if case is None else case.run()
    except TrineError:
        return False
    if case is None or few is None or few.repeated_steps is None:
        return False
    assert few.repeated_steps.steps == case.plan.steps == few.num_steps
    assert_same(few, case.run(fold="exact"))
    return True


@pytest.mark.parametrize("seed", SEEDS)
def test_random_jobs_are_equal_folded_and_unfolded(seed: int) -> None:
    assert compare(seed)


@pytest.mark.slow
@pytest.mark.parametrize("wanted", [30, pytest.param(500, marks=long)])
def test_many_random_jobs_that_repeat_are_equal(wanted: int) -> None:
    enough_repeat(compare, wanted)


LAYOUTS = [
    {},
    {"dp": 2, "inputs": "prefetch"},
    {"dp": 4, "sharding": "zero1", "prefetch": 1},
    {"dp": 4, "sharding": "fsdp"},
    {"dp": 4, "sync_every": 3},
    {"dp": 4, "data": "dp"},
    {"dp": 2, "offload": "optimizer"},
    {"dp": 2, "replica_batches": (8, 4)},
    {"dp": 2, "pp": 2, "schedule": "1f1b", "batch": 32, "micro_batch": 1},
    {"dp": 2, "pp": 2, "schedule": "gpipe", "batch": 32, "micro_batch": 1, "sharding": "zero1"},
    {"pp": 4, "schedule": "zb-h1", "batch": 8, "micro_batch": 1, "offload": "activations"},
]


@pytest.mark.parametrize("fields", LAYOUTS, ids=str)
def test_every_task_is_equal(fields: dict[str, Any]) -> None:
    """``verify`` compares task by task and raises for a difference; a slow rank makes the ranks differ."""
    plan = trine.Plan(steps=15, **fields)
    settings: dict[str, Any] = {"cluster": load_cluster("dgx-h100", gpus=plan.num_ranks), "gpu": "h100-sxm"}
    if plan.num_ranks > 1 and plan.offload != "activations":
        settings["stragglers"] = trine.Stragglers(slow=((1, 1.3),))
    few = trine.simulate(chain(8), plan, fold="verify", **settings)
    assert few.repeated_steps is not None
    assert "equal to the picosecond in a run of all steps" in few.repeated_steps.verified
    assert_same(few, trine.simulate(chain(8), plan, fold="exact", **settings))


def test_results_of_some_ranks_are_equal() -> None:
    """Of 128 ranks the answer shows few; their classes split in the first step."""
    plan, cluster = (
        trine.Plan(dp=32, pp=4, batch=8, micro_batch=1, schedule="1f1b", steps=9),
        joined("dgx-h100", 16, "rail"),
    )
    settings: dict[str, Any] = {"cpu": False, "stragglers": trine.Stragglers(slow=((5, 1.3),))}
    few, every = (trine.simulate(chain(8), plan, cluster=cluster, fold=fold, **settings) for fold in ("on", "exact"))
    assert few.repeated_steps is not None
    assert len(few.shown_ranks) < few.num_ranks
    assert few.shown_ranks == every.shown_ranks
    assert_same(few, every)
    assert_same(few.rank(5), every.rank(5))


def test_records_are_those_of_the_first_and_the_last_steps() -> None:
    plan = trine.Plan(dp=2, steps=9, sharding="fsdp", batch=32, micro_batch=1)
    settings: dict[str, Any] = {"cluster": load_cluster("dgx-h100", gpus=2), "gpu": "h100-sxm"}
    few, every = (trine.simulate(chain(8), plan, fold=fold, **settings).record_table for fold in ("on", "off"))
    columns = ("rank", "kind", "operator", "microbatch", "step", "start_ps", "end_ps")

    def rows(table: Any) -> set[tuple[int, ...]]:
        return set(zip(*(table.columns[name].tolist() for name in columns), strict=True))

    assert rows(few) < rows(every)
    assert set(np.unique(few.columns["step"]).tolist()) == {0, 1, 8}


def test_the_cost_does_not_grow_with_the_steps() -> None:
    cluster = load_cluster("dgx-h100", gpus=4)
    plans = [trine.Plan(dp=4, steps=steps) for steps in (6, 100_000)]
    few, many = (trine.simulate(chain(8), plan, cluster=cluster, gpu="h100-sxm") for plan in plans)
    assert few.simulator.events == many.simulator.events
    assert few.step_time_ps == many.step_time_ps
    assert len(many.step_ends_ps) == 100_000
    assert many.end_time_ps - few.end_time_ps == (100_000 - 6) * many.step_time_ps
    assert "left out: 99,997 steps (34.41 s) at " in many.left_out_words
    assert "step 100000 of 100000" in many.summary()
    timeline = b"".join(many.timeline().packets)
    assert b"left out: 99,997 steps" in timeline
    assert many.rank(2).step_ends_ps.tolist() == many.step_ends_ps.tolist()
    assert many.excerpt.end_time_ps == 3 * many.step_time_ps + (few.step_ends_ps[0] - few.step_time_ps)


def test_steps_that_do_not_repeat_are_simulated_with_the_reason() -> None:
    cluster, plan = load_cluster("dgx-h100", gpus=4), trine.Plan(dp=4, steps=8)
    jitter = trine.Stragglers(jitter=parse_jitter("normal:5%"))
    for settings, reason in (
        ({"stragglers": jitter}, "jitter makes every operator different"),
        ({"network": "fifo"}, "has a state besides its flows"),
        ({"launch_cost_ps": 10**5}, "the launching thread never waits for the GPU"),
    ):
        result = trine.simulate(chain(8), plan, cluster=cluster, gpu="h100-sxm", **settings)  # type: ignore[arg-type]
        (row,) = [row for row in result.evidence if row.what == "steps"]
        assert row.detail.startswith("all are simulated: ")
        assert reason in row.detail
        assert result.repeated_steps is None
        assert result.num_steps == 8


@pytest.mark.parametrize(
    ("fields", "counts"),
    [
        ({"steps": 3}, ()),
        ({"steps": 6}, (3,)),
        ({"steps": 24, "pp": 4, "schedule": "1f1b"}, (4, 6)),
        ({"steps": 24, "dp": 2, "sync_every": 4}, (12,)),
        ({"steps": 24}, (3, 5, 10)),
        ({"steps": 10**7}, ()),
    ],
)
def test_numbers_of_steps_to_try(fields: dict[str, Any], counts: tuple[int, ...]) -> None:
    assert first_step_counts(trine.Plan(**fields)) == counts


def test_ends_of_repeated_steps() -> None:
    steps = RepeatedSteps(windows=(Repeat(10, 17, frozenset()),), count=3, steps=6, simulated=3)
    assert (steps.period, steps.period_ps, steps.skipped_ps) == (1, 7, 21)
    assert steps.step_ends(np.array([9, 16, 23])).tolist() == [9, 16, 23, 30, 37, 44]
    assert steps.step_ends(np.array([11, 18, 24])).tolist() == [11, 18, 25, 32, 39, 45]
    assert steps.shown_step(np.array([0, 1, 2, -1]), np.array([0, 10, 17, 17])).tolist() == [0, 1, 5, -1]
    rounds = RepeatedSteps(windows=(Repeat(10, 30, frozenset()),), count=2, steps=8, simulated=4)
    assert rounds.period == 2
    assert rounds.step_ends(np.array([8, 11, 28, 31])).tolist() == [8, 11, 28, 31, 48, 51, 68, 71]
