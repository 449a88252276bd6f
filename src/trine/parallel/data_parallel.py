"""DataParallel: one process drives all GPUs; the first holds the model and everything passes through it."""

from __future__ import annotations

from collections.abc import Sequence

from trine.compute import kind_of
from trine.graph.program import HostCopy, Label, Peer, Phase, RankProgram, Recv, Send
from trine.graph.workload import BACKWARD, FORWARD, OPTIMIZER, Operator, Workload
from trine.parallel.chunks import OperatorRun
from trine.parallel.job import JobContext
from trine.parallel.memory import StageMemory
from trine.parallel.writer import ProgramWriter


def build_data_parallel(context: JobContext, is_first: bool, has_host: bool) -> RankProgram:
    """Write the program of the first GPU, or of another one.

    A step runs without overlap, as in torch.nn.DataParallel. The first GPU scatters the inputs and broadcasts the
    weights. Every GPU runs its share forward. The first GPU gathers the outputs, computes the loss over all samples and
    scatters its gradient. Every GPU runs backward. The gradients are reduced to the first GPU; it runs the optimizer.
    Outputs and their gradients move by point-to-point copies; weights and gradients move in one broadcast and one
    reduction. Each GPU has its own launching thread (PyTorch's threads share one interpreter lock).
    """
    return _DataParallelProgram(context, is_first, has_host).build()


def split_off_loss(workload: Workload) -> tuple[list[Operator], list[Operator]]:
    """Return the model's and the loss's forward operators; the loss starts at the first one after the last weight."""
    forward = [op for op in workload.operators if op.phase == FORWARD]
    weights = [i for i, op in enumerate(forward) if any(workload.tensors[t].role == "weight" for t in op.inputs)]
    after = weights[-1] + 1 if weights else 0
    first = next((i for i in range(after, len(forward)) if kind_of(forward[i]) == "loss"), len(forward))
    return forward[:first], forward[first:]


class _DataParallelProgram:
    def __init__(self, context: JobContext, is_first: bool, has_host: bool) -> None:
        self.context = context
        self.is_first = is_first
        self.has_host = has_host and context.plan.inputs != "none"
        self.model, self.loss = split_off_loss(context.workload)
        loss_ids = {op.id for op in self.loss}
        backward = [op for op in context.workload.operators if op.phase == BACKWARD]
        self.loss_backward = [op for op in backward if op.forward_id in loss_ids]
        self.backward = [op for op in backward if op.forward_id not in loss_ids]
        self.optimizer = [op for op in context.workload.operators if op.phase == OPTIMIZER]
        self.writer = ProgramWriter(context)
        runs = [
            OperatorRun(op)
            for op in ((*self.model, *self.loss, *backward) if is_first else (*self.model, *self.backward))
        ]
        self.memory = StageMemory(context, 0, [runs], [0], self.writer)

    def build(self) -> RankProgram:
        """Write all steps and return the program."""
        context, replicas = self.context, self.context.plan.dp
        weights = sum(p.size_bytes for p in context.workload.parameters)
        for step in range(context.plan.steps):
            self._scatter_inputs(step)
            self._collective("broadcast", weights + context.buffer_bytes(self.model), Phase.FORWARD, step)
            self._run(self.model, step)
            tensors = self.context.workload.tensors
            candidates = self.loss[0].inputs if self.loss else self.model[-1].outputs
            found = [t for t in candidates if tensors[t].role == "activation"]
            outputs = sum(self.context.scaled_bytes(t, self.context.batch) for t in found[:1])
            self._gather("outputs", outputs, Phase.FORWARD, step)
            if self.is_first:
                self._run(self.loss, step, replicas)
                self._run(self.loss_backward, step, replicas)
            if context.workload.is_training:
                self._scatter("output gradients", outputs, Phase.BACKWARD, step)
                self._run(self.backward, step)
                self._collective("reduce", context.total_trained_bytes, Phase.BACKWARD, step)
            if self.is_first:
                self._run(self.optimizer, step)
            self.memory.end_step(self.writer.last_compute())
            self.writer.end_step()
        resident = self.memory.resident(context.weights[0], self.optimizer if self.is_first else (), 0)
        return self.writer.finish("first GPU" if self.is_first else "other GPUs", resident)

    def _others(self) -> range:
        return range(1, self.context.plan.dp)

    def _scatter_inputs(self, step: int) -> None:
        size = self.context.input_bytes((*self.model, *self.loss), self.context.batch)
        if not size:
            return
        if self.is_first and self.has_host:
            label = Label(phase=Phase.INPUT, stage=0, step=step)
            copy = HostCopy(size * self.context.plan.dp, self.writer.last_of_step(), label)
            self.writer.wait(self.writer.add(copy))
        self._scatter("inputs", size, Phase.INPUT, step)

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
        if not self.is_first:
            after = self.writer.last_compute_and_waits()
            self.writer.add(Send(Peer("dp", 0), size, (what, step), after, label))
            return
        for other in self._others():
            received = self.writer.add(Recv(Peer("dp", other), (what, step), (), label))
            self.memory.gathered(size, received)
            self.writer.wait(received)

    def _collective(self, kind: str, size: int, phase: int, step: int) -> None:
        if size:
            label = Label(phase=phase, stage=0, step=step)
            after = self.writer.last_compute_and_waits()
            self.writer.wait(self.writer.collective(kind, "dp", (kind, step), size, after, label, root=0))

    def _run(self, operators: Sequence[Operator], step: int, replicas: int = 1) -> None:
        for op in operators:
            batch = self.context.batch * replicas
            done = self.writer.operator(op, self.context.duration(op, batch), self.context.label(op, 0, 0, step))
            self.memory.ran(OperatorRun(op), done, 0, batch)
