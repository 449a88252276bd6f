"""How long does the whole study of Eidola take? M = 1024..24576, 3..255 replayed peers, both ways to wait.

Run: python benchmarks/bench_eidolon.py [--quick] [--sweep] [--profile]
GEMV + all-reduce, M x 1024 x 4 B, flags 10 us after the target's last workgroup waits. Prints CPU seconds of this
process, which depend less on other load than wall time: "build" for the program and its peers' writes, "until" for the
run up to the target's wait, "rest" for the run after it, from a copy of that state. An event is one hop of one request,
or an action of a wavefront, CU or dispatcher. ``--sweep``: total time of the grid as ``trine eidolon sweep`` runs it,
on all cores. ``--profile``: the most expensive functions of the largest run.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from trine.gpu.peers import PeerWrites
from trine.gpu.replay.options import EidolonOptions
from trine.gpu.replay.run import Prepared, run_eidolon
from trine.gpu.replay.sweep import sweep
from trine.gpu.replay.traffic import make_traffic

ROWS = (1024, 2048, 4096, 8192, 16384, 24576)
PEERS = (3, 7, 15, 31, 63, 127, 255)
WAYS = ("spin", "mwait")
WAKEUP = "10 us"
#: Targets: wall seconds of the whole grid; ratio of the wall times of 255 and 3 peers, at any M.
MAX_S, MAX_GROWTH = 300.0, 10.0


class Measured(NamedTuple):
    """CPU seconds per step, wall seconds in total, events, flag reads and other reads."""

    build_s: float
    until_s: float
    rest_s: float
    wall_s: float
    events: int
    flag_reads: int
    non_flag_reads: int

    @property
    def cpu_s(self) -> float:
        return self.build_s + self.until_s + self.rest_s


def measure(rows: int, peers: int, sync: str) -> Measured:
    """Measure one run, step by step as in run_eidolon."""
    options = EidolonOptions(rows=rows, cols=1024, peers=peers, sync=sync, wakeup=WAKEUP)
    began = time.perf_counter()
    prepared, build_s = timed(lambda: Prepared(options))
    waiting, until_s = timed(prepared.waiting)
    incoming, writes_s = timed(lambda: make_traffic(options, prepared.work, waiting.since_ps))
    assert isinstance(incoming.outside, PeerWrites)
    found, rest_s = timed(lambda: waiting.run(incoming.outside))
    wall_s = time.perf_counter() - began
    records = found.gpu
    return Measured(
        build_s + writes_s, until_s, rest_s, wall_s, records.num_events,
        int(records.acquires[0] + records.flagged_loads[0]), int(records.loads[0] - records.flagged_loads[0]),
    )  # fmt: skip


def timed(do: Callable[[], Any]) -> tuple[Any, float]:
    began = time.process_time()
    return do(), time.process_time() - began


def show(rows: int, peers: int, sync: str, one: Measured) -> None:
    rate = one.events / (one.until_s + one.rest_s)
    print(
        f"{rows:6} {peers:6} {sync:>6} {one.build_s:7.2f} {one.until_s:7.2f} {one.rest_s:7.2f} {one.wall_s:7.2f} "
        f"{one.events / 1e6:9.2f} {rate / 1e6:6.1f} {one.flag_reads:8,} {one.non_flag_reads:11,}",
        flush=True,
    )


def profile(rows: int, peers: int) -> None:
    """Print the most expensive functions of one run."""
    import cProfile
    import pstats

    with cProfile.Profile() as found:
        run_eidolon(EidolonOptions(rows=rows, cols=1024, peers=peers, wakeup=WAKEUP))
    pstats.Stats(found).sort_stats("tottime").print_stats(20)


def whole(vary: Mapping[str, Sequence[Any]]) -> None:
    """Print the time of a sweep on all cores."""
    began_s = time.process_time()
    found = sweep(EidolonOptions(cols=1024, wakeup=WAKEUP), vary)
    cpu_s = time.process_time() - began_s
    print(f"{len(found.rows)} runs: {found.wall_s:.0f} s on {os.cpu_count()} cores (< {MAX_S:g} s), CPU {cpu_s:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="only the corners of the grid")
    parser.add_argument("--sweep", action="store_true", help="only how long all takes on all cores")
    parser.add_argument("--profile", action="store_true", help="only which functions take most")
    asked = parser.parse_args()
    run_eidolon(EidolonOptions(rows=64, cols=64, tile=(16, 64)))  # load the compiled kernels
    if asked.profile:
        profile(ROWS[-1], PEERS[-1])
        return
    sizes, numbers = ((ROWS[0], ROWS[-1]), (PEERS[0], PEERS[-1])) if asked.quick else (ROWS, PEERS)
    if asked.sweep:
        whole({"rows": sizes, "peers": numbers, "sync": WAYS})
        return
    print("     M  peers  waits   build   until    rest    wall  M events    M/s    flags other reads")
    found = {}
    for rows in sizes:
        for peers in numbers:
            for sync in WAYS:
                found[rows, peers, sync] = measure(rows, peers, sync)
                show(rows, peers, sync, found[rows, peers, sync])
    cpu_s, wall_s = sum(one.cpu_s for one in found.values()), sum(one.wall_s for one in found.values())
    python_s = sum(one.build_s for one in found.values())
    print(
        f"{len(found)} runs: {wall_s:.0f} s, CPU {cpu_s:.0f} s on one core (< {MAX_S:g} s); building and writes "
        f"{100 * python_s / cpu_s:.1f} %"
    )
    for rows in sizes:
        for sync in WAYS:
            few, many = found[rows, numbers[0], sync], found[rows, numbers[-1], sync]
            growth = f"CPU {many.cpu_s / few.cpu_s:.2f}, wall {many.wall_s / few.wall_s:.2f} times"
            print(f"M = {rows}, {sync}: {numbers[-1]} peers against {numbers[0]}: {growth} (< {MAX_GROWTH:g})")


if __name__ == "__main__":
    main()
