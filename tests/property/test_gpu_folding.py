"""Is a folded load-store run the unfolded one, to the picosecond; and is what would differ refused?"""

from dataclasses import replace

import numpy as np
import pytest
from gpu_cases import GB, NS, Case, Programmer, case, read, small_model, write
from gpu_relative import perturbed, relative_case

from trine.cluster.cluster import Cluster
from trine.cluster.parts import SWITCH, Device, Wire, make_links
from trine.gpu.fold_verify import same_outcome
from trine.gpu.folding import fold_system
from trine.gpu.run import kernel_tasks, run_gpus
from trine.gpu.system import unfolded
from trine.model.gpumodel import CROSSBAR, L2, MemorySystem, Noc, Ports


def simulate(engine, system):
    if engine == "reference":
        from trine.gpu.reference import simulate as run
    else:
        from trine.gpu.compiled import simulate as run
    return run(system)


def system_of(made):
    graph = kernel_tasks(made.program)
    kernels = np.arange(made.program.num_kernels, dtype=np.int32)
    return unfolded(made.program, made.cluster, made.group, made.model, graph, kernels)


def assert_exact(made, engines=("compiled",)):
    """Whether it folds; if so, both runs are the same, of each engine."""
    whole = system_of(made)
    folded, why = fold_system(whole)
    assert (folded is None) == (why is not None)
    for engine in engines if folded is not None else ():
        same_outcome(folded, simulate(engine, folded), whole, simulate(engine, whole))
    return why, folded


def run_gpus_of(made, **how):
    return run_gpus(made.program, made.cluster, made.group, made.model, **how)


def test_kernels_of_ranks_in_any_order():
    """Two classes; the program lists the kernels of rank 1 before those of rank 0."""
    programmer = Programmer(4)
    for rank in (1, 3, 0, 2):
        programmer.kernel(rank, workgroups=1)
        programmer.load(3 if rank % 2 else 9, read((rank + (1 if rank % 2 else 2)) % 4))
    why, folded = assert_exact(case(programmer.build(), topology="switch"), ("compiled", "reference"))
    assert why is None
    assert folded.num_gpus == 2


def test_ways_back_may_be_more_than_ways_there():
    """Even ranks have two links of two lanes, odd ones a link of four: addresses have to be alike for both."""
    devices = [Device(name=f"g{i}") for i in range(4)] + [Device(name="s", kind=SWITCH, forwards=True)]
    wires = [Wire(g, 4, 100 * GB, 500 * NS) for g in (0, 0, 1, 2, 2, 3)]
    wires += [Wire(4, g, 100 * GB, 500 * NS) for g in range(4)]
    cluster = Cluster(name="uneven", devices=tuple(devices), links=make_links(devices, wires))
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


def test_lines_of_an_l2_are_those_of_each_rank():
    """Rank 3 shares lines with itself that rank 1 does not, in operations that are longer than those of rank 0."""
    period = 128 * 8
    programmer = Programmer(4)
    for rank in range(4):
        programmer.kernel(rank, workgroups=1)
        lines = 9 if rank % 2 else 1
        programmer.load(lines, read(rank, 0)).wait()
        programmer.load(lines, read(rank, 2 * period if rank == 1 else period if rank == 3 else 0)).wait()
    why, folded = assert_exact(Case(programmer.build(), cached_model(), *network(4)))
    assert folded is None
    assert "one line of the L2" in why


def network(ranks, topology="switch"):
    made = case(Programmer(ranks).build(), topology=topology)
    return made.cluster, made.group


def test_semaphores_are_no_lines_of_an_l2():
    """They lie at one address on rank 0, and on rank 1 elsewhere; no line is there."""
    programmer = Programmer(2, 2)
    for rank in range(2):
        programmer.kernel(rank, workgroups=1)
        programmer.store(2, write(rank, 0)).release(1 - rank, 0, address=128 * 8 * rank).acquire(rank, 0, address=0)
    why, folded = assert_exact(Case(programmer.build(), cached_model(), *network(2)))
    assert why is None
    assert folded.num_gpus == 1


def test_tasks_that_carry_kernels_in_another_order_are_not_folded():
    """Tasks begin in their own order; of two kernels of rank 0 the second one is first."""
    programmer = Programmer(2)
    for rank in (0, 0, 1, 1):
        programmer.kernel(rank, workgroups=1)
        programmer.load(2 if len(programmer.kernels) % 2 else 17, read(1 - rank))
    made = case(programmer.build(), topology="switch")
    graph = replace(kernel_tasks(made.program), rank=np.array([0, 0, 1, 1], np.int32))
    runs = [
        run_gpus_of(made, graph=graph, task_kernel=np.array([1, 0, 2, 3], np.int32), fold=fold)
        for fold in ("auto", "off")
    ]
    assert runs[0].end_ps == runs[1].end_ps
    np.testing.assert_array_equal(runs[0].records.end_ps, runs[1].records.end_ps)
