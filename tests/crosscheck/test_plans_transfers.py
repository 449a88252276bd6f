"""Plans on the engine: bytes of every wire, and times against the closed forms of their algorithms."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from plan_cases import BYTES_PER_S, DATA, LATENCY_PS, PLANS, bytes_of_links, simulate

from trine.collectives import closed_forms, make_schedule
from trine.common.units import transfer_ps
from trine.gpu.plans import load_plan, plan_schedule, plan_switches

SIZE = 16 * 2**20


def size_of(name: str) -> int:
    return 2 * 2**20 if "LL_default" in name else SIZE


@pytest.mark.parametrize("name", PLANS)
def test_every_plan_runs_and_is_no_faster_than_its_busiest_wire(name: str) -> None:
    plan = load_plan(DATA / name)
    time, schedule = simulate(plan, size_of(name))
    busiest = max(bytes_of_links(schedule).values())
    assert transfer_ps(busiest, BYTES_PER_S) + LATENCY_PS <= time < 2 * transfer_ps(busiest, BYTES_PER_S)


@pytest.mark.parametrize(
    ("name", "kind"), [("allreduce_a100_ring_4_1_1", "all_reduce"), ("allgather_ring_4_1_1", "all_gather")]
)
@pytest.mark.parametrize("size", [4, 1000, SIZE])
def test_an_msccl_ring_takes_the_time_of_a_ring(name: str, kind: str, size: int) -> None:
    plan = dataclasses.replace(load_plan(DATA / f"{name}.xml"), protocol="Simple")
    wanted = closed_forms.uncontended_ps(make_schedule(kind, 4, size, "ring"), BYTES_PER_S, LATENCY_PS)
    assert simulate(plan, size)[0] == wanted


def test_ll128_of_msccl_adds_a_fifteenth() -> None:
    plan = load_plan(DATA / "allreduce_a100_ring_4_1_1.xml")
    assert plan.protocol == "LL128"
    chunk = -(-(SIZE // 4) * 16 // 15)
    assert simulate(plan, SIZE)[0] == 6 * (transfer_ps(chunk, BYTES_PER_S) + LATENCY_PS)


def test_the_mscclpp_ring_pays_for_reading() -> None:
    """Six chunks cross each wire as in any ring. But this ring reads: three steps cost an additional signal and request
    each, and in the fused step one latency passes while data flows."""
    time, schedule = simulate(load_plan(DATA / "v1_v0.7.0_allreduce_ring_4gpu.json"), SIZE)
    ring = closed_forms.uncontended_ps(make_schedule("all_reduce", 4, SIZE, "ring"), BYTES_PER_S, LATENCY_PS)
    assert time == ring + (3 * 2 - 1) * LATENCY_PS
    assert bytes_of_links(schedule) == {(rank, (rank + 1) % 4): SIZE * 6 // 4 for rank in range(4)}


def test_all_pairs_is_the_direct_two_shot() -> None:
    """Reduce-scatter and all-gather go directly between all pairs: two shards of S/N per wire."""
    time, schedule = simulate(load_plan(DATA / "v2_HEAD_allreduce_allpairs_4gpu.json"), SIZE)
    shard = SIZE // 4
    assert bytes_of_links(schedule) == {(a, b): 2 * shard for a in range(4) for b in range(4) if a != b}
    # A signal, a request, and then both phases at once on wires that are never idle.
    assert time == 2 * transfer_ps(shard, BYTES_PER_S) + 3 * LATENCY_PS


@pytest.mark.parametrize(
    ("name", "ranks"),
    [("v1_v0.6.0_allreduce_nvls_8gpu", 8), ("v2_HEAD_allreduce_nvls_zero_copy_4gpu", 4),
     ("v2_HEAD_allreduce_pipeline_nvls_repo_testfile", 4)],
)  # fmt: skip
def test_multicast_moves_each_byte_once_up_and_once_down_and_a_shard_more(name: str, ranks: int) -> None:
    """Up: each GPU's data once (reads), and its stored shard of sums. Down: its shard of sums, and all the sums."""
    plan = load_plan(DATA / f"{name}.json")
    time, schedule = simulate(plan, SIZE)
    assert plan_switches(plan) == (tuple(range(ranks)),)
    moved = SIZE + SIZE // ranks
    wires = [(rank, ranks) for rank in range(ranks)]
    assert bytes_of_links(schedule) == dict.fromkeys(wires + [(b, a) for a, b in wires], moved)
    assert time < 1.25 * transfer_ps(moved, BYTES_PER_S)


def test_packets_are_twice_the_bytes() -> None:
    plan = load_plan(DATA / "v2_HEAD_allreduce_packet_repo_testfile.json")
    assert bytes_of_links(plan_schedule(plan, 4096)) == {(0, 1): 2 * 4096, (1, 0): 2 * 4096}


def test_two_nodes_of_four_exchange_shards_between_nodes() -> None:
    """LL packets: reduce-scatter and all-gather of quarters within a node; the reduced quarter between nodes."""
    size = 2**20
    moved = bytes_of_links(plan_schedule(load_plan(DATA / "v2_HEAD_allreduce_2node_8gpu_LL_default_algo.json"), size))
    assert {size for (a, b), size in moved.items() if a // 4 == b // 4} == {2 * 2 * size // 4}
    assert {ends: size for ends, size in moved.items() if ends[0] // 4 != ends[1] // 4} == {
        ends: 2 * size // 4 for rank in range(4) for ends in ((rank, rank + 4), (rank + 4, rank))
    }


@pytest.mark.parametrize("name", PLANS)
def test_more_bytes_take_longer(name: str) -> None:
    plan = load_plan(DATA / name)
    times = [simulate(plan, size)[0] for size in (2**16, 2**18, 2**20)]
    assert times == sorted(times)
    assert times[0] < times[-1]


@pytest.mark.parametrize("name", PLANS)
def test_the_structure_is_well_formed(name: str) -> None:
    plan = load_plan(DATA / name)
    schedule = plan_schedule(plan, size_of(name))
    assert schedule.num_switches == len(plan_switches(plan))
    positions = plan.num_ranks + schedule.num_switches
    assert min(schedule.src.min(), schedule.dst.min()) >= 0
    assert max(schedule.src.max(), schedule.dst.max()) < positions
    assert (schedule.src != schedule.dst).all()
    assert len(schedule.completion_ptr) == plan.num_ranks + 1
    owners = np.repeat(np.arange(schedule.num_transfers), np.diff(schedule.predecessor_ptr))
    assert (schedule.predecessor_idx < owners).all()
    first = np.diff(schedule.predecessor_ptr) == 0
    assert (schedule.entry_src | schedule.entry_dst)[first].all()
    assert not schedule.entry_src[schedule.src >= plan.num_ranks].any()
