"""``trine eidolon record`` and ``writes-from``: what peers send, from runs and profiles, as files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trine.cli import eidolon_options as shared
from trine.cli.output import reports_errors, say, show
from trine.cli.progress import ProgressLine
from trine.errors import InputError

if TYPE_CHECKING:
    from trine.gpu.outside import Arrivals
    from trine.replay.writes import WriteTable

Text = str | None
Number = int | None
#: Of --from: from the start of the first transfer.
FIRST = "first"


@reports_errors
def record(
    kernel: shared.Kernel,
    output: Annotated[str, typer.Option("--output", "-o", help="The record (.npz).")],
    rows: shared.Rows = None,
    cols: shared.Cols = None,
    inner: shared.Inner = None,
    dtype_bytes: shared.DtypeBytes = None,
    tile: shared.Tile = None,
    workgroups: shared.Workgroups = None,
    algorithm: shared.Algorithm = None,
    flags: shared.Flags = None,
    flag_spacing: shared.FlagSpacing = None,
    unfused: shared.Unfused = False,
    peers: Annotated[Number, typer.Option(help="GPUs beside the target [3].")] = None,
    target: Annotated[Number, typer.Option(help="The rank that is recorded [0].")] = None,
    sync: shared.Sync = None,
    poll: shared.Poll = None,
    sleep: shared.Sleep = None,
    monitor_capacity: shared.Capacity = None,
    monitor_wakeup: shared.MonitorWakeup = None,
    gpu_model: shared.GpuModel = None,
    cluster: shared.Cluster = "eidola",
    no_fold: Annotated[bool, typer.Option("--no-fold", help="Simulate every GPU by itself.")] = False,
) -> None:
    """Simulate all GPUs, and record everything that comes to the I/O ports of one: trine eidolon run --arrivals."""
    from trine.replay.arrivals import save_arrivals
    from trine.replay.record import record_run

    if not output.lower().endswith(".npz"):
        raise InputError(f"a record is .npz, not {Path(output).suffix!r}", file=output)
    options = shared.options_of(
        kernel=kernel, rows=rows, cols=cols, inner=inner, dtype_bytes=dtype_bytes, tile=tile, workgroups=workgroups,
        algorithm=algorithm, waits=flags, flag_spacing=flag_spacing, unfused=unfused, peers=peers,
        target=target, sync=sync, poll=poll, sleep=sleep, monitor_capacity=monitor_capacity,
        monitor_wakeup=monitor_wakeup, gpu_model=gpu_model, cluster=cluster,
    )  # fmt: skip
    with ProgressLine("requests") as progress:
        found = record_run(options, fold="off" if no_fold else "auto", progress=progress, on_compile=progress.compiling)
    save_arrivals(output, found.arrivals)
    show(found.summary(), None)
    say(f"record written to {output}")


@reports_errors
def writes_from(
    result: Annotated[
        list[str],
        typer.Argument(metavar="RESULT...", help="Records of a run (npz, csv, parquet), arrivals, or a profile's CSV."),
    ],
    output: Annotated[str, typer.Option("--output", "-o", help="The writes: CSV, JSON or Parquet.")],
    target: Annotated[Number, typer.Option(help="Rank whose transfers are taken [0].")] = None,
    kernel: Annotated[
        Text, typer.Option(help="Fused kernel whose flags the transfers stand for; without it they are listed.")
    ] = None,
    rows: Annotated[Number, typer.Option(help="Of that kernel [1024].")] = None,
    cols: Annotated[Number, typer.Option(help="Of that kernel.")] = None,
    inner: shared.Inner = None,
    dtype_bytes: shared.DtypeBytes = None,
    tile: shared.Tile = None,
    workgroups: shared.Workgroups = None,
    algorithm: shared.Algorithm = None,
    flags: shared.Flags = None,
    flag_spacing: shared.FlagSpacing = None,
    unfused: shared.Unfused = False,
    peers: Annotated[Number, typer.Option(help="Of that kernel [3].")] = None,
    gpu_model: shared.GpuModel = None,
    cluster: Annotated[Text, typer.Option(help="Of that kernel: preset name or cluster file [eidola].")] = None,
    buffer: Annotated[Text, typer.Option(help="Listed transfers: the buffer that they go to.")] = None,
    first_flag: Annotated[Number, typer.Option(help="Listed transfers: semaphore of the first [0].")] = None,
    at: Annotated[
        Text, typer.Option(metavar="end|start", help="Of a transfer [end]; start for --fabric modelled.")
    ] = None,
    since: Annotated[
        Text,
        typer.Option(
            "--from", metavar="TIME|first", help="Transfers that start then or later, times from there [all, from 0]."
        ),
    ] = None,
    mapping: Annotated[Text, typer.Option(help="Of a profile: what its columns and names mean (YAML).")] = None,
) -> None:
    """Write down what peers send, from a run or a profile, for trine eidolon run --writes."""
    from trine.replay.record import request_writes
    from trine.replay.write_files import save_writes

    of_kernel = {
        "rows": rows, "cols": cols, "inner": inner, "dtype_bytes": dtype_bytes, "tile": tile, "workgroups": workgroups,
        "algorithm": algorithm, "waits": flags, "flag_spacing": flag_spacing, "unfused": unfused or None,
        "peers": peers, "gpu_model": gpu_model, "cluster": cluster,
    }  # fmt: skip
    of_list = {"buffer": buffer, "first_flag": first_flag}
    of_transfers = {"target": target, "at": at, "from": since, "kernel": kernel}
    notes: tuple[str, ...] = ()
    if mapping is not None:
        _refuse({**of_kernel, **of_list, **of_transfers}, "a profile, whose --mapping says it")
        table, notes = _profile(result, mapping)
    elif (found := _arrivals(result)) is not None:
        _refuse({**of_kernel, **of_list, **of_transfers}, "transfers, and this is a record of arrivals")
        table, notes = request_writes(found)
    else:
        if kernel is None:
            _refuse(of_kernel, "a kernel: give --kernel")
        else:
            _refuse(of_list, "transfers that are listed, and --kernel says where they go")
        given = {name: value for name, value in {"kernel": kernel, **of_kernel}.items() if value is not None}

        def derived(given: Mapping[str, Any]) -> WriteTable:
            return _transferred(_only(result), target or 0, at or "end", since, given, of_list)

        table = derived(given)
        notes = tuple(_idle(given, table, derived))
    save_writes(output, table)
    for note in notes:
        say(f"note: {note}")
    say(f"{len(table):,} writes in {output}")


def _idle(
    given: Mapping[str, Any], table: WriteTable, derived: Callable[[Mapping[str, Any]], WriteTable]
) -> Iterator[str]:
    """A sentence for each option about the kernel's inputs and machine that changes none of the writes."""
    import numpy as np

    for name in ("cols", "inner", "gpu_model", "cluster"):
        if name not in given:
            continue
        try:
            other = derived({key: value for key, value in given.items() if key != name})
        except InputError:
            continue  # the kernel needs it
        pairs: Iterator[tuple[Any, Any]] = zip(table.columns, other.columns, strict=True)
        if table.names == other.names and all(np.array_equal(one, two) for one, two in pairs):
            option = f"--{name.replace('_', '-')} {given[name]}"
            yield f"{option} changes none of the writes: it decides what the target does"


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.command()(record)
    app.command("writes-from")(writes_from)


def _profile(paths: list[str], mapping: str) -> tuple[WriteTable, tuple[str, ...]]:
    from trine.replay.profiles import read_profile

    found = read_profile(list(paths), mapping)
    return found.table, found.notes


def _transferred(
    path: str, target: int, at: str, since: Text, of_kernel: Mapping[str, Any], of_list: Mapping[str, Any]
) -> WriteTable:
    """Transfers of an operator-level run as what peers of a kernel write, or else listed."""
    from trine.replay.record import fused_writes
    from trine.replay.transfers import listed_writes, read_transfers, records_file, transfers_from
    from trine.units import parse_time

    records_file(path)
    if not of_kernel and of_list["buffer"] is None:
        raise InputError("where do transfers go? --kernel NAME, or --buffer NAME of your program", file=path)
    transfers = read_transfers(path, target)
    if since is not None:
        transfers = transfers_from(transfers, None if since == FIRST else parse_time(since, "--from"))
    if of_kernel:
        return fused_writes(transfers, shared.options_of(**of_kernel), target, at)
    return listed_writes(transfers, buffer=of_list["buffer"], first_flag=of_list["first_flag"] or 0, at=at)


def _arrivals(paths: list[str]) -> Arrivals | None:
    """The record, if the file is one."""
    from trine.replay.arrivals import is_record, load_arrivals

    return load_arrivals(paths[0]) if len(paths) == 1 and is_record(paths[0]) else None


def _only(paths: list[str]) -> str:
    if len(paths) > 1:
        raise InputError("several files are one profile, which needs --mapping FILE")
    return paths[0]


def _refuse(given: Mapping[str, object], why: str) -> None:
    for name, value in given.items():
        if value is not None:
            option = "--flags" if name == "waits" else f"--{name.replace('_', '-')}"
            raise InputError(f"{option} is about {why}")
