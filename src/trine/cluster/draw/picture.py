"""Elements of a cluster drawing: marks, frames and lines, in units of one device's width and gap."""

from __future__ import annotations

from dataclasses import dataclass, field

from trine.cluster.cluster import Cluster
from trine.cluster.parts import Link

#: Limits on drawn devices inside hosts and on switches in one row of the fabric; a note covers the rest.
MAX_INSIDE, MAX_ROW, MAX_SIDE, MAX_CIRCLE = 64, 14, 8, 48
MORE = "more"


@dataclass
class Mark:
    """A device at a position; ``kind`` :data:`MORE` stands for devices that are not drawn."""

    x: float
    y: float
    kind: str
    label: str


@dataclass(frozen=True)
class Frame:
    """A box around a host's devices."""

    left: float
    bottom: float
    right: float
    top: float
    label: str


@dataclass(frozen=True)
class DrawnLink:
    """``count`` parallel links of the same appearance between two marks; ``bend``: offset from the straight line."""

    a: int
    b: int
    link: Link
    count: int = 1
    one_way: bool = False
    bend: float = 0.0


@dataclass
class Picture:
    """A whole drawing. ``hints``: dashed lines to undrawn devices; ``extra``: links between marks, by mark number."""

    marks: list[Mark] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    lines: list[DrawnLink] = field(default_factory=list)
    hints: list[tuple[int, int]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    of_device: dict[int, int] = field(default_factory=dict)
    extra: list[tuple[int, int, Link]] = field(default_factory=list)

    def add(self, cluster: Cluster, device: int, x: float, y: float, prefix: str = "") -> None:
        """Draw a device; its label is its name without the prefix (the host's name)."""
        found = cluster.devices[device]
        self.of_device[device] = len(self.marks)
        self.marks.append(Mark(x, y, found.kind, short(found.name.removeprefix(prefix))))

    def more(self, x: float, y: float, label: str) -> int:
        """Add a mark that stands for undrawn devices, and return its number."""
        self.marks.append(Mark(x, y, MORE, label))
        return len(self.marks) - 1


def short(name: str) -> str:
    """Return a label that fits a device: it keeps the end of a long name, the more informative part."""
    return name if len(name) <= 12 else f"…{name[-11:]}"
