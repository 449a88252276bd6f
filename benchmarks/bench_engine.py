"""How fast is the engine? Events per second, cold and warm start-up, memory.

    python benchmarks/bench_engine.py [--ranks 256] [--reference]

The graph is data-parallel training as the engine sees it: each rank has 1000 compute tasks in a row and 25 ring
all-reduces. All-reduce k may start on a rank when that rank's compute task 40 (k + 1) has ended. The links are slow
enough for several all-reduces to share them (about 6 rate changes per event). An event is the end of a task or of a
latency.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time

import numpy as np

from trine.common.units import parse_bandwidth
from trine.engine.run import run
from trine.graph.assembler import csr, no_labels
from trine.graph.taskgraph import COMPUTE, TRANSFER, TaskGraph

COMPUTES, BUCKETS = 1000, 25
START_UP = """
import time
from trine.graph.builder import TaskGraphBuilder
from trine.engine.run import run
b = TaskGraphBuilder([10**9], [1000])
b.transfer(0, 1, [0], 1000)
graph = b.build()
start = time.perf_counter()
run(graph)
print(time.perf_counter() - start)
"""


def data_parallel(ranks: int, *, bucket_bytes: int = 25 << 20, bytes_per_s: int) -> TaskGraph:
    """Build a ring of ``ranks`` with 2 (ranks - 1) steps per bucket; tasks go rank by rank, computes first."""
    steps = 2 * (ranks - 1)
    chunk = -(-bucket_bytes // ranks)
    per_rank = COMPUTES + BUCKETS * steps
    base = np.arange(ranks, dtype=np.int64)[:, None] * per_rank
    # Predecessors: a compute task has only its stream; step 0 has the compute task that fills the bucket; step s has
    # step s - 1 of this rank and of the previous rank in the ring.
    bucket, step = np.divmod(np.arange(BUCKETS * steps), steps)
    own = np.where(step == 0, (bucket + 1) * (COMPUTES // BUCKETS) - 1, COMPUTES + np.arange(BUCKETS * steps) - 1)
    count = np.concatenate([np.zeros(COMPUTES, np.int64), np.where(step == 0, 1, 2)])
    ptr = np.zeros(ranks * per_rank + 1, np.int64)
    np.cumsum(np.tile(count, ranks), out=ptr[1:])
    before = np.roll(base, 1, axis=0)
    pairs = np.stack([base + own, np.where(step == 0, -1, before + own)], axis=2)
    idx = pairs[pairs >= 0].astype(np.int32)
    kind = np.tile(np.repeat([COMPUTE, TRANSFER], [COMPUTES, BUCKETS * steps]), ranks).astype(np.int8)
    rank = np.repeat(np.arange(ranks), per_rank)
    is_transfer = kind == TRANSFER
    jitter = np.random.default_rng(1).integers(45_000_000, 55_000_000, COMPUTES)
    route_ptr, route_links = csr([[i] for i in range(ranks)])
    n = ranks * per_rank
    return TaskGraph(
        kind=kind,
        rank=rank.astype(np.int32),
        peer=np.where(is_transfer, (rank + 1) % ranks, -1).astype(np.int32),
        stream=np.where(is_transfer, -1, rank).astype(np.int32),
        duration_ps=np.tile(np.concatenate([jitter, np.zeros(BUCKETS * steps, np.int64)]), ranks),
        size_bytes=np.where(is_transfer, chunk, 0),
        route=np.where(is_transfer, rank, -1).astype(np.int32),
        num_required=np.tile(count, ranks).astype(np.int32),
        predecessor_ptr=ptr,
        predecessor_idx=idx,
        route_ptr=route_ptr,
        route_links=route_links,
        route_latency_ps=np.full(ranks, 1_000_000, np.int64),
        link_bytes_per_s=np.full(ranks, bytes_per_s, np.int64),
        stream_names=("compute",) * ranks,
        stream_ranks=tuple(range(ranks)),
        rank_names=tuple(f"gpu{i}" for i in range(ranks)),
        link_names=tuple(f"gpu{i}->gpu{(i + 1) % ranks}" for i in range(ranks)),
        labels=no_labels(n),
    )


def start_up() -> tuple[float, float]:
    """Return the seconds of an installation's first run (compiles kernels) and of a later process (loads them)."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
        cold, warm = (
            float(
                subprocess.run(
                    [sys.executable, "-c", START_UP], env=environment, check=True, capture_output=True
                ).stdout
            )
            for _ in range(2)
        )
    return cold, warm


def measure(ranks: int, network: str, engine: str, bytes_per_s: int) -> None:
    graph = data_parallel(ranks, bytes_per_s=bytes_per_s)
    wall, cpu = [], []
    for _ in range(3 if engine == "compiled" else 1):
        wall_0, cpu_0 = time.perf_counter(), time.thread_time()
        records = run(graph, network=network, engine=engine)
        wall.append(time.perf_counter() - wall_0)
        cpu.append(time.thread_time() - cpu_0)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{ranks:5d} ranks  {network:5s}  {engine:9s}  {graph.num_tasks:9,d} tasks  {records.num_events:9,d} events"
        f"  {min(wall):7.3f} s wall  {min(cpu):7.3f} s CPU  {records.num_events / min(cpu) / 1e6:6.2f} M events/s"
        f"  {memory:5.2f} GiB peak  ends at {records.end_ps.max() / 1e9:.6f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=256)
    parser.add_argument("--reference", action="store_true", help="also the plain-Python twin, on 8 ranks")
    parser.add_argument("--bandwidth", default="20 GB/s", help="of each link; less means more contention")
    options = parser.parse_args()
    bytes_per_s = parse_bandwidth(options.bandwidth)
    cold, warm = start_up()
    print(f"kernels: {cold:.2f} s compiled for the first time, {warm:.2f} s loaded by a later process")
    for ranks in sorted({8, 64, options.ranks}):
        for network in ("fair", "equal"):
            measure(ranks, network, "compiled", bytes_per_s)
    if options.reference:
        measure(8, "fair", "reference", bytes_per_s)


if __name__ == "__main__":
    main()
