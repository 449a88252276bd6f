"""Writing the program of one pipeline stage: its operators pass by pass, and what it exchanges with other stages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction

from trine.model.program import (
    PHASE_BACKWARD,
    PHASE_FORWARD,
    PHASE_INPUT,
    PHASE_OPTIMIZER,
    HostCopy,
    Label,
    Peer,
    RankProgram,
    Recv,
    Send,
)
from trine.model.workload import BACKWARD, FORWARD, OPTIMIZER, Operator
from trine.parallel.buckets import Bucket
from trine.parallel.context import JobContext
from trine.parallel.ddp import BucketReductions
from trine.parallel.extension import Extension, Place
from trine.parallel.liveness import StageMemory
from trine.parallel.plan import Plan
from trine.parallel.schedules import SCHEDULES
from trine.parallel.stages import Crossing
from trine.parallel.tensor_steps import TensorCollectives
from trine.parallel.writer import ProgramWriter


class StageBuilder:
    """Writes the program of one pipeline stage."""

    def __init__(self, context: JobContext, stage: int, has_host: bool) -> None:
        self.context = context
        self.stage = stage
        self.has_host = has_host and context.plan.input_copy != "none"
        self.forward = self._operators(FORWARD)
        self.backward = self._operators(BACKWARD)
        self.optimizer = [op for op in context.workload.operators if op.phase == OPTIMIZER]
        self.last_backward = {op.forward_id: op.id for op in self.backward}
        self.weights = context.weights[stage]
        self.writer = ProgramWriter(context)
        self.memory = StageMemory(context, stage, self.forward, self.backward, self.writer)
        self.last_pass = (PHASE_BACKWARD, -1)
        self.copies: dict[int, int] = {}
        self.next_copies: dict[int, int] = {}
        self.extensions = [make(self) for make in extensions_of(context.plan)]

    def _operators(self, phase: str) -> list[Operator]:
        stage_of = self.context.stages.stage_of
        return [op for op in self.context.workload.operators if op.phase == phase and stage_of[op.id] == self.stage]

    # -- one step ------------------------------------------------------------------------------------------------

    def build(self) -> RankProgram:
        """Write all steps."""
        context, plan = self.context, self.context.plan
        schedule = SCHEDULES.get(plan.schedule)
        passes = schedule(self.stage, plan.pp, len(context.micro_batches), backward=context.workload.is_training)
        self.last_pass = passes[-1]
        for step in range(plan.num_steps):
            self._begin_step(step)
            for phase, microbatch in passes:
                if phase == PHASE_FORWARD:
                    self._forward_pass(microbatch, step)
                else:
                    self._backward_pass(microbatch, step)
            self._optimizer_step(step)
        resident = self.memory.resident(self.weights, self.optimizer, bool(self.buckets), self.extensions)
        return self.writer.finish(f"stage {self.stage}", resident)

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """The buckets in which gradients are reduced."""
        return next((one.buckets for one in self.extensions if isinstance(one, BucketReductions)), ())

    def _begin_step(self, step: int) -> None:
        if self.has_host:
            copied, plan = self._copy_inputs(step), self.context.plan
            self.copies, self.next_copies = (copied, {}) if plan.input_copy == "step" else (self.next_copies, copied)
        for extension in self.extensions:
            extension.begin_step(step)

    def _copy_inputs(self, step: int) -> dict[int, int]:
        """Copy the inputs of each micro-batch, one after the other, from the end of the step before."""
        copies: dict[int, int] = {}
        after = self.writer.last_of_step()
        for microbatch, batch in enumerate(self.context.micro_batches):
            label = Label(phase=PHASE_INPUT, stage=self.stage, microbatch=microbatch, step=step)
            size = self.context.input_bytes(self.forward, batch)
            if size:
                copies[microbatch] = self.writer.add(HostCopy(size, after, label))
                after = (copies[microbatch],)
        return copies

    def _forward_pass(self, microbatch: int, step: int) -> None:
        if microbatch in self.copies:
            self.writer.wait(self.copies[microbatch])
        arriving = _by(lambda c: c.consumer, (c for c in self._crossings() if c.target == self.stage))
        leaving = _by(lambda c: c.producer, (c for c in self._crossings() if c.source == self.stage))
        place = Place(PHASE_FORWARD, microbatch, step)
        self._each(lambda extension: extension.begin_pass(place))
        for op in self.forward:
            for crossing in arriving.get(op.id, ()):
                self._receive(crossing, PHASE_FORWARD, microbatch, step)
            self._run(op, place)
            for crossing in leaving.get(op.id, ()):
                self._send(crossing, PHASE_FORWARD, microbatch, step)
        self._each(lambda extension: extension.end_pass(place))

    def _each(self, call: Callable[[Extension], None]) -> None:
        for extension in self.extensions:
            call(extension)

    def _backward_pass(self, microbatch: int, step: int) -> None:
        """Run backward; a gradient arrives before its producer needs it and leaves after its last reader made it."""
        if not self.backward:
            return
        first, last = self.backward[0].id, self.backward[-1].id
        here = {op.id for op in self.backward}
        gradients = [c for c in self._crossings() if c.has_gradient]
        arriving = _by(
            lambda c: c.gradient_before if c.gradient_before in here else first,
            (c for c in gradients if c.source == self.stage),
        )
        leaving = _by(
            lambda c: c.gradient_after if c.gradient_after in here else last,
            (c for c in gradients if c.target == self.stage),
        )
        place = Place(PHASE_BACKWARD, microbatch, step, (PHASE_BACKWARD, microbatch) == self.last_pass)
        self._each(lambda extension: extension.begin_pass(place))
        for op in self.backward:
            for crossing in arriving.get(op.id, ()):
                self._receive(crossing, PHASE_BACKWARD, microbatch, step)
            self._run(op, place)
            for crossing in leaving.get(op.id, ()):
                self._send(crossing, PHASE_BACKWARD, microbatch, step)
        self._each(lambda extension: extension.end_pass(place))
        self.memory.end_backward(microbatch)

    def _optimizer_step(self, step: int) -> None:
        """One optimizer step after all gradients have arrived; a stage does the share of it that its weights are."""
        self._each(lambda extension: extension.before_optimizer(step))
        self._add_up_tied_gradients(step)
        share = self.context.optimizer_share(self.stage)
        for extension in self.extensions:
            share = extension.optimizer_share(share)
        if share:
            for op in self.optimizer:
                self._run(op, Place(PHASE_OPTIMIZER, -1, step), share)
        self._each(lambda extension: extension.after_optimizer(step))
        self.memory.end_step(self.writer.last_compute())
        self.writer.end_step()

    def _add_up_tied_gradients(self, step: int) -> None:
        """Two stages that keep the same weight exchange their gradients (as Megatron-LM does for embeddings)."""
        for owned in self.weights:
            if owned.tied_to < 0 or owned.gradient_operator is None:
                continue
            peer = Peer("pp", owned.tied_to)
            label = Label(phase=PHASE_BACKWARD, stage=self.stage, step=step)
            tag = ("tied", owned.weight, step)
            size = self.context.local_bytes[owned.weight]
            self.writer.add(Send(peer, size, tag, self.writer.last_compute_and_waits(), label))
            self.writer.wait(self.writer.add(Recv(peer, tag, (), label)))

    # -- one operator --------------------------------------------------------------------------------------------

    def _run(self, op: Operator, place: Place, share: Fraction = Fraction(1)) -> None:
        context = self.context
        self._each(lambda extension: extension.before(op, place))
        label = context.label(op, self.stage, place.microbatch, place.step)
        batch = context.micro_batches[place.microbatch] if place.microbatch >= 0 else context.batch
        done = self.writer.operator(op, context.duration(op, batch, share), label)
        self.memory.ran(op, done, place.microbatch, batch, share)
        self._each(lambda extension: extension.after(op, done, batch, place))

    # -- between stages ------------------------------------------------------------------------------------------

    def _crossings(self) -> tuple[Crossing, ...]:
        return self.context.stages.crossings

    def _send(self, crossing: Crossing, phase: int, microbatch: int, step: int) -> None:
        target = crossing.target if phase == PHASE_FORWARD else crossing.source
        size = self.context.rank_bytes(crossing.tensor, self.context.micro_batches[microbatch])
        label = Label(phase=phase, stage=self.stage, microbatch=microbatch, step=step)
        tag = ("pp", phase, crossing.source, crossing.target, crossing.tensor, microbatch, step)
        self.writer.add(Send(Peer("pp", target), size, tag, self.writer.last_compute_and_waits(), label))

    def _receive(self, crossing: Crossing, phase: int, microbatch: int, step: int) -> None:
        source = crossing.source if phase == PHASE_FORWARD else crossing.target
        label = Label(phase=phase, stage=self.stage, microbatch=microbatch, step=step)
        tag = ("pp", phase, crossing.source, crossing.target, crossing.tensor, microbatch, step)
        received = self.writer.add(Recv(Peer("pp", source), tag, (), label))
        self.writer.wait(received)
        if phase == PHASE_FORWARD:
            self.memory.received(crossing.tensor, received, microbatch)
        else:
            self.memory.received_gradient(crossing, received, microbatch)


def extensions_of(plan: Plan) -> list[Callable[[StageBuilder], Extension]]:
    """What the forms of parallelism of a plan add to the programs, in the order in which they are called."""
    found: list[Callable[[StageBuilder], Extension]] = []
    if plan.tp > 1:
        found.append(TensorCollectives)
    if plan.dp > 1:
        found.append(BucketReductions)
    return found


def _by(key: Callable[[Crossing], int], crossings: Iterable[Crossing]) -> dict[int, list[Crossing]]:
    """Group crossings by an operator id."""
    groups: dict[int, list[Crossing]] = {}
    for crossing in crossings:
        groups.setdefault(key(crossing), []).append(crossing)
    return groups
