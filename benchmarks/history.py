"""How speed changes from commit to commit: a line for each run in benchmarks/history.jsonl, and a page that plots them.

Run: python benchmarks/history.py [--repeat 3] [--only NAME ...] [--src CHECKOUT/src] [--page-only]
Each figure is a fresh process, the fastest of ``repeat``: CPU seconds (user and system), wall seconds, peak MiB. A line
names commit, machine and versions; figures of different machines are never joined.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent
HISTORY = HERE / "history.jsonl"
PAGE = HERE.parent / "docs" / "background" / "speed-history.md"

_LLAMA = (
    "train model:llama-3-8b --tp 8 --pp 4 --schedule 1f1b --batch 8 --micro-batch 1 --inputs none "
    "--cluster dgx-h100 --fabric switch"
)
_ONE = "--cluster dgx-h100"
_RING = "--topology ring --bandwidth 65GB/s --latency 1us"
#: name -> (what it is, arguments of ``python -m trine``); None: not the command line
FIGURES = {
    "import": ("import trine", None),
    "help": ("trine --help", "--help"),
    "train --help": ("trine train --help", "train --help"),
    "first": ("first train ever: no kernel is compiled yet", "train vgg13-h100-b128 --dp 8 --cluster dgx-h100"),
    "train 8": ("VGG-13 on 8 GPUs", "train vgg13-h100-b128 --dp 8 --cluster dgx-h100"),
    "train 64": ("ResNet-50 on 64 GPUs, a ring", f"train resnet50-h100-b128 --dp 64 {_RING}"),
    "train 16k": ("Llama 3 8B on 16 384 GPUs", f"{_LLAMA} --dp 512 --nodes 2048"),
    "train 131k": ("Llama 3 8B on 131 072 GPUs", f"{_LLAMA} --dp 4096 --nodes 16384"),
    "collective": ("all-reduce, 1 KiB to 1 GiB", "collective all_reduce --size 1K:1G --cluster dgx-h100 --nodes 4"),
    "load-store": ("all-reduce of 1 MiB, line by line", f"collective all_reduce --size 1M {_ONE} --fidelity loadstore"),
    "replay": ("GEMV and all-reduce beside 255 replayed peers", "eidolon run gemv-allreduce --peers 255 --sync mwait"),
}  # fmt: skip


def measure(arguments: Sequence[str], environment: dict[str, str]) -> dict[str, float]:
    """CPU seconds, wall seconds and peak MiB of one process. Raises SystemExit if it fails."""
    with tempfile.TemporaryFile() as errors:
        began = time.perf_counter()
        process = subprocess.Popen(arguments, env=environment, stdout=subprocess.DEVNULL, stderr=errors)
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)  # or Popen believes that it still runs
        if process.returncode:
            errors.seek(0)
            raise SystemExit(f"{' '.join(arguments)} failed: {errors.read().decode()}")
    return {
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 3),
        "wall_s": round(wall_s, 3),
        "peak_mib": round(usage.ru_maxrss / 1024, 1),
    }


def figure(name: str, repeat: int, src: Path) -> dict[str, float]:
    """Measure the fastest of ``repeat`` processes after a warm-up; for ``first``, one with an empty cache."""
    text = FIGURES[name][1]
    command = [sys.executable, *(["-c", "import trine"] if text is None else ["-m", "trine", *text.split()])]
    environment = {**os.environ, "PYTHONPATH": str(src)}
    if name == "first":
        with tempfile.TemporaryDirectory() as cache:
            return measure(command, {**environment, "XDG_CACHE_HOME": cache})
    measure(command, environment)
    return min((measure(command, environment) for _ in range(repeat)), key=lambda found: found["cpu_s"])


def machine() -> dict[str, str | int]:
    """Return the hardware and versions that the figures depend on."""
    names = [line.split(":")[1].strip() for line in _lines(Path("/proc/cpuinfo")) if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor() or platform.machine(),
        "cores": os.cpu_count() or 1,
        "python": platform.python_version(),
        "numba": version("numba"),
        "numpy": version("numpy"),
    }


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def commit(src: Path) -> str:
    """Short hash of the checkout, with ``+`` where files differ from it."""
    git = ["git", "-C", str(src)]
    head = subprocess.check_output([*git, "rev-parse", "--short", "HEAD"], text=True).strip()
    changed = subprocess.check_output([*git, "status", "--porcelain", "--untracked-files=no", "."], text=True)
    return head + ("+" if changed else "")


def read_history(path: Path = HISTORY) -> list[dict]:
    """All lines, oldest first."""
    return [json.loads(line) for line in _lines(path) if line.strip()]


def write_page(history: Sequence[dict]) -> None:
    """Write the page and its picture: each figure's CPU seconds over commits, one line per machine."""
    _plot(history)
    last = history[-1]
    on = last["machine"]
    table = [
        f"| {name} | {FIGURES[name][0]} | {row['cpu_s']} | {row['wall_s']} | {row['peak_mib']} |"
        for name, row in last["figures"].items()
    ]
    lines = [
        "# Speed from commit to commit",
        "",
        "`make bench` appends a line to `benchmarks/history.jsonl` and writes this page. Each figure is a fresh",
        "process, the fastest of three by CPU seconds (user and system), which a busy machine raises too.",
        "",
        f"![CPU seconds of each figure over commits]({PAGE.stem}.png)",
        "",
        f"Latest: commit {last['commit']}, {last['date']}, {_machine_name(last)}, "
        f"Python {on['python']}, numba {on['numba']}.",
        "",
        "| figure | what | CPU s | wall s | peak MiB |",
        "|---|---|--:|--:|--:|",
        *table,
    ]
    PAGE.write_text("\n".join(lines) + "\n")


def _plot(history: Sequence[dict]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = 3
    picture, axes = plt.subplots(-(-len(FIGURES) // columns), columns, figsize=(11, 9), squeeze=False)
    for axis in axes.flat[len(FIGURES) :]:
        axis.set_visible(False)
    for axis, name in zip(axes.flat, FIGURES, strict=False):
        for label in sorted({_machine_name(row) for row in history}):
            rows = [
                (place, row["figures"][name]["cpu_s"])
                for place, row in enumerate(history)
                if _machine_name(row) == label and name in row["figures"]
            ]
            axis.plot(*zip(*rows, strict=True), marker="o", markersize=3, label=label)
        axis.set_title(f"{name}: {FIGURES[name][0]}", fontsize=7)
        axis.set_ylim(bottom=0)
        axis.set_ylabel("CPU s", fontsize=7)
        axis.set_xticks(range(len(history)), [row["commit"] for row in history], rotation=90, fontsize=6)
        axis.tick_params(axis="y", labelsize=6)
    picture.legend(*axes.flat[0].get_legend_handles_labels(), loc="lower right", fontsize=7)
    picture.tight_layout()
    picture.savefig(PAGE.with_suffix(".png"), dpi=110)
    plt.close(picture)


def _machine_name(row: dict) -> str:
    return f"{row['machine']['cpu']}, {row['machine']['cores']} cores"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3, help="processes for each figure")
    parser.add_argument("--only", nargs="*", choices=FIGURES, default=list(FIGURES), help="these figures only")
    parser.add_argument("--src", type=Path, default=HERE.parent / "src", help="the src folder of another checkout")
    parser.add_argument("--page-only", action="store_true", help="write the page anew, measure nothing")
    given = parser.parse_args()
    if not given.page_only:
        figures = {}
        for name in given.only:
            row = figures[name] = figure(name, given.repeat, given.src.resolve())
            print(
                f"{name:14} {row['cpu_s']:8.3f} s CPU {row['wall_s']:8.3f} s wall {row['peak_mib']:8.1f} MiB",
                flush=True,
            )
        today = datetime.now(UTC).date().isoformat()
        line = {"commit": commit(given.src), "date": today, "machine": machine(), "figures": figures}
        with HISTORY.open("a") as file:
            file.write(json.dumps(line) + "\n")
    write_page(read_history())


if __name__ == "__main__":
    main()
