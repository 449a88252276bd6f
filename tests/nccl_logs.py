"""Logs in nccl-tests' format (widths and columns after its src/util.cu), with numbers from a test."""

from __future__ import annotations

from collections.abc import Callable, Sequence

FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
    "sendrecv": lambda n: 1.0,
}
_REDUCES = ("all_reduce", "reduce_scatter", "reduce")
_ROOTED = ("broadcast", "reduce")


def number(value: float, width: int) -> str:
    """Format a time or a bandwidth as nccl-tests does: two decimals while they fit."""
    whole = len(str(int(value)))
    decimals = 2 if whole < width - 2 else 1 if whole < width - 1 else 0
    return f"{value:{width}.{decimals}f}" if whole <= width else f"{value:{width}.1e}"


def row(size: int, times_us: Sequence[float | None], program: str, ranks: int, *, old: bool = False) -> str:
    """Return one row; a time of None prints as N/A. ``old``: without the root column, as before version 2.11."""
    line = f"{size:12d}  {size // 4:12d}  {'float':>8}"
    redop = "sum" if program in _REDUCES else "none"
    if not old:
        line += f"  {redop:>6}  {0 if program in _ROOTED else -1:6d}"
    elif program in _REDUCES:
        line += f"  {redop:>6}"
    for time in times_us:
        if time is None:
            line += "      N/A     N/A     N/A     N/A"
            continue
        algbw = size / time / 1e3
        busbw = algbw * FACTORS[program](ranks)
        line += f"  {number(time, 7)}  {number(algbw, 6)}  {number(busbw, 6)}  {'0e+00' if old else 0:>6}"
    return line


def table(
    rows: Sequence[tuple[int, float, float | None]], program: str = "all_reduce", ranks: int = 8, *, old: bool = False
) -> list[str]:
    """Return headers and rows of (size, out-of-place time, in-place time), in microseconds."""
    redop, root, last = (
        ("redop" if not old or program in _REDUCES else ""),
        "" if old else "root",
        "error" if old else "#wrong",
    )
    group = f"    time   algbw   busbw  {last}"
    return [
        "#",
        "#                                                              out-of-place                       in-place",
        f"#       size         count      type   {redop}    {root} {group} {group}",
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)",
        *[row(size, (first, second), program, ranks, old=old) for size, first, second in rows],
    ]


def devices(
    ranks: int, per_host: int = 8, gpu: str = "NVIDIA H100 80GB HBM3", *, one_process: bool = False
) -> list[str]:
    """Return the lines with each rank's host and device."""
    return [
        f"#  Rank {rank:2d} Group  0 Pid {100 if one_process else 100 + rank:6d} on      host{rank // per_host} "
        f"device {rank % per_host:2d} [0x{rank:02x}] {gpu}"
        for rank in range(ranks)
    ]


def log(
    rows: Sequence[tuple[int, float, float | None]],
    program: str = "all_reduce",
    ranks: int = 8,
    per_host: int = 8,
    gpu: str = "NVIDIA H100 80GB HBM3",
    *,
    old: bool = False,
    named: bool = True,
) -> str:
    """Return a whole log."""
    lines = [
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 "
        "validation: 1 graph: 0",
        "#", "# Using devices", *devices(ranks, per_host, gpu), *table(rows, program, ranks, old=old),
        "# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 41.8846", "#",
    ]  # fmt: skip
    if named:
        lines.insert(0, f"# Collective test starting: {program}_perf")
        lines.append(f"# Collective test concluded: {program}_perf")
    return "\n".join(lines) + "\n"
