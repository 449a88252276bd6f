"""Small GPUs, programs written operation by operation, and random ones that end whatever the timing is."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from trine.cluster.topologies import build_topology
from trine.gpu.system import unfolded
from trine.gpu.validate import validate_program
from trine.model.builder import TaskGraphBuilder
from trine.model.gpumodel import CROSSBAR, FAIR, FIFO, HASHED, INTERLEAVED, L2, MESH, GpuModel, MemorySystem, Noc, Ports
from trine.model.gpuprogram import (
    ACQUIRE,
    BARRIER,
    COMPUTE,
    COPY,
    DMA,
    LOAD,
    NOP,
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
        return unfolded(self.program, self.cluster, self.group, self.model, graph, np.asarray(task_kernel, np.int32))

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
    rank_of_op = np.repeat(np.repeat(program.kernel_rank, np.diff(program.kernel_ptr)), np.diff(program.workgroup_ptr))
    for op in range(program.num_ops):
        if program.op_kind[op] not in (LOAD, STORE, COPY, REDUCE):
            continue
        roles = program.operand_role[program.operand_ptr[op] : program.operand_ptr[op + 1]]
        loads[rank_of_op[op]] += program.op_amount[op] * np.isin(roles, (READ, READ_FLAGGED)).sum()
        stores[rank_of_op[op]] += program.op_amount[op] * np.isin(roles, (WRITE, WRITE_FLAGGED)).sum()
    return loads, stores


class RandomCase:
    """A program that ends whatever the timing is.

    It is written in the order of one run of it that certainly ends: an acquire or a flagged load stands only where what
    it takes has been released before, by what stands before it. Each semaphore is taken from by one workgroup alone, so
    that nobody takes what another was meant to have. All workgroups that wait have room at the same time, and a CU has
    more places than requests on it can wait for semaphores. So all other orders of the same program end too.
    """

    def __init__(self, seed, size=6, without=()):
        rng = self.rng = np.random.default_rng(seed)
        self.size, self.without = size, without
        self.num_ranks = int(rng.choice([1, 2, 2, 3, 4]))
        self.waits = bool(rng.random() < 0.75)
        self.is_flagged = self.waits and bool(rng.random() < 0.5)
        self.model = self._model()
        self.next_semaphore = [0] * self.num_ranks
        #: tokens that wait for their workgroup: (rank, semaphore) -> [workgroup, count]; flagged lines not yet read
        self.tokens, self.flagged = {}, []
        self.initial = []
        self.programmer = Programmer(self.num_ranks, 1, self.model.line_bytes)

    def case(self):
        kernels = self._kernels()
        for phase in range(max(kernel[1] for kernel in kernels) + 1):
            groups = [(k[0], w) for k in kernels if k[1] == phase for w in k[2]]
            for _ in range(len(groups) * self.size):
                rank, group = groups[self.rng.integers(len(groups))]
                self._operation(rank, group, [w for _, w in groups])
        programmer = self.programmer
        programmer.semaphores = np.zeros((self.num_ranks, max(1, *self.next_semaphore)), np.int32)
        for rank, semaphore, count in self.initial:
            programmer.semaphores[rank, semaphore] = count
        program = programmer.build()
        cluster = self._cluster()
        graph, task_kernel = self._graph(kernels, cluster)
        return Case(program, self.model, cluster, list(cluster.gpus)[: self.num_ranks], graph, task_kernel)

    def _choose(self, *values):
        return values[self.rng.integers(len(values))]

    def _model(self):
        choose = self._choose
        crossbar = choose(True, False)
        rows, cols = (0, 0) if crossbar else (choose(1, 2, 3), choose(1, 2, 3))
        line, unroll = choose(64, 128), choose(1, 2, 3)
        per_cu, wide = choose(1, 2, 3), choose(1, 2, 3)
        self.wide, self.most_unroll = wide, unroll + 2
        waiting = per_cu * wide * self.most_unroll if self.is_flagged else per_cu if self.waits else 0
        return GpuModel(
            name="random",
            cycle_ps=choose(500, 1000, 555),
            num_cus=choose(1, 2, 3, 5),
            workgroups_per_cu=per_cu,
            wavefronts_per_cu=per_cu * wide,
            line_bytes=line,
            header_bytes=choose(8, 16, 32),
            unroll=unroll,
            max_outstanding=waiting + choose(1, 2, 3, 8, 32),
            issue_cycles=choose(1, 1, 4),
            reduce_bytes_per_cycle=choose(24, 64, 128),
            posted_stores=choose(True, False),
            noc=Noc(
                kind=CROSSBAR if crossbar else MESH,
                bytes_per_s=choose(64, 128, 100) * GB,
                hop_ps=choose(0, 1000, 3001),
                rows=rows,
                cols=cols,
            ),
            memory=MemorySystem(
                num_channels=choose(1, 2, 4),
                bytes_per_s=choose(32, 64, 37) * GB,
                latency_ps=choose(0, 1000, 200_000),
                interleave_bytes=line * choose(1, 2, 4),
            ),
            ports=Ports(
                count=choose(1, 2, 4),
                latency_ps=choose(0, 1000, 50_000),
                interleave_bytes=line * choose(1, 2),
                choice=choose(INTERLEAVED, HASHED),
                arbitration=choose(FIFO, FAIR),
            ),
            launch_ps=choose(0, 1000, 2_000_000),
            dispatch_ps=choose(0, 1000, 10_000),
            barrier_ps=choose(0, 1000, 20_000),
            dma_ps=choose(0, 1000, 500_000),
            packet_bytes=choose(256, 1000, 4096),
            packet_header_bytes=choose(0, 64),
            poll_ps=choose(None, None, 100_000, 37_000) if self.waits else None,
            l2=self._l2(line, choose) if choose(True, False) else None,
        )

    def _l2(self, line, choose):
        ways = choose(1, 2)
        return L2(capacity_bytes=line * 4 * ways * choose(1, 4), ways=ways, bytes_per_s=100 * GB, latency_ps=90_000)

    def _cluster(self):
        texts = ["full", "switch", "ring"] if self.num_ranks > 2 else ["full", "switch"]
        if self.num_ranks == 4:
            texts.append("torus:2x2")
        bandwidth, latency = self._choose(50, 100, 111) * GB, self._choose(0, 1000, 500_000)
        return build_topology(self._choose(*texts), bandwidth, latency, max(2, self.num_ranks))

    def _kernels(self):
        """(rank, phase, workgroups): a phase of a rank begins when the one before it has ended there."""
        room = self.model.num_cus * self.model.workgroups_per_cu
        kernels = []
        for rank in range(self.num_ranks):
            for phase in range(self._few()):
                left = room if self.waits else room + 4
                for _ in range(self._few()):
                    if left == 0:
                        break
                    count = int(self.rng.integers(1, min(left, 4) + 1))
                    left -= count
                    wavefronts = int(self.rng.integers(1, self.wide + 1))
                    kernels.append((rank, phase, self.programmer.kernel(rank, wavefronts, count)))
        return kernels

    def _few(self):
        return 1 if "kernels" in self.without else self._choose(1, 1, 2)

    def _graph(self, kernels, cluster):
        """Streams and dependencies within a rank, some idle tasks, and transfers beside the kernels."""
        builder, task_kernel, before = graph_builder(cluster), [], {}
        for rank, phase, _ in kernels:
            after = [task for (r, p), tasks in before.items() if r == rank and p < phase for task in tasks]
            if after and self._choose(True, False):
                after = [builder.compute(rank, f"side {builder.num_tasks}", self._choose(0, 1000, 12_345), after)]
                task_kernel.append(-1)
            task = builder.compute(rank, f"kernel {len(task_kernel)}", 0, after)
            before.setdefault((rank, phase), []).append(task)
            task_kernel.append(sum(k >= 0 for k in task_kernel))
        for _ in range(0 if "transfers" in self.without else self._choose(0, 0, 2, 4)):
            a, b = (int(x) for x in self.rng.choice(len(cluster.gpus), 2, replace=False))
            route = cluster.paths(cluster.gpus[a], cluster.gpus[b])[0][0]
            builder.transfer(a, b, route, self._choose(0, 100, 20_000, 20_001))
            task_kernel.append(-1)
        builder.join(range(builder.num_tasks), need=builder.num_tasks // 2)
        return builder.build(), [*task_kernel, -1]

    def _operation(self, rank, group, groups):
        kinds = [LOAD, STORE, COPY, REDUCE, REDUCE, COPY, WAITCNT, BARRIER, COMPUTE, NOP, RELEASE, DMA]
        kinds = [kind for kind in kinds if kind not in self.without]
        kind = self._choose(*kinds, *([ACQUIRE] * 4 if self.waits else []))
        add = lambda amount=0, *operands, **how: self.programmer.add(kind, amount, *operands, group=group, **how)  # noqa: E731
        if kind in (LOAD, STORE, COPY, REDUCE):
            self._data(kind, rank, add)
        elif kind == ACQUIRE:
            self._acquire(rank, group, add)
        elif kind == RELEASE:
            amount = self._choose(1, 1, 2)
            add(amount, *(self._give(groups, amount) for _ in range(self._choose(1, 1, 2, 3))))
        elif kind == DMA:
            operand = self._give(groups, 1)
            num_bytes = self._choose(0, 0, 1, 3000, 9001)
            add(num_bytes, *([(READ, rank, 0, 0, -1)] if num_bytes else []), operand)
        else:
            add({WAITCNT: self._choose(0, 0, 1, 5), COMPUTE: self._choose(1, 7, 100)}.get(kind, 0))

    def _address(self):
        return int(self.rng.integers(0, 64)) * self.model.line_bytes

    def _peer(self):
        return int(self.rng.integers(self.num_ranks))

    def _data(self, kind, rank, add):
        line = self.model.line_bytes
        lines = int(self._choose(0, 1, 2, 5, 9, 24))
        reads = {LOAD: self._choose(1, 1, 2), STORE: 0, COPY: 1, REDUCE: self._choose(1, 2, 3)}[kind]
        writes = {LOAD: 0, STORE: self._choose(1, 1, 2), COPY: self._choose(1, 1, 2), REDUCE: self._choose(0, 1, 2)}[
            kind
        ]
        operands = []
        for _ in range(reads):
            if self.flagged and self._choose(True, False):
                peer, semaphore, count = self.flagged.pop(0)
                lines = min(lines, count)
                operands.append(read_flagged(peer, semaphore, self._address(), line))
            else:
                operands.append(read(self._peer(), self._address(), self._choose(line, line, 2 * line)))
        targets = []
        for _ in range(writes):
            peer = self._peer()
            if self.is_flagged and lines and self._choose(True, False):
                operands.append(write_flagged(peer, self.next_semaphore[peer], self._address(), line))
                targets.append((peer, self.next_semaphore[peer], lines))
                self.next_semaphore[peer] += lines
            else:
                operands.append(write(peer, self._address(), line))
        add(lines, *operands, unroll=int(self._choose(0, 0, 1, self.most_unroll)))
        self.flagged += targets

    def _give(self, groups, amount):
        """A release of a semaphore that some workgroup of this phase or nobody takes from."""
        taker = groups[self.rng.integers(len(groups))]
        rank = self.programmer_rank(taker)
        known = [key for key, (owner, _) in self.tokens.items() if owner == taker]
        if known and self._choose(True, False):
            key = known[self.rng.integers(len(known))]
        else:
            key = self._new_semaphore(rank, taker)
        self.tokens[key][1] += amount
        return (WRITE, key[0], self._address(), 0, key[1])

    def _new_semaphore(self, rank, taker):
        key = (rank, self.next_semaphore[rank])
        self.next_semaphore[rank] += 1
        count = int(self._choose(0, 0, 1))
        if count:
            self.initial.append((*key, count))
        self.tokens[key] = [taker, count]
        return key

    def programmer_rank(self, group):
        """Whose workgroup it is."""
        return [kernel for kernel in self.programmer.kernels if kernel[2] <= group][-1][0]

    def _acquire(self, rank, group, add):
        ready = [key for key, (owner, count) in self.tokens.items() if owner == group and count > 0]
        if ready:
            key = ready[self.rng.integers(len(ready))]
            amount = int(self.rng.integers(1, self.tokens[key][1] + 1))
            self.tokens[key][1] -= amount
            add(amount, (READ, rank, self._address(), 0, key[1]))


def random_case(seed, size=6, without=()):
    """``size``: operations a workgroup, about. ``without``: kinds of operations, "transfers", "kernels" (only one a rank)."""
    return RandomCase(seed, size, without).case()


EVERYTHING = (
    "workgroup_start_ps", "workgroup_end_ps", "workgroup_cu", "op_start_ps", "op_end_ps", "state_ps", "resource_data",
    "resource_control", "resource_busy_ps", "lane_link", "lane_number", "lane_data", "lane_control", "lane_busy_ps",
    "loads", "stores", "acquires", "releases", "polls", "load_latency_ps", "packets", "l2_hits", "l2_misses",
    "end_ps",
)  # fmt: skip


def assert_same(one, other, but=()):
    """Two outcomes are equal in everything that is recorded, ``but`` these."""
    assert one.finished == other.finished
    for field in ("ready_ps", "start_ps", "end_ps"):
        np.testing.assert_array_equal(getattr(one.records, field), getattr(other.records, field), err_msg=field)
    one_by_link, other_by_link = by_link(one.gpu), by_link(other.gpu)
    for field in [name for name in EVERYTHING if name not in but]:
        a, b = getattr(one.gpu, field), getattr(other.gpu, field)
        if field.startswith("lane"):
            a, b = a[one_by_link], b[other_by_link]
        np.testing.assert_array_equal(a, b, err_msg=field)


def by_link(gpu):
    """Lanes that carried something, by link."""
    order = np.lexsort((gpu.lane_number, gpu.lane_link))
    return order[(gpu.lane_data + gpu.lane_control)[order] > 0]
