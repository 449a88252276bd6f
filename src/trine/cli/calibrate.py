"""``trine calibrate``: fit operator times on several traces."""

from __future__ import annotations

from typing import Annotated

from trine.cli.options import OUTPUT, Option, argument, gpus
from trine.cli.options import traces as known_traces
from trine.cli.output import say, show, write_json, writes


def calibrate(
    traces: Annotated[list[str], argument("Traces recorded on one kind of GPU.", values=known_traces)],
    output: Annotated[str | None, Option("File to write the fits to.", "FILE", OUTPUT, ("--output", "-o"))] = None,
    trace_gpu: Annotated[
        str | None, Option("The GPU of the traces, where they do not say. A name or what drivers call it.", values=gpus)
    ] = None,
    json: Annotated[str | None, Option("Write the report as JSON; - for stdout.", "FILE", OUTPUT)] = None,
) -> None:
    """Fit operator times on TRACES and report the error per operator kind, leave-one-out.

    Example: trine calibrate vgg13-h100-b128 resnet50-h100-b128 --output fits.json
    """
    from trine.compute import calibrate as fit
    from trine.workload import load

    calibration = fit([load(path) for path in traces], trace_gpu)
    show(calibration.report.text(), json)
    if output is not None:
        with writes():
            calibration.save(output)
            say(f"fits written to {output}: use them with trine train --calibration {output}")
    write_json(calibration.report.to_json(), json, "calibrate")
