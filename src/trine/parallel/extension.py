"""The interface between a stage and the communication that each form of parallelism adds to its program.

A stage runs operators, pass by pass. Everything else in its program (collectives of tensor parallelism, gradient
reductions, gathers of sharded weights, ...) is written by extensions, which the stage calls at fixed points. An
extension appends steps through ``program.writer`` and makes the next operator wait with ``writer.wait``.
"""

from __future__ import annotations

from collections.abc import Hashable
from fractions import Fraction
from typing import NamedTuple

from trine.graph.program import Label, Phase
from trine.graph.workload import BACKWARD, OPTIMIZER, Operator
from trine.parallel.chunks import OperatorRun, Place
from trine.parallel.job import JobContext
from trine.parallel.layer_codes import LayerCodes, OtherStateError
from trine.parallel.memory import StageMemory
from trine.parallel.schedules import BACKWARD_PASS, INPUT_PASS, WEIGHT_PASS, PipelineAction
from trine.parallel.stages import INPUT_PART, WEIGHT_PART, Crossing, Stages
from trine.parallel.token_partition import WHOLE
from trine.parallel.writer import ProgramWriter


class Completion(NamedTuple):
    """Whether a pass is the last to add to gradients. inputs: for weights whose gradients the input part computes
    (norms); weights: for all other weights."""

    inputs: bool
    weights: bool

    def covers(self, run: OperatorRun, stages: Stages) -> bool:
        """Return whether the gradients that ``run`` adds to are complete after it."""
        if not run.adds or run.op.phase != BACKWARD:
            return False
        return self.inputs if stages.part_that_completes(run.op.id) == INPUT_PART else self.weights


class RankActions:
    """The passes of pipeline rank ``rank``.

    passes: in the program, in order. groups: passes, joined passes together.
    orders: the operator runs of a micro-batch, for each distinct sequence of its passes; order_of: the index
    into ``orders`` of each micro-batch. forward, backward, last_backward: see
    :class:`trine.parallel.extension.StageProgram`.
    """

    def __init__(self, context: JobContext, rank: int) -> None:
        self.context = context
        self.rank = rank
        self.passes = context.schedule.passes(rank, context.pipeline)
        self.groups: list[tuple[PipelineAction, ...]] = []
        for action in self.passes:
            if action.joined:
                self.groups[-1] = (*self.groups[-1], action)
            else:
                self.groups.append((action,))
        self._last_passes: dict[tuple[bool, int], int] = {}
        self._end: dict[int, PipelineAction] = {action.microbatch: action for action in self.passes}
        self._before_deferred: dict[int, PipelineAction] = {}
        if context.stages.deferred:
            self._before_deferred = {a.microbatch: a for a in self.passes if a.kind != WEIGHT_PASS}
        for i, action in enumerate(self.passes):
            if action.kind in (BACKWARD_PASS, INPUT_PASS):
                self._last_passes[False, action.chunk] = i
            if action.kind in (BACKWARD_PASS, WEIGHT_PASS):
                self._last_passes[True, action.chunk] = i
        self._per_microbatch = context.plan.reduces_each
        self._index = {action: i for i, action in enumerate(self.passes)}
        chunks = [context.chunks[number] for number in context.schedule.chunks_of(rank, context.pipeline)]
        self.forward = [op for chunk in chunks for op in chunk.forward]
        self.backward = self._by_readiness()
        self.last_backward = self._last_backward([op for chunk in chunks for op in chunk.backward])
        self.orders, self.order_of = self._orders()

    def completes(self, action: PipelineAction) -> Completion:
        """Return the gradients that ``action`` completes (for its micro-batch alone if each is reduced separately)."""
        has_inputs = action.kind in (BACKWARD_PASS, INPUT_PASS)
        has_weights = action.kind in (BACKWARD_PASS, WEIGHT_PASS)
        if self._per_microbatch:
            return Completion(has_inputs, has_weights)
        index = self._index[action]
        ends_inputs, ends_weights = (self._last_passes.get((part, action.chunk)) == index for part in (False, True))
        return Completion(has_inputs and ends_inputs, has_weights and ends_weights)

    def is_end_of_microbatch(self, action: PipelineAction) -> bool:
        """Return whether ``action`` is the micro-batch's last pass here; inference keeps its tensors for the step."""
        return self.context.pipeline.backward and self._end[action.microbatch] is action

    def defers(self, microbatch: int) -> bool:
        """Return whether operators of the micro-batch run after all passes of the rank."""
        return self._end[microbatch].kind == WEIGHT_PASS and microbatch in self._before_deferred

    def comes_before_deferred(self, action: PipelineAction) -> bool:
        """Return whether only deferred operators of the micro-batch follow ``action`` on this rank."""
        return self._before_deferred.get(action.microbatch) is action

    def peer(self, crossing: Crossing, place: Place) -> int:
        """Return the rank at the other end of a message, or -1 if no message is sent.

        No message is sent between two chunks of one rank, or if an earlier chunk of the rank received the tensor.
        """
        rank_of, pipeline = self.context.schedule.rank_of, self.context.pipeline
        source = rank_of(crossing.source, place.microbatch, pipeline)
        target = rank_of(crossing.target, place.microbatch, pipeline)
        if source == target:
            return -1
        if place.phase == Phase.FORWARD:
            for earlier in self.context.earlier_targets.get(crossing, ()):
                if rank_of(earlier, place.microbatch, pipeline) == target:
                    return -1
        return target if source == self.rank else source

    def _by_readiness(self) -> list[Operator]:
        """Return the backward operators, sorted by the end of their last run in a step."""
        stages = self.context.stages
        ready: list[tuple[int, int, Operator]] = []
        for action in self.passes:
            ends = self.completes(action)
            if any(ends):
                runs, index = self.context.chunks[action.chunk].passes[action.kind].runs, self._index[action]
                ready += [(index, i, run.op) for i, run in enumerate(runs) if ends.covers(run, stages)]
        last = {op.id: (index, i, op) for index, i, op in ready}
        kept = []
        for *_, op in sorted(last.values(), key=lambda item: item[:2]):
            kept.append(op)
        return kept

    def _last_backward(self, backward: list[Operator]) -> dict[int | None, int]:
        parts = self.context.stages.parts
        last: dict[int | None, int] = {}
        for op in backward:
            if parts.get(op.id) != WEIGHT_PART or parts.get(last.get(op.forward_id, -1), WEIGHT_PART) == WEIGHT_PART:
                last[op.forward_id] = op.id
        return last

    def _orders(self) -> tuple[list[list[OperatorRun]], list[int]]:
        order_numbers: dict[tuple[tuple[int, int], ...], int] = {}
        passes_of: dict[int, list[tuple[int, int]]] = {m: [] for m in range(self.context.pipeline.num_microbatches)}
        for action in self.passes:
            passes_of[action.microbatch].append((action.kind, action.chunk))
        order_of = [order_numbers.setdefault(tuple(passes_of[m]), len(order_numbers)) for m in passes_of]
        chunks = self.context.chunks
        orders = []
        for path in order_numbers:
            orders.append([run for kind, chunk in path for run in chunks[chunk].passes[kind].runs])
        return orders, order_of


class StageProgram:
    """The program of one pipeline rank during construction: the state that operators and extensions share.

    stage: the pipeline rank. forward, backward: operators of all its chunks; ``backward`` sorted by the end of their
    last run in a step, and so by when gradients become ready. expert_position: on the ep axis, if its ranks differ.
    bucket_ends: backward operators after which gradient buckets are ready.
    exchanges_tokens: whether an exchange with experts stood beside the latest operator; its reader resets it.
    last_backward: forward operator id -> the last of its backward operators that computes activation gradients (the
    last of all, if none does). copies: chunk and micro-batch -> the step that copies its inputs from the host.
    extensions: in call order.
    """

    def __init__(self, context: JobContext, stage: int, has_host: bool, expert_position: int = 0) -> None:
        self.context = context
        self.stage = stage
        self.expert_position = expert_position
        self.has_host = has_host and context.plan.inputs != "none"
        self.actions = RankActions(context, stage)
        self.forward = self.actions.forward
        self.backward = self.actions.backward
        operators = [op for op in context.workload.operators if op.phase == OPTIMIZER]
        self.optimizer = [op for op in operators if op.attributes.get("when") != "micro-batch"]
        self.last_backward = self.actions.last_backward
        self.weights = context.weights[stage]
        self.writer = ProgramWriter(context, stage)
        self.memory = StageMemory(context, stage, self.actions.orders, self.actions.order_of, self.writer)
        self.copies: dict[tuple[int, int], int] = {}
        self.bucket_ends: frozenset[int] = frozenset()
        self.exchanges_tokens = False
        self.extensions: list[Extension] = []

    def run(self, run: OperatorRun, place: Place, share: Fraction = WHOLE) -> int:
        """Write one run of an operator and return its time (ps). share: fraction of an optimizer operator."""
        raise NotImplementedError


class Extension:
    """A base class that does nothing; a form of parallelism overrides the methods that it needs.

    kept_steps: program steps that the extension remembers after the pass that wrote them.
    """

    def __init__(self, program: StageProgram) -> None:
        self.program = program
        self.context = program.context
        self.writer = program.writer
        self.kept_steps: list[int] = []

    def forgets(self) -> bool:
        """Return whether later passes now depend on earlier ones through this extension's ``kept_steps`` only.

        If this holds for all extensions, a pass may be a copy of an earlier one (:mod:`trine.parallel.pass_copies`).
        """
        return False

    def layer_state(self, codes: LayerCodes, place: Place) -> Hashable:
        """Return what this extension remembers between two layers of a pass at ``place``, in codes; () for nothing.

        A layer may be a copy of an equal one that began in the same state (:mod:`trine.parallel.layer_copies`), if all
        extensions override this method. Raises OtherStateError if the next layer may be no copy. The collectives of a
        layer have the ids of their operators in their keys.
        """
        raise OtherStateError

    def set_layer_state(self, state: Hashable, codes: LayerCodes, place: Place) -> None:
        """Set what :meth:`layer_state` returned behind the written layer, now behind its copy.

        Raises NotImplementedError for a state, if the extension does not override this method: it would be lost.
        """
        if state != ():
            raise NotImplementedError(f"{type(self).__name__} has a state between layers, but cannot set it")

    def label(self, op: Operator, place: Place) -> Label:
        """Return the label of ``op``, for the steps written on its behalf."""
        return self.context.label(op, self.program.stage, place.microbatch, place.step, place.rerun)

    def begin_step(self, step: int) -> None:
        """Run before the first pass of a training step."""

    def begin_pass(self, place: Place) -> None:
        """Run before the first operator of a pass (and before the arrivals from other stages)."""

    def before(self, op: Operator, place: Place) -> None:
        """Run before an operator, after the arrivals that it needs from other stages."""

    def write(self, run: OperatorRun, duration_ps: int, label: Label, batch: int, place: Place) -> int | None:
        """Write an operator in pieces instead of as one. Returns its last step, or None to decline."""
        return None

    def after(self, op: Operator, done: int, batch: int, place: Place) -> None:
        """Run after an operator on ``batch`` samples (step ``done`` of the program), before its sends."""

    def end_pass(self, place: Place) -> None:
        """Run after the last operator of a pass."""

    def before_optimizer(self, step: int) -> None:
        """Run after all passes of a step."""

    def optimizer_elsewhere(self, place: Place) -> None:
        """Run in place of the optimizer's operators, on a rank without weights."""

    def optimizer_share(self, share: Fraction) -> Fraction:
        """Return this rank's part of the recorded optimizer step; ``share`` is its part without this extension."""
        return share

    def after_optimizer(self, step: int) -> None:
        """Run after the optimizer's operators."""

    def host_bytes(self) -> int:
        """Return the bytes that this rank keeps in host memory between steps."""
        return 0

    def resident(self, sizes: dict[str, int]) -> None:
        """Change the memory that persists between steps: bytes by category, see trine.graph.memory."""
