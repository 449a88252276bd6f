"""Count the lines of trine that an answer loads.

    python tools/loaded.py

Each command runs in a process of its own; the lines are those of all modules of trine that it has imported at its end.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

#: What is asked -> its command.
QUESTIONS = {
    "train of a trace": "train vgg13-h100-b128 --gpus 8 --parallel ddp --cluster dgx-h100 --brief",
    "train of a model": "train model:llama-3-8b --dp 8 --batch 1 --cluster dgx-h100 --brief",
    "collective": "collective all_reduce --size 1M --cluster dgx-h100 --brief",
    "load-store collective": "collective all_reduce --size 64K --cluster dgx-h100 --fidelity loadstore --brief",
    "infer": "infer llama-3-8b --cluster dgx-h100 --isl 1024 --osl 128 --concurrency 8 --brief",
}
_CODE = """
import pathlib, sys
from click.testing import CliRunner
from trine.cli.main import app
answer = CliRunner().invoke(app, sys.argv[1:])
if answer.exit_code:
    sys.exit(answer.output)
files = {module.__file__ for name, module in list(sys.modules.items()) if name.split(".")[0] == "trine"}
paths = [pathlib.Path(file) for file in files if file and file.endswith(".py")]
print(len(paths), sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths))
"""


@dataclass(frozen=True)
class Loaded:
    """Modules of trine that an answer loads, and their lines."""

    files: int
    lines: int


def loaded_by(command: str) -> Loaded:
    """Run a command of trine in a new process and return what it has loaded."""
    words = [sys.executable, "-c", _CODE, *command.split()]
    run = subprocess.run(words, capture_output=True, text=True, check=True)
    files, lines = run.stdout.splitlines()[-1].split()
    return Loaded(int(files), int(lines))


def main() -> None:
    """Print the files and lines that each question loads."""
    for question, command in QUESTIONS.items():
        found = loaded_by(command)
        print(f"{question}: {found.lines:,} lines in {found.files} files")


if __name__ == "__main__":
    main()
