"""Compare the published communication-kernel times bundled with trine to the load-store level.

Run: python benchmarks/gpu_fine_grained.py [--largest 16M] [--series NAME]
The judged all-reduces are also compared to the best of one and two steps, with MSCCL++'s kernels and with trine's
own. For MI300X, prints predictions to set against a published time that lacks its size.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from trine.collectives.sizes import parse_size
from trine.gpu.cases.published import PROGRAMS
from validation.gpu.measured import (
    ONE_AND_TWO_SHOT,
    OWN,
    STANDS,
    FineCompared,
    KernelValidation,
    chosen,
    compare,
    median_error,
    predicted_ps,
)


def table(compared: Sequence[FineCompared]) -> str:
    """Return a line per point, by series; then medians, and the worst point."""
    return KernelValidation(compared=tuple(compared)).summary()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--largest", default="16M", help="leave out larger sizes [16M]")
    parser.add_argument("--series", action="append", help="only this; may be repeated")
    options = parser.parse_args()
    largest = parse_size(options.largest, "--largest")
    print(table(compare(chosen(options.series, largest))))
    if options.series:
        return
    names = [name for name, stand in STANDS.items() if stand.judged and {*stand.programs} <= {*PROGRAMS}]
    judged = compare(chosen(names, largest), ONE_AND_TWO_SHOT)
    print("\nthe judged all-reduces against the best of one and two steps, whatever was measured:")
    print(table(judged).splitlines()[0])
    print("\n".join(line for line in table(judged).splitlines() if line.startswith("8x H100")))
    print(f"median of |error| {median_error(judged):.1%}")
    own = compare(chosen(names, largest), OWN)
    print("\nthe same against the better of trine's own programs, which have no library's bookkeeping:")
    print("\n".join(line for line in table(own).splitlines() if line.startswith("8x H100")))
    print(f"median of |error| {median_error(own):.1%}")
    print("\n8 x MI300X, all-reduce; muiLLM's kernel is said to take 5 us, without its size:")
    for size in (1 << 10, 16 << 10, 64 << 10):
        times = [
            predicted_ps(name, "mi300x-node", 8, size)[-1] / 1e6 for name in ("one-stage reads", "one-shot packets")
        ]
        print(f"{size >> 10:>6}K  one-stage reads {times[0]:6.2f} us  one-shot packets {times[1]:6.2f} us")


if __name__ == "__main__":
    main()
