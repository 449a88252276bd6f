"""How fast is trine as a whole process, cold and warm, against the targets and TrioSim's published code?

Run: python benchmarks/bench_train.py [--repeat 3]
Each row is a fresh process: ``python -m trine train ... --json FILE``; kernels are cached except in the first run.
Times are CPU seconds (user and system), which depend less on other load on the machine than wall time.
TrioSim's times were measured on the machine of ../shared/research (2 cores); see docs/background/speed.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

TARGET_S = {8: 1.5, 32: 2.0, 84: 5.0}
TRIOSIM_S = {8: 0.8, 16: 3.9, 32: 38.0, 64: 270.0, 84: 582.0}


def run(arguments: list[str], cache: str | None = None) -> tuple[float, float]:
    """Run one process; return its CPU seconds and peak MiB."""
    environment = dict(os.environ, **({"XDG_CACHE_HOME": cache} if cache else {}))
    process = subprocess.Popen(
        [sys.executable, *arguments], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status):
        raise SystemExit(f"{' '.join(arguments)} failed: {process.stderr.read().decode() if process.stderr else ''}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def best(arguments: list[str], repeat: int) -> tuple[float, float]:
    """Return CPU seconds and peak MiB of the fastest of ``repeat`` runs."""
    return min(run(arguments) for _ in range(repeat))


def train(gpus: int, answer: Path) -> list[str]:
    """Return the arguments of one training job on a ring."""
    options = [
        "--gpus",
        str(gpus),
        "--parallel",
        "ddp",
        "--topology",
        "ring",
        "--bandwidth",
        "65 GB/s",
        "--latency",
        "1 us",
    ]
    return ["-m", "trine", "train", "resnet50-h100-b128", *options, "--json", str(answer)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3)
    repeat = parser.parse_args().repeat
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        python, _ = best(["-c", "pass"], repeat)
        imported, _ = best(["-c", "import trine"], repeat)
        helped, _ = best(["-m", "trine", "--help"], repeat)
        cold, _ = run(train(8, answer), cache=folder)
        print(f"{'what':34} {'CPU':>8} {'target':>8} {'peak MiB':>9} {'events':>9} {'TrioSim':>8} {'ratio':>7}")
        print(f"{'import trine (less python itself)':34} {imported - python:6.3f} s {'0.15 s':>8}")
        print(f"{'trine --help':34} {helped:6.3f} s {'0.4 s':>8}")
        print(f"{'first run ever, 8 GPUs':34} {cold:6.2f} s {'25 s':>8}")
        for gpus in (1, 8, 16, 32, 64, 84, 256):
            arguments = (
                train(gpus, answer)
                if gpus > 1
                else ["-m", "trine", "train", "resnet50-h100-b128", "--json", str(answer)]
            )
            cpu, peak = best(arguments, repeat)
            events = json.loads(answer.read_text())["simulator"]["events"]
            target = f"{TARGET_S[gpus]:.1f} s" if gpus in TARGET_S else ""
            other = TRIOSIM_S.get(gpus)
            shown = f"{other:6.1f} s {other / cpu:6.1f}x" if other else ""
            print(f"{f'resnet50 DDP on {gpus} GPUs':34} {cpu:6.2f} s {target:>8} {peak:9.0f} {events:9} {shown}")


if __name__ == "__main__":
    main()
