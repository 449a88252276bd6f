"""Cases 3 and 4: how many requests may be in flight, of a wavefront and of a compute unit."""

from __future__ import annotations

from collections.abc import Sequence

from trine.collectives.sizes import format_size
from trine.gpu.model.options import ModelOptions
from trine.studies.loadstore_cases.case import CaseStudy, Curve, Finding, Panel
from trine.studies.loadstore_cases.runs import ASSUMED, FEWER_WAVEFRONTS, GPU, KIB, MIB, WAVEFRONTS, gpu_model, measure

RATE = "algbw (GB/s)"
SIZES = (64 * KIB, MIB, 16 * MIB)
#: Less than this is no effect; more is growth.
NO_EFFECT = 0.10
#: Of case 4: all wavefronts together may have more in flight than any limit.
UNROLL = 32


def unrolling(
    sizes: Sequence[int] = SIZES,
    unrolls: Sequence[int] = (1, 2, 4, 8, 16, 32),
    limits: Sequence[int] = (128, 512),
    ranks: int = 16,
    workgroups: int = 60,
) -> CaseStudy:
    """Case 3: ``sizes`` and ``limits`` (requests of a CU in flight) ascending; at the largest limit all sizes."""
    cases = [(size, limits[-1]) for size in sizes] + [(sizes[-1], limit) for limit in limits[:-1]]
    found = {case: [_with(*case, unroll, "all_to_all", ranks, workgroups) for unroll in unrolls] for case in cases}
    small, large = found[sizes[0], limits[-1]], found[sizes[-1], limits[-1]]
    spread = max(small) / min(small) - 1
    ends = (unrolls[0], unrolls[-1])
    fewer = {
        size: [_with(size, limits[-1], k, "all_to_all", ranks, workgroups, FEWER_WAVEFRONTS) for k in ends]
        for size in (sizes[0], sizes[-1])
    }
    at = {limit: _plateau(unrolls, found[sizes[-1], limit]) for limit in limits}
    label = {case: f"{format_size(case[0])}, limit {case[1]}" for case in cases}
    return CaseStudy(
        name="unrolling",
        title=f"Case 3: all-to-all (put) on {ranks} GPUs, {workgroups} workgroups each, by loop unrolling; GB/s",
        settings=(
            GPU,
            f"{WAVEFRONTS} wavefronts a workgroup (assumed); a workgroup serves one peer (assumed). limit: requests in "
            "flight of a compute unit.",
        ),
        columns=("unroll", *label.values()),
        rows=tuple((unroll, *(found[case][i] for case in cases)) for i, unroll in enumerate(unrolls)),
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
                    f"limit {limit}: from unroll {at[limit]} on within 5 % of the most, "
                    f"{WAVEFRONTS} wavefronts x {at[limit]} = {WAVEFRONTS * at[limit]}"
                    for limit in limits
                ),
                holds=all(WAVEFRONTS * at[limit] <= limit for limit in limits),
                assumed=f"{ASSUMED}; one peer a workgroup",
            ),
            Finding(
                paper="no effect on small sizes",
                here=f"{format_size(sizes[0])}: {100 * spread:.0f} % between the slowest and the fastest; with "
                f"{FEWER_WAVEFRONTS} wavefronts {100 * (_growth(fewer[sizes[0]]) - 1):.0f} %",
                holds=spread < NO_EFFECT,
                assumed=f"{ASSUMED}; one peer a workgroup",
            ),
        ),
        panels=(_panel("All-to-all: loop unrolling", "requests of a wavefront in flight", unrolls, found, label),),
    )


def outstanding(
    sizes: Sequence[int] = SIZES,
    limits: Sequence[int] = (32, 64, 128, 256, 512, 1024),
    ranks: int = 32,
    workgroups: int = 62,
) -> CaseStudy:
    """Case 4: ``sizes`` and ``limits`` ascending."""
    found = {(size, 0): [_with(size, k, UNROLL, "all_gather", ranks, workgroups) for k in limits] for size in sizes}
    label = {case: format_size(case[0]) for case in found}
    small, large = found[sizes[0], 0], found[sizes[-1], 0]
    spread, at = max(small) / min(small) - 1, _plateau(limits, large)
    ends = (limits[0], limits[-1])
    fewer = {
        size: [_with(size, k, UNROLL, "all_gather", ranks, workgroups, FEWER_WAVEFRONTS) for k in ends]
        for size in (sizes[0], sizes[-1])
    }
    return CaseStudy(
        name="outstanding",
        title=f"Case 4: all-gather (put) on {ranks} GPUs, {workgroups} workgroups each, by the limit of requests of a "
        "compute unit; GB/s",
        settings=(
            GPU,
            f"{WAVEFRONTS} wavefronts a workgroup, each with up to {UNROLL} requests in flight (assumed); two "
            "workgroups for each peer (assumed: the paper does not say how many).",
        ),
        columns=("limit", *label.values()),
        rows=tuple((limit, *(found[case][i] for case in found)) for i, limit in enumerate(limits)),
        findings=(
            Finding(
                paper="bandwidth saturates quickly with the limit",
                here=f"{format_size(sizes[-1])}: {max(large) / large[0]:.1f} times from {limits[0]} to {at}, "
                f"then less than 5 %; with {FEWER_WAVEFRONTS} wavefronts {_growth(fewer[sizes[-1]]):.1f} times from "
                f"{ends[0]} to {ends[1]}",
                holds=at < limits[-1] and max(large) > 2 * large[0] and _growth(fewer[sizes[-1]]) > 2,
                assumed=f"{ASSUMED}; {UNROLL} requests a wavefront",
            ),
            Finding(
                paper="no effect where latency decides",
                here=f"{format_size(sizes[0])}: {100 * spread:.0f} % between the slowest and the fastest; with "
                f"{FEWER_WAVEFRONTS} wavefronts {100 * (_growth(fewer[sizes[0]]) - 1):.0f} %",
                holds=spread < NO_EFFECT,
                assumed=f"{ASSUMED}; {UNROLL} requests a wavefront",
            ),
        ),
        panels=(_panel("All-gather: limit of a compute unit", "requests of a CU in flight", limits, found, label),),
    )


def _with(
    size: int, limit: int, unroll: int, op: str, ranks: int, workgroups: int, wavefronts: int = WAVEFRONTS
) -> float:
    model = ModelOptions(max_outstanding=limit, unroll=unroll).of(gpu_model())
    return measure(op, ranks, size, "peer-put", workgroups, model=model, wavefronts=wavefronts).gb_per_s


def _growth(rates: Sequence[float]) -> float:
    """The last rate over the first."""
    return rates[-1] / rates[0]


def _plateau(numbers: Sequence[int], rates: Sequence[float]) -> int:
    """The first number from which on the rate grows by at most a twentieth in all."""
    return next(n for n, rate in zip(numbers, rates, strict=True) if max(rates) <= 1.05 * rate)


def _panel(
    title: str,
    x_label: str,
    x: Sequence[int],
    found: dict[tuple[int, int], list[float]],
    label: dict[tuple[int, int], str],
) -> Panel:
    curves = tuple(
        Curve(label=label[case], x=tuple(map(float, x)), y=tuple(rates), colour=number)
        for number, (case, rates) in enumerate(found.items())
    )
    return Panel(title=title, x_label=x_label, y_label=RATE, curves=curves, log="xy")
