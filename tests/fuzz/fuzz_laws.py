"""Searches for degraded machines that are faster: ``make fuzz`` runs it after :mod:`fuzz_search`.

Less bandwidth, a slower or missing link and more latency make nothing faster (:mod:`degraded`).
"""

from __future__ import annotations

import argparse
import random
import sys
import time

from degraded import MACHINES, broken_by_messages, broken_laws


def search(seed: int, seconds: float) -> list[str]:
    """Try random machines and faults for ``seconds``; print each broken law and return all."""
    draw, ends, tried = random.Random(seed), time.monotonic() + seconds, 0
    found: list[str] = []
    while time.monotonic() < ends:
        number, link, other = draw.randrange(len(MACHINES)), draw.randrange(1 << 16), draw.randrange(1 << 16)
        severity, tried = draw.randrange(10), tried + 1
        broken = broken_laws(number, link, other, severity) + broken_by_messages(number, link, severity)
        found += broken
        for line in broken:
            print(line, flush=True)
    print(f"{tried} machines from seed {seed}, {len(found)} broken laws")
    return found


def main() -> None:
    """Search by hand."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=600)
    options.add_argument("--seed", type=int, default=int(time.time()))
    asked = options.parse_args()
    sys.exit(bool(search(asked.seed, asked.seconds)))


if __name__ == "__main__":
    main()
