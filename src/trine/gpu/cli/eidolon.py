"""``trine eidolon run`` and ``sweep``: one GPU in detail, its peers replayed."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Annotated, Any

from trine.cli.options import (
    MACHINE,
    OUTPUT,
    WAITS,
    WRITES,
    Brief,
    Details,
    Json,
    Option,
    Perfetto,
    argument,
    fused_kernels,
)
from trine.cli.output import TIMELINE, all_written, drawn, end, say, show_answer, write_json, written
from trine.cli.parameters import Fields, Given
from trine.cli.progress import ProgressLine, watched
from trine.errors import InputError, nearest
from trine.gpu.replay.options import EidolonOptions

if TYPE_CHECKING:
    from trine.gpu.replay.result import EidolonResult
    from trine.gpu.replay.sweep_runs import Journal

Kernel = Annotated[
    str,
    argument(
        "gemv-allreduce, gemm-allreduce, gemm-reducescatter, gemm-alltoall, embedding-alltoall, or a program.",
        "KERNEL", fused_kernels,
    ),
]  # fmt: skip
#: Options with several values in a sweep, and options that a sweep does not offer.
_OF_RUNS = (
    "rows", "cols", "peers", "issue_seed", "wakeup", "sync", "target", "distribution", "seed", "together", "writes",
    "arrivals", "symmetric", "engine",
)  # fmt: skip
_Plot = Annotated[str | None, Option("Draw waiting over time (PNG, SVG, PDF); needs trine[plot].", "FILE", OUTPUT)]


def run(
    kernel: Kernel,
    given: Given[EidolonOptions],
    brief: Brief = False,
    details: Details = False,
    json: Json = None,
    perfetto: Perfetto = None,
    plot: _Plot = None,
) -> None:
    """Simulate the kernel of one GPU in detail, with the writes of its peers replayed.

    Example: trine eidolon run gemv-allreduce --rows 256 --wakeup "10 us" --sync mwait
    """
    from trine.gpu.replay.run import run_eidolon

    options = made(given, kernel=kernel)
    with watched("requests"):
        result = run_eidolon(options)
    _report(result, brief, details, json, perfetto, plot)


def made(given: Given[EidolonOptions], **more: Any) -> EidolonOptions:
    """Return the options of a run. Raise InputError for an invalid option, or one without effect."""
    from trine.gpu.kernels.options import WAITS

    if given["flags"] not in (None, *WAITS):
        raise InputError(f"unknown --flags {given['flags']!r:.80}{nearest(given['flags'][:80], WAITS)}")
    return given.make(**more)


def _report(
    result: EidolonResult, brief: bool, details: bool, json: str | None, perfetto: str | None, plot: str | None
) -> None:
    show_answer(result, json, brief, details)
    write_json(result, json, "eidolon run")
    written(perfetto, result.to_perfetto, TIMELINE)
    drawn(plot, result)
    end(result.finished)


def sweep(
    given: Annotated[Given[EidolonOptions], Fields(without=_OF_RUNS)],
    kernel: Kernel = "gemv-allreduce",
    rows: Annotated[
        str | None, Option("Sweep the rows of the matrix: 1024,2048 or 1024:8192:1024.", panel="Kernel")
    ] = None,
    cols: Annotated[str | None, Option("Sweep its columns.", panel="Kernel")] = None,
    peers: Annotated[str | None, Option("Replayed GPUs: 3,15,255.", panel=WRITES)] = None,
    wakeup: Annotated[str | None, Option('Sweep arrival times: "0,5 us,10 us" or 0:40us:5us.', panel=WRITES)] = None,
    sync: Annotated[str | None, Option("Sweep ways to wait [spin,mwait].", "spin,mwait,sleep", WAITS)] = None,
    issue_seed: Annotated[
        str | None, Option("Sweep seeds of the order of ready wavefronts: 0:7:1.", panel=MACHINE)
    ] = None,
    jobs: Annotated[int | None, Option("Run N at a time [one per core].")] = None,
    brief: Brief = False,
    details: Details = False,
    json: Json = None,
    csv: Annotated[str | None, Option("Write one line per run.", "FILE", OUTPUT)] = None,
    plot: Annotated[str | None, Option("Draw the sweep (PNG, SVG, PDF); needs trine[plot].", "FILE", OUTPUT)] = None,
) -> None:
    """Simulate all combinations of values: growth of flag reads, and the point from which mwait pays.

    Example: trine eidolon sweep --wakeup 0:40us:5us --peers 3,15
    """
    from trine.gpu.replay.sweep import SweepGrid
    from trine.gpu.replay.sweep import sweep as run_sweep

    grid = SweepGrid(
        rows=whole_numbers("--rows", rows), cols=whole_numbers("--cols", cols), peers=whole_numbers("--peers", peers),
        issue_seed=whole_numbers("--issue-seed", issue_seed, 0), wakeup=times("--wakeup", wakeup),
        sync=tuple(word.strip() for word in (sync or "spin,mwait").split(",")),
    )  # fmt: skip
    if plot is not None and grid.num_runs == len(grid.sync):
        raise InputError("--plot draws curves: give several of --wakeup, --rows, --cols, --peers or --issue-seed")
    base, journal = made(given, kernel=kernel), _journal(csv, json)
    with ProgressLine(None) as progress:
        found = run_sweep(base, grid, jobs=jobs, progress=progress, on_compile=progress.compiling, journal=journal)
    show_answer(found, json, brief, details)
    if "flag_spacing" in given:
        say(f"note: --flag-spacing {given['flag_spacing']}: flags are not cached, so it only decides which memory "
            "channels serve them; trine eidolon run prints its effect on one run")  # fmt: skip
    write_json(found, json, "eidolon sweep")
    if found.rows:
        written(csv, found.to_csv)
    if found.finished:
        drawn(plot, found)
    if journal is not None:
        _end_journal(journal, found.finished)
    end(found.finished)


def _journal(csv: str | None, json: str | None) -> Journal | None:
    """Return a journal beside the first output file: after an interruption, the same command resumes from it."""
    from trine.gpu.replay.sweep_runs import ENDING, Journal

    target = next((each for each in (csv, json) if each not in (None, "-")), None)
    if target is None or (os.path.exists(target) and not os.path.isfile(target)):  # a device or a pipe
        return None
    return Journal(f"{os.path.realpath(target)}{ENDING}")


def _end_journal(journal: Journal, finished: bool) -> None:
    for note in journal.notes:
        say(f"note: {note}")
    if journal.num_taken:
        say(f"note: {journal.num_taken} runs come from {journal.path}, written by an earlier sweep")
    if finished and all_written():
        journal.remove()
    elif journal.path.exists():
        say(f"note: finished runs are in {journal.path}; the same command resumes from there")


def whole_numbers(option: str, text: str | None, least: int = 1) -> tuple[int, ...]:
    """Parse ``3,15,255``, or ``1024:8192:1024`` (first:last:step); ranges must not begin below ``least``."""
    if text is None:
        return ()
    if ":" in text:
        first, last, step = _three(option, text)
        if _whole(option, first) < least:
            raise InputError(f"{option} counts from {least}")
        return _range(option, *(_whole(option, part) for part in (first, last, step)))
    return tuple(_whole(option, part) for part in text.split(","))


def times(option: str, text: str | None) -> tuple[int, ...]:
    """Parse ``"0,5 us,10 us"``, or ``0:40us:5us``, to ps."""
    from trine.common.units import parse_time

    if text is None:
        return ()
    if ":" in text:
        return _range(option, *(parse_time(part, option) for part in _three(option, text)))
    return tuple(parse_time(part, option) for part in text.split(","))


def _three(option: str, text: str) -> list[str]:
    parts = text.split(":")
    if len(parts) != 3:
        raise InputError(f"{option} is a list with commas, or FIRST:LAST:STEP, got {text[:80]!r}")
    return parts


def _range(option: str, first: int, last: int, step: int) -> tuple[int, ...]:
    if step <= 0 or last < first or (last - first) // step > 10_000:
        raise InputError(f"{option}: FIRST:LAST:STEP goes upwards, in at most 10000 steps")
    return tuple(range(first, last + 1, step))


def _whole(option: str, text: str) -> int:
    if not re.fullmatch(r"\s*\d{1,9}\s*", text):
        raise InputError(f"{option} is whole numbers with commas, got {text[:80]!r}")
    return int(text)
