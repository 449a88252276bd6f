"""Does --verify-fold find errors of folded and of unfolded runs? They share storage only: each is broken on purpose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from folded_cases import US, chain

import trine
from trine.cluster import Cluster, build_topology
from trine.cluster.select import slow_down
from trine.collectives.local import LocalStructures
from trine.errors import SimulationError
from trine.folding import extract, quotient
from trine.graph.assembler import GraphAssembler
from trine.graph.grid import RankGrid
from trine.parallel import instantiate
from trine.parallel.plan import Plan

Break = Callable[[pytest.MonkeyPatch], None]


def machine() -> Cluster:
    """Return eight GPUs on a ring with one slow link: times depend on a rank's peers and links."""
    cluster = build_topology("ring", 10**9, US, 8)
    return slow_down(cluster, [(cluster.link_names[0], 0.5)])


PIPELINE = Plan(dp=4, pp=2, batch=8, micro_batch=1, schedule="1f1b", inputs="none")


def verify_strided() -> None:
    """Verify one class of ranks with the next rank three GPUs away: each link carries three of its messages."""
    plan = Plan(dp=8, batch=8, inputs="none", algorithm=(("all_reduce", "ring"),))
    verify(plan, build_topology("ring", 10**9, US, 8), placement=[0, 3, 6, 1, 4, 7, 2, 5])


def verify(plan: Plan, cluster: Cluster, **settings: Any) -> None:
    trine.simulate(chain(4), plan, cluster=cluster, fold="verify", cpu=False, **settings)


def swapped_unfolded(patch: pytest.MonkeyPatch) -> None:
    groups = RankGrid.groups

    def two_swapped(self: RankGrid, axis: str) -> list[tuple[int, ...]]:
        return [(group[1], group[0], *group[2:]) for group in groups(self, axis)]

    patch.setattr(RankGrid, "groups", two_swapped)  # folding uses members and offsets


def swapped_folded(patch: pytest.MonkeyPatch) -> None:
    peers_of = LocalStructures.peers_of

    def next_but_one(self: LocalStructures, positions: Any) -> np.ndarray:
        return np.asarray((peers_of(self, positions) + 1) % len(self.structure_of), np.int32)

    patch.setattr(LocalStructures, "peers_of", next_but_one)


def multiplicity_folded(patch: pytest.MonkeyPatch) -> None:
    route = GraphAssembler.route

    def once(self: GraphAssembler, links: Sequence[int], latency_ps: int, *, counts: Any = (), **others: Any) -> int:
        return route(self, links, latency_ps, counts=(1,) * len(counts), **others)

    patch.setattr(quotient.GraphAssembler, "route", once)


def multiplicity_unfolded(patch: pytest.MonkeyPatch) -> None:
    append = instantiate.append_transfers

    def twice(assembler: Any, *args: Any, **labels: Any) -> None:
        append(assembler, *args, **labels)
        append(assembler, *args, **labels)

    patch.setattr(instantiate, "append_transfers", twice)


def no_wait_unfolded(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(instantiate._Instantiation, "_received", lambda self, sent: None)


def no_wait_folded(patch: pytest.MonkeyPatch) -> None:
    add = extract._EdgeList.add

    def but_messages(self: Any, task: Any, role: Any, what: int, key: Any, number: Any = 0) -> None:
        if what != extract.MESSAGE:
            add(self, task, role, what, key, number)

    patch.setattr(extract._EdgeList, "add", but_messages)


def test_nothing_broken() -> None:
    verify(PIPELINE, machine())
    verify_strided()


@pytest.mark.parametrize(
    "broken", [swapped_unfolded, swapped_folded, multiplicity_unfolded, no_wait_unfolded, no_wait_folded]
)
def test_what_one_side_gets_wrong_is_seen(broken: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    with pytest.raises(SimulationError, match="folded and unfolded runs differ"):
        verify(PIPELINE, machine())


def test_a_wrong_multiplicity_of_the_folded_run_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    multiplicity_folded(monkeypatch)
    with pytest.raises(SimulationError, match="folded and unfolded runs differ"):
        verify_strided()
