"""Do collectives in a training step with load-store costs take their time at the load-store level?"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from synthetic import MS, Chain

import trine
from trine.cluster import build_topology, load_cluster
from trine.cluster.select import slow_down
from trine.collectives import make_schedule
from trine.collectives.run import run_schedule
from trine.errors import InputError
from trine.gpu.collective import LoadStoreCosts, LoadStoreOptions, loadstore_collective
from trine.gpu.collective.durations import MOST, STEPS, around, duration_ps
from trine.gpu.kernels.build import build_kernel
from trine.gpu.model.files import gpu_model_of
from trine.gpu.run import run_gpus
from trine.parallel.plan import Plan

SMALL = LoadStoreOptions(workgroups=4, wavefronts=2)
#: Compute time of the chain below, beside its collective.
COMPUTE_PS = 7 * MS
KINDS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")


@cache
def machine(gpus: int = 4):
    return load_cluster("dgx-h100", gpus=gpus)


def step(weight_bytes: int, costs, cluster, ranks: int = 4, fold: str = "on", **how):
    """Simulate a training step of one layer, whose only collective is the all-reduce of its gradient."""
    chain = Chain([2 * MS], [4 * MS], [weight_bytes], optimizer_ps=MS)
    plan = Plan(dp=ranks, inputs="none", first_bucket_bytes=10**12, bucket_bytes=10**12)
    return trine.simulate(
        chain.workload(),
        plan,
        cluster=cluster,
        trace_gpu=cluster.devices[cluster.gpus[0]].gpu,
        collective_costs=costs,
        cpu=False,
        fold=fold,
        compute="recorded",
        **how,
    )


@pytest.mark.parametrize("fold", ["on", "off"])
@pytest.mark.parametrize("size", [1 << 12, 3 << 16])
def test_a_step_takes_the_load_store_duration_of_its_only_collective(size: int, fold: str) -> None:
    cluster = machine()
    alone_ps = loadstore_collective("all_reduce", [size], cluster, options=SMALL).times_ps[0]
    result = step(size, LoadStoreCosts(cluster, SMALL), cluster, fold=fold)
    assert abs(result.step_time_ps - COMPUTE_PS - alone_ps) <= 1  # a picosecond for each step but the first
    (said,) = (row for row in result.evidence if row.what == "communication time")
    assert said.kind == "modelled"
    assert "all_reduce by GPU programs" in said.detail


def test_and_that_is_what_the_built_program_takes() -> None:
    cluster, size = machine(), 1 << 16
    model = gpu_model_of(cluster, cluster.gpus)
    times = []
    for name in ("oneshot", "twoshot"):
        program = build_kernel("all_reduce", 4, size, algorithm=name, workgroups=4, wavefronts=2)
        times.append(run_gpus(program, cluster, cluster.gpus, model).end_ps)
    found = LoadStoreCosts(cluster, replace(SMALL, bookkeeping="none")).duration("all_reduce", size, (0, 1, 2, 3))
    assert found == (min(times), ("oneshot", "twoshot")[times.index(min(times))])


@pytest.mark.parametrize(
    ("kind", "name"),
    [*((kind, "dgx-h100") for kind in KINDS), ("all_reduce", "mi300x-node"), ("all_gather", "astra3-generic")],
)
def test_alone_a_schedule_with_these_costs_takes_the_duration(kind: str, name: str) -> None:
    cluster = load_cluster(name, gpus=4)
    costs = LoadStoreCosts(cluster, SMALL)
    for size in (1 << 10, 1 << 16):
        algorithm, step_ps = costs(kind, size, (0, 1, 2, 3), None)
        found = costs.duration(kind, size, (0, 1, 2, 3))
        assert found is not None
        schedule = make_schedule(kind, 4, size, algorithm)
        alone_ps = run_schedule(schedule, cluster, cluster.gpus, step_ps=step_ps).end_ps
        assert costs.slowest_ratio <= 1, "the bare links must not be what decides, or nothing is tested"
        assert 0 <= found[0] - alone_ps <= 1


def test_the_ring_asked_for_is_the_ring_that_is_run() -> None:
    costs = LoadStoreCosts(machine(), SMALL)
    assert costs("all_gather", 1 << 16, (0, 1, 2, 3), "ring")[0] == "ring"
    options = LoadStoreOptions(algorithm="ring", workgroups=4, wavefronts=2)
    ring = loadstore_collective("all_gather", [1 << 16], machine(), options=options)
    assert costs.duration("all_gather", 1 << 16, (0, 1, 2, 3), "ring") == (ring.times_ps[0], "ring")


def test_between_sizes_of_the_grid_it_is_a_line_and_beyond_it_goes_on() -> None:
    def at(size: int) -> int:
        return 1000 + 3 * size

    for size in (16, 17, 1000, 4097, MOST - 1, MOST, MOST + 1, 1 << 30):
        low, high = around(size)
        assert low <= size or size < 16
        assert high - low <= low
        assert duration_ps(size, at) == 1000 + 3 * size, "a line is met everywhere"
    points = {around(size)[0] for size in range(1 << 10, 1 << 11)}
    assert len(points) == STEPS
    assert duration_ps(3, at) == at(16)


def test_what_is_interpolated_is_near_what_is_run() -> None:
    costs = LoadStoreCosts(machine(), SMALL)
    for size in (30_000, 300_000):
        found = costs.duration("all_gather", size, (0, 1, 2, 3))
        assert found is not None
        (run_ps,) = loadstore_collective("all_gather", [size], machine(), options=SMALL).times_ps
        assert found[0] == pytest.approx(run_ps, rel=0.02)


def test_what_is_kept_is_used_and_is_the_same(tmp_path: Path) -> None:
    first, again = (LoadStoreCosts(machine(), SMALL, folder=tmp_path) for _ in range(2))
    ranks = (0, 1, 2, 3)
    want = [first(kind, 10_000, ranks, None) for kind in KINDS]
    assert first.durations.num_runs == 2 * len(KINDS)
    assert [again(kind, 10_000, ranks, None) for kind in KINDS] == want
    assert again.durations.num_runs == 0
    other = LoadStoreCosts(machine(), LoadStoreOptions(workgroups=8, wavefronts=2), folder=tmp_path)
    other("all_gather", 10_000, ranks, None)
    assert other.durations.num_runs == 2, "other workgroups are another key"
    slower = LoadStoreCosts(slow_down(machine(), [("gpu0->nvswitch", 0.5)]), SMALL, folder=tmp_path)
    slower("all_gather", 10_000, ranks, None)
    assert slower.durations.num_runs == 2, "another cluster is another key"


@pytest.mark.parametrize("damage", ["", "{", "[" * 100_000, '{"format": 1}', "rows", "negative", "key", "long"])
def test_a_damaged_file_is_named_not_used_and_written_anew(tmp_path: Path, damage: str) -> None:
    ranks = (0, 1, 2, 3)
    want = LoadStoreCosts(machine(), SMALL, folder=tmp_path)("all_gather", 4096, ranks, None)
    (path,) = tmp_path.iterdir()
    data = json.loads(path.read_text())
    if damage == "rows":
        damage = json.dumps({**data, "durations": [[4096, 1.5, "put"]]})
    elif damage == "negative":
        damage = json.dumps({**data, "durations": [[4096, -1, "put"]]})
    elif damage == "key":
        damage = json.dumps({**data, "key": {**data["key"], "cluster": "another"}})
    elif damage == "long":
        damage = json.dumps({**data, "durations": data["durations"] * 100_000})
    path.write_text(damage)
    costs = LoadStoreCosts(machine(), SMALL, folder=tmp_path)
    assert costs("all_gather", 4096, ranks, None) == want
    assert costs.durations.num_runs == 1
    assert any("damaged" in note for note in costs.notes)
    again = LoadStoreCosts(machine(), SMALL, folder=tmp_path)
    assert (again("all_gather", 4096, ranks, None), again.durations.num_runs, again.notes) == (want, 0, ())


def test_a_folder_that_cannot_be_written_is_said_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    costs = LoadStoreCosts(machine(), SMALL, folder=tmp_path / "file" / "folder")
    assert costs.duration("all_gather", 4096, (0, 1, 2, 3)) is not None
    assert any("not kept" in note for note in costs.notes)


def test_what_has_no_program_costs_what_the_library_costs_and_is_named() -> None:
    from trine.collectives.nccl.steps import StepCosts

    cluster = load_cluster("dgx-h100", nodes=2)
    costs, library = LoadStoreCosts(cluster, SMALL), StepCosts(cluster)
    for kind, ranks, word in (
        ("all_reduce", (0, 8), "scale-up"),
        ("broadcast", (0, 1, 2, 3), "no GPU program gives its costs"),
    ):
        assert costs(kind, 1 << 16, ranks, None) == library(kind, 1 << 16, ranks, None)
        assert any(kind in note and word in note and "library" in note for note in costs.notes)
    asked = costs("all_reduce", 1 << 16, (0, 1, 2, 3), "halving-doubling")
    assert asked == library("all_reduce", 1 << 16, (0, 1, 2, 3), "halving-doubling")
    assert any("halving-doubling" in note for note in costs.notes)
    with pytest.raises(InputError, match="changes nothing"):
        costs.check_used()
    bare = LoadStoreCosts(load_cluster("astra3-generic", gpus=4), SMALL)
    assert bare("broadcast", 1 << 16, (0, 1, 2, 3), None) == (None, 0)
    assert any("costs its link time only" in note for note in bare.notes)


def test_groups_alike_are_run_once() -> None:
    cluster = load_cluster("dgx-h100", nodes=2)
    costs = LoadStoreCosts(cluster, SMALL)
    answers = {costs("all_gather", 1 << 14, tuple(range(first, first + 4)), None) for first in (0, 8)}
    assert len(answers) == 1
    assert costs.durations.num_runs == 1


def test_a_job_in_which_it_cannot_matter_is_refused() -> None:
    cluster = load_cluster("dgx-h100", nodes=2)
    chain = Chain([2 * MS], [4 * MS], [4096], optimizer_ps=MS).workload()
    across = Plan(dp=2, inputs="none")
    with pytest.raises(InputError, match="scale-up"):
        trine.simulate(
            chain, across, cluster=cluster, collective_costs="loadstore", cpu=False, placement=[0, 8],
            trace_gpu="h100-sxm",
        )  # fmt: skip
    with pytest.raises(InputError, match="several GPUs"):
        trine.simulate(chain, collective_costs="loadstore", cpu=False)
    ring = build_topology("ring", "50 GB/s", "1 us", 4)
    with pytest.raises(InputError, match="gpu-model"):
        step(4096, "loadstore", ring)


def test_beside_compute_kernels_workgroups_are_what_a_collective_keeps() -> None:
    costs = LoadStoreCosts(machine(), SMALL)
    (time,) = costs.predicted("all_reduce", 1 << 16, np.array([[0, 1, 2, 3]]))
    found = costs.duration("all_reduce", 1 << 16, (0, 1, 2, 3))
    assert found is not None
    assert (time.channels, time.evidence, time.time_ps) == (4, "modelled", found[0])
