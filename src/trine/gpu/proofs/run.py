"""Untimed execution of a GPU program: wavefronts run one operation at a time, in any order that synchronisation allows.

Each wavefront has one request in flight (a program that runs this way also runs with more). Its reads and writes
complete only at a ``waitcnt 0`` or when the wavefront ends. Its clock holds the operations it knows to be complete.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from trine.errors import DeadlockError, InputError
from trine.gpu import program as isa
from trine.gpu.builder import Operand
from trine.gpu.program import GpuProgram
from trine.gpu.proofs.memory import NOTHING, CellMemory, Cells, Clock, Index, Race, Values, buffer_of, combine
from trine.gpu.proofs.state import (
    DecodedOp,
    ProofSemaphore,
    ProofWavefront,
    ReleaseToken,
    is_flagged_write,
    ports_of,
    releases,
    wavefronts_of,
)


class ProofRun:
    """One run of a program.

    order: None runs each wavefront in turn until it waits, else random order. blank: reject reads of unwritten cells.
    """

    def __init__(
        self, program: GpuProgram, cells: Cells, ops: list[DecodedOp], order: random.Random | None, blank: bool
    ) -> None:
        self.program, self.ops, self.order, self.blank = program, ops, order, blank
        self.lists = wavefronts_of(program)
        ports = ports_of(program)
        self.ports = {pair: len(self.lists) + i for i, pair in enumerate(ports)}
        self.first_entry = len(self.lists) + len(ports)
        self.num_actors = self.first_entry + program.num_ranks
        self.words = ProofWords(program, cells, self.lists, {a: p for p, a in self.ports.items()}, self.first_entry)
        self.memory = CellMemory(cells, program.num_ranks, self.num_actors, program.name)
        self.wavefronts = self._start()
        self.groups: dict[int, list[ProofWavefront]] = defaultdict(list)
        for wave in self.wavefronts:
            self.groups[wave.workgroup].append(wave)
        self.port_knows = {actor: np.zeros(self.num_actors, np.int32) for actor in self.ports.values()}
        self.semaphores: dict[tuple[int, int], ProofSemaphore] = {}
        self.num_done = 0

    def _start(self) -> list[ProofWavefront]:
        wavefronts = []
        for actor, (rank, workgroup, number, size) in enumerate(self.lists):
            begin, end = (int(i) for i in self.program.workgroup_ptr[workgroup : workgroup + 2])
            knows = np.zeros(self.num_actors, np.int32)
            knows[self.first_entry + rank] = 1
            wavefronts.append(ProofWavefront(actor, rank, workgroup, number, size, range(begin, end), begin, knows))
        return wavefronts

    def enter(self, rank: int, cells: Index, values: Values | np.uint64, to_all: bool) -> None:
        """Write a rank's input before the run; its wavefronts know of it, or all wavefronts if ``to_all``."""
        actor = self.first_entry + rank
        self.memory.write(cells, values, actor, 1)
        if to_all:
            for wave in self.wavefronts:
                wave.knows[actor] = 1

    # -- order ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the program to its end.

        Raises
        ------
        DeadlockError: wavefronts wait forever; names them and their semaphores or barriers.
        InputError: a race, a read of an unwritten cell, or a semaphore that does not return to its initial value.
        """
        active = list(self.wavefronts)
        steady = self.order is not None and self.order.random() < 0.5
        if self.order is not None:
            self.order.shuffle(active)
        while active:
            if self.order is not None and not steady:
                self.order.shuffle(active)
            moved = False
            for wave in active:
                limit = self.order.randint(1, 4) if self.order is not None and not steady else len(self.ops) + 1
                while limit and not wave.done and self._advance(wave):
                    moved, limit = True, limit - 1
            if not moved and not all(wave.done for wave in active):
                raise self._deadlock(active)
            for wave in active:
                if wave.done:
                    self._finish(wave)
            active = [wave for wave in active if not wave.done]
        self._check_left_over()

    def ends(self, rank: int) -> Clock:
        """Return the clock at the end of a rank: operations known to be complete when all its wavefronts have ended."""
        clocks = [wave.knows for wave in self.wavefronts if wave.rank == rank]
        return np.max(np.stack(clocks), axis=0) if clocks else np.zeros(self.num_actors, np.int32)

    def _advance(self, wave: ProofWavefront) -> bool:
        """Run a wavefront's next operation (or the next lines of a flagged load); return False if it must wait."""
        op = self.ops[wave.next]
        if op.kind == isa.BARRIER:
            return self._barrier(wave)
        if op.kind in (isa.WAITCNT, isa.FENCE) and op.amount == 0:
            self._finish(wave)
        elif op.kind in isa.DATA_OPS:
            if op.flagged_reads:
                return self._flagged(wave, op)
            self._move(wave, op, np.arange(wave.number, op.amount, wave.num_wavefronts), wave.knows, ())
        elif wave.number == 0:
            if op.kind == isa.ACQUIRE and not self._acquire(wave, op):
                return False
            if op.kind == isa.RELEASE:
                for target in op.writes:
                    self.semaphore(target.rank, target.semaphore).release(ReleaseToken(wave.knows.copy()), op.amount)
            if op.kind == isa.DMA:
                self._dma(wave, op)
        self._step(wave)
        return True

    def _step(self, wave: ProofWavefront) -> None:
        wave.next += 1
        wave.line = 0
        self.num_done += 1

    def _finish(self, wave: ProofWavefront) -> None:
        """Mark all operations that the wavefront has started as complete."""
        wave.knows[wave.actor] = wave.next - wave.ops.start
        for clock in wave.heard:
            np.maximum(wave.knows, clock, out=wave.knows)
        wave.heard.clear()

    def _barrier(self, wave: ProofWavefront) -> bool:
        wave.arrived = True
        group = self.groups[wave.workgroup]
        if not all(member.arrived for member in group):
            return False
        everything = np.max(np.stack([member.knows for member in group]), axis=0)
        for member in group:
            member.knows[:] = everything
            member.arrived = False
            self._step(member)
        return True

    def semaphore(self, rank: int, number: int) -> ProofSemaphore:
        """Return a semaphore of a rank; create it on first use."""
        key = rank, number
        if key not in self.semaphores:
            self.semaphores[key] = ProofSemaphore(int(self.program.semaphores[key]))
        return self.semaphores[key]

    def _acquire(self, wave: ProofWavefront, op: DecodedOp) -> bool:
        semaphore = self.semaphore(wave.rank, op.reads[0].semaphore)
        if wave.actor not in semaphore.queue:
            semaphore.queue.append(wave.actor)
        if semaphore.queue[0] != wave.actor or semaphore.count < op.amount:
            return False
        semaphore.queue.popleft()
        for token in semaphore.take(op.amount):
            if token.clock is not None:
                np.maximum(wave.knows, token.clock, out=wave.knows)
        return True

    # -- data ----------------------------------------------------------------------------------------------------

    def _flagged(self, wave: ProofWavefront, op: DecodedOp) -> bool:
        """Run the next lines of an operation that waits for flags: the lines written by the same stores."""
        first = line = wave.number + wave.line * wave.num_wavefronts
        if line >= op.amount:
            self._step(wave)
            return True
        tokens = self._flags_of(op, line)
        next_tokens = tokens
        while tokens is not None and next_tokens == tokens:
            for operand in op.flagged_reads:
                self.semaphore(operand.rank, operand.semaphore + line).take(1)
            line += wave.num_wavefronts
            next_tokens = self._flags_of(op, line) if line < op.amount else None
        if tokens is None:
            return False
        clocks = [token.clock for token in tokens if token.clock is not None]
        knows = np.max(np.stack([wave.knows, *clocks]), axis=0)
        self._move(wave, op, np.arange(first, line, wave.num_wavefronts), knows, tokens)
        wave.heard.extend(clocks)
        wave.line += (line - first) // wave.num_wavefronts
        return True

    def _flags_of(self, op: DecodedOp, line: int) -> list[ReleaseToken] | None:
        """Return the release tokens of a line's flags; None while a flag is missing."""
        tokens = []
        for operand in op.flagged_reads:
            semaphore = self.semaphore(operand.rank, operand.semaphore + line)
            if semaphore.count < 1:
                return None
            tokens.append(semaphore.first)
        return tokens

    def _move(
        self, wave: ProofWavefront, op: DecodedOp, lines: Index, knows: Clock, tokens: Sequence[ReleaseToken]
    ) -> None:
        """Run lines of a data operation; ``tokens``: release tokens of its flagged reads."""
        if not len(lines):
            return
        reads = [self._cells(operand, op.width, lines) for operand in op.reads]
        writes = [self._cells(operand, op.width, lines) for operand in op.writes]
        flags = iter(tokens)
        clocks = []
        for o in op.reads:
            clocks.append(next(flags).added_to(knows) if o.role == isa.READ_FLAGGED else knows)
        self._touch(wave, list(zip(reads, clocks, strict=True)), knows, writes, wave.actor, wave.epoch, op)
        for operand, cells in zip(op.reads, reads, strict=True):
            if operand.role == isa.READ_FLAGGED:
                self.memory.take(cells, wave.actor, wave.epoch)
        for operand in op.writes:
            if is_flagged_write(operand):
                token = ReleaseToken(knows.copy(), wave.actor, wave.epoch)
                for line in lines.tolist():
                    self.semaphore(operand.rank, operand.semaphore + line).release(token, 1)

    def _touch(
        self,
        wave: ProofWavefront,
        reads: list[tuple[Index, Clock]],
        knows: Clock,
        writes: list[Index],
        actor: int,
        epoch: int,
        op: DecodedOp,
    ) -> None:
        """Read cells, each with the clock of its read, and write others; reads come first within a line."""
        memory = self.memory
        try:
            for cells, clock in reads:
                memory.check_read(cells, clock, self.blank)
            values = self._values(wave, op, _operands_read(op, [memory.values[cells] for cells, _ in reads]))
            for cells, adds in zip(writes, op.adds, strict=True):
                memory.check_write(cells, knows)
                memory.write(cells, memory.values[cells] + values if adds else values, actor, epoch)
        except Race as race:
            raise InputError(self.words.race(wave, race)) from None
        for cells, _ in reads:
            memory.note_read(cells, actor, epoch)

    def _values(self, wave: ProofWavefront, op: DecodedOp, parts: list[Values]) -> Values | np.uint64:
        """Return the values to write. Reads without writes stay in registers for a later store of equal size."""
        if op.kind == isa.DMA:
            return parts[0] if parts else np.uint64(NOTHING)
        if op.kind == isa.STORE:
            if wave.registers is None or wave.registers[1] != op.amount:
                return np.uint64(NOTHING)
            if wave.registers[0] > wave.knows[wave.actor]:
                raise InputError(f"{self.words.at(wave)} stores data that the load before it may not have brought yet")
            return wave.registers[2]
        values = combine(op.kind, parts)
        if not op.writes:
            values = parts[0] if op.kind == isa.LOAD and len(parts) == 1 else values
            wave.registers = (wave.epoch, op.amount, values)
        return values

    def _cells(self, operand: Operand, width: int, lines: Index) -> Index:
        """Return the cells of some lines of an operand: [lines, cells per line]."""
        size = self.memory.cells.size
        first = self.memory.cells.at(operand.rank, operand.address)
        return first + lines[:, None] * (operand.step // size) + np.arange(width // size)

    def _dma(self, wave: ProofWavefront, op: DecodedOp) -> None:
        """Run a copy on the copy engine, which runs copies to the same peer one after the other."""
        target = op.writes[0]
        port = self.ports[wave.rank, target.rank]
        clock = np.maximum(self.port_knows[port], wave.knows)
        epoch = int(clock[port]) + 1
        if op.amount:
            spans = [self.memory.cells.span(o.rank, o.address, op.amount) for o in (*op.reads, target)]
            self._touch(wave, [(cells, clock) for cells in spans[:-1]], clock, spans[-1:], port, epoch, op)
        clock[port] = epoch
        self.port_knows[port] = clock
        wave.heard.append(clock)
        for operand in (*op.reads, target):
            if operand.semaphore >= 0:
                self.semaphore(operand.rank, operand.semaphore).release(ReleaseToken(clock), 1)

    # -- ends ----------------------------------------------------------------------------------------------------

    def _check_left_over(self) -> None:
        for (rank, number), semaphore in sorted(self.semaphores.items()):
            initial = int(self.program.semaphores[rank, number])
            if semaphore.count != initial:
                raise InputError(
                    f"{self.program.name}: semaphore {number} of rank {rank} ends with {semaphore.count}, not as it "
                    f"began, with {initial}: {self.words.releaser(rank, number, self.ops)}"
                )

    def _deadlock(self, active: list[ProofWavefront]) -> DeadlockError:
        """Return the error for a deadlock. It lists first the wavefronts that hold up their workgroup."""
        stuck = [wave for wave in active if not wave.done]
        stuck.sort(key=lambda wave: (self.ops[wave.next].kind == isa.BARRIER, wave.number, wave.actor))
        descriptions = [self._waits_for(wave) for wave in stuck[:8]]
        rest = f"; and {len(stuck) - 8} more wavefronts" if len(stuck) > 8 else ""
        return DeadlockError(f"{self.program.name}: wavefronts wait for ever: {'; '.join(descriptions)}{rest}")

    def _waits_for(self, wave: ProofWavefront) -> str:
        op, place = self.ops[wave.next], self.words.at(wave)
        if op.kind == isa.BARRIER:
            late = [other.number for other in self.groups[wave.workgroup] if not other.arrived]
            return f"{place} waits for wavefronts {', '.join(str(n) for n in late)} of its workgroup"
        if op.kind == isa.ACQUIRE:
            needs, semaphores = op.amount, [(wave.rank, op.reads[0].semaphore)]
        else:
            line = wave.number + wave.line * wave.num_wavefronts
            needs, semaphores = 1, [(operand.rank, operand.semaphore + line) for operand in op.flagged_reads]
        rank, number = next((key for key in semaphores if self.semaphore(*key).count < needs), semaphores[0])
        pending = {w.workgroup: w.next for w in self.wavefronts if w.number == 0}
        return (
            f"{place} waits for semaphore {number} of rank {rank}, which has {self.semaphore(rank, number).count} of "
            f"{needs}: {self.words.releaser(rank, number, self.ops, pending)}"
        )


def _operands_read(op: DecodedOp, rows: list[Values]) -> list[Values]:
    """Return the values read by each operand; for a multimem operand, the sum over its members."""
    values_of_operands: list[Values] = []
    for operand, values in zip(op.reads, rows, strict=True):
        if operand.role == isa.READ_MEMBER:
            values_of_operands[-1] = values_of_operands[-1] + values
        else:
            values_of_operands.append(values)
    return values_of_operands


class ProofWords:
    """Readable names of actors and cells.

    actors: (rank, workgroup, wavefront, of) of wavefronts; ports: actor -> (rank, peer).
    """

    def __init__(
        self,
        program: GpuProgram,
        cells: Cells,
        actors: Sequence[tuple[int, int, int, int]],
        ports: Mapping[int, tuple[int, int]],
        first_entry: int,
    ) -> None:
        self.program, self.cells, self.actors, self.ports, self.first_entry = program, cells, actors, ports, first_entry

    def at(self, wave: ProofWavefront) -> str:
        """Return the name of a wavefront and its current operation."""
        return self.actor(wave.actor, wave.epoch)

    def actor(self, actor: int, epoch: int) -> str:
        """Return the name of an actor and its operation ``epoch`` (from 1)."""
        if actor >= self.first_entry:
            return f"rank {actor - self.first_entry}, as it enters with its input,"
        if actor in self.ports:
            rank, peer = self.ports[actor]
            return f"copy {epoch} of the copy engine of rank {rank} to rank {peer}"
        rank, workgroup, number, _ = self.actors[actor]
        op = int(self.program.workgroup_ptr[workgroup]) + epoch - 1
        return f"rank {rank} {self.workgroup(workgroup)} wavefront {number} {self.operation(op, epoch - 1)}"

    def workgroup(self, workgroup: int) -> str:
        """Return the name of a workgroup: its number in its kernel."""
        kernel = int((self.program.kernel_ptr[1:] <= workgroup).sum())
        number = workgroup - int(self.program.kernel_ptr[kernel])
        rank = self.program.kernel_rank[kernel]
        if int((self.program.kernel_rank == rank).sum()) == 1:
            return f"workgroup {number}"
        name = self.program.kernel_names[kernel] if kernel < len(self.program.kernel_names) else str(kernel)
        return f"kernel {name!r} workgroup {number}"

    def operation(self, op: int, number: int) -> str:
        kind, label = isa.OP_NAMES[self.program.op_kind[op]], int(self.program.op_label[op])
        return f"operation {number} ({kind}{f', {self.program.labels[label]!r}' if label >= 0 else ''})"

    def place(self, cell: int) -> str:
        """Return a readable name of a cell."""
        rank, address = self.cells.place(cell)
        buffer = buffer_of(self.program, address)
        position = f"address {address}" if buffer is None else f"byte {address - buffer.base} of the {buffer.name}"
        return f"{position} of rank {rank}"

    def race(self, wave: ProofWavefront, race: Race) -> str:
        place = self.place(race.cell)
        start = f"{self.program.name}: {self.at(wave)} {race.does} {place}"
        if race.actor < 0:
            return f"{start}, which was never written"
        if race.actor >= self.first_entry:
            return f"{start} before it knows that rank {race.actor - self.first_entry} is there with its input"
        participle = "written" if race.what == "write" else "read"
        same_workgroup = self.actors[race.actor][1] == wave.workgroup if race.actor < len(self.actors) else False
        hint = " (waitcnt 0, and a barrier between wavefronts)" if same_workgroup else ""
        return f"{start}, but {self.actor(race.actor, race.epoch)} may not have {participle} it yet{hint}"

    def releaser(
        self, rank: int, number: int, ops: Sequence[DecodedOp], pending: Mapping[int, int] | None = None
    ) -> str:
        """Describe the releaser of a semaphore in the whole program, or from ``pending`` (workgroup -> next op) on."""
        for actor, (_, workgroup, wavefront, _) in enumerate(self.actors):
            first, last = (int(i) for i in self.program.workgroup_ptr[workgroup : workgroup + 2])
            now = first if pending is None else pending[workgroup]
            for op in range(now, last) if wavefront == 0 else ():
                if releases(ops[op], rank, number):
                    actor_name = self.actor(actor, op - first + 1)
                    hint = f", but is at {self.operation(now, now - first)}" if pending is not None and op > now else ""
                    return f"{actor_name} {'releases' if pending is None else 'would release'} it{hint}"
        return "nobody releases it" if pending is None else "its releasers have ended"
