"""How long the simulation takes against the matrix's rows M. Figure 3 of Eidola (arXiv 2606.12638).

    python examples/42_eidola_size.py [--times] [--all]

`--times` prints CPU times as well, `--all` takes more sizes, and mwait too. Writes 42_eidola_size.png.
"""

import argparse
import time
from pathlib import Path

import numpy as np

from trine.gpu.cases.case import CaseStudy, Curve, Finding, Panel
from trine.gpu.replay.options import EidolonOptions
from trine.gpu.replay.run import run_eidolon

#: Column of the table.
EVENTS = 5
SIZES = (1024, 4096, 12288, 24576)
#: From the start: one run is enough, where "after the target waits" needs another to find out when that is.
LAND = {"wakeup": "100 us", "wakeup_from": "start"}
MORE = (1024, 2048, 4096, 6144, 8192, 12288, 16384, 20480, 24576)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", action="store_true")
    parser.add_argument("--all", action="store_true")
    asked = parser.parse_args()
    sizes, ways = (MORE, ("spin", "mwait")) if asked.all else (SIZES, ("spin",))
    run_eidolon(EidolonOptions(rows=64, cols=64, tile=(16, 64)))  # load the compiled kernels
    rows = [measure(size, way) for way in ways for size in sizes]
    study = CaseStudy(
        name="eidola-size",
        title="Eidola, figure 3: time of the simulation, by rows M of the matrix",
        settings=("GEMV + all-reduce, M x 1024 x 4 B, 3 peers replayed, whose flags land 100 us after the start.",),
        columns=("M", "waits", "flag reads", "non-flag reads", "kernel us", "events", "events a row", "s"),
        rows=tuple(rows),
        findings=tuple(finding for way in ways for finding in findings([row for row in rows if row[1] == way])),
        panels=(
            panel(rows, ways, 7, "Time of the simulation", "CPU time (s)"),
            panel(rows, ways, EVENTS, "Events", "events (millions)"),
        ),
        volatile=("s",),
    )
    print(study.text(volatile=asked.times))
    study.plot(Path(__file__).with_suffix(".png"))


def measure(size: int, way: str) -> tuple[str | int | float, ...]:
    began = time.process_time()
    result = run_eidolon(EidolonOptions(rows=size, cols=1024, sync=way, **LAND))
    cpu_s = time.process_time() - began
    events = result.inside.records.num_events
    return (
        size, way, result.flag_reads, result.non_flag_reads, 1e6 * result.time_s, events, events / size, cpu_s
    )  # fmt: skip


ELSEWHERE = "another simulator on another machine"


def findings(rows: list[tuple]) -> tuple[Finding, ...]:
    said = "the time of the simulation is about linear in M, 1024 to 24 576: r^2 0.76 to 0.98"
    events, cpu = (r2([row[0] for row in rows], [row[i] for row in rows]) for i in (5, 7))
    each = [row[6] for row in rows]
    way, last = rows[0][1], rows[-1]
    return (
        Finding(
            paper=said,
            here=f"{way}: events grow with r^2 {events:.6f}; {min(each):.0f} to {max(each):.0f} a row",
            holds=events >= 0.99,
            assumed="events are judged, not time; tiles of 64 rows, one flag for all peers",
        ),
        Finding(
            paper=said, here=f"{way}: CPU time, r^2 {cpu:.4f}", holds=cpu >= 0.76, assumed=ELSEWHERE, volatile=True
        ),
        Finding(
            paper="",
            here=f"{way}: M = {last[0]:,} takes {last[7]:.2f} s, {last[5] / last[7] / 1e6:.1f} M events a second",
            holds=None,
            volatile=True,
        ),
    )


def r2(x: list[float], y: list[float]) -> float:
    """Of a straight line through the points, by least squares."""
    return float(np.corrcoef(x, y)[0, 1] ** 2)


def panel(rows: list[tuple], ways: tuple[str, ...], column: int, title: str, label: str) -> Panel:
    curves = [
        Curve(
            label=way, colour=i,
            x=tuple(float(row[0]) for row in rows if row[1] == way),
            y=tuple(row[column] / (1e6 if column == EVENTS else 1) for row in rows if row[1] == way),
        )
        for i, way in enumerate(ways)
    ]  # fmt: skip
    return Panel(title=title, x_label="rows M", y_label=label, curves=tuple(curves), log="")


if __name__ == "__main__":
    main()
