"""The ranks of a run in a folder: traces of the PyTorch profiler, or dumps of its flight recorder."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from trine.errors import InputError, TraceError
from trine.runs.causes import find_causes
from trine.runs.flight_recorder import Dump, dump_from_json, is_dump
from trine.runs.hang import find_hangs
from trine.runs.hang_result import HangCheck
from trine.runs.json_stream import EVENTS, read_values
from trine.runs.kineto_rank import rank_from_kineto
from trine.runs.measured_run import MeasuredRun, measured_run
from trine.runs.rank_trace import RankTrace
from trine.runs.result import RunCheck
from trine.runs.waits import rank_waits

#: Most files of a folder.
MAX_FILES = 4096
_RANK = re.compile(r"rank[-_. ]?(\d{1,7})|(\d{1,7})$", re.IGNORECASE)
_PICKLE = b"\x80"
_ENDINGS = (".json", ".json.gz", ".gz")


def check_folder(folder: str | os.PathLike[str]) -> RunCheck | HangCheck:
    """Return the causes of lost time in a run, or the reason why it hangs.

    folder: Kineto traces (``.json``, ``.json.gz``) or flight recorder dumps as JSON, one file per rank; or one such
    file. Raises InputError and TraceError for a folder without a readable rank, or with ranks of different jobs.
    """
    found = _read(Path(folder))
    if found.traces and found.dumps:
        words = f"mixes traces ({found.traces[0].file}) and dumps ({found.dumps[0].file}): check them separately"
        raise InputError(words, file=folder)
    notes = tuple(f"skipped: {fault}" for fault in found.faults)
    if found.dumps:
        hangs = find_hangs(found.dumps)
        return HangCheck(folder=str(folder), num_dumps=len(found.dumps), hangs=hangs, warnings=notes)
    run = measured_run(found.traces)
    return RunCheck(
        folder=str(folder), run=run, causes=find_causes(run), waits=rank_waits(run), warnings=(*notes, *run.notes)
    )


def read_run(path: str | os.PathLike[str]) -> MeasuredRun:
    """Return the run of the traces in a folder, or of one trace. Raises InputError and TraceError as check_folder."""
    found = _read(Path(path))
    if found.dumps:
        raise InputError("is a dump of the flight recorder, which has no times of kernels", file=found.dumps[0].file)
    return measured_run(found.traces)


@dataclass(slots=True)
class _Ranks:
    """What a folder has: traces, dumps, and faults of files that are neither."""

    traces: list[RankTrace] = field(default_factory=list)
    dumps: list[Dump] = field(default_factory=list)
    faults: list[TraceError] = field(default_factory=list)


def _read(folder: Path) -> _Ranks:
    """Read all files of a folder. Raises the first fault if there is no rank."""
    found = _Ranks()
    for path in _files(folder):
        try:
            rank = _read_file(path)
        except TraceError as error:
            found.faults.append(error)
            continue
        if isinstance(rank, RankTrace):
            found.traces.append(rank)
        else:
            found.dumps.append(rank)
    if not found.traces and not found.dumps:
        if len(found.faults) == 1:
            raise found.faults[0]
        first = f"; the first of {len(found.faults)} files: {found.faults[0]}" if found.faults else ""
        raise InputError(f"has no readable rank: expected Kineto traces or flight recorder dumps as .json{first}",
                         file=folder)  # fmt: skip
    return found


def _files(folder: Path) -> list[Path]:
    if folder.is_file():
        return [folder]
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", file=folder) from None
    paths = []
    for name in names:
        path = folder / name
        if not name.startswith(".") and path.is_file() and (name.endswith(_ENDINGS) or "." not in name):
            paths.append(path)
    if len(paths) > MAX_FILES:
        raise InputError(f"has {len(paths)} files, more than {MAX_FILES}", file=folder)
    return [path for path in paths if path.name != "SHA256SUMS"]


def _read_file(path: Path) -> RankTrace | Dump:
    """Return the rank of one file. Raises TraceError for a file that is no trace and no dump."""
    with path.open("rb") as file:
        if file.read(1) == _PICKLE:
            raise TraceError("is a pickle, which is not read: write the dump as JSON "
                             "(torch._C._distributed_c10d._dump_nccl_trace_json())", file=path)  # fmt: skip
    rank = _rank_in(path)
    values = read_values(path)
    header: dict[str, object] = {}
    for key, value in values:
        if key == EVENTS:
            return rank_from_kineto(path, chain(header.items(), [(key, value)], values), rank)
        header[key] = value
    if is_dump(header):
        return dump_from_json(path, header, rank)
    raise TraceError("has no list of traceEvents and no entries of a flight recorder", file=path)


def _rank_in(path: Path) -> int | None:
    """Return the rank that the file's name states, None if it states none."""
    stem = path.name
    for ending in (".gz", ".json", ".trace", ".pt"):
        stem = stem.removesuffix(ending)
    found = _RANK.search(stem)
    return None if found is None else int(found[1] or found[2])
