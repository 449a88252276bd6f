"""Are numbers that no run can have, and options that cannot be, refused in words?"""

from __future__ import annotations

from dataclasses import replace

import pytest

import trine
from trine.decentralised.protocol import worker_graph
from trine.errors import InputError, PlanError, SpecError
from trine.parallel.stragglers import Stragglers
from trine.training.ensemble import EnsembleResult
from trine.workload.synthesis.model_files import load_model

DENSENET = "family: densenet\nblocks: {blocks}\ngrowth: 32\ninitial: 64\n"


def test_a_workload_larger_than_a_run_is_refused() -> None:
    large = trine.synthesize("llama-3.2-1b", layers=1, batch=10**6, sequence=2**24)
    with pytest.raises(PlanError, match="PiB at a batch of 1000000 is more than any GPU holds"):
        trine.simulate(large, trine.Plan())
    usual = trine.load("vgg13-h100-b128")
    first = replace(usual.operators[0], gpu_time_ps=10**19)
    long = replace(usual, operators=(first, *usual.operators[1:]))
    with pytest.raises(PlanError, match=f"operator '{first.layer}' takes 1e\\+07 s, more than a run may last"):
        trine.simulate(long, trine.Plan())


@pytest.mark.parametrize("blocks", ["[6, 12, 24, 16, 2]", "[6, 501]"])
def test_more_dense_blocks_or_layers_than_can_be_are_refused(tmp_path, blocks: str) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(DENSENET.format(blocks=blocks))
    with pytest.raises(SpecError, match="blocks"):
        load_model(path)


def test_algorithms_of_collectives() -> None:
    cluster = trine.build_topology("ring", "50 GB/s", "1 us", 2)
    plan = {"dp": 2, "buffers": "none"}
    with pytest.raises(InputError, match="unknown collective 'all_redoce'; did you mean 'all_reduce'"):
        trine.simulate("resnet50-h100-b128", trine.Plan(**plan, algorithm=(("all_redoce", "ring"),)), cluster=cluster)
    with pytest.raises(InputError, match="all_gather has no algorithm 'rign'; did you mean 'ring'"):
        trine.simulate("resnet50-h100-b128", trine.Plan(**plan, algorithm=(("all_gather", "rign"),)), cluster=cluster)
    with pytest.raises(PlanError, match="a collective twice"):
        trine.Plan(dp=2, algorithm=(("all_reduce", "ring"), ("all_reduce", "tree")))
    pairs = (("all_reduce", "ring"), ("all_gather", "ring"))
    with pytest.raises(PlanError, match="algorithm all_gather=ring cannot matter: the job has no all_gather"):
        trine.simulate("resnet50-h100-b128", trine.Plan(**plan, algorithm=pairs), cluster=cluster)


def test_a_full_graph_of_workers_is_bounded() -> None:
    with pytest.raises(PlanError, match="2048 workers at most"):
        worker_graph("full", 65536)


@pytest.mark.parametrize(("seed", "slow"), [(1.5, ()), (True, ()), (0, ((1.0, 2.0),))])
def test_seeds_and_ranks_are_whole_numbers(seed: object, slow: tuple[tuple[object, float], ...]) -> None:
    with pytest.raises(InputError, match="whole number"):
        Stragglers(slow=((3, 1.5), *slow), seed=seed)  # type: ignore[arg-type]


def test_times_that_differ_by_a_picosecond_have_a_histogram() -> None:
    day = 86_400 * 10**12
    runs = EnsembleResult(seeds=(0, 1, 2), times_ps=(100 * day, 100 * day + 1, 100 * day + 1))
    assert [line.split()[-1].count("#") for line in runs.summary().splitlines()[2:] if "#" in line] == [20, 40]
