"""The GPU of a trace's times: named by the trace, named by the user, or no GPU at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from trine.cluster.measured_gpu import measured_gpu
from trine.cluster.presets import load_gpu
from trine.errors import InputError
from trine.graph.workload import RECORDED_ON, Workload

if TYPE_CHECKING:
    from trine.cluster.presets import GpuSpec


def known_gpu(name: str | None) -> GpuSpec | None:
    """Return the preset of this name, or None for a GPU without one."""
    try:
        return None if name is None else load_gpu(name)
    except InputError:
        return None


def short_name(name: str) -> str:
    """Return the canonical name of a GPU model: trine's name, or lower-case ``name`` if it has no data sheet."""
    spec = known_gpu(name)
    return " ".join(name.lower().split()) if spec is None else spec.name


def model_name(name: str) -> str:
    """Return the bundled GPU of the same model as a GPU file, or ``name`` itself."""
    measured = measured_gpu(name)
    return name if measured is None or measured.content.preset is None else measured.content.preset


def no_gpu_times(workload: Workload, gpu: str | None = None) -> str:
    """Explain why this trace's times are refused, and the alternative. ``gpu``: the requested or the machine's GPU."""
    hint = "--compute roofline --gpu NAME predicts" if gpu is None else f"--compute roofline predicts for the {gpu}"
    chip = workload.metadata.get(RECORDED_ON, "a CPU or on meta tensors (no kernel ran on a GPU)")
    return f"the trace {workload.name[:60]!r} was recorded on {chip}, so its times are no GPU's: {hint} from its shapes"


def recorded_on(workload: Workload, name: str) -> Workload:
    """Return the workload as recorded on the GPU ``name``, if the trace names no GPU or one without a data sheet.

    Raises InputError for an unknown name, and if the trace names another GPU or has no GPU times.
    """
    spec, traced = load_gpu(name), known_gpu(workload.gpu)
    if traced is not None and traced.name != spec.name:
        raise InputError(f"the trace was recorded on {workload.gpu!r:.90}, not on {name!r:.90}")
    if not workload.has_gpu_times:
        raise InputError(f"{no_gpu_times(workload, spec.name)}, without --trace-gpu")
    if traced is not None:
        return replace(workload, gpu=spec.name)
    before = "names no GPU" if workload.gpu is None else f"names {workload.gpu[:80]}, without a data sheet in trine"
    note = f"the trace {before}: trine takes {spec.name}, from --trace-gpu"
    return replace(workload, gpu=spec.name, assumptions=(*workload.assumptions, note))


def one_gpu(workloads: Sequence[Workload]) -> str | None:
    """Return the GPU of all these traces, or None if they name none.

    Raises InputError for different GPUs, and if only some of the traces name theirs.
    """
    by_name: dict[str, str] = {}
    for workload in workloads:
        if workload.gpu is not None:
            by_name.setdefault(short_name(workload.gpu), workload.gpu)
    if len(by_name) > 1:
        gpus = ", ".join(gpu[:80] for gpu in sorted(by_name.values())[:3])
        raise InputError(f"traces of different GPUs cannot be calibrated together: {gpus}", field="gpu")
    silent = next((w for w in workloads if w.gpu is None), None)
    if by_name and silent is not None:
        gpu = next(iter(by_name.values()))[:80]
        message = f"the trace {silent.name[:80]!r} names no GPU, others were recorded on {gpu}: add --trace-gpu NAME"
        raise InputError(message, field="gpu")
    return next(iter(by_name.values()), None)
