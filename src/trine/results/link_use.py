"""The bytes over a link in a step, and how busy it was."""

from __future__ import annotations

from dataclasses import dataclass, field

from trine.results.columns import column


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkUse:
    """Traffic of one link in a step; utilisation is bytes / (capacity x step time). ``count`` links are alike.

    ``tier``: group of links with the same role, such as ``gpu-nvswitch`` or ``leaf-spine``; "" if unknown.
    """

    link: int
    name: str = field(metadata=column("link"))
    size_bytes: int = field(metadata=column("bytes"))
    bytes_per_s: int
    utilisation: float
    count: int = field(default=1, metadata=column("links_alike"))
    tier: str = field(default="", metadata=column(none=""))
