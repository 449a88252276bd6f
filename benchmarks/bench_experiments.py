"""Cost of an experiment: overhead per point, a million points in 1,000 shards, and a sweep of a 64-GPU step.

    python benchmarks/bench_experiments.py [--points 1000000] [--shards 1000] [--step-points 1000] [--only PART]

PART: overhead, shards or step. Shards run one after the other in this process, with a question that takes no time.

Measured on 2026-11-26 (one of two cores, shared with other work): 0.43 ms per point; a million points in 1,000 shards
took 170 CPU s, 1,002 files, 434 MiB of journals and 41 MiB of memory. Status: 3 s. Compaction: about 65 CPU s, 275 MiB
of memory, a Parquet file of 28 MiB. ``to_frame``: 13 s, 498 MiB.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trine
from trine.experiments.spec import ExperimentSpec

MIB = 2**20
#: Fields of the step: 1,000 layouts and sizes of a job on 64 GPUs.
STEP_SETTINGS = {"workload": "model:llama-3-8b", "cluster": "dgx-h100", "nodes": 8, "gpus": 64, "micro_batch": 1}
STEP_FIELDS = {
    "tp": "1,2,4,8", "pp": "1,2", "batch": "8..256+8", "recompute": "none,full", "software": "megatron-core,torchtitan",
}  # fmt: skip


def trivial(command: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return twelve numbers at once."""
    return {f"result_{i}": settings["a"] * 1.25 + i / 7 + settings["b"] for i in range(12)}


def question() -> Callable[[str, Any], Any]:
    """Return the question as a function that worker processes can import."""
    from bench_experiments import trivial as importable

    return importable


def million(points: int, side: int = 1000) -> ExperimentSpec:
    """Return an experiment of this number of points."""
    return ExperimentSpec(command="trivial", vary={"a": f"1..{points // side}", "b": f"1..{side}"})


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    """Return the seconds of a call, and its CPU seconds in this process."""
    start, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - start, time.process_time() - cpu


def peak_mib() -> float:
    """Return the largest memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MIB


def overhead(folder: Path) -> None:
    """Print the cost of a point besides its question, without and with processes."""
    for processes in (1, 2):
        spec = million(20_000)
        place = folder / f"overhead-{processes}"
        wall, cpu = timed(lambda: trine.sweep(spec, place, processes=processes, question=question()))  # noqa: B023
        print(f"overhead of a point, {processes} processes: {wall / 20:.2f} ms, {cpu / 20:.2f} ms CPU of the driver")


def shards(folder: Path, points: int, count: int) -> None:
    """Print time, files and memory of an experiment in shards, of its status and of its compaction."""
    spec, place = million(points), folder / "shards"

    def run() -> None:
        for number in range(count):
            trine.sweep(spec, place, processes=1, shard=f"{number}/{count}", question=question())

    wall, cpu = timed(run)
    files = [path for path in place.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files) / MIB
    print(f"{points:,} points in {count:,} shards: {wall:.0f} s, {cpu:.0f} s CPU, {1e3 * cpu / points:.3f} ms each")
    print(f"  {len(files):,} files, {size:.0f} MiB, peak memory {peak_mib():.0f} MiB")
    again, _ = timed(lambda: trine.sweep(spec, place, processes=1, shard=f"0/{count}", question=question()))
    print(f"  a shard that has all its points: {again:.2f} s")
    for name, code in (("status", "print(e.progress())"), ("compaction", "print(e.compact().stat().st_size / 2**20)")):
        report(name, place, code)
    report("to_frame", place, "f = e.to_frame(); print(f.shape, int(f['point'].is_unique))")


def report(name: str, place: Path, code: str) -> None:
    """Print time and peak memory of one call in a fresh process."""
    lines = f"import resource, trine; e = trine.Experiment({str(place)!r}); {code}; "
    lines += "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"
    start = time.perf_counter()
    shown = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, check=True).stdout.split("\n")
    print(f"  {name}: {time.perf_counter() - start:.1f} s, peak memory {shown[1]} MiB; {shown[0]}")


def step(folder: Path, points: int) -> None:
    """Print the time of a sweep of a 64-GPU step on all CPUs."""
    spec = ExperimentSpec(command="train", settings=STEP_SETTINGS, vary=STEP_FIELDS)
    part = max(1, spec.size // points)
    wall, _ = timed(lambda: trine.sweep(spec, folder / "step", shard=f"0/{part}"))
    counts = trine.Experiment(folder / "step").progress()
    words = f"{counts['done']} points and {counts['failed']} refused"
    print(f"step on 64 GPUs: {words} in {wall:.1f} s on {os.cpu_count()} CPUs")


def main() -> None:
    """Run the parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--shards", type=int, default=1000)
    parser.add_argument("--step-points", type=int, default=1000)
    parser.add_argument("--only", choices=("overhead", "shards", "step"))
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="trine-bench-"))
    try:
        if options.only in (None, "overhead"):
            overhead(folder)
        if options.only in (None, "shards"):
            shards(folder, options.points, options.shards)
        if options.only in (None, "step"):
            step(folder, options.step_points)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
