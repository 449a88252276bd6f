"""DataParallel: one process drives all GPUs; the first holds the model and everything passes through it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trine.compute import kind_of
from trine.errors import PlanError
from trine.graph.program import (
    COMPUTE_STREAM,
    Collective,
    Compute,
    HostCopy,
    Job,
    Label,
    MemoryChange,
    Peer,
    Phase,
    RankProgram,
    Recv,
    Send,
    Step,
)
from trine.graph.workload import BACKWARD, FORWARD, OPTIMIZER, Operator, Workload
from trine.parallel.chunks import OperatorRun
from trine.parallel.data import BUFFERS
from trine.parallel.job import JobContext
from trine.parallel.memory import StageMemory
from trine.parallel.writer import ProgramWriter

# Local SGD: replicas train independently and average their parameters every H steps.
#
# Stich, Local SGD Converges Fast and Communicates Little, ICLR 2019; Lin, Stich, Patel and Jaggi, Don't Use Large
# Mini-Batches, Use Local SGD, ICLR 2020. A pass over rank programs: it removes gradient reductions, and adds one
# all-reduce after every H-th optimizer step that averages the parameters whose gradients DDP would have reduced.

#: First words of the keys of DDP's collectives on the dp axis: gradients, and buffers before the forward pass.
GRADIENTS = "bucket"
AVERAGE = "average"


def local_sgd(job: Job, sync_every: int) -> Job:
    """Convert a job of DDP replicas to one that averages parameters at the end of every ``sync_every``-th step.

    The average is one all-reduce of all parameters of a stage after the optimizer (like PyTorch's
    PeriodicModelAverager). The next step waits for it, and nothing overlaps with it. Buffers are broadcast only at the
    start of a round. So a round of ``sync_every`` steps moves the bytes of one DDP step.

    Raises PlanError: fewer than two replicas, other collectives on the dp axis than DDP's (sharded, context-parallel or
    DataParallel layouts), or steps that are not a multiple of ``sync_every``.
    """
    if isinstance(sync_every, bool) or not isinstance(sync_every, int) or sync_every < 1:
        raise PlanError(f"sync_every must be a positive whole number, got {sync_every!r}")
    if dict(job.axes).get("dp", 1) < 2:
        raise PlanError("local SGD needs replicas (dp > 1): one alone has nobody to average with")
    local = tuple(_local(program, sync_every) for program in job.programs)
    if not any(_is_on_dp(step, GRADIENTS) for program in job.programs for step in program.steps):
        raise PlanError("the job reduces no gradients: there is nothing to average")
    return replace(job, programs=local)


def _is_on_dp(step: Step, word: str) -> bool:
    """Return whether the step is a collective of replicas whose key begins with ``word``."""
    return isinstance(step, Collective) and step.axis == "dp" and step.key[0] == word


def _local(program: RankProgram, sync_every: int) -> RankProgram:
    num_steps = max(step.label.step for step in program.steps) + 1
    if num_steps % sync_every:
        raise PlanError(f"{num_steps} steps are not a multiple of sync_every = {sync_every}")
    rewriting = _Rewriting(program, sync_every)
    for number in range(num_steps):
        rewriting.step(number)
    return rewriting.finish()


class _Rewriting:
    """A step-by-step copy of a program; ``new[i]`` are the steps that replace step i of the old one."""

    def __init__(self, program: RankProgram, sync_every: int) -> None:
        self.program, self.every = program, sync_every
        self.of_step: dict[int, list[int]] = {}
        for i, step in enumerate(program.steps):
            self.of_step.setdefault(step.label.step, []).append(i)
        if list(range(len(program.steps))) != [i for step in sorted(self.of_step) for i in self.of_step[step]]:
            raise PlanError(f"the steps of program {program.name!r} are not one after the other")
        self.steps: list[Step] = []
        self.new: list[tuple[int, ...]] = []
        self.barrier: tuple[int, ...] = ()

    def step(self, number: int) -> None:
        """Copy one training step, and append an average if a round ends."""
        average = self._average(number)
        first_buffers = number % self.every == 0
        for i in self.of_step[number]:
            step = self.program.steps[i]
            after = tuple(dict.fromkeys(j for old in step.after for j in self.new[old]))
            if _is_on_dp(step, GRADIENTS) or (_is_on_dp(step, BUFFERS) and not first_buffers):
                self.new.append(after)
                continue
            if self.barrier and isinstance(step, Compute) and step.stream == COMPUTE_STREAM:
                after, self.barrier = tuple(dict.fromkeys((*after, *self.barrier))), ()
            self.new.append((len(self.steps),))
            self.steps.append(step._replace(after=after))
        if average is not None and (number + 1) % self.every == 0:
            self._append(average)

    def _append(self, average: Collective) -> None:
        """Append the parameter all-reduce after the step's last operator and the CPU work that follows it."""
        last = max(
            i for i, step in enumerate(self.steps) if isinstance(step, Compute) and step.stream == COMPUTE_STREAM
        )
        label = average.label._replace(phase=self.steps[last].label.phase)
        self.barrier = (len(self.steps),)
        on_host = (i for i in range(last + 1, len(self.steps)) if isinstance(self.steps[i], Compute | HostCopy))
        after = (last, *on_host)  # for an offloaded optimizer: its updates and copies
        self.steps.append(average._replace(after=after, label=label))

    def _average(self, number: int) -> Collective | None:
        """Return the average that replaces DDP's reductions of a step; None for a stage without trained weights."""
        steps = [self.program.steps[i] for i in self.of_step[number]]
        over_dp = [s for s in steps if isinstance(s, Collective) and "dp" in s.axis.split("+")]
        foreign = [s for s in over_dp if not self._is_of_ddp(s)]
        if foreign:
            raise PlanError(
                f"local SGD keeps whole replicas: it takes the place of DDP's reductions, not of {foreign[0].kind} "
                f"{foreign[0].key}"
            )
        reductions = [s for s in over_dp if _is_on_dp(s, GRADIENTS)]
        if not reductions:
            return None
        sizes = {s.key[:3]: s.size_bytes for s in reductions}  # a bucket may be reduced after each micro-batch
        first, size, label = reductions[0], sum(sizes.values()), Label(stage=reductions[0].label.stage, step=number)
        return Collective("all_reduce", "dp", (AVERAGE, label.stage, number), size, -1, first.algorithm, (), label)

    def _is_of_ddp(self, step: Collective) -> bool:
        kinds = ("all_reduce", GRADIENTS), ("broadcast", BUFFERS)
        return step.axis == "dp" and (step.kind, step.key[0]) in kinds

    def finish(self) -> RankProgram:
        memory = tuple(self._move_change(change) for change in self.program.memory)
        return replace(self.program, steps=tuple(self.steps), memory=memory)

    def _move_change(self, change: MemoryChange) -> MemoryChange:
        new = self.new[change.step]
        if len(new) != 1 or _is_on_dp(self.program.steps[change.step], GRADIENTS):
            raise PlanError(f"program {self.program.name!r} changes memory at a step that local SGD leaves out")
        return change._replace(step=new[0])


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
    weights = []
    for i, op in enumerate(forward):
        if any(workload.tensors[t].role == "weight" for t in op.inputs):
            weights.append(i)
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
        run_operators = (*self.model, *self.loss, *backward) if is_first else (*self.model, *self.backward)
        runs = [OperatorRun(op) for op in run_operators]
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
            activations = [t for t in candidates if tensors[t].role == "activation"]
            outputs = sum(self.context.scaled_bytes(t, self.context.batch) for t in activations[:1])
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

    def _peers(self) -> range:
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

    def _scatter(self, payload: str, size: int, phase: int, step: int) -> None:
        label = Label(phase=phase, stage=0, step=step)
        if not self.is_first:
            self.writer.wait(self.writer.add(Recv(Peer("dp", 0), (payload, step), (), label)))
            return
        after = self.writer.last_compute_and_waits()
        for peer in self._peers():
            self.writer.add(Send(Peer("dp", peer), size, (payload, step), after, label))

    def _gather(self, payload: str, size: int, phase: int, step: int) -> None:
        label = Label(phase=phase, stage=0, step=step)
        if not self.is_first:
            after = self.writer.last_compute_and_waits()
            self.writer.add(Send(Peer("dp", 0), size, (payload, step), after, label))
            return
        for peer in self._peers():
            received = self.writer.add(Recv(Peer("dp", peer), (payload, step), (), label))
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
            label = self.context.label(op, 0, -1 if op.phase == OPTIMIZER else 0, step)
            done = self.writer.operator(op, self.context.duration(op, batch), label)
            self.memory.ran(OperatorRun(op), done, 0, batch)
