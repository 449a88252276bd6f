"""Power against clock of a GPU model, from ``presets/power_curves.yaml``."""

from __future__ import annotations

import math
from functools import cache
from typing import Literal

from trine.cluster.measured_gpu import measured_gpu
from trine.cluster.presets import GpuSpec, load_gpu
from trine.common.inputs import PRESETS
from trine.common.schema import Field, Spec
from trine.common.spec import read_spec
from trine.compute.roofline import TABLES
from trine.errors import InputError

_FILE = PRESETS / "power_curves.yaml"


class TensorClocks(Spec):
    """Clocks in MHz of kernels that keep the tensor cores busy, by precision of the operands.

    table: of the measured GEMM tables, which run for milliseconds on a cool GPU. sustained: of GEMMs that run for
    seconds at the default limit. ceiling: the highest clock of a GEMM between other kernels.
    """

    table: dict[str, int]
    sustained: dict[str, int]
    ceiling: int = Field(gt=0)


class PowerCurve(Spec):
    """Power against clock of one GPU model; see the preset file. Clocks in MHz, powers in W, energies in pJ.

    attention_pj: energy of a FLOP by attention kernel, forward and backward. tensor: None if the clock of the tables is
    unknown; then only a power cap changes times.
    """

    max_mhz: int = Field(gt=0)
    lowest_mhz: int = Field(gt=0)
    static_w: int = Field(gt=0)
    slope: float = Field(gt=0, lt=1)
    knee: float = Field(ge=0, lt=1)
    memory_w: int = Field(gt=0)
    pj_per_flop: dict[str, float]
    attention_pj: dict[str, tuple[float, float]] = Field(default_factory=dict)
    tensor: TensorClocks | None = None
    evidence: Literal["measured", "interpolated", "modelled", "assumed"]
    source: str

    @property
    def lowest(self) -> float:
        """The lowest measured clock, as a fraction of the maximum."""
        return self.lowest_mhz / self.max_mhz

    @property
    def ceiling(self) -> float:
        """The highest clock of GEMMs, as a fraction of the maximum."""
        return 1.0 if self.tensor is None else self.tensor.ceiling / self.max_mhz

    def table_clock(self, precision: str) -> float:
        """Return the clock of the tables' GEMMs, as a fraction of the maximum; bfloat16's for other precisions."""
        if self.tensor is None:
            return 1.0
        return self.tensor.table.get(precision, self.tensor.table["bfloat16"]) / self.max_mhz

    def squared_voltage(self, clock: float) -> float:
        """Return V^2 relative to the maximum clock's, at a clock given as a fraction of the maximum."""
        return float((1 - self.slope * (1 - max(clock, self.knee))) ** 2)


class PowerCurves(Spec):
    """The curves by GPU model. same_chip: GPU without a curve -> the GPU with the same chip whose curve applies."""

    curves: dict[str, PowerCurve]
    same_chip: dict[str, str]


@cache
def power_curves() -> dict[str, PowerCurve]:
    """Return the curves of ``presets/power_curves.yaml`` by GPU model."""
    return read_spec(_FILE, PowerCurves).curves


@cache
def _same_chip() -> dict[str, str]:
    return read_spec(_FILE, PowerCurves).same_chip


def curve_of(gpu: GpuSpec | None) -> PowerCurve:
    """Return the curve of a GPU model; raise InputError if no measurement of its chip is public.

    A GPU with the chip of a measured one has its curve; the power of the memory follows the bandwidth.
    """
    name, curves = "an unknown GPU" if gpu is None else gpu.name, power_curves()
    if gpu is not None and (measured := _gpu_with_curve(name)) != name:
        return _transferred(gpu, load_gpu(measured))
    if name not in curves:
        raise InputError(f"no published power curve of {name}: trine has {', '.join(sorted(curves))}",
                         field="power_cap")  # fmt: skip
    return curves[name]


def has_tensor_clocks(gpu: GpuSpec | None) -> bool:
    """Return whether the clocks of the GPU's tables and steps are known, so that power decides the time of a GEMM."""
    if gpu is None:
        return False
    curve = power_curves().get(_gpu_with_curve(gpu.name))
    return curve is not None and curve.tensor is not None


def uses_step_clock(compute: str, gpu: GpuSpec | None) -> bool:
    """Return whether the times of the compute model ``compute`` are those of tables whose clock is known."""
    return compute == TABLES and has_tensor_clocks(gpu)


def _gpu_with_curve(name: str) -> str:
    """Return the GPU whose curve applies to ``name``: one with the same chip, for a GPU file by its preset."""
    measured = measured_gpu(name)
    if measured is not None and measured.content.preset in (*power_curves(), *_same_chip()):
        name = str(measured.content.preset)
    return _same_chip().get(name, name)


def _transferred(gpu: GpuSpec, measured: GpuSpec) -> PowerCurve:
    """Return the curve of ``measured`` for ``gpu``, with the same chip but another memory or another peak.

    Tables scale with the data sheets' peaks. If the peak of a compute unit differs, so does the clock of the table.
    """
    curve = power_curves()[measured.name]
    memory_w = round(curve.memory_w * gpu.memory_bytes_per_s / measured.memory_bytes_per_s)
    peaks = [spec.flop_per_s["bfloat16"] / spec.num_compute_units for spec in (gpu, measured)]
    tensor = curve.tensor
    if tensor is not None:
        table = {name: round(mhz * peaks[0] / peaks[1]) for name, mhz in tensor.table.items()}
        tensor = tensor.model_copy(update={"table": table})
    source = f"{curve.source}; assumed for the {gpu.name}, which has the same chip"
    return curve.model_copy(update={"memory_w": memory_w, "tensor": tensor, "evidence": "assumed", "source": source})


#: Time constant of the power controller, in seconds: chosen so that both GPUs' tables and power.csv agree on GEMMs of
#: 0.1 to 13 ms (tests/crosscheck/test_step_clock.py).
CONTROL_S = 0.05
#: Launches before and during the timed part of the table's benchmark (aiconfigurator, collector/trtllm/collect_gemm.py:
#: a dry run, 3 warm-ups, 6 timed runs).
_BEFORE, _TIMED = 4, 6


def clock_of_run(curve: PowerCurve, precision: str, seconds: float) -> float:
    """Return the mean clock in MHz at which the table's benchmark measured a GEMM of this duration.

    The clock starts at ``table`` and approaches ``sustained`` with the controller's time constant, so long GEMMs were
    measured partly at their sustained clock.
    """
    assert curve.tensor is not None
    first, last = curve.tensor.table[precision], curve.tensor.sustained[precision]
    x = seconds / CONTROL_S
    share = 1.0
    if x > 1e-6:
        share = (math.exp(-_BEFORE * x) - math.exp(-(_BEFORE + _TIMED) * x)) / (_TIMED * x)
    return last + (first - last) * share
