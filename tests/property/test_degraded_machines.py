"""Is a degraded machine never faster, and does the order of nodes not matter?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from degraded import MACHINES, broken_by_messages, broken_laws, faster, later
from hypothesis import example, given, settings
from hypothesis import strategies as st

import trine
from trine.cluster import load_cluster
from trine.cluster.join import join_nodes
from trine.collectives.nccl import Collectives
from trine.collectives.nccl.predict import OPS, with_context
from trine.collectives.nccl.topology import slowed

NUMBER = st.integers(0, 1 << 16)


@pytest.mark.parametrize(("number", "link"), [(0, 0), (0, 1), (9, 2)])
def test_faults_make_nothing_faster(number: int, link: int) -> None:
    assert broken_laws(number, link, link + 4, 3, ("all_reduce", "send_recv")) == []


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(MACHINES) - 1), NUMBER, NUMBER, st.integers(0, 9))
@example(6, 0, 0, 2)  # a size at which the library switches moves with the bandwidth
def test_faults_make_nothing_faster_on_many_machines(number: int, link: int, other: int, severity: int) -> None:
    assert broken_laws(number, link, other, severity) == []


def test_faults_make_simulated_messages_no_faster_on_one_machine() -> None:
    assert broken_by_messages(0, 2, 3) == []


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(NUMBER, NUMBER, st.integers(0, 9))
def test_faults_make_no_simulated_messages_faster(number: int, link: int, severity: int) -> None:
    assert broken_by_messages(number, link, severity) == []


def test_the_answer_names_the_switch_of_paths() -> None:
    whole = trine.collective("all_reduce", "8K", "hgx-b300").rows[0]
    row = trine.collective("all_reduce", "8K", load_cluster("hgx-b300", links_down=["gpu0->nvswitch"])).rows[0]
    assert row.time_ps == whole.time_ps
    assert sum(part.time_ps for part in row.parts) == row.time_ps
    (note,) = row.notes
    assert "over nvlink5" in note
    assert "over pcie5" in note


def test_the_time_rises_up_to_the_bandwidth_at_which_the_library_switches() -> None:
    """NCCL leaves LL128 for LL at 92 % of a link of DGX-1: no slower link is faster than one of 93 %."""
    asked = {
        part: Collectives(load_cluster("dgx1-v100", slow_links=[("gpu0->gpu1", part)])).predict("broadcast", 1 << 20)
        for part in (0.97, 0.93, 0.9, 0.8, 0.5, 0.2)
    }
    assert len({(row.algorithm, row.protocol) for row in asked.values()}) > 1
    found = [row.time_ps for row in asked.values()]
    assert found == sorted(found)


def test_a_slow_lane_slows_all_rings_as_much() -> None:
    """Rings carry equal parts: with one link of eight MI300X at half its rate, all seven have half theirs."""
    whole, half = (
        Collectives(load_cluster("mi300x-node", slow_links=slow)).topology.inside
        for slow in ((), [("gpu0->gpu1", 0.5)])
    )
    assert whole is not None
    assert half is not None
    assert half.ring_bytes_per_s == whole.ring_bytes_per_s / 2


def test_a_file_with_worse_links_than_its_base_is_never_faster(tmp_path: Path) -> None:
    path = tmp_path / "worse.yaml"
    path.write_text("base: dgx1-v100\nlinks:\n- {from: gpu0, to: gpu1, bandwidth: 20 GB/s, peak: 25 GB/s}\n")
    assert faster(load_cluster(path), load_cluster("dgx1-v100")) == []


def test_more_latency_is_seen() -> None:
    whole = load_cluster("gh200-node")
    asked = [Collectives(each).predict("all_reduce", 1024) for each in (whole, later(whole, "gpu0->gpu1", 10**8))]
    assert asked[1].time_ps > asked[0].time_ps


@pytest.mark.parametrize(("first", "second"), [("dgx-h100", "dgx-a100"), ("l40s-pcie", "a40-pcie")])
def test_the_order_of_nodes_does_not_matter(first: str, second: str) -> None:
    nodes = [load_cluster(first), load_cluster(second)]
    fabric = nodes[0].fabric
    assert fabric is not None
    fabric = replace(fabric, kind="switch", radix=64)
    one, other = (join_nodes(order, fabric, "mixed") for order in (nodes, nodes[::-1]))
    asked, turned = Collectives(one), Collectives(other)
    for op in sorted(set(OPS) - {"gather", "scatter"}):  # whose root is the first rank
        for size in (0, 1 << 13, 1 << 20, 1 << 30):
            assert asked.predict(op, size).time_ps == turned.predict(op, size).time_ps, (op, size)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "nodes"), [("dgx-h100", None), ("dgx1-v100", None), ("gh200-node", 2)])
def test_how_much_a_whole_machine_gains_from_slower_links(name: str, nodes: int | None) -> None:
    """NCCL's choice is not monotone in the bandwidth of a machine of the catalogue; prints the worst case.

    So it is in NCCL: test_library_choice.py has the arithmetic of one case. Faults are bounded (above).
    """
    asked = Collectives(load_cluster(name, nodes=nodes))
    worst = (1.0, "")
    for part in (0.98, 0.9, 0.8, 0.6):
        slower = with_context(asked, replace(asked.context, topology=slowed(asked.topology, part)))
        for op in ("all_reduce", "all_gather", "broadcast"):
            for size in (1 << power for power in range(10, 31)):
                pairs = asked.choice(op, size), slower.choice(op, size)
                times = [each.cost(op, size, pair).total_us for each, pair in zip((asked, slower), pairs, strict=True)]
                worst = max(worst, (times[0] / times[1], f"{op} of {size} B at {part} of the bandwidth: {pairs}"))
    print(f"{name}: {worst[0]:.2f} times as fast, {worst[1]}")
    assert worst[0] < 1.45
