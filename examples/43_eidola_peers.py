"""Simulation time against the number of replayed GPUs. Figure 4 of Eidola (arXiv 2606.12638).

    python examples/43_eidola_peers.py [--times] [--all]

`--times` also prints CPU times, `--all` runs more sizes and numbers of GPUs. Writes 43_eidola_peers.png.
"""

import argparse
import time
from pathlib import Path

from trine.gpu.cases.case import CaseStudy, Curve, Finding, Panel
from trine.gpu.replay.options import EidolonOptions
from trine.gpu.replay.run import run_eidolon

#: Column of the table.
EVENTS = 6
PEERS, ROWS = (3, 15, 63, 255), (1024, 4096)
#: Counted from the start, so one run is enough; "after the target waits" needs another run to find that time.
LAND = {"wakeup": "100 us", "wakeup_from": "start"}
MORE_PEERS, MORE_ROWS = (3, 7, 15, 31, 63, 127, 255), (1024, 4096, 24576)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", action="store_true")
    parser.add_argument("--all", action="store_true")
    asked = parser.parse_args()
    peers, sizes = (MORE_PEERS, MORE_ROWS) if asked.all else (PEERS, ROWS)
    run_eidolon(EidolonOptions(rows=64, cols=64, tile=(16, 64)))  # load the compiled kernels
    rows = [measure(size, number) for size in sizes for number in peers]
    study = CaseStudy(
        name="eidola-peers",
        title="Eidola, figure 4: time of the simulation, by replayed GPUs",
        settings=("GEMV + all-reduce, M x 1024 x 4 B; peers' flags land 100 us after the start; wavefronts spin.",),
        columns=("M", "peers", "writes", "flag reads", "non-flag reads", "kernel us", "events", "s"),
        rows=tuple(rows),
        findings=tuple(finding for size in sizes for finding in findings([row for row in rows if row[0] == size])),
        panels=(
            panel(rows, sizes, 7, "Time of the simulation", "CPU time (s)"),
            panel(rows, sizes, EVENTS, "Events", "events (millions)"),
        ),
        volatile=("s",),
    )
    print(study.text(volatile=asked.times))
    study.plot(Path(__file__).with_suffix(".png"))


def measure(size: int, peers: int) -> tuple[int | float, ...]:
    began = time.process_time()
    result = run_eidolon(EidolonOptions(rows=size, cols=1024, peers=peers, **LAND))
    cpu_s = time.process_time() - began
    return (
        size, peers, result.writes_delivered, result.flag_reads, result.non_flag_reads, 1e6 * result.time_s,
        result.inside.records.num_events, cpu_s,
    )  # fmt: skip


#: Range of the paper's slowdowns.
LEAST, MOST = 7.3, 35.9


def findings(rows: list[tuple]) -> tuple[Finding, ...]:
    first, last = rows[0], rows[-1]
    events, cpu = last[6] / first[6], last[7] / first[7]
    name = f"M = {first[0]}, {first[1]} to {last[1]} peers"
    return (
        Finding(
            paper="255 peers take far below 256 times as long as 3",
            here=f"{name}: {events:.2f} times the events, with {last[2] / first[2]:.0f} times the writes",
            holds=events < 25.6,
            assumed="events are judged, not time; tiles of 64 rows, one flag for all peers",
        ),
        Finding(
            paper=f"namely {LEAST} to {MOST} times",
            here=f"{name}: {events:.2f} times the events",
            holds=LEAST <= events <= MOST,
            assumed="events, not time",
        ),
        Finding(
            paper=f"namely {LEAST} to {MOST} times",
            here=f"{name}: {cpu:.2f} times the CPU time",
            holds=LEAST <= cpu <= MOST,
            assumed="another simulator on another machine",
            volatile=True,
        ),
    )


def panel(rows: list[tuple], sizes: tuple[int, ...], column: int, title: str, label: str) -> Panel:
    curves = [
        Curve(
            label=f"M = {size}", colour=i,
            x=tuple(float(row[1]) for row in rows if row[0] == size),
            y=tuple(row[column] / (1e6 if column == EVENTS else 1) for row in rows if row[0] == size),
        )
        for i, size in enumerate(sizes)
    ]  # fmt: skip
    return Panel(title=title, x_label="replayed GPUs", y_label=label, curves=tuple(curves), log="xy")


if __name__ == "__main__":
    main()
