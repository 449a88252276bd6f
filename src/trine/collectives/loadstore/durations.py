"""Durations of collectives by load-store runs: interpolated over sizes, kept in memory and on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from trine._version import __version__
from trine.cluster.cluster import Cluster
from trine.collectives.loadstore.cache import DurationCache, Known
from trine.collectives.loadstore.grid import around, duration_ps
from trine.collectives.loadstore.options import LoadStoreOptions, model_for
from trine.collectives.loadstore.runs import Callbacks, LoadStoreRuns
from trine.errors import InputError
from trine.gpu.fabric import Fabric

#: What decides durations besides the input: a file that changes makes new keys.
_SOURCES = (
    "gpu", "engine", "graph", "units.py", "collectives/kernels", "collectives/loadstore", "cluster",
    "presets/links.yaml",
)  # fmt: skip


class GroupDurations:
    """Durations on one cluster. ``num_runs``: how many load-store runs were needed.

    Groups are given with a name that those have in common that are alike (:class:`GroupMakes`).
    """

    def __init__(self, cluster: Cluster, options: LoadStoreOptions, kept: DurationCache, callbacks: Callbacks) -> None:
        self.cluster, self.options, self.kept, self.callbacks = cluster, options, kept, callbacks
        self.num_runs = 0
        self._groups: dict[tuple[object, ...], _Group] = {}
        self._joined: dict[tuple[int, ...], bool] = {}

    def of(
        self, kind: str, size_bytes: int, ranks: Sequence[int], make: bytes, algorithm: str | None = None
    ) -> tuple[int, str]:
        """(ps, program) of one collective of at least one byte. algorithm: in place of the options' one.

        Raises KeyboardInterrupt where a run was stopped by Ctrl-C.
        """
        which = (kind, len(ranks), make, algorithm)
        if which not in self._groups:
            options = self.options if algorithm is None else replace(self.options, algorithm=algorithm)
            asked = LoadStoreRuns(kind, self.cluster, ranks, options, self.callbacks)
            self._groups[which] = _Group(asked, self._key(asked, make), self.kept)
        group = self._groups[which]
        before = group.num_runs
        found = duration_ps(size_bytes, lambda size: group.at(size)[0]), group.at(around(size_bytes)[1])[1]
        self.num_runs += group.num_runs - before
        return found

    def are_joined(self, ranks: tuple[int, ...]) -> bool:
        """Whether rank 0 of the group and every other reach each other over scale-up links alone."""
        if ranks not in self._joined:
            gpus = [self.cluster.gpus[rank] for rank in ranks]
            alone = len(set(self.cluster.islands[gpus].tolist())) == 1
            self._joined[ranks] = alone and self._reach_each_other(gpus)
        return self._joined[ranks]

    def _reach_each_other(self, gpus: Sequence[int]) -> bool:
        fabric = Fabric(self.cluster, gpus, model_for(self.options, self.cluster, gpus))
        try:
            for other in range(1, len(gpus)):
                fabric.paths(0, other)
                fabric.paths(other, 0)
        except InputError:
            return False
        return True

    def _key(self, asked: LoadStoreRuns, make: bytes) -> dict[str, Any]:
        """Everything that a duration depends on."""
        options, programs = asked.options, asked.programs
        model = {
            name: value for name, value in asdict(asked.model).items() if name not in ("evidence", "sources", "notes")
        }
        return {
            "trine": __version__,
            "sources": hash_of_sources(_SOURCES),
            "cluster": self._fingerprint,
            "group": hashlib.sha256(make).hexdigest(),
            "num_ranks": len(asked.ranks),
            "model": model,
            "op": asked.op,
            "algorithm": options.algorithm,
            "protocol": programs.protocol,
            "workgroups": programs.workgroups,
            "wavefronts": options.wavefronts,
        }

    @cached_property
    def _fingerprint(self) -> str:
        return self.cluster.fingerprint


class _Group:
    """Sizes of the grid of one collective on groups that are alike."""

    def __init__(self, asked: LoadStoreRuns, key: Mapping[str, Any], kept: DurationCache) -> None:
        self.asked, self.key, self.kept = asked, key, kept
        self.known: Known = kept.read(key)
        self.num_runs = 0

    def at(self, size_bytes: int) -> tuple[int, str]:
        if size_bytes not in self.known:
            row = self.asked.row(size_bytes)
            if not row.finished:
                raise KeyboardInterrupt
            self.num_runs += 1
            self.known[size_bytes] = row.time.time_ps, row.time.algorithm
            self.kept.add(self.key, size_bytes, *self.known[size_bytes])
        return self.known[size_bytes]


@cache
def hash_of_sources(names: tuple[str, ...]) -> str:
    """Hash of trine's files and folders of these names."""
    digest = hashlib.sha256()
    root = Path(__file__).parents[2]
    for name in names:
        path = root / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(f"{file.relative_to(root)}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()
