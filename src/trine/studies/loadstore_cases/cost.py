"""Case 5: what a simulation costs."""

from __future__ import annotations

from collections.abc import Sequence

from trine.collectives.sizes import format_size
from trine.studies.loadstore_cases.case import CaseStudy, Curve, Finding, Panel
from trine.studies.loadstore_cases.runs import GPU, MIB, Measured, gpu_model, measure

SIZES = (MIB, 4 * MIB, 16 * MIB, 64 * MIB)
GPUS = (2, 8, 32, 128)
LARGEST = 256 * MIB
#: Unfolded: small ones only.
WHOLE = ((4, MIB), (4, 4 * MIB), (8, MIB), (8, 4 * MIB))


def cost(
    sizes: Sequence[int] = SIZES,
    gpus: Sequence[int] = GPUS,
    largest: int | None = LARGEST,
    whole: Sequence[tuple[int, int]] = WHOLE,
    workgroups: int = 32,
) -> CaseStudy:
    """Sizes (ascending) on ``gpus``, folded; ``largest`` on the most of them; ``whole``: (gpus, size) unfolded as well."""
    asked = [(n, size) for n in gpus for size in sizes] + ([(gpus[-1], largest)] if largest else [])
    _gather(2, sizes[0], workgroups, "auto")  # load the compiled kernels
    runs = {case: _gather(*case, workgroups, "auto") for case in asked}
    apart = {case: _gather(*case, workgroups, "off") for case in whole}
    return CaseStudy(
        name="cost",
        title="Case 5: what simulating an all-gather (put) costs, by output and GPUs",
        settings=(GPU, f"{workgroups} workgroups. Folded: one GPU is simulated for all; unfolded: each by itself."),
        columns=("GPUs", "output bytes", "simulated", "us", "events", "events a line", "s"),
        rows=tuple(
            (n, size, how, run.time_us, run.events, _per_line(run), run.wall_s)
            for found, how in ((runs, "one GPU"), (apart, "all"))
            for (n, size), run in found.items()
        ),
        findings=(*_linear(runs, sizes, gpus), _exact(runs, apart)),
        panels=(_panel(runs, apart, gpus),),
        volatile=("s",),
    )


def _gather(ranks: int, size: int, workgroups: int, fold: str) -> Measured:
    return measure("all_gather", ranks, size, "put", workgroups, fold=fold)


def _per_line(run: Measured) -> float:
    """Events for each line of the output: what it costs whatever the size."""
    return run.events * gpu_model().line_bytes / run.size_bytes


def _linear(runs: dict[tuple[int, int], Measured], sizes: Sequence[int], gpus: Sequence[int]) -> tuple[Finding, ...]:
    large = {case: run for case, run in runs.items() if case[1] >= 16 * sizes[0]} or runs
    lines = {n: [_per_line(run) for (m, _), run in large.items() if m == n] for n in gpus}
    spread = max(max(row) / min(row) - 1 for row in lines.values() if row)
    few, many = (sum(lines[n]) / len(lines[n]) for n in (gpus[0], gpus[-1]))
    top = max(runs.values(), key=lambda run: run.events)
    rates = [run.events / run.wall_s / 1e6 for run in large.values()]
    return (
        Finding(
            paper="time of the simulation grows linearly with bytes (1 to 256 MiB, 2 to 128 GPUs)",
            here=f"events a line of output differ by {100 * spread:.1f} % at most from {format_size(16 * sizes[0])} on",
            agrees=spread < 0.05,
        ),
        Finding(
            paper="57 344 endpoints at 128 GPUs, each simulated",
            here=f"exact folding: {gpus[-1]} GPUs take {many / few:.1f} times the events of {gpus[0]} for the same output",
            agrees=many / few < 3,
        ),
        Finding(
            paper="(not stated: events a second)",
            here=f"{min(rates):.1f} to {max(rates):.1f} million events a second; {top.events:,} in {top.wall_s:.1f} s",
            agrees=True,
            volatile=True,
        ),
    )


def _exact(runs: dict[tuple[int, int], Measured], apart: dict[tuple[int, int], Measured]) -> Finding:
    same = all(runs[case].time_ps == run.time_ps for case, run in apart.items() if case in runs)
    share = [run.events / runs[case].events / case[0] for case, run in apart.items() if case in runs]
    return Finding(
        paper="(not there: folding)",
        here=f"unfolded runs give the same times to the picosecond: {'yes' if same else 'no'}; they take "
        f"{min(share):.2f} to {max(share):.2f} times GPUs x the events",
        agrees=same and bool(share),
    )


def _panel(
    runs: dict[tuple[int, int], Measured], apart: dict[tuple[int, int], Measured], gpus: Sequence[int]
) -> Panel:
    curves = []
    for found, style, word in ((runs, "o-", "folded"), (apart, "s--", "unfolded")):
        for n in sorted({case[0] for case in found}):
            row = [run for (m, _), run in found.items() if m == n]
            x, y = tuple(float(run.size_bytes) for run in row), tuple(run.wall_s for run in row)
            colour = gpus.index(n) if n in gpus else len(gpus)
            curves.append(Curve(label=f"{n} GPUs, {word}", x=x, y=y, style=style, colour=colour))
    return Panel(
        title="All-gather: time of the simulation", x_label="output", y_label="wall time (s)", curves=tuple(curves),
        sizes=True, log="xy",
    )  # fmt: skip
