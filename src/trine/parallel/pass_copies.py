"""Copies of passes: a pass that begins in the same state as an earlier one of its kind differs from it in numbers only.

Most passes of a pipeline rank repeat: the same operators on another micro-batch. The first one is written operator by
operator. The others are copies with other step and block numbers, if everything that a pass depends on is alike: the
pending waits, the memory of its micro-batch, the gradients, and the peers of its messages. No extension may remember
earlier passes (:meth:`trine.parallel.extension.Extension.forgets`).

A copy names a step outside the pass by its position among the steps that the pass begins after (the latest operator
and the pending waits), and a block from before the pass by its storage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from typing import NamedTuple

import numpy as np

from trine.common.arrays import Int64
from trine.graph.memory import BLOCKS_PER_STREAM
from trine.graph.program import Collective, Label, MemoryChange, Recv, Send, Step
from trine.parallel.chunks import MicroBatch, Place
from trine.parallel.extension import StageProgram
from trine.parallel.layer_codes import OtherStateError
from trine.parallel.memory import Block
from trine.parallel.program_parts import NUM_COLUMNS, WrittenPass, new_tuple, table_of
from trine.parallel.schedules import BACKWARD_PASS, FORWARD_PASS, PipelineAction
from trine.parallel.writer import LaunchThread, is_inexact


class _Begin(NamedTuple):
    """The state before a pass.

    kind: properties that the schedule determines. key: the state. outside: the steps that the pass begins after.
    step, change, block: the number of steps, memory changes and blocks; kept: of steps in each list that is kept.
    """

    kind: Hashable
    key: Hashable
    step: int
    change: int
    block: int
    outside: tuple[int, ...]
    kept: tuple[int, ...]
    live: Mapping[int, Block]
    gradients: tuple[Mapping[int, Block], ...]
    evidence_ps: Mapping[str, int]
    launches: float
    synchronisations: int

    def step_code(self, step: int) -> int:
        """Return the number of a step in a copy: from 0 within the pass, else -1 - position in ``outside``."""
        if step >= self.step:
            return step - self.step
        if step not in self.outside:
            raise OtherStateError
        return -1 - self.outside.index(step)

    def numbers(self, length: int) -> list[int]:
        """Return the steps of a copy of ``length`` steps that begins here, by code (codes below 0 from the end)."""
        return [*range(self.step, self.step + length), *reversed(self.outside)]

    def is_new(self, block: int) -> bool:
        """Return whether the pass has allocated the block."""
        return block % BLOCKS_PER_STREAM > self.block


class _Change(NamedTuple):
    """A memory change. block: counted from the pass's first one, or None for the block of ``storage``.

    user: a step of the pass, or None for the user that the block had before (if any).
    """

    step: int
    at_end: bool
    delta_bytes: int
    category: int
    block: int | None
    storage: int
    user: int | None


class _Changes(NamedTuple):
    """The memory changes of a pass.

    table: int64[changes, NUM_COLUMNS], with codes of steps, blocks counted from the pass's first one, and users counted
    from its first step (-1: none). outside: changes of blocks from before the pass, as row, storage, whether the block
    is freed, and whether the change has a user.
    """

    table: Int64
    outside: tuple[tuple[int, int, bool, bool], ...]

    @classmethod
    def of(cls, changes: list[MemoryChange], begin: _Begin, storages: Mapping[int, int]) -> _Changes:
        """Return the changes of a pass in codes; storages: block -> its storage before the pass."""
        table = table_of(changes, NUM_COLUMNS)
        steps, blocks, users = table[:, 0].copy(), table[:, 4].copy(), table[:, 5].copy()
        is_new, is_inside = blocks % BLOCKS_PER_STREAM > begin.block, users >= begin.step
        if (is_new & ~is_inside & (users >= 0)).any():
            raise OtherStateError
        table[:, 0] -= begin.step
        for row in np.flatnonzero(steps < begin.step).tolist():
            table[row, 0] = begin.step_code(int(steps[row]))
        table[:, 4] = np.where(is_new, blocks - begin.block, 0)
        table[:, 5] = np.where(is_inside, users - begin.step, -1)
        outside = []
        for row in np.flatnonzero(~is_new).tolist():
            change = changes[row]
            if change.block not in storages:
                raise OtherStateError
            outside.append((row, storages[change.block], change.delta_bytes < 0, change.user >= begin.step))
        return cls(table, tuple(outside))

    def copied(self, begin: _Begin, numbers: list[int], users: dict[int, int]) -> Int64:
        """Return the changes of a copy that begins at ``begin``. users: of blocks; those of freed ones are removed."""
        table = self.table.copy()
        table[:, 0] = np.array(numbers, np.int64)[table[:, 0]]
        table[:, 4] += begin.block
        table[:, 5] += np.where(table[:, 5] >= 0, begin.step, 0)
        for row, storage, is_freed, has_user in self.outside:
            block = begin.live[storage].number
            table[row, 4] = block
            user_before = users.pop(block, -1) if is_freed else -1
            if user_before >= 0 and not has_user:
                table[row, 5] = user_before
        return table


class _Launches(NamedTuple):
    """The launching thread after a pass.

    waits: of the next launch. counts, operators: launches up to each operator of the pass, and its step, counted from
    the pass's beginning, or from the latest synchronisation if one was in it.
    """

    unwritten_ps: int
    ahead_ps: int
    takes_waits: bool
    waits: tuple[int, ...]
    synchronises: int
    launches: float
    counts: tuple[float, ...]
    operators: tuple[int, ...]


class _Written(NamedTuple):
    """A written pass; steps as codes (:meth:`_Begin.step_code`).

    live: the blocks of the micro-batch after the pass, as changes that allocate them.
    """

    source: WrittenPass
    last: int
    waits: tuple[int, ...]
    kept: tuple[tuple[int, ...], ...]
    changes: _Changes
    num_blocks: int
    live: tuple[_Change, ...]
    evidence_ps: Mapping[str, int]
    thread: _Launches


class PassCopies:
    """The written passes of one program, by the state at their beginning."""

    def __init__(self, program: StageProgram) -> None:
        self._program, self._context = program, program.context
        self._writer, self._memory = program.writer, program.memory
        self._written: dict[Hashable, _Written] = {}
        self._rest = Counter(self._kind(action) for action in program.actions.passes)

    def _kind(self, action: PipelineAction) -> Hashable:
        actions, batch = self._program.actions, self._context.micro_batches[action.microbatch]
        return action.kind, action.chunk, batch, actions.completes(action), actions.order_of[action.microbatch]

    def begin(self, action: PipelineAction, place: Place) -> _Begin | None:
        """Return the state before a pass; None if the pass cannot be a copy or be copied."""
        kind = self._kind(action)
        self._rest[kind] -= 1
        writer, memory, thread = self._writer, self._memory, self._writer.thread
        is_whole = action.kind in (FORWARD_PASS, BACKWARD_PASS) and not writer.has_clocks
        last = writer.last_compute()
        if not is_whole or not last or not self._forgets() or last[0] <= max(writer.last_of_step(), default=-1):
            return None  # the first gathers of a step wait for the step before
        if is_inexact(thread.count):
            return None
        known = (*writer.last_compute_and_waits(), *thread.waits, *writer.sent[-1:])
        outside = tuple(dict.fromkeys(known))
        live, users = memory.live(action.microbatch), memory.users
        held = tuple([(s, block.size, block.category, block.number in users) for s, block in live.items()])
        chunk_pass = self._context.chunks[action.chunk].passes[action.kind]
        crossings = (*chunk_pass.arriving.values(), *chunk_pass.leaving.values())
        peers = tuple(self._program.actions.peer(crossing, place) for group in crossings for crossing in group)
        key = (
            kind,
            place.step,
            tuple(map(outside.index, known)),
            (thread.unwritten_ps, thread.ahead_ps, thread.takes_waits, len(thread.waits)),
            held,
            peers,
            tuple(memory.gradients),
            tuple(memory.parts),
        )
        return _Begin(
            kind, key, len(writer.steps), len(writer.memory), memory.num_blocks, outside,
            tuple(len(steps) for steps in self._kept()), dict(live), (dict(memory.gradients), dict(memory.parts)),
            dict(self._context.evidence_ps.get(action.microbatch, {})), thread.count, thread.synchronisations,
        )  # fmt: skip

    def _forgets(self) -> bool:
        return all(extension.forgets() for extension in self._program.extensions)

    def _kept(self) -> list[list[int]]:
        return [self._writer.sent, *(extension.kept_steps for extension in self._program.extensions)]

    def end(self, begin: _Begin, microbatch: int) -> None:
        """Note the pass that has been written since ``begin``, if another one of its kind follows."""
        if self._rest[begin.kind] and self._forgets():
            try:
                written = self._note(begin, microbatch)
            except OtherStateError:
                return
            self._written[begin.key] = written
            self._writer.steps.close_pass(written.source, begin.step, begin.outside, microbatch)

    def _note(self, begin: _Begin, microbatch: int) -> _Written:
        writer, memory, code = self._writer, self._memory, begin.step_code
        if begin.gradients != (memory.gradients, memory.parts):
            raise OtherStateError
        storages = {block.number: storage for storage, block in begin.live.items()}
        live = []
        for storage, block in memory.live(microbatch).items():
            is_new = begin.is_new(block.number)
            if not is_new and begin.live.get(storage) is not block:
                raise OtherStateError
            first, user = block.step if is_new else begin.step, memory.users.get(block.number, -1)
            change = MemoryChange(first, False, block.size, block.category, block.number, user)
            live.append(_noted(begin, storages, change)._replace(storage=storage))
        ends, evidence_ps = writer.last_compute_and_waits(), self._context.evidence_ps.get(microbatch, {})
        changes = _Changes.of(writer.memory.from_change(begin.change), begin, storages)
        return _Written(
            _written_pass(writer.steps.from_step(begin.step), begin), code(ends[0]), tuple(map(code, ends[1:])),
            tuple(tuple(map(code, kept[n:])) for kept, n in zip(self._kept(), begin.kept, strict=True)),
            changes, memory.num_blocks - begin.block, tuple(live),
            {name: ps - begin.evidence_ps.get(name, 0) for name, ps in evidence_ps.items()},
            _launches(begin, writer.thread),
        )  # fmt: skip

    def copy(self, begin: _Begin, microbatch: int) -> bool:
        """Write the pass of ``microbatch`` as a copy of one that began alike; return False without one."""
        written = self._written.get(begin.key)
        if written is None:
            return False
        writer, memory, numbers = self._writer, self._memory, begin.numbers(len(written.source.steps))
        writer.steps.add_copy(written.source, begin.outside, microbatch)
        writer.continue_after(numbers[written.last], tuple([numbers[code] for code in written.waits]))
        for kept, codes in zip(self._kept(), written.kept, strict=True):
            kept += [numbers[code] for code in codes]
        writer.memory.add_table(written.changes.copied(begin, numbers, memory.users))
        _continue(begin, numbers, writer.thread, written.thread)
        live = memory.live(microbatch)
        live.clear()
        for change in written.live:
            if change.block is None:
                live[change.storage] = begin.live[change.storage]
            else:
                block = begin.block + change.block
                live[change.storage] = Block(change.delta_bytes, change.category, block, numbers[change.step])
            if change.user is not None:
                memory.users[live[change.storage].number] = begin.step + change.user
        memory.num_blocks += written.num_blocks
        for name, ps in written.evidence_ps.items():
            self._context.count(microbatch, name, ps)
        return True


def _launches(begin: _Begin, thread: LaunchThread) -> _Launches:
    synchronises = thread.synchronisations - begin.synchronisations
    first = next((i for i, step in enumerate(thread.operators) if step >= begin.step), len(thread.operators))
    start = 0.0 if synchronises else begin.launches
    counts = [count - start for count in (thread.count, *thread.counts[first:])]
    if any(map(is_inexact, counts)):
        raise OtherStateError
    return _Launches(
        thread.unwritten_ps, thread.ahead_ps, thread.takes_waits, tuple(map(begin.step_code, thread.waits)),
        synchronises, counts[0], tuple(counts[1:]), tuple(map(begin.step_code, thread.operators[first:])),
    )  # fmt: skip


def _continue(begin: _Begin, numbers: list[int], thread: LaunchThread, after: _Launches) -> None:
    """Put the launching thread into its state after the copy of a pass; numbers: :meth:`_Begin.numbers`."""
    start = begin.launches
    if after.synchronises:
        start = 0.0
        thread.counts.clear()
        thread.operators.clear()
        thread.synchronisations += after.synchronises
    thread.unwritten_ps, thread.ahead_ps, thread.takes_waits = after.unwritten_ps, after.ahead_ps, after.takes_waits
    thread.waits[:] = [numbers[code] for code in after.waits]
    thread.count = start + after.launches
    thread.counts += [start + count for count in after.counts]
    thread.operators += [numbers[code] for code in after.operators]


def _noted(begin: _Begin, storages: Mapping[int, int], change: MemoryChange) -> _Change:
    """Return the change of a written pass for its copies; storages: block -> its storage before the pass."""
    is_new = begin.is_new(change.block)
    if not is_new and change.block not in storages:
        raise OtherStateError
    user = change.user - begin.step if change.user >= begin.step else None
    if is_new and user is None and change.user >= 0:
        raise OtherStateError
    block, storage = (change.block - begin.block, -1) if is_new else (None, storages[change.block])
    step = begin.step_code(change.step)
    return new_tuple(_Change, (step, change.at_end, change.delta_bytes, change.category, block, storage, user))


def _key_place(step: Step) -> int:
    """Return the position of the micro-batch in the step's key or tag; -1 for a step without one."""
    key = step.key if isinstance(step, Collective) else step.tag if isinstance(step, Send | Recv) else None
    if key is None:
        return -1
    found = [i for i, part in enumerate(key) if isinstance(part, MicroBatch)]
    if len(found) != 1:
        raise OtherStateError
    return found[0]


def _written_pass(steps: list[Step], begin: _Begin) -> WrittenPass:
    """Return the steps of a pass that has been written since ``begin``."""
    labels: dict[Label, int] = {}
    return WrittenPass(
        steps=tuple(steps),
        codes=tuple([tuple(map(begin.step_code, step.after)) for step in steps]),
        key_places=tuple(map(_key_place, steps)),
        label_of=tuple([labels.setdefault(step.label, len(labels)) for step in steps]),
        labels=tuple(labels),
    )
