"""Do the parts of both levels sum to the level's time, and does each part respond to its own cause only?"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from trine.cluster import load_cluster
from trine.cluster.select import slow_down
from trine.collectives.options import CollectiveOptions
from trine.collectives.query import collective
from trine.gpu.collective import LoadStoreOptions, compare_fidelity, loadstore_collective
from trine.gpu.collective.result import PARTS
from trine.gpu.collective.runs import LoadStoreRuns
from trine.gpu.collective.time_split import without_bandwidth, without_limits, without_work
from trine.gpu.collective.two_levels import shared_algorithm
from trine.gpu.kernels.build import build_kernel, has_kernel
from trine.gpu.model.files import gpu_model_of
from trine.gpu.run import run_gpus

PLAN = Path(__file__).parents[1] / "data" / "mscclpp" / "v2_HEAD_allreduce_allpairs_4gpu.json"
SMALL = LoadStoreOptions(workgroups=4, wavefronts=2)


@cache
def machine(name: str = "dgx-h100"):
    return load_cluster(name, gpus=4)


def parts(row):
    return {part.name: part for part in row.parts}


@pytest.mark.parametrize(
    ("op", "name", "network"),
    [
        ("all_reduce", "dgx-h100", None),
        ("reduce_scatter", "dgx-h100", "fair"),
        ("all_gather", "astra3-generic", "fair"),
        ("all_to_all", "astra3-generic", None),
    ],
)
def test_parts_sum_to_the_time_of_each_level(op: str, name: str, network: str | None) -> None:
    sizes = [512, 50_000]
    answer = compare_fidelity(op, sizes, machine(name), options=SMALL, network=network)
    operator = collective(op, sizes, machine(name), network=network)
    assert answer.finished
    for row, one in zip(answer.rows, operator.rows, strict=True):
        has_same = has_kernel(op, one.algorithm)  # else the fastest kernel, and a note
        options = replace(SMALL, algorithm=one.algorithm) if has_same else SMALL
        (other,) = loadstore_collective(op, [one.size_bytes], machine(name), options=options).rows
        assert (row.operator, row.loadstore.time_ps) == (one, other.time.time_ps)
        assert (row.loadstore.algorithm == one.algorithm) == has_same
        assert has_same or any(f"has no {one.algorithm}" in note for note in answer.notes)
        assert tuple(part.name for part in row.parts) == PARTS
        assert sum(part.operator_ps or 0 for part in row.parts) == one.time_ps
        assert sum(part.loadstore_ps or 0 for part in row.parts) == other.time.time_ps
        assert sum(part.difference_ps for part in row.parts) == other.time.time_ps - one.time_ps
        assert row.ratio == other.time.time_ps / one.time_ps
        assert all((part.loadstore_ps or 0) >= -other.time.time_ps // 20 for part in row.parts)


def test_a_time_is_that_of_the_engine() -> None:
    cluster, size = machine(), 1 << 18
    model = gpu_model_of(cluster, cluster.gpus)
    program = build_kernel("all_gather", 4, size, algorithm="get", workgroups=8, wavefronts=4)
    done = run_gpus(program, cluster, cluster.gpus, model)
    options = LoadStoreOptions(algorithm="get", workgroups=8, wavefronts=4, bookkeeping="none")
    (row,) = loadstore_collective("all_gather", [size], cluster, options=options).rows
    assert row.time.time_ps == done.end_ps
    assert row.time.busbw_bytes_per_s == pytest.approx(size * 0.75 * 1e12 / done.end_ps)


def test_the_launch_is_the_models_and_nothing_else_moves_with_it() -> None:
    found = parts(compare_fidelity("all_gather", [100_000], machine(), options=SMALL).rows[0])
    assert found["launch"].loadstore_ps == gpu_model_of(machine(), machine().gpus).launch_ps


def test_where_only_links_take_time_bytes_take_what_links_take() -> None:
    """A GPU sends 144 B per line that it puts and 16 B per line that it receives, for (N - 1) / N of the size."""
    asked = LoadStoreRuns("all_gather", machine(), None, LoadStoreOptions(algorithm="put", bookkeeping="none"))
    model = without_limits(without_work(without_bandwidth(asked.model)))
    first, second = (asked.run(asked.programs.program("put", size), model).end_ps for size in (2 << 20, 4 << 20))
    lines = 3 * (2 << 20) // 4 // 128
    assert second - first == pytest.approx(lines * (144 + 16) * 10**12 // (450 * 10**9), rel=0.001)


def test_slow_links_and_few_requests_show_in_their_own_part() -> None:
    cluster, size = machine(), 1 << 19
    usual = parts(compare_fidelity("all_gather", [size], cluster).rows[0])
    slow = slow_down(cluster, [(f"gpu{i}->nvswitch", 0.25) for i in range(4)])
    slower = parts(compare_fidelity("all_gather", [size], slow).rows[0])
    assert slower["links"].loadstore_ps > 3 * usual["links"].loadstore_ps
    assert slower["latency"].loadstore_ps < 1.1 * usual["latency"].loadstore_ps
    few = parts(
        compare_fidelity("all_gather", [size], cluster, options=LoadStoreOptions(max_outstanding=4, unroll=4)).rows[0]
    )
    assert few["links"].loadstore_ps == usual["links"].loadstore_ps
    assert few["requests"].loadstore_ps > 5 * usual["links"].loadstore_ps


def test_a_plan_is_asked_of_both_levels() -> None:
    options = LoadStoreOptions(algorithm=str(PLAN))
    known = CollectiveOptions(algorithm=shared_algorithm("all_reduce", str(PLAN)))
    (row,) = compare_fidelity("all_reduce", [1 << 16], machine(), options=options, operator=known).rows
    assert row.operator.algorithm == row.loadstore.algorithm == PLAN.name
    assert sum(part.operator_ps or 0 for part in row.parts) == row.operator.time_ps
    assert sum(part.loadstore_ps or 0 for part in row.parts) == row.loadstore.time_ps


def test_algorithms_that_only_one_level_has() -> None:
    assert shared_algorithm("all_reduce", "ring") == "ring"
    assert shared_algorithm("all_reduce", "twoshot") == "auto"
    assert shared_algorithm("all_reduce", "auto") == "auto"


def test_auto_takes_the_faster_and_leaves_out_only_what_is_slower() -> None:
    sizes, cluster = [512, 1 << 16, 2 << 20], machine()
    auto = loadstore_collective("all_reduce", sizes, cluster)
    every = {
        name: loadstore_collective("all_reduce", sizes, cluster, options=LoadStoreOptions(algorithm=name)).times_ps
        for name in ("oneshot", "twoshot")
    }
    for i, row in enumerate(auto.rows):
        assert row.time.time_ps == min(times[i] for times in every.values())
        tried = dict(row.tried)
        assert tried["twoshot"] == every["twoshot"][i]
        assert tried["oneshot"] in (None, every["oneshot"][i])
    assert dict(auto.rows[0].tried)["oneshot"] is not None
    assert dict(auto.rows[-1].tried)["oneshot"] is None, "or nothing is ever left out"
