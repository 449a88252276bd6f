"""``trine check``: compare a measured collective with its prediction, or find the cause of a slow run."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from trine.cli.completions import collectives
from trine.cli.machine import CIRCUITS, MachineOptions, group_machine
from trine.cli.options import OUTPUT, Brief, Details, Json, Option, argument
from trine.cli.output import EXIT_FAILED, drawn, say, show_answer, write_json
from trine.cli.parameters import Fields, Given
from trine.collectives.options import CollectiveOptions
from trine.errors import InputError, about

if TYPE_CHECKING:
    from trine.check.nccl_tests import NcclLog
    from trine.check.result import CheckResult
    from trine.check.two_runs import RunComparison
    from trine.cluster import Cluster
    from trine.results.report import Report


def check(
    log: Annotated[
        str,
        argument(
            "Output of nccl-tests or rccl-tests; or a folder of each rank's Kineto trace or flight recorder dump.",
            "LOG|FOLDER",
        ),
    ],
    machine: Annotated[
        MachineOptions,
        Fields(
            without=("segment", *CIRCUITS),
            helps={
                "gpus": "Use N GPUs, filling nodes in order [the log's].",
                "nodes": "Use N nodes of the preset [the log's].",
            },
        ),
    ],
    choices: Annotated[
        Given[CollectiveOptions],
        Fields(
            only=("launch", "nvls"),
            helps={
                "launch": "Choose how processes launched kernels [the log's].",
                "nvls": "Require or forbid NVLS [the log's].",
            },
        ),
    ],
    second: Annotated[
        str | None, argument("A second run of the same test: compare both logs, without a machine.", "LOG")
    ] = None,
    op: Annotated[str | None, Option("Name the collective, or choose among several runs.", values=collectives)] = None,
    run: Annotated[int | None, Option("Choose among several runs in the file, from 1.")] = None,
    in_place: Annotated[bool, Option("Compare the in-place results.")] = False,
    fail_if_suspicious: Annotated[bool, Option("Exit with 1 unless the run is healthy.")] = False,
    brief: Brief = False,
    details: Details = False,
    plot: Annotated[
        str | None, Option("Draw measured and predicted (PNG, SVG); needs trine[plot].", "FILE", OUTPUT)
    ] = None,
    json: Json = None,
) -> None:
    """Compare LOG with the machine's prediction, or name the rank or link that slows down the run in FOLDER.

    Example: trine check all_reduce_perf.log --cluster dgx-h100
    """
    if Path(log).is_dir():
        _refuse_log_options(machine, choices, second=second, op=op, run=run, in_place=in_place or None)
        _check_run(log, json, brief, details, plot, fail_if_suspicious)
        return
    if second is not None:
        _refuse_machine(machine, choices)
        both = _compare(log, second, op, run, in_place)
        _show(both, json, brief, details, plot)
        is_suspicious = both.state in ("slower", "mixed")
    else:
        prediction = _check_log(log, machine, choices, op, run, in_place)
        _show(prediction, json, brief, details, plot)
        is_suspicious = not prediction.healthy
    if fail_if_suspicious and is_suspicious:
        raise SystemExit(EXIT_FAILED)


def _check_log(
    log: str,
    machine: MachineOptions,
    choices: Given[CollectiveOptions],
    op: str | None,
    run: int | None,
    in_place: bool,
) -> CheckResult:
    """Return a log beside the machine's prediction; options that are not set follow from the log."""
    from trine.check.compare import check_log, options_of
    from trine.check.nccl_tests import read_log, with_ranks

    run_log = read_log(log, op, run)
    options, _ = options_of(run_log)
    options = replace(options, **choices.values)
    if "launch" in choices:
        run_log = replace(run_log, launch=choices["launch"])
    if machine.gpus is not None:
        run_log = with_ranks(run_log, machine.gpus)
    elif run_log.num_ranks == 1:
        message = f"its test ran on one GPU ({run_log.ranks_from}), so no data moved: run it with -g 2 or more"
        raise InputError(message, file=log)
    cluster = _machine(run_log, machine)
    with about(log):
        return check_log(run_log, cluster, options=options, in_place=in_place)


def _show(answer: Report, json: str | None, brief: bool, details: bool, plot: str | None) -> None:
    """Print the answer, and write its files."""
    show_answer(answer, json, brief, details)
    write_json(answer, json, "check")
    drawn(plot, answer)


def _check_run(
    folder: str, json: str | None, brief: bool, details: bool, plot: str | None, fail_if_suspicious: bool
) -> None:
    """Answer for a folder of traces or dumps."""
    from trine.runs.folder import check_folder

    answer = check_folder(folder)
    if plot is not None and not answer.pictures():
        raise InputError("dumps of the flight recorder have no times to draw", field="--plot")
    _show(answer, json, brief, details, plot)
    if fail_if_suspicious and not answer.is_healthy:
        raise SystemExit(EXIT_FAILED)


def _refuse_log_options(machine: MachineOptions, choices: Given[CollectiveOptions], **others: object) -> None:
    """Raise InputError for options about a log of nccl-tests."""
    given = [f"--{name}" for name in (*_given(machine), *choices.values)]
    for name, value in others.items():
        if value is not None:
            given.append("LOG" if name == "second" else f"--{name.replace('_', '-')}")
    for name in given:
        raise InputError("is about a log of nccl-tests; a folder is checked against its own ranks", field=name)


def _given(machine: MachineOptions) -> list[str]:
    """Return the names of the machine options that are set."""
    return [field.name for field in fields(machine) if getattr(machine, field.name) not in (None, (), False)]


def _compare(first: str, second: str, op: str | None, run: int | None, in_place: bool) -> RunComparison:
    """Return the comparison of two logs; ``op`` and ``run`` choose the run in each."""
    from trine.check.nccl_tests import read_log
    from trine.check.two_runs import compare_logs

    return compare_logs(read_log(first, op, run), read_log(second, op, run), in_place=in_place)


def _refuse_machine(machine: MachineOptions, choices: Given[CollectiveOptions]) -> None:
    """Raise InputError for options about a prediction, which a comparison of two logs does not use."""
    for name in (*_given(machine), *choices.values):
        raise InputError("two logs are compared with each other, without a prediction", field=f"--{name}")


def _machine(log: NcclLog, options: MachineOptions) -> Cluster:
    """Return the machine of the options; the log's number of ranks and hosts are the defaults."""
    if options.cluster is not None and options.gpus is None and log.num_ranks is not None:
        hosts = log.num_hosts if log.num_hosts == len(log.hosts) else None
        options = replace(options, gpus=log.num_ranks, nodes=options.nodes or hosts)
    machine, warnings = group_machine(options)
    for warning in warnings:
        say(f"note: {warning}")
    return machine
