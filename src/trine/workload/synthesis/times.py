"""Times of the operators of a synthesised workload: by the data sheet, or from measured operators of the GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from trine.cluster.presets import GpuSpec
from trine.compute.resize import Split
from trine.compute.roofline import ROOFLINE, TABLES, Roofline, Shares
from trine.compute.tables.times import TableTimes
from trine.graph.workload import Operator, Workload

FITTED = "fitted"
TIMES = (TABLES, ROOFLINE, FITTED)


def with_roofline_times(workload: Workload, gpu: GpuSpec, shares: Shares) -> Workload:
    """Return ``workload`` with the times of the roofline of ``gpu``."""
    model, split = Roofline(workload, gpu, shares), Split(workload.batch)
    timed = tuple(replace(op, gpu_time_ps=model.duration(op, split).ps) for op in workload.operators)
    text = f"operator times are a roofline of the {gpu.name}: {shares.text} (trine help roofline has its errors)"
    return with_times(workload, timed, ROOFLINE, text, shares.to_metadata(), gpu)


def with_table_times(workload: Workload, gpu: GpuSpec) -> Workload:
    """Return ``workload`` with times from measured operators of ``gpu``, or of its nearest sibling."""
    model, split = TableTimes(workload, gpu), Split(workload.batch)
    timed = tuple(replace(op, gpu_time_ps=model.duration(op, split).ps) for op in workload.operators)
    return with_times(workload, timed, TABLES, f"{model.notes[0]} (trine help operator-time)", {}, gpu)


def with_times(
    workload: Workload, operators: tuple[Operator, ...], times: str, text: str, metadata: Mapping[str, str],
    gpu: GpuSpec,
) -> Workload:  # fmt: skip
    """Return ``workload`` with timed operators. times, text: their source, as a key and as a sentence."""
    return replace(
        workload, gpu=gpu.name, operators=operators, assumptions=(text, *workload.assumptions),
        metadata={**workload.metadata, "times": times, **metadata},
    )  # fmt: skip
