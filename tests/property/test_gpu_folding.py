"""Does a folded load-store run equal the unfolded one to the picosecond, and are cases that would differ refused?"""

import os
from dataclasses import replace

import numpy as np
import pytest
from gpu_cases import GB, NS, Case, Programmer, case, read, small_model, write
from gpu_multimem import multimem, relative_switched_case, star
from gpu_relative import perturbed, relative_case

from trine.cluster.cluster import Cluster
from trine.cluster.parts import SWITCH, Device, Link
from trine.cluster.tables import LinkTable
from trine.errors import DeadlockError, InputError, SimulationError
from trine.gpu.folding import fold_system
from trine.gpu.model import CROSSBAR, FAIR, L2, MemorySystem, Noc, Ports
from trine.gpu.program import READ_SUM, has_multimem
from trine.gpu.run import GpuRunOptions, run_gpus, same_outcome
from trine.gpu.system import KernelTasks, kernel_tasks, unfolded


def simulate(engine, system):
    if engine == "reference":
        from trine.gpu.reference import simulate as run
    else:
        from trine.gpu.compiled import simulate as run
    return run(system)


def system_of(made):
    return unfolded(made.program, made.cluster, made.group, made.model, kernel_tasks(made.program))


def assert_exact(made, engines=("compiled",)):
    """Fold the case; if it folds, check that both runs are equal on each engine. Return (reason, folded system)."""
    whole = system_of(made)
    folded, why = fold_system(whole)
    assert (folded is None) == (why is not None)
    for engine in engines if folded is not None else ():
        same_outcome(folded, simulate(engine, folded), whole, simulate(engine, whole))
    return why, folded


def run_gpus_of(made, tasks=None, **how):
    return run_gpus(made.program, made.cluster, made.group, made.model, tasks=tasks, options=GpuRunOptions(**how))


def test_kernels_of_ranks_in_any_order():
    """Two classes; the program lists rank 1's kernels before rank 0's."""
    programmer = Programmer(4)
    for rank in (1, 3, 0, 2):
        programmer.kernel(rank, workgroups=1)
        programmer.load(3 if rank % 2 else 9, read((rank + (1 if rank % 2 else 2)) % 4))
    why, folded = assert_exact(case(programmer.build(), topology="switch"), ("compiled", "reference"))
    assert why is None
    assert folded.num_gpus == 2


def test_ways_back_may_be_more_than_ways_there():
    """Even ranks have two links of two lanes, odd ranks one link of four: addresses must be equal modulo both."""
    devices = [Device(name=f"g{i}") for i in range(4)] + [Device(name="s", kind=SWITCH, forwards=True)]
    wires = [(g, 4, Link(bytes_per_s=100 * GB, latency_ps=500 * NS)) for g in (0, 0, 1, 2, 2, 3)]
    wires += [(4, g, Link(bytes_per_s=100 * GB, latency_ps=500 * NS)) for g in range(4)]
    cluster = Cluster(
        name="uneven", devices=tuple(devices), links=LinkTable.joined([device.name for device in devices], wires)
    )
    programmer = Programmer(4)
    for rank in range(4):
        programmer.kernel(rank, workgroups=1)
        programmer.load(1, read((rank + 1) % 4, 512 * (rank // 2)))
    model = small_model(ports=Ports(count=4, latency_ps=50 * NS, interleave_bytes=256))
    why, _ = assert_exact(Case(programmer.build(), model, cluster, [0, 1, 2, 3]))
    assert "equal modulo 1024 bytes" in why


def cached_model():
    memory = MemorySystem(num_channels=1, bytes_per_s=40 * GB, latency_ps=300 * NS, interleave_bytes=128)
    return small_model(
        memory=memory, ports=Ports(count=1, latency_ps=50 * NS, interleave_bytes=128),
        l2=L2(capacity_bytes=128 * 16, ways=2, bytes_per_s=100 * GB, latency_ps=90_000),
    )  # fmt: skip


def test_ranks_whose_lines_are_in_other_halves_of_the_l2_do_not_fold():
    """Rank 1's line is a period away: same channel, port and set, but its address bits hash to the other L2 half."""
    programmer, model = Programmer(2), cached_model()
    period = 1 << 20  # a multiple of the periods of channels, ports and sets
    for rank in range(2):
        programmer.kernel(rank, workgroups=1)
        programmer.store(1, write(rank, rank * period))
    program = programmer.build()
    why, folded = assert_exact(case(program, model, topology="switch"))
    assert why is None
    assert folded.num_gpus == 1
    why, _ = assert_exact(case(program, replace(model, l2=replace(model.l2, far_ps=40 * NS)), topology="switch"))
    assert "equal addresses (the halves of the L2 are hashed)" in why


def test_lines_of_an_l2_are_those_of_each_rank():
    """Rank 3's two loads share a line, rank 1's do not; both ranks' loads are longer than rank 0's."""
    period = 128 * 8
    programmer = Programmer(4)
    for rank in range(4):
        programmer.kernel(rank, workgroups=1)
        lines = 9 if rank % 2 else 1
        programmer.load(lines, read(rank, 0)).wait()
        programmer.load(lines, read(rank, 2 * period if rank == 1 else period if rank == 3 else 0)).wait()
    why, folded = assert_exact(Case(programmer.build(), cached_model(), *network(4)))
    assert folded is None
    assert "one L2 line on one rank" in why


def network(ranks, topology="switch"):
    made = case(Programmer(ranks).build(), topology=topology)
    return made.cluster, made.group


def test_semaphores_are_no_lines_of_an_l2():
    """Rank 0 releases and acquires at one address, rank 1 at two; semaphores occupy no L2 lines."""
    programmer = Programmer(2, 2)
    for rank in range(2):
        programmer.kernel(rank, workgroups=1)
        programmer.store(2, write(rank, 0)).release(1 - rank, 0, address=128 * 8 * rank).acquire(rank, 0, address=0)
    why, folded = assert_exact(Case(programmer.build(), cached_model(), *network(2)))
    assert why is None
    assert folded.num_gpus == 1


def test_tasks_that_carry_kernels_in_another_order_are_not_folded():
    """Tasks start in task order, which puts rank 0's second kernel first."""
    programmer = Programmer(2)
    for rank in (0, 0, 1, 1):
        programmer.kernel(rank, workgroups=1)
        programmer.load(2 if len(programmer.kernels) % 2 else 17, read(1 - rank))
    made = case(programmer.build(), topology="switch")
    graph = replace(kernel_tasks(made.program).graph, rank=np.array([0, 0, 1, 1], np.int32))
    runs = [
        run_gpus_of(made, KernelTasks(graph, np.array([1, 0, 2, 3], np.int32)), fold=fold) for fold in ("auto", "off")
    ]
    assert runs[0].end_ps == runs[1].end_ps
    np.testing.assert_array_equal(runs[0].records.end_ps, runs[1].records.end_ps)


def test_both_engines_say_for_how_many_ranks_one_that_waits_stands():
    programmer = Programmer(4, 1)
    for rank in range(4):
        programmer.kernel(rank, 1, 1)
        programmer.acquire(rank, 0).release((rank + 1) % 4, 0)
    folded, _ = fold_system(system_of(case(programmer.build(), num_gpus=4)))
    texts = []
    for engine in ("reference", "compiled"):
        with pytest.raises(DeadlockError) as error:
            simulate(engine, folded)
        texts.append(str(error.value))
    assert texts[0] == texts[1]
    assert texts[0].endswith("\n  (folded: each rank named stands for 4 ranks)")


def test_a_dma_arrives_in_the_order_of_how_far_away_it_comes_from():
    """Full mesh: of two classes' DMAs that reach a GPU at one instant, the nearer one is first, whatever the ranks."""
    programmer = Programmer(4, 2)
    for rank in range(4):
        programmer.kernel(rank, workgroups=2)
        for semaphore in range(2):
            programmer.acquire(rank, semaphore, group=-2 + semaphore).load(3, read(rank), group=-2 + semaphore)
        programmer.workgroup()
        programmer.dma(0, (rank + 2) % 4, 0) if rank % 2 == 0 else programmer.dma(0, (rank - 1) % 4, 1)
    programmer.semaphores[1::2] = 1
    slow = Noc(kind=CROSSBAR, bytes_per_s=1 * GB, hop_ps=0)
    model = small_model(num_cus=3, workgroups_per_cu=1, launch_ps=0, dispatch_ps=0, dma_ps=5_000_000, noc=slow)
    why, folded = assert_exact(case(programmer.build(), model), ("compiled", "reference"))
    assert why is None
    assert folded.num_gpus == 2


@pytest.mark.parametrize("seed", range(int(os.environ.get("TRINE_GPU_FOLD_EXAMPLES", "80"))))
def test_random_relative_programs(seed):
    """Random programs with one or more classes on many networks; also with one change in one rank or link."""
    turned = relative_case(seed)
    assert_exact(turned, ("compiled", "reference") if seed < 12 else ("compiled",))
    assert_exact(perturbed(turned, seed)[0])


@pytest.mark.parametrize("seed", range(int(os.environ.get("TRINE_GPU_FOLD_EXAMPLES", "60"))))
def test_random_relative_programs_with_switches_that_add_up(seed):
    """Multimem operands with members by distance: one switch folds, several do not; also with one change."""
    turned = relative_switched_case(seed)
    _, folded = assert_exact(turned, ("compiled", "reference") if seed < 8 else ("compiled",))
    if turned.cluster.routing == "ecmp-split":
        assert folded is None
    assert_exact(perturbed(turned, seed)[0])


def test_most_of_those_on_one_switch_fold():
    cases = [relative_switched_case(seed, step=1) for seed in range(40)]
    cases = [case for case in cases if case.cluster.routing != "ecmp-split" and has_multimem(case.program)]
    found = [fold_system(system_of(case))[0] for case in cases]
    assert len(found) >= 20
    assert sum(folded is not None and folded.num_gpus == 1 for folded in found) >= 0.7 * len(found)


def test_members_by_absolute_rank_are_refused():
    """All ranks sum over the same GPUs: one rank's own member is another rank's neighbour."""
    programmer = Programmer(4)
    for rank in range(4):
        programmer.kernel(rank, workgroups=1)
        members = [rank, *(other for other in range(4) if other != rank)]
        programmer.load(2, *multimem(READ_SUM, members))
    cluster = star(4)
    why, _ = assert_exact(Case(programmer.build(), small_model(), cluster, list(cluster.gpus)))
    assert why.startswith("peers depend on the absolute rank")


def test_most_of_them_fold():
    found = [fold_system(system_of(relative_case(seed, step=1)))[0] for seed in range(40)]
    assert sum(folded is not None and folded.num_gpus == 1 for folded in found) >= 25


def everybody_loads(ranks, peers, lines=8, moved=lambda rank, peer, ranks: (rank + peer) % ranks):
    programmer = Programmer(ranks)
    for rank in range(ranks):
        programmer.kernel(rank, workgroups=2)
        for group in (-2, -1):
            for peer in peers:
                programmer.load(lines, read(moved(rank, peer, ranks), 256 * group + 512), group=group)
    return programmer.build()


def test_peers_by_absolute_rank_are_refused():
    """All ranks use the same port map: port c leads to rank c."""
    absolute = everybody_loads(4, range(4), moved=lambda rank, peer, ranks: peer)
    why, _ = assert_exact(case(absolute))
    assert why.startswith(
        "peers depend on the absolute rank: operation 0 of rank 1 (load) means rank 0, on rank 0 the same"
    )
    assert assert_exact(case(everybody_loads(4, range(4))))[0] is None
    with pytest.raises(InputError, match="nothing to verify: peers depend"):
        run_gpus_of(case(absolute), verify=True)


@pytest.mark.parametrize(
    ("topology", "moved", "classes"),
    [
        ("full", lambda rank, peer, ranks: (rank + peer) % ranks, 1),
        ("switch", lambda rank, peer, ranks: (rank + peer) % ranks, 1),
        ("switch", lambda rank, peer, ranks: rank ^ peer, 4),  # exclusive or: only shifts by half the ranks
        ("switch", lambda rank, peer, ranks: rank ^ (peer & 1), 2),
        ("full", lambda rank, peer, ranks: rank // 4 * 4 + (rank + peer) % 4, 4),  # two rings of four
        ("torus:2x4", lambda rank, peer, ranks: (rank // 4 + peer // 4) % 2 * 4 + (rank + peer) % 4, 1),
        ("torus:2x4", lambda rank, peer, ranks: (rank + peer) % ranks, 4),  # a ring through a torus: only its rows
    ],
)
def test_classes_are_as_many_as_symmetry_says(topology, moved, classes):
    made = case(everybody_loads(8, range(8), moved=moved), topology=topology)
    if topology.startswith("torus"):  # other policies break ties between directions by link number
        made = replace(made, cluster=replace(made.cluster, routing="dimension-order"))
    why, folded = assert_exact(made)
    assert (why, folded.num_gpus) == (None, classes)


def slow_link(made):
    links = list(made.cluster.links)
    links[2] = replace(links[2], bytes_per_s=links[2].bytes_per_s // 3)
    return replace(made, cluster=replace(made.cluster, links=tuple(links)))


def changed(made, column, at, value):
    values = getattr(made.program, column).copy()
    values[at] = value
    return replace(made, program=replace(made.program, **{column: values}))


def two_switches():
    """Return ranks 0 and 2 on one switch, 1 and 3 on another: all messages share the link between the switches."""
    devices = [Device(name=f"g{i}") for i in range(4)] + [
        Device(name=f"s{i}", kind=SWITCH, forwards=True) for i in range(2)
    ]
    wires = [(g, 4 + g % 2, Link(bytes_per_s=100 * GB, latency_ps=500 * NS)) for g in range(4)] + [
        (4, 5, Link(bytes_per_s=30 * GB, latency_ps=500 * NS))
    ]
    wires += [(b, a, link) for a, b, link in wires]
    cluster = Cluster(
        name="two switches", devices=tuple(devices), links=LinkTable.joined([device.name for device in devices], wires)
    )
    return replace(case(everybody_loads(4, range(4))), cluster=cluster)


def two_lines_become_one():
    """Return a case: rank 1 loads one peer line twice, the others load two; all use the same channels and sets."""
    programmer = Programmer(4)
    for rank in range(4):
        programmer.kernel(rank, workgroups=1)
        programmer.load(1, read((rank + 1) % 4)).wait()
        programmer.load(1, read((rank + 1) % 4, 0 if rank == 1 else 128 * 8))
    return Case(programmer.build(), cached_model(), *network(4))


LOADS = everybody_loads(4, range(4))

#: checks of folding, each with a case that only they keep from folding
FAULTS = {
    "folding._programs": changed(case(LOADS), "operand_rank", 5, 3),
    "folding._memory": changed(case(LOADS), "operand_address", 5, 512),
    "folding._same_lines": two_lines_become_one(),
    "folding._different_link": slow_link(case(LOADS)),
    "folding._different_link folding._unowned_link": two_switches(),
}


@pytest.mark.parametrize("checks", FAULTS)
def test_verifying_finds_what_a_missing_check_lets_through(checks, monkeypatch):
    why, _ = assert_exact(FAULTS[checks])
    assert why is not None
    for check in checks.split():
        says = True if check == "folding._same_lines" else None
        monkeypatch.setattr(f"trine.gpu.{check}", lambda *given, says=says: says)
    with pytest.raises(SimulationError, match="folded"):
        run_gpus_of(FAULTS[checks], verify=True)


def test_verifying_finds_a_wrong_mirror_image(monkeypatch):
    """The folded system has the wrong peers for the simulated rank, so its links stand for the wrong ones."""
    made = case(everybody_loads(4, (0, 1, 1, 2)), topology="full")
    assert run_gpus_of(made, verify=True).fold.verified
    fold = fold_system

    def turned(system):
        folded, why = fold(system)
        return replace(folded, operand_peer=((folded.operand_peer + 1) % 4).astype(np.int32)), why

    monkeypatch.setattr("trine.gpu.folding.fold_system", turned)
    with pytest.raises(SimulationError, match="folded"):
        run_gpus_of(made, verify=True)


@pytest.mark.parametrize("topology", ["full", "switch"])
@pytest.mark.parametrize("ranks", [4, 8])
def test_bytes_of_a_folded_run_are_all_there(topology, ranks):
    """Every rank loads 2 x 40 lines from each peer: 80 requests out and 80 lines back, over each link of the route."""
    lines = 40
    made = case(everybody_loads(ranks, range(1, ranks), lines), topology=topology)
    run = run_gpus_of(made, verify=True)
    assert run.fold.classes == 1
    assert run.gpu.loads.tolist() == [2 * lines * (ranks - 1)]
    crossed = 1 if topology == "full" else ranks - 1
    by_link = {}
    for link, data, control in zip(run.gpu.lane_link, run.gpu.lane_data, run.gpu.lane_control, strict=True):
        there = by_link.setdefault(int(link), [0, 0])
        there[0], there[1] = there[0] + int(data), there[1] + int(control)
    used = [counts for counts in by_link.values() if sum(counts)]
    assert len(used) == (ranks - 1 if topology == "full" else 2)
    assert used == [[2 * lines * crossed] * 2] * len(used)


def test_little_and_the_rate_of_a_saturated_link_of_a_folded_run():
    """Little's law within 1 %: outstanding lines are rate x latency, and the bottleneck link is never idle."""
    ranks, lines = 8, 9000
    programmer = Programmer(ranks)
    for rank in range(ranks):
        programmer.kernel(rank, workgroups=4)
        for group in range(-4, 0):
            programmer.load(lines, read((rank + 1) % ranks), group=group)
    # with FIFO arbitration, requests wait behind a burst of responses, and the link is idle in the meantime
    ports = Ports(count=1, latency_ps=50 * NS, interleave_bytes=256, arbitration=FAIR)
    model = small_model(unroll=128, num_cus=4, max_outstanding=128, memory=WIDE, launch_ps=0, ports=ports)
    made = Case(programmer.build(), model, *network(ranks))
    links = [replace(link, bytes_per_s=16 * GB) for link in made.cluster.links]
    run = run_gpus_of(replace(made, cluster=replace(made.cluster, links=tuple(links))), verify=True)
    assert run.fold.classes == 1
    outstanding = run.gpu.load_latency_ps[0] / run.end_ps
    assert outstanding == pytest.approx(4 * 128, rel=0.01)
    busiest = run.gpu.lane_busy_ps.max()
    assert busiest == pytest.approx(run.end_ps, rel=0.01)
    rate = run.gpu.loads[0] * (model.line_bytes + 2 * model.header_bytes) / (run.end_ps / 1e12)
    assert rate == pytest.approx(16 * GB, rel=0.01)


WIDE = MemorySystem(num_channels=8, bytes_per_s=400 * GB, latency_ps=300 * NS, interleave_bytes=256)
