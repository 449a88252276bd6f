"""How fast is the load-store level? Events per second, memory, folded against unfolded, start-up cold and warm.

Run: python benchmarks/bench_gpu.py [--only WORD] [--first-compile]
Each row is a fresh process with cached kernels, on the paper's GPU (astra3-generic). "run" is the CPU time of the
thread in the compiled loop and its tables, which depends least on other load. Events per second and "ns/line" (per
line put to another GPU) refer to it. "process" includes Python's start and imports. An event is one hop of one
request, or an action of a wavefront, CU or dispatcher. Rows "case 5" are the paper's largest cost case as published,
every line of 128 GPUs x 448 endpoints, and smaller groups with the same bytes per pair.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

MIB = 1 << 20
TRINE = str(Path(sys.executable).with_name("trine"))
COMMAND = "collective all_gather --cluster astra3-generic --gpus 8 --size 1M --fidelity loadstore"
COMMAND_MOST_S = 1.5
MIN_EVENTS_PER_S = 10e6
CASE_5_GPUS, CASE_5_WAVEFRONTS, CASE_5_MOST_GIB = 128, 32, 24
LINE_BYTES = 128


class Case(NamedTuple):
    """An all-gather: GPUs, output size, wavefronts per workgroup, and the target for the process's time.

    most_s: None means no target.
    """

    gpus: int
    size_bytes: int
    algorithm: str = "put"
    fold: str = "auto"
    most_s: float | None = None
    wavefronts: int = 8

    @property
    def lines(self) -> int:
        """Number of lines that all GPUs put to all others."""
        return (self.gpus - 1) * self.size_bytes // LINE_BYTES


CASES = {
    "16 GPUs, 16 MiB, unfolded": Case(16, 16 * MIB, fold="off", most_s=10),
    "16 GPUs, 16 MiB, folded": Case(16, 16 * MIB),
    "16 GPUs, 16 MiB, get, unfolded": Case(16, 16 * MIB, "get", "off"),
    "128 GPUs, 256 MiB, folded": Case(128, 256 * MIB, most_s=20),
    "128 GPUs, 16 MiB, folded": Case(128, 16 * MIB),
    "8 GPUs, 1 MiB, unfolded": Case(8, MIB, fold="off"),
    "case 5, 128 GPUs, 16 MiB, folded": Case(CASE_5_GPUS, 16 * MIB, wavefronts=CASE_5_WAVEFRONTS),
} | {
    f"case 5, {gpus} GPUs, {gpus // 8} MiB, unfolded": Case(
        gpus, gpus // 8 * MIB, fold="off", most_s=120 if gpus == CASE_5_GPUS else None, wavefronts=CASE_5_WAVEFRONTS
    )
    for gpus in (8, 16, 32, 64, CASE_5_GPUS)
}


class Measured(NamedTuple):
    """Measurements of one process: wall, CPU and run seconds, peak GiB, events, GPUs simulated, simulated time."""

    wall_s: float
    cpu_s: float
    run_s: float
    peak_gib: float
    events: int
    simulated: int
    end_ps: int


def run_here(name: str) -> None:
    """Run one case and print its numbers as JSON; a tiny run first loads the cached kernels."""
    from trine.cluster import load_cluster
    from trine.gpu.kernels.build import build_kernel
    from trine.gpu.model.files import gpu_model_of
    from trine.gpu.run import GpuRunOptions, run_gpus

    case = CASES[name]
    cluster = load_cluster("astra3-generic", gpus=case.gpus)
    group = cluster.gpus
    model = gpu_model_of(cluster, group)
    run_gpus(build_kernel("all_gather", case.gpus, 1, workgroups=1), cluster, group, model)
    program = build_kernel(
        "all_gather", case.gpus, case.size_bytes, algorithm=case.algorithm, wavefronts=case.wavefronts
    )
    began = time.thread_time()
    found = run_gpus(program, cluster, group, model, options=GpuRunOptions(fold=case.fold))
    run_s = time.thread_time() - began
    row = {"run_s": run_s, "events": found.gpu.num_events, "simulated": found.fold.classes, "end_ps": found.end_ps}
    print(json.dumps(row))


def timed(command: list[str], environment: Mapping[str, str] | None = None) -> tuple[float, float, float, str]:
    """Run a process; return wall and CPU seconds, peak GiB and output. ``environment`` extends the current one."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | dict(environment or {}))
    assert process.stdout is not None
    text = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - began
    if os.waitstatus_to_exitcode(status):
        raise SystemExit(f"{' '.join(command)} failed")
    return wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 2**20, text


def measure(name: str) -> Measured:
    """Run one case in a separate process."""
    wall_s, cpu_s, peak_gib, text = timed([sys.executable, __file__, "--run", name])
    return Measured(wall_s=wall_s, cpu_s=cpu_s, peak_gib=peak_gib, **json.loads(text.splitlines()[-1]))


def show(name: str, found: Measured) -> None:
    """Print one row of the table."""
    case = CASES[name]
    target = "" if case.most_s is None else f"< {case.most_s:g} s"
    per_line = f"{found.run_s * 1e9 / case.lines:.0f}" if case.fold == "off" else ""
    print(
        f"{name:34} {found.wall_s:7.2f} {found.cpu_s:6.2f} {target:>7} {found.run_s:6.2f} {found.events / 1e6:9.2f} "
        f"{found.events / found.run_s / 1e6:7.1f} {per_line:>7} {found.simulated:5} {found.peak_gib:5.2f} "
        f"{found.end_ps / 1e6:10.2f}",
        flush=True,
    )


def compare(measured: dict[str, Measured]) -> None:
    """Print the event rate, the speed-up from folding, and the cost of case 5, for the rows that ran."""
    whole, folded = measured.get("16 GPUs, 16 MiB, unfolded"), measured.get("16 GPUs, 16 MiB, folded")
    if whole is not None:
        rate = whole.events / whole.run_s
        print(f"full model, unfolded: {rate / 1e6:.1f} million events a second (>= {MIN_EVENTS_PER_S / 1e6:g})")
    if whole is not None and folded is not None:
        same = "the same" if whole.end_ps == folded.end_ps else "ANOTHER"
        ratio = whole.run_s / folded.run_s
        print(f"16 GPUs folded: {ratio:.1f} times faster than unfolded, and {same} simulated time")
    published, folded = (measured.get(f"case 5, 128 GPUs, 16 MiB, {how}") for how in ("unfolded", "folded"))
    if published is not None:
        print(f"case 5, every line: {published.peak_gib:.2f} GiB (< {CASE_5_MOST_GIB}), CPU {published.cpu_s:.1f} s")
    if published is not None and folded is not None:
        same = "the same" if published.end_ps == folded.end_ps else "ANOTHER"
        print(f"and folded: {same} simulated time")


def command(cold: bool) -> None:
    """Time the process of a small collective with warm caches; ``cold``: also with an empty kernel cache."""
    words = [TRINE, *COMMAND.split()]
    with tempfile.TemporaryDirectory() as bytecode:
        written = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": bytecode}
        timed(words, written)
        wall_s, cpu_s, peak_gib, _ = min(timed(words, written) for _ in range(3))
    print(f"trine {COMMAND}: {wall_s:.2f} s, CPU {cpu_s:.2f} s, {peak_gib:.2f} GiB (< {COMMAND_MOST_S:g} s)")
    if cold:
        with tempfile.TemporaryDirectory() as cache:
            wall_s, cpu_s, _, _ = timed(words, {"NUMBA_CACHE_DIR": cache})
        print(f"the same with nothing compiled yet: {wall_s:.1f} s, CPU {cpu_s:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="", help="rows that contain this word")
    parser.add_argument("--first-compile", action="store_true", help="also how long the first compilation takes")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run is not None:
        run_here(options.run)
        return
    print(
        f"{'':34} {'process':>7} {'CPU':>6} {'target':>7} {'run':>6} {'M events':>9} {'M/s':>7} {'ns/line':>7} "
        f"{'GPUs':>5} {'GiB':>5} {'simulated us':>10}"
    )
    measured = {}
    for name in (name for name in CASES if options.only in name):
        measured[name] = measure(name)
        show(name, measured[name])
    compare(measured)
    if not options.only:
        command(options.first_compile)


if __name__ == "__main__":
    main()
