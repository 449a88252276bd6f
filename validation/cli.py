"""``python -m validation``: compute again how far predictions are from measurements that come with trine."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from trine.cli.completions import software_profiles
from trine.cli.options import OUTPUT, Brief, Details, Json, Option
from trine.cli.output import (
    EXIT_FAILED,
    end,
    say,
    show,
    show_answer,
    to_terminal,
    until_stopped,
    write_json,
    writes,
    written,
)
from trine.cli.progress import RowsLine
from trine.results.text import first_screen

if TYPE_CHECKING:
    from validation.harness import Validation

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

    Example: python -m validation collectives --machine dgx-h100
    """
    from pathlib import Path

    from trine.errors import InputError
    from validation.collectives import select
    from validation.measured import load_measurements
    from validation.report import plot_errors, summary_text, write_report
    from validation.shown import collective_report

    if report is not None and machine:
        raise InputError("the report is about all machines: leave out --machine", field="report")
    validation = collective_report(select(load_measurements(), machine) if machine else None)
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

    Example: python -m validation loadstore
    """
    from trine.collectives.sizes import parse_size
    from trine.errors import InputError
    from validation.gpu.measured import KernelValidation, chosen, compared_or_unread, read_fine_grained
    from validation.harness import UnreadRow

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
Again = Annotated[bool, Option("Replay all rows, also those with kept answers.")]
Stored = Annotated[bool, Option("Take the stored predictions in place of a replay.")]


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
    stored: Stored = False,
    brief: Brief = False,
    details: Details = False,
    json: Json = None,
) -> None:
    """Compare published training steps with predictions: error by source, GPU, software and scale.

    Example: python -m validation training
    """
    from trine.errors import InputError
    from validation.training import load_stored_training, validate_training

    if report is not None and sources:
        raise InputError("the report is about all sources: leave out --source", field="report")
    options = {"sample": sample, "most_rows": most_rows, "software": software, "blind": blind, "jobs": jobs}
    validation = _report(
        load_stored_training if stored else None, validate_training, again, options | {"sources": sources}
    )
    _answer(validation, json, brief, details)
    if report is not None:
        from validation.layouts import load_stored_layouts, validate_layouts
        from validation.training_page import write_page

        layout_validation = _report(load_stored_layouts if stored else None, validate_layouts, again, options)
        with writes():
            for path in write_page(validation, layout_validation, report):
                say(f"wrote {path}")


def layouts(
    sample: Sample = False,
    software: Annotated[str | None, _software("nanotron-2024")] = None,
    blind: Blind = False,
    jobs: Jobs = None,
    again: Again = False,
    stored: Stored = False,
    brief: Brief = False,
    details: Details = False,
    json: Json = None,
) -> None:
    """Compare layouts of the Ultra-Scale Playbook with predictions: rank correlation, and the regret of trine's choice.

    Example: python -m validation layouts
    """
    from validation.layouts import load_stored_layouts, validate_layouts

    options = {"sample": sample, "software": software, "blind": blind, "jobs": jobs}
    load = load_stored_layouts if stored else None
    _answer(_report(load, validate_layouts, again, options), json, brief, details)


def _report(
    load: Callable[[], Found] | None, validate: Callable[..., Found], again: bool, kwargs: dict[str, Any]
) -> Found:
    """Return a report: of stored predictions by ``load``, or of a replay; again: without the user's kept answers."""
    from trine.errors import InputError
    from validation.replay_rows import Answers, user_answers

    if load is not None:
        if again or any(value is not None and value is not False for value in kwargs.values()):
            raise InputError(
                "stored predictions are of all rows, as they are: leave out the other options", field="stored"
            )
        return load()
    with RowsLine() as progress:
        return validate(**kwargs, answers=Answers(None) if again else user_answers(), progress=progress.rows)


def memory(
    sample: Annotated[bool, Option("Replay a sample of rows (a few seconds).")] = False,
    sources: Sources = None,
    brief: Brief = False,
    details: Details = False,
    json: Json = None,
) -> None:
    """Compare published peak memory with the model, worst first, and check which layouts fit.

    Example: python -m validation memory
    """
    from validation.memory import validate_memory

    with RowsLine() as progress:
        validation = validate_memory(sample=sample, sources=sources, progress=progress.rows)
    _answer(validation, json, brief, details)


def serving(
    sample: Annotated[bool, Option("Predict a few rows of each model, GPU, engine and precision.")] = False,
    brief: Brief = False,
    details: Details = False,
    json: Json = None,
) -> None:
    """Compare published latency and throughput of inference engines with predictions.

    Example: python -m validation serving
    """
    from validation.serving import validate_serving

    with RowsLine() as progress:
        validation = validate_serving(sample=sample, progress=progress.rows)
    _answer(validation, json, brief, details)


def operators(
    gpu: Annotated[list[str] | None, Option("Use only this GPU's rows; may be repeated.")] = None,
    sample: Annotated[bool, Option("Use one of ten shapes (about a minute).")] = False,
    brief: Brief = False,
    details: Details = False,
    json: Json = None,
) -> None:
    """Predict measured operator times with shapes or whole GPUs left out, and on another GPU.

    Example: python -m validation operators --sample --gpu t4
    """
    from validation.operators import SAMPLED, OperatorValidation, answers, steps

    step = SAMPLED if sample else 1
    errors, finished = until_stopped(answers(steps(gpu or (), every=step)))
    validation = OperatorValidation(errors=tuple(errors), every=step, finished=finished)
    _answer(validation, json, brief, details)


def scaling(brief: Brief = False, details: Details = False, json: Json = None) -> None:
    """Predict published scaling efficiency on 8 GPUs from the row on one.

    Example: python -m validation scaling
    """
    from validation.scaling import validate_scaling

    _answer(validate_scaling(), json, brief, details)


def accuracy(
    output: Annotated[str, Option("Write the page to this file: NAME.html.", "FILE", OUTPUT)] = "accuracy.html",
    store: Annotated[bool, Option("Make these figures those of the last stored page.", panel=OUTPUT)] = False,
) -> None:
    """Write the page of all errors, and compare its figures with those of the last one; exit 1 if one got worse.

    Example: python -m validation accuracy --output accuracy.html
    """
    from trine.report.html import write_page
    from validation.accuracy import changes, figures, read_stored
    from validation.accuracy import store as store_figures
    from validation.accuracy_page import accuracy_page

    found = figures()
    differing = changes(read_stored(), found)
    for change in differing:
        print(f"{'worse' if change.is_worse else 'changed'}  {change.sentence}")
    worse = sum(change.is_worse for change in differing)
    print(
        f"{len(found):,} figures of stored reports, {len(differing):,} differ from the last page, {worse:,} are worse"
    )
    written(output, lambda path: write_page(accuracy_page(found), path), "page written to {}")
    if store:
        store_figures(found)
    elif worse:
        raise SystemExit(EXIT_FAILED)


def _answer(validation: Validation, json: str | None, brief: bool, details: bool) -> None:
    """Show an answer and write its JSON; leave with the exit code of a run that was stopped, if it was."""
    show_answer(validation, json, brief, details)
    write_json(validation, json, validation.SCHEMA.replace("-", " "))
    end(validation.finished)
