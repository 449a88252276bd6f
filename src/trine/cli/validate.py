"""``trine validate``: how far predictions are from measurements that come with trine."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from trine.cli.options import OUTPUT, Brief, Json, Option
from trine.cli.output import end, say, show, show_answer, until_stopped, write_json, writes
from trine.cli.progress import RowsLine

if TYPE_CHECKING:
    from trine.studies.validate_training import TrainingValidation

SHOWN = 25


def collectives(
    machine: Annotated[list[str] | None, Option("Only this machine or family of machines; may be repeated.")] = None,
    every: Annotated[bool, Option(f"Show all rows, not the worst {SHOWN}.", names=("--all",))] = False,
    report: Annotated[str | None, Option("Write the page with its pictures; needs trine[plot].", "DIR", OUTPUT)] = None,
    plot: Annotated[str | None, Option("Draw all errors by size; needs trine[plot].", "FILE", OUTPUT)] = None,
    brief: Brief = False,
    json: Json = None,
) -> None:
    """Replay the bundled measured collectives: error by machine, collective and size, worst first.

    Example: trine validate collectives --machine dgx-h100
    """
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
    show(found.headline if brief else summary_text(found, None if every else SHOWN), json)
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


def loadstore(
    series: Annotated[list[str] | None, Option("Only this series of measurements; may be repeated.")] = None,
    largest: Annotated[str, Option("Leave out larger sizes, which take long to simulate.")] = "1M",
    brief: Brief = False,
    json: Json = None,
) -> None:
    """Published times of communication kernels against the load-store level: small all-reduces, puts, gets, packets.

    Example: trine validate loadstore
    """
    from trine.collectives.sizes import parse_size
    from trine.errors import InputError
    from trine.studies.gpu_measured import KernelValidation, chosen, compare_point

    points = chosen(series, parse_size(largest, "--largest"))
    if not points:
        raise InputError(f"no measurement is as small as {largest}", field="--largest")
    compared, finished = until_stopped(map(compare_point, points))
    found = KernelValidation(compared=tuple(compared), finished=finished)
    show_answer(found, json, brief)
    write_json(found, json, "validate loadstore")
    end(finished)


Sample = Annotated[bool, Option("Some cheap rows of each source, in about a minute.")]
Jobs = Annotated[int | None, Option("Rows at a time [one a core].")]
Blind = Annotated[bool, Option("Fit no factors: nothing of a source is used.")]
Again = Annotated[bool, Option("Ask all rows again, kept answers too; a stopped run goes on without it.")]


def training(
    sample: Sample = False,
    source: Annotated[list[str] | None, Option("Only this source of rows; may be repeated.")] = None,
    software: Annotated[str | None, Option("This profile for all rows [each source's own].")] = None,
    blind: Blind = False,
    rows: Annotated[int | None, Option("At most so many rows of each source [all of them].")] = None,
    report: Annotated[
        str | None, Option("Write the page, of the layouts too, with its pictures; needs trine[plot].", "DIR", OUTPUT)
    ] = None,
    jobs: Jobs = None,
    again: Again = False,
    brief: Brief = False,
    json: Json = None,
) -> None:
    """Replay the bundled published training steps: error by source, GPU, software and scale, worst first.

    Example: trine validate training --sample
    """
    from trine.studies.replay_rows import Answers, user_answers
    from trine.studies.validate_training import validate_training

    with RowsLine() as progress:
        found = validate_training(
            sample=sample, sources=source, software=software, blind=blind, most_rows=rows,
            answers=Answers(None) if again else user_answers(), jobs=jobs,
            progress=lambda done, total: progress(done, total, 0),
        )  # fmt: skip
    show_answer(found, json, brief)
    write_json(found, json, "validate training")
    if report is not None:
        _write_page(found, report, sample or rows is not None, jobs)


def _write_page(found: TrainingValidation, folder: str, sample: bool, jobs: int | None) -> None:
    from trine.studies.replay_rows import user_answers
    from trine.studies.training_page import write_page
    from trine.studies.validate_layouts import validate_layouts

    with RowsLine() as progress:
        layouts = validate_layouts(
            sample=sample, answers=user_answers(), jobs=jobs, progress=lambda done, total: progress(done, total, 0)
        )
    with writes():
        for path in write_page(found, layouts, folder):
            say(f"wrote {path}")


def layouts(
    sample: Sample = False,
    software: Annotated[str | None, Option("This profile for all rows [nanotron-2024].")] = None,
    blind: Blind = False,
    jobs: Jobs = None,
    again: Again = False,
    brief: Brief = False,
    json: Json = None,
) -> None:
    """Replay the layouts of the Ultra-Scale Playbook: how well trine ranks them, and what its choice costs.

    Example: trine validate layouts --sample
    """
    from trine.studies.replay_rows import Answers, user_answers
    from trine.studies.validate_layouts import validate_layouts

    with RowsLine() as progress:
        found = validate_layouts(
            sample=sample, software=software, blind=blind, answers=Answers(None) if again else user_answers(),
            jobs=jobs, progress=lambda done, total: progress(done, total, 0),
        )  # fmt: skip
    show_answer(found, json, brief)
    write_json(found, json, "validate layouts")


def memory(
    sample: Annotated[bool, Option("Some rows of each source, in some seconds.")] = False,
    source: Annotated[list[str] | None, Option("Only this source of rows; may be repeated.")] = None,
    brief: Brief = False,
    json: Json = None,
) -> None:
    """Published peak memory against the modelled, worst first, and which layouts fit.

    Example: trine validate memory --sample
    """
    from trine.errors import InputError, nearest
    from trine.studies.memory_rows import SOURCES
    from trine.studies.validate_memory import validate_memory

    for name in source or ():
        if name not in SOURCES:
            raise InputError(f"unknown source {name[:40]!r}{nearest(name[:80], SOURCES)}", field="--source")
    with RowsLine() as progress:
        found = validate_memory(
            sample=sample, sources=source, progress=lambda done, total: progress(done, total, 0)
        )  # fmt: skip
    show_answer(found, json, brief)
    write_json(found, json, "validate memory")


def operators(
    gpu: Annotated[list[str] | None, Option("Only this GPU; may be repeated.")] = None,
    sample: Annotated[bool, Option("One of ten shapes, in a minute.")] = False,
    brief: Brief = False,
    json: Json = None,
) -> None:
    """Operator times by measured tables: shapes left out, times moved to another GPU, whole GPUs left out.

    Example: trine validate operators --sample --gpu t4
    """
    from trine.studies.operator_errors import SAMPLED, answers, steps
    from trine.studies.validate_operators import OperatorValidation

    every = SAMPLED if sample else 1
    errors, finished = until_stopped(answers(steps(gpu or (), every=every)))
    found = OperatorValidation(errors=tuple(errors), every=every, finished=finished)
    show_answer(found, json, brief)
    write_json(found, json, "validate operators")
    end(finished)


def scaling(brief: Brief = False, json: Json = None) -> None:
    """Published steps on 1 and 8 GPUs: the efficiency on 8, predicted from the row on one.

    Example: trine validate scaling
    """
    from trine.studies.scaling_report import validate_scaling

    found = validate_scaling()
    show_answer(found, json, brief)
    write_json(found, json, "validate scaling")
