"""``trine measure``: the kernels of the user's own GPU."""

from __future__ import annotations

import datetime
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

from trine.cli.options import OUTPUT, Json, Option
from trine.cli.output import EXIT_INTERRUPTED, say, show, write_json
from trine.cli.progress import ProgressLine
from trine.common.precision import BY_WORD
from trine.common.units import format_bandwidth
from trine.errors import InputError, nearest

if TYPE_CHECKING:
    from trine.cluster.presets import GpuSpec
    from trine.measure.kernels import Kernel
    from trine.measure.timing import Measurement

_PRECISIONS = ",".join(BY_WORD)
_MAX_SECONDS = 86_400
#: Spread of a kernel's repeats from which the answer warns.
MAX_SPREAD = 0.2


class KernelProgress(ProgressLine):
    """Progress on stderr: kernels done, and the seconds left."""

    def _sentence(self, done: int, total: int, now_ps: int) -> str:
        left_s = self._left_s(total)
        estimate = "" if left_s is None else f"; about {left_s:.0f} s left"
        return f"measured {done} of {total} kernels{estimate}"


def measure(
    output: Annotated[str, Option("Write this GPU file: NAME.yaml.", "FILE", OUTPUT, ("--output", "-o"))],
    device: Annotated[str, Option("Choose the device [auto].", "auto|cuda|cuda:N|cpu")] = "auto",
    precision: Annotated[
        str | None, Option("Measure GEMMs in these precisions [all that the device runs].", _PRECISIONS)
    ] = None,
    seconds: Annotated[int, Option("Stop after N seconds; the file lists the other kernels [300].")] = 300,
    overwrite: Annotated[
        bool, Option("Replace an existing file.", None, OUTPUT, ("--overwrite/--no-overwrite",))
    ] = False,
    json: Json = None,
) -> None:
    """Time about 200 kernels of your GPU (needs trine[capture]), and write the file that --gpu FILE reads.

    Example: trine measure --output my-gpu.yaml
    """
    from trine.cluster import load_gpu
    from trine.measure.gpu_file import check_target, file_text, preset_of, write_gpu_file
    from trine.measure.timing import measure_kernels
    from trine.measure.torch_device import TorchDevice, choose_device, import_torch

    check_target(output, overwrite=overwrite)
    dtypes = _dtypes(precision)
    if not 1 <= seconds <= _MAX_SECONDS:
        raise InputError(f"must be 1 to {_MAX_SECONDS}, got {seconds}", field="seconds")
    torch = import_torch()
    runner = TorchDevice(torch, choose_device(torch, device))
    kernels = _chosen(runner.facts.dtypes, dtypes, runner.facts.device)
    say(f"measuring {len(kernels)} kernels of {runner.facts.name}, for at most {seconds} s ...")
    before = runner.clocks()
    progress = KernelProgress()
    measurement = measure_kernels(
        runner, kernels, budget_s=seconds, report=lambda done, total: progress(done, total, 0)
    )
    clocks = {**{f"{key}_before": text for key, text in before.items()}, **runner.clocks()}
    text = file_text(
        runner.facts, measurement, date=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        attention_kernel=runner.attention_kernel, clocks=clocks,
    )  # fmt: skip
    write_gpu_file(output, text)
    spec, preset = load_gpu(output), preset_of(runner.facts.name)
    show("\n".join(_lines(output, runner.facts.name, spec, measurement)), json)
    answer = _answer(output, runner.facts.name, spec, measurement)
    write_json({**answer, "preset": None if preset is None else preset.name}, json, "measure")
    if measurement.is_interrupted:
        raise SystemExit(EXIT_INTERRUPTED)


def _dtypes(precision: str | None) -> tuple[str, ...] | None:
    """Return the dtypes of ``bf16,fp8``; None for all. Raises InputError for an unknown precision."""
    if precision is None:
        return None
    from trine.measure.kernels import PRECISIONS

    names = [name.strip() for name in precision.split(",")]
    for name in names:
        if name not in PRECISIONS:
            raise InputError(f"unknown precision {name[:40]!r}{nearest(name, PRECISIONS)}", field="precision")
    return tuple(PRECISIONS[name] for name in names)


def _chosen(available: tuple[str, ...], dtypes: tuple[str, ...] | None, device: str) -> tuple[Kernel, ...]:
    """Return the kernels of a device in the chosen dtypes. Raises InputError for a dtype that it does not run."""
    from trine.measure.kernels import PRECISIONS, cpu_kernels, gpu_kernels

    for dtype in dtypes or ():
        if dtype not in available:
            names = ", ".join(name for name, each in PRECISIONS.items() if each in available)
            raise InputError(f"{device} does not run {dtype}: it runs {names}", field="precision")
    chosen = available if dtypes is None else dtypes
    return cpu_kernels(chosen) if device == "cpu" else gpu_kernels(chosen)


def _kinds(measurement: Measurement) -> list[dict[str, Any]]:
    """Return each kind and dtype with its number of kernels and the median spread of their repeats."""
    spreads: dict[tuple[str, str], list[float]] = {}
    for row in measurement.kernels:
        spreads.setdefault((row.kind, row.dtype), []).append(row.spread)
    return [
        {"kind": kind, "dtype": dtype, "kernels": len(values), "median_spread": median(values)}
        for (kind, dtype), values in sorted(spreads.items())
    ]


def _launch_us(measurement: Measurement) -> float | None:
    return next((row.us for row in measurement.kernels if row.kind == "launch"), None)


def _reasons(measurement: Measurement) -> str:
    """Return the reasons of kernels left out, with their numbers."""
    counts: dict[str, int] = {}
    for row in measurement.left_out:
        counts[row.reason] = counts.get(row.reason, 0) + 1
    return ", ".join(f"{reason} ({count})" for reason, count in counts.items())


def _lines(path: str, name: str, spec: GpuSpec, measurement: Measurement) -> list[str]:
    from trine.results.text import columns

    lines = [f"{path}: {len(measurement.kernels)} kernels of {name} in {measurement.seconds:.0f} s", ""]
    rows = [("kind", "dtype", "kernels", "spread")]
    for each in _kinds(measurement):
        rows.append((each["kind"], each["dtype"], str(each["kernels"]), f"{each['median_spread']:.1%}"))
    lines += [f"  {line}" for line in columns(rows)]
    peaks = ", ".join(f"{dtype} {rate / 1e12:.4g} TFLOP/s" for dtype, rate in spec.flop_per_s.items())
    lines += ["", f"  peaks     {peaks} ({spec.sources.get('compute', 'unknown source')})"]
    memory_source = spec.sources.get("memory_bandwidth", "unknown source")
    lines.append(f"  memory    {format_bandwidth(spec.memory_bytes_per_s)} ({memory_source})")
    if (launch_us := _launch_us(measurement)) is not None:
        lines.append(f"  launch    {launch_us:.1f} us per kernel launch (--launch-cost takes it)")
    noisy = sum(row.spread > MAX_SPREAD for row in measurement.kernels)
    if noisy:
        lines.append(
            f"  warning   {noisy} kernels vary by more than {MAX_SPREAD:.0%} between repeats: close other programs"
        )
    if measurement.left_out:
        lines.append(f"  left out  {len(measurement.left_out)} kernels: {_reasons(measurement)}")
    lines.append(f"  next      trine train model:llama-3-8b --gpu {path} --gpus 1")
    return lines


def _answer(path: str, name: str, spec: GpuSpec, measurement: Measurement) -> dict[str, Any]:
    return {
        "target": path,
        "name": name,
        "seconds": round(measurement.seconds, 3),
        "is_interrupted": measurement.is_interrupted,
        "kinds": _kinds(measurement),
        "left_out": [row.model_dump() for row in measurement.left_out],
        "memory_bytes": spec.memory_bytes,
        "memory_bytes_per_s": spec.memory_bytes_per_s,
        "peak_flop_per_s": dict(spec.flop_per_s),
        "sources": dict(spec.sources),
        "launch_us": _launch_us(measurement),
    }
