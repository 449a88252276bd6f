"""Clusters by name, from presets/clusters/*.yaml, or by the path of a file."""

from __future__ import annotations

import os
from pathlib import Path

from trine.cluster.cluster import Cluster
from trine.errors import SpecError, nearest

_FOLDER = Path(__file__).parent.parent / "presets" / "clusters"


def known_clusters() -> tuple[str, ...]:
    """Names of the clusters that come with trine, sorted."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


def load_cluster(name_or_path: str | os.PathLike[str]) -> Cluster:
    """Return a preset by its name, or read a cluster file.

    Anything with a path separator or one of the suffixes .yaml, .yml and .json is a file.

    Raises
    ------
    SpecError: unknown name (names the nearest), or a file that cannot be read.
    """
    name = os.fspath(name_or_path)
    if isinstance(name_or_path, str) and name in known_clusters():
        return Cluster.from_yaml(_FOLDER / f"{name}.yaml")
    if os.sep in name or Path(name).suffix in (".yaml", ".yml", ".json") or Path(name).is_file():
        return Cluster.from_yaml(name)
    raise SpecError(f"unknown cluster {name!r}{nearest(name, known_clusters())} (or give the path of a file)")
