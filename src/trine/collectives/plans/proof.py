"""Does a plan do what it says? Runs it on symbols, and checks that every read is ordered behind the write that it needs.

Order is followed with vector clocks, as data race detectors do (Flanagan and Freund, "FastTrack", PLDI 2009): each thread
block and each port is an actor with a count of its data operations; a signal carries what its sender knows. The threads
of a block work on their own: what one operation has written is there for others only after the block has met (``nop``,
``barrier``), and a signal publishes what was before such a meeting. Two operations of one block that touch the same
range, element by element, need none.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trine.collectives.plans.layout import Layout, parts_grid, pipelines, reused_chunk_bytes
from trine.collectives.plans.machine import Block, Cells, Machine, Move, Step
from trine.collectives.plans.values import Goal, Value, add, describe, goals, input_range, single
from trine.errors import InputError
from trine.model.kernelplan import FIFO, PAIRS, PORT, KernelPlan

Clock = npt.NDArray[np.int32]
MAX_ROUNDS = 300
OPEN_END = "open end"
_FREE = "relaxed signals or packets alone order some data; they do not publish memory ({example})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """That a plan is right: ``num_runs`` orders were run over ``num_cells`` cells; ``notes``: what it rests on."""

    plan: str
    collective: str
    num_ranks: int
    num_operations: int
    num_cells: int
    num_runs: int
    notes: tuple[str, ...]


def check_plan(plan: KernelPlan, orders: int = 2) -> Proof:
    """Prove that every rank ends with the right data, whatever the order in which thread blocks run.

    Parameters
    ----------
    orders: how many random but reproducible orders are run besides the first; they matter only where several thread
        blocks release one semaphore, or use one connection.

    Raises
    ------
    DeadlockError: thread blocks wait for ever; says who for what.
    InputError: a signal without wait, a race, a read of what nobody wrote, or a rank that ends with other data; says
        which, and who is involved. Also where a proof is not possible: custom collectives, or a plan too large.
    """
    layout, notes = proof_layout(plan)
    found = dict.fromkeys((*plan.notes, *notes))
    for seed in range(orders + 1):
        watcher = Watch(plan, layout, relaxed_counts=True, order=random.Random(seed) if seed else None)
        watcher.run()
        found |= dict.fromkeys(watcher.notes)
    strict = Watch(plan, layout, relaxed_counts=False, order=None)
    strict.run()
    if not any(note.startswith(OPEN_END) for note in found):  # which has said the stronger thing about the end
        found |= dict.fromkeys(strict.notes)
    return Proof(
        plan=plan.name,
        collective=plan.collective,
        num_ranks=plan.num_ranks,
        num_operations=sum(len(block.steps) for block in strict.machine.blocks),
        num_cells=strict.machine.memory.num_cells,
        num_runs=orders + 2,
        notes=tuple(found),
    )


def proof_layout(plan: KernelPlan) -> tuple[Layout, list[str]]:
    """A grid fine enough for every part of every range, with pipelines of a few rounds, and of more than one turn."""
    parts, loops = parts_grid(plan), pipelines(plan)
    if plan.chunks_of_size == 0:
        raise InputError("its buffers have no chunks", file=plan.file)
    if not loops:
        return Layout(group_chunks=1, group_units=parts), []
    window, largest = reused_chunk_bytes(plan), max(loop.unit_bytes for loop in loops)
    measure = math.gcd(*(loop.unit_bytes for loop in loops), window or 0)
    chunk, notes = 3 * largest, []
    if window is not None and window % largest:
        raise InputError(
            f"rounds of {largest} bytes run over the end of the {window} bytes of scratch that a chunk reuses",
            file=plan.file,
        )
    if window is not None and window // largest <= MAX_ROUNDS:
        chunk = window + 2 * largest
    elif window is not None:
        notes.append(f"the proof stops before scratch is used again, after {window // largest} rounds")
    cells = -(-chunk // measure)
    return Layout(
        group_chunks=1,
        group_units=cells * parts,
        window=None if window is None else window // measure * parts,
        unit_scale=(parts, measure),
    ), notes


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
        self.ports = self._number_ports()
        actors = len(self.machine.blocks) + len(self.ports)
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
            for unit, cell in enumerate(input_range(plan, memory, rank)):
                self.values[cell] = single(rank, unit)

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
            return self.knows[block.actor].copy()
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
        through_port = any(operand.via == PORT for operand in op.targets)
        result: object = None
        sources = self._sources(block, step, move)
        for number, cells in enumerate(move.targets):
            if through_port:
                actor, view = self._port_view(block, op.connections[number])
            else:
                actor, view = block.actor, self._view(block, step, move)
            self.now[actor] += 1
            self.places[actor, self.now[actor]] = block.name()
            read = [number] if op.action == PAIRS else range(len(move.sources))
            for index in read:
                for owned in move.sources[index]:
                    self._read(owned, actor, view, polled=op.sources[index].polls)
            values = sources[number] if op.action == PAIRS else self._sum(block, sources)
            if op.targets[number].buffer == FIFO:
                clock = self.knows[block.actor].copy()
                clock[block.actor] = self.now[block.actor]
                result = (values, clock)
            for owned in cells:
                self._write(owned, actor, view, values, packet=op.targets[number].packet)
            if op.targets[number].packet:
                self._publish(cells, actor, view)
        self._end_of_move(block)
        return result

    def _end_of_move(self, block: Block) -> None:
        """A step of MSCCL is done when its threads have met."""
        if self.plan.format == "msccl":
            self.sync(block)

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
                    for cells in owned:
                        view = np.maximum.reduce([view, *(self.packet_clocks[c] for c in set(cells))])
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
                raise self._wrong(
                    f"{self.places[actor, self.now[actor]]} writes {self.machine.memory.describe(cell)} a second time in "
                    "one run: its reader could take either for the other"
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
        if read_after_write and not self.notes:
            self.notes.append(_FREE.format(example=f"{second} {does} {where} after {first}"))

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
                    self._note_end(goal.rank, write)
                    return

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

    def _note_end(self, rank: int, write: Access) -> None:
        place = self.places[write.actor, write.event]
        if self.relaxed_counts:
            self.notes.append(f"{OPEN_END}: rank {rank} can end before {place} has written its result")
        elif not self.notes:
            self.notes.append(_FREE.format(example=f"rank {rank} ends after {place}"))

    def _wrong(self, message: str) -> InputError:
        return InputError(message, file=self.plan.file)
