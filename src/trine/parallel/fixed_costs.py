"""Work of a profile's software besides the model's operators: per micro-batch, and around the optimizer step.

The operators are in the workload (phase ``optimizer``, attribute ``cost``). This module decides when they run, and adds
their reductions of single numbers (the gradient norm, the logged loss). The next operator waits for these.
"""

from __future__ import annotations

from collections.abc import Hashable

from trine.graph.program import Phase
from trine.graph.workload import OPTIMIZER, Operator
from trine.parallel.chunks import OperatorRun, Place
from trine.parallel.extension import Extension, StageProgram
from trine.parallel.job import JobContext
from trine.parallel.layer_codes import LayerCodes
from trine.parallel.stages import INPUT_PART

_MICRO_BATCH = "micro-batch"
#: Bytes of a reduced number.
_NUMBER_BYTES = 4


def is_each_microbatch(op: Operator) -> bool:
    """Return whether an operator of the optimizer phase runs after each backward pass instead of once per step."""
    return op.phase == OPTIMIZER and op.attributes.get("when") == _MICRO_BATCH


def has_fixed_costs(context: JobContext) -> bool:
    """Return whether the workload has fixed costs."""
    return any("cost" in op.attributes for op in context.workload.operators if op.phase == OPTIMIZER)


class FixedCosts(Extension):
    """The fixed costs of each micro-batch, and the reductions that follow fixed costs."""

    def __init__(self, program: StageProgram) -> None:
        super().__init__(program)
        self._microbatch_costs = [op for op in self.context.workload.operators if is_each_microbatch(op)]

    def forgets(self) -> bool:
        return True

    def layer_state(self, codes: LayerCodes, place: Place) -> Hashable:
        return ()

    def end_pass(self, place: Place) -> None:
        """Run the micro-batch costs after the pass that adds to weight gradients."""
        if place.phase != Phase.BACKWARD or place.part == INPUT_PART:
            return
        whole = part = self.context.optimizer_share(self.program.stage)
        if self.context.plan.splits_gradients:
            for extension in self.program.extensions:
                part = extension.optimizer_share(part)
        cost_place = Place(Phase.OPTIMIZER, place.microbatch, place.step)
        for op in self._microbatch_costs:
            share = whole if op.attributes.get("whole") is True else part
            if part:
                self.program.run(OperatorRun(op), cost_place, share)
            elif not whole:
                self.after(op, -1, 0, cost_place)

    def optimizer_elsewhere(self, place: Place) -> None:
        """Join the reductions of the other ranks; a rank without weights takes part in them too."""
        for op in self.program.optimizer:
            if not is_each_microbatch(op):
                self.after(op, -1, 0, place)

    def after(self, op: Operator, done: int, batch: int, place: Place) -> None:
        number = op.attributes.get("all_reduces", 0)
        if op.phase != OPTIMIZER or not isinstance(number, int | float) or not number:
            return
        label = self.label(op, place)
        for i in range(round(number)):
            for axis in self._axes(str(op.attributes.get("axis", "world"))):
                key = ("cost", str(op.attributes.get("cost")), axis, i, place.microbatch, place.step)
                after = self.writer.last_compute_and_waits()
                self.writer.wait(self.writer.collective("all_reduce", axis, key, _NUMBER_BYTES, after, label))

    def _axes(self, name: str) -> list[str]:
        """Return the grid axes for ``name`` in order of use, without axes of size 1.

        A group of several axes is reduced axis by axis, as a tree over domains of fast links does.
        """
        plan = self.context.plan
        sizes, replica = dict(plan.axes), (*plan.groups.tensor.split("+"), "pp")
        named_axes = {"world": list(sizes), "model": [axis for axis in sizes if axis in replica]}
        return [axis for axis in named_axes.get(name, name.split("+")) if sizes.get(axis, 1) > 1]
