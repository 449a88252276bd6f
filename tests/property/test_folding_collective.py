"""Is a collective by itself, folded, what all of its messages give: ends of ranks and bytes on links?"""

from __future__ import annotations

from fractions import Fraction
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trine
from trine.cluster import Cluster, build_topology, load_cluster
from trine.cluster.select import slow_down
from trine.collectives.query import collective
from trine.collectives.registry import known_algorithms, make_schedule
from trine.collectives.run import DomainSteps, run_schedule
from trine.errors import InputError, SimulationError, TrineError
from trine.folding import collective as folded
from trine.folding.collective import run_both, run_folded

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")


def random_cluster(rng: Random) -> Cluster:
    kind = rng.choice(("ring", "switch", "full", "torus:3x4", "dgx", "dgx", "dgx"))
    if kind == "dgx":
        fabric = rng.choice((None, "switch", "clos", "rail"))
        return load_cluster(rng.choice(("dgx-h100", "dgx-a100")), nodes=rng.choice((2, 3, 4)), fabric=fabric)
    return build_topology(kind, "65 GB/s", "1 us", 12)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_folded_is_unfolded(seed: int) -> None:
    rng = Random(seed)
    cluster = random_cluster(rng)
    group = list(cluster.gpus)
    if rng.random() < 0.3:
        rng.shuffle(group)
    if rng.random() < 0.2:
        cluster = slow_down(cluster, [(cluster.links[rng.randrange(len(cluster.links))].name, 0.5)])
    op = rng.choice(KINDS)
    size = 0 if op == "barrier" else rng.choice((1, 1000, 1 << 20, 123_456_789))
    schedule = make_schedule(op, len(group), size, rng.choice(known_algorithms(op)))
    steps = rng.choice((0, 7_000_000, DomainSteps(cluster, 1_000_000, 3_500_000)))
    how = {
        "network": rng.choice(("fair", "equal", "fifo")), "step_ps": steps, "byte_factor": Fraction(128, 120),
        "reducing_switches": (),
    }  # fmt: skip
    if schedule.num_switches:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folded, "FEW_MESSAGES", 0)
        run_both(schedule, cluster, group, **how)


def test_a_difference_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = build_topology("ring", "65 GB/s", "1 us", 8)
    schedule = make_schedule("all_reduce", 8, 1 << 20, "ring")
    how = {"network": "fair", "step_ps": 0, "byte_factor": Fraction(1), "reducing_switches": ()}
    monkeypatch.setattr(folded, "FEW_MESSAGES", 0)
    monkeypatch.setattr(folded, "link_bytes", lambda *_: np.zeros(len(cluster.links), np.int64))
    with pytest.raises(SimulationError, match="differ in link_bytes"):
        run_both(schedule, cluster, cluster.gpus, **how)


def test_a_large_ring_is_one_class_and_small_ones_are_not_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    run = folded.Folder.run

    def counted(self: folded.Folder) -> object:
        done = run(self)
        ran.append(sum(stage.num_tasks for stage in done.stages))
        return done

    monkeypatch.setattr(folded.Folder, "run", counted)
    for num_ranks in (8, 128):
        cluster = build_topology("ring", "65 GB/s", "1 us", num_ranks)
        answer = collective("all_reduce", [1 << 30], cluster, network="fair")
        assert answer.rows[0].parts[-1].why == f"{2 * num_ranks * (num_ranks - 1)} messages on the links"
    assert ran == [2 * 127 + 2]  # of one rank, with its entry and its end


def test_the_answer_is_the_same_in_all_three_ways() -> None:
    cluster = load_cluster("dgx-h100", nodes=16)
    ways = [
        collective("all_reduce", [1 << 20, 1 << 26], cluster, network="fair", fold=fold)
        for fold in ("on", "off", "verify")
    ]
    assert ways[0].document() == ways[1].document() == ways[2].document()
    assert trine.collective is collective


def test_folding_that_makes_no_difference_is_refused() -> None:
    with pytest.raises(InputError, match="every message"):
        collective("all_reduce", [1 << 20], "dgx-h100", fold="off")
    with pytest.raises(InputError, match="unknown folding"):
        collective("all_reduce", [1 << 20], "dgx-h100", network="fair", fold="of")


def test_what_cannot_be_routed_says_so_as_ever() -> None:
    ring = build_topology("ring", "65 GB/s", "1 us", 4)
    schedule = make_schedule("all_reduce", 4, 1 << 20, "ring")
    how = {"network": "fair", "step_ps": 0, "byte_factor": Fraction(1), "reducing_switches": ()}
    with pytest.raises(TrineError, match="twice"):
        run_folded(schedule, ring, [0, 1, 2, 2], **how)  # type: ignore[arg-type]
    with pytest.raises(TrineError, match="twice"):
        run_schedule(schedule, ring, [0, 1, 2, 2])
