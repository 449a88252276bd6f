"""What a form of parallelism adds to the program of a stage: the interface between the stage and its communication.

A stage runs operators, pass by pass. Everything else in its program (collectives of tensor parallelism, reductions of
gradients, gathers of sharded weights, ...) is written by extensions, which the stage calls at fixed points. An
extension appends steps through ``program.writer`` and makes the next operator wait with ``writer.wait``.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple

from trine.graph.program import Label, Phase
from trine.graph.workload import BACKWARD, OPTIMIZER, Operator
from trine.parallel.chunks import OperatorRun, Place
from trine.parallel.job import WHOLE, JobContext
from trine.parallel.memory import StageMemory
from trine.parallel.schedules import BACKWARD_PASS, INPUT_PASS, WEIGHT_PASS, PipelineAction
from trine.parallel.stages import INPUT_PART, WEIGHT_PART, Crossing
from trine.parallel.writer import ProgramWriter


class Completion(NamedTuple):
    """Whether a pass is the last that adds to gradients: ``inputs`` of weights whose gradients are made in the input
    part (norms), ``weights`` of all others."""

    inputs: bool
    weights: bool

    def of(self, run: OperatorRun, parts: Mapping[int, str]) -> bool:
        """Whether the gradients that ``run`` adds to are complete after it."""
        if not run.adds or run.op.phase != BACKWARD:
            return False
        return self.inputs if parts.get(run.op.id) == INPUT_PART else self.weights


class RankActions:
    """The passes of pipeline rank ``rank``.

    groups: passes in order, two together where they are joined. orders, order_of: the runs of one micro-batch, for each
    way in which micro-batches pass, and the way of each. forward, backward, last_backward: see
    :class:`trine.parallel.extension.StageProgram`.
    """

    def __init__(self, context: JobContext, rank: int) -> None:
        self.context = context
        self.rank = rank
        self.passes = context.schedule.passes(rank, context.pipeline)
        self.groups: list[tuple[PipelineAction, ...]] = []
        for one in self.passes:
            if one.joined:
                self.groups[-1] = (*self.groups[-1], one)
            else:
                self.groups.append((one,))
        self._last: dict[tuple[bool, int], int] = {}
        self._end: dict[int, PipelineAction] = {one.microbatch: one for one in self.passes}
        for i, one in enumerate(self.passes):
            if one.kind in (BACKWARD_PASS, INPUT_PASS):
                self._last[False, one.chunk] = i
            if one.kind in (BACKWARD_PASS, WEIGHT_PASS):
                self._last[True, one.chunk] = i
        self._each = context.plan.reduces_each
        self._index = {one: i for i, one in enumerate(self.passes)}
        chunks = [context.chunks[number] for number in context.schedule.chunks_of(rank, context.pipeline)]
        self.forward = [op for chunk in chunks for op in chunk.forward]
        self.backward = self._by_readiness()
        self.last_backward = self._last_backward([op for chunk in chunks for op in chunk.backward])
        self.orders, self.order_of = self._orders()

    def completes(self, one: PipelineAction) -> Completion:
        """Of which gradients ``one`` is the last pass (of its micro-batch, where each is reduced)."""
        has_inputs, has_weights = one.kind in (BACKWARD_PASS, INPUT_PASS), one.kind in (BACKWARD_PASS, WEIGHT_PASS)
        if self._each:
            return Completion(has_inputs, has_weights)
        index = self._index[one]
        return Completion(
            has_inputs and self._last[False, one.chunk] == index, has_weights and self._last[True, one.chunk] == index
        )

    def is_end_of_microbatch(self, one: PipelineAction) -> bool:
        """Whether nothing of the micro-batch runs here after ``one``; inference keeps what it made for the step."""
        return self.context.pipeline.backward and self._end[one.microbatch] is one

    def peer(self, crossing: Crossing, place: Place) -> int:
        """The rank at the other end of a message; -1 where none is sent.

        That is so between two chunks of one rank, and where an earlier chunk of the rank was sent the tensor.
        """
        rank_of, pipeline = self.context.schedule.rank_of, self.context.pipeline
        source = rank_of(crossing.source, place.microbatch, pipeline)
        target = rank_of(crossing.target, place.microbatch, pipeline)
        if source == target:
            return -1
        if place.phase == Phase.FORWARD:
            for earlier in self.context.earlier_targets(crossing):
                if rank_of(earlier, place.microbatch, pipeline) == target:
                    return -1
        return target if source == self.rank else source

    def _by_readiness(self) -> list[Operator]:
        """Backward operators in the order in which their last runs of a step end."""
        parts = self.context.stages.parts
        ready: list[tuple[int, int, Operator]] = []
        for one in self.passes:
            ends = self.completes(one)
            if any(ends):
                runs, index = self.context.chunks[one.chunk].passes[one.kind].runs, self._index[one]
                ready += [(index, i, run.op) for i, run in enumerate(runs) if ends.of(run, parts)]
        last = {op.id: (index, i, op) for index, i, op in ready}
        return [op for *_, op in sorted(last.values(), key=lambda item: item[:2])]

    def _last_backward(self, backward: list[Operator]) -> dict[int | None, int]:
        parts = self.context.stages.parts
        found: dict[int | None, int] = {}
        for op in backward:
            if parts.get(op.id) != WEIGHT_PART or parts.get(found.get(op.forward_id, -1), WEIGHT_PART) == WEIGHT_PART:
                found[op.forward_id] = op.id
        return found

    def _orders(self) -> tuple[list[list[OperatorRun]], list[int]]:
        known: dict[tuple[tuple[int, int], ...], int] = {}
        taken: dict[int, list[tuple[int, int]]] = {m: [] for m in range(self.context.pipeline.num_microbatches)}
        for one in self.passes:
            taken[one.microbatch].append((one.kind, one.chunk))
        order_of = [known.setdefault(tuple(taken[m]), len(known)) for m in taken]
        chunks = self.context.chunks
        orders = [[run for kind, chunk in taken_by for run in chunks[chunk].passes[kind].runs] for taken_by in known]
        return orders, order_of


class StageProgram:
    """The program of one rank of the pipeline while it is written: what its operators and its extensions share.

    stage: that rank. forward, backward: operators of all chunks that it holds; ``backward`` in the order in which their
    last runs of a step end, so in the order in which gradients are ready. expert_position: on the ep axis, where ranks
    differ by it. last_backward: forward operator id -> the last of its backward operators that computes gradients of
    activations (of any, where none does). copies: chunk and micro-batch -> the step that copies its inputs from the
    host. extensions: in the order in which they are called.
    """

    def __init__(self, context: JobContext, stage: int, has_host: bool, expert_position: int = 0) -> None:
        self.context = context
        self.stage = stage
        self.expert_position = expert_position
        self.has_host = has_host and context.plan.inputs != "none"
        self.actions = RankActions(context, stage)
        self.forward = self.actions.forward
        self.backward = self.actions.backward
        own = [op for op in context.workload.operators if op.phase == OPTIMIZER]
        self.optimizer = [op for op in own if op.attributes.get("when") != "micro-batch"]
        self.last_backward = self.actions.last_backward
        self.weights = context.weights[stage]
        self.writer = ProgramWriter(context, stage)
        self.memory = StageMemory(context, stage, self.actions.orders, self.actions.order_of, self.writer)
        self.copies: dict[tuple[int, int], int] = {}
        self.extensions: list[Extension] = []

    def run(self, run: OperatorRun, place: Place, share: Fraction = WHOLE) -> int:
        """Write one run of an operator; returns its time in picoseconds. ``share``: of an optimizer operator."""
        raise NotImplementedError


class Extension:
    """Does nothing at every point; a form of parallelism overrides those that it needs."""

    def __init__(self, program: StageProgram) -> None:
        self.program = program
        self.context = program.context
        self.writer = program.writer

    def label(self, op: Operator, place: Place) -> Label:
        """What is written for an operator is labelled as the operator is."""
        return self.context.label(op, self.program.stage, place.microbatch, place.step, place.rerun)

    def begin_step(self, step: int) -> None:
        """Before the first pass of a training step."""

    def begin_pass(self, place: Place) -> None:
        """Before the first operator of a pass (and before what arrives from other stages)."""

    def before(self, op: Operator, place: Place) -> None:
        """Before an operator, after what arrives for it from other stages."""

    def write(self, run: OperatorRun, duration_ps: int, label: Label, batch: int, place: Place) -> int | None:
        """Write an operator in pieces, in place of as one; its last step, or None to leave it to others."""
        return None

    def after(self, op: Operator, done: int, batch: int, place: Place) -> None:
        """After an operator on ``batch`` samples, step ``done`` of the program; before what it sends on."""

    def end_pass(self, place: Place) -> None:
        """After the last operator of a pass."""

    def before_optimizer(self, step: int) -> None:
        """After all passes of a step."""

    def optimizer_elsewhere(self, place: Place) -> None:
        """In place of the optimizer's operators, on a rank without weights."""

    def optimizer_share(self, share: Fraction) -> Fraction:
        """The part of the recorded optimizer step that this rank does, given what it would be otherwise."""
        return share

    def after_optimizer(self, step: int) -> None:
        """After the optimizer's operators."""

    def resident(self, sizes: dict[str, int]) -> None:
        """Change what stays in memory from step to step: bytes by category, see trine.graph.memory."""
