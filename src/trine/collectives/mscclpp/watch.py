"""Follows one run of a plan on symbols: what is in each cell, and whether every read is behind the write it needs.

Order is followed with vector clocks, as data race detectors do (Flanagan and Freund, "FastTrack", PLDI 2009): each
thread block and each port is an actor with a count of its data operations; a signal carries what its sender knows. The
threads of a block work on their own: what one operation has written is there for others only after the block has met
(``nop``, ``barrier``), and a signal publishes what was before such a meeting. Two operations of one block that touch
the same range, element by element, need none. Packets are followed operation by operation, not flag by flag.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trine.collectives.mscclpp.layout import Layout
from trine.collectives.mscclpp.machine import Block, Cells, Machine, Move, Step
from trine.collectives.mscclpp.plan import FIFO, PAIRS, PORT, RELEASE, KernelPlan
from trine.collectives.mscclpp.values import Goal, Value, add, describe, goals, input_range, single
from trine.errors import InputError

Clock = npt.NDArray[np.int32]
_RELAXED = "relaxed signals or packets alone order some data, and they do not publish memory: {example}"


@dataclass(frozen=True, slots=True)
class Access:
    """One read or write: by whom, its number among theirs, and the whole range that it is a part of."""

    actor: int
    event: int
    start: int
    length: int


class Watch:
    """Follows values and clocks through one run of a plan."""

    def __init__(self, plan: KernelPlan, layout: Layout, relaxed_counts: bool, order: random.Random | None) -> None:
        self.plan, self.relaxed_counts = plan, relaxed_counts
        self.machine = Machine(plan, layout, self, None, order)
        memory = self.machine.memory
        self.notes: list[str] = []
        self.open_ends: dict[int, str] = {}
        self.ports = self._number_ports()
        self.entries = len(self.machine.blocks) + len(self.ports)
        actors = self.entries + plan.num_ranks
        blocks = range(len(self.machine.blocks))
        self.now = [0] * actors
        self.knows = [np.zeros(actors, np.int32) for _ in blocks]
        self.heard: list[Clock | None] = [None for _ in blocks]
        self.port_knows = {port: np.zeros(actors, np.int32) for port in self.ports.values()}
        self.values: list[Value | None] = [None] * memory.num_cells
        self.writes: list[Access | None] = [None] * memory.num_cells
        self.reads: list[list[Access]] = [[] for _ in range(memory.num_cells)]
        self.packet_clocks: dict[int, Clock] = {}
        self.places: dict[tuple[int, int], str] = {}
        for rank in range(plan.num_ranks):
            self._enter(rank)

    def _enter(self, rank: int) -> None:
        """The input of a rank is there when it enters: an event of an actor of its own, which its blocks know of."""
        actor, cells = self.entries + rank, input_range(self.plan, self.machine.memory, rank)
        self.places[actor, 1] = f"rank {rank} has entered and"
        for block in self.machine.blocks:
            if block.gpu.rank == rank:
                self.knows[block.actor][actor] = 1
        for unit, cell in enumerate(cells):
            self.values[cell] = single(rank, unit)
            self.writes[cell] = Access(actor, 1, cells.start, len(cells))

    def _number_ports(self) -> dict[tuple[int, int], int]:
        """(rank, connection) -> actor, of the ports."""
        ports = [
            (gpu.rank, number)
            for gpu in self.plan.gpus
            for number, connection in enumerate(gpu.connections)
            if connection.kind == PORT
        ]
        return {port: len(self.machine.blocks) + number for number, port in enumerate(ports)}

    def run(self) -> None:
        wanted = self._goals()
        self.machine.run()
        if self.plan.collective == "broadcast":
            wanted = goals(self.plan, self.machine.memory, self._root(wanted))
        for goal in wanted:
            self._check_goal(goal)
        self._check_ends(wanted)

    def _goals(self) -> list[Goal]:
        return goals(self.plan, self.machine.memory)

    def _root(self, wanted: list[Goal]) -> int:
        """Of a broadcast: the rank whose data rank 0 ends with."""
        value = self.values[wanted[0].cells[0]]
        return 0 if value is None else max(0, (value[1].bit_length() - 1) // 16)

    # -- order ---------------------------------------------------------------------------------------------------

    def release(self, block: Block, step: Step, connection: int | None) -> object:
        if step.op.relaxed and not self.relaxed_counts:
            return None
        port = self.ports.get((block.gpu.rank, connection)) if connection is not None else None
        if port is None:
            clock = self.knows[block.actor].copy()
            if connection is None and step.op.action != RELEASE:  # another block depends on the end of this operation
                clock[block.actor] = self.now[block.actor]
            return clock
        # What went through a port before leaves before the signal does.
        np.maximum(self.port_knows[port], self.knows[block.actor], out=self.port_knows[port])
        self.port_knows[port][port] = self.now[port]
        return self.port_knows[port].copy()

    def acquire(self, block: Block, step: Step, token: object) -> None:
        if token is None or (step.op.relaxed and not self.relaxed_counts):
            return
        assert isinstance(token, np.ndarray)
        if step.op.dependencies:
            self.knows[block.actor] = np.maximum(self.knows[block.actor], token)
            self._note_dependency(step)
        else:
            self._hear(block, token)

    def _note_dependency(self, step: Step) -> None:
        if self.plan.format != "msccl":
            note = "the order of thread blocks rests on the dependencies of nop, which MSCCL++ runs as __syncthreads"
            if note not in self.notes:
                self.notes.append(note)

    def _hear(self, block: Block, token: Clock) -> None:
        """What one thread of the block has learnt; the others do when they meet."""
        heard = self.heard[block.actor]
        self.heard[block.actor] = token if heard is None else np.maximum(heard, token)

    def sync(self, block: Block) -> None:
        actor = block.actor
        heard = self.heard[actor]
        if heard is not None:
            self.knows[actor] = np.maximum(self.knows[actor], heard)
            self.heard[actor] = None
        self.knows[actor][actor] = self.now[actor]

    def barrier(self, blocks: list[Block]) -> None:
        for block in blocks:
            self.sync(block)
        together = np.maximum.reduce([self.knows[block.actor] for block in blocks])
        for block in blocks:
            self.knows[block.actor] = together.copy()

    def flush(self, block: Block, connections: tuple[int, ...]) -> None:
        for connection in connections:
            port = self.ports[block.gpu.rank, connection]
            clock = self.port_knows[port].copy()
            clock[port] = self.now[port]
            self._hear(block, clock)

    # -- data ----------------------------------------------------------------------------------------------------

    def move(self, block: Block, step: Step, move: Move) -> object:
        op = step.op
        values = self._sources(block, step, move)
        results = values if op.action == PAIRS else [self._sum(block, values)] * len(move.targets)
        everything = range(len(move.sources)), range(len(move.targets))
        if any(operand.via == PORT for operand in op.targets):
            for number in everything[1]:
                actor, view = self._port_view(block, op.connections[number])
                reads = range(number, number + 1) if op.action == PAIRS else everything[0]
                self._touch(block, step, move, (actor, view), (reads, range(number, number + 1)), results)
        else:
            access = block.actor, self._view(block, step, move)
            self._touch(block, step, move, access, everything, results)
        clock = self.knows[block.actor].copy()
        clock[block.actor] = self.now[block.actor]
        if self.plan.format == "msccl":  # a step of MSCCL is done when its threads have met
            self.sync(block)
        return results[0], clock

    def _touch(
        self,
        block: Block,
        step: Step,
        move: Move,
        by: tuple[int, Clock],
        parts: tuple[range, range],
        results: list[list[Value]],
    ) -> None:
        """One event of one actor: read these sources, then write these targets."""
        op, (actor, view) = step.op, by
        self.now[actor] += 1
        self.places[actor, self.now[actor]] = block.name()
        for index in parts[0]:
            for owned in move.sources[index]:
                self._read(owned, actor, view, polled=op.sources[index].polls)
        for index in parts[1]:
            for owned in move.targets[index]:
                self._write(owned, actor, view, results[index], packet=op.targets[index].packet)
            if op.targets[index].packet:
                self._publish(move.targets[index], actor, view)

    def _port_view(self, block: Block, connection: int) -> tuple[int, Clock]:
        port = self.ports[block.gpu.rank, connection]
        clock = self.port_knows[port]
        np.maximum(clock, self.knows[block.actor], out=clock)
        clock[port] = self.now[port]
        return port, clock

    def _view(self, block: Block, step: Step, move: Move) -> Clock:
        """What the threads know: since they met, and from the packets and messages that this operation waits for."""
        view = self.knows[block.actor]
        if self.relaxed_counts:
            for operand, owned in zip(step.op.sources, move.sources, strict=True):
                if operand.polls:
                    clocks = {id(c): c for cells in owned for c in map(self.packet_clocks.__getitem__, cells)}
                    view = np.maximum.reduce([view, *clocks.values()])
        for payload in move.received:
            assert isinstance(payload, tuple)
            view = np.maximum(view, payload[1])
        if move.received:
            self.knows[block.actor] = view.copy()
        return view

    def _publish(self, cells: Cells, actor: int, view: Clock) -> None:
        clock = view.copy()
        clock[actor] = self.now[actor]
        for owned in cells:
            for cell in owned:
                self.packet_clocks[cell] = clock

    def _sources(self, block: Block, step: Step, move: Move) -> list[list[Value]]:
        """The values of each source, a multicast one added up."""
        received = iter(move.received)
        result = []
        for operand, owned in zip(step.op.sources, move.sources, strict=True):
            if operand.buffer == FIFO:
                payload = next(received)
                assert isinstance(payload, tuple)
                result.append(payload[0])
                continue
            members = [[self._value(block, cell) for cell in cells] for cells in owned]
            result.append([add(list(column)) for column in zip(*members, strict=True)])
        return result

    def _value(self, block: Block, cell: int) -> Value:
        value = self.values[cell]
        if value is None:
            where = self.machine.memory.describe(cell)
            raise self._wrong(f"{block.name()} reads {where}, which nothing has written")
        return value

    def _sum(self, block: Block, sources: list[list[Value]]) -> list[Value]:
        if len({len(source) for source in sources}) > 1:
            raise self._wrong(f"{block.name()} adds ranges of different sizes")
        return [add(list(column)) for column in zip(*sources, strict=True)]

    def _read(self, cells: range, actor: int, view: Clock, polled: bool) -> None:
        access = Access(actor, self.now[actor], cells.start, len(cells))
        for cell in cells:
            write = self.writes[cell]
            if write is not None and not polled and not self._ordered(write, access, view):
                self._race(cell, write, access, "reads", "has written", read_after_write=True)
            self.reads[cell].append(access)

    def _write(self, cells: range, actor: int, view: Clock, values: list[Value], packet: bool) -> None:
        if len(cells) != len(values):
            raise self._wrong(f"{self.places[actor, self.now[actor]]} writes {len(values)} units into {len(cells)}")
        access = Access(actor, self.now[actor], cells.start, len(cells))
        for cell, value in zip(cells, values, strict=True):
            write = self.writes[cell]
            if write is not None and packet:
                where = self.machine.memory.describe(cell)
                raise self._wrong(
                    f"{self.places[actor, self.now[actor]]} writes {where} a second time in one run: its reader could "
                    "take either for the other"
                )
            if write is not None and not self._ordered(write, access, view):
                self._race(cell, write, access, "writes", "has written")
            for read in self.reads[cell]:
                if not self._ordered(read, access, view):
                    self._race(cell, read, access, "writes", "has read")
            self.reads[cell].clear()
            self.writes[cell], self.values[cell] = access, value

    def _ordered(self, before: Access, after: Access, view: Clock) -> bool:
        if before.event <= view[before.actor]:
            return True
        same_threads = (before.start, before.length) == (after.start, after.length) or before.event == after.event
        return before.actor == after.actor and same_threads

    def _race(
        self, cell: int, before: Access, after: Access, does: str, done: str, read_after_write: bool = False
    ) -> None:
        where = self.machine.memory.describe(cell)
        first, second = self.places[before.actor, before.event], self.places[after.actor, after.event]
        if self.relaxed_counts:
            raise self._wrong(f"race: {second} {does} {where} without waiting until {first} {done} it")
        if read_after_write and before.actor < self.entries and not self.notes:
            self.notes.append(_RELAXED.format(example=f"{second} {does} {where} after {first}"))

    # -- the end -------------------------------------------------------------------------------------------------

    def _check_goal(self, goal: Goal) -> None:
        for cell, wanted in zip(goal.cells, goal.wanted, strict=True):
            if self.values[cell] != wanted:
                raise self._wrong(
                    f"rank {goal.rank} ends with {describe(self.values[cell], self.plan)} in "
                    f"{self.machine.memory.describe(cell)}, not with {describe(wanted, self.plan)}"
                )

    def _check_ends(self, wanted: list[Goal]) -> None:
        """Whether each rank itself knows at its end that its result is there."""
        for goal in wanted:
            view = self._end_view(goal.rank)
            for cell in goal.cells:
                write = self.writes[cell]
                if write is not None and write.event > view[write.actor]:
                    self.open_ends.setdefault(goal.rank, self.places[write.actor, write.event])

    def _end_view(self, rank: int) -> Clock:
        clocks = []
        for block in self.machine.blocks:
            if block.gpu.rank == rank:
                heard = self.heard[block.actor]
                clock = self.knows[block.actor] if heard is None else np.maximum(heard, self.knows[block.actor])
                clock = clock.copy()
                clock[block.actor] = self.now[block.actor]
                clocks.append(clock)
        if not clocks:
            return np.zeros(len(self.now), np.int32)
        return np.asarray(np.maximum.reduce(clocks))

    def _wrong(self, message: str) -> InputError:
        return InputError(message, file=self.plan.file)
