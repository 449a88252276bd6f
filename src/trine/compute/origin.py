"""On what a trace's times were recorded: a GPU that it names, one that the user names, or no GPU at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from trine.cluster.presets import load_gpu
from trine.errors import InputError
from trine.graph.workload import RECORDED_ON, Workload

if TYPE_CHECKING:
    from trine.cluster.presets import GpuSpec


def known_gpu(name: str | None) -> GpuSpec | None:
    """The preset of this name; None for a GPU without one."""
    try:
        return None if name is None else load_gpu(name)
    except InputError:
        return None


def short_name(name: str) -> str:
    """What one GPU model is always called, whichever name was given: trine's, or the given one without a data sheet."""
    spec = known_gpu(name)
    return " ".join(name.lower().split()) if spec is None else spec.name


def no_gpu_times(workload: Workload, gpu: str | None = None) -> str:
    """Why the times of this trace are refused, and what to do instead. ``gpu``: the one asked for, or the machine's."""
    how = "--compute roofline --gpu NAME predicts" if gpu is None else f"--compute roofline predicts for the {gpu}"
    where = workload.metadata.get(RECORDED_ON, "a CPU or on meta tensors (no kernel ran on a GPU)")
    return f"the trace {workload.name[:60]!r} was recorded on {where}, so its times are no GPU's: {how} from its shapes"


def recorded_on(workload: Workload, name: str) -> Workload:
    """The workload as recorded on the GPU ``name``, where the trace does not say or names one without a data sheet.

    Raises InputError for an unknown name, and where the trace says something else.
    """
    spec, said = load_gpu(name), known_gpu(workload.gpu)
    if said is not None and said.name != spec.name:
        raise InputError(f"the trace was recorded on {workload.gpu!r:.90}, not on {name!r:.90}")
    if not workload.has_gpu_times:
        raise InputError(f"{no_gpu_times(workload, spec.name)}, without --trace-gpu")
    if said is not None:
        return replace(workload, gpu=spec.name)
    before = "names no GPU" if workload.gpu is None else f"names {workload.gpu[:80]}, without a data sheet in trine"
    given = f"the trace {before}: trine takes {spec.name}, from --trace-gpu"
    return replace(workload, gpu=spec.name, assumptions=(*workload.assumptions, given))


def one_gpu(workloads: Sequence[Workload]) -> str | None:
    """The GPU of all these traces; None where none names one.

    Raises InputError for different GPUs, and where some traces name theirs and some do not.
    """
    named: dict[str, str] = {}
    for workload in workloads:
        if workload.gpu is not None:
            named.setdefault(short_name(workload.gpu), workload.gpu)
    if len(named) > 1:
        gpus = ", ".join(gpu[:80] for gpu in sorted(named.values())[:3])
        raise InputError(f"traces of different GPUs cannot be calibrated together: {gpus}", field="gpu")
    silent = next((w for w in workloads if w.gpu is None), None)
    if named and silent is not None:
        raise InputError(
            f"the trace {silent.name[:80]!r} names no GPU, others were recorded on "
            f"{next(iter(named.values()))[:80]}: add --trace-gpu NAME",
            field="gpu",
        )
    return next(iter(named.values()), None)
