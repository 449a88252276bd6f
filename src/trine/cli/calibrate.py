"""``trine calibrate``: fit operator times on several traces."""

from __future__ import annotations

from typing import Annotated

from trine.cli.completions import clusters, gpus
from trine.cli.completions import traces as known_traces
from trine.cli.options import OUTPUT, Option, argument
from trine.cli.output import show, write_json, written
from trine.cli.progress import RowsLine
from trine.errors import InputError


def calibrate(
    traces: Annotated[
        list[str] | None,
        argument("Traces recorded on one kind of GPU; with --cluster, logs of nccl-tests.", values=known_traces),
    ] = None,
    cluster: Annotated[
        str | None,
        Option("Fit this cluster's links and spread to the logs of nccl-tests TRACES.", "NAME|FILE", values=clusters),
    ] = None,
    step: Annotated[
        str | None,
        Option("Fit up to three factors of a software profile on this file's measured steps.", "MEASURED.yaml"),
    ] = None,
    serving: Annotated[
        str | None, Option("Correct one stack's serving times by the measured points of this file.", "ROWS.csv")
    ] = None,
    output: Annotated[str | None, Option("Write the fits to this file.", "FILE", OUTPUT, ("--output", "-o"))] = None,
    trace_gpu: Annotated[
        str | None, Option("Name the GPU of the traces if they do not: a name or the driver's.", values=gpus)
    ] = None,
    json: Annotated[str | None, Option("Write the report as JSON; - for stdout.", "FILE", OUTPUT)] = None,
) -> None:
    """Fit operator times on TRACES, a software profile on steps (--step), or a serving stack on points (--serving).

    Example: trine calibrate vgg13-h100-b128 resnet50-h100-b128 --output fits.json
    """
    if serving is not None:
        if any(each is not None for each in (cluster, step, traces, trace_gpu)):
            raise InputError("points of a server are fitted alone: --serving FILE", field="--serving")
        _fit_stack(serving, output, json)
        return
    if cluster is not None:
        if step is not None or trace_gpu is not None:
            raise InputError("a cluster is fitted to logs alone: --cluster NAME LOG...", field="--cluster")
        _fit_cluster(cluster, traces or [], output, json)
        return
    if step is not None:
        _fit_step(step, traces, trace_gpu, output, json)
        return
    if not traces:
        raise InputError(
            "names no trace: give at least one, or measured steps with --step MEASURED.yaml", field="TRACES"
        )
    _fit_operators(traces, output, trace_gpu, json)


def _fit_operators(traces: list[str], output: str | None, trace_gpu: str | None, json: str | None) -> None:
    from trine.compute import calibrate as fit
    from trine.workload import load

    calibration = fit([load(path) for path in traces], trace_gpu)
    show(calibration.report.text(), json)
    written(output, calibration.save, "fits written to {0}: use them with trine train --calibration {0}")
    write_json(calibration.report.to_json(), json, "calibrate")


def _fit_cluster(base: str, paths: list[str], output: str | None, json: str | None) -> None:
    from pathlib import Path

    from trine.check.fit_cluster import fit_cluster
    from trine.check.nccl_tests import read_log

    if not paths:
        raise InputError("names no log: give the output of nccl-tests", field="LOG")
    logs = [read_log(path) for path in paths]
    name = None if output is None else Path(output).stem
    fit = fit_cluster(base, logs, name=name)
    show(fit.details(), json)
    written(output, fit.save, "cluster written to {0}: use it with --cluster {0}")
    write_json(fit, json, "calibrate")


def _fit_stack(rows: str, output: str | None, json: str | None) -> None:
    from trine.inference.stack_fit import calibrate_serving

    fit = calibrate_serving(rows)
    show(fit.text(), json)
    written(output, fit.save, "stack written to {0}: use it with trine infer --stack {0}")
    write_json(fit.to_json(), json, "calibrate")


def _fit_step(step: str, traces: list[str] | None, trace_gpu: str | None, output: str | None, json: str | None) -> None:
    if traces or trace_gpu is not None:
        raise InputError("measured steps are fitted without traces: --step FILE alone", field="--step")
    from pathlib import Path

    from trine.training.step_fit import calibrate_step

    with RowsLine("steps simulated") as progress:
        fit = calibrate_step(step, name=None if output is None else Path(output).stem, progress=progress)
    show(fit.text(), json)
    written(output, fit.save, "profile written to {0}: use it with trine train --software {0}")
    write_json(fit.to_json(), json, "calibrate")
