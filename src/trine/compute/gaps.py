"""Idle time of the GPU between two kernels of one stream.

An operator's recorded time is the busy time of its kernels. Between the end of a kernel and the start of the next one
the GPU's front end needs one to two microseconds, even if the launch was long ago. A trace with the start and end of
each kernel shows this time (:mod:`trine.workload.pytorch.kineto`). It depends neither on the batch nor on the operator.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trine.common.units import whole_number
from trine.compute.resize import Split
from trine.compute.roofline import Duration
from trine.compute.spread import WrappedModel
from trine.graph.workload import KERNEL_GAP, Operator, Workload

if TYPE_CHECKING:
    from trine.compute.models import ComputeModel


def kernel_gap_ps(workload: Workload) -> int:
    """Return the trace's idle time after each kernel, 0 if the trace does not show it."""
    text = workload.metadata.get(KERNEL_GAP, "")
    return whole_number(text) or 0


def busy_and_gaps_ps(operator: Operator, gap_ps: int) -> int:
    """Return the recorded time of an operator's kernels and of the gaps after them."""
    return operator.gpu_time_ps + gap_ps * len(operator.kernel_times_ps)


class WithKernelGaps(WrappedModel):
    """A compute model whose operators also take the gap after each of their recorded kernels."""

    def __init__(self, model: ComputeModel, gap_ps: int) -> None:
        super().__init__(model)
        self._gap_ps = gap_ps

    def duration(self, operator: Operator, split: Split) -> Duration:
        """Return the model's time and the gaps, with the model's evidence."""
        duration = self._model.duration(operator, split)
        gaps_ps = self._gap_ps * len(operator.kernel_times_ps)
        return replace(duration, ps=duration.ps + gaps_ps) if gaps_ps and duration.ps else duration
