"""Compare the remaining times that a long replay announces with those that it then takes.

    python benchmarks/remaining_time.py [COMMAND ...]      # default: trine validate memory --again

The target is 30 % (issue 26), on an idle machine: lines in the last fifth of the run and before the first fifth are
left out, because seconds are rounded there. Exits with 1 if the worst line is further off.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

TARGET = 0.30
LEFT = re.compile(r"about (\d+) s left")


def main() -> int:
    command = sys.argv[1:] or ["validate", "memory", "--again"]
    trine = Path(sys.executable).with_name("trine")
    began = time.monotonic()
    run = subprocess.Popen([trine, *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert run.stderr is not None
    said = [(time.monotonic() - began, int(found[1])) for line in run.stderr if (found := LEFT.search(line))]
    run.wait()
    total = time.monotonic() - began
    judged = [(at, left, left / (total - at) - 1) for at, left in said if 0.2 * total <= at <= 0.8 * total]
    for at, left, error in judged:
        print(f"{at:6.0f} s: {left:5d} s announced, {total - at:5.0f} s taken, {error:+.0%}")
    worst = max((abs(error) for _, _, error in judged), default=0.0)
    print(f"trine {' '.join(command)}: {total:.0f} s, {len(judged)} lines, worst {worst:.0%} (target {TARGET:.0%})")
    return int(worst > TARGET or run.returncode != 0 or not judged)


if __name__ == "__main__":
    sys.exit(main())
