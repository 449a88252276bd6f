"""``trine eidolon run`` and ``sweep``: one GPU in detail, its peers replayed."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from trine.cli.completions import fused_kernels
from trine.cli.options import MACHINE, OUTPUT, WAITS, WRITES, Brief, Details, Json, Option, Perfetto, argument
from trine.cli.output import TIMELINE, all_written, drawn, end, say, show, show_answer, write_json, written
from trine.cli.parameters import Fields, Given
from trine.cli.progress import ProgressLine, watched
from trine.errors import InputError, nearest
from trine.gpu.replay.options import EidolonOptions

if TYPE_CHECKING:
    from trine.gpu.peers import Arrivals
    from trine.gpu.replay.result import EidolonResult
    from trine.gpu.replay.sweep import Sweep
    from trine.gpu.replay.writes import WriteTable

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
#: Ending of the folder with a sweep's runs, after the name of the output file.
ENDING = ".runs"
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
    from trine.gpu.replay.sweep import num_runs
    from trine.gpu.replay.sweep import sweep as run_sweep

    vary = {
        "rows": whole_numbers("--rows", rows), "cols": whole_numbers("--cols", cols),
        "peers": whole_numbers("--peers", peers), "issue_seed": whole_numbers("--issue-seed", issue_seed, 0),
        "wakeup": times("--wakeup", wakeup), "sync": tuple(word.strip() for word in (sync or "spin,mwait").split(",")),
    }  # fmt: skip
    if plot is not None and num_runs(vary) == len(vary["sync"]):
        raise InputError("--plot draws curves: give several of --wakeup, --rows, --cols, --peers or --issue-seed")
    base = made(given, kernel=kernel)
    with ProgressLine(None) as progress:
        answer = run_sweep(
            base, vary, jobs=jobs, progress=progress, on_compile=progress.compiling, directory=_folder_beside(csv, json)
        )
    show_answer(answer, json, brief, details)
    if "flag_spacing" in given:
        say(f"note: --flag-spacing {given['flag_spacing']}: flags are not cached, so it only decides which memory "
            "channels serve them; trine eidolon run prints its effect on one run")  # fmt: skip
    write_json(answer, json, "eidolon sweep")
    if answer.rows:
        written(csv, answer.to_csv)
    if answer.finished:
        drawn(plot, answer)
    _end_folder(answer)
    end(answer.finished)


def _folder_beside(csv: str | None, json: str | None) -> str | None:
    """Return a folder beside the first output file: after an interruption, the same command resumes from it."""
    target = next((each for each in (csv, json) if each not in (None, "-")), None)
    if target is None or (os.path.exists(target) and not os.path.isfile(target)):  # a device or a pipe
        return None
    return f"{os.path.realpath(target)}{ENDING}"


def _end_folder(answer: Sweep) -> None:
    """Remove the runs once all output is written, or name their folder."""
    folder = answer.folder
    if folder is None:
        return
    if answer.num_reused:
        say(f"note: {answer.num_reused} runs come from {folder.parent}, written by an earlier sweep")
    if not (answer.finished and all_written()):
        say(f"note: finished runs are in {folder.parent}; the same command resumes from there")
        return
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # another sweep's runs are in it
        folder.parent.rmdir()


def whole_numbers(option: str, text: str | None, minimum: int = 1) -> tuple[int, ...]:
    """Parse ``3,15,255``, or ``1024:8192:1024`` (first:last:step); ranges must not begin below ``minimum``."""
    if text is None:
        return ()
    if ":" in text:
        first, last, step = _three(option, text)
        if _whole(option, first) < minimum:
            raise InputError(f"{option} counts from {minimum}")
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


# ``trine eidolon record`` and ``writes-from``: files of peers' writes, from runs and profiles.

#: Value of --from: the start of the first transfer.
FIRST = "first"
#: Options that ``record`` lacks: the run itself determines the peers' writes, with the compiled engine.
_SENT = (
    "wakeup", "wakeup_from", "distribution", "seed", "together", "straggler", "writes", "arrivals", "symmetric",
    "fabric", "engine",
)  # fmt: skip
_OF_KERNEL = (
    "rows", "cols", "inner", "dtype_bytes", "tile", "workgroups", "algorithm", "flags", "flag_spacing", "fused",
    "peers", "gpu_model", "cluster",
)  # fmt: skip


def record(
    kernel: Kernel,
    output: Annotated[str, Option("Write the record (.npz).", "FILE", OUTPUT, ("--output", "-o"))],
    given: Annotated[
        Given[EidolonOptions],
        Fields(without=_SENT, helps={"peers": "GPUs beside the target [3].", "target": "Record this rank [0]."}),
    ],
    no_fold: Annotated[bool, Option("Simulate every GPU, also identical ones.")] = False,
) -> None:
    """Simulate all GPUs, and record all arrivals at the I/O ports of one (for eidolon run --arrivals).

    Example: trine eidolon record gemv-allreduce --rows 256 --output arrivals.npz
    """
    from trine.gpu.replay.arrivals import save_arrivals
    from trine.gpu.replay.record import record_run

    if not output.lower().endswith(".npz"):
        raise InputError(f"a record is .npz, not {Path(output).suffix!r}", file=output)
    options = made(given, kernel=kernel)
    with watched("requests"):
        recording = record_run(options, fold="off" if no_fold else "auto")
    save_arrivals(output, recording.arrivals)
    show(recording.summary(), None)
    say(f"record written to {output}")


def writes_from(
    result: Annotated[
        list[str], argument("Records of a run (npz, csv, parquet), arrivals, or a profile's files.", "RESULT...")
    ],
    output: Annotated[str, Option("Write the writes: CSV, JSON or Parquet.", "FILE", OUTPUT, ("--output", "-o"))],
    given: Annotated[
        Given[EidolonOptions],
        Fields(
            only=_OF_KERNEL,
            helps={
                "rows": "Set that kernel's rows [1024].", "cols": "Set that kernel's columns.",
                "peers": "Set that kernel's peers [3].",
                "cluster": "Choose that kernel's cluster: preset or file [eidola].",
            },
        ),
    ],
    target: Annotated[int | None, Option("Take the transfers of this rank [0].", panel=WRITES)] = None,
    kernel: Annotated[
        str | None,
        Option("Use the transfers as flags of this fused kernel [list them].", panel="Kernel",
               values=fused_kernels),
    ] = None,
    buffer: Annotated[str | None, Option("Send listed transfers to this buffer.", panel=WRITES)] = None,
    first_flag: Annotated[int | None, Option("Number the first listed transfer's semaphore [0].", panel=WRITES)] = None,
    at: Annotated[
        str | None, Option("Use a transfer's end or start [end]; start for --fabric modelled.", "end|start", WRITES)
    ] = None,
    since: Annotated[
        str | None,
        Option("Take transfers from this time on; count times from it [all, from 0].", "TIME|first", WRITES,
               ("--from",)),
    ] = None,
    mapping: Annotated[
        str | None, Option("Read the meaning of a profile's columns and names (YAML).", "FILE", WRITES)
    ] = None,
) -> None:  # fmt: skip
    """Write the peers' writes of a run or a profile, for eidolon run --writes.

    Example: trine eidolon writes-from records.parquet --kernel gemv-allreduce --output writes.csv
    """
    from trine.gpu.replay.record import request_writes
    from trine.gpu.replay.write_files import save_writes

    of_kernel = dict(given.values)
    of_list = {"buffer": buffer, "first_flag": first_flag}
    of_transfers = {"target": target, "at": at, "from": since, "kernel": kernel}
    notes: tuple[str, ...] = ()
    if mapping is not None:
        _refuse({**of_kernel, **of_list, **of_transfers}, "a profile, whose --mapping says it")
        table, notes = _profile(result, mapping)
    elif (arrivals := _arrivals(result)) is not None:
        _refuse({**of_kernel, **of_list, **of_transfers}, "transfers, and this is a record of arrivals")
        table, notes = request_writes(arrivals)
    else:
        if kernel is None:
            _refuse(of_kernel, "a kernel: give --kernel")
        else:
            _refuse(of_list, "listed transfers, whose targets come from --kernel")
        if kernel is not None:
            of_kernel["kernel"] = kernel

        def derived(of_kernel: Mapping[str, Any]) -> WriteTable:
            return _transferred(_only(result), target or 0, at or "end", since, of_kernel, of_list)

        table = derived(of_kernel)
        notes = tuple(_idle(of_kernel, table, derived))
    save_writes(output, table)
    for note in notes:
        say(f"note: {note}")
    say(f"{len(table):,} writes in {output}")


def _idle(
    options: Mapping[str, Any], table: WriteTable, derived: Callable[[Mapping[str, Any]], WriteTable]
) -> Iterator[str]:
    """Yield a sentence for each option of the kernel's inputs and machine that does not change the writes."""
    import numpy as np

    for name in ("cols", "inner", "gpu_model", "cluster"):
        if name not in options:
            continue
        try:
            without_option = derived({key: value for key, value in options.items() if key != name})
        except InputError:
            continue  # the kernel needs it
        pairs: Iterator[tuple[Any, Any]] = zip(table.columns, without_option.columns, strict=True)
        if table.names == without_option.names and all(np.array_equal(one, two) for one, two in pairs):
            option = f"--{name.replace('_', '-')} {options[name]}"
            yield f"{option} does not change the writes: it affects the target's kernel only"


def _profile(paths: list[str], mapping: str) -> tuple[WriteTable, tuple[str, ...]]:
    from trine.gpu.replay.profiles import read_profile

    profile = read_profile(list(paths), mapping)
    return profile.table, profile.notes


def _transferred(
    path: str, target: int, instant: str, since: str | None, of_kernel: Mapping[str, Any], of_list: Mapping[str, Any]
) -> WriteTable:
    """Return the transfers of an operator-level run as the writes of a kernel's peers, or as listed writes."""
    from trine.common.units import parse_time
    from trine.gpu.replay.record import fused_writes
    from trine.gpu.replay.transfers import listed_writes, read_transfers, records_file, transfers_from

    records_file(path)
    if not of_kernel and of_list["buffer"] is None:
        raise InputError("where do transfers go? --kernel NAME, or --buffer NAME of your program", file=path)
    transfers = read_transfers(path, target)
    if since is not None:
        transfers = transfers_from(transfers, None if since == FIRST else parse_time(since, "--from"))
    if of_kernel:
        return fused_writes(transfers, made(Given(EidolonOptions, of_kernel)), target, instant)
    return listed_writes(transfers, buffer=of_list["buffer"], first_flag=of_list["first_flag"] or 0, at=instant)


def _arrivals(paths: list[str]) -> Arrivals | None:
    """Return the record, or None if the file is not one."""
    from trine.gpu.replay.arrivals import is_record, load_arrivals

    return load_arrivals(paths[0]) if len(paths) == 1 and is_record(paths[0]) else None


def _only(paths: list[str]) -> str:
    if len(paths) > 1:
        raise InputError("several files are one profile, which needs --mapping FILE")
    return paths[0]


def _refuse(options: Mapping[str, object], reason: str) -> None:
    for name, value in options.items():
        if value is not None:
            option = "--unfused" if name == "fused" else f"--{name.replace('_', '-')}"
            raise InputError(f"{option} is about {reason}")
