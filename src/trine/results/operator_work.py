"""Arithmetic and memory traffic of a step's operators, beside their times: the points of a roofline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trine.common.shown import OneLine
from trine.common.units import PS_PER_S


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorUse(OneLine):
    """Operators of one name, phase and place in their layers, in one step of one rank per pipeline stage.

    layer: module name with ``*`` for numbers. precision: of the arithmetic. count: operators. flops: FLOPs, of causal
    attention only those that the mask leaves. size_bytes: the least traffic to and from memory. time_ps: their time on
    an otherwise idle GPU.
    """

    name: str
    phase: str
    layer: str
    precision: str
    count: int
    flops: float
    size_bytes: int
    time_ps: int

    @property
    def flop_per_s(self) -> float:
        """Achieved FLOP/s."""
        return self.flops * PS_PER_S / self.time_ps

    @property
    def bytes_per_s(self) -> float:
        """Achieved bytes per second to and from memory."""
        return self.size_bytes * PS_PER_S / self.time_ps

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.size_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorWork(OneLine):
    """The operators of a step and the roofs of their GPU.

    peaks: dense peak FLOP/s by precision, of the precisions that the operators use. memory_bytes_per_s: bandwidth of
    the GPU's memory. operators: longest first.
    """

    gpu: str
    memory_bytes_per_s: int
    peaks: Mapping[str, int]
    operators: tuple[OperatorUse, ...]

    def roof(self, use: OperatorUse) -> float:
        """Return the FLOP/s that the GPU allows operators of this intensity; infinite for an unknown peak."""
        return min(self.peaks.get(use.precision, float("inf")), use.intensity * self.memory_bytes_per_s)

    @property
    def time_ps(self) -> int:
        """Time of all operators."""
        return sum(use.time_ps for use in self.operators)
