"""``trine validate``: how far predictions are from measurements that come with trine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from trine.cli.completions import software_profiles
from trine.cli.options import OUTPUT, Brief, Details, Json, Option
from trine.cli.output import end, say, show, show_answer, to_terminal, until_stopped, write_json, writes, written
from trine.cli.progress import RowsLine
from trine.results.text import first_screen

if TYPE_CHECKING:
    from trine.validation.harness import Validation

Found = TypeVar("Found")
SHOWN = 25


def collectives(
    machine: Annotated[
        list[str] | None, Option("Replay only this machine or family of machines; may be repeated.")
    ] = None,
    every: Annotated[bool, Option(f"Print all rows, not only the worst {SHOWN}.", names=("--all",))] = False,
    report: Annotated[str | None, Option("Write the page with its pictures; needs trine[plot].", "DIR", OUTPUT)] = None,
    plot: Annotated[str | None, Option("Draw all errors by size; needs trine[plot].", "FILE", OUTPUT)] = None,
    brief: Brief = False,
    details: Details = False,
    json: Json = None,
) -> None:
    """Replay the bundled measured collectives: error by machine, collective and size, worst first.

    Example: trine validate collectives --machine dgx-h100
    """
    from pathlib import Path

    from trine.errors import InputError
    from trine.validation.collectives import left_out, select, validate_collectives
    from trine.validation.measured import load_measurements
    from trine.validation.report import plot_errors, summary_text, write_report

    if report is not None and machine:
        raise InputError("the report is about all machines: leave out --machine", field="report")
    series = load_measurements()
    validation = validate_collectives(select(series, machine) if machine else series)
    without_own_fit, note = left_out(validation)
    validation = replace(validation, left_out=without_own_fit, notes=(note,) if note else ())
    text = summary_text(validation, None if every or details else SHOWN)
    with to_terminal(json):
        if brief:
            shown = validation.headline
        elif every or details:
            shown = text
        else:
            shown = first_screen(text)
        show(shown, json)
    write_json(validation, json, "validate collectives")
    written(plot, lambda path: plot_errors(validation, Path(path)), "drawn in {}")
    if report is not None:
        with writes():
            for path in write_report(validation, report):
                say(f"wrote {path}")


def loadstore(
    series: Annotated[list[str] | None, Option("Replay only this series; may be repeated.")] = None,
    largest: Annotated[str, Option("Leave out larger sizes.")] = "1M",
    brief: Brief = False,
    details: Details = False,
    json: Json = None,
) -> None:
    """Replay published times of communication kernels on the load-store level.

    Example: trine validate loadstore
    """
    from trine.collectives.sizes import parse_size
    from trine.errors import InputError
    from trine.validation.gpu.measured import KernelValidation, chosen, compared_or_unread, read_fine_grained
    from trine.validation.harness import UnreadRow

    points = chosen(series, parse_size(largest, "--largest"))
    if not points:
        raise InputError(f"no measurement is as small as {largest}", field="--largest")
    rows, finished = until_stopped(map(compared_or_unread, points))
    faults = [row for row in read_fine_grained()[1] if not series or row.source in series]
    compared = tuple(row for row in rows if not isinstance(row, UnreadRow))
    validation = KernelValidation(
        compared=compared, finished=finished, unread=(*faults, *(row for row in rows if isinstance(row, UnreadRow))),
    )  # fmt: skip
    _answer(validation, json, brief, details)


Sample = Annotated[bool, Option("Replay a sample of cheap rows (about a minute).")]
Sources = Annotated[list[str] | None, Option("Replay only this source; may be repeated.", names=("--source",))]
Blind = Annotated[bool, Option("Fit no factors.")]
Jobs = Annotated[int | None, Option("Replay N rows at a time [one per core].")]
Again = Annotated[bool, Option("Replay all rows instead of printing the stored report.")]


def _software(usual: str) -> Option:
    return Option(f"Use this profile for all rows [{usual}].", "NAME|FILE", values=software_profiles)


def training(
    sample: Sample = False,
    sources: Annotated[
        list[str] | None,
        Option("Replay only this source, or the set 'tuned'; may be repeated.", names=("--source",)),
    ] = None,
    software: Annotated[str | None, _software("each source's own")] = None,
    blind: Blind = False,
    most_rows: Annotated[int | None, Option("Replay at most N rows of each source [all].", names=("--rows",))] = None,
    report: Annotated[
        str | None, Option("Write the page, of the layouts too, with its pictures; needs trine[plot].", "DIR", OUTPUT)
    ] = None,
    jobs: Jobs = None,
    again: Again = False,
    brief: Brief = False,
    details: Details = False,
    json: Json = None,
) -> None:
    """Compare published training steps with predictions: error by source, GPU, software and scale.

    Example: trine validate training
    """
    from trine.errors import InputError
    from trine.validation.training import load_stored_training, validate_training

    if report is not None and sources:
        raise InputError("the report is about all sources: leave out --source", field="report")
    options = {"sample": sample, "most_rows": most_rows, "software": software, "blind": blind, "jobs": jobs}
    validation = _report(load_stored_training, validate_training, again, options | {"sources": sources})
    _answer(validation, json, brief, details)
    if report is not None:
        from trine.validation.layouts import load_stored_layouts, validate_layouts
        from trine.validation.training_page import write_page

        layout_validation = _report(load_stored_layouts, validate_layouts, again, options)
        with writes():
            for path in write_page(validation, layout_validation, report):
                say(f"wrote {path}")


def layouts(
    sample: Sample = False,
    software: Annotated[str | None, _software("nanotron-2024")] = None,
    blind: Blind = False,
    jobs: Jobs = None,
    again: Again = False,
    brief: Brief = False,
    details: Details = False,
    json: Json = None,
) -> None:
    """Compare layouts of the Ultra-Scale Playbook with predictions: rank correlation, and the regret of trine's choice.

    Example: trine validate layouts
    """
    from trine.validation.layouts import load_stored_layouts, validate_layouts

    options = {"sample": sample, "software": software, "blind": blind, "jobs": jobs}
    _answer(_report(load_stored_layouts, validate_layouts, again, options), json, brief, details)


def _report(
    load: Callable[[], Found], validate: Callable[..., Found], again: bool, kwargs: dict[str, Any], is_kept: bool = True
) -> Found:
    """Return the stored report; replay rows if options select them or ask for it. is_kept: use the user's cache."""
    if not again and all(value is None or value is False for value in kwargs.values()):
        return load()
    from trine.validation.replay_rows import Answers, user_answers

    if is_kept:
        cached = {"answers": Answers(None) if again else user_answers()}
    else:
        cached = {}
    with RowsLine() as progress:
        return validate(**kwargs, **cached, progress=progress.rows)


def memory(
    sample: Annotated[bool, Option("Replay a sample of rows (a few seconds).")] = False,
    sources: Sources = None,
    again: Again = False,
    brief: Brief = False,
    details: Details = False,
    json: Json = None,
) -> None:
    """Compare published peak memory with the model, worst first, and check which layouts fit.

    Example: trine validate memory
    """
    from trine.validation.memory import load_stored_memory, validate_memory

    options = {"sample": sample, "sources": sources}
    _answer(_report(load_stored_memory, validate_memory, again, options, is_kept=False), json, brief, details)


def serving(
    sample: Annotated[bool, Option("Predict a few rows of each model, GPU, engine and precision.")] = False,
    again: Annotated[bool, Option("Predict all rows instead of printing the stored report.")] = False,
    brief: Brief = False,
    details: Details = False,
    json: Json = None,
) -> None:
    """Compare published latency and throughput of inference engines with predictions.

    Example: trine validate serving
    """
    from trine.validation.serving import load_stored_serving, validate_serving

    options = {"sample": sample}
    _answer(_report(load_stored_serving, validate_serving, again, options, is_kept=False), json, brief, details)


def operators(
    gpu: Annotated[list[str] | None, Option("Use only this GPU's rows; may be repeated.")] = None,
    sample: Annotated[bool, Option("Use one of ten shapes (about a minute).")] = False,
    brief: Brief = False,
    details: Details = False,
    json: Json = None,
) -> None:
    """Predict measured operator times with shapes or whole GPUs left out, and on another GPU.

    Example: trine validate operators --sample --gpu t4
    """
    from trine.validation.operators import SAMPLED, OperatorValidation, answers, steps

    step = SAMPLED if sample else 1
    errors, finished = until_stopped(answers(steps(gpu or (), every=step)))
    validation = OperatorValidation(errors=tuple(errors), every=step, finished=finished)
    _answer(validation, json, brief, details)


def scaling(brief: Brief = False, details: Details = False, json: Json = None) -> None:
    """Predict published scaling efficiency on 8 GPUs from the row on one.

    Example: trine validate scaling
    """
    from trine.validation.scaling import validate_scaling

    _answer(validate_scaling(), json, brief, details)


def _answer(validation: Validation, json: str | None, brief: bool, details: bool) -> None:
    """Show an answer and write its JSON; leave with the exit code of a run that was stopped, if it was."""
    if brief and validation.origin:
        show(f"{validation.headline}; {validation.origin}", json)
    else:
        show_answer(validation, json, brief, details)
    write_json(validation, json, validation.SCHEMA.replace("-", " "))
    end(validation.finished)
