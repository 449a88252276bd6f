"""Runs of one rank alone with its peers replayed, and the results that must equal the full run's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from gpu_cases import case, graph_builder

from trine.gpu.model import FAIR
from trine.gpu.peers import IDEAL, PeerWrites
from trine.gpu.records import OF_GPU, OF_LANE, OF_OPERATION, OF_WORKGROUP
from trine.graph.taskgraph import COMPUTE

ENGINES = ("reference", "compiled")


def run(system, engine="reference", **how):
    if engine == "reference":
        from trine.gpu.reference import simulate
    else:
        from trine.gpu.compiled import simulate
    return simulate(system, **how)


def recorded(system, rank, engine="reference"):
    """Return the outcome of a run, with the arrivals at the GPU that represents ``rank``."""
    return run(replace(system, record=int(system.gpu_of[rank])), engine)


class Part:
    """Part of a program of all ranks that runs on ``rank``: numbers of kernels, workgroups, operations, operands."""

    def __init__(self, program, rank):
        self.kernels = np.flatnonzero(program.kernel_rank == rank)
        self.workgroups = members(program.kernel_ptr, self.kernels)
        self.operations = members(program.workgroup_ptr, self.workgroups)
        self.operands = members(program.operand_ptr, self.operations)


def members(ptr, rows):
    return np.array([i for row in rows for i in range(ptr[row], ptr[row + 1])], np.int64)


def lengths(ptr, rows):
    return np.cumsum([0, *(ptr[row + 1] - ptr[row] for row in rows)]).astype(np.int64)


def program_of(program, rank, part):
    here = program.operand_rank[part.operands] == rank
    return replace(
        program,
        num_ranks=1,
        kernel_rank=np.zeros(len(part.kernels), np.int32),
        kernel_wavefronts=program.kernel_wavefronts[part.kernels],
        kernel_ptr=lengths(program.kernel_ptr, part.kernels),
        workgroup_ptr=lengths(program.workgroup_ptr, part.workgroups),
        op_kind=program.op_kind[part.operations],
        op_amount=program.op_amount[part.operations],
        op_unroll=program.op_unroll[part.operations],
        op_label=program.op_label[part.operations],
        operand_ptr=lengths(program.operand_ptr, part.operations),
        operand_role=program.operand_role[part.operands],
        operand_rank=np.where(here, 0, -1).astype(np.int32),
        operand_address=program.operand_address[part.operands],
        operand_step=program.operand_step[part.operands],
        operand_semaphore=program.operand_semaphore[part.operands],
        semaphores=program.semaphores[[rank]],
        kernel_names=tuple(program.kernel_names[i] for i in part.kernels) if program.kernel_names else (),
    )


def replayed(system, rank, outside, record=False):
    """Return the system of ``rank`` alone, from a system that simulates all ranks."""
    part = Part(system.program, rank)
    graph, task_kernel = _tasks_of(system, rank, part)
    gpu_of = np.full(system.num_ranks, -1, np.int32)
    gpu_of[rank] = 0
    return replace(
        system,
        program=program_of(system.program, rank, part),
        ranks=np.array([rank], np.int32),
        gpu_of=gpu_of,
        operand_peer=system.operand_peer[part.operands],
        graph=graph,
        task_kernel=task_kernel,
        outside=outside,
        record=0 if record else -1,
    )


def tasks_of_rank(system, rank):
    return np.flatnonzero((system.graph.kind == COMPUTE) & (system.graph.rank == rank)).tolist()


def _tasks_of(system, rank, part):
    """Return the rank's tasks, of kernels and others, with their streams and dependencies."""
    graph, builder, number, kernels = system.graph, graph_builder(system.fabric.cluster), {}, []
    for task in tasks_of_rank(system, rank):
        before = graph.predecessors(task).tolist()
        stream = graph.stream_names[graph.stream[task]] if graph.stream[task] >= 0 else f"alone {task}"
        duration_ps = int(graph.duration_ps[task])
        number[task] = builder.compute(rank, stream, duration_ps, [number[other] for other in before])
        kernel = int(system.task_kernel[task])
        kernels.append(-1 if kernel < 0 else part.kernels.tolist().index(kernel))
    return builder.build(), np.array(kernels, np.int32)


def assert_same_target(full, system, rank, alone, gpu=None):
    """Assert that all results of ``rank`` are equal in ``full``, the run of all ranks of ``system``, and ``alone``.

    gpu: the simulated GPU of the rank, if its number differs.
    """
    gpu = rank if gpu is None else gpu
    part = Part(system.program, gpu)
    assert full.finished
    assert alone.finished
    tasks = tasks_of_rank(system, rank)
    for field in ("ready_ps", "start_ps", "end_ps"):
        equal(getattr(full.records, field)[tasks], getattr(alone.records, field), field)
    for fields, rows in zip((OF_WORKGROUP, OF_OPERATION), (part.workgroups, part.operations), strict=True):
        for field in fields:
            equal(getattr(full.gpu, field)[rows], getattr(alone.gpu, field), field)
    for field in OF_GPU:
        equal(getattr(full.gpu, field)[gpu], getattr(alone.gpu, field)[0], field)
    device = system.fabric.group[rank]
    for field, a, b in zip(
        OF_LANE, lanes_out_of(full, system, device), lanes_out_of(alone, system, device), strict=True
    ):
        equal(a, b, field)


def lanes_out_of(outcome, system, device):
    gpu = outcome.gpu
    used = (gpu.lane_data + gpu.lane_control > 0) & (system.fabric.cluster.link_table.source[gpu.lane_link] == device)
    columns = [getattr(gpu, field)[used] for field in OF_LANE]
    order = np.lexsort((columns[1], columns[0]))
    return [column[order] for column in columns]


def assert_same_arrivals(one, other):
    for field in (
        "target",
        "num_ranks",
        "time_ps",
        "rank",
        "place",
        "number",
        "kind",
        "address",
        "semaphore",
        "amount",
    ):
        equal(getattr(one, field), getattr(other, field), field)
    a, b = answers(one), answers(other)
    for i, field in enumerate(("answer_place", "answer_number", "answer_ps", "answer_refused")):
        equal(a[i], b[i], field)


def answers(arrivals):
    """Return the answers by place and number: their order of arrival does not matter."""
    columns = (arrivals.answer_place, arrivals.answer_number, arrivals.answer_ps, arrivals.answer_refused)
    order = np.lexsort((arrivals.answer_number, arrivals.answer_place))
    return [column[order] for column in columns]


def equal(a, b, field):
    np.testing.assert_array_equal(a, b, err_msg=field)


def leads_through(system, rank):
    """Return whether a route between two other ranks leads through ``rank``, which is not replayed then."""
    cluster, group = system.fabric.cluster, system.fabric.group
    target = cluster.link_table.target
    return any(
        group[rank] in target[list(route[:-1])]
        for a in group
        for b in group
        if a != b and group[rank] not in (a, b)
        for route, _ in cluster.paths(a, b)
    )


def writes(*entries, fabric=IDEAL):
    """Return peer writes from entries (peer, address, bytes, semaphore, value, time in ps)."""
    columns = [*zip(*entries, strict=True)] or [()] * 6
    peer, address, size_bytes, semaphore, value, time_ps = columns
    return PeerWrites(
        peer=np.array(peer, np.int32),
        address=np.array(address, np.int64),
        size_bytes=np.array(size_bytes, np.int64),
        semaphore=np.array(semaphore, np.int32),
        value=np.array(value, np.int64),
        time_ps=np.array(time_ps, np.int64),
        fabric=fabric,
    )


def alone(program, model, outside=None, engine="reference", how=None, record=False, **network):
    """Return the outcome of rank 0 of ``program`` alone, with ``outside`` (writes, a record)."""
    system = replayed(case(program, model, **network).system(), 0, outside, record)
    return run(system, engine, **(how or {}))


def by_instant(system):
    """Return whether a record is enough: not with fair lanes and links without latency (docs/design/replay.md)."""
    ports = system.model.ports
    latencies = system.fabric.cluster.link_table.latency_ps
    return ports.arbitration != FAIR or ports.latency_ps > 0 or bool((latencies > 0).all())
