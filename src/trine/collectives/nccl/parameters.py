"""Software costs of a collective library, from presets/collectives/*.yaml; each number there has its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast

from trine.common.inputs import PRESETS, preset_names
from trine.errors import InputError, nearest

_FOLDER = PRESETS / "collectives"

LL, LL128, SIMPLE, P2P = "ll", "ll128", "simple", "p2p"
#: Default costs for unknown media, by the beginning of the medium's name.
FALLBACKS = (
    ("nvlink-c2c", "default-pcie"), ("nvlink", "default-nvlink"), ("xgmi", "default-xgmi"), ("pcie", "default-pcie"),
    ("upi", "default-pcie"), ("qpi", "default-pcie"), ("infinity", "default-pcie"), ("ddr", "default-pcie"),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Medium:
    """Costs of one kind of link. Times in microseconds, software only; efficiencies are shares of a link's rate.

    ``step_us``, ``efficiency``: rings and trees, by protocol. ``ramp``: mutual delay of steps and bytes, by protocol.
    ``p2p_step_us``, ``p2p_efficiency``, ``p2p_base_us``: messages to one peer (all-to-all, send/recv). ``nvls_us``,
    ``nvls_efficiency``: in-network reduction. ``channels``: channels of a ring collective. ``evidence``: of these
    numbers.
    """

    name: str
    step_us: Mapping[str, float]
    base_us: Mapping[str, float]
    efficiency: Mapping[str, float]
    ramp: Mapping[str, float]
    p2p_step_us: float
    p2p_base_us: float
    p2p_efficiency: float
    spread_us: float
    copy_GBps: float
    channels: int
    evidence: str
    nvls_us: float = 0.0
    nvls_efficiency: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Library:
    """One library. ``launch_us``: by launch convention, times ``launch_factor`` of the GPU's generation.

    ``extra_steps``: per collective, unhidden bytes of a ring, in steps. ``tree_efficiency``: throughput of a tree
    relative to a ring. ``bands``: (largest size, low, high) factors.
    """

    name: str
    version: str
    launch_us: Mapping[str, float]
    launch_factor: Mapping[str, float]
    extra_steps: Mapping[str, float]
    tree_efficiency: float
    media: Mapping[str, Medium]
    bands: Mapping[str, tuple[tuple[int, float, float], ...]]
    sources: Mapping[str, str] = field(default_factory=dict)

    def medium(self, name: str, between: bool) -> Medium:
        """Return the costs of a medium, inside or between domains; unknown media get the default of their kind."""
        if name in self.media:
            return self.media[name]
        if between:
            return self.media["default-net"]
        return self.media[next((kind for start, kind in FALLBACKS if name.startswith(start)), "default-nvlink")]


@lru_cache(maxsize=8)
def load_library(name: str) -> Library:
    """Read the costs of ``nccl`` or ``rccl``. Raises InputError for another name."""
    names = preset_names(_FOLDER)
    if name not in names:
        raise InputError(f"unknown collective library {name!r}{nearest(name, names)}", field="library")
    from trine.common.spec import load_mapping

    return library_from(cast("Mapping[str, Any]", load_mapping(_FOLDER / f"{name}.yaml")))


def library_from(data: Mapping[str, Any]) -> Library:
    """Build a library from the mapping in its file; a medium inherits missing values from ``default-nvlink``."""
    default = data["media"]["default-nvlink"]
    media = {}
    for name, values in data["media"].items():
        merged = {**default, **values}
        for key in ("step_us", "base_us", "efficiency", "ramp"):
            merged[key] = {**default[key], **values.get(key, {})}
        media[name] = Medium(name=name, **merged)
    fields = {key: data[key] for key in data if key not in ("media", "bands")}
    bands = {}
    for kind, rows in data["bands"].items():
        bands[kind] = tuple((int(row[0]), float(row[1]), float(row[2])) for row in rows)
    return Library(media=media, bands=bands, **fields)
