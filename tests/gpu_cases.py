"""Small GPUs, and programs written operation by operation."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from trine.cluster.topologies import build_topology
from trine.gpu.model import MESH, GpuModel, MemorySystem, Noc, Ports
from trine.gpu.program import (
    ACQUIRE,
    BARRIER,
    COMPUTE,
    COPY,
    DELAY,
    DMA,
    FENCE,
    LOAD,
    READ,
    READ_FLAGGED,
    REDUCE,
    RELEASE,
    STORE,
    WAITCNT,
    WRITE,
    WRITE_FLAGGED,
    GpuProgram,
)
from trine.gpu.records import OF_GPU, OF_LANE, OF_OPERATION, OF_WORKGROUP
from trine.gpu.system import KernelTasks, unfolded
from trine.gpu.validate import validate_program
from trine.graph.builder import TaskGraphBuilder

GB = 10**9
NS = 1000


def small_model(**changes):
    """Every rate and latency another number, so that a sum with a wrong term is a wrong sum."""
    model = GpuModel(
        name="small",
        cycle_ps=500,
        num_cus=2,
        workgroups_per_cu=2,
        wavefronts_per_cu=8,
        line_bytes=128,
        header_bytes=16,
        unroll=4,
        max_outstanding=64,
        issue_cycles=1,
        reduce_bytes_per_cycle=64,
        posted_stores=True,
        noc=Noc(kind=MESH, bytes_per_s=64 * GB, hop_ps=3 * NS, rows=2, cols=3),
        memory=MemorySystem(num_channels=2, bytes_per_s=40 * GB, latency_ps=300 * NS, interleave_bytes=256),
        ports=Ports(count=2, latency_ps=50 * NS, interleave_bytes=256),
        launch_ps=2000 * NS,
        dispatch_ps=7 * NS,
        barrier_ps=11 * NS,
        fence_ps=230 * NS,
        dma_ps=500 * NS,
        packet_bytes=4096,
        packet_header_bytes=64,
    )
    return replace(model, **changes)


class Programmer:
    """Write a program: ``kernel``, ``workgroup``, then its operations; each takes operands made by ``at``."""

    def __init__(self, num_ranks, num_semaphores=1, line_bytes=128):
        self.num_ranks, self.line_bytes = num_ranks, line_bytes
        self.semaphores = np.zeros((num_ranks, num_semaphores), np.int32)
        self.kernels, self.workgroups, self.operations = [], [], []

    def kernel(self, rank, wavefronts=1, workgroups=0):
        self.kernels.append((rank, wavefronts, len(self.workgroups)))
        return [self.workgroup() for _ in range(workgroups)]

    def workgroup(self):
        self.workgroups.append([])
        return len(self.workgroups) - 1

    def add(self, kind, amount=0, *operands, unroll=0, group=-1):
        self.workgroups[group].append((kind, amount, unroll, operands))
        return self

    def load(self, lines, *reads, **how):
        return self.add(LOAD, lines, *reads, **how)

    def store(self, lines, *writes, **how):
        return self.add(STORE, lines, *writes, **how)

    def copy(self, lines, read, *writes, **how):
        return self.add(COPY, lines, read, *writes, **how)

    def reduce(self, lines, *operands, **how):
        return self.add(REDUCE, lines, *operands, **how)

    def acquire(self, rank, semaphore, amount=1, address=0, **how):
        return self.add(ACQUIRE, amount, (READ, rank, address, 0, semaphore), **how)

    def release(self, rank, semaphore, amount=1, address=0, **how):
        return self.add(RELEASE, amount, (WRITE, rank, address, 0, semaphore), **how)

    def dma(self, num_bytes, rank, semaphore=-1, address=0, **how):
        source = [(READ, self.kernels[-1][0], 0, 0, -1)] if num_bytes else []
        return self.add(DMA, num_bytes, *source, (WRITE, rank, address, 0, semaphore), **how)

    def wait(self, left=0, **how):
        return self.add(WAITCNT, left, **how)

    def barrier(self, **how):
        return self.add(BARRIER, **how)

    def compute(self, cycles, **how):
        return self.add(COMPUTE, cycles, **how)

    def fence(self, **how):
        return self.add(FENCE, **how)

    def delay(self, cycles, **how):
        return self.add(DELAY, cycles, **how)

    def build(self):
        flat = [operation for group in self.workgroups for operation in group]
        operands = [operand for operation in flat for operand in operation[3]]
        columns = [np.array(column) for column in zip(*operands, strict=True)] if operands else [np.zeros(0)] * 5
        role, rank, address, step, semaphore = columns
        n = len(flat)
        return GpuProgram(
            name="test",
            num_ranks=self.num_ranks,
            kernel_rank=np.array([k[0] for k in self.kernels], np.int32),
            kernel_wavefronts=np.array([k[1] for k in self.kernels], np.int32),
            kernel_ptr=np.array([k[2] for k in self.kernels] + [len(self.workgroups)], np.int64),
            workgroup_ptr=np.cumsum([0] + [len(group) for group in self.workgroups]).astype(np.int64),
            op_kind=np.array([operation[0] for operation in flat], np.int8),
            op_amount=np.array([operation[1] for operation in flat], np.int64),
            op_unroll=np.array([operation[2] for operation in flat], np.int32),
            op_label=np.full(n, -1, np.int32),
            operand_ptr=np.cumsum([0] + [len(operation[3]) for operation in flat]).astype(np.int64),
            operand_role=role.astype(np.int8),
            operand_rank=rank.astype(np.int32),
            operand_address=address.astype(np.int64),
            operand_step=step.astype(np.int32),
            operand_semaphore=semaphore.astype(np.int32),
            semaphores=self.semaphores,
            line_bytes=self.line_bytes,
        )


def read(rank, address=0, step=128):
    return (READ, rank, address, step, -1)


def write(rank, address=0, step=128):
    return (WRITE, rank, address, step, -1)


def read_flagged(rank, semaphore, address=0, step=128):
    return (READ_FLAGGED, rank, address, step, semaphore)


def write_flagged(rank, semaphore, address=0, step=128):
    return (WRITE_FLAGGED, rank, address, step, semaphore)


@dataclass
class Case:
    program: GpuProgram
    model: GpuModel
    cluster: object
    group: list
    graph: object = None
    task_kernel: object = None

    def system(self):
        validate_program(self.program, self.model, self.program.num_ranks)
        graph, task_kernel = self.graph, self.task_kernel
        if graph is None:
            graph, task_kernel = tasks_of(self.program, self.cluster)
        tasks = KernelTasks(graph, np.asarray(task_kernel, np.int32))
        return unfolded(self.program, self.cluster, self.group, self.model, tasks)

    def simulate(self, engine="reference", **how):
        if engine == "reference":
            from trine.gpu.reference import simulate
        else:
            from trine.gpu.compiled import simulate
        return simulate(self.system(), **how)


def graph_builder(cluster):
    links = cluster.link_table
    return TaskGraphBuilder(links.bytes_per_s.tolist(), links.latency_ps.tolist())


def tasks_of(program, cluster):
    """Each kernel a task, all at once."""
    builder = graph_builder(cluster)
    for kernel, rank in enumerate(program.kernel_rank.tolist()):
        builder.compute(rank, f"kernel {kernel}", 0)
    return builder.build(), list(range(program.num_kernels))


def case(program, model=None, topology="full", bandwidth=100 * GB, latency=700 * NS, num_gpus=None):
    """``program`` on GPUs of ``model`` in a regular network; all of them."""
    n = program.num_ranks if num_gpus is None else num_gpus
    cluster = build_topology(topology, bandwidth, latency, n)
    return Case(program, model or small_model(), cluster, list(cluster.gpus)[: program.num_ranks])


def line_totals(program):
    """Lines that a program loads and stores: (loads, stores), a number a rank each."""
    loads, stores = np.zeros(program.num_ranks, int), np.zeros(program.num_ranks, int)
    rank_of_op = program.op_rank
    for op in range(program.num_ops):
        if program.op_kind[op] not in (LOAD, STORE, COPY, REDUCE):
            continue
        roles = program.operand_role[program.operand_ptr[op] : program.operand_ptr[op + 1]]
        loads[rank_of_op[op]] += program.op_amount[op] * np.isin(roles, (READ, READ_FLAGGED)).sum()
        stores[rank_of_op[op]] += program.op_amount[op] * np.isin(roles, (WRITE, WRITE_FLAGGED)).sum()
    return loads, stores


EVERYTHING = (*OF_WORKGROUP, *OF_OPERATION, *OF_GPU, *OF_LANE, "end_ps")


def assert_same(one, other):
    """Two outcomes are equal in everything that is recorded."""
    assert one.finished == other.finished
    for field in ("ready_ps", "start_ps", "end_ps"):
        np.testing.assert_array_equal(getattr(one.records, field), getattr(other.records, field), err_msg=field)
    one_by_link, other_by_link = by_link(one.gpu), by_link(other.gpu)
    for field in EVERYTHING:
        a, b = getattr(one.gpu, field), getattr(other.gpu, field)
        if field.startswith("lane"):
            a, b = a[one_by_link], b[other_by_link]
        np.testing.assert_array_equal(a, b, err_msg=field)


def by_link(gpu):
    """Lanes that carried something, by link."""
    order = np.lexsort((gpu.lane_number, gpu.lane_link))
    return order[(gpu.lane_data + gpu.lane_control)[order] > 0]


def counting_words(program: GpuProgram) -> GpuProgram:
    """Reads of counters and handles, which nobody writes in the program, become writes: the checker follows data."""
    role = program.operand_role.copy()
    first = np.minimum(program.operand_ptr[:-1], len(role) - 1)
    words = [buffer for buffer in program.buffers if buffer.name in ("words", "plan")]
    address = program.operand_address[first]
    of_words = np.any([(b.base <= address) & (address < b.base + b.size_bytes) for b in words], axis=0)
    loads = (program.op_kind == LOAD) & (role[first] == READ) & of_words
    assert loads.any()
    role[first[loads]] = WRITE
    return replace(program, op_kind=np.where(loads, STORE, program.op_kind).astype(np.int8), operand_role=role)
