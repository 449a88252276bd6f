"""The clock of a recorded step at another batch.

Recorded times contain the clock of their step. With a larger batch, GEMMs take a larger part of the step, it draws more
power, and the GPU lowers its clock. trine converts the times that it scales from the trace to the maximum clock, and
takes the clock at which the step of the new batch meets the GPU's limit (:mod:`trine.compute.power`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from trine.cluster.presets import GpuSpec
from trine.compute.models import ComputeModel
from trine.compute.resize import Split
from trine.compute.roofline import Duration
from trine.compute.spread import WrappedModel
from trine.graph.workload import Operator, Workload

if TYPE_CHECKING:
    from trine.compute.clock import StepClock
    from trine.compute.power import Bounds


class AtClockOfBatch(WrappedModel):
    """A compute model with recorded times of ``gpu``, at the clock of each batch.

    Only splits of the batch change the clock. The GPU needs a published power curve with tensor clocks
    (:func:`trine.compute.power_curve.has_tensor_clocks`).
    """

    def __init__(self, model: ComputeModel, workload: Workload, gpu: GpuSpec) -> None:
        super().__init__(model)
        self._workload, self._gpu = workload, gpu
        self._recorded: StepClock | None = None
        self._clocks: dict[int, StepClock] = {}

    @cached_property
    def _bounds(self) -> Bounds:
        from trine.compute.power import Bounds

        return Bounds(self._workload, self._gpu)

    def duration(self, operator: Operator, split: Split) -> Duration:
        """Return the model's time at the clock of the split's batch, with the same evidence."""
        found = self._model.duration(operator, split)
        if split.batch == self._workload.batch or not split.is_whole or not self._bounds.is_compute(operator, split):
            return found
        clock = self.clock(split.batch)
        factor = clock.slowdown_of_gemms() if self._bounds.is_gemm(operator) else clock.slowdown_of_others
        return found if factor == 1.0 else replace(found, ps=round(found.ps * factor))

    def clock(self, batch: int) -> StepClock:
        """Return the clock of a step of ``batch`` samples relative to the recorded step's."""
        if batch not in self._clocks:
            from trine.compute.clock import step_clock
            from trine.compute.power import load_of

            if self._recorded is None:
                self._recorded = step_clock(self._workload, self._model, self._gpu)
            recorded, curve = self._recorded, self._recorded.curve
            load = load_of(self._workload, self._model, self._bounds, curve, batch)
            load = replace(
                load, compute_s=load.compute_s * recorded.base, gemm_s=load.gemm_s * min(recorded.base, curve.ceiling)
            )
            clock = load.clock_at(curve, recorded.limit_w)
            self._clocks[batch] = replace(recorded, load=load, clock=clock)
        return self._clocks[batch]
