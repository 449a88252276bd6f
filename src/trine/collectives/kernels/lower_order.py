"""Which semaphore each signal, wait, barrier and dependency of a plan uses.

In MSCCL++ as many threads poll as a wait names connections, all at once; here a wavefront asks for one semaphore after
the other. So a wait for several connections gets one semaphore of its own, on which the signals that it waits for add
up. Which these are is known where one thread block signals through a connection and one waits for it: the n-th is for
the n-th. Else each connection has one semaphore, and waits ask for them in turn.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from trine.collectives.kernels.lower_memory import Step
from trine.collectives.mscclpp.plan import BARRIER, SIGNAL, WAIT, KernelGpu, KernelPlan
from trine.errors import InputError

#: rank, kind, peer, pair: where signals of a connection arrive
Inbox = tuple[int, str, int, int]


class Turn(NamedTuple):
    """One step of one thread block: index of the block among all, and of the step in it."""

    block: int
    step: int


class Take(NamedTuple):
    """What an acquire takes."""

    semaphore: int
    amount: int


class Semaphores:
    """Hands out the numbers of each rank's semaphores."""

    def __init__(self, num_ranks: int) -> None:
        self.initial: list[list[int]] = [[] for _ in range(num_ranks)]

    def new(self, rank: int, initial: int = 0) -> int:
        self.initial[rank].append(initial)
        return len(self.initial[rank]) - 1


class Signals:
    """``takes[turn]``: what a wait takes. ``gives[turn, n]``: the peer's semaphore for a signal's n-th connection."""

    def __init__(self, blocks: list[list[Step]], semaphores: Semaphores) -> None:
        self.semaphores = semaphores
        self.takes: dict[Turn, list[Take]] = {}
        self.gives: dict[tuple[Turn, int], int] = {}
        self._of_connection: dict[Inbox, int] = {}
        self._sent: dict[Inbox, list[tuple[Turn, int]]] = defaultdict(list)
        self._waiters: dict[Inbox, set[int]] = defaultdict(set)
        self._matched: dict[Inbox, int] = defaultdict(int)
        turns = [(Turn(b, s), step) for b, steps in enumerate(blocks) for s, step in enumerate(steps)]
        for turn, step in turns:
            self._collect(turn, step)
        for turn, step in turns:
            if step.op.action == WAIT:
                self.takes[turn] = self._takes(step)
        for inbox, sent in self._sent.items():
            for sender in sent:
                if sender not in self.gives:
                    self.gives[sender] = self._connection(inbox)

    def _collect(self, turn: Turn, step: Step) -> None:
        rank = step.gpu.rank
        if step.op.action == SIGNAL or step.op.signals:
            for number, connection in enumerate(step.op.connections):
                end = step.gpu.connections[connection]
                self._sent[end.peer, end.kind, rank, end.pair].append((turn, number))
        elif step.op.action == WAIT:
            for inbox in inboxes(step.gpu, step.op.connections):
                self._waiters[inbox].add(turn.block)

    def _takes(self, step: Step) -> list[Take]:
        wanted = inboxes(step.gpu, step.op.connections)
        if len(wanted) > 1 and all(self._is_ordered(inbox) for inbox in wanted):
            semaphore = self.semaphores.new(step.gpu.rank)
            for inbox in wanted:
                self._match(inbox, semaphore)
            return [Take(semaphore, len(wanted))]
        for inbox in wanted:
            self._match(inbox, self._connection(inbox))
        return [Take(self._connection(inbox), 1) for inbox in wanted]

    def _is_ordered(self, inbox: Inbox) -> bool:
        return len({turn.block for turn, _ in self._sent[inbox]}) <= 1 and len(self._waiters[inbox]) == 1

    def _match(self, inbox: Inbox, semaphore: int) -> None:
        """The next signal of this connection is for this wait."""
        number, sent = self._matched[inbox], self._sent[inbox]
        self._matched[inbox] += 1
        if number < len(sent):
            self.gives[sent[number]] = semaphore

    def _connection(self, inbox: Inbox) -> int:
        if inbox not in self._of_connection:
            self._of_connection[inbox] = self.semaphores.new(inbox[0])
        return self._of_connection[inbox]


def inboxes(gpu: KernelGpu, connections: tuple[int, ...]) -> list[Inbox]:
    """Where the signals of a GPU's connections arrive."""
    ends = [gpu.connections[number] for number in connections]
    return [(gpu.rank, end.kind, end.peer, end.pair) for end in ends]


class Barriers:
    """``semaphores[rank, barrier][block]``: two semaphores of each thread block, used in turns.

    MSCCL++ counts arrivals in device memory, and all poll the count until everybody is there (DeviceSyncer,
    include/mscclpp/concurrency_device.hpp @0526df5: counters used in turns). Here each block tells all others.
    """

    def __init__(self, plan: KernelPlan, semaphores: Semaphores) -> None:
        self.semaphores: dict[tuple[int, int], dict[int, tuple[int, int]]] = {}
        for gpu in plan.gpus:
            for number, (blocks, sizes) in self._members(gpu).items():
                if sizes != {len(blocks)}:
                    raise InputError(
                        f"thread blocks {sorted(blocks)} meet at barrier {number}, which is for "
                        f"{' or '.join(map(str, sorted(sizes)))}: each barrier must always have the same blocks",
                        file=plan.file,
                        field=f"gpus[{gpu.rank}]",
                    )
                if len(blocks) > 1:
                    pairs = {block: (semaphores.new(gpu.rank), semaphores.new(gpu.rank)) for block in sorted(blocks)}
                    self.semaphores[gpu.rank, number] = pairs

    def _members(self, gpu: KernelGpu) -> dict[int, tuple[set[int], set[int]]]:
        """Barrier -> its thread blocks, and the numbers of blocks that it is said to be for."""
        members: dict[int, tuple[set[int], set[int]]] = {}
        for block in gpu.blocks:
            for op in block.operations:
                for body in (op, *op.operations):
                    if body.action == BARRIER:
                        blocks, sizes = members.setdefault(body.barrier, (set(), set()))
                        blocks.add(block.id)
                        sizes.add(body.num_blocks)
        return members


class Dependencies:
    """``takes[turn]``: what a step takes first. ``gives[rank, block, number]``: semaphores of those waiting for it."""

    def __init__(self, blocks: list[list[Step]], semaphores: Semaphores) -> None:
        self.takes: dict[Turn, Take] = {}
        self.gives: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        for b, steps in enumerate(blocks):
            for s, step in enumerate(steps):
                others = [d for d in step.op.dependencies if d[0] != step.block.id]
                if others:
                    semaphore = semaphores.new(step.gpu.rank)
                    self.takes[Turn(b, s)] = Take(semaphore, len(others))
                    for other in others:
                        self.gives[step.gpu.rank, *other].append(semaphore)
