"""Case 5: what a simulation costs."""

from __future__ import annotations

from collections.abc import Sequence

from trine.collectives.sizes import format_size
from trine.errors import SimulationError
from trine.studies.loadstore_cases.case import CaseStudy, Curve, Finding, Panel
from trine.studies.loadstore_cases.runs import GPU, MIB, Measured, gpu_model, measure

SIZES = (MIB, 4 * MIB, 16 * MIB)
GPUS = (2, 8, 32, 128)
#: On the most GPUs only.
LARGER = (64 * MIB, 256 * MIB)
#: Unfolded: small ones only.
WHOLE = ((2, MIB), (2, 4 * MIB), (8, MIB), (8, 4 * MIB))


def cost(
    sizes: Sequence[int] = SIZES,
    gpus: Sequence[int] = GPUS,
    larger: Sequence[int] = LARGER,
    whole: Sequence[tuple[int, int]] = WHOLE,
    workgroups: int = 32,
) -> CaseStudy:
    """``sizes`` (ascending) on ``gpus``, ``larger`` on the most of them, folded; ``whole``: pairs unfolded too."""
    asked = [(n, size) for n in gpus for size in sizes] + [(gpus[-1], size) for size in larger]
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
    lines = {case: _per_line(run) for case, run in runs.items()}
    many = [run for (n, size), run in runs.items() if n == gpus[-1] and size >= sizes[-1]]
    each = [_per_line(run) for run in many]
    spread, share = max(each) / min(each) - 1, lines[gpus[-1], sizes[-1]] / lines[gpus[0], sizes[-1]]
    top = many[-1]
    return (
        Finding(
            paper="the time of a simulation grows linearly with bytes",
            here=f"{gpus[-1]} GPUs: events a line of output differ by {100 * spread:.1f} % from "
            f"{format_size(many[0].size_bytes)} to {format_size(top.size_bytes)}",
            holds=spread < 0.05,
            assumed="events are judged, not time; one GPU is simulated for all, as they behave alike",
        ),
        Finding(
            paper="",
            here=f"folded, {gpus[-1]} GPUs take {share:.2f} times the events of {gpus[0]} for the same output; in the "
            "paper each of them is simulated (57 344 endpoints at 128)",
            holds=None,
        ),
        Finding(
            paper="",
            here=f"{top.events:,} events in {top.wall_s:.1f} s: {top.events / top.wall_s / 1e6:.1f} million a second",
            holds=None,
            volatile=True,
        ),
    )


def _exact(runs: dict[tuple[int, int], Measured], apart: dict[tuple[int, int], Measured]) -> Finding:
    """Raises SimulationError where a folded run is not what the unfolded one is."""
    for case, run in apart.items():
        if case in runs and runs[case].time_ps != run.time_ps:
            raise SimulationError(
                f"{case[0]} GPUs, {case[1]} B: folded {runs[case].time_ps} ps, unfolded {run.time_ps} ps"
            )
    share = [run.events / runs[case].events / case[0] for case, run in apart.items() if case in runs]
    return Finding(
        paper="",
        here=f"unfolded runs end at the same picosecond, with {min(share):.2f} to {max(share):.2f} times GPUs x "
        "the events",
        holds=None,
    )


def _panel(runs: dict[tuple[int, int], Measured], apart: dict[tuple[int, int], Measured], gpus: Sequence[int]) -> Panel:
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
