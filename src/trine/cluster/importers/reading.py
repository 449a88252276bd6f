"""What the readers of machines' files have in common: the GPU model asked for, and the cluster at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from trine.cluster.cluster import Cluster
from trine.cluster.importers.media import Media
from trine.cluster.importers.wiring import Draft, assemble


class Reader(Protocol):
    """What a reader of a machine's file has when it is through."""

    file: str
    draft: Draft
    media: Media
    notes: list[str]
    library: str | None


def read_out(reader: Reader, how: str) -> Cluster:
    """The cluster that a reader has drafted; ``how`` the file came about, for its sources."""
    reader.media.check()
    return assemble(
        Path(reader.file).stem,
        reader.draft.devices,
        reader.draft.wires,
        file=reader.file,
        sources={"structure": f"{Path(reader.file).name}, {how}", **reader.media.choices.used},
        notes=reader.notes,
        library=reader.library,
    )


def gpu_named(name: str | None) -> str | None:
    """The GPU model of this name or alias. Raises SpecError where there is none."""
    if name is None:
        return None
    from trine.cluster.gpus import load_gpu

    return load_gpu(name).name
