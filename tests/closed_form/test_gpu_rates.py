"""Do links, channels, ALUs and limits reach their rates, and is every line of a program moved exactly once?"""

from dataclasses import replace

import numpy as np
import pytest
from gpu_cases import GB, NS, Programmer, case, line_totals, read, small_model, write
from gpu_random import random_case

from trine.gpu.model import CROSSBAR, MemorySystem, Noc
from trine.gpu.program import DMA

ENGINES = ("reference", "compiled")
#: A model with ample internal bandwidth: only the resource under test limits the rate.
WIDE = small_model(
    noc=Noc(kind=CROSSBAR, bytes_per_s=2000 * GB, hop_ps=NS),
    memory=MemorySystem(num_channels=8, bytes_per_s=1000 * GB, latency_ps=100 * NS, interleave_bytes=128),
    ports=replace(small_model().ports, interleave_bytes=128),
    unroll=64,
    max_outstanding=512,
)


def many(lines, operation, num_ranks=2, wavefronts=8, workgroups=1):
    """Return a program that runs ``operation(programmer, lines)`` in each workgroup of rank 0."""
    programmer = Programmer(num_ranks)
    programmer.kernel(0, wavefronts)
    for _ in range(workgroups):
        programmer.workgroup()
        operation(programmer, lines)
    return programmer.build()


def time_of(outcome, model):
    return int(outcome.records.end_ps[0]) - model.launch_ps


@pytest.mark.parametrize("engine", ENGINES)
def test_a_saturated_link_carries_its_bandwidth(engine):
    """The last message adds the path's latency once; the lanes share the link's 100 GB/s."""
    lines = 20_000 if engine == "compiled" else 4000
    program = many(lines, lambda p, n: p.store(n, write(1)))
    alone = time_of(case(many(1, lambda p, n: p.store(n, write(1))), WIDE).simulate(engine), WIDE)
    outcome = case(program, WIDE).simulate(engine)
    taken = time_of(outcome, WIDE) - alone
    assert taken == pytest.approx(lines * 144 * 10**12 / (100 * GB), rel=0.01)
    out = outcome.gpu.lane_data > 0
    assert outcome.gpu.lane_busy_ps[out] == pytest.approx(taken, rel=0.01)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_saturated_channel_serves_its_bandwidth(engine):
    """All lines map to one channel."""
    model = replace(WIDE, memory=replace(WIDE.memory, bytes_per_s=40 * GB))
    lines = 4000
    outcome = case(many(lines, lambda p, n: p.load(n, read(0, step=8 * 128))), model).simulate(engine)
    assert time_of(outcome, model) == pytest.approx(lines * 3200, rel=0.01)
    busy = outcome.gpu.resource_busy_ps[0]
    assert busy[outcome.gpu.resources.names.index("channel0")] == lines * 3200


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("unroll", "limit", "places"), [(4, 64, 32), (1, 64, 8), (4, 6, 6), (16, 20, 20)])
def test_littles_law(engine, unroll, limit, places):
    """Requests in flight = rate x latency, up to the smaller limit of 8 wavefronts and their CU."""
    model = replace(WIDE, unroll=unroll, max_outstanding=limit)
    outcome = case(many(4000, lambda p, n: p.load(n, read(1))), model).simulate(engine)
    taken, latency = time_of(outcome, model), int(outcome.gpu.load_latency_ps[0]) / 4000
    assert 4000 / taken * latency == pytest.approx(places, rel=0.01)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_operation_may_have_fewer_places_than_the_model_gives(engine):
    model = replace(WIDE, unroll=16)
    outcome = case(many(4000, lambda p, n: p.load(n, read(1), unroll=2)), model).simulate(engine)
    latency = int(outcome.gpu.load_latency_ps[0]) / 4000
    assert 4000 / time_of(outcome, model) * latency == pytest.approx(16, rel=0.01)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_cu_issues_once_in_so_many_cycles(engine):
    model = replace(WIDE, issue_cycles=8)
    outcome = case(many(2000, lambda p, n: p.load(n, read(0))), model).simulate(engine)
    assert outcome.gpu.op_end_ps[0] - model.launch_ps == 1999 * 8 * model.cycle_ps


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("sources", "cycles"), [(2, 4), (3, 8), (4, 11)])
def test_reduces_take_the_alu(engine, sources, cycles):
    """(sources - 1) x 128 bytes at 35 bytes per cycle, rounded up to whole cycles per line."""
    model = replace(WIDE, reduce_bytes_per_cycle=35)
    lines = 1000

    def reduce(programmer, count):
        programmer.reduce(count, *[read(0, 4096 * i) for i in range(sources)])

    alone = time_of(case(many(1, reduce), model).simulate(engine), model)
    taken = time_of(case(many(lines, reduce), model).simulate(engine), model) - alone
    assert taken == pytest.approx((lines - 1) * cycles * model.cycle_ps, rel=0.01)


@pytest.mark.parametrize("engine", ENGINES)
def test_workgroups_go_round_the_cus_with_room(engine):
    """One workgroup starts every 7 ns; 2 CUs hold 2 each, and the fifth takes the place of the first."""
    programmer = Programmer(1)
    programmer.kernel(0, 1)
    for cycles in (1000, 1000, 100, 1000, 10):
        programmer.workgroup()
        programmer.compute(cycles)
    outcome = case(programmer.build(), num_gpus=2).simulate(engine)
    start = (outcome.gpu.workgroup_start_ps - small_model().launch_ps).tolist()
    # the third computes on CU 0 after the first, so the first and the second end first: at 500 and 507 ns
    assert outcome.gpu.workgroup_cu.tolist() == [0, 1, 0, 1, 0]
    assert start == [0, 7 * NS, 14 * NS, 21 * NS, 500 * NS]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_wide_workgroup_waits_for_enough_wavefront_slots(engine):
    """CUs hold 8 wavefronts: the third workgroup of 5 wavefronts waits, and the kernel behind it waits too."""
    programmer = Programmer(1)
    programmer.kernel(0, 5)
    for cycles in (100, 200, 1):
        programmer.workgroup()
        programmer.compute(cycles)
    programmer.kernel(0, 1, 1)
    outcome = case(programmer.build(), num_gpus=2).simulate(engine)
    start = (outcome.gpu.workgroup_start_ps - small_model().launch_ps).tolist()
    assert start == [0, 7 * NS, 250 * NS, 257 * NS]
    assert outcome.gpu.workgroup_cu.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("seed", range(12))
def test_lines_are_conserved(seed):
    """Each line of a program is requested once, and lines that cross the fabric cross each link once."""
    random = random_case(seed, without=(DMA, "transfers"))
    outcome = random.simulate("compiled")
    loads, stores = line_totals(random.program)
    asked_again = outcome.gpu.polls
    np.testing.assert_array_equal(outcome.gpu.stores, stores)
    np.testing.assert_array_equal(
        outcome.gpu.loads + outcome.gpu.acquires - asked_again, loads + acquires_of(random.program)
    )
    # every message with a line moves it over one memory channel or L2 slice
    memory = np.array([kind == ("memory" if random.model.l2 is None else "l2") for kind in outcome.gpu.resources.kinds])
    assert outcome.gpu.resource_data[:, memory].sum() == outcome.gpu.loads.sum() + stores.sum()


def acquires_of(program):
    rank = program.op_rank
    return np.bincount(rank[program.op_kind == 5], minlength=program.num_ranks)


@pytest.mark.parametrize("topology", ["full", "switch"])
@pytest.mark.parametrize("engine", ENGINES)
def test_bytes_over_the_links(engine, topology):
    """2 x 300 lines each way and 2 x 2 flags: bytes and lane busy time, over one link or two."""

    def operations(programmer, lines):
        programmer.load(lines, read(1)).store(lines, write(1)).release(1, 0, 1).release(1, 0, 1)

    program = many(300, operations, workgroups=2)
    gpu = case(program, topology=topology).simulate(engine).gpu
    links = 1 if topology == "full" else 2
    assert gpu.lane_data.sum() == 2 * 600 * links
    assert gpu.lane_control.sum() == (2 * 600 + 2 * 4) * links
    assert gpu.lane_busy_ps.sum() == (gpu.lane_data.sum() * 144 + gpu.lane_control.sum() * 16) * 1000 // 50
