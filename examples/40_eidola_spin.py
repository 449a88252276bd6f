"""Reads of flags against the time at which peers write them, when wavefronts spin. Figure 1 of Eidola (2606.12638).

Writes 40_eidola_spin.png. The guide to all five: docs/guides/eidola-figures.md.
"""

from pathlib import Path

from trine.replay.options import EidolonOptions
from trine.replay.sweep import Sweep, SweepGrid, sweep
from trine.studies.loadstore_cases.case import CaseStudy, Curve, Finding, Panel

#: As the paper has it: a compute unit each for 43 workgroups, and flags for each of three peers. Tiles are assumed.
EIDOLA = EidolonOptions(rows=1024, cols=1024, peers=3, tile=(16, 1024), workgroups=43, flags="single")
ASSUMED = "tiles of 16 rows on 43 workgroups, a flag from each peer for each; the pause of a poll is from this figure"
WAKEUPS_US = range(0, 41, 2)


def main() -> None:
    found = sweep(EIDOLA, SweepGrid(wakeup=[f"{us} us" for us in WAKEUPS_US], sync=["spin"]))
    study = CaseStudy(
        name="eidola-spin",
        title="Eidola, figure 1: reads against the wake-up time, spinning",
        settings=(
            "GEMV + all-reduce, 1024 x 1024 x 4 B, 3 peers replayed; 43 workgroups, each with a flag from every peer.",
            "Wake-up time: from when the last workgroup waits to when all flags land.",
        ),
        columns=("wake-up us", "flag reads", "non-flag reads", "wait of each us", "kernel us"),
        rows=tuple(
            (us, row["flag_reads"], row["non_flag_reads"], 1e6 * row["wait_s"], 1e6 * row["time_s"])
            for us, row in zip(WAKEUPS_US, found.rows, strict=True)
        ),
        findings=findings(found),
        panels=panels(found),
    )
    print(study.text())
    study.plot(Path(__file__).with_suffix(".png"))


def findings(found: Sweep) -> tuple[Finding, ...]:
    fit, first, last = found.fits[0], found.rows[0], found.rows[-1]
    data = {row["non_flag_reads"] for row in found.rows}
    off = fit.slope_per_s / fit.expected_per_s - 1
    return (
        Finding(
            paper="flag reads grow linearly, from about 134 to 660 in 40 us",
            here=f"r^2 of a line {fit.r2:.4f}; {first['flag_reads']} to {last['flag_reads']}, "
            f"{100 * (first['flag_reads'] / 134 - 1):+.0f} % and {100 * (last['flag_reads'] / 660 - 1):+.0f} %",
            holds=fit.r2 >= 0.99,
            assumed=ASSUMED,
        ),
        Finding(
            paper="about 66 K other reads, whatever the wake-up time",
            here=f"{max(data):,} at all times ({100 * (max(data) / 66_000 - 1):+.0f} %): "
            "65 536 of the matrix, 4 096 of the vector (64 for each of 64 tiles), "
            f"256 of partial results; the data flow asks for {first['non_flag_reads_expected']:,}",
            holds=data == {first["non_flag_reads_expected"]},
            assumed=ASSUMED,
        ),
        Finding(
            paper="",
            here=f"slope {fit.slope_per_s / 1e6:.2f} flag reads a us; waiting wavefronts / polling interval = "
            f"{first['waiting_wavefronts']} / {1e6 * first['polling_interval_s']:.3f} us = "
            f"{fit.expected_per_s / 1e6:.2f} ({100 * off:+.1f} %). The interval is derived from this very figure of "
            "the paper, so that the slope is its own (13.15) proves nothing; that it is a line, and the other reads, "
            "do",
            holds=None,
        ),
        Finding(
            paper="",
            here="129 reads are one for each flag. At 0 us there are more: 22 of 43 workgroups have one of the 64 "
            "tiles, the others two; those 22 have waited for them, and read once in vain",
            holds=None,
        ),
    )


def panels(found: Sweep) -> tuple[Panel, ...]:
    x = tuple(float(us) for us in WAKEUPS_US)

    def panel(key: str, title: str, *paper: Curve) -> Panel:
        here = Curve(label="trine", x=x, y=tuple(float(row[key]) for row in found.rows))
        return Panel(title=title, x_label="wake-up time (us)", y_label="reads", curves=(here, *paper), log="")

    return (
        panel(
            "flag_reads", "Flag reads, spinning", Curve(label="Eidola", x=(0, 40), y=(134, 660), style="s--", colour=1)
        ),
        panel(
            "non_flag_reads", "Non-flag reads", Curve(label="Eidola", x=(0, 40), y=(66e3, 66e3), style="s--", colour=1)
        ),
    )


if __name__ == "__main__":
    main()
