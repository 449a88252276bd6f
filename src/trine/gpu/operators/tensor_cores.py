"""The rate of a compute unit's matrix cores, and the GPU model that a kernel of tiles runs on."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from trine.cluster.gpu_spec import GpuSpec
from trine.common.units import PS_PER_S
from trine.compute.roofline import peak
from trine.compute.tables.machine import generation_of
from trine.gpu.model import GpuModel

#: Generations in which two neighbouring workgroups load their common operand once and multicast it (Hopper's thread
#: block clusters: NVIDIA H100 Tensor Core GPU Architecture white paper v1.04).
_MULTICAST = frozenset({"hopper", "blackwell"})


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorCores:
    """The matrix cores of a GPU in one precision.

    flop_per_cycle: of one compute unit. flop_per_s: peak of the GPU's data sheet. multicast: workgroups that load a
    common operand together.
    """

    flop_per_cycle: int
    flop_per_s: int
    multicast: int

    def cycles(self, flops: int) -> int:
        """Return the cycles of one compute unit for this arithmetic, rounded up."""
        return -(-flops // self.flop_per_cycle)


def tensor_cores(gpu: GpuSpec, model: GpuModel, precision: str) -> TensorCores:
    """Return the matrix cores of a GPU.

    A compute unit does a power of two of FLOPs per cycle (4,096 in bfloat16 on H100, 2,048 on A100); data sheets
    divide by a boost clock that differs from the maximum, so the nearest power of two counts.

    Raises InputError for a precision without a peak.
    """
    flop_per_s = peak(gpu, precision)
    at_maximum_clock = flop_per_s * model.cycle_ps / PS_PER_S / model.num_cus
    flop_per_cycle = 2 ** max(0, round(math.log2(at_maximum_clock)))
    multicast = 2 if generation_of(gpu.name) in _MULTICAST else 1
    return TensorCores(flop_per_cycle=flop_per_cycle, flop_per_s=flop_per_s, multicast=multicast)


def at_clock(model: GpuModel, mhz: float) -> GpuModel:
    """Return the GPU at another clock of its compute units, crossbar and L2, whose rates follow the clock."""
    factor = mhz * model.cycle_ps / 1e6
    noc = replace(model.noc, bytes_per_s=max(1, round(model.noc.bytes_per_s * factor)))
    l2 = None if model.l2 is None else replace(model.l2, bytes_per_s=max(1, round(model.l2.bytes_per_s * factor)))
    return replace(model, cycle_ps=max(1, round(1e6 / mhz)), noc=noc, l2=l2)
