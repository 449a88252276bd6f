"""Random programs that depend only on relative rank, on random networks, and single changes to them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from gpu_cases import GB, Case, Programmer
from gpu_random import RandomCase

from trine.cluster.cluster import Cluster
from trine.cluster.parts import SWITCH, Device, Link
from trine.cluster.tables import LinkTable
from trine.cluster.topologies import build_topology
from trine.gpu.model import HASHED
from trine.gpu.program import ACQUIRE, COMPUTE, DATA_OPS, DMA, READ, READ_FLAGGED, WRITE_FLAGGED


@dataclass
class Turned:
    """Case of all ranks, and the translations that it was made for."""

    case: Case
    grid: tuple
    step: int

    def __getattr__(self, name):
        return getattr(self.case, name)


class RelativeCase(RandomCase):
    """Program of rank 0, turned for all ranks: each rank's peers are at the same distances as rank 0's.

    In each step of the order that proves that it ends, all ranks do the same, so this order ends too.
    """

    def __init__(self, seed, num_ranks=None, size=5, without=("kernels", "transfers"), step=None):
        super().__init__(seed, size, without)
        rng = self.rng
        self.seed = seed
        self.all_ranks = num_ranks or int(rng.choice([2, 3, 4, 4, 5, 6, 8]))
        self.num_ranks, self.next_semaphore = 1, [0]
        self.programmer = Programmer(1, 1, self.model.line_bytes)
        divisors = [d for d in range(1, self.all_ranks) if self.all_ranks % d == 0]
        self.step = step or int(rng.choice([1, 1, *divisors]))

    def case(self):
        one = super().case().program
        cluster, grid = self._machine()
        self.grid, self.cluster = grid, cluster
        program = self.turned(one)
        return Turned(Case(program, self.model, cluster, list(cluster.gpus)[: self.all_ranks]), grid, self.step)

    def _machine(self):
        return relative_cluster(self.rng, self.all_ranks)

    def _rows(self, rank, op, i, kind, row, shift):
        """Return the rows of operand ``i`` of operation ``op`` of the one program on ``rank``: one or several."""
        return [row]

    def _kernels(self):
        """Return the kernels of a single phase, which begin together."""
        left = self.model.num_cus * self.model.workgroups_per_cu
        kernels = []
        for _ in range(self._choose(1, 1, 2, 3)):
            if left > 0:
                count = int(self.rng.integers(1, min(left, 4) + 1))
                left -= count
                kernels.append((0, 0, self.programmer.kernel(0, int(self.rng.integers(1, self.wide + 1)), count)))
        return kernels

    def moved(self, rank, by):
        return moved(self.grid, rank, by)

    def turned(self, one):
        rng, size = self.rng, self.all_ranks
        #: distance to the rank of each operand of rank 0; the same for all residues if semaphores are involved
        kind = np.repeat(one.op_kind, np.diff(one.operand_ptr))
        role = one.operand_role
        away = np.where(rng.random(len(kind)) < 0.35, 0, rng.integers(0, size, len(kind)))
        away[(kind == ACQUIRE) | ((kind == DMA) & (role == READ))] = 0
        if rng.random() < 0.3:
            away = np.where(away > 0, 1, 0)
        flags = {}
        for i in np.flatnonzero((role == WRITE_FLAGGED) | (role == READ_FLAGGED)):
            flags.setdefault(int(i), away[i])
        shift = self._shift()
        out = Programmer(size, 1, self.model.line_bytes)
        order = [rank for rank in range(size) for _ in range(one.num_kernels)]
        if rng.random() < 0.3:
            rng.shuffle(order)
        at = [0] * size
        for rank in order:
            kernel, at[rank] = at[rank], at[rank] + 1
            groups = range(one.kernel_ptr[kernel], one.kernel_ptr[kernel + 1])
            numbers = out.kernel(rank, int(one.kernel_wavefronts[kernel]), len(groups))
            for group, number in zip(groups, numbers, strict=True):
                self._turned_group(out, one, rank, group, number, away, shift)
        out.semaphores = np.repeat(one.semaphores, size, axis=0)
        return out.build()

    def _shift(self):
        """Return the offset of the same data from rank to rank, in bytes: a multiple of all periods."""
        model = self.model
        if model.ports.choice == HASHED or self.rng.random() < 0.5:
            return 0
        sets = 1 if model.l2 is None else model.l2.capacity_bytes // model.line_bytes
        channels = model.memory.interleave_bytes * model.memory.num_channels
        return 64 * math.lcm(
            channels, model.ports.interleave_bytes * 12, model.line_bytes * sets * model.memory.num_channels
        )

    def _turned_group(self, out, one, rank, group, number, away, shift):
        residue = residue_of(self.grid, self.step, rank)
        own = np.random.default_rng([self.seed, 7, group, residue])
        for op in range(one.workgroup_ptr[group], one.workgroup_ptr[group + 1]):
            kind, amount, unroll = int(one.op_kind[op]), int(one.op_amount[op]), int(one.op_unroll[op])
            if residue and kind == COMPUTE:
                amount += int(own.integers(0, 50))
            operands = []
            for i in range(one.operand_ptr[op], one.operand_ptr[op + 1]):
                peer = self.moved(rank, int(away[i]))
                address, semaphore = int(one.operand_address[i]), int(one.operand_semaphore[i])
                if residue and kind in DATA_OPS and semaphore < 0:
                    peer = self.moved(peer, int(own.integers(0, self.all_ranks)))
                    address += int(own.integers(0, 8)) * self.model.line_bytes
                if semaphore < 0:
                    address += shift * (peer if i % 2 else rank)
                row = (int(one.operand_role[i]), peer, address, int(one.operand_step[i]), semaphore)
                operands += self._rows(rank, op, i, kind, row, shift)
            out.add(kind, amount, *operands, unroll=unroll, group=number)


def moved(grid, rank, by):
    out, scale = 0, 1
    for size in reversed(grid):
        out += (rank + by) % size * scale
        rank, by, scale = rank // size, by // size, scale * size
    return out


def residue_of(grid, step, rank):
    """Return a rank's residue: ranks that differ by ``step`` along the last dimension are alike."""
    return rank % grid[-1] % step if grid[-1] % step == 0 else 0


def relative_cluster(rng, ranks):
    """Return a network whose translations may be symmetries, and the grid of its ranks."""
    bandwidth, latency = int(rng.choice([50, 100, 111])) * GB, int(rng.choice([0, 1000, 500_000]))
    choices = ["full", "full", "switch", "switch", "ring", "planes", "parallel", "mixed", "part"]
    if ranks in (4, 6, 8):
        choices += ["torus", "torus"]
    which = rng.choice(choices)
    if which == "torus":
        text = {4: "torus:2x2", 6: "torus:2x3", 8: str(rng.choice(["torus:2x4", "torus:2x2x2", "torus:4x2"]))}[ranks]
        cluster = build_topology(text, bandwidth, latency, ranks)
        return replace(
            cluster, routing=str(rng.choice(["shortest", "dimension-order", "dimension-order"]))
        ), cluster.grid
    if which in ("full", "switch", "ring"):
        text = "full" if which == "ring" and ranks == 2 else str(which)
        return build_topology(text, bandwidth, latency, ranks), (ranks,)
    return custom_cluster(rng, ranks, str(which), bandwidth, latency), (ranks,)


def custom_cluster(rng, ranks, which, bandwidth, latency):
    gpus = [Device(name=f"g{i}", forwards=True) for i in range(ranks)]
    wires = []
    if which == "planes":  # several switches, each GPU on all, of unequal rates
        switches = int(rng.integers(2, 4))
        devices = [*gpus, *(Device(name=f"s{i}", kind=SWITCH, forwards=True) for i in range(switches))]
        for s in range(switches):
            for g in range(ranks):
                wire = (g, ranks + s, Link(bytes_per_s=bandwidth // (1 + s % 2), latency_ps=latency + s % 2))
                wires += [wire, (wire[1], wire[0], wire[2])]
    elif which == "parallel":  # two wires to the next GPU, one to the one after
        devices = gpus
        for g in range(ranks):
            for away in (1, 1, 2) if ranks > 3 else (1, 1):
                wires.append((g, (g + away) % ranks, Link(bytes_per_s=bandwidth // away, latency_ps=latency)))
                if ranks > 2 or g == 0:
                    wires.append(((g + away) % ranks, g, Link(bytes_per_s=bandwidth, latency_ps=latency)))
        if ranks == 2:
            wires = [
                (0, 1, Link(bytes_per_s=bandwidth, latency_ps=latency)),
                (1, 0, Link(bytes_per_s=bandwidth, latency_ps=latency)),
            ] * 2
    elif which == "mixed":  # full, by distance of unequal rates and latencies
        devices = gpus
        wires = [
            (g, (g + d) % ranks, Link(bytes_per_s=bandwidth // (1 + d % 3), latency_ps=latency + 777 * d))
            for g in range(ranks)
            for d in range(1, ranks)
        ]
    else:  # part of a larger network
        return build_topology(str(rng.choice(["full", "switch"])), bandwidth, latency, ranks + int(rng.integers(1, 4)))
    routing = str(rng.choice(["shortest", "shortest", "d-mod-k", "ecmp-hash", "ecmp-split"]))
    return Cluster(
        name=which,
        devices=tuple(devices),
        links=LinkTable.joined([device.name for device in devices], wires),
        routing=routing,
    )


def relative_case(seed, **how):
    return RelativeCase(seed, **how).case()


def perturbed(turned, seed):
    """Change one thing in one rank or link and return the case and the change; the program still ends."""
    rng = np.random.default_rng([seed, 99])
    case = turned.case
    program = case.program
    op_rank = program.op_rank
    operand_op = program.operand_op
    data = np.flatnonzero(np.isin(program.op_kind[operand_op], DATA_OPS) & (program.operand_semaphore < 0))
    what = str(
        rng.choice(["address", "peer", "compute", "semaphore", "rate", "latency", "unroll", "group", "swap", "model"])
    )
    if what in ("address", "peer") and len(data):
        at = rng.choice(data)
        if what == "address":
            address = program.operand_address.copy()
            address[at] += int(rng.choice([1, 2, 8, 64])) * program.line_bytes
            program = replace(program, operand_address=address)
        else:
            peer = program.operand_rank.copy()
            peer[at] = (peer[at] + rng.integers(1, program.num_ranks)) % program.num_ranks
            program = replace(program, operand_rank=peer)
    elif what in ("compute", "unroll"):
        column = "op_amount" if what == "compute" else "op_unroll"
        at = np.flatnonzero(program.op_kind == COMPUTE) if what == "compute" else np.flatnonzero(program.op_kind < DMA)
        if len(at):
            values = getattr(program, column).copy()
            values[rng.choice(at)] = 3
            program = replace(program, **{column: values})
    elif what == "semaphore":
        values = program.semaphores.copy()
        values[rng.integers(len(values)), rng.integers(values.shape[1])] += 1
        program = replace(program, semaphores=values)
    elif what in ("rate", "latency"):
        links = list(case.cluster.links)
        at = int(rng.integers(len(links)))
        links[at] = replace(links[at], **({"bytes_per_s": 20 * GB} if what == "rate" else {"latency_ps": 123_456}))
        case = replace(case, cluster=replace(case.cluster, links=tuple(links)))
    elif what == "group":
        group = list(case.group)
        rng.shuffle(group)
        case = replace(case, group=group)
    elif what == "swap":
        group = list(case.group)
        group[0], group[-1] = group[-1], group[0]
        case = replace(case, group=group)
    assert op_rank.size == program.num_ops
    return replace(case, program=program), what
