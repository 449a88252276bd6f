"""What a form of parallelism adds to the program of a stage: the interface between the stage and its communication.

A stage runs operators, pass by pass. Everything else in its program (collectives of tensor parallelism, reductions of
gradients, gathers of sharded weights, ...) is written by extensions, which the stage calls at fixed points. An
extension appends steps through ``program.writer`` and makes the next operator wait with ``writer.wait``.
"""

from __future__ import annotations

from fractions import Fraction

from trine.graph.program import Label
from trine.graph.workload import OPTIMIZER, Operator
from trine.parallel.actions import RankActions
from trine.parallel.chunks import OperatorRun, Place
from trine.parallel.job import WHOLE, JobContext
from trine.parallel.memory import StageMemory
from trine.parallel.writer import ProgramWriter


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
