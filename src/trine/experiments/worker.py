"""The work of a worker process: answer the points of a task, and write each to the journal of the process."""

from __future__ import annotations

import gc
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from trine.common.observer import unobserved
from trine.common.plugins import load_target
from trine.common.spec import parse_json
from trine.common.work_reports import doing
from trine.errors import InputError, StorageError, TrineError, one_line
from trine.experiments.fields import with_changed_files
from trine.experiments.journal import Entry, WorkerJournal, lines_of
from trine.experiments.spec import (
    CLI_QUESTION,
    RESULT_VERSION,
    SPEC_FILE,
    ExperimentSpec,
    Settings,
    Shard,
    StoredFile,
    canonical,
    digest,
    spec_of,
    stored_spec,
)

_MAX_REASON = 300


#: The caller's function that answers a point: (command, settings) -> flat record.
Question = Callable[[str, Settings], Mapping[str, Any]]


class Task(NamedTuple):
    """Points for one call of a worker.

    spec: :attr:`ExperimentSpec.text`; its id if the text is long, and workers read it from the directory. points:
    numbers, with the fields that a search chose, else None. claim: file that tells a repeated call which journals the
    first one wrote, and exists while the driver waits for the call; "" if the executor repeats no call. question: the
    caller's function; None: trine's own question. No text of a file ever becomes a function.
    """

    spec: str
    directory: str
    shard: Shard
    points: tuple[tuple[int, Settings | None], ...]
    claim: str = ""
    version: str = RESULT_VERSION
    question: Question | None = None


@lru_cache(maxsize=8)
def _spec(text: str, directory: str) -> ExperimentSpec:
    if text[0] != "{":
        spec = stored_spec(Path(directory))
        if spec.id != text:
            raise InputError("has changed while its points are answered", file=Path(directory, SPEC_FILE))
        return spec
    return spec_of(parse_json(text, "experiment"), "experiment", StoredFile)


#: Journals of this process by (process, directory, shard); a forked process opens another one.
_journals: dict[tuple[int, str, Shard], WorkerJournal] = {}
#: Held while a journal is opened: threads of a process share one.
_opening = Lock()


def _journal(task: Task, spec: ExperimentSpec) -> WorkerJournal | None:
    """Return the journal of this process, or None if the directory is not visible here."""
    return open_journal(task, spec) if Path(task.directory, SPEC_FILE).is_file() else None


def open_journal(task: Task, spec: ExperimentSpec) -> WorkerJournal:
    """Return the journal of this process for a task's shard."""
    key = (os.getpid(), task.directory, task.shard)
    with _opening:
        if key not in _journals:
            _journals[key] = WorkerJournal(Path(task.directory), spec, task.shard)
        return _journals[key]


def close_journals(directory: Path) -> None:
    """Write the journals that this process has open in a directory to the disk, and close them."""
    for key in [key for key in _journals if key[1] == str(directory)]:
        _journals[key].sync()
        _journals.pop(key).close()


def start_worker() -> None:
    """Prepare a process of a local pool; it ends with its driver, because a restarted driver repeats its point."""
    import signal
    from threading import Thread

    Thread(target=_end_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver decides what Ctrl-C ends
    gc.set_threshold(200_000, 2, 2)  # as in the command line: points make many objects that live shortly


def _end_with_parent() -> None:
    from multiprocessing import parent_process
    from multiprocessing.connection import wait

    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def answer_task(task: Task) -> list[Entry]:
    """Answer the points of a task and write them to the journal.

    Returns the entries; ``"is_written"`` is False in those that this process could not write.

    Raises InputError if this process runs another version of trine than the driver.
    """
    if task.version != RESULT_VERSION:
        raise InputError(f"a worker has result version {RESULT_VERSION}, the experiment {task.version}")
    spec = _spec(task.spec, task.directory)
    journal = _journal(task, spec)
    known = _claimed(task, journal, spec.size) if journal is not None and task.claim else {}
    entries = []
    for point, chosen in task.points:
        if journal is not None and task.claim and not Path(task.claim).exists():
            raise RuntimeError("the driver has the answer, or has been restarted")  # nobody waits for this call
        entry = known.get(point)
        if entry is None:
            fields = spec.fields_of(point) if chosen is None else chosen
            with doing(point_words(point, fields)):
                entry = answer(spec, point, fields, Path(task.directory), task.question)
            if journal is not None:
                journal.append(entry)
        entries.append({**entry, "is_written": journal is not None})
    if journal is not None:
        journal.sync()
    return entries


def point_words(point: int, fields: Settings) -> str:
    """Return the number of a point and its fields, for the live page."""
    values = ", ".join(f"{name} {value}" for name, value in fields.items())
    return f"point {point + 1}: {values}" if values else f"point {point + 1}"


def _claimed(task: Task, journal: WorkerJournal, size: int) -> dict[int, Entry]:
    """Return the points of this task that an earlier call of it wrote, and note this process's journal for later ones.

    A scheduler that loses a worker gives its task to another worker.
    """
    with Path(task.claim).open("r+", encoding="utf-8") as file:
        paths = sorted(set(file.read().splitlines()))
        file.write(f"{journal.path}\n")
    return {line.point: line.entry() for path in paths for line in lines_of(Path(path), size)}


def answer(
    spec: ExperimentSpec, point: int, fields: Settings, directory: Path, question: Question | None = None
) -> Entry:
    """Return the entry of one point; errors of the input or the simulation become its reason.

    Raises StorageError if the disk refuses a changed file, InputError without the function of a Python question.
    """
    if question is None:
        check_question(spec, None)
    began = time.perf_counter()
    settings = {**spec.settings, **fields}
    entry = failed_entry(spec, point, fields, "")
    try:
        plain, identity = with_changed_files(settings, directory if directory.is_dir() else _local_folder())
        entry["key"] = _fingerprint(spec, identity)
        with unobserved():
            result = (question or load_target(CLI_QUESTION))(spec.command, plain)
        canonical(result)  # a result that JSON cannot hold is the point's failure
        del entry["reason"]
        entry |= {"status": "done", "result": result}
    except StorageError:
        raise
    except Exception as error:  # whatever the question raises is the point's result
        name = "" if isinstance(error, TrineError) else f"{type(error).__name__}: "
        entry["reason"] = one_line(f"{name}{error}", _MAX_REASON)
    entry["seconds"] = round(time.perf_counter() - began, 6)
    return entry


def check_question(spec: ExperimentSpec, question: Question | None) -> None:
    """Raise InputError unless the experiment asks trine's own question or this function.

    An experiment's directory may come from somebody else, so its text never names a function to import.
    """
    name = CLI_QUESTION if question is None else name_of(question)
    if spec.question == name:
        return
    if question is None:
        raise InputError(
            f"asks the Python function {spec.question!r:.80}, which trine does not import: call "
            "trine.sweep(..., question=FUNCTION) in Python if you trust it", field="question",
        )  # fmt: skip
    raise InputError(f"asks {spec.question!r:.80}, and the function is {name!r:.80}", field="question")


def name_of(question: Question) -> str:
    """Return ``module:function``. Raises InputError for a function that other processes cannot import."""
    module, name = getattr(question, "__module__", None), getattr(question, "__qualname__", "")
    if not module or not name or "<" in name:
        raise InputError(
            "must be a function of a module: no lambda, inner function or object (workers import it by its name)",
            field="question",
        )
    return f"{module}:{name}"


def failed_entry(spec: ExperimentSpec, point: int, fields: Settings, reason: str) -> Entry:
    """Return the entry of a point without an answer."""
    key = _fingerprint(spec, {**spec.settings, **fields})
    return {"point": point, "key": key, "status": "failed", "fields": fields, "reason": reason, "seconds": 0.0}


def _fingerprint(spec: ExperimentSpec, settings: Mapping[str, Any]) -> str:
    """Return the fingerprint of a point's resolved input and the result version."""
    inputs = [spec.question, spec.command, sorted(settings.items()), sorted(spec.inputs.items()), RESULT_VERSION]
    return digest(canonical(inputs))


@lru_cache(maxsize=1)
def _local_folder() -> Path:
    """Return a folder for changed files on a machine that does not see the experiment's directory."""
    return Path(tempfile.mkdtemp(prefix="trine-files-"))
