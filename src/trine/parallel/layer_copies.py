"""Copies of layers: the runs of a layer that begin in the state of an equal layer differ from it in numbers only.

A written pass (:mod:`trine.parallel.pass_copies`) runs equal layers one after the other. The first is written operator
by operator, the others are copies with other numbers of steps, operators, blocks and storages. Nothing is assumed
equal: layers are copied only if all that their steps and memory depend on is. This is the structure of their operators
(:mod:`trine.parallel.layer_structure`), durations, launches, sizes, allocations and frees (:class:`_Layer`), and the
state when they begin: pending waits, live tensors, gradients, the launching thread, and what extensions remember. So
layers of different passes, stages and micro-batches may be copies of one layer.

Not copied: layers with messages inside, layers that complete a gradient bucket, and layers of passes with an extension
that does not tell its state (:meth:`trine.parallel.extension.Extension.layer_state`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from trine.compute.kinds import layer_of
from trine.graph.memory import BLOCKS_PER_STREAM
from trine.graph.program import Collective, Compute, Label, MemoryChange, Step
from trine.parallel.chunks import ChunkPass, MicroBatch, OperatorRun, Place
from trine.parallel.extension import Completion, Extension, StageProgram
from trine.parallel.layer_codes import LayerCodes, OtherStateError
from trine.parallel.layer_structure import Structure, structures_of
from trine.parallel.memory import Block
from trine.parallel.program_parts import new_tuple
from trine.parallel.schedules import PipelineAction
from trine.parallel.writer import NO_SLACK, is_inexact

#: A layer of fewer runs is written faster than copied.
MIN_RUNS = 4


@dataclass(frozen=True, kw_only=True, eq=False)
class _Layer:
    """Consecutive runs of one layer in a pass, ``begin`` to ``end``.

    number: equal for layers with equal operators, durations, launches, sizes, allocations, frees and weights.
    names: operator id -> code; storages, weights: all that the runs touch; completes: operators that may end buckets.
    """

    begin: int
    end: int
    number: int
    names: dict[int, int]
    storages: tuple[int, ...]
    weights: tuple[int, ...]
    operators: frozenset[int]


class _Before(NamedTuple):
    """The state before a layer.

    key: in codes. live: the block of each storage of the layer, or None. thread_ps: unwritten launches, and the lower
    bound of the GPU. weights: whether the gradient of each weight is allocated.
    """

    layer: _Layer
    key: Hashable
    codes: LayerCodes
    live: tuple[Block | None, ...]
    change: int
    block: int
    evidence_ps: dict[str, int]
    thread_ps: tuple[int, int]
    last_launch: int
    launches: float
    num_counts: int
    kept: tuple[int, ...]
    weights: tuple[bool, ...]


class _WrittenStep(NamedTuple):
    """A step of a written layer. place: position of the operator's id in the key of a collective."""

    step: Step
    codes: tuple[int, ...]
    label: int
    place: int
    microbatch_place: int


class _NotedBlock(NamedTuple):
    """A new block of memory. step: code of the step that allocates it. number: from 0 for the layer's first block."""

    step: int
    size_bytes: int
    category: int
    number: int


class _NotedChange(NamedTuple):
    """A change of memory. step, user: codes (user -1: none). block: from 0 for new ones, else -1 - its position."""

    step: int
    at_end: bool
    delta_bytes: int
    category: int
    block: int
    user: int


class _WrittenLayer(NamedTuple):
    """A written layer in codes.

    labels: phase and operator. live: position of each changed storage, with its new block and that block's user (-1:
    none), or None if it is freed. gradients: position of each weight with a new gradient, and its block.
    begun_ps: the launching thread's ``thread_ps`` at the beginning. min_slack_ps: their least difference with which no
    launch is written; None if some are. thread: changes of both, and its state behind the layer.
    """

    steps: tuple[_WrittenStep, ...]
    labels: tuple[tuple[int, int], ...]
    last: int
    waits: tuple[int, ...]
    changes: tuple[_NotedChange, ...]
    num_blocks: int
    live: tuple[tuple[int, tuple[_NotedBlock, int] | None], ...]
    gradients: tuple[tuple[int, _NotedBlock], ...]
    evidence_ps: dict[str, int]
    begun_ps: tuple[int, int]
    min_slack_ps: int | None
    thread: tuple[int, int, bool, tuple[int, ...], float]
    counts: tuple[tuple[float, int], ...]
    states: tuple[Hashable, ...]

    def has_launches_of(self, thread_ps: tuple[int, int]) -> bool:
        """Return whether a layer that begins with this state of the launching thread has the same launches.

        If the written layer has no launches, another layer has none if the GPU is at least as far behind.
        """
        unwritten_ps, ahead_ps = thread_ps
        is_late_enough = self.min_slack_ps is not None and ahead_ps - unwritten_ps >= self.min_slack_ps
        return thread_ps == self.begun_ps or is_late_enough


class LayerCopies:
    """The layers of a program's passes. Equal layers of all programs of a job share what was written."""

    def __init__(self, program: StageProgram) -> None:
        self._program, self._context = program, program.context
        self._writer, self._memory = program.writer, program.memory
        self._written: dict[Hashable, list[_WrittenLayer]] = program.context.written_layers
        self._structures = structures_of(program.context.workload)
        self._layers: dict[Hashable, dict[int, _Layer]] = {}
        tells = all(type(ext).layer_state is not Extension.layer_state for ext in program.extensions)
        self._can_copy = tells and not program.writer.has_clocks and not program.context.stages.deferred
        self._begun: _Before | None = None

    def of_pass(self, action: PipelineAction, chunk_pass: ChunkPass, ends: Completion) -> dict[int, _Layer]:
        """Return the layers of a pass that may be copied, by their first run."""
        self._begun = None
        if not self._can_copy:
            return {}
        batch = self._context.micro_batches[action.microbatch]
        order = self._program.actions.order_of[action.microbatch]
        key = action.kind, action.chunk, batch, order
        if key not in self._layers:
            self._layers[key] = self._layers_of(chunk_pass, batch, action.microbatch)
        layers, ready = self._layers[key], self._program.bucket_ends if any(ends) else frozenset()
        return {begin: layer for begin, layer in layers.items() if not layer.operators & ready}

    # -- layers that are alike -----------------------------------------------------------------------------------------

    def _layers_of(self, chunk_pass: ChunkPass, batch: int, microbatch: int) -> dict[int, _Layer]:
        repeated, begin = [], 0
        for name, group in groupby(chunk_pass.runs, key=lambda run: layer_of(run.op.layer)):
            runs = list(group)
            end = begin + len(runs)
            has_messages = any(begin < position < end for position in chunk_pass.arriving)
            has_messages |= any(begin <= position < end - 1 for position in chunk_pass.leaving)
            if name and not name.startswith("loss") and len(runs) >= MIN_RUNS and not has_messages:
                repeated.append((begin, runs, self._structures.of(runs)))
            begin = end
        layers = {}
        for begin, runs, structure in repeated:
            if self._structures.is_repeated(structure):
                layers[begin] = self._layer(runs, structure, begin, batch, microbatch)
        return layers

    def _layer(
        self, runs: Sequence[OperatorRun], structure: Structure, begin: int, batch: int, microbatch: int
    ) -> _Layer:
        storages, weights = dict(structure.storages), dict[int, int]()
        rows: list[Hashable] = [structure.number, batch]
        for run in runs:
            rows.append(self._facts(run, batch, microbatch, storages, weights))
        numbers = self._context.layer_numbers
        return _Layer(
            begin=begin, end=begin + len(runs), number=numbers.setdefault(tuple(rows), len(numbers)),
            names=structure.names, storages=tuple(storages), weights=tuple(weights),
            operators=frozenset(run.op.id for run in runs),
        )  # fmt: skip

    def _facts(
        self, run: OperatorRun, batch: int, microbatch: int, storages: dict[int, int], weights: dict[int, int]
    ) -> Hashable:
        """Return all that the steps and the memory of a run depend on, besides the structure of its layer."""
        op, context, memory = run.op, self._context, self._memory
        sizes, frees = memory.touches(run, microbatch, batch)
        allocated = tuple([(storages.setdefault(s, len(storages)), size, category) for s, size, category in sizes])
        freed = tuple([storages.setdefault(storage, len(storages)) for storage in frees])
        gradients = []
        for weight in memory.gradients_of(run):
            gradients.append((weights.setdefault(weight, len(weights)), memory.gradient_facts(weight)))
        return (
            context.work.duration(op, batch, part=run.part), context.number_of_split(op),
            None if context.launch is None else context.launch_of(op, self._program.stage),
            context.stages.parts.get(op.id), self._program.last_backward.get(op.forward_id) == op.id,
            allocated, freed, tuple(gradients),
        )  # fmt: skip

    # -- one layer -----------------------------------------------------------------------------------------------------

    def copy(self, layer: _Layer, place: Place) -> bool:
        """Write a layer as a copy of one that began alike. Return False without one, before it is written."""
        try:
            begin = self._begun = self._begin(layer, place)
        except OtherStateError:
            self._begun = None
            return False
        alike = self._written.get(begin.key, ())
        written = next((each for each in alike if each.has_launches_of(begin.thread_ps)), None)
        if written is None:
            self._writer.thread.least_slack = NO_SLACK
            return False
        self._begun = None
        self._copy(begin, written, place)
        return True

    def end(self, place: Place) -> None:
        """Note the layer that has been written since :meth:`copy`."""
        begin, self._begun = self._begun, None
        if begin is not None:
            try:
                written = self._note(begin, place)
            except OtherStateError:
                return
            self._written.setdefault(begin.key, []).append(written)

    def _begin(self, layer: _Layer, place: Place) -> _Before:
        writer, memory, thread = self._writer, self._memory, self._writer.thread
        codes = LayerCodes(len(writer.steps), layer.names)
        before = writer.last_compute_and_waits()
        if not writer.last_compute() or is_inexact(thread.count):
            raise OtherStateError
        live_blocks = memory.live(place.microbatch)
        live = tuple([live_blocks.get(storage) for storage in layer.storages])
        held = []
        for block in live:
            user = -1 if block is None else memory.users.get(block.number, -1)
            held.append(None if block is None else (block.size, block.category, codes.code(user) if user >= 0 else 0))
        gradients = tuple([weight in memory.gradients for weight in layer.weights])
        key = (
            layer.number,
            place._replace(microbatch=0, is_last=False, chunk=0),
            tuple(map(codes.code, before)),
            (thread.takes_waits, tuple(map(codes.code, thread.waits))),
            tuple(held),
            gradients,
            tuple([weight in memory.parts for weight in layer.weights]),
            tuple([extension.layer_state(codes, place) for extension in self._program.extensions]),
        )
        codes.close()
        evidence_ps = dict(self._context.evidence_ps.get(place.microbatch, {}))
        return _Before(
            layer, key, codes, live, len(writer.memory), memory.num_blocks, evidence_ps,
            (thread.unwritten_ps, thread.ahead_ps), thread.last_written, thread.count,
            len(thread.counts), self._num_kept(), gradients,
        )  # fmt: skip

    def _num_kept(self) -> tuple[int, ...]:
        return (len(self._writer.sent), *(len(extension.kept_steps) for extension in self._program.extensions))

    def _note(self, begin: _Before, place: Place) -> _WrittenLayer:
        writer, memory, code = self._writer, self._memory, begin.codes.code
        if begin.kept != self._num_kept():
            raise OtherStateError
        labels: dict[tuple[int, int], int] = {}
        steps = []
        for step in writer.steps.from_step(begin.codes.first):
            steps.append(self._noted_step(step, begin, place, labels))
        before = writer.last_compute_and_waits()
        evidence_ps = {}
        for name, ps in self._context.evidence_ps.get(place.microbatch, {}).items():
            if ps > begin.evidence_ps.get(name, -1):
                evidence_ps[name] = ps - begin.evidence_ps.get(name, 0)
        thread, (unwritten_ps, ahead_ps) = writer.thread, begin.thread_ps
        slack_ps = ahead_ps - unwritten_ps - thread.least_slack
        counts = []
        for count, operator in list(zip(thread.counts, thread.operators, strict=True))[begin.num_counts :]:
            counts.append((count - begin.launches, code(operator)))
        if any(is_inexact(count) for count in (thread.count - begin.launches, *(count for count, _ in counts))):
            raise OtherStateError
        return _WrittenLayer(
            steps=tuple(steps), labels=tuple(labels), last=code(before[0]), waits=tuple(map(code, before[1:])),
            changes=self._noted_changes(begin), num_blocks=memory.num_blocks - begin.block,
            live=self._noted_live(begin, place.microbatch), gradients=self._noted_gradients(begin),
            evidence_ps=evidence_ps,
            begun_ps=begin.thread_ps, min_slack_ps=None if thread.last_written != begin.last_launch else slack_ps,
            thread=(
                thread.unwritten_ps - unwritten_ps, thread.ahead_ps - ahead_ps, thread.takes_waits,
                tuple(map(code, thread.waits)), thread.count - begin.launches,
            ),
            counts=tuple(counts),
            states=tuple([extension.layer_state(begin.codes, place) for extension in self._program.extensions]),
        )  # fmt: skip

    def _noted_step(self, step: Step, begin: _Before, place: Place, labels: dict[tuple[int, int], int]) -> _WrittenStep:
        """Return a step in codes: of an operator of the layer, in the pass of ``place``."""
        if not isinstance(step, Compute | Collective):
            raise OtherStateError
        label = step.label
        if label.operator < 0:
            raise OtherStateError
        op = self._context.workload.operators[label.operator]
        name = begin.layer.names.get(op.id)
        if name is None or label != self._label(label.phase, op.id, place):
            raise OtherStateError
        at = microbatch_at = -1
        if isinstance(step, Collective):
            at = _only([i for i, part in enumerate(step.key) if type(part) is int and part == op.id])
            microbatch_at = _only([i for i, part in enumerate(step.key) if isinstance(part, MicroBatch)])
        number = labels.setdefault((label.phase, name), len(labels))
        return _WrittenStep(step, tuple(map(begin.codes.code, step.after)), number, at, microbatch_at)

    def _label(self, phase: int, op_id: int, place: Place) -> Label:
        names = self._context.name_indices[op_id]
        return Label(phase, *names, self._program.stage, place.microbatch, place.step)

    def _noted_changes(self, begin: _Before) -> tuple[_NotedChange, ...]:
        positions = {block.number: i for i, block in enumerate(begin.live) if block is not None}
        changes = []
        for change in self._writer.memory.from_change(begin.change):
            is_new = change.block % BLOCKS_PER_STREAM > begin.block
            if not is_new and change.block not in positions:
                raise OtherStateError
            block = change.block - begin.block if is_new else -1 - positions[change.block]
            user = begin.codes.code(change.user) if change.user >= begin.codes.first else -1
            if is_new and change.user >= 0 and user < 0:
                raise OtherStateError
            step = begin.codes.code(change.step)
            changes.append(_NotedChange(step, change.at_end, change.delta_bytes, change.category, block, user))
        return tuple(changes)

    def _noted_live(self, begin: _Before, microbatch: int) -> tuple[tuple[int, tuple[_NotedBlock, int] | None], ...]:
        """Return the storages that the layer has freed, then those that it has allocated, in order."""
        live, freed, allocated = self._memory.live(microbatch), [], []
        for position, (storage, before) in enumerate(zip(begin.layer.storages, begin.live, strict=True)):
            block = live.get(storage)
            if block is before:
                if block is not None and self._memory.users.get(block.number, -1) >= begin.codes.first:
                    raise OtherStateError  # a collective of the layer uses a block from before it
                continue
            if before is not None:
                freed.append((position, None))
            if block is not None:
                user = self._memory.users.get(block.number, -1)
                if 0 <= user < begin.codes.first:
                    raise OtherStateError
                noted = self._noted_block(begin, block)
                allocated.append((position, (noted, user - begin.codes.first if user >= 0 else -1)))
        return (*freed, *sorted(allocated, key=lambda item: item[1][0].number))

    def _noted_gradients(self, begin: _Before) -> tuple[tuple[int, _NotedBlock], ...]:
        gradients = []
        for position, (weight, was_live) in enumerate(zip(begin.layer.weights, begin.weights, strict=True)):
            block = self._memory.gradients.get(weight)
            if (block is None) == was_live:
                if block is None:
                    raise OtherStateError
                gradients.append((position, self._noted_block(begin, block)))
        return tuple(sorted(gradients, key=lambda item: item[1].number))

    def _noted_block(self, begin: _Before, block: Block) -> _NotedBlock:
        if block.number % BLOCKS_PER_STREAM <= begin.block:
            raise OtherStateError
        return _NotedBlock(begin.codes.code(block.step), block.size, block.category, block.number - begin.block)

    # -- a copy --------------------------------------------------------------------------------------------------------

    def _copy(self, begin: _Before, written: _WrittenLayer, place: Place) -> None:
        codes, context = begin.codes, self._context
        numbers = [*range(codes.first, codes.first + len(written.steps)), *reversed(codes.outside)]
        self._copy_steps(begin, written, numbers, place)
        self._writer.continue_after(numbers[written.last], tuple([numbers[code] for code in written.waits]))
        self._copy_memory(begin, written, numbers, place.microbatch)
        for name, ps in written.evidence_ps.items():
            context.count(place.microbatch, name, ps)
        thread = self._writer.thread
        unwritten_ps, ahead_ps, thread.takes_waits, waits, launches = written.thread
        thread.unwritten_ps += unwritten_ps
        thread.ahead_ps += ahead_ps
        thread.waits[:] = [numbers[code] for code in waits]
        thread.count = begin.launches + launches
        for count, operator in written.counts:
            thread.counts.append(begin.launches + count)
            thread.operators.append(numbers[operator])
        for extension, state in zip(self._program.extensions, written.states, strict=True):
            extension.set_layer_state(state, codes, place)

    def _copy_steps(self, begin: _Before, written: _WrittenLayer, numbers: list[int], place: Place) -> None:
        ids = list(begin.layer.names)
        labels = [self._label(phase, ids[name], place) for phase, name in written.labels]
        operators = [ids[name] for _, name in written.labels]
        number_of, append, microbatch = numbers.__getitem__, self._writer.steps.append, place.microbatch
        for step, step_codes, label, at, microbatch_at in written.steps:
            after = tuple(map(number_of, step_codes))
            if isinstance(step, Compute):
                append(new_tuple(Compute, (step.stream, step.duration_ps, after, labels[label])))
            elif isinstance(step, Collective):
                key = list(step.key)
                key[at], key[microbatch_at] = operators[label], microbatch
                call = step.kind, step.axis, tuple(key), step.size_bytes, step.root, step.algorithm
                append(new_tuple(Collective, (*call, after, labels[label], step.queue, step.pressure_ppm)))

    def _copy_memory(self, begin: _Before, written: _WrittenLayer, numbers: list[int], microbatch: int) -> None:
        memory, append, users = self._memory, self._writer.memory.append, self._memory.users
        for step, at_end, delta_bytes, category, new_block, user_code in written.changes:
            user = -1 if user_code < 0 else numbers[user_code]
            if new_block >= 0:
                number = begin.block + new_block
            else:
                old = begin.live[-1 - new_block]
                assert old is not None
                number = old.number
                if delta_bytes < 0:
                    user_before = users.pop(number, -1)
                    user = user_before if user_code < 0 else user
            append(new_tuple(MemoryChange, (numbers[step], at_end, delta_bytes, category, number, user)))
        live, storages = memory.live(microbatch), begin.layer.storages
        for position, noted in written.live:
            if noted is None:
                del live[storages[position]]
                continue
            block, user_code = noted
            number = begin.block + block.number
            live[storages[position]] = Block(block.size_bytes, block.category, number, numbers[block.step])
            if user_code != -1:
                users[number] = numbers[user_code]
        for position, block in written.gradients:
            number, step = begin.block + block.number, numbers[block.step]
            memory.gradients[begin.layer.weights[position]] = Block(block.size_bytes, block.category, number, step)
        memory.num_blocks += written.num_blocks


def _only(places: list[int]) -> int:
    """Return the only one of several places. Raises OtherStateError for no place or several."""
    if len(places) != 1:
        raise OtherStateError
    return places[0]
