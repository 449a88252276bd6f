"""The GPU file of a measurement: its data sheet, with the source of each number, and its text.

A GPU that trine knows by the driver's name has the numbers of that data sheet. For another GPU the memory's bandwidth
follows from clock and bus width if PyTorch states them. The remaining numbers are derived from the kernels: a peak is
the fastest GEMM over 0.8, the memory's bandwidth is the largest copy over 0.92.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from trine.cluster.measured_gpu import FORMAT, MeasuredKernel, is_gpu_file
from trine.cluster.presets import GpuSpec, load_gpu
from trine.common.outputs import write_text
from trine.common.precision import HALVES
from trine.errors import InputError, SpecError
from trine.measure.kernels import Kernel
from trine.measure.timing import Measurement
from trine.measure.torch_device import DeviceFacts

#: Share of the peak in the closed form of large GEMMs (tables/gemm.py), and of the bandwidth in copies
#: (tables/operators.py). With derived peaks, both stand for themselves.
GEMM_SHARE, COPY_SHARE = 0.8, 0.92
_ALIKE = {name: other for name in HALVES for other in HALVES if other != name}
_HEADER = "# Kernels of one GPU, written by trine measure: give this file in place of a GPU's name (--gpu FILE).\n"


def check_target(path: str, *, overwrite: bool) -> None:
    """Raise InputError if ``path`` is no name of a GPU file, or exists and ``overwrite`` is false."""
    if not is_gpu_file(path) or path.endswith(".json"):
        raise InputError("the name of a GPU file ends in .yaml or .yml", file=path)
    if os.path.lexists(path) and not overwrite:
        raise InputError("exists already; --overwrite replaces it", file=path)


def preset_of(name: str) -> GpuSpec | None:
    """Return the bundled GPU with this driver's name, or None."""
    try:
        return None if is_gpu_file(name) else load_gpu(name)
    except SpecError:
        return None


def data_sheet(facts: DeviceFacts, kernels: Sequence[MeasuredKernel]) -> dict[str, Any]:
    """Return the field ``gpu`` of the file: the numbers of a file in presets/gpus, with their sources."""
    preset, peaks = preset_of(facts.name), _derived_peaks(kernels)
    if preset is not None:
        return _sheet_of_preset(preset, peaks)
    if not peaks:
        raise InputError("no GEMM was measured, so the peaks of this GPU are unknown: measure longer", field="output")
    rate, rate_source = facts.memory_bytes_per_s, "PyTorch: memory clock x bus width"
    if rate is None:
        rate, rate_source = _derived_bandwidth(kernels)
    return {
        "memory": f"{facts.memory_bytes} B",
        "memory_bandwidth": f"{rate} B/s",
        "compute_units": facts.compute_units,
        "compute": {dtype: f"{peak} FLOP/s" for dtype, peak in peaks.items()},
        "sources": {
            "memory": "PyTorch", "memory_bandwidth": rate_source, "compute_units": "PyTorch",
            "compute": f"derived: the fastest GEMM of each precision / {GEMM_SHARE:g}",
        },
    }  # fmt: skip


def _sheet_of_preset(preset: GpuSpec, derived: Mapping[str, int]) -> dict[str, Any]:
    """Return the numbers of a bundled data sheet, and derived peaks of measured precisions that it does not list."""
    source = f"data sheet of {preset.name} in trine"
    missing = {dtype: rate for dtype, rate in derived.items() if dtype not in preset.flop_per_s}
    sheet: dict[str, Any] = {
        "memory": f"{preset.memory_bytes} B",
        "memory_bandwidth": f"{preset.memory_bytes_per_s} B/s",
        "compute_units": preset.num_compute_units,
        "compute": {dtype: f"{rate} FLOP/s" for dtype, rate in {**preset.flop_per_s, **missing}.items()},
    }
    if preset.power_w:
        sheet["power"] = f"{preset.power_w} W"
    for name in ("nvlink", "pcie"):
        if getattr(preset, name) is not None:
            sheet[name] = getattr(preset, name)
    sheet["sources"] = dict.fromkeys(sheet, source)
    if missing:
        sheet["sources"]["compute"] += f"; {', '.join(missing)} derived: the fastest GEMM / {GEMM_SHARE:g}"
    return sheet


def _derived_peaks(kernels: Sequence[MeasuredKernel]) -> dict[str, int]:
    """Return FLOP/s by precision; 16-bit types stand in for each other."""
    peaks: dict[str, int] = {}
    for row in kernels:
        if row.kind == "gemm":
            rate = Kernel(row.kind, row.dtype, tuple(row.shape)).flops / (row.us * 1e-6)
            peaks[row.dtype] = max(peaks.get(row.dtype, 1), round(rate / GEMM_SHARE))
    for dtype, stand_in in _ALIKE.items():
        if dtype not in peaks and stand_in in peaks:
            peaks[dtype] = peaks[stand_in]
    return peaks


def _derived_bandwidth(kernels: Sequence[MeasuredKernel]) -> tuple[int, str]:
    """Return bytes/s from the largest copy or sum, else from the kernel that moved its bytes fastest; and the basis."""
    rates = {}
    for row in kernels:
        num_bytes = Kernel(row.kind, row.dtype, tuple(row.shape)).num_bytes
        rates[num_bytes, row.kind] = num_bytes / (row.us * 1e-6)
    copies = [key for key in rates if key[1] in ("copy", "elementwise")]
    if copies:
        return round(rates[max(copies)] / COPY_SHARE), f"derived: the largest copy / {COPY_SHARE:g}"
    return round(max(rates.values()) / COPY_SHARE), f"derived: the fastest kernel's bytes / {COPY_SHARE:g}"


def file_text(
    facts: DeviceFacts, measurement: Measurement, *, date: str, attention_kernel: str, clocks: Mapping[str, str]
) -> str:
    """Return the text of the GPU file. Raises InputError if too little was measured for a data sheet."""
    if not measurement.kernels:
        raise InputError("no kernel was measured, so there is nothing to write", field="output")
    preset = preset_of(facts.name)
    content = {
        "format": FORMAT,
        "name": facts.name,
        "architecture": facts.architecture,
        "preset": None if preset is None else preset.name,
        "device": facts.device,
        "date": date,
        "attention_kernel": attention_kernel,
        "versions": facts.versions,
        "clocks": dict(clocks),
        "gpu": data_sheet(facts, measurement.kernels),
    }
    parts = [_HEADER, yaml.safe_dump(content, sort_keys=False, width=120), "kernels:\n"]
    parts += [_row_text(row.model_dump()) for row in measurement.kernels]
    parts.append("left_out:\n" if measurement.left_out else "left_out: []\n")
    parts += [_row_text(row.model_dump()) for row in measurement.left_out]
    return "".join(parts)


def _row_text(row: dict[str, Any]) -> str:
    return f"- {yaml.safe_dump(row, sort_keys=False, default_flow_style=True, width=10**6)}"


def write_gpu_file(path: str, text: str) -> None:
    """Write the whole file at once; a symbolic link at ``path`` is replaced, and its target stays."""
    write_text(path, text, follow=False)
