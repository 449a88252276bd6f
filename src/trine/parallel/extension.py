"""What a form of parallelism adds to the program of a stage: the interface between the stage and its communication.

A stage runs operators, pass by pass. Everything else in its program (collectives of tensor parallelism, reductions of
gradients, gathers of sharded weights, ...) is written by extensions, which the stage calls at fixed points. An
extension appends steps through ``builder.writer`` and makes the next operator wait with ``writer.wait``.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from trine.graph.workload import Operator

if TYPE_CHECKING:
    from trine.graph.program import Label
    from trine.parallel.chunks import Run
    from trine.parallel.stage import StageBuilder

#: What a pass of the backward phase computes, where a schedule splits it (:attr:`Place.part`).
BOTH, INPUT_PART, WEIGHT_PART = "", "input", "weight"


class Place(NamedTuple):
    """Where in its program a stage is: pass kind (a PHASE of model/program.py), micro-batch (-1: none) and step.

    ``is_last``: the gradients of the weights of this pass (of this operator, where the hook is given one) are complete
    with it, so that they can be reduced. With ``Plan.sync = "each"`` that is so once a micro-batch, else once a step.
    ``chunk``: which of the model's consecutive parts the pass runs; several may sit on one stage.
    ``part``: in a backward phase that the schedule splits, ``"input"`` (gradients of activations) or ``"weight"``.
    An operator that computes both is run twice, once in each part.
    ``rerun``: a forward operator runs again within a backward pass (recomputation); everything that it needs of other
    ranks is sent again.
    """

    phase: int
    microbatch: int
    step: int
    is_last: bool = False
    chunk: int = 0
    part: str = BOTH
    rerun: bool = False

    @property
    def key(self) -> tuple[int | str, ...]:
        """What tells the collectives of one operator at different places apart: for the ``key`` of a collective."""
        return (self.microbatch, self.step, *([self.part] if self.part else []), *(["rerun"] if self.rerun else []))


class Extension:
    """Does nothing at every point; a form of parallelism overrides those that it needs."""

    def __init__(self, builder: StageBuilder) -> None:
        self.builder = builder
        self.context = builder.context
        self.writer = builder.writer

    def begin_step(self, step: int) -> None:
        """Before the first pass of a training step."""

    def begin_pass(self, place: Place) -> None:
        """Before the first operator of a pass (and before what arrives from other stages)."""

    def before(self, op: Operator, place: Place) -> None:
        """Before an operator, after what arrives for it from other stages."""

    def write(self, run: Run, duration_ps: int, label: Label, batch: int, place: Place) -> int | None:
        """Write an operator in pieces, in place of as one; its last step, or None to leave it to others."""
        return None

    def after(self, op: Operator, done: int, batch: int, place: Place) -> None:
        """After an operator on ``batch`` samples, step ``done`` of the program; before what it sends on."""

    def end_pass(self, place: Place) -> None:
        """After the last operator of a pass."""

    def before_optimizer(self, step: int) -> None:
        """After all passes of a step."""

    def optimizer_share(self, share: Fraction) -> Fraction:
        """The part of the recorded optimizer step that this rank does, given what it would be otherwise."""
        return share

    def after_optimizer(self, step: int) -> None:
        """After the optimizer's operators."""

    def resident(self, sizes: dict[str, int]) -> None:
        """Change what stays in memory from step to step: bytes by category, see trine.graph.memory."""
