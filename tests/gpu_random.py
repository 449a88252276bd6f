"""Random GPUs with random programs that end under any timing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from gpu_cases import GB, Case, Programmer, graph_builder, read, read_flagged, write, write_flagged

from trine.cluster.topologies import build_topology
from trine.gpu.model import (
    CROSSBAR,
    FAIR,
    FIFO,
    HASHED,
    INTERLEAVED,
    L2,
    MESH,
    GpuModel,
    MemorySystem,
    Monitor,
    Noc,
    Ports,
)  # fmt: skip
from trine.gpu.program import (
    ACQUIRE,
    BARRIER,
    COMPUTE,
    COPY,
    DELAY,
    DMA,
    FENCE,
    LOAD,
    NOP,
    READ,
    REDUCE,
    RELEASE,
    STORE,
    WAITCNT,
    WRITE,
    Buffer,
)  # fmt: skip

#: Address of the flags, if a monitor watches them.
FLAGS = 1 << 20
#: Operations that may go to other GPUs as requests.
REMOTE = (LOAD, STORE, COPY, REDUCE, RELEASE)


class RandomCase:
    """Program that ends under any timing.

    It is written in the order of a run that certainly ends: earlier operations release everything that an acquire or
    a flagged load takes. Only one workgroup acquires each semaphore, so that no workgroup takes another's tokens. All
    waiting workgroups have room at the same time, and a CU has more places than requests that can wait for
    semaphores. So all other orders of the same program end too.
    """

    def __init__(self, seed, size=6, without=(), monitored=False):
        rng = self.rng = np.random.default_rng(seed)
        self.seed, self.size, self.without, self.monitored = seed, size, without, monitored
        self.num_ranks = int(rng.choice([1, 2, 2, 3, 4]))
        self.waits = bool(rng.random() < 0.75) or monitored
        self.is_flagged = self.waits and bool(rng.random() < 0.5)
        self.model = self._with_monitor(self._model()) if monitored else self._model()
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
        if self.monitored:
            program = replace(program, buffers=self._buffers())
        cluster = self._cluster()
        graph, task_kernel = self._graph(kernels, cluster)
        return Case(program, self.model, cluster, self._group(cluster), graph, task_kernel)

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

    def _with_monitor(self, model):
        """Add a monitor of any capacity. Several flags share a line; they and the data may be uncached."""
        rng = np.random.default_rng([self.seed, 5])
        monitor = Monitor(capacity=int(rng.choice([0, 1, 2, 64])), wakeup_ps=int(rng.choice([0, 1000, 70_000])))
        return replace(model, monitor=monitor, poll_ps=model.poll_ps or 37_000)

    def _buffers(self):
        flags, data = [(False, False), (True, False), (True, True)][np.random.default_rng([self.seed, 6]).integers(3)]
        return (
            Buffer(name="data", base=0, size_bytes=FLAGS, uncached=data),
            Buffer(name="flags", base=FLAGS, size_bytes=FLAGS, uncached=flags),
        )

    def _l2(self, line, choose):
        ways = choose(1, 2)
        return L2(
            capacity_bytes=line * 4 * ways * choose(1, 4),
            ways=ways,
            bytes_per_s=100 * GB,
            latency_ps=90_000,
            far_ps=choose(0, 40_000),
        )

    def _cluster(self):
        """Return a cluster: several routes if GPUs forward, scale-out links if only copy engines reach other GPUs."""
        texts = ["full", "switch", *{3: ["ring", "mesh:1x3"], 4: ["ring", "torus:2x2"]}.get(self.num_ranks, [])]
        if set(REMOTE) <= set(self.without):
            texts = ["fat-tree:2"]
        bandwidth, latency = self._choose(50, 100, 111) * GB, self._choose(0, 1000, 500_000)
        cluster = build_topology(self._choose(*texts), bandwidth, latency, max(2, self.num_ranks))
        return replace(cluster, routing="ecmp-split") if self._choose(True, False) else cluster

    def _group(self, cluster):
        """Return the device of each rank, in order or permuted."""
        devices = cluster.gpus if self._choose(True, False) else self.rng.permutation(cluster.gpus)
        return [int(device) for device in devices][: self.num_ranks]

    def _kernels(self):
        """Return (rank, phase, workgroups); a phase of a rank begins when its previous phase has ended."""
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
        """Build streams and dependencies within a rank, some idle tasks, and transfers beside the kernels."""
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
        kinds = [LOAD, STORE, COPY, REDUCE, REDUCE, COPY, WAITCNT, BARRIER, COMPUTE, NOP, RELEASE, DMA,
                 FENCE, DELAY]  # fmt: skip
        kinds = [kind for kind in kinds if kind not in self.without]
        waits = [ACQUIRE] * 12 + [RELEASE] * 4 if self.monitored else [ACQUIRE] * 4 if self.waits else []
        kind = self._choose(*kinds, *waits)
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
            amounts = {WAITCNT: (0, 0, 1, 5), COMPUTE: (1, 7, 100), DELAY: (0, 3, 90)}
            add(self._choose(*amounts.get(kind, (0,))))

    def _address(self):
        return int(self.rng.integers(0, 64)) * self.model.line_bytes

    def _peer(self):
        return int(self.rng.integers(self.num_ranks))

    def _flag_address(self, semaphore):
        return FLAGS + semaphore // 3 * self.model.line_bytes + semaphore % 3 * 8 if self.monitored else self._address()

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
        """Return a release of a semaphore that a workgroup of this phase may acquire."""
        taker = groups[self.rng.integers(len(groups))]
        rank = self.programmer_rank(taker)
        known = [key for key, (owner, _) in self.tokens.items() if owner == taker]
        if known and self._choose(True, False):
            key = known[self.rng.integers(len(known))]
        else:
            key = self._new_semaphore(rank, taker)
        self.tokens[key][1] += amount
        return (WRITE, key[0], self._flag_address(key[1]), 0, key[1])

    def _new_semaphore(self, rank, taker):
        key = (rank, self.next_semaphore[rank])
        self.next_semaphore[rank] += 1
        count = int(self._choose(0, 0, 1))
        if count:
            self.initial.append((*key, count))
        self.tokens[key] = [taker, count]
        return key

    def programmer_rank(self, group):
        """Return the rank of a workgroup."""
        return [kernel for kernel in self.programmer.kernels if kernel[2] <= group][-1][0]

    def _acquire(self, rank, group, add):
        ready = [key for key, (owner, count) in self.tokens.items() if owner == group and count > 0]
        if ready:
            key = ready[self.rng.integers(len(ready))]
            amount = int(self.rng.integers(1, self.tokens[key][1] + 1))
            self.tokens[key][1] -= amount
            add(amount, (READ, rank, self._flag_address(key[1]), 0, key[1]))


class AcrossCase(RandomCase):
    """Kernels, computes, transfers and joins that wait for earlier phases of any rank.

    They end under any timing, since the program is written phase by phase.
    """

    def _few(self):
        return self._choose(1, 2, 2, 3)

    def _graph(self, kernels, cluster):
        rng = np.random.default_rng([self.seed, 7])
        self.builder, self.task_kernel, self.cluster = graph_builder(cluster), [], cluster
        before, number = [], {}
        for phase in range(max(kernel[1] for kernel in kernels) + 1):
            now = [self._beside(rng, before) for _ in range(int(rng.integers(0, 6)))]
            for kernel, (rank, when, _) in enumerate(kernels):
                if when == phase:
                    own = [number[k] for k, other in enumerate(kernels) if other[0] == rank and other[1] < phase]
                    after = sorted({*own, *self._some(rng, before + now)})
                    number[kernel] = self.builder.compute(rank, f"kernel {kernel}", 0, after)
                    self.task_kernel.append(kernel)
            before = sorted({*before, *now, *number.values()})
        self.builder.join(before)
        return self.builder.build(), [*self.task_kernel, -1]

    def _some(self, rng, tasks):
        return rng.choice(tasks, min(len(tasks), int(rng.integers(0, 4))), replace=False).tolist() if tasks else []

    def _beside(self, rng, before):
        """Add a task without a kernel."""
        after, rank = self._some(rng, before), int(rng.integers(self.num_ranks))
        self.task_kernel.append(-1)
        kind = int(rng.integers(4))
        if kind == 0:
            return self.builder.compute(rank, f"stream {rng.integers(2)}", int(rng.choice([0, 1000, 912_345])), after)
        if kind == 1 and after:
            return self.builder.join(
                after, need=int(rng.integers(1, len(after) + 1)), rank=rank if rng.integers(4) else -1
            )
        gpus = self.cluster.gpus
        a, b = (int(i) for i in rng.choice(len(gpus), 2, replace=False))
        route = self.cluster.paths(gpus[a], gpus[b])[0][0]
        return self.builder.transfer(a, b, route, int(rng.choice([0, 100, 20_000, 60_001])), after)


def random_case(seed, size=6, without=(), monitored=False):
    """Return a random case. ``size``: operations per workgroup, roughly. monitored: with a monitor.

    ``without``: kinds, "transfers", "kernels" (more than one per rank).
    """
    return RandomCase(seed, size, without, monitored).case()


def across_case(seed, size=4, without=()):
    """Return a case like :func:`random_case`'s, whose tasks wait for tasks of other ranks."""
    return AcrossCase(seed, size, without).case()
