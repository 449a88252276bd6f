"""The clock of each layout's step, for programs and simulations of a few layers of it.

The clock follows from the power balance of the whole step (:mod:`trine.compute.clock`). A job of a few layers has
another balance: its head weighs more, and with few micro-batches its optimizer does. So short jobs take the clock of
the layout that they stand for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from trine.compute.clock import ClockedTimes, StepClock, step_clock
from trine.compute.origin import known_gpu
from trine.compute.power import Bounds
from trine.compute.power_curve import uses_step_clock
from trine.parallel.plan import Plan
from trine.training.setup import setup_of

if TYPE_CHECKING:
    from trine.compute import ComputeModel
    from trine.graph.workload import Workload
    from trine.training.options import SimulateOptions

#: Micro-batches of the step whose clock a probed layer has: the optimizer's share of such a step is negligible.
MANY = 4096


class StepClocks:
    """The clocks of the steps of one model on machines with one kind of GPU.

    No clock is known, and none needed, if operator times do not depend on the step: recorded times, tables without a
    known clock, a power cap, or GPUs of several kinds (their short jobs then have different clocks).
    """

    def __init__(self, workload: Workload, options: SimulateOptions, gpus: int) -> None:
        self._workload, self._clocks = workload, dict[tuple[int, int], StepClock]()
        self._model: ComputeModel | None = None
        if options.power_cap_w is not None:
            return
        setup = setup_of(workload, Plan(dp=gpus), replace(options, clocks={}, gpu_spread=0.0))
        self._gpu = known_gpu(setup.gpu_names[0])
        if self._gpu is not None and setup.mixed is None and uses_step_clock(setup.model.name, self._gpu):
            self._model, self._bounds = setup.model, Bounds(workload, self._gpu)

    @property
    def is_known(self) -> bool:
        """Whether operator times depend on the step."""
        return self._model is not None

    def of(self, micro_batch: int, micro_batches: int = MANY) -> StepClock | None:
        """Return the clock of a step of this many micro-batches of this many samples; None if unknown."""
        if self._model is None or self._gpu is None:
            return None
        key = micro_batch, micro_batches
        if key not in self._clocks:
            self._clocks[key] = step_clock(
                self._workload, self._model, self._gpu, micro_batch, micro_batches=micro_batches, bounds=self._bounds
            )
        return self._clocks[key]

    def by_gpu(self, micro_batch: int, micro_batches: int) -> Mapping[str, StepClock] | None:
        """Return the same as :class:`trine.training.options.SimulateOptions` takes it."""
        clock = self.of(micro_batch, micro_batches)
        return None if clock is None or self._gpu is None else {self._gpu.name: clock}

    def slowdown(self, micro_batch: int, micro_batches: int) -> float:
        """Return the ratio of the clocks of two steps, of MANY and of ``micro_batches``; at most 1.

        That is the least ratio of an operator's times at these clocks.
        """
        clock, slowest = self.of(micro_batch, micro_batches), self.of(micro_batch)
        return 1.0 if clock is None or slowest is None else min(slowest.clock / clock.clock, 1.0)

    def times(self, model: ComputeModel, short: Workload, micro_batch: int) -> ComputeModel:
        """Return a short model's operator times, from ``model`` at the clock of the tables, in steps of MANY."""
        clock = self.of(micro_batch)
        return model if clock is None or self._gpu is None else ClockedTimes(model, Bounds(short, self._gpu), clock)
