"""Running of experiments: preparation of the directory, the run, and the compacted table."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Mapping
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from trine.common._version import __version__
from trine.common.arguments import named_arguments
from trine.common.outputs import write_json
from trine.common.plugins import load_target
from trine.errors import InputError, MissingExtraError
from trine.experiments.executors import make_workers
from trine.experiments.experiment import Experiment
from trine.experiments.fields import check_files, is_inside
from trine.experiments.run import OnProgress, run_points
from trine.experiments.spec import (
    CLI_QUESTION,
    RESULT_VERSION,
    SPEC_FILE,
    ExperimentSpec,
    Shard,
    canonical,
    read_experiment,
    spec_of,
    stored_spec,
)
from trine.experiments.worker import Question, check_question, name_of

#: Function that returns the name of an option of a command, from any of its spellings.
_OPTION_NAME = "trine.cli.record:option_name"


@named_arguments
def sweep(
    experiment: ExperimentSpec | Mapping[str, Any] | str | os.PathLike[str],
    directory: str | os.PathLike[str] | None = None,
    *,
    executor: Executor | None = None,
    processes: int | None = None,
    scheduler: str | None = None,
    shard: str | None = None,
    progress: OnProgress | None = None,
    question: Question | None = None,
) -> Experiment:
    """Answer every point of an experiment that has no answer yet, in parallel; a restart repeats points in flight only.

    Parameters
    ----------
    experiment: a specification, its fields as a mapping, an experiment file, or the directory of an experiment.
    directory: folder for the results, created if needed. By default the name of the file without its ending.
    executor: any ``concurrent.futures.Executor``; processes: number of local processes (by default one per CPU);
        scheduler: address of a Dask scheduler. At most one of the three.
    shard: ``i/n`` answers every n-th point, starting with point i, so that n jobs share the experiment.
    progress: called with (answered, failed, all points of this run).
    question: your function (command, settings) -> record, in place of trine's command. A directory never chooses it.

    Raises
    ------
    InputError: an unknown command or field (names the nearest), contradictory arguments, a directory that holds
        another experiment, or one that asks another function. StorageError: the disk refuses a write.
    MissingExtraError: Dask or optuna is missing. SimulationError: workers stay lost.
    """
    spec, folder = _spec_and_folder(experiment, directory, question)
    check_question(spec, question)
    part = Shard() if shard is None else Shard.parse(shard)
    if part.of > 1 and spec.search is not None:
        raise InputError("a search needs the results of all trials: it has no shards", field="shard")
    most = -(-spec.size // (2 * part.of))
    workers = make_workers(executor=executor, processes=processes, scheduler=scheduler, most=most,
                           needs_script=question is not None and question.__module__ == "__main__")  # fmt: skip
    prepare_folder(folder, spec)
    run_points(folder.resolve(), spec, workers, part, progress, question)
    finished = Experiment(folder)
    if part.of == 1 and not finished.left:
        with suppress(MissingExtraError):  # the journals have everything
            finished.compact()
    return finished


def _spec_and_folder(
    experiment: Any, directory: str | os.PathLike[str] | None, question: Question | None
) -> tuple[ExperimentSpec, Path]:
    """Return the resolved specification and its directory. A new experiment takes the name of the question."""
    is_path = isinstance(experiment, str | os.PathLike)
    if is_path and (path := Path(experiment)).is_dir():
        if directory is not None and Path(directory) != path:
            raise InputError(f"{path} is a directory already: leave the second one out", field="directory")
        spec = stored_spec(path)
        now = replace(spec, inputs={}).with_inputs() if spec.question == CLI_QUESTION else spec
        for file, digest in spec.inputs.items():
            if now.inputs.get(file) != digest:
                raise InputError(f"has changed since the experiment in {path} began", file=file)
        return spec, path
    if is_path:
        spec, folder = read_experiment(experiment), Path(directory or path.with_suffix(""))
        if folder == path:
            raise InputError("needs a directory: an experiment file ends in .yaml or .json", file=path)
    else:
        if directory is None:
            raise InputError("needs a folder for the results", field="directory")
        folder = Path(directory)
        spec = experiment if isinstance(experiment, ExperimentSpec) else spec_of(experiment, "experiment")
    if question is not None and spec.question == CLI_QUESTION:
        spec = replace(spec, question=name_of(question))
    return resolved(spec, folder), folder


def resolved(spec: ExperimentSpec, folder: Path) -> ExperimentSpec:
    """Return the specification with the option names of its command and the digests of its input files.

    Raises InputError: an unknown command, option, or field of a file; names the nearest.
    """
    if spec.question != CLI_QUESTION:
        return spec
    name = load_target(_OPTION_NAME)
    settings = {name(spec.command, each): value for each, value in spec.settings.items()}
    vary = {name(spec.command, each): axis for each, axis in spec.vary.items()}
    spec = replace(spec, settings=settings, vary=vary).with_inputs()
    first = {**spec.settings, **(spec.fields_of(0) if spec.search is None else {})}
    if any(map(is_inside, first)):
        check_files(first, folder)
    return spec


def prepare_folder(folder: Path, spec: ExperimentSpec) -> None:
    """Create the directory, or check that it holds this experiment. Raises InputError if it holds another one."""
    if (folder / SPEC_FILE).is_file():
        old, new = stored_spec(folder).document(), spec.document()
        for name in new:
            if canonical(old[name]) != canonical(new[name]):  # as text: the order of varied fields numbers the points
                change = f"{name} was {old[name]!r:.80}, not {new[name]!r:.80}"
                raise InputError(f"holds another experiment: {change}; give another folder", file=folder)
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write: {error.strerror or error}", file=folder) from None
    others = [each.name for each in folder.iterdir() if each.name != "files" and not each.name.startswith(".")]
    if others:
        raise InputError(f"is no experiment and not empty ({others[0]:.40}): choose another folder", file=folder)
    write_json(folder / SPEC_FILE, spec.document(), follow=False)
    environment = {
        "trine": __version__, "result_version": RESULT_VERSION, "python": platform.python_version(),
        **{name: version(name) for name in ("numpy", "numba")}, "platform": platform.platform(),
        "host": socket.gethostname(), "cpus": os.cpu_count(),
    }  # fmt: skip
    write_json(folder / "environment.json", {RESULT_VERSION: environment}, follow=False)
