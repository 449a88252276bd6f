"""How long does the whole study of Eidola take? M = 1024..24576, 3..255 replayed peers, both ways to wait.

Run: python benchmarks/bench_eidolon.py [--quick] [--profile]
GEMV + all-reduce, M x 1024 x 4 B, flags 10 us after the target's last workgroup waits. CPU seconds of this process,
which other work on the machine stretches less than wall time: "build" the program; "when" the target waits, by a run
without flags; "writes" of the peers, drawn and resolved; "run" the one that counts, with its tables. An event is one
hop of one request, or something that a wavefront, CU or dispatcher does. ``--profile``: which functions of the largest
run take most.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from trine.eidolon.incoming import make_incoming
from trine.eidolon.options import EidolonOptions
from trine.eidolon.run import Prepared, run_eidolon
from trine.gpu.replayed import run_target

ROWS = (1024, 2048, 4096, 8192, 16384, 24576)
PEERS = (3, 7, 15, 31, 63, 127, 255)
WAYS = ("spin", "mwait")
WAKEUP = "10 us"
#: Targets: wall seconds of the whole grid; wall time of 255 peers against 3, of any M.
MOST_S, MOST_GROWTH = 300.0, 10.0


class Measured(NamedTuple):
    """CPU seconds of each step and wall seconds of all; events of the run that counts; flag reads and others."""

    build_s: float
    when_s: float
    writes_s: float
    run_s: float
    wall_s: float
    events: int
    flag_reads: int
    non_flag_reads: int

    @property
    def cpu_s(self) -> float:
        return self.build_s + self.when_s + self.writes_s + self.run_s


def measure(rows: int, peers: int, sync: str) -> Measured:
    """One run, step by step, as run_eidolon does it."""
    options = EidolonOptions(rows=rows, cols=1024, peers=peers, sync=sync, wakeup=WAKEUP)
    began = time.perf_counter()
    prepared, build_s = timed(lambda: Prepared(options))
    waiting_ps, when_s = timed(lambda: prepared.waiting_ps)
    work = prepared.work
    incoming, writes_s = timed(lambda: make_incoming(options, work, waiting_ps))
    found, run_s = timed(
        lambda: run_target(
            work.program, work.cluster, work.group, work.model, target=work.target, outside=incoming.outside
        )
    )
    wall_s = time.perf_counter() - began
    records = found.gpu
    return Measured(
        build_s, when_s, writes_s, run_s, wall_s, records.num_events,
        int(records.acquires[0] + records.flagged_loads[0]), int(records.loads[0] - records.flagged_loads[0]),
    )  # fmt: skip


def timed(do: Callable[[], Any]) -> tuple[Any, float]:
    began = time.process_time()
    return do(), time.process_time() - began


def show(rows: int, peers: int, sync: str, one: Measured) -> None:
    print(
        f"{rows:6} {peers:6} {sync:>6} {one.build_s:7.2f} {one.when_s:7.2f} {one.writes_s:7.2f} {one.run_s:7.2f} "
        f"{one.wall_s:7.2f} {one.events / 1e6:9.2f} {one.events / one.run_s / 1e6:6.1f} {one.flag_reads:8,} "
        f"{one.non_flag_reads:11,}",
        flush=True,
    )


def profile(rows: int, peers: int) -> None:
    """Print what takes most of one run, by function."""
    import cProfile
    import pstats

    with cProfile.Profile() as found:
        run_eidolon(EidolonOptions(rows=rows, cols=1024, peers=peers, wakeup=WAKEUP))
    pstats.Stats(found).sort_stats("tottime").print_stats(20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="only the corners of the grid")
    parser.add_argument("--profile", action="store_true", help="only which functions take most")
    asked = parser.parse_args()
    run_eidolon(EidolonOptions(rows=64, cols=64, tile=(16, 64)))  # load the compiled kernels
    if asked.profile:
        profile(ROWS[-1], PEERS[-1])
        return
    sizes, numbers = ((ROWS[0], ROWS[-1]), (PEERS[0], PEERS[-1])) if asked.quick else (ROWS, PEERS)
    print("     M  peers  waits   build    when  writes     run    wall  M events    M/s    flags other reads")
    found = {}
    for rows in sizes:
        for peers in numbers:
            for sync in WAYS:
                found[rows, peers, sync] = measure(rows, peers, sync)
                show(rows, peers, sync, found[rows, peers, sync])
    sums = {name: sum(getattr(one, name) for one in found.values()) for name in ("build_s", "when_s", "writes_s")}
    cpu_s, wall_s = sum(one.cpu_s for one in found.values()), sum(one.wall_s for one in found.values())
    python = (sums["build_s"] + sums["writes_s"]) / cpu_s
    print(
        f"{len(found)} runs: {wall_s:.0f} s, CPU {cpu_s:.0f} s on one core (< {MOST_S:g} s); building and writes "
        f"{100 * python:.1f} %, finding when the target waits {100 * sums['when_s'] / cpu_s:.0f} %"
    )
    for rows in sizes:
        for sync in WAYS:
            few, many = found[rows, numbers[0], sync], found[rows, numbers[-1], sync]
            growth = f"CPU {many.cpu_s / few.cpu_s:.2f}, wall {many.wall_s / few.wall_s:.2f} times"
            print(f"M = {rows}, {sync}: {numbers[-1]} peers against {numbers[0]}: {growth} (< {MOST_GROWTH:g})")


if __name__ == "__main__":
    main()
