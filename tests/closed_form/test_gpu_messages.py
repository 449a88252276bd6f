"""Does a single cache line take the sum of its hops' service times and latencies, to the picosecond?"""

from dataclasses import replace

import pytest
from gpu_cases import GB, NS, Programmer, case, read, read_flagged, small_model, write, write_flagged

from trine.gpu.model import CROSSBAR, L2, Noc

ENGINES = ("reference", "compiled")
MODEL = small_model()
LAUNCH = MODEL.launch_ps
HEADER, LINE = 16, 144
CHANNEL = 128 * 1000 // 40 + 300 * NS  # a line at 40 GB/s, and the latency
SEMAPHORE = 16 * 1000 // 40 + 300 * NS
LANE = 2 * 50 * NS + 700 * NS  # latency of both ports and the link; 2 lanes of 50 GB/s


def mesh(hops, num_bytes):
    return hops * (num_bytes * 1000 // 64 + 3 * NS)


def lane(num_bytes):
    return num_bytes * 1000 // 50 + LANE


def ends(program, engine, model=MODEL, **how):
    """Return the end time of each task, counted from its launch."""
    return (case(program, model, **how).simulate(engine).records.end_ps - model.launch_ps).tolist()


def one(num_ranks=2, num_semaphores=1):
    """Return a programmer with a kernel of one wavefront on rank 0."""
    programmer = Programmer(num_ranks, num_semaphores)
    programmer.kernel(0, 1, 1)
    return programmer


# In the mesh of 2 x 3 routers CU 0, channel 0 and port 0 sit at router 0, channel 1 at router 1, port 1 at router 3.
OWN = [(0, 1), (256, 2), (128, 1), (512 + 256, 2)]
# CU -> port, port -> channel, channel -> port, port -> CU
REMOTE = [(0, (1, 0, 0, 1)), (256, (2, 2, 2, 2))]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("address", "hops"), OWN)
def test_a_load_from_the_own_memory(engine, address, hops):
    program = one(1).load(1, read(0, address)).build()
    assert ends(program, engine, num_gpus=2) == [mesh(hops, HEADER) + CHANNEL + mesh(hops, LINE)]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("address", "hops"), OWN)
def test_a_store_to_the_own_memory(engine, address, hops):
    program = one(1).store(1, write(0, address)).build()
    assert ends(program, engine, num_gpus=2) == [mesh(hops, LINE) + CHANNEL + mesh(hops, HEADER)]


def there_and_back(hops, out_bytes, memory, back_bytes):
    to_port, to_channel, from_channel, to_cu = hops
    there = mesh(to_port, out_bytes) + lane(out_bytes) + mesh(to_channel, out_bytes)
    return there + memory + mesh(from_channel, back_bytes) + lane(back_bytes) + mesh(to_cu, back_bytes)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("address", "hops"), REMOTE)
def test_a_load_from_another_gpu(engine, address, hops):
    expected = there_and_back(hops, HEADER, CHANNEL, LINE)
    assert ends(one().load(1, read(1, address)).build(), engine) == [expected]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("address", "hops"), REMOTE)
def test_a_store_to_another_gpu(engine, address, hops):
    expected = there_and_back(hops, LINE, CHANNEL, HEADER)
    assert ends(one().store(1, write(1, address)).build(), engine) == [expected]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("address", "hops"), REMOTE)
def test_a_release_and_who_waits_for_it(engine, address, hops):
    programmer = one().release(1, 0, address=address)
    programmer.kernel(1, 1, 1)
    programmer.acquire(1, 0)
    to_port, to_channel, _, _ = hops
    arrives = mesh(to_port, HEADER) + lane(HEADER) + mesh(to_channel, HEADER) + SEMAPHORE
    expected = [there_and_back(hops, HEADER, SEMAPHORE, HEADER), arrives + mesh(1, HEADER)]
    assert ends(programmer.build(), engine) == expected


@pytest.mark.parametrize("engine", ENGINES)
def test_a_flagged_line_and_who_waits_for_it(engine):
    programmer = one(num_semaphores=5).store(1, write_flagged(1, 4))
    programmer.kernel(1, 1, 1)
    programmer.load(1, read_flagged(1, 4))
    arrives = mesh(1, LINE) + lane(LINE) + CHANNEL
    expected = [there_and_back((1, 0, 0, 1), LINE, CHANNEL, HEADER), arrives + mesh(1, LINE)]
    assert ends(programmer.build(), engine) == expected


@pytest.mark.parametrize("engine", ENGINES)
def test_an_acquire_of_what_is_there(engine):
    programmer = one(1)
    programmer.semaphores[0, 0] = 3
    program = programmer.acquire(0, 0, amount=3).build()
    assert ends(program, engine, num_gpus=2) == [2 * mesh(1, HEADER) + SEMAPHORE]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_wavefront_that_asks_again_sees_it_at_the_next_answer(engine):
    programmer = one().release(1, 0)
    programmer.kernel(1, 1, 1)
    programmer.acquire(1, 0)
    model = small_model(poll_ps=100 * NS)
    arrives = mesh(1, HEADER) + lane(HEADER) + SEMAPHORE
    turn = 2 * mesh(1, HEADER) + SEMAPHORE
    reads = mesh(1, HEADER) + SEMAPHORE  # of the first poll; later ones every turn + poll
    asked = 0
    while reads + asked * (turn + model.poll_ps) < arrives:
        asked += 1
    expected = reads + asked * (turn + model.poll_ps) + mesh(1, HEADER)
    outcome = case(programmer.build(), model).simulate(engine)
    assert outcome.records.end_ps[1] - LAUNCH == expected
    assert outcome.gpu.polls.tolist() == [0, asked]
    assert outcome.gpu.acquires.tolist() == [0, 1 + asked]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_copy_is_a_load_and_then_a_store(engine):
    load = mesh(1, HEADER) + CHANNEL + mesh(1, LINE)
    expected = load + there_and_back((1, 0, 0, 1), LINE, CHANNEL, HEADER)
    assert ends(one().copy(1, read(0), write(1)).build(), engine) == [expected]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_reduce_takes_its_cycles_between_the_reads_and_the_write(engine):
    """Two reads share the link into the CU, so the second waits for the first. 128 bytes take 2 cycles of 500 ps."""
    program = one(1).reduce(1, read(0), read(0, 256), write(0)).build()
    second = 500 + 2 * (250 + 3000) + CHANNEL + 2 * (2250 + 3000)
    expected = second + 2 * 500 + mesh(1, LINE) + CHANNEL + mesh(1, HEADER)
    assert ends(program, engine, num_gpus=2) == [expected]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("is_load", [True, False])
def test_a_crossbar(engine, is_load):
    """A message pays the latency at the link out of its source, and none at the link into its target."""
    model = small_model(noc=Noc(kind=CROSSBAR, bytes_per_s=32 * GB, hop_ps=5 * NS))

    def crossbar(num_bytes):
        return 2 * (num_bytes * 1000 // 32) + 5 * NS

    there, back = (HEADER, LINE) if is_load else (LINE, HEADER)
    program = one().load(1, read(1)) if is_load else one().store(1, write(1))
    expected = 2 * crossbar(there) + lane(there) + CHANNEL + 2 * crossbar(back) + lane(back)
    assert ends(program.build(), engine, model) == [expected]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_switch_costs_a_second_link(engine):
    """The route has two links with the lanes of the first, and ports only at its ends."""
    program = one().load(1, read(1)).build()
    lanes = (HEADER + LINE) * 1000 * 2 // 50 + 2 * LANE + 2 * 700 * NS
    assert ends(program, engine, topology="switch") == [mesh(1, HEADER) + mesh(1, LINE) + CHANNEL + lanes]


@pytest.mark.parametrize("engine", ENGINES)
def test_l2_hits_and_misses(engine):
    """A miss uses the slice, then the channel; a hit, the slice. Stores and semaphores never use the channel."""
    model = small_model(l2=L2(capacity_bytes=2 * 128 * 4, ways=2, bytes_per_s=100 * GB, latency_ps=90 * NS))
    slice_ps = 1280 + 90 * NS
    load = mesh(1, HEADER) + slice_ps + mesh(1, LINE)
    programmer = one(1).load(1, read(0)).wait().load(1, read(0)).wait().store(1, write(0, 128)).wait()
    programmer.semaphores[0, 0] = 1
    program = programmer.load(1, read(0, 128)).wait().acquire(0, 0).build()
    outcome = case(program, model, num_gpus=2).simulate(engine)
    acquire = 2 * mesh(1, HEADER) + 160 + 90 * NS
    assert (
        outcome.records.end_ps[0] - LAUNCH == 3 * load + CHANNEL + mesh(1, LINE) + slice_ps + mesh(1, HEADER) + acquire
    )
    assert (outcome.gpu.l2_hits.tolist(), outcome.gpu.l2_misses.tolist()) == ([2], [2])


@pytest.mark.parametrize("engine", ENGINES)
def test_a_dirty_line_that_leaves_the_l2_keeps_its_channel_busy(engine):
    """One set of one line: the second store evicts the first line, and the load of a third evicts the second."""
    memory = replace(MODEL.memory, num_channels=1)
    model = small_model(memory=memory, l2=L2(capacity_bytes=128, ways=1, bytes_per_s=100 * GB, latency_ps=0))
    program = one(1).store(1, write(0)).wait().store(1, write(0, 128)).wait().load(1, read(0, 256)).build()
    outcome = case(program, model, num_gpus=2).simulate(engine)
    channel = outcome.gpu.resources.names.index("channel0")
    assert outcome.gpu.resource_busy_ps[0, channel] == 3 * 3200
    assert outcome.gpu.resource_data[0, channel] == 1
    store = mesh(1, LINE) + 1280 + mesh(1, HEADER)
    # the slice takes 1280 ps; the evicted line occupies the channel for 3200 ps from the same instant
    load = mesh(1, HEADER) + 3200 + CHANNEL + mesh(1, LINE)
    assert outcome.records.end_ps[0] - LAUNCH == 2 * store + load


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("posted", [True, False])
def test_a_store_gives_its_place_back_when_it_has_left(engine, posted):
    """With one slot, the second store is issued once the first's last byte is on the lane, or is acknowledged."""
    model = small_model(unroll=1, posted_stores=posted)
    outcome = case(one().store(2, write(1)).build(), model).simulate(engine)
    left = mesh(1, LINE) + LINE * 1000 // 50
    first = left if posted else there_and_back((1, 0, 0, 1), LINE, CHANNEL, HEADER)
    assert outcome.gpu.op_end_ps[0] - LAUNCH == first


@pytest.mark.parametrize("engine", ENGINES)
def test_a_dma_sends_packets_over_the_lanes_in_turns(engine):
    """10,000 bytes: 4096 and 1808 on the first lane, 4096 on the second, 64 more per packet; then a semaphore."""
    programmer = one().dma(10_000, 1, semaphore=0).wait()
    programmer.kernel(1, 1, 1)
    programmer.acquire(1, 0)
    arrives = MODEL.dma_ps + (4096 + 64 + 1808 + 64) * 1000 // 50 + LANE
    outcome = case(programmer.build()).simulate(engine)
    assert (outcome.records.end_ps - LAUNCH).tolist() == [arrives + 700 * NS, arrives + mesh(1, HEADER)]
    assert outcome.gpu.packets.tolist() == [3, 0]
    assert outcome.gpu.lane_data.sum() == 3


@pytest.mark.parametrize("engine", ENGINES)
def test_dmas_to_one_gpu_are_delivered_in_order(engine):
    """The second DMA has no bytes; it waits only for the packets of the first."""
    programmer = one(num_semaphores=2).dma(8000, 1, semaphore=0).dma(0, 1, semaphore=1)
    programmer.kernel(1, 1, 1)
    programmer.acquire(1, 1)
    # the lanes are free after 4160 and 3968 bytes; the signal then follows on the first
    left = MODEL.dma_ps + 4160 * 1000 // 50
    assert ends(programmer.build(), engine)[1] == left + 64 * 1000 // 50 + LANE + mesh(1, HEADER)


@pytest.mark.parametrize("engine", ENGINES)
def test_barriers_and_computing(engine):
    """Four wavefronts take turns on the ALU; then comes the barrier."""
    programmer = Programmer(1)
    programmer.kernel(0, 4, 1)
    program = programmer.compute(10).barrier().compute(3).build()
    outcome = case(program, num_gpus=2).simulate(engine)
    assert outcome.gpu.op_end_ps.tolist() == [LAUNCH + t for t in (20_000, 31_000, 31_000 + 4 * 1500)]
    computing = 5000 + 10_000 + 15_000 + 20_000 + 1500 + 3000 + 4500 + 6000
    barrier = 4 * 31_000 - 50_000
    assert outcome.gpu.state_ps[0, 0].tolist() == [computing, 0, 0, 0, barrier]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_fence_takes_its_time_behind_the_answers(engine):
    stored = there_and_back(REMOTE[0][1], LINE, CHANNEL, HEADER)
    program = one().store(1, write(1, 0)).fence().load(1, read(0, 0)).build()
    loaded = mesh(1, HEADER) + CHANNEL + mesh(1, LINE)
    assert ends(program, engine) == [stored + MODEL.fence_ps + loaded]
    assert ends(one().fence().build(), engine) == [MODEL.fence_ps]
    assert ends(one().fence().build(), engine, replace(MODEL, fence_ps=0)) == [0]


@pytest.mark.parametrize("engine", ENGINES)
def test_delays_take_their_cycles_beside_each_other(engine):
    """Delays run in parallel; compute of a CU's wavefronts is serialised."""
    programmer = Programmer(1, 1)
    programmer.kernel(0, 3, 1)
    assert ends(programmer.delay(40).build(), engine, num_gpus=2) == [40 * MODEL.cycle_ps]
    programmer = Programmer(1, 1)
    programmer.kernel(0, 3, 1)
    assert ends(programmer.compute(40).build(), engine, num_gpus=2) == [3 * 40 * MODEL.cycle_ps]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("address", "is_far"), [(0, 0), (128, 1), (256, 1), (384, 0), (896, 1)])
def test_a_line_at_home_in_the_far_half_takes_longer_where_others_write_it(engine, address, is_far):
    """From CU 0, lines whose number has an odd number of set bits are far. Read-only lines have a near copy."""
    l2 = L2(capacity_bytes=1 << 16, ways=4, bytes_per_s=100 * GB, latency_ps=90 * NS)
    near, far = replace(MODEL, l2=l2), replace(MODEL, l2=replace(l2, far_ps=40 * NS))

    def longer(program, **how):
        return ends(program.build(), engine, far, **how)[0] - ends(program.build(), engine, near, **how)[0]

    assert longer(one(1, 0).load(1, read(0, address)), num_gpus=2) == 0
    assert longer(one(1, 0).store(1, write(0, address)), num_gpus=2) == 40 * NS * is_far
    assert longer(one(2, 0).store(1, write(1, address))) == 0  # in the latency of the link
    assert longer(one(1, 1).release(0, 0, address=address), num_gpus=2) == 40 * NS * is_far
