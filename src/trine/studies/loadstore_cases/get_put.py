"""Cases 1 and 2: reading from others, or writing to them."""

from __future__ import annotations

from collections.abc import Sequence

from trine.collectives.sizes import format_size
from trine.gpu.model import FAIR, FIFO
from trine.gpu.model.options import ModelOptions
from trine.studies.loadstore_cases.case import CaseStudy, Curve, Finding, Panel
from trine.studies.loadstore_cases.runs import (
    ASSUMED,
    FEWER_WAVEFRONTS,
    GPU,
    KIB,
    MIB,
    SHAPE,
    WAVEFRONTS,
    Measured,
    gpu_model,
    measure,
)

RATE = "algbw (GB/s)"
SIZES = (64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB)
#: A gap is narrower if this much of it is left at most.
NARROWER = 0.8
GATHER_SIZES = (*SIZES[:-1], 32 * MIB)


def reduce_scatter(sizes: Sequence[int] = SIZES, ranks: int = 32, workgroups: int = 32) -> CaseStudy:
    """Case 1: get against put; ``sizes`` ascending, the last one counts as large."""
    put, get = ([measure("reduce_scatter", ranks, size, way, workgroups) for size in sizes] for way in ("put", "get"))
    first = next((g.size_bytes for p, g in zip(put, get, strict=True) if g.time_ps < p.time_ps), None)
    passes = put[-1].memory_lines / get[-1].memory_lines
    gain = put[-1].time_ps / get[-1].time_ps - 1
    fewer_put, fewer_get = (
        measure("reduce_scatter", ranks, sizes[-1], way, workgroups, wavefronts=FEWER_WAVEFRONTS).time_ps
        for way in ("put", "get")
    )
    fewer = fewer_put / fewer_get - 1
    ahead = "never" if first is None else f"get is ahead from {format_size(first)} on"
    return CaseStudy(
        name="reduce-scatter",
        title=f"Case 1: reduce-scatter on {ranks} GPUs, {workgroups} workgroups each, by getting and by putting",
        settings=(GPU, SHAPE),
        columns=("size bytes", "put us", "get us", "put GB/s", "get GB/s", "get ahead %"),
        rows=tuple(_pair(p, g) for p, g in zip(put, get, strict=True)),
        findings=(
            Finding(
                paper="get beats put on large sizes",
                here=f"{ahead}, by {100 * gain:.0f} % at {format_size(sizes[-1])} ({100 * fewer:.0f} % with "
                f"{FEWER_WAVEFRONTS} wavefronts); below that the meeting at its start and end costs it more",
                holds=gain > 0 and fewer > 0,
                assumed=ASSUMED,
            ),
            Finding(
                paper="put needs signals, and get lets the reduction overlap line by line",
                here=f"put's sum begins when the last signal is there, and goes over scratch again: {passes:.1f} "
                "times the loads and stores of get",
                holds=passes > 1.5,
                assumed="that put's sum goes over scratch once more",
            ),
        ),
        panels=(_rates(f"Reduce-scatter, {ranks} GPUs, {workgroups} workgroups", {"put": put, "get": get}),),
    )


def all_gather(sizes: Sequence[int] = GATHER_SIZES, ranks: int = 16, workgroups: int = 60) -> CaseStudy:
    """Case 2: put against get under both arbitrations; ``sizes`` ascending, the last one counts as large."""
    runs = {
        f"{way}, {arbitration}": [_gather(size, ranks, workgroups, way, arbitration) for size in sizes]
        for arbitration in (FIFO, FAIR)
        for way in ("put", "get")
    }
    gap = {
        arbitration: [
            100 * (g.time_ps / p.time_ps - 1)
            for p, g in zip(runs[f"put, {arbitration}"], runs[f"get, {arbitration}"], strict=True)
        ]
        for arbitration in (FIFO, FAIR)
    }
    fewer = {name: _gap_with_fewer(sizes[-1], ranks, workgroups, name) for name in (FIFO, FAIR)}
    waits = {name: runs[f"get, {name}"][-1].load_ps / 1e6 for name in (FIFO, FAIR)}
    at = format_size(sizes[-1])
    num_ahead = sum(each > 0 for each in gap[FIFO])
    ahead = "at every size" if num_ahead == len(sizes) else f"at {num_ahead} of {len(sizes)} sizes"
    rows = zip(sizes, *([run.gb_per_s for run in row] for row in runs.values()), gap[FIFO], gap[FAIR], strict=True)
    return CaseStudy(
        name="all-gather",
        title=f"Case 2: all-gather on {ranks} GPUs, {workgroups} workgroups each, by putting and by getting",
        settings=(GPU, SHAPE, f"A workgroup serves one peer: {workgroups} workgroups for {ranks - 1} peers (assumed)."),
        columns=("size bytes", *(f"{name} GB/s" for name in runs), "gap fifo %", "gap fair %"),
        rows=tuple(rows),
        findings=(
            Finding(
                paper="put beats get",
                here=f"{ahead}; by {gap[FIFO][-1]:.1f} % of the time at {at}, and by one more meeting of all "
                f"ranks where latency decides; with {FEWER_WAVEFRONTS} wavefronts by {fewer[FIFO]:.1f} % at {at}",
                holds=min(gap[FIFO]) > 0 and fewer[FIFO] > 0,
                assumed=ASSUMED,
            ),
            Finding(
                paper="because control requests wait behind data responses, so that fair arbitration between control "
                "and data narrows the gap",
                here=f"{gap[FIFO][-1]:.1f} % with fifo, {gap[FAIR][-1]:.1f} % with fair at {at}; a load of get takes "
                f"{waits[FIFO]:.2f} us with fifo, {waits[FAIR]:.2f} us with fair. With {FEWER_WAVEFRONTS} "
                f"wavefronts {fewer[FIFO]:.1f} % and {fewer[FAIR]:.1f} %{_narrowed(fewer)}",
                holds=gap[FAIR][-1] < gap[FIFO][-1] and waits[FAIR] < waits[FIFO],
                assumed=f"{ASSUMED}; one peer a workgroup",
            ),
        ),
        panels=(_rates(f"All-gather, {ranks} GPUs, {workgroups} workgroups", runs), _gaps(sizes, gap)),
    )


def _gather(
    size: int, ranks: int, workgroups: int, way: str, arbitration: str, wavefronts: int = WAVEFRONTS
) -> Measured:
    model = ModelOptions(arbitration=arbitration).of(gpu_model())
    return measure("all_gather", ranks, size, f"peer-{way}", workgroups, model=model, wavefronts=wavefronts)


def _gap_with_fewer(size: int, ranks: int, workgroups: int, arbitration: str) -> float:
    """What get takes more, in per cent of put's time, with few wavefronts."""
    put, get = (_gather(size, ranks, workgroups, way, arbitration, FEWER_WAVEFRONTS) for way in ("put", "get"))
    return 100 * (get.time_ps / put.time_ps - 1)


def _narrowed(gap: dict[str, float]) -> str:
    return "" if gap[FAIR] < NARROWER * gap[FIFO] else ": the ports are not full, and arbitration changes little"


def _pair(put: Measured, get: Measured) -> tuple[int | float, ...]:
    ahead = 100 * (put.time_ps / get.time_ps - 1)
    return put.size_bytes, put.time_us, get.time_us, put.gb_per_s, get.gb_per_s, ahead


def _rates(title: str, runs: dict[str, list[Measured]]) -> Panel:
    curves = []
    for number, (label, row) in enumerate(runs.items()):
        x, y = tuple(float(run.size_bytes) for run in row), tuple(run.gb_per_s for run in row)
        style = "s--" if label.endswith(FAIR) else "o-"
        curves.append(Curve(label=label, x=x, y=y, style=style, colour=number % 2))
    return Panel(title=title, x_label="size", y_label=RATE, curves=tuple(curves), sizes=True, log="xy")


def _gaps(sizes: Sequence[int], gap: dict[str, list[float]]) -> Panel:
    x = tuple(float(size) for size in sizes)
    curves = (
        Curve(label="fifo", x=x, y=tuple(gap[FIFO]), colour=2),
        Curve(label="fair", x=x, y=tuple(gap[FAIR]), style="s--", colour=3),
    )
    return Panel(title="What get takes more", x_label="size", y_label="% of put's time", curves=curves, sizes=True)
