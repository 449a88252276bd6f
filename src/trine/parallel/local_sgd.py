"""Local SGD: replicas train independently and average their parameters every H steps.

Stich, Local SGD Converges Fast and Communicates Little, ICLR 2019; Lin, Stich, Patel and Jaggi, Don't Use Large
Mini-Batches, Use Local SGD, ICLR 2020. A pass over rank programs: it removes gradient reductions, and adds one
all-reduce after every H-th optimizer step that averages the parameters whose gradients DDP would have reduced.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from trine.errors import PlanError
from trine.graph.program import (
    COMPUTE_STREAM,
    Collective,
    Compute,
    HostCopy,
    Job,
    Label,
    MemoryChange,
    RankProgram,
    Step,
)
from trine.parallel.data import BUFFERS

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
        raise PlanError(
            f"{num_steps} steps are no whole number of rounds of {sync_every}: take a multiple of sync_every steps"
        )
    rewriting = _Rewriting(program, sync_every)
    for number in range(num_steps):
        rewriting.step(number)
    return rewriting.finish()


@dataclass(frozen=True, slots=True)
class _Sync:
    """The reductions of one DDP step on a rank: bytes, the last gradient collective's algorithm, and the stage."""

    size_bytes: int
    algorithm: str | None
    stage: int


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
        self.before: tuple[int, ...] = ()

    def step(self, number: int) -> None:
        """Copy one training step, and append an average if a round ends."""
        sync = self._sync(number)
        first_buffers = number % self.every == 0
        for i in self.of_step[number]:
            step = self.program.steps[i]
            after = tuple(dict.fromkeys(j for old in step.after for j in self.new[old]))
            if _is_on_dp(step, GRADIENTS) or (_is_on_dp(step, BUFFERS) and not first_buffers):
                self.new.append(after)
                continue
            if self.before and isinstance(step, Compute) and step.stream == COMPUTE_STREAM:
                after, self.before = tuple(dict.fromkeys((*after, *self.before))), ()
            self.new.append((len(self.steps),))
            self.steps.append(replace(step, after=after))
        if sync is not None and (number + 1) % self.every == 0:
            self._average(number, sync)

    def _average(self, number: int, sync: _Sync) -> None:
        """Append the parameter all-reduce after the step's last operator and the CPU work that follows it."""
        last = max(
            i for i, step in enumerate(self.steps) if isinstance(step, Compute) and step.stream == COMPUTE_STREAM
        )
        label = Label(phase=self.steps[last].label.phase, stage=sync.stage, step=number)
        key = (AVERAGE, sync.stage, number)
        self.before = (len(self.steps),)
        on_host = (i for i in range(last + 1, len(self.steps)) if isinstance(self.steps[i], Compute | HostCopy))
        after = (last, *on_host)  # for an offloaded optimizer: its updates and copies
        self.steps.append(Collective("all_reduce", "dp", key, sync.size_bytes, -1, sync.algorithm, after, label))

    def _sync(self, number: int) -> _Sync | None:
        """Return the step's reductions; None for a stage without trained weights."""
        found = [self.program.steps[i] for i in self.of_step[number]]
        over_dp = [s for s in found if isinstance(s, Collective) and "dp" in s.axis.split("+")]
        other = [s for s in over_dp if not self._is_of_ddp(s)]
        if other:
            raise PlanError(
                f"local SGD keeps whole replicas: it takes the place of DDP's reductions, not of {other[0].kind} "
                f"{other[0].key}"
            )
        reductions = [s for s in over_dp if _is_on_dp(s, GRADIENTS)]
        if not reductions:
            return None
        sizes = {s.key[:3]: s.size_bytes for s in reductions}  # a bucket may be reduced after each micro-batch
        return _Sync(sum(sizes.values()), reductions[0].algorithm, reductions[0].label.stage)

    def _is_of_ddp(self, step: Collective) -> bool:
        kinds = ("all_reduce", GRADIENTS), ("broadcast", BUFFERS)
        return step.axis == "dp" and (step.kind, step.key[0]) in kinds

    def finish(self) -> RankProgram:
        memory = tuple(self._moved(change) for change in self.program.memory)
        return replace(self.program, steps=tuple(self.steps), memory=memory)

    def _moved(self, change: MemoryChange) -> MemoryChange:
        new = self.new[change.step]
        if len(new) != 1 or _is_on_dp(self.program.steps[change.step], GRADIENTS):
            raise PlanError(f"program {self.program.name!r} changes memory at a step that local SGD leaves out")
        return change._replace(step=new[0])
