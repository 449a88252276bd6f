"""Do writes of replayed peers, and requests to them, take the time given by formulas?"""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from gpu_cases import GB, NS, Programmer, assert_same, case, read, read_flagged, small_model, write
from gpu_random import random_case
from gpu_replay import ENGINES, alone, recorded, replayed, run, writes

from trine.errors import InputError
from trine.gpu import peers
from trine.gpu.model import L2
from trine.gpu.peers import IDEAL, MODELLED
from trine.gpu.program import Buffer

MODEL = small_model()
LINE = 128 + 16
LANE_PS = LINE * 1000 // 50
LANE_LATENCY = 2 * 50 * NS + 700 * NS


def nothing(num_ranks=2):
    """Return a kernel that computes long enough and touches no memory."""
    programmer = Programmer(num_ranks, 4)
    programmer.kernel(0, 1, 1)
    return programmer.compute(100).build()


def channel(outcome, number, field="resource_data"):
    gpu = outcome.gpu
    return int(getattr(gpu, field)[0, gpu.resources.names.index(f"channel{number}")])


@pytest.mark.parametrize("engine", ENGINES)
def test_lines_of_data_land_at_the_memory(engine):
    """All lines from the first byte's to the last byte's land; channels change every 256 B."""
    table = writes((1, 120, 9, -1, 0, 50), (1, 300, 1, -1, 0, 60), (1, 0, 4096, -1, 0, 70))
    outcome = alone(nothing(), MODEL, table, engine)
    assert [channel(outcome, c) for c in (0, 1)] == [2 + 16, 1 + 16]
    assert [channel(outcome, c, "resource_busy_ps") for c in (0, 1)] == [18 * 3200, 17 * 3200]
    assert (outcome.gpu.lane_data + outcome.gpu.lane_control).sum() == 0, "nothing is acknowledged"
    assert outcome.gpu.resource_data.sum() == 35, "no link of the NoC is crossed"


@pytest.mark.parametrize("engine", ENGINES)
def test_a_flag_takes_no_bandwidth(engine):
    outcome = alone(nothing(), MODEL, writes((1, 0, 4, 2, 7, 50)), engine)
    assert outcome.gpu.resource_data.sum() == outcome.gpu.resource_control.sum() == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_landing_lines_keep_the_channel_busy_for_the_own_loads(engine):
    """The load goes first if the lines land at the instant at which it is at its channel. One ps earlier, it waits."""
    programmer = Programmer(2, 1)
    programmer.kernel(0, 1, 1)
    program = programmer.load(1, read(0)).build()
    alone_ps = int(alone(program, MODEL, writes(), engine).records.end_ps[0])
    at_channel = MODEL.launch_ps + 16 * 1000 // 64 + 3 * NS
    for time_ps, waits_ps in ((at_channel, 0), (at_channel - 1, 2 * 3200 - 1), (at_channel - 6400, 0)):
        table = writes((1, 0, 256, -1, 0, time_ps))
        assert alone(program, MODEL, table, engine).records.end_ps.tolist() == [alone_ps + waits_ps]


@pytest.mark.parametrize("engine", ENGINES)
def test_lines_cross_the_fabric_one_after_the_other(engine):
    """Two lanes change every two lines; the record has the times at which lines leave the port."""
    table = writes((1, 0, 8 * 128, -1, 0, 1000), fabric=MODELLED)
    came = alone(nothing(), MODEL, table, engine, record=True).arrivals
    on_its_lane = {0: 1, 1: 2, 4: 3, 5: 4, 2: 1, 3: 2, 6: 3, 7: 4}
    expected = {128 * i: 1000 + n * LANE_PS + LANE_LATENCY for i, n in on_its_lane.items()}
    assert dict(zip(came.address.tolist(), came.time_ps.tolist(), strict=True)) == expected
    assert set(came.kind.tolist()) == {peers.STORE}


@pytest.mark.parametrize("engine", ENGINES)
def test_lines_and_flags_of_several_peers_queue_where_they_meet(engine):
    """Behind a switch all three arrive over one link into the target, the nearest first."""
    table = writes(*((peer, 0, 128, -1, 0, 1000) for peer in (2, 3, 1)), fabric=MODELLED)
    came = alone(nothing(4), MODEL, table, engine, record=True, topology="switch").arrivals
    assert len(set(np.diff(came.time_ps).tolist())) == 1
    distance = [(peer - 0) % 4 for peer in came.rank.tolist()]
    assert distance == [1, 2, 3]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("fabric", [IDEAL, MODELLED])
def test_the_order_in_which_writes_are_registered_does_not_matter(engine, fabric):
    model = small_model(poll_ps=100 * NS, l2=L2(capacity_bytes=4096, ways=2, bytes_per_s=60 * GB, latency_ps=90 * NS))
    programmer = Programmer(3, 2)
    programmer.kernel(0, 2, 2)
    for group in (0, 1):
        programmer.load(20, read(0), group=group).acquire(0, group, 3, group=group).load(9, read(0, 512), group=group)
    program, rng = programmer.build(), np.random.default_rng(1)
    rows = [(1, 0, 4, 0, 2, 3_000_000), (2, 0, 4, 0, 1, 3_000_000), (1, 64, 900, -1, 0, 2_500_000)]
    rows += [(2, 256, 900, -1, 0, 2_500_000), (2, 4, 4, 1, 1, 3_000_000), (1, 4, 4, 1, 2, 3_000_000)]
    first = alone(program, model, writes(*rows, fabric=fabric), engine)
    assert first.finished
    for order in itertools.islice(itertools.permutations(range(6)), 1, None, 120):
        again = alone(program, model, writes(*(rows[i] for i in rng.permutation(order)), fabric=fabric), engine)
        assert_same(first, again)


def one_request(rank, kind, address):
    programmer = Programmer(rank + 1, 1)
    programmer.kernel(0, 1, 1)
    if kind == "load":
        return programmer.load(1, read(rank, address)).build()
    if kind == "store":
        return programmer.store(1, write(rank, address)).build()
    return programmer.release(rank, 0, address=address).build()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("topology", "ranks"), [("full", 2), ("switch", 4), ("ring", 5)])
@pytest.mark.parametrize("kind", ["load", "store", "release"])
@pytest.mark.parametrize("cached", [None, True, False])
def test_one_request_to_a_replayed_peer_takes_what_it_takes_to_a_simulated_one(engine, topology, ranks, kind, cached):
    """With an L2 the request hits, as stores do, or bypasses it."""
    l2 = L2(capacity_bytes=4096, ways=2, bytes_per_s=60 * GB, latency_ps=90 * NS)
    for address in (0, 512 + 384):
        program = one_request(ranks - 1 if topology == "switch" else ranks // 2, kind, address)
        program = replace(program, buffers=(Buffer(name="all", base=0, size_bytes=4096, uncached=cached is False),))
        model = small_model(l2=None if cached is None else l2)
        if topology == "ring":
            program = replace(program, num_ranks=ranks, semaphores=np.zeros((ranks, 1), np.int32))
        made = case(program, model, topology).system()
        whole, alone_too = run(made, engine), run(replayed(made, 0, writes()), engine)
        saved = 0
        if cached and kind == "load":
            saved = 128 * 1000 // 40 + 300 * NS  # the first load of a line in the peer's L2 would miss
        assert (whole.records.end_ps - saved).tolist() == alone_too.records.end_ps.tolist()
        assert (whole.gpu.load_latency_ps[0] - (saved if kind == "load" else 0)) == alone_too.gpu.load_latency_ps[0]


@pytest.mark.parametrize("engine", ENGINES)
def test_requests_past_the_cache(engine):
    """Two lines are loaded twice; lines of the uncached buffer go to the channel each time."""
    model = small_model(l2=L2(capacity_bytes=4096, ways=2, bytes_per_s=60 * GB, latency_ps=90 * NS))
    programmer = Programmer(2, 1)
    programmer.semaphores[0, 0] = 1
    programmer.kernel(0, 1, 1)
    for _ in range(2):
        programmer.load(2, read(0, 0)).wait().load(2, read(0, 1024)).store(1, write(0, 1024)).wait()
    program = programmer.acquire(0, 0, address=1152).build()
    buffers = (Buffer(name="a", base=0, size_bytes=1024), Buffer(name="b", base=1024, size_bytes=1024, uncached=True))
    outcome = alone(replace(program, buffers=buffers), model, writes(), engine)
    assert (outcome.gpu.l2_hits[0], outcome.gpu.l2_misses[0]) == (2, 2)
    assert channel(outcome, 0) == 2 + 2 * (2 + 1)
    assert channel(outcome, 0, "resource_control") == 1
    cached = alone(program, model, writes(), engine)
    assert (cached.gpu.l2_hits[0], cached.gpu.l2_misses[0]) == (6, 4)
    assert channel(cached, 0, "resource_control") == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_flagged_loads_are_counted_each_time(engine):
    programmer = Programmer(2, 4)
    programmer.kernel(0, 1, 1)
    program = programmer.load(3, read_flagged(0, 0)).load(5, read(0)).wait().build()
    flags = [(1, 128 * i, 4, i, 1, 9_000 * NS) for i in range(3)]
    outcome = alone(program, small_model(poll_ps=100 * NS), writes(*flags), engine)
    assert outcome.gpu.polls[0] > 30
    assert outcome.gpu.flagged_loads.tolist() == [3 + outcome.gpu.polls[0]]
    assert (outcome.gpu.loads - outcome.gpu.flagged_loads).tolist() == [5]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_record_of_another_program_is_an_error(engine):
    programmer = Programmer(2, 1)
    programmer.kernel(0, 1, 1)
    system = case(programmer.load(2, read(1)).build()).system()
    record = recorded(system, 0, engine).arrivals
    assert record.answer_number.tolist() == [0, 1]
    few = {name: getattr(record, name)[:1] for name in ("answer_place", "answer_number", "answer_ps", "answer_refused")}
    with pytest.raises(InputError, match="the record has no answer 1 for place 0 of rank 0: it is of another program"):
        run(replayed(system, 0, replace(record, **few)), engine)
    with pytest.raises(InputError, match=r"answer 0 for place 0 of rank 0 comes at 5 ps, before the request left at"):
        run(replayed(system, 0, replace(record, answer_ps=np.full(2, 5))), engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_run_that_is_stopped_before_writes_come(engine):
    programmer = Programmer(2, 1)
    programmer.kernel(0, 1, 1)
    program = programmer.acquire(0, 0).build()
    outcome = alone(program, MODEL, writes((1, 0, 4, 0, 1, 9_000 * NS)), engine, {"until_ps": 5_000 * NS})
    assert not outcome.finished
    assert outcome.gpu.end_ps == 5_000 * NS
    assert outcome.gpu.state_ps.sum() == 3_000 * NS


def test_random_cases_have_all_capacities():
    capacities = {random_case(seed, monitored=True).model.monitor.capacity for seed in range(30)}
    assert capacities == {0, 1, 2, 64}
