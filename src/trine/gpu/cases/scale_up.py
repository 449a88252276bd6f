"""Cases 1 to 4, within one node: reading from others or writing to them; loop unrolling, requests in flight."""

from __future__ import annotations

from collections.abc import Sequence

from trine.collectives.sizes import format_size
from trine.gpu.cases.case import CaseStudy, Curve, Finding, Panel
from trine.gpu.cases.runs import (
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
from trine.gpu.model import FAIR, FIFO
from trine.gpu.model.options import ModelOptions

RATE = "algbw (GB/s)"
SIZES = (64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB)
#: A gap is narrower if this much of it is left at most.
NARROWER = 0.8
GATHER_SIZES = (*SIZES[:-1], 32 * MIB)


def reduce_scatter(sizes: Sequence[int] = SIZES, ranks: int = 32, workgroups: int = 32) -> CaseStudy:
    """Run case 1: get against put; ``sizes`` ascending, the last one counts as large."""
    put, get = ([measure("reduce_scatter", ranks, size, verb, workgroups) for size in sizes] for verb in ("put", "get"))
    first = next((g.size_bytes for p, g in zip(put, get, strict=True) if g.time_ps < p.time_ps), None)
    passes = put[-1].memory_lines / get[-1].memory_lines
    gain = put[-1].time_ps / get[-1].time_ps - 1
    fewer_put, fewer_get = (
        measure("reduce_scatter", ranks, sizes[-1], verb, workgroups, wavefronts=FEWER_WAVEFRONTS).time_ps
        for verb in ("put", "get")
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
    """Run case 2: put against get under both arbitrations; ``sizes`` ascending, the last one counts as large."""
    runs = {}
    for arbitration in (FIFO, FAIR):
        for verb in ("put", "get"):
            runs[f"{verb}, {arbitration}"] = [_gather(size, ranks, workgroups, verb, arbitration) for size in sizes]
    gap = {}
    for arbitration in (FIFO, FAIR):
        gap[arbitration] = [
            100 * (g.time_ps / p.time_ps - 1)
            for p, g in zip(runs[f"put, {arbitration}"], runs[f"get, {arbitration}"], strict=True)
        ]
    fewer = {name: _gap_with_fewer(sizes[-1], ranks, workgroups, name) for name in (FIFO, FAIR)}
    waits = {name: runs[f"get, {name}"][-1].load_ps / 1e6 for name in (FIFO, FAIR)}
    top = format_size(sizes[-1])
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
                here=f"{ahead}; by {gap[FIFO][-1]:.1f} % of the time at {top}, and by one more meeting of all "
                f"ranks where latency decides; with {FEWER_WAVEFRONTS} wavefronts by {fewer[FIFO]:.1f} % at {top}",
                holds=min(gap[FIFO]) > 0 and fewer[FIFO] > 0,
                assumed=ASSUMED,
            ),
            Finding(
                paper="because control requests wait behind data responses, so that fair arbitration between control "
                "and data narrows the gap",
                here=f"{gap[FIFO][-1]:.1f} % with fifo, {gap[FAIR][-1]:.1f} % with fair at {top}; a load of get takes "
                f"{waits[FIFO]:.2f} us with fifo, {waits[FAIR]:.2f} us with fair. With {FEWER_WAVEFRONTS} "
                f"wavefronts {fewer[FIFO]:.1f} % and {fewer[FAIR]:.1f} %{_narrowed(fewer)}",
                holds=gap[FAIR][-1] < gap[FIFO][-1] and waits[FAIR] < waits[FIFO],
                assumed=f"{ASSUMED}; one peer a workgroup",
            ),
        ),
        panels=(_rates(f"All-gather, {ranks} GPUs, {workgroups} workgroups", runs), _gaps(sizes, gap)),
    )


def _gather(
    size: int, ranks: int, workgroups: int, verb: str, arbitration: str, wavefronts: int = WAVEFRONTS
) -> Measured:
    model = ModelOptions(arbitration=arbitration).of(gpu_model())
    return measure("all_gather", ranks, size, f"peer-{verb}", workgroups, model=model, wavefronts=wavefronts)


def _gap_with_fewer(size: int, ranks: int, workgroups: int, arbitration: str) -> float:
    """Return the extra time of get, in per cent of put's time, with few wavefronts."""
    put, get = (_gather(size, ranks, workgroups, verb, arbitration, FEWER_WAVEFRONTS) for verb in ("put", "get"))
    return 100 * (get.time_ps / put.time_ps - 1)


def _narrowed(gap: dict[str, float]) -> str:
    return "" if gap[FAIR] < NARROWER * gap[FIFO] else ": the ports are not full, and arbitration changes little"


def _pair(put: Measured, get: Measured) -> tuple[int | float, ...]:
    ahead = 100 * (put.time_ps / get.time_ps - 1)
    return put.size_bytes, put.time_us, get.time_us, put.gb_per_s, get.gb_per_s, ahead


def _rates(title: str, runs: dict[str, list[Measured]]) -> Panel:
    curves = []
    for number, (label, row) in enumerate(runs.items()):
        x = tuple(float(run.size_bytes) for run in row)
        y = tuple(run.gb_per_s for run in row)
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


LIMIT_SIZES = (64 * KIB, MIB, 16 * MIB)
#: Less than this is no effect; more is growth.
NO_EFFECT = 0.10
#: Of case 4: all wavefronts together may have more in flight than any limit.
UNROLL = 32


def unrolling(
    sizes: Sequence[int] = LIMIT_SIZES,
    unrolls: Sequence[int] = (1, 2, 4, 8, 16, 32),
    limits: Sequence[int] = (128, 512),
    ranks: int = 16,
    workgroups: int = 60,
) -> CaseStudy:
    """Run case 3: ``sizes`` and ``limits`` (requests of a CU in flight) ascending; at the largest limit all sizes."""
    by_size = [(size, limits[-1]) for size in sizes]
    by_limit = [(sizes[-1], limit) for limit in limits[:-1]]
    cases = by_size + by_limit
    rates = {}
    for case in cases:
        rates[case] = [_with(*case, unroll, "all_to_all", ranks, workgroups) for unroll in unrolls]
    small, large = rates[sizes[0], limits[-1]], rates[sizes[-1], limits[-1]]
    ends = (unrolls[0], unrolls[-1])
    fewer = {}
    for size in (sizes[0], sizes[-1]):
        fewer[size] = [_with(size, limits[-1], k, "all_to_all", ranks, workgroups, FEWER_WAVEFRONTS) for k in ends]
    plateau = {limit: _plateau(unrolls, rates[sizes[-1], limit]) for limit in limits}
    label = {case: f"{format_size(case[0])}, limit {case[1]}" for case in cases}
    rows = []
    for i, unroll in enumerate(unrolls):
        rows.append((unroll, *(rates[case][i] for case in cases)))
    return CaseStudy(
        name="unrolling",
        title=f"Case 3: all-to-all (put) on {ranks} GPUs, {workgroups} workgroups each, by loop unrolling; GB/s",
        settings=(
            GPU,
            f"{WAVEFRONTS} wavefronts a workgroup (assumed); a workgroup serves one peer (assumed). limit: requests in "
            "flight of a compute unit.",
        ),
        columns=("unroll", *label.values()),
        rows=tuple(rows),
        findings=(
            Finding(
                paper="for large sizes bandwidth grows with unrolling",
                here=f"{format_size(sizes[-1])}: {max(large) / large[0]:.1f} times from {unrolls[0]} on; with "
                f"{FEWER_WAVEFRONTS} wavefronts {_growth(fewer[sizes[-1]]):.1f} times from {ends[0]} to {ends[1]}",
                holds=max(large) > 2 * large[0] and _growth(fewer[sizes[-1]]) > 2,
                assumed=f"{ASSUMED}; one peer a workgroup",
            ),
            Finding(
                paper="until the compute unit's limit of requests in flight",
                here="; ".join(
                    f"limit {limit}: from unroll {plateau[limit]} on within 5 % of the most, "
                    f"{WAVEFRONTS} wavefronts x {plateau[limit]} = {WAVEFRONTS * plateau[limit]}"
                    for limit in limits
                ),
                holds=all(WAVEFRONTS * plateau[limit] <= limit for limit in limits),
                assumed=f"{ASSUMED}; one peer a workgroup",
            ),
            _no_effect("no effect on small sizes", small, fewer[sizes[0]], sizes[0], "one peer a workgroup"),
        ),
        panels=(_panel("All-to-all: loop unrolling", "requests of a wavefront in flight", unrolls, rates, label),),
    )


def outstanding(
    sizes: Sequence[int] = LIMIT_SIZES,
    limits: Sequence[int] = (32, 64, 128, 256, 512, 1024),
    ranks: int = 32,
    workgroups: int = 62,
) -> CaseStudy:
    """Run case 4: ``sizes`` and ``limits`` ascending."""
    rates = {}
    for size in sizes:
        rates[(size, 0)] = [_with(size, k, UNROLL, "all_gather", ranks, workgroups) for k in limits]
    label = {case: format_size(case[0]) for case in rates}
    small, large = rates[sizes[0], 0], rates[sizes[-1], 0]
    plateau = _plateau(limits, large)
    ends = (limits[0], limits[-1])
    fewer = {}
    for size in (sizes[0], sizes[-1]):
        fewer[size] = [_with(size, k, UNROLL, "all_gather", ranks, workgroups, FEWER_WAVEFRONTS) for k in ends]
    rows = []
    for i, limit in enumerate(limits):
        rows.append((limit, *(rates[case][i] for case in rates)))
    return CaseStudy(
        name="outstanding",
        title=f"Case 4: all-gather (put) on {ranks} GPUs, {workgroups} workgroups each, by the limit of requests of a "
        "compute unit; GB/s",
        settings=(
            GPU,
            f"{WAVEFRONTS} wavefronts a workgroup, each with up to {UNROLL} requests in flight (assumed); two "
            "workgroups for each peer (assumed: not in the paper).",
        ),
        columns=("limit", *label.values()),
        rows=tuple(rows),
        findings=(
            Finding(
                paper="bandwidth saturates quickly with the limit",
                here=f"{format_size(sizes[-1])}: {max(large) / large[0]:.1f} times from {limits[0]} to {plateau}, "
                f"then less than 5 %; with {FEWER_WAVEFRONTS} wavefronts {_growth(fewer[sizes[-1]]):.1f} times from "
                f"{ends[0]} to {ends[1]}",
                holds=plateau < limits[-1] and max(large) > 2 * large[0] and _growth(fewer[sizes[-1]]) > 2,
                assumed=f"{ASSUMED}; {UNROLL} requests a wavefront",
            ),
            _no_effect(
                "no effect where latency decides", small, fewer[sizes[0]], sizes[0], f"{UNROLL} requests a wavefront"
            ),
        ),
        panels=(_panel("All-gather: limit of a compute unit", "requests of a CU in flight", limits, rates, label),),
    )


def _with(
    size: int, limit: int, unroll: int, op: str, ranks: int, workgroups: int, wavefronts: int = WAVEFRONTS
) -> float:
    model = ModelOptions(max_outstanding=limit, unroll=unroll).of(gpu_model())
    return measure(op, ranks, size, "peer-put", workgroups, model=model, wavefronts=wavefronts).gb_per_s


def _no_effect(paper: str, rates: Sequence[float], fewer: Sequence[float], size_bytes: int, assumed: str) -> Finding:
    """Return the finding that the rates of a small size hardly differ; ``fewer``: rates with fewer wavefronts."""
    spread = max(rates) / min(rates) - 1
    with_fewer = f"with {FEWER_WAVEFRONTS} wavefronts {100 * (_growth(fewer) - 1):.0f} %"
    return Finding(
        paper=paper,
        here=f"{format_size(size_bytes)}: {100 * spread:.0f} % between the slowest and the fastest; {with_fewer}",
        holds=spread < NO_EFFECT,
        assumed=f"{ASSUMED}; {assumed}",
    )


def _growth(rates: Sequence[float]) -> float:
    """Return the last rate over the first."""
    return rates[-1] / rates[0]


def _plateau(numbers: Sequence[int], rates: Sequence[float]) -> int:
    """Return the first number whose rate is within 5 % of the maximum."""
    return next(n for n, rate in zip(numbers, rates, strict=True) if max(rates) <= 1.05 * rate)


def _panel(
    title: str,
    x_label: str,
    x: Sequence[int],
    rates_by_case: dict[tuple[int, int], list[float]],
    label: dict[tuple[int, int], str],
) -> Panel:
    curves = tuple(
        Curve(label=label[case], x=tuple(map(float, x)), y=tuple(rates), colour=number)
        for number, (case, rates) in enumerate(rates_by_case.items())
    )
    return Panel(title=title, x_label=x_label, y_label=RATE, curves=curves, log="xy")
