"""The work of a worker process: answer the points of a task, and write each to the journal of the process."""

from __future__ import annotations

import gc
import os
import tempfile
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from trine.common.observer import unobserved
from trine.common.plugins import load_target
from trine.common.spec import parse_json
from trine.errors import InputError, TrineError, one_line
from trine.experiments.fields import with_changed_files
from trine.experiments.journal import Entry, WorkerJournal, lines_of
from trine.experiments.spec import (
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


class Task(NamedTuple):
    """Points for one call of a worker.

    spec: :attr:`ExperimentSpec.text`; its id if the text is long, and workers read it from the directory. points:
    numbers, with the fields that a search chose, else None. claim: file that tells a repeated call which journals the
    first one wrote, and exists while the driver waits for the call; "" if the executor repeats no call.
    """

    spec: str
    directory: str
    shard: Shard
    points: tuple[tuple[int, Settings | None], ...]
    claim: str = ""
    version: str = RESULT_VERSION


@lru_cache(maxsize=8)
def _spec(text: str, directory: str) -> ExperimentSpec:
    if text[0] != "{":
        return stored_spec(Path(directory))
    return spec_of(parse_json(text, "experiment"), "experiment", StoredFile)


#: Journals of this process by (process, directory, shard); a forked process opens another one.
_journals: dict[tuple[int, str, Shard], WorkerJournal] = {}


def _journal(task: Task, spec: ExperimentSpec) -> WorkerJournal | None:
    """Return the journal of this process, or None if the directory is not visible here."""
    return open_journal(task, spec) if Path(task.directory, SPEC_FILE).is_file() else None


def open_journal(task: Task, spec: ExperimentSpec) -> WorkerJournal:
    """Return the journal of this process for a task's shard."""
    key = (os.getpid(), task.directory, task.shard)
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
    known = _claimed(task, journal) if journal is not None and task.claim else {}
    entries = []
    for point, chosen in task.points:
        if journal is not None and task.claim and not Path(task.claim).exists():
            raise RuntimeError("the driver has the answer, or has been restarted")  # nobody waits for this call
        entry = known.get(point)
        if entry is None:
            entry = answer(spec, point, spec.fields_of(point) if chosen is None else chosen, Path(task.directory))
            if journal is not None:
                journal.append(entry)
        entries.append({**entry, "is_written": journal is not None})
    if journal is not None:
        journal.sync()
    return entries


def _claimed(task: Task, journal: WorkerJournal) -> dict[int, Entry]:
    """Return the points of this task that an earlier call of it wrote, and note this process's journal for later ones.

    A scheduler that loses a worker gives its task to another worker.
    """
    with Path(task.claim).open("r+", encoding="utf-8") as file:
        paths = sorted(set(file.read().splitlines()))
        file.write(f"{journal.path}\n")
    return {line.point: line.entry() for path in paths for line in lines_of(Path(path))}


def answer(spec: ExperimentSpec, point: int, fields: Settings, directory: Path) -> Entry:
    """Return the entry of one point; errors of the input or the simulation become its reason."""
    began = time.perf_counter()
    settings = {**spec.settings, **fields}
    entry = failed_entry(spec, point, fields, "")
    try:
        plain, identity = with_changed_files(settings, directory / "files" if directory.is_dir() else _local_folder())
        entry["key"] = _fingerprint(spec, identity)
        with unobserved():
            result = load_target(spec.question)(spec.command, plain)
        canonical(result)  # a result that JSON cannot hold is the point's failure
        del entry["reason"]
        entry |= {"status": "done", "result": result}
    except Exception as error:  # whatever the question raises is the point's result
        name = "" if isinstance(error, TrineError) else f"{type(error).__name__}: "
        entry["reason"] = one_line(f"{name}{error}", _MAX_REASON)
    entry["seconds"] = round(time.perf_counter() - began, 6)
    return entry


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
