"""Layout of hosts side by side, each a frame with its NICs on top and its NVSwitch below; the fabric in rows above."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise

from trine.cluster.cluster import Cluster
from trine.cluster.parts import GPU, HOST, SCALE_UP, SWITCH, Link

# Elements of a cluster drawing: marks, frames and lines, in units of one device's width and gap.

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
        shown_device = cluster.devices[device]
        self.of_device[device] = len(self.marks)
        self.marks.append(Mark(x, y, shown_device.kind, short(shown_device.name.removeprefix(prefix))))

    def more(self, x: float, y: float, label: str) -> int:
        """Add a mark that stands for undrawn devices, and return its number."""
        self.marks.append(Mark(x, y, MORE, label))
        return len(self.marks) - 1


def short(name: str) -> str:
    """Return a label that fits a device: it keeps the end of a long name, the more informative part."""
    return name if len(name) <= 12 else f"…{name[-11:]}"


_ROW = 1.25
_STEP = 1.12
#: Maximum number of identical switches in a row; a row with more shows half this number.
MAX_IDENTICAL = 4


def lay_out_hosts(cluster: Cluster, picture: Picture) -> None:
    """Place the devices of all hosts that fit, and the fabric around them."""
    hosts = _hosts(cluster)
    next_x, tops, waiting = 0.0, 0.0, []
    for run, quota in _runs(cluster, hosts):
        for name, members in run[:quota]:
            places = _positions_in_host(cluster, members)
            right = max(x for x, _ in places.values())
            left = min(x for x, _ in places.values())
            width = right - left
            shift = next_x - min(x for x, _ in places.values())
            prefix = f"{name}." if name else ""
            for device, (x, y) in places.items():
                picture.add(cluster, device, x + shift, y, prefix)
            if name:
                picture.frames.append(_frame(cluster, name, members, places, shift))
            tops = max(tops, *(y for _, y in places.values()))
            next_x += width + 2.0
        if len(run) > quota:
            mark = picture.more(next_x + 0.5, tops, f"x {len(run) - quota}\nmore")
            waiting.append((mark, {device for _, members in run[quota:] for device in members}))
            next_x += 2.6
    _fabric(cluster, picture, tops + 1.9, waiting)


def _hosts(cluster: Cluster) -> list[tuple[str, list[int]]]:
    """Return devices by host, in order; devices without a host follow, except switches."""
    members: dict[str, list[int]] = {}
    loose: list[int] = []
    outside = outside_switches(cluster)
    for i, device in enumerate(cluster.devices):
        if i in outside:
            continue
        if device.node is not None:
            members.setdefault(device.node, []).append(i)
        else:
            loose.append(i)
    hosts = list(members.items())
    if loose:
        step = MAX_INSIDE // 2 if len(loose) > MAX_INSIDE else len(loose)
        hosts.append(("", loose[:step]))
    return hosts


def _runs(
    cluster: Cluster, hosts: Sequence[tuple[str, list[int]]]
) -> Iterable[tuple[list[tuple[str, list[int]]], int]]:
    """Return runs of consecutive identical hosts, and the number of hosts to draw from each."""
    place = {device: (n, i) for n, (_, members) in enumerate(hosts) for i, device in enumerate(members)}

    def looks(entry: tuple[str, list[int]]) -> object:
        members = entry[1]
        inner = [
            (place[link.source][1], place[link.target][1], link.bytes_per_s)
            for device in members
            for link in cluster.links_from(device)
            if link.target in place and place[link.target][0] == place[device][0]
        ]
        return [replace(cluster.devices[i], name="", node=None, rail=None) for i in members], inner

    runs = [list(run) for _, run in groupby(hosts, key=looks)]
    fits = MAX_INSIDE // max(1, max(len(members) for _, members in hosts))
    quota = max(1, fits // len(runs))
    shares = []
    for run in runs:
        shares.append((run, len(run) if len(run) <= quota else min(quota, 2)))
    return shares


def _frame(
    cluster: Cluster, name: str, members: Sequence[int], places: Mapping[int, tuple[float, float]], shift: float
) -> Frame:
    models = [cluster.devices[i].gpu or "GPU" for i in members if cluster.devices[i].kind == GPU]
    counts = ", ".join(f"{models.count(model)} x {model}" for model in dict.fromkeys(models))
    columns = [x for x, _ in places.values()]
    lines = [y for _, y in places.values()]
    xs, ys = columns, lines
    spans = [
        abs(places[link.source][0] - places[link.target][0])
        for i in members
        for link in cluster.links_from(i)
        if cluster.devices[i].kind == cluster.devices[link.target].kind == GPU and link.target in places
    ]
    arcs = 0.15 * max(spans, default=0.0) if min(ys) == 0 else 0.0  # level lines between GPUs bend below them
    return Frame(
        min(xs) + shift - 0.75, min(ys) - 0.85 - arcs, max(xs) + shift + 0.75, max(ys) + 0.5,
        f"{name}: {counts}" if counts else name,
    )  # fmt: skip


def _positions_in_host(cluster: Cluster, members: Sequence[int]) -> dict[int, tuple[float, float]]:
    """Return positions of a host's devices; from below: scale-up switches, GPUs, PCIe switches, processors, NICs."""
    rows = _rows(cluster, members)
    x: dict[int, float] = {}
    for device in rows:
        if cluster.devices[device].kind == GPU:
            x[device] = len(x) * _STEP
    by_height: dict[float, list[int]] = {}
    for device, height in rows.items():
        by_height.setdefault(height, []).append(device)
    for _ in range(3):  # placed devices pull their neighbours; three rounds reach all levels
        for height in sorted(by_height, key=lambda h: (abs(h), h)):
            row = [device for device in by_height[height] if cluster.devices[device].kind != GPU]
            _place_row(row, {d: _pull(cluster, d, x) for d in row}, x)
    return {device: (x[device], height * _ROW) for device, height in rows.items()}


def _rows(cluster: Cluster, members: Sequence[int]) -> dict[int, float]:
    """Return the row of each device, counted from the GPUs' row."""
    kinds = {i: cluster.devices[i].kind for i in members}
    scale_up = {
        link.target
        for i in members
        if kinds[i] == GPU
        for link in cluster.links_from(i)
        if link.link_class == SCALE_UP and kinds.get(link.target) == SWITCH
    }
    processors = dict.fromkeys((i for i in members if kinds[i] == HOST), 0)
    depth = _spread(cluster, processors, {i for i in members if kinds[i] == SWITCH} - scale_up)
    deepest = max([depth[i] for i in members if kinds[i] == SWITCH and i in depth], default=0)
    rows: dict[int, float] = {}
    for i in members:
        if kinds[i] == GPU:
            rows[i] = 0.0
        elif i in scale_up:
            rows[i] = -1.0
        elif kinds[i] == SWITCH:
            rows[i] = 1.0 + deepest - depth.get(i, deepest)
        elif kinds[i] == HOST:
            rows[i] = 1.0 + deepest if deepest else 1.0
        else:
            rows[i] = 2.0 + deepest
    return rows


def _spread(cluster: Cluster, levels: dict[int, int], among: set[int]) -> dict[int, int]:
    """Add to ``levels`` the devices of ``among`` that links reach from there, one level more per link; return it."""
    frontier = list(levels)
    while frontier:
        following = []
        for device in frontier:
            for link in cluster.links_from(device):
                if link.target in among and link.target not in levels:
                    levels[link.target] = levels[device] + 1
                    following.append(link.target)
        frontier = following
    return levels


def _pull(cluster: Cluster, device: int, x: Mapping[int, float]) -> float | None:
    """Return the mean position of a device's placed neighbours of other kinds (for a switch, of any kind)."""
    kind = cluster.devices[device].kind
    near = [
        x[link.target]
        for link in cluster.links_from(device)
        if link.target in x and (kind == SWITCH or cluster.devices[link.target].kind != kind)
    ]
    return sum(near) / len(near) if near else None


def _place_row(row: Sequence[int], pulls: Mapping[int, float | None], x: dict[int, float]) -> None:
    """Place a row's devices close to their wanted positions, at least one step apart."""
    placed = [value for value in pulls.values() if value is not None]
    middle = sum(placed) / len(placed) if placed else 0.0
    want = {}
    for each, value in pulls.items():
        want[each] = middle if value is None else value
    order = sorted(row, key=lambda device: (want[device], device))
    places: list[float] = []
    for device in order:
        places.append(want[device] if not places else max(want[device], places[-1] + _STEP))
    shift = sum(want[device] - place for device, place in zip(order, places, strict=True)) / max(1, len(order))
    for device, place in zip(order, places, strict=True):
        x[device] = place + shift


def outside_switches(cluster: Cluster) -> set[int]:
    """Return the switches outside hosts: without a node, or in a node of switches only (a rack of trays)."""
    with_others = {device.node for device in cluster.devices if device.kind != SWITCH} - {None}
    return {i for i, d in enumerate(cluster.devices) if d.kind == SWITCH and d.node not in with_others}


def fabric_levels(cluster: Cluster) -> dict[int, int]:
    """Return the level of each switch outside hosts: 1 next to a device of a host or a GPU, one more per link."""
    outside = outside_switches(cluster)
    near = {link.target for link in cluster.links if link.source not in outside and link.target in outside}
    return _spread(cluster, dict.fromkeys(near, 1), outside)


def _fabric(cluster: Cluster, picture: Picture, bottom: float, waiting: Sequence[tuple[int, set[int]]]) -> None:
    """Draw rows of switches by level above the hosts; scale-up switches shared by GPUs of several hosts go below."""
    level = fabric_levels(cluster)
    below = {
        link.target
        for i in cluster.gpus
        for link in cluster.links_from(i)
        if link.target in level and link.link_class == SCALE_UP and cluster.devices[i].node is not None
    }
    x = {device: picture.marks[mark].x for device, mark in picture.of_device.items()}
    lowest = min((mark.y for mark in picture.marks), default=0.0)
    rows: dict[int, list[int]] = {}
    last: dict[int, int] = {}
    for device, height in level.items():
        rows.setdefault(0 if device in below else height, []).append(device)
    for height, row in sorted(rows.items()):
        y = lowest - 2.2 if height == 0 else bottom + (height - 1) * 1.9
        last[height] = _fabric_row(cluster, picture, row, y, x)
    ends = [last[height] for height in sorted(last) if height]
    hidden = []
    for pair in pairwise(ends):
        if all(picture.marks[end].kind == MORE for end in pair):
            hidden.append(pair)
    picture.hints += hidden
    for mark, _ in waiting if last else ():
        picture.hints.append((mark, ends[0] if ends else last[0]))


def _fabric_row(cluster: Cluster, picture: Picture, row: list[int], y: float, x: dict[int, float]) -> int:
    """Draw a row of the switches that lead to drawn devices; one mark replaces the rest, or all but two identical ones.

    Return the mark at the right end.
    """
    pulls = {device: _pull(cluster, device, x) for device in row}
    drawn = [device for device in row if pulls[device] is not None][:MAX_ROW] or row[:MAX_ROW]
    joined = set()
    for each in row:
        joined.add(frozenset((link.target, link.bytes_per_s) for link in cluster.links_from(each)))
    if len(row) > MAX_IDENTICAL and len(joined) == 1:
        drawn = drawn[: MAX_IDENTICAL // 2]
    places = [mark.x for mark in picture.marks]
    left, right = min(places, default=0.0), max(places, default=0.0)
    count = len(drawn) + (len(drawn) < len(row))
    gap = max(_STEP * 1.1, (right - left) / max(1, count))
    start = (left + right) / 2 - gap * (count - 1) / 2
    for number, device in enumerate(sorted(drawn, key=lambda d: (pulls[d] is None, pulls[d] or 0.0, d))):
        x[device] = start + gap * number
        picture.add(cluster, device, x[device], y)
    if len(drawn) < len(row):
        return picture.more(start + gap * (count - 1), y, f"+ {len(row) - len(drawn)}")
    return picture.of_device[max(drawn, key=lambda device: x[device])]
