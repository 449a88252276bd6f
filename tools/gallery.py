"""Draw the pictures of docs/guides/gallery.md, one for each kind of picture that trine draws.

    python tools/gallery.py [NAME ...]
    python tools/gallery.py --check

Each picture comes from the command that stands above it on the page. --check draws them in a temporary folder and
fails if a command fails, or if a picture has another shape than the stored one.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "guides" / "gallery.md"
FOLDER = ROOT / "docs" / "guides" / "gallery"
#: Colours of a stored picture: enough for lines and text, half of the size.
COLOURS = 256
WIDTH = 1100


class Drawing(NamedTuple):
    """A picture of the gallery. commands: run one after the other in one folder; the last one writes ``name``.png."""

    name: str
    title: str
    text: str
    commands: tuple[str, ...]


SWEEP = (
    "trine train model:llama-3-8b --gpus 32 --cluster dgx-h100 --nodes 4 --global-batch 64 --micro-batch 1 "
    "--sharding zero1 --vary tp=1,2,4,8 --vary pp=1,2,4 --experiment layouts"
)
DRAWINGS = (
    Drawing(
        "timeline", "Timeline of a step", "One row for each rank and stream; identical ranks share a row.",
        ("trine train model:gpt-2,layers=4 --dp 2 --pp 2 --schedule 1f1b --batch 8 --micro-batch 2 --cluster dgx-h100 "
         "--timeline timeline.png",),
    ),
    Drawing(
        "plan", "Layouts: time against memory", "Numbers are rows of the answer's table; the line is the GPU's memory.",
        ("trine plan llama-3.2-1b --gpus 8 --cluster dgx-h100 --global-batch 64 --plot plan.png",),
    ),
    Drawing(
        "sweep", "One result against one field",
        "Hollow points would not fit in memory; the best point that fits is named.",
        (SWEEP, "trine plot layouts x=tp y=step_time_s color=pp --output sweep.png"),
    ),
    Drawing(
        "serving", "Serving: throughput against latency", "Each point is a layout, a precision and a load.",
        ("trine plan llama-3-8b --serve --gpus 8 --cluster dgx-h100 --isl 1024 --osl 256 --plot serving.png",),
    ),
    Drawing(
        "collective", "A collective over sizes",
        "Time with its likely range, and bus bandwidth, by algorithm and protocol.",
        ("trine collective all_reduce --size 1K:1G --cluster dgx-h100 --nodes 2 --plot collective.png",),
    ),
    Drawing(
        "check", "A measured log beside its prediction",
        "Shaded sizes are suspicious; the dashed line is the likely cause.",
        ("trine check {examples}/gh200-8-tcp.log --cluster gh200-node --plot check.png",),
    ),
    Drawing(
        "hop", "Workers of decentralised training", "Who waits for whom, with one slow worker and one backup worker.",
        ('trine hop vgg13-h100-b128 --workers 8 --bandwidth "25 GB/s" --backup 1 --slow rank=3:2 --plot hop.png',),
    ),
    Drawing(
        "compare", "Two answers", "The terms of both times; the one that differs most is on top.",
        ("trine train llama-3-8b --gpus 8 --tp 2 --dp 4 --batch 4 --micro-batch 1 --cluster dgx-h100 --json a.json",
         "trine train llama-3-8b --gpus 8 --tp 8 --batch 16 --micro-batch 1 --cluster dgx-h100 --json b.json",
         "trine compare a.json b.json --plot compare.png"),
    ),
    Drawing(
        "size", "Machine types of a training run", "Days with failures and their likely range; the line is the limit.",
        ("trine size model:gpt-2-xl --tokens 30B --days 7 --cluster dgx-h100 --cluster dgx-a100 --plot size.png",),
    ),
    Drawing(
        "cluster", "A cluster", "Devices, and links by class and bandwidth.",
        ("trine cluster draw dgx-h100 --output cluster.png",),
    ),
    Drawing(
        "noc", "Inside a GPU", "Utilisation of the on-chip network during a collective kernel.",
        ("trine collective all_gather --size 64K --cluster astra3-generic --gpus 4 --fidelity loadstore "
         "--plot-noc noc.png",),
    ),
    Drawing(
        "waiting", "Wavefronts that wait for peers", "One GPU in detail, its peers replayed.",
        ("trine eidolon run gemv-allreduce --peers 7 --sync mwait --plot waiting.png",),
    ),
)  # fmt: skip


def draw(drawing: Drawing, folder: Path) -> Path:
    """Run the commands of a picture in a folder; return the picture. Raises SystemExit if a command fails."""
    for command in drawing.commands:
        words = shlex.split(command.replace("{examples}", str(ROOT / "examples" / "data")))
        call = [sys.executable, "-m", *words]
        done = subprocess.run(call, cwd=folder, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{command}\n{done.stderr}")
    return folder / f"{drawing.name}.png"


def store(picture: Path, target: Path) -> None:
    """Store a picture with few colours, at most WIDTH wide."""
    with Image.open(picture) as image:
        size = shape_of(picture)
        image.convert("RGB").resize(size, Image.Resampling.LANCZOS).quantize(COLOURS).save(target, optimize=True)


def shape_of(picture: Path) -> tuple[int, int]:
    """Return the size of a picture on the page in pixels."""
    with Image.open(picture) as image:
        width = min(WIDTH, image.width)
        return width, round(image.height * width / image.width)


def page() -> str:
    """Return the text of the page."""
    lines = ["# Gallery", "", "Each picture, and the commands that draw it. They need the extra `plot`.", ""]
    for drawing in DRAWINGS:
        lines += [f"## {drawing.title}", "", drawing.text, ""]
        lines += [f"    {command.replace('{examples}', 'examples/data')}" for command in drawing.commands]
        lines += ["", f"![{drawing.title}](gallery/{drawing.name}.png)", ""]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw, or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these pictures")
    parser.add_argument("--check", action="store_true", help="compare with the stored pictures and page")
    options = parser.parse_args(arguments)
    chosen = [drawing for drawing in DRAWINGS if not options.names or drawing.name in options.names]
    faults = []
    for drawing in chosen:
        with tempfile.TemporaryDirectory() as folder:
            picture = draw(drawing, Path(folder))
            target = FOLDER / picture.name
            if not options.check:
                FOLDER.mkdir(exist_ok=True)
                store(picture, target)
            elif not target.is_file() or shape_of(picture) != shape_of(target):
                faults.append(f"{target}: has another shape: run python tools/gallery.py {drawing.name}")
    if not options.check:
        PAGE.write_text(page(), encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != page():
        faults.append(f"{PAGE}: run python tools/gallery.py")
    print("\n".join(faults) or f"{len(chosen)} pictures")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
