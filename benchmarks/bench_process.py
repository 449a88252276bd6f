"""How long do whole processes take, before and after a change? Compares the CPU seconds of two checkouts.

    python benchmarks/bench_process.py [--before CHECKOUT/src] [--repeat 5] [--only WORD]

Each row is a command line in a fresh process, with kernels and byte code cached (``first run ever``: an empty kernel
cache). Times are user and system seconds, the minimum over repeats, which depends little on other load. With
``--before``, each repeat runs both checkouts in sequence, so their ratio reflects the same load. The targets come from
docs/background/speed.md.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent.parent / "src"
RING = "--topology ring --bandwidth 65GB/s --latency 1us"
DEMO = "train vgg13-h100-b128 --gpus 8 --parallel ddp --cluster dgx-h100"
LLAMA = (
    "train model:llama-3-405b,sequence=8192,batch=1 --tp 8 --pp 16 --schedule interleaved --virtual-stages 2 "
    "--balance layers --batch 16 --micro-batch 1 --tp-style megatron --sequence-parallel --sharding zero1 --inputs none"
)
MOE = "train model:mixtral-8x7b,sequence=4096,batch=1 --ep 8 --sharding fsdp --inputs none"


class Row(NamedTuple):
    """A command line and its target in CPU seconds.

    is_first: start without compiled kernels; is_new: the older checkout needs minutes and gigabytes, so skip it."""

    words: str
    most_s: float
    is_first: bool = False
    is_new: bool = False


ROWS = {
    "--help": Row("--help", 0.05),
    "collective, 8 GPUs": Row("collective all_reduce --size 1G --cluster dgx-h100", 0.33),
    "vgg13, 8 GPUs": Row(DEMO, 0.45),
    "vgg13, 8 GPUs, first run ever": Row(DEMO, 1.0, is_first=True),
    "resnet50, ring of 64": Row(f"train resnet50-h100-b128 --dp 64 {RING}", 1.0),
    "ring all-reduce, 256 ranks": Row(f"collective all_reduce --size 1G --gpus 256 {RING} --network fair", 0.5),
    "ring all-reduce, 1024 ranks": Row(f"collective all_reduce --size 1G --gpus 1024 {RING} --network fair", 0.6),
    "ring all-reduce, 1024, all messages": Row(
        f"collective all_reduce --size 1G --gpus 1024 {RING} --network fair --no-fold", 1.2
    ),
    "ring all-reduce, 4096 ranks": Row(
        f"collective all_reduce --size 1G --gpus 4096 {RING} --network fair", 0.7, is_new=True
    ),
    "vgg13, ring of 32 768": Row(f"train vgg13-h100-b128 --dp 32768 {RING}", 2.7),
    "vgg13, 131 072 GPUs on rails": Row("train vgg13-h100-b128 --dp 131072 --cluster dgx-h100 --nodes 16384", 5.0),
    "405B, 16 384 GPUs on rails": Row(f"{LLAMA} --dp 128 --cluster dgx-h100 --nodes 2048", 8.0),
    "mixtral, 16 384 GPUs": Row(f"{MOE} --dp 16384 --cluster dgx-h100 --nodes 2048", 8.0),
}


def cpu_s(words: Sequence[str], src: Path, cache: str | None) -> float:
    """Run one process; return its user and system seconds. Raises SystemExit if it fails."""
    environment = {**os.environ, "PYTHONPATH": str(src)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    if cache is not None:
        environment["XDG_CACHE_HOME"] = cache
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-m", "trine", *words], env=environment, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed: {done.stderr[-500:]}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(row: Row, src: Path) -> float:
    """Run a row once; return its CPU seconds."""
    if not row.is_first:
        return cpu_s(row.words.split(), src, None)
    with tempfile.TemporaryDirectory() as cache:
        return cpu_s(row.words.split(), src, cache)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--before", type=Path, help="the src folder of an older checkout")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--only", default="", help="rows that contain this word")
    given = parser.parse_args()
    print(f"{'CPU s, least of ' + str(given.repeat):38} {'now':>7} {'target':>7} {'before':>7} {'ratio':>6}")
    for name, row in ROWS.items():
        if given.only not in name:
            continue
        now, before = [], []
        for number in range(given.repeat + 1):  # the first is a warm-up: byte code, kernels, files
            beside = given.before is not None and not row.is_new
            times = measure(row, HERE), measure(row, given.before) if beside else None
            if number or row.is_first:
                now.append(times[0])
                before += [times[1]] if times[1] is not None else []
        beside = f"{min(before):7.2f} {min(now) / min(before):6.2f}" if before else ""
        print(f"{name:38} {min(now):7.2f} {row.most_s:7.2f} {beside}", flush=True)


if __name__ == "__main__":
    main()
