"""The check of trace readers."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory

from trine.errors import TrineError
from trine.graph.workload import Workload
from trine.testing.require import require
from trine.workload.native import check_workload, load_native, save
from trine.workload.readers import TraceReader


def check_reader(reader: TraceReader, path: str | Path) -> None:
    """Check that ``reader`` finds and reads the trace at ``path``, and leaves alone what is not its own.

    What it reads is not empty, does not contradict itself, is the same each time and survives trine's own format
    unchanged. An empty folder is not its own: ``find`` returns None there, so that the next reader is asked.
    """
    where = f"trace reader {reader.name!r}"
    require(bool(reader.name) and bool(reader.looks_for), f"{where}: needs a name and a text looks_for")
    with TemporaryDirectory() as folder:
        _require_finds_nothing(reader, Path(folder), where)
    try:
        found = reader.find(Path(path))
        if not found:
            raise AssertionError(f"{where}: finds nothing at {path}; it looks for {reader.looks_for}")
        for role, file in found.items():
            require(isinstance(file, Path) and file.exists(), f"{where}: found {file!r} as {role!r}, which is no file")
        workload, again = reader.read(found, None), reader.read(found, None)
        require(isinstance(workload, Workload), f"{where}: reads {workload!r}, which is no Workload")
        require(workload == again, f"{where}: another workload when {path} is read again")
        check_workload(workload, Path(path))
        given = reader.read(found, workload.batch).batch
        require(given == workload.batch, f"{where}: batch {workload.batch} was given, the workload has {given}")
    except TrineError as error:
        raise AssertionError(f"{where}: {error}") from error
    require(len(workload.operators) > 0, f"{where}: read no operator from {path}")
    for op in workload.operators:
        require(op.gpu_time_ps >= 0, f"{where}: operator {op.id} ({op.name}) takes {op.gpu_time_ps} ps")
    _require_round_trip(workload, where)


def _require_finds_nothing(reader: TraceReader, folder: Path, where: str) -> None:
    try:
        found = reader.find(folder)
    except TrineError as error:
        raise AssertionError(f"{where}: find() must return None for an empty folder, not raise: {error}") from error
    require(found is None, f"{where}: finds {found!r} in an empty folder; find() must return None there")


def _require_round_trip(workload: Workload, where: str) -> None:
    """Write the workload in trine's own format and read it back."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "a.trine.json"
        try:
            save(workload, file)
            back = load_native(file)
        except TrineError as error:
            raise AssertionError(f"{where}: the workload does not survive trine's own format: {error}") from error
    for field in fields(Workload):
        before, after = getattr(workload, field.name), getattr(back, field.name)
        require(
            before == after,
            f"{where}: {field.name} of the workload comes back different from trine's own format: {before!r:.200} "
            f"became {after!r:.200}",
        )
