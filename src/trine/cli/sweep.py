"""``trine sweep`` and ``trine plot``: a question at many points, and a picture of the answers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from trine.cli.options import OUTPUT, Brief, Details, Json, Option, Parquet, argument
from trine.cli.output import EXIT_FAILED, end, keep_input, say, show, show_answer, to_terminal, write_json, written
from trine.cli.progress import RowsLine
from trine.common.outputs import drop_link
from trine.errors import InputError

if TYPE_CHECKING:
    from trine.experiments import Experiment, ExperimentSpec

WORKERS = "Workers"


def sweep(
    experiment: Annotated[str, argument("Experiment file, or directory of an experiment to continue.", "EXPERIMENT")],
    directory: Annotated[str | None, Option("Keep the results in this folder [the file's name].", "DIR")] = None,
    processes: Annotated[int | None, Option("Use N processes [one per CPU].", panel=WORKERS)] = None,
    scheduler: Annotated[str | None, Option("Use the workers of a Dask scheduler.", "tcp://HOST:PORT", WORKERS)] = None,
    shard: Annotated[str | None, Option("Answer every n-th point only, from point i.", "i/n", WORKERS)] = None,
    status: Annotated[bool, Option("Print the progress, and run nothing.", panel=OUTPUT)] = False,
    repair: Annotated[bool, Option("Set damaged lines of the journals aside, then go on.", panel=WORKERS)] = False,
    compact: Annotated[bool, Option("Compact the journals to points.parquet, and run nothing.", panel=OUTPUT)] = False,
    brief: Brief = False,
    details: Details = False,
    json: Json = None,
    parquet: Parquet = None,
) -> None:
    """Answer a question at every point of EXPERIMENT, in parallel; start it again to go on after a kill.

    Example: trine sweep layouts.yaml
    """
    from trine.experiments import Experiment

    if repair + status + compact > 1:
        raise InputError("--repair, --status and --compact are separate requests: give one")
    if repair:
        for path in Experiment(_folder(experiment, directory)).repair():
            say(f"note: set aside as {path}")
    if status or compact:
        existing = Experiment(_folder(experiment, directory))
        if compact:
            say(f"written: {existing.compact()}")
        with to_terminal(json):
            show(existing.headline, json)
        write_json(existing.progress(), json, "sweep", "experiment-progress")
        return
    watched = run_watched(experiment, directory, processes=processes, scheduler=scheduler, shard=shard)
    answer = watched.experiment
    if shard is not None:
        words = f"shard {shard}: {watched.answered:,} points answered now, {watched.failed:,} of them failed"
        show(f"{words}\nnext: trine sweep {answer.directory} --compact, after the last shard", json)
        if json is not None:  # the counts of the whole experiment are in the journals of all shards
            write_json(answer.progress(), json, "sweep", "experiment-progress")
        end(watched.is_finished)
        return
    show_answer(answer, json, brief, details)
    write_json(answer, json, "sweep")
    end_points(answer, watched.is_finished, parquet)


class WatchedRun(NamedTuple):
    """An experiment that ran with a line of progress; ``is_finished``: False if Ctrl-C ended it early.

    answered, failed: points of this run.
    """

    experiment: Experiment
    answered: int
    failed: int
    is_finished: bool


def run_watched(experiment: ExperimentSpec | str, directory: str | None, **workers: Any) -> WatchedRun:
    """Run an experiment with a line of progress. workers: as of :func:`trine.sweep`.

    Raises KeyboardInterrupt before the first answer.
    """
    from trine.experiments import Experiment
    from trine.experiments import sweep as run

    num_answered = num_failed = 0

    def report(answered: int, failed: int, total: int) -> None:
        nonlocal num_answered, num_failed
        num_answered, num_failed = answered, failed
        line.rows(answered, total)

    try:
        with RowsLine("points answered") as line:
            answer = run(experiment, directory, progress=report, **workers)
            return WatchedRun(answer, num_answered, num_failed, is_finished=True)
    except KeyboardInterrupt:
        folder = _folder(experiment, directory) if isinstance(experiment, str) else str(directory)
        if not os.path.isdir(folder) or not (answer := Experiment(folder)).counts[0]:
            raise
        return WatchedRun(answer, num_answered, num_failed, is_finished=False)


def end_points(answer: Experiment, is_finished: bool, parquet: str | None) -> None:
    """Write the table of an experiment; exit with 130 after Ctrl-C, and with 1 if every point failed."""
    written(parquet, answer.to_parquet, "points written to {}")
    end(is_finished)
    answered, failed = answer.counts
    if answered and answered == failed:
        raise SystemExit(EXIT_FAILED)


def _folder(experiment: str, directory: str | None) -> str:
    """Return the directory of an experiment, from itself or from its file."""
    if directory is not None:
        return directory
    return experiment if Path(experiment).is_dir() else os.fspath(Path(experiment).with_suffix(""))


def plot(
    experiment: Annotated[str, argument("Directory of an experiment.", "EXPERIMENT")],
    axes: Annotated[list[str], argument("Columns: x=gpus y=tokens_per_s color=tp.", "x=NAME y=NAME [color=NAME]")],
    output: Annotated[
        str | None, Option("Write the picture to this file (PNG, SVG, PDF) [in EXPERIMENT].", "FILE", OUTPUT)
    ] = None,
) -> None:
    """Draw one result of EXPERIMENT against a field.

    Example: trine plot layouts x=gpus y=tokens_per_s color=tp
    """
    from trine.experiments import Experiment

    chosen: dict[str, str] = {}
    for text in axes:
        name, _, column = text.partition("=")
        if name not in ("x", "y", "color") or not column:
            raise InputError(f"{text!r:.80} is no axis: give x=COLUMN, y=COLUMN and color=COLUMN")
        chosen[name] = column
    for name in ("x", "y"):
        if name not in chosen:
            raise InputError(f"{name} is missing: give x=COLUMN and y=COLUMN")
    answer = Experiment(experiment)
    target = output or os.path.join(experiment, f"{chosen['y']}-by-{chosen['x']}.png".replace("/", "-"))
    keep_input(target)
    if output is None:
        drop_link(target)
    answer.plot("points", path=target, **chosen)
    unfit = answer.num_unfit
    if unfit:
        hollow = f"; hollow: {unfit:,} point{'' if unfit == 1 else 's'} whose job does not fit in memory"
    else:
        hollow = ""
    say(f"drawn in {target}{hollow}")
