"""Run a lowered plan on symbols, operation by operation in random order, and compare with the plan's results.

The order inside a workgroup is as written; the checker decides whether its wavefronts may rely on that.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from trine.gpu.kernels.lower.memory import line_layout, payload_of_line
from trine.gpu.kernels.lower.plan import lower_plan
from trine.gpu.plans import plan_switches
from trine.gpu.plans.cells import PlanMemory, Value, add, goals, input_range, single
from trine.gpu.plans.plan import KernelPlan
from trine.gpu.program import (
    ACQUIRE,
    DATA_OPS,
    DMA,
    MEMBER_ROLES,
    MULTIMEM_ROLES,
    READ,
    READ_FLAGGED,
    READ_ROLES,
    READ_SUM,
    RELEASE,
    WRITE,
    WRITE_FLAGGED,
    GpuProgram,
)

Operand = tuple[int, int, int, int, int]


class Interpreter:
    """Interpreter of a program; ``memory[rank][address]`` is the value of the ``unit`` bytes from that address on."""

    def __init__(self, program: GpuProgram, unit: int, switches: dict[tuple[int, ...], int]) -> None:
        self.program, self.unit, self.switches = program, unit, switches
        self.memory: list[dict[int, Value]] = [{} for _ in range(program.num_ranks)]
        self.semaphores = program.semaphores.tolist()
        self.moved: dict[tuple[int, int], int] = {}
        self.next = program.workgroup_ptr[:-1].tolist()
        self.ends = program.workgroup_ptr[1:].tolist()
        kernel_of = [k for k in range(program.num_kernels) for _ in range(*program.kernel_ptr[k : k + 2].tolist())]
        self.rank_of = [int(program.kernel_rank[kernel]) for kernel in kernel_of]
        columns = ("role", "rank", "address", "step", "semaphore")
        self.operands = list(zip(*(getattr(program, f"operand_{c}").tolist() for c in columns), strict=True))
        self.packed = {b.name: range(b.base, b.base + b.size_bytes) for b in program.buffers}.get("packets", range(0))

    def run(self, seed: int) -> None:
        order = random.Random(seed)
        waiting = [w for w in range(self.program.num_workgroups) if self.next[w] < self.ends[w]]
        while waiting:
            order.shuffle(waiting)
            moved = False
            for workgroup in waiting:
                for _ in range(order.randint(1, 6)):
                    if self.next[workgroup] == self.ends[workgroup] or not self._step(workgroup):
                        break
                    moved = True
            waiting = [w for w in waiting if self.next[w] < self.ends[w]]
            assert moved or not waiting, [self.describe(w) for w in waiting]
        assert self.semaphores == self.program.semaphores.tolist(), "semaphores are left over"

    def describe(self, workgroup: int) -> str:
        label = self.program.labels[self.program.op_label[self.next[workgroup]]]
        return f"rank {self.rank_of[workgroup]} workgroup {workgroup}: {label}"

    def _step(self, workgroup: int) -> bool:
        op, rank = self.next[workgroup], self.rank_of[workgroup]
        kind, amount = int(self.program.op_kind[op]), int(self.program.op_amount[op])
        operands = self.operands[self.program.operand_ptr[op] : self.program.operand_ptr[op + 1]]
        if kind == ACQUIRE:
            ((_, owner, _, _, number),) = operands
            assert owner == rank
            if self.semaphores[rank][number] < amount:
                return False
            self.semaphores[rank][number] -= amount
        elif kind == RELEASE:
            for _, owner, _, _, number in operands:
                self.semaphores[owner][number] += amount
        elif kind == DMA:
            self._dma(rank, amount, operands)
        elif kind in DATA_OPS and not self._data(rank, amount, operands):
            return False
        self.next[workgroup] += 1
        return True

    def _dma(self, rank: int, size: int, operands: list[Operand]) -> None:
        target = operands[-1]
        assert target[0] == WRITE
        if size:
            source = operands[0]
            assert source[:2] == (READ, rank)
            step = self.program.line_bytes if source[2] in self.packed else self.unit
            for offset in range(0, size, step):
                self.memory[target[1]][target[2] + offset] = self.memory[rank][source[2] + offset]
            self._count(rank, target[1], size)
        if target[4] >= 0:
            self.semaphores[target[1]][target[4]] += 1

    def _data(self, rank: int, lines: int, operands: list[Operand]) -> bool:
        reads = [o for o in operands if o[0] in READ_ROLES]
        writes = [o for o in operands if o[0] not in READ_ROLES]
        polled = [(o[1], o[4] + i) for o in reads if o[0] == READ_FLAGGED for i in range(lines)]
        if any(self.semaphores[owner][number] < 1 for owner, number in polled):
            return False
        for owner, number in polled:
            self.semaphores[owner][number] -= 1
        width = min(self.unit if o[2] in self.packed else o[3] for o in operands)
        for line in range(lines):
            for inside in range(0, width, self.unit):
                found = [self.memory[owner][address + line * step + inside] for _, owner, address, step, _ in reads]
                value = add(found)
                for _, owner, address, step, _ in writes:
                    self.memory[owner][address + line * step + inside] = value
        for role, owner, _, _, first in writes:
            if role == WRITE_FLAGGED:
                for line in range(lines):
                    self.semaphores[owner][first + line] += 1
        for members in _multimem(operands):
            switch = self.switches[tuple(sorted(o[1] for o in members))]
            gathers = members[0][0] == READ_SUM
            for ends in [(rank, switch), *((switch, o[1]) for o in members)]:
                self._count(*(reversed(ends) if gathers else ends), lines * width)
        for o in (o for o in operands if o[0] < READ_SUM):
            ends = (o[1], rank) if o in reads else (rank, o[1])
            packet = o[2] in self.packed or o[0] in (READ_FLAGGED, WRITE_FLAGGED)
            self._count(*ends, lines * (self.program.line_bytes if packet else width))
        return True

    def _count(self, source: int, target: int, size: int) -> None:
        if source != target:
            self.moved[source, target] = self.moved.get((source, target), 0) + size


def _multimem(operands: list[Operand]) -> list[list[Operand]]:
    """Return the rows of each multimem operand."""
    found: list[list[Operand]] = []
    for operand in operands:
        if operand[0] in MULTIMEM_ROLES:
            found.append([operand])
        elif operand[0] in MEMBER_ROLES:
            found[-1].append(operand)
    return found


def prove(plan: KernelPlan, size_bytes: int, seed: int = 0, line_bytes: int = 128) -> Interpreter:
    """Lower a plan, run it, and compare all results of all ranks."""
    program = lower_plan(plan, size_bytes, line_bytes=line_bytes)
    unit = payload_of_line(plan, line_bytes)
    memory = PlanMemory(plan, line_layout(plan, size_bytes, unit))
    switches = {ranks: plan.num_ranks + number for number, ranks in enumerate(plan_switches(plan))}
    machine = Interpreter(program, unit, switches)
    bases = {buffer.name: buffer.base for buffer in program.buffers}

    def addresses(rank: int, cells: range) -> Iterator[tuple[int, int]]:
        start, owner, buffer = max(entry for entry in memory.owner if entry[0] <= cells.start and entry[1] == rank)
        assert owner == rank
        for number in range(0, len(cells), unit):
            yield number, bases[buffer] + cells.start - start + number

    for rank in range(plan.num_ranks):
        for number, address in addresses(rank, input_range(plan, memory, rank)):
            machine.memory[rank][address] = single(rank, number)
    machine.run(seed)
    for goal in goals(plan, memory):
        for number, address in addresses(goal.rank, goal.cells):
            assert machine.memory[goal.rank].get(address) == goal.expected[number], (goal.rank, address)
    return machine
