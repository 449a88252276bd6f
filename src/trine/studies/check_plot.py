"""Pictures of a check (extra ``plot``): measured points on the predicted band."""

from __future__ import annotations

from trine.collectives.plot import size_axis
from trine.collectives.sizes import format_size
from trine.errors import InputError
from trine.results.picture import log_scale, save, subplots
from trine.studies.check import FAST, INSIDE, SLOW, Check
from trine.studies.check_text import summary

_COLOURS = {INSIDE: "#009E73", SLOW: "#D55E00", FAST: "#0072B2"}
_NAMES = {INSIDE: "measured", SLOW: "measured, slow", FAST: "measured, fast"}


def plot_check(check: Check, path: str) -> None:
    """Time and bus bandwidth over the size, both axes logarithmic, written to ``path`` by its ending.

    Raises
    ------
    InputError: fewer than two sizes, or a file that cannot be written. MissingExtraError: no matplotlib.
    """
    if len(check.rows) < 2:
        raise InputError("a picture needs at least two sizes", field="plot")
    figure, (times, rates) = subplots(1, 2, figsize=(11, 4.6))
    sizes = [row.size_bytes for row in check.rows]
    predicted = [row.predicted for row in check.rows]
    moved = [p.sent_bytes * p.bus_factor * 1e3 for p in predicted]  # over picoseconds: GB/s
    times.fill_between(sizes, [p.low_ps / 1e6 for p in predicted], [p.high_ps / 1e6 for p in predicted],
                       color="#56B4E9", alpha=0.3, lw=0, label="band (80 % expected inside)")  # fmt: skip
    rates.fill_between(sizes, [m / p.high_ps for m, p in zip(moved, predicted, strict=True)],
                       [m / p.low_ps for m, p in zip(moved, predicted, strict=True)],
                       color="#56B4E9", alpha=0.3, lw=0)  # fmt: skip
    times.plot(sizes, [p.time_ps / 1e6 for p in predicted], color="black", lw=1, label="predicted")
    rates.plot(sizes, [m / p.time_ps for m, p in zip(moved, predicted, strict=True)], color="black", lw=1)
    if check.cause is not None:
        label = f"if {check.cause.name}"
        times.plot(sizes, [t / 1e6 for t in check.cause.times_ps], color="#CC79A7", lw=1.2, ls="--", label=label)
        rates.plot(sizes, [m / t for m, t in zip(moved, check.cause.times_ps, strict=True)], color="#CC79A7", lw=1.2,
                   ls="--")  # fmt: skip
    for state, colour in _COLOURS.items():
        mine = [row for row in check.rows if row.state == state]
        where = [row.size_bytes for row in mine]
        if mine:
            style = {"s": 22, "color": colour, "zorder": 3, "label": _NAMES[state]}
            times.scatter(where, [row.measured_ps / 1e6 for row in mine], **style)
            rates.scatter(where, [row.size_bytes * row.predicted.bus_factor * 1e3 / row.measured_ps for row in mine],
                          **style)  # fmt: skip
    for axis, name in ((times, "time (µs)"), (rates, "bus bandwidth (GB/s)")):
        if check.suspicious_from is not None and check.suspicious_to is not None:
            axis.axvspan(check.suspicious_from, check.suspicious_to, color="#D55E00", alpha=0.07, lw=0)
        axis.set_ylabel(name)
        size_axis(axis, sizes)
        log_scale(axis)
        axis.grid(alpha=0.3)
    times.legend(frameon=False, fontsize=8)
    state = "healthy" if check.healthy else f"suspicious from {format_size(check.suspicious_from or 0)}"
    figure.suptitle(f"{summary(check)}: {state}", fontsize=10)
    save(figure, path)
