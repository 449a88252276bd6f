"""Does a line that a switch reduces or multicasts take the sum of its hops, and is the traffic of each port right?"""

from dataclasses import replace

import numpy as np
import pytest
from gpu_cases import GB, NS, Case, Programmer, read, small_model
from gpu_multimem import multimem, star

from trine.cluster import load_cluster
from trine.errors import DeadlockError
from trine.gpu.kernels.build import build_kernel
from trine.gpu.model import L2
from trine.gpu.model.files import load_gpu_model
from trine.gpu.program import ADD_ALL, COPY, LOAD, READ_FLAGGED, READ_SUM, RELEASE, STORE, WRITE_ALL
from trine.gpu.run import GpuRunOptions, run_gpus

ENGINES = ("reference", "compiled")
HEADER, LINE = 16, 144
MODEL = small_model()
CHANNEL = 128 * 1000 // 40 + 300 * NS  # a line at 40 GB/s, and the latency
SEMAPHORE = 16 * 1000 // 40 + 300 * NS


def mesh(hops, num_bytes):
    return hops * (num_bytes * 1000 // 64 + 3 * NS)


def spoke(num_bytes):
    """Return the time of a link: one of two lanes of 50 GB/s, and the latency of the link and its end port."""
    return num_bytes * 1000 // 50 + 700 * NS + 50 * NS


def there_and_back(out_bytes, memory, back_bytes):
    """Return a round trip: CU 0, 1 hop, port 0, up; down, port 0, 0 hops, memory, up; down, port 0, 1 hop, CU 0."""
    return (
        mesh(1, out_bytes) + 2 * spoke(out_bytes) + memory + 2 * spoke(back_bytes) + mesh(1, back_bytes)
    )  # fmt: skip


def end(program, engine, model=MODEL):
    cluster = star(program.num_ranks)
    found = Case(program, model, cluster, list(cluster.gpus)).simulate(engine)
    return int(found.records.end_ps[0]) - model.launch_ps


def one(kind, *operands, ranks=3, amount=1):
    programmer = Programmer(ranks, 1)
    programmer.kernel(0, 1, 1)
    return programmer.add(kind, amount, *operands).build()


EVERYONE = (0, 1, 2)


@pytest.mark.parametrize("engine", ENGINES)
def test_one_line_added_up(engine):
    program = one(LOAD, *multimem(READ_SUM, EVERYONE))
    assert end(program, engine) == there_and_back(HEADER, CHANNEL, LINE)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("role", [WRITE_ALL, ADD_ALL])
def test_one_line_to_all(engine, role):
    assert end(one(STORE, *multimem(role, EVERYONE)), engine) == there_and_back(LINE, CHANNEL, HEADER)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_semaphore_of_all(engine):
    program = one(RELEASE, *multimem(WRITE_ALL, EVERYONE, 0, 0, 0))
    assert end(program, engine) == there_and_back(HEADER, SEMAPHORE, HEADER)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("lines", "comes"), [(3, True), (4, False)])
def test_each_line_to_all_carries_a_flag_that_each_member_takes_once(engine, lines, comes):
    programmer = Programmer(3, 9)
    programmer.kernel(0, 1, 1)
    programmer.add(STORE, 3, *multimem(WRITE_ALL, EVERYONE, 0, 128, 5))
    programmer.kernel(2, 1, 1)
    programmer.load(lines, (READ_FLAGGED, 2, 0, 128, 5))
    program = programmer.build()
    cluster = star(3)
    run = Case(program, MODEL, cluster, list(cluster.gpus)).simulate
    if comes:
        assert int(run(engine).records.end_ps[1]) > 2 * spoke(LINE)
    else:
        with pytest.raises(DeadlockError, match="semaphore 8"):
            run(engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_line_added_up_and_multicast(engine):
    """The write is issued as soon as the sum arrives; the issue cycle has long passed by then."""
    program = one(COPY, *multimem(READ_SUM, EVERYONE), *multimem(WRITE_ALL, EVERYONE, 1024))
    load, store = there_and_back(HEADER, CHANNEL, LINE), there_and_back(LINE, CHANNEL, HEADER)
    assert end(program, engine) == load + store


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("role", "fetches"), [(WRITE_ALL, 0), (ADD_ALL, 1)])
def test_what_is_added_to_is_fetched_behind_the_l2(engine, role, fetches):
    """A store allocates its line without a fetch; an add needs the old value."""
    model = replace(MODEL, l2=L2(capacity_bytes=128 * 16, ways=2, bytes_per_s=100 * GB, latency_ps=90 * NS))
    memory = 128 * 1000 // 100 + 90 * NS + fetches * CHANNEL
    assert end(one(STORE, *multimem(role, EVERYONE)), engine, model) == there_and_back(LINE, memory, HEADER)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_sum_waits_for_the_last_member(engine):
    """Another GPU's slow memory is busy with local lines when the request arrives."""
    model = replace(MODEL, memory=replace(MODEL.memory, bytes_per_s=4 * GB))
    programmer = Programmer(3, 1)
    programmer.kernel(0, 1, 1)
    programmer.load(1, *multimem(READ_SUM, EVERYONE))
    alone = end(programmer.build(), engine, model)
    programmer.kernel(2, 1, 1)
    programmer.load(300, read(2, 0, 0), unroll=64)
    assert alone < end(programmer.build(), engine, model) <= alone + 64 * 32 * NS


RANKS, LINES = 4, 24


@pytest.mark.parametrize(
    ("op", "data", "control"),
    [
        # per GPU, (up to the switch, down from it): messages with a line, and messages without data
        ("all_reduce", (1 + RANKS, 1 + RANKS), (1 + RANKS, 1 + RANKS)),
        ("reduce_scatter", (RANKS, 1), (1, RANKS)),
        ("all_gather", (1, RANKS), (RANKS, 1)),
    ],
)
def test_bytes_of_each_port(op, data, control):
    """Each of n GPUs reads its shard from all at once and writes it to all: n + 1 shards per port and direction."""
    cluster = star(RANKS)
    program = build_kernel(op, RANKS, RANKS * LINES * 128, algorithm="nvls", workgroups=2, wavefronts=2)
    run = run_gpus(program, cluster, list(cluster.gpus), MODEL, options=GpuRunOptions(fold="off"))
    source = cluster.link_table.source[run.gpu.lane_link]
    signals = int(run.gpu.releases[0])  # the signal, and its acknowledgement
    for gpu in range(RANKS):
        for way, mine in enumerate((source == gpu, cluster.link_table.target[run.gpu.lane_link] == gpu)):
            assert int(run.gpu.lane_data[mine].sum()) == data[way] * LINES
            assert int(run.gpu.lane_control[mine].sum()) == control[way] * LINES + 2 * signals
    assert run.gpu.loads.tolist() == [LINES] * RANKS
    np.testing.assert_array_equal(run.gpu.stores, LINES)


def test_all_reduce_is_not_faster_than_its_bytes():
    """The buffer and one more shard cross each port in each direction, with an equal number of bare headers."""
    cluster, size = load_cluster("dgx-h100"), 1 << 20
    model = load_gpu_model("h100-sxm")
    program = build_kernel("all_reduce", 8, size, algorithm="nvls")
    ports = [link for link in cluster.links if link.source == cluster.gpus[0] and link.link_class == "scale-up"]
    rate = sum(cluster.seen_by_messages(cluster.links.index(link))[0] for link in ports)
    line, header = model.line_bytes, model.header_bytes
    least_ps = size / line * (line + 2 * header) * (1 + 1 / 8) / rate * 1e12
    end_ps = run_gpus(program, cluster, list(cluster.gpus), model).end_ps
    assert least_ps < end_ps
