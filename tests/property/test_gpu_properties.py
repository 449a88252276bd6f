"""Do GPU-internal runs obey the invariants that hold for any timing?"""

from dataclasses import replace

import numpy as np
import pytest
from gpu_cases import assert_same
from gpu_random import random_case

from trine.cluster.topologies import build_topology
from trine.gpu.program import ACQUIRE, DMA, READ_FLAGGED, RELEASE, WRITE, WRITE_FLAGGED
from trine.gpu.reference import GpuReference

SEEDS = range(20)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_wake_up_is_lost_and_no_token(seed):
    """The program ends under any timing, so the run must end; tokens released but not acquired must remain."""
    case = random_case(seed)
    run = GpuReference(case.system())
    assert run.run(None)
    left = np.array([memory.values for memory in run.messages.memories])
    np.testing.assert_array_equal(left, case.program.semaphores + tokens(case.program))
    assert not any(queue for memory in run.messages.memories for queue in memory.waiters.values())


def tokens(program):
    """Return the program's total change of each semaphore, shape (ranks, semaphores)."""
    added = np.zeros(program.semaphores.shape, np.int64)
    for op in range(program.num_ops):
        kind, amount = program.op_kind[op], int(program.op_amount[op])
        for i in range(program.operand_ptr[op], program.operand_ptr[op + 1]):
            role, rank, semaphore = program.operand_role[i], program.operand_rank[i], program.operand_semaphore[i]
            if semaphore < 0:
                continue
            if role in (READ_FLAGGED, WRITE_FLAGGED):
                added[rank, semaphore : semaphore + amount] += 1 if role == WRITE_FLAGGED else -1
            elif kind in (ACQUIRE, RELEASE):
                added[rank, semaphore] += amount if kind == RELEASE else -amount
            elif kind == DMA and role == WRITE:
                added[rank, semaphore] += 1
    return added


@pytest.mark.parametrize("engine", ["reference", "compiled"])
@pytest.mark.parametrize("seed", range(5))
def test_two_runs_do_not_differ(engine, seed):
    assert_same(random_case(seed).simulate(engine), random_case(seed).simulate(engine))


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_happens_before_its_cause(seed):
    case = random_case(seed)
    outcome = case.simulate("compiled")
    records, gpu, program, model = outcome.records, outcome.gpu, case.program, case.model
    assert (records.ready_ps <= records.start_ps).all()
    assert (records.start_ps <= records.end_ps).all()
    task_of = {kernel: task for task, kernel in enumerate(case.task_kernel) if kernel >= 0}
    for kernel in range(program.num_kernels):
        groups = slice(program.kernel_ptr[kernel], program.kernel_ptr[kernel + 1])
        task = task_of[kernel]
        assert (gpu.workgroup_start_ps[groups] >= records.start_ps[task] + model.launch_ps).all()
        assert gpu.workgroup_end_ps[groups].max() == records.end_ps[task]
    for group in range(program.num_workgroups):
        ops = slice(program.workgroup_ptr[group], program.workgroup_ptr[group + 1])
        start, end = gpu.op_start_ps[ops], gpu.op_end_ps[ops]
        assert (start >= gpu.workgroup_start_ps[group]).all()
        assert (end <= gpu.workgroup_end_ps[group]).all()
        assert (start <= end).all()
        assert (np.diff(start) >= 0).all() or program.op_kind[ops].size == 0 or has_control(program, ops)


def has_control(program, ops):
    """Return whether a workgroup has control operations: its other wavefronts skip these and start later ops sooner."""
    return np.isin(program.op_kind[ops], (ACQUIRE, RELEASE, DMA)).any()


@pytest.mark.parametrize("seed", SEEDS)
def test_wavefronts_are_always_in_one_state(seed):
    """State times add up to a wavefront's lifetime: exactly if each workgroup has one wavefront, else within bounds."""
    case = random_case(seed)
    gpu = case.simulate("compiled").gpu
    width = np.repeat(case.program.kernel_wavefronts, np.diff(case.program.kernel_ptr))
    rank = np.repeat(case.program.kernel_rank, np.diff(case.program.kernel_ptr))
    lasted = gpu.workgroup_end_ps - gpu.workgroup_start_ps
    for gpu_number in range(case.program.num_ranks):
        for cu in range(case.model.num_cus):
            there = (rank == gpu_number) & (gpu.workgroup_cu == cu)
            in_all = gpu.state_ps[gpu_number, cu].sum()
            assert lasted[there].sum() <= in_all <= (lasted * width)[there].sum()


@pytest.mark.parametrize("seed", SEEDS)
def test_no_server_is_busy_for_longer_than_the_run(seed):
    case = random_case(seed)
    gpu = case.simulate("compiled").gpu
    # L2 write-backs may keep a memory channel busy after the end
    channels = np.array([kind == "memory" and case.model.l2 is not None for kind in gpu.resources.kinds])
    assert (gpu.resource_busy_ps[:, ~channels] <= gpu.end_ps).all()
    assert (gpu.lane_busy_ps <= gpu.end_ps).all()


@pytest.mark.parametrize("topology", ["full", "switch"])
@pytest.mark.parametrize("seed", range(12))
def test_turning_the_ranks_changes_nothing(seed, topology):
    """Rank r becomes r + 1 on the same device: each GPU's times stay the same."""
    case = random_case(seed, without=("transfers",))
    n = case.program.num_ranks
    cluster = build_topology(topology, 10**11, 10**5, max(2, n))
    case = replace(case, cluster=cluster, group=list(cluster.gpus)[:n])
    turned = replace(case, program=turn(case.program), group=[case.group[(rank - 1) % n] for rank in range(n)])
    before, after = case.simulate("compiled"), turned.simulate("compiled")
    np.testing.assert_array_equal(before.records.end_ps, after.records.end_ps)
    for field in ("workgroup_start_ps", "workgroup_end_ps", "workgroup_cu", "op_start_ps", "op_end_ps"):
        np.testing.assert_array_equal(getattr(before.gpu, field), getattr(after.gpu, field), err_msg=field)
    for field in ("state_ps", "resource_data", "resource_control", "resource_busy_ps", "loads", "load_latency_ps"):
        one, other = getattr(before.gpu, field), getattr(after.gpu, field)
        np.testing.assert_array_equal(one, np.roll(other, -1, axis=0), err_msg=field)


def turn(program):
    n = program.num_ranks
    return replace(
        program,
        kernel_rank=(program.kernel_rank + 1) % n,
        operand_rank=(program.operand_rank + 1) % n,
        semaphores=np.roll(program.semaphores, 1, axis=0),
    )


@pytest.mark.parametrize("seed", range(10))
def test_tasks_beside_the_kernels_may_be_numbered_otherwise(seed):
    """Task numbers of other GPUs do not affect a kernel that has its GPU to itself."""
    case = random_case(seed, without=("transfers", "kernels"))
    shifted = replace(case, graph=reversed_tasks(case.graph), task_kernel=case.task_kernel[::-1])
    one, other = case.simulate("compiled"), shifted.simulate("compiled")
    np.testing.assert_array_equal(one.records.end_ps, other.records.end_ps[::-1])
    np.testing.assert_array_equal(one.gpu.workgroup_end_ps, other.gpu.workgroup_end_ps)


def reversed_tasks(graph):
    n = graph.num_tasks
    rows = [graph.predecessors(i) for i in range(n)][::-1]
    flat = [n - 1 - int(task) for row in rows for task in row]
    columns = {name: getattr(graph, name)[::-1].copy() for name in COLUMNS}
    ptr = np.concatenate(([0], np.cumsum([len(row) for row in rows]))).astype(np.int64)
    return replace(graph, predecessor_ptr=ptr, predecessor_idx=np.array(flat, np.int32), **columns)


COLUMNS = ("kind", "rank", "peer", "stream", "duration_ps", "size_bytes", "route", "num_required")
