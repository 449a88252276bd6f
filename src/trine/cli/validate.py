"""``trine validate``: how far predictions are from measurements that come with trine."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from trine.cli.output import end, reports_errors, say, show, until_stopped, write_json, writes

app = typer.Typer(no_args_is_help=True)
SHOWN = 25


@app.command()
@reports_errors
def collectives(
    machine: Annotated[
        list[str] | None, typer.Option(help="Only this machine or family of machines; may be repeated.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help=f"Show all rows, not the worst {SHOWN}.")] = False,
    report: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write the page with its pictures; needs trine[plot].")
    ] = None,
    plot: Annotated[str | None, typer.Option(help="Draw all errors by size; needs trine[plot].")] = None,
    json: Annotated[str | None, typer.Option(help="Write the answer as JSON; - for stdout.")] = None,
) -> None:
    """Replay the bundled measured collectives: error by machine, collective and size, worst first."""
    from pathlib import Path

    from trine.errors import InputError
    from trine.studies.measured import load_measurements
    from trine.studies.report import summary_text, write_report
    from trine.studies.validate import left_out, select, validate_collectives

    if report is not None and machine:
        raise InputError("the report is about all machines: leave out --machine", field="--report")
    series = load_measurements()
    found = validate_collectives(select(series, machine) if machine else series)
    without, doubt = left_out(found)
    found = replace(found, left_out=without, notes=(doubt,) if doubt else ())
    show(summary_text(found, None if every else SHOWN), json)
    write_json(found, json, "validate collectives")
    if plot is not None:
        with writes():
            from trine.studies.report import plot_errors

        plot_errors(found, Path(plot))
        say(f"drawn in {plot}")
    if report is not None:
        with writes():
            for path in write_report(found, report):
                say(f"wrote {path}")


@app.command()
@reports_errors
def loadstore(
    series: Annotated[list[str] | None, typer.Option(help="Only this series of measurements; may be repeated.")] = None,
    largest: Annotated[str, typer.Option(help="Leave out larger sizes, which take long to simulate.")] = "1M",
    json: Annotated[str | None, typer.Option(help="Write the answer as JSON; - for stdout.")] = None,
) -> None:
    """Published times of communication kernels against the load-store level: small all-reduces, puts, gets, packets."""
    from trine.collectives.sizes import parse_size
    from trine.errors import InputError
    from trine.studies.gpu_measured import KernelValidation, chosen, compare_point

    points = chosen(series, parse_size(largest, "--largest"))
    if not points:
        raise InputError(f"no measurement is as small as {largest}", field="--largest")
    compared, finished = until_stopped(map(compare_point, points))
    found = KernelValidation(compared=tuple(compared), finished=finished)
    show(found.summary(), json)
    write_json(found, json, "validate loadstore")
    end(finished)


@app.callback()
def root() -> None:
    """How far predictions are from measurements."""


def register(parent: typer.Typer) -> None:
    """Add the commands to ``parent``."""
    parent.add_typer(app, name="validate", help="How far predictions are from measurements.")
