"""``trine calibrate``: fit operator times on several traces."""

from __future__ import annotations

from typing import Annotated

import typer

from trine.cli.output import reports_errors, say, show, write_json, writes


@reports_errors
def calibrate(
    traces: Annotated[list[str], typer.Argument(help="Traces recorded on one kind of GPU.")],
    output: Annotated[str | None, typer.Option("--output", "-o", help="File to write the fits to.")] = None,
    trace_gpu: Annotated[
        str | None, typer.Option(help="The GPU of the traces, where they do not say. A name or what drivers call it.")
    ] = None,
    json: Annotated[str | None, typer.Option(help="Write the report as JSON; - for stdout.")] = None,
) -> None:
    """Fit operator times on TRACES and report the error per operator kind, leave-one-out."""
    from trine.compute import calibrate as fit
    from trine.workload import load

    calibration = fit([load(path) for path in traces], trace_gpu)
    show(calibration.report.text(), json)
    if output is not None:
        with writes():
            calibration.save(output)
            say(f"fits written to {output}: use them with trine train --calibration {output}")
    write_json(calibration.report.to_json(), json, "calibrate")


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(calibrate)
