"""Durations of collectives from load-store runs, interpolated over sizes and cached in memory and on disk."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from trine.cluster.cluster import Cluster
from trine.common._version import __version__
from trine.common.inputs import read_at_most
from trine.common.observer import ignore, observing
from trine.common.outputs import open_whole
from trine.common.user_folders import user_cache
from trine.errors import InputError
from trine.gpu.collective.options import LoadStoreOptions, model_for
from trine.gpu.collective.runs import LoadStoreRuns
from trine.gpu.fabric import GpuFabric

#: Files and folders that durations depend on besides the input; changing one of them changes all keys.
_SOURCES = ("gpu", "engine", "graph", "common", "cluster", "presets/links.yaml")


class GroupDurations:
    """Durations on one cluster. ``num_runs``: the number of load-store runs so far.

    Callers pass each group with the name of its class (:class:`EquivalenceClasses`); each class is run once.
    """

    def __init__(self, cluster: Cluster, options: LoadStoreOptions, cache: DurationCache) -> None:
        self.cluster, self.options, self.cache = cluster, options, cache
        self.num_runs = 0
        self._groups: dict[tuple[object, ...], _GroupSizes] = {}
        self._joined: dict[tuple[int, ...], bool] = {}

    def of(
        self, kind: str, size_bytes: int, ranks: Sequence[int], group_class: bytes, algorithm: str | None = None
    ) -> tuple[int, str]:
        """Return (ps, program) of one collective of at least one byte. algorithm: overrides the options' algorithm.

        Raises KeyboardInterrupt if Ctrl-C stops a run.
        """
        key = (kind, len(ranks), group_class, algorithm)
        if key not in self._groups:
            options = self.options if algorithm is None else replace(self.options, algorithm=algorithm)
            runs = LoadStoreRuns(kind, self.cluster, ranks, options)
            self._groups[key] = _GroupSizes(runs, self._key(runs, group_class), self.cache)
        group = self._groups[key]
        runs_before = group.num_runs
        with observing(progress=ignore):  # it would count requests, not the tasks of the step
            answer = duration_ps(size_bytes, lambda size: group.at(size)[0]), group.at(around(size_bytes)[1])[1]
        self.num_runs += group.num_runs - runs_before
        return answer

    def are_joined(self, ranks: tuple[int, ...]) -> bool:
        """Return whether rank 0 and every other rank of the group reach each other over scale-up links alone."""
        if ranks not in self._joined:
            gpus = [self.cluster.gpus[rank] for rank in ranks]
            is_connected = len(set(self.cluster.scale_up_components[gpus].tolist())) == 1
            self._joined[ranks] = is_connected and self._reach_each_other(gpus)
        return self._joined[ranks]

    def _reach_each_other(self, gpus: Sequence[int]) -> bool:
        fabric = GpuFabric(self.cluster, gpus, model_for(self.options, self.cluster, gpus))
        try:
            for rank in range(1, len(gpus)):
                fabric.paths(0, rank)
                fabric.paths(rank, 0)
        except InputError:
            return False
        return True

    def _key(self, runs: LoadStoreRuns, group_class: bytes) -> dict[str, Any]:
        """Return everything that a duration depends on."""
        options, programs = runs.options, runs.programs
        model = {
            name: value for name, value in asdict(runs.model).items() if name not in ("evidence", "sources", "notes")
        }
        return {
            "trine": __version__,
            "sources": hash_of_sources(_SOURCES),
            "cluster": self._fingerprint,
            "group": hashlib.sha256(group_class).hexdigest(),
            "num_ranks": len(runs.ranks),
            "model": model,
            "op": runs.op,
            "algorithm": options.algorithm,
            "protocol": programs.protocol,
            "workgroups": programs.workgroups,
            "wavefronts": programs.wavefronts,
            "bookkeeping": programs.bookkeeping,
        }

    @cached_property
    def _fingerprint(self) -> str:
        return self.cluster.fingerprint


class _GroupSizes:
    """Durations at the grid sizes, for one collective on the groups of one class."""

    def __init__(self, runs: LoadStoreRuns, key: Mapping[str, Any], cache: DurationCache) -> None:
        self.runs, self.key, self.cache = runs, key, cache
        self.durations: Durations = cache.read(key)
        self.num_runs = 0

    def at(self, size_bytes: int) -> tuple[int, str]:
        if size_bytes not in self.durations:
            row = self.runs.row(size_bytes)
            if not row.finished:
                raise KeyboardInterrupt
            self.num_runs += 1
            self.durations[size_bytes] = row.time.time_ps, row.time.algorithm
            self.cache.add(self.key, size_bytes, *self.durations[size_bytes])
        return self.durations[size_bytes]


@cache
def hash_of_sources(names: tuple[str, ...]) -> str:
    """Return a hash of trine's files and folders of these names."""
    digest = hashlib.sha256()
    root = Path(__file__).parents[2]
    for name in names:
        path = root / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(f"{file.relative_to(root)}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()


_FORMAT, _VERSION = "trine-loadstore-durations", 1
_MAX_BYTES, _MAX_ENTRIES, _MAX_NAME = 1 << 20, 4096, 256
#: Largest number of files in a folder; the least recently written files are deleted beyond it.
MAX_FILES = 512

#: size in bytes -> (duration in ps, the program)
Durations = dict[int, tuple[int, str]]


def user_folder() -> Path | None:
    """Return ``$XDG_CACHE_HOME/trine/loadstore``, by default below ``~/.cache``; None without a home folder."""
    base = user_cache()
    return None if base is None else base / "trine" / "loadstore"


class DurationCache:
    """A cache of one file per key in ``folder``; None disables it. ``notes``: problems, as sentences.

    A key is plain data; a file is used only if it holds the whole key and every entry is valid.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.notes: list[str] = []

    def read(self, key: Mapping[str, Any]) -> Durations:
        """Return the durations of ``key``; empty if its file is missing, or damaged (with a note)."""
        path = self._path(key)
        if path is None or not path.exists():
            return {}
        try:
            durations = _durations(path, key)
        except OSError as error:
            self._note(f"cannot read {path} ({error.strerror or error}): it is not used")
            return {}
        if durations is None:
            self._note(f"{path} is damaged: it is not used, and is written anew")
            return {}
        return durations

    def add(self, key: Mapping[str, Any], size_bytes: int, time_ps: int, name: str) -> None:
        """Add one duration to the cache; add a note if the file cannot be written."""
        path = self._path(key)
        if path is None:
            return
        durations = self.read(key)
        durations[size_bytes] = time_ps, name
        rows = [[size, *durations[size]] for size in sorted(durations)][:_MAX_ENTRIES]
        data = {"format": _FORMAT, "version": _VERSION, "key": key, "durations": rows}
        try:
            # Write atomically: other processes may write the same file
            path.parent.mkdir(parents=True, exist_ok=True)
            with open_whole(os.fspath(path), follow=False) as file:
                file.write(json.dumps(data, separators=(",", ":"), allow_nan=False).encode())
            _drop_old(path.parent)
        except OSError as error:
            self._note(f"durations of collectives are not kept: cannot write {path.parent} ({error.strerror or error})")

    def _path(self, key: Mapping[str, Any]) -> Path | None:
        if self.folder is None:
            return None
        text = json.dumps(key, sort_keys=True, separators=(",", ":"))
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()}.json"

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def _durations(path: Path, key: Mapping[str, Any]) -> Durations | None:
    """Return the entries of a file, or None if it differs in any way from the output of :meth:`DurationCache.add`."""
    with path.open("rb") as file:
        text = read_at_most(file, _MAX_BYTES + 1)
    if len(text) > _MAX_BYTES:
        return None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or set(data) != {"format", "version", "key", "durations"}:
        return None
    if (data["format"], data["version"], data["key"]) != (_FORMAT, _VERSION, dict(key)):
        return None
    rows = data["durations"]
    if not isinstance(rows, list) or len(rows) > _MAX_ENTRIES or not all(map(_is_row, rows)):
        return None
    return {size: (time_ps, name) for size, time_ps, name in rows}


def _is_row(row: object) -> bool:
    if not isinstance(row, list) or len(row) != 3:
        return False
    size, time_ps, name = row
    are_whole = all(type(number) is int and 0 < number < 1 << 62 for number in (size, time_ps))
    return are_whole and isinstance(name, str) and len(name) <= _MAX_NAME


def _drop_old(folder: Path) -> None:
    files = [Path(entry) for entry in os.scandir(folder) if entry.name.endswith((".json", ".part"))]
    if len(files) <= MAX_FILES:
        return
    files.sort(key=_written_at)
    for path in files[: len(files) - MAX_FILES]:
        path.unlink(missing_ok=True)


def _written_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # another process has dropped it in the meantime
        return 0.0


#: The smallest and the largest size that is run. Durations of larger sizes continue the line through the durations at
#: half of the largest size and at the largest size.
LEAST, MOST = 16, 16 << 20
#: Grid sizes per doubling.
STEPS = 4


def around(size_bytes: int) -> tuple[int, int]:
    """Return the two grid sizes between which to interpolate; both are ``size_bytes`` if it is a grid size.

    Below the grid, both are its first size; above it, the two sizes to extrapolate from.
    """
    if size_bytes <= LEAST:
        return LEAST, LEAST
    if size_bytes > MOST:
        return MOST // 2, MOST
    step = (1 << (size_bytes.bit_length() - 1)) // STEPS
    low = size_bytes // step * step
    return (low, low) if low == size_bytes else (low, low + step)


def duration_ps(size_bytes: int, duration_at: Callable[[int], int]) -> int:
    """Interpolate linearly; ``duration_at`` returns the duration at a grid size. Never below the lower grid size's."""
    low, high = around(size_bytes)
    low_ps = duration_at(low)
    if low == high:
        return low_ps
    rise = max(0, duration_at(high) - low_ps)
    return low_ps + rise * (size_bytes - low) // (high - low)
