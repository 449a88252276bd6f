"""DataParallel: one process drives all GPUs; the first holds the model and everything passes through it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trine.compute import kind_of
from trine.model.program import (
    PHASE_BACKWARD,
    PHASE_FORWARD,
    PHASE_INPUT,
    PHASE_OPTIMIZER,
    Collective,
    HostCopy,
    Label,
    Peer,
    RankProgram,
    Recv,
    Send,
)
from trine.model.workload import BACKWARD, FORWARD, OPTIMIZER, Operator

if TYPE_CHECKING:
    from trine.parallel.build import JobContext


def build_data_parallel(context: JobContext, has_host: bool) -> tuple[RankProgram, RankProgram]:
    """Programs of the first GPU and of the others.

    A step, as torch.nn.DataParallel does it, without overlap: the first GPU scatters the inputs, broadcasts the
    weights, every GPU runs its share forward, the first gathers the outputs, computes the loss over all samples and
    sends its gradient back, every GPU runs backward, the gradients are reduced to the first, which runs the optimizer.
    Outputs are gathered and gradients scattered by point-to-point copies; weights and gradients travel in one
    broadcast and one reduction along a ring.
    """
    return _DataParallelProgram(context, True, has_host).build(), _DataParallelProgram(context, False, has_host).build()


class _DataParallelProgram:
    def __init__(self, context: JobContext, is_first: bool, has_host: bool) -> None:
        from trine.parallel.liveness import StageMemory
        from trine.parallel.writer import ProgramWriter

        self.context = context
        self.is_first = is_first
        self.has_host = has_host and context.plan.input_copy != "none"
        operators = context.workload.operators
        forward = [op for op in operators if op.phase == FORWARD]
        first_loss = next((i for i, op in enumerate(forward) if kind_of(op) == "loss"), len(forward))
        self.model, self.loss = forward[:first_loss], forward[first_loss:]
        loss_ids = {op.id for op in self.loss}
        backward = [op for op in operators if op.phase == BACKWARD]
        self.loss_backward = [op for op in backward if op.forward_id in loss_ids]
        taken = {op.id for op in self.loss_backward}
        self.backward = [op for op in backward if op.id not in taken]
        self.optimizer = [op for op in operators if op.phase == OPTIMIZER]
        self.writer = ProgramWriter()
        self.memory = StageMemory(context, forward, backward, self.writer)
        self.weight_bytes = sum(p.size_bytes for p in context.workload.parameters)
        self.gradient_bytes = sum(p.size_bytes for p in context.workload.parameters if p.gradient_operator is not None)

    def build(self) -> RankProgram:
        for step in range(self.context.plan.num_steps):
            self._scatter_inputs(step)
            self._collective("broadcast", self.weight_bytes + self._buffer_bytes(), PHASE_FORWARD, step)
            self._run(self.model, step)
            outputs = self._output_bytes()
            self._gather("outputs", outputs, PHASE_FORWARD, step)
            if self.is_first:
                self._run(self.loss, step, replicas=self.context.plan.dp)
                self._run(self.loss_backward, step, replicas=self.context.plan.dp)
            if self.context.workload.is_training:
                self._scatter("output gradients", outputs, PHASE_BACKWARD, step)
                self._run(self.backward, step)
                self._collective("reduce", self.gradient_bytes, PHASE_BACKWARD, step)
            if self.is_first:
                self._run(self.optimizer, step)
            self.memory.end_step(self.writer.last_compute())
            self.writer.end_step()
        weights = [p.weight for p in self.context.workload.parameters]
        resident = self.memory.resident(weights, self.optimizer if self.is_first else (), False)
        return self.writer.finish("first GPU" if self.is_first else "other GPUs", resident)

    def _others(self) -> range:
        return range(1, self.context.plan.dp)

    def _scatter_inputs(self, step: int) -> None:
        label = Label(phase=PHASE_INPUT, stage=0, step=step)
        tensors = self.context.workload.tensors
        found = {
            tensors[t].storage: self.context.scaled_bytes(t, self.context.batch)
            for op in (*self.model, *self.loss)
            for t in op.inputs
            if tensors[t].role == "input"
        }
        size = sum(found.values())
        if not size:
            return
        if self.is_first and self.has_host:
            copy = HostCopy(size * self.context.plan.dp, self.writer.last_of_step(), label)
            self.writer.wait(self.writer.add(copy))
        self._scatter("inputs", size, PHASE_INPUT, step)

    def _scatter(self, what: str, size: int, phase: int, step: int) -> None:
        label = Label(phase=phase, stage=0, step=step)
        if not self.is_first:
            self.writer.wait(self.writer.add(Recv(Peer("dp", 0), (what, step), (), label)))
            return
        after = self.writer.last_compute_and_waits()
        for other in self._others():
            self.writer.add(Send(Peer("dp", other), size, (what, step), after, label))

    def _gather(self, what: str, size: int, phase: int, step: int) -> None:
        label = Label(phase=phase, stage=0, step=step)
        if self.is_first:
            for other in self._others():
                self.writer.wait(self.writer.add(Recv(Peer("dp", other), (what, step), (), label)))
        else:
            after = self.writer.last_compute_and_waits()
            self.writer.add(Send(Peer("dp", 0), size, (what, step), after, label))

    def _collective(self, kind: str, size: int, phase: int, step: int) -> None:
        if size:
            label = Label(phase=phase, stage=0, step=step)
            after = self.writer.last_compute_and_waits()
            self.writer.wait(self.writer.add(Collective(kind, "dp", (kind, step), size, 0, after, label)))

    def _run(self, operators: Sequence[Operator], step: int, replicas: int = 1) -> None:
        for op in operators:
            phase = PHASE_OPTIMIZER if op.phase == OPTIMIZER else None
            label = self.context.label(op, 0, step)
            if phase is not None:
                label = label._replace(stage=0, microbatch=-1)
            batch = self.context.batch * replicas
            done = self.writer.compute(self.context.duration(op, batch), label)
            from fractions import Fraction

            self.memory.ran(op, done, 0, batch, Fraction(1))

    def _output_bytes(self) -> int:
        tensors = self.context.workload.tensors
        if self.loss:
            found = [t for t in self.loss[0].inputs if tensors[t].role == "activation"]
        else:
            found = [t for t in self.model[-1].outputs if tensors[t].role == "activation"]
        return sum(self.context.scaled_bytes(t, self.context.batch) for t in found[:1])

    def _buffer_bytes(self) -> int:
        tensors = self.context.workload.tensors
        found = {
            tensors[t].storage: tensors[t].size_bytes
            for op in self.model
            for t in op.inputs
            if tensors[t].role == "buffer"
        }
        return sum(found.values())
