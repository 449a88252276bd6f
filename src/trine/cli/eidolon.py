"""``trine eidolon``: one GPU in detail, its peers replayed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from trine.cli import eidolon_options as shared
from trine.cli import eidolon_writes
from trine.cli.output import all_written, end, reports_errors, say, show, write_json, writes
from trine.cli.progress import ProgressLine
from trine.errors import InputError

if TYPE_CHECKING:
    from trine.replay.result import EidolonResult
    from trine.replay.sweep_runs import Journal

app = typer.Typer(no_args_is_help=True)

Text = str | None
Number = int | None
_KERNEL, _WRITES, _WAITS = "Kernel", "What peers send", "How wavefronts wait"


@app.command()
@reports_errors
def run(
    kernel: shared.Kernel,
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
    peers: Annotated[Number, typer.Option(help="Replayed GPUs [3].", rich_help_panel=_WRITES)] = None,
    target: Annotated[
        Number, typer.Option(help="Rank of a program that is simulated [0].", rich_help_panel=_KERNEL)
    ] = None,
    wakeup: Annotated[
        Text, typer.Option(help="After how long peers' flags land [10 us].", rich_help_panel=_WRITES)
    ] = None,
    wakeup_from: shared.WakeupFrom = None,
    distribution: Annotated[
        Text,
        typer.Option(help='The same, each flag by itself: "uniform(5 us, 15 us)".', rich_help_panel=_WRITES),
    ] = None,
    seed: Annotated[Number, typer.Option(help="Of --distribution [0].", rich_help_panel=_WRITES)] = None,
    together: Annotated[
        bool, typer.Option("--together", help="All flags of a peer at once.", rich_help_panel=_WRITES)
    ] = False,
    straggler: shared.Straggler = None,
    writes: Annotated[Text, typer.Option(help="File of writes: CSV, JSON or Parquet.", rich_help_panel=_WRITES)] = None,
    arrivals: Annotated[Text, typer.Option(help="Record of a run (.npz).", rich_help_panel=_WRITES)] = None,
    symmetric: Annotated[
        bool, typer.Option("--symmetric", help="Peers do as the target does.", rich_help_panel=_WRITES)
    ] = False,
    fabric: shared.Fabric = None,
    sync: shared.Sync = None,
    poll: shared.Poll = None,
    sleep: shared.Sleep = None,
    monitor_capacity: shared.Capacity = None,
    monitor_wakeup: shared.MonitorWakeup = None,
    gpu_model: shared.GpuModel = None,
    cluster: shared.Cluster = "eidola",
    engine: shared.Engine = "compiled",
    json: Annotated[Text, typer.Option(help="Write the answer as JSON; - for stdout.")] = None,
    perfetto: Annotated[Text, typer.Option(help="Write a timeline for https://ui.perfetto.dev.")] = None,
    plot: Annotated[Text, typer.Option(help="Draw who waits when (PNG, SVG, PDF); needs trine[plot].")] = None,
) -> None:
    """Run the kernel of one GPU; of its peers only what they write to it exists."""
    from trine.replay.run import run_eidolon

    options = shared.options_of(
        kernel=kernel, rows=rows, cols=cols, inner=inner, dtype_bytes=dtype_bytes, tile=tile, workgroups=workgroups,
        algorithm=algorithm, waits=flags, flag_spacing=flag_spacing, unfused=unfused, peers=peers, target=target,
        wakeup=wakeup, wakeup_from=wakeup_from, distribution=distribution, seed=seed, together=together,
        straggler=straggler, writes=writes, arrivals=arrivals, symmetric=symmetric, fabric=fabric, sync=sync, poll=poll,
        sleep=sleep, monitor_capacity=monitor_capacity, monitor_wakeup=monitor_wakeup, gpu_model=gpu_model,
        cluster=cluster, engine=engine,
    )  # fmt: skip
    with ProgressLine("requests") as progress:
        result = run_eidolon(options, progress=progress, on_compile=progress.compiling)
    _report(result, json, perfetto, plot)


def _report(result: EidolonResult, json: Text, perfetto: Text, plot: Text) -> None:
    show(result.summary(), json)
    write_json(result, json, "eidolon run")
    if perfetto is not None:
        with writes():
            for note in result.to_perfetto(perfetto):
                say(f"note: {note}")
            say(f"timeline written to {perfetto}: open it at https://ui.perfetto.dev")
    if plot is not None:
        with writes():
            result.plot(path=plot)
            say(f"drawn in {plot}")
    end(result.finished)


@app.command()
@reports_errors
def sweep(
    kernel: shared.Kernel = "gemv-allreduce",
    rows: Annotated[
        Text, typer.Option(help="Of the matrix: 1024,2048 or 1024:8192:1024.", rich_help_panel=_KERNEL)
    ] = None,
    cols: Annotated[Text, typer.Option(help="Of the matrix.", rich_help_panel=_KERNEL)] = None,
    inner: shared.Inner = None,
    dtype_bytes: shared.DtypeBytes = None,
    tile: shared.Tile = None,
    workgroups: shared.Workgroups = None,
    algorithm: shared.Algorithm = None,
    flags: shared.Flags = None,
    flag_spacing: shared.FlagSpacing = None,
    unfused: shared.Unfused = False,
    peers: Annotated[Text, typer.Option(help="Replayed GPUs: 3,15,255.", rich_help_panel=_WRITES)] = None,
    wakeup: Annotated[Text, typer.Option(help='"0,5 us,10 us" or 0:40us:5us.', rich_help_panel=_WRITES)] = None,
    wakeup_from: shared.WakeupFrom = None,
    straggler: shared.Straggler = None,
    fabric: shared.Fabric = None,
    sync: Annotated[
        Text, typer.Option(metavar="spin,mwait,sleep", help="Ways to wait [spin,mwait].", rich_help_panel=_WAITS)
    ] = None,
    poll: shared.Poll = None,
    sleep: shared.Sleep = None,
    monitor_capacity: shared.Capacity = None,
    monitor_wakeup: shared.MonitorWakeup = None,
    gpu_model: shared.GpuModel = None,
    cluster: shared.Cluster = "eidola",
    jobs: Annotated[Number, typer.Option(help="Runs at a time [one a core].")] = None,
    json: Annotated[Text, typer.Option(help="Write the answer as JSON; - for stdout.")] = None,
    csv: Annotated[Text, typer.Option(help="Write a line a run.")] = None,
    plot: Annotated[Text, typer.Option(help="Draw it (PNG, SVG, PDF); needs trine[plot].")] = None,
) -> None:
    """Run all combinations of the values given: how flag reads grow, and from when mwait pays."""
    from trine.replay.sweep import SweepGrid
    from trine.replay.sweep import sweep as run_sweep

    grid = SweepGrid(
        rows=shared.whole_numbers("--rows", rows), cols=shared.whole_numbers("--cols", cols),
        peers=shared.whole_numbers("--peers", peers), wakeup=shared.times("--wakeup", wakeup),
        sync=tuple(word.strip() for word in (sync or "spin,mwait").split(",")),
    )  # fmt: skip
    if plot is not None and grid.num_runs == len(grid.sync):
        raise InputError("--plot draws curves: give several values of --wakeup, --rows, --cols or --peers")
    base = shared.options_of(
        kernel=kernel, inner=inner, dtype_bytes=dtype_bytes, tile=tile, workgroups=workgroups, algorithm=algorithm,
        waits=flags, flag_spacing=flag_spacing, unfused=unfused, wakeup_from=wakeup_from, straggler=straggler,
        fabric=fabric, poll=poll, sleep=sleep, monitor_capacity=monitor_capacity, monitor_wakeup=monitor_wakeup,
        gpu_model=gpu_model, cluster=cluster,
    )  # fmt: skip
    journal = _journal(csv, json)
    with ProgressLine(None) as progress:
        found = run_sweep(
            base, grid, jobs=jobs, progress=progress, on_compile=progress.compiling, journal=journal
        )  # fmt: skip
    show(found.text(), json)
    if flag_spacing is not None:
        say(f"note: --flag-spacing {flag_spacing}: flags are not cached, so that it only decides which memory channels "
            "serve them; trine eidolon run says how far it moves one run")  # fmt: skip
    write_json(found, json, "eidolon sweep")
    if csv is not None and found.rows:
        with writes():
            found.to_csv(csv)
    if plot is not None and found.finished:
        with writes():
            found.plot(path=plot)
            say(f"drawn in {plot}")
    if journal is not None:
        _end_journal(journal, found.finished)
    end(found.finished)


def _journal(csv: Text, json: Text) -> Journal | None:
    """Beside the first file that is asked for: whatever ends this sweep, the same command goes on from there."""
    from trine.replay.sweep_runs import ENDING, Journal

    target = next((each for each in (csv, json) if each not in (None, "-")), None)
    if target is None or (os.path.exists(target) and not os.path.isfile(target)):  # a device or a pipe
        return None
    return Journal(f"{os.path.realpath(target)}{ENDING}")


def _end_journal(journal: Journal, finished: bool) -> None:
    for note in journal.notes:
        say(f"note: {note}")
    if journal.num_taken:
        say(f"note: {journal.num_taken} runs were taken from {journal.path}, where an earlier sweep kept them")
    if finished and all_written():
        journal.remove()
    elif journal.path.exists():
        say(f"note: what has ended is kept in {journal.path}: the same command goes on from there")


eidolon_writes.register(app)
