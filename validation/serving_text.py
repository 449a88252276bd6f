"""The text of ``trine validate serving``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from trine.results.text import aligned, wrapped_at
from validation.harness import Target
from validation.serving_quantities import TPOT, ComparedValue, ServingErrors, compared_values
from validation.serving_rows import published_errors
from validation.serving_statistics import GROUPS, ServingStatistics

HEAD = ("rows", "median", "p90", "bias", "scale", "shape", "in range")
#: Least width of the first column, and number of worst rows.
WIDTH, NUM_WORST = 25, 12


def paragraphs(statistics: ServingStatistics) -> Iterator[Sequence[str]]:
    """Yield errors by quantity, ranking and calibration, published errors, coverage, groups, worst rows."""
    yield _quantity_lines(statistics)
    yield [*_ranking_lines(statistics), *_calibration_lines(statistics)]
    yield _published_lines(statistics)
    yield _coverage_lines(statistics)
    for by in GROUPS:
        rows = [(name, *_cells(errors)) for name, errors in statistics.grouped(TPOT, by)]
        yield aligned([(f"TPOT by {by}", *HEAD), *rows], WIDTH) if rows else []
    worst = sorted(compared_values(TPOT, statistics.answered), key=lambda value: -abs(np.log(value.ratio)))
    yield ["worst TPOT", *map(_worst_line, worst[:NUM_WORST])] if worst else []


def _cells(errors: ServingErrors) -> tuple[str, ...]:
    return (
        f"{errors.count}", f"{errors.median:.1%}", f"{errors.p90:.1%}", f"{errors.bias:+.1%}", f"{errors.scale:.2f}",
        f"{errors.shape:.1%}", "" if errors.inside is None else f"{errors.inside:.0%}",
    )  # fmt: skip


def _quantity_lines(statistics: ServingStatistics) -> list[str]:
    lines: list[tuple[str, ...]] = [("blind", *HEAD, "by stack", "target", "")]
    for quantity, errors in statistics.errors():
        median = statistics.median_by_stack(quantity)
        by_stack = "" if median is None else f"{median:.1%}"
        met = {None: "", True: "met", False: "missed"}[quantity.target.met(errors)]
        lines.append((quantity.title, *_cells(errors), by_stack, _limits(quantity.target), met))
    return aligned(lines, WIDTH)


def _limits(target: Target) -> str:
    """Return the limits of median and 90th percentile."""
    return "/".join(f"{limit:.0%}" for limit in (target.median, target.p90) if limit is not None)


def _ranking_lines(statistics: ServingStatistics) -> list[str]:
    groups = statistics.ranking()
    if not groups:
        return []
    correlations = [group.spearman for group in groups]
    text = (
        f"ranking of tokens/s per GPU, {len(groups)} groups: Spearman {np.median(correlations):.3f} (median), "
        f"{min(correlations):.3f} (lowest)"
    )
    losses = [loss for group in groups for loss in group.regrets.values()]
    if losses:
        text += f"; regret under a TPOT limit: mean {np.mean(losses):.1%}, worst {max(losses):.1%}"
    return wrapped_at("", text, 0)


def _calibration_lines(statistics: ServingStatistics) -> list[str]:
    inside, calibrated = statistics.inside_by_stack(TPOT), statistics.calibrated()
    lines = [] if inside is None else [f"TPOT inside the likely range, one vote per stack: {inside:.0%}"]
    if calibrated is not None:
        text = (
            f"calibrated on three rows of each stack, TPOT of the other {calibrated.count} rows: "
            f"{calibrated.median:.1%} (median), {calibrated.p90:.1%} (p90)"
        )
        lines += wrapped_at("", text, 0)
    return lines


def _published_lines(statistics: ServingStatistics) -> list[str]:
    rows: list[tuple[str, ...]] = [("published errors", "rows", "", "TPOT", "TTFT", "end to end", "rows of")]
    for tool in (*statistics.inferencex(), *published_errors()):
        errors = ["" if tool[key] is None else f"{tool[key]:.1%}" for key in ("tpot", "ttft", "end_to_end")]
        rows.append((f"{tool['tool']}", f"{tool['rows']}", f"{tool['statistic']}", *errors, f"{tool['of']}"))
    return aligned(rows, WIDTH)


def _coverage_lines(statistics: ServingStatistics) -> list[str]:
    rows = [(each.kind, f"{each.rows}", f"{each.answered}", f"{each.share:.1%}") for each in statistics.coverage()]
    return aligned([("coverage", "rows", "answered", ""), *rows], WIDTH)


def _worst_line(value: ComparedValue) -> str:
    row, layout = value.row, value.row.layout
    return (
        f"  {value.error:+7.1%}  {row.stack}: tp {layout.tp}, dp {layout.attention_dp}, ep {layout.ep}, "
        f"{row.isl}/{row.osl}, concurrency {row.concurrency}: {1e3 * value.measured:.4g} ms measured, "
        f"{1e3 * value.predicted.value:.4g} predicted"
    )
