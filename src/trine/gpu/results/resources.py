"""Utilisation of the resources of a load-store run: inside the GPUs, and the lanes of the links between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trine.cluster.parts import SCALE_UP
from trine.common.arrays import Int32, Int64
from trine.common.units import PS_PER_S
from trine.gpu.fabric import distance, rank_grid
from trine.gpu.model import MESH
from trine.gpu.program import DMA
from trine.gpu.results.run import KernelRun
from trine.results.columns import column
from trine.results.intervals import sum_by_group

#: Kinds of resources in the order a request reaches them, and their names in reports.
KIND_NAMES = {
    "cu": "CU links of the NoC",
    "noc": "NoC links",
    "lane": "lanes of fabric links",
    "l2": "L2 slices",
    "memory": "memory channels",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class KindUse:
    """Utilisation of one kind of resource.

    count: resources in the simulated GPUs (lanes: of the used links); used: resources with traffic. busy_ps: sum over
    all; busiest_ps, busiest, busiest_rank: the busiest resource, and the rank of its GPU (-1: a lane). data, control:
    messages with and without data; for memory and L2, lines and semaphore operations. time_ps: time of the run.
    """

    kind: str
    count: int
    used: int
    busy_ps: int
    busiest_ps: int
    busiest: str
    busiest_rank: int = field(metadata=column(none=-1))
    data: int = field(metadata=column("data_messages"))
    control: int = field(metadata=column("control_messages"))
    time_ps: int

    @property
    def mean_utilisation(self) -> float:
        return share(self.busy_ps, self.count * self.time_ps)

    @property
    def max_utilisation(self) -> float:
        return share(self.busiest_ps, self.time_ps)


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneUse:
    """Utilisation of one link of the cluster. busy_ps: sum over its lanes; ``used``: lanes with traffic, of ``lanes``.

    from_gpu: whether it starts at one of the ranks' GPUs. data_bytes, control_bytes: with headers. time_ps: of the run.
    """

    link: int
    name: str = field(metadata=column("link"))
    bytes_per_s: int
    lanes: int
    used: int = field(metadata=column("lanes_used"))
    busy_ps: int
    busiest_ps: int
    data: int = field(metadata=column("data_messages"))
    control: int = field(metadata=column("control_messages"))
    data_bytes: int
    control_bytes: int
    from_gpu: bool
    time_ps: int

    @property
    def utilisation(self) -> float:
        """Busy time of its lanes / (lanes x time)."""
        return share(self.busy_ps, self.lanes * self.time_ps)

    @property
    def max_lane_utilisation(self) -> float:
        return share(self.busiest_ps, self.time_ps)


class Traffic(NamedTuple):
    """Messages with data and without, and their bytes with headers."""

    data: int
    control: int
    data_bytes: int
    control_bytes: int

    @property
    def control_share_of_bytes(self) -> float:
        return share(self.control_bytes, self.data_bytes + self.control_bytes)


def share(part: float, whole: float) -> float:
    """Return ``part / whole``, 0 for an empty whole."""
    return part / whole if whole else 0.0


class ResourceUses(KernelRun):
    """A kernel run with the utilisation of its resources."""

    @cached_property
    def kinds(self) -> tuple[KindUse, ...]:
        """Utilisation of the resources, by kind."""
        order = list(KIND_NAMES)
        return tuple(sorted((*_inside(self), *_lanes(self)), key=lambda use: order.index(use.kind)))

    @cached_property
    def links(self) -> tuple[LaneUse, ...]:
        """Utilisation of the cluster's used links."""
        records, cluster = self.records, self.cluster
        chosen = used_lanes(self)
        links, row = np.unique(records.lane_link[chosen].astype(np.int64), return_inverse=True)
        num, lanes = len(links), lanes_of_links(self, links)
        data, control, busy = (
            sum_by_group(row, values[chosen], num)
            for values in (records.lane_data, records.lane_control, records.lane_busy_ps)
        )
        busiest = np.zeros(num, np.int64)
        np.maximum.at(busiest, row, records.lane_busy_ps[chosen])
        used = np.bincount(row, minlength=num)
        gpus = {int(device) for device in self.group}
        uses = []
        for i, number in enumerate(links.tolist()):
            link = cluster.links[number]
            bytes_per_s = cluster.seen_by_messages(number)[0]
            traffic = _bytes(self, int(data[i]), int(control[i]), int(busy[i]), bytes_per_s // int(lanes[i]))
            uses.append(
                LaneUse(
                    link=number, name=link.name, bytes_per_s=bytes_per_s, lanes=int(lanes[i]), used=int(used[i]),
                    busy_ps=int(busy[i]), busiest_ps=int(busiest[i]), **traffic._asdict(), from_gpu=link.source in gpus,
                    time_ps=self.time_ps,
                )
            )  # fmt: skip
        return tuple(uses)


def used_lanes(result: ResourceUses) -> Int64:
    """Return the rows of the lanes that a message crossed; the records have other lanes too."""
    return np.flatnonzero(result.records.lane_data + result.records.lane_control)


def exists(result: ResourceUses) -> npt.NDArray[np.bool_]:
    """Return which resources exist; a mesh's links over its edge have names only."""
    resources = result.records.resources
    is_noc = np.array([kind == "noc" for kind in resources.kinds])
    edge = is_noc & (np.array(resources.source) < 0) & (result.model.noc.kind == MESH)
    return ~edge


def _inside(result: ResourceUses) -> Iterator[KindUse]:
    records, is_present = result.records, exists(result)
    kinds = np.array(result.records.resources.kinds)
    for kind in KIND_NAMES:
        chosen = np.flatnonzero(is_present & (kinds == kind))
        if not len(chosen):
            continue
        busy = records.resource_busy_ps[:, chosen]
        data, control = records.resource_data[:, chosen], records.resource_control[:, chosen]
        gpu, place = divmod(int(np.argmax(busy)), len(chosen))
        yield KindUse(
            kind=kind, count=busy.size, used=int(np.count_nonzero(data + control)), busy_ps=int(busy.sum()),
            busiest_ps=int(busy[gpu, place]), busiest=records.resources.names[chosen[place]],
            busiest_rank=int(records.ranks[gpu]), data=int(data.sum()), control=int(control.sum()),
            time_ps=result.time_ps,
        )  # fmt: skip


def _lanes(result: ResourceUses) -> Iterator[KindUse]:
    records = result.records
    used = used_lanes(result)
    if not len(used):
        return
    busiest = int(np.argmax(records.lane_busy_ps))
    yield KindUse(
        kind="lane", count=sum(link.lanes for link in result.links), used=len(used),
        busy_ps=int(records.lane_busy_ps.sum()), busiest_ps=int(records.lane_busy_ps[busiest]),
        busiest=lane_name(result, busiest), busiest_rank=-1, data=int(records.lane_data.sum()),
        control=int(records.lane_control.sum()), time_ps=result.time_ps,
    )  # fmt: skip


def lane_name(result: ResourceUses, lane: int) -> str:
    """Return the name of a lane: its link's name, and the lane's number if the link has several."""
    link = int(result.records.lane_link[lane])
    count = lanes_of_links(result, np.array([link], np.int64))[0]
    name = result.cluster.links[link].name
    return f"{name} lane {int(result.records.lane_number[lane])}" if count > 1 else name


def scale_up_out(result: ResourceUses) -> dict[int, list[int]]:
    """Return the scale-up links out of the device of each rank, in order: device -> links."""
    cluster = result.cluster
    sources = cluster.link_table.source
    links_of: dict[int, list[int]] = {int(device): [] for device in result.group}
    for link in np.flatnonzero(np.isin(sources, list(links_of))).tolist():
        if cluster.links[link].link_class == SCALE_UP:
            links_of[int(sources[link])].append(link)
    return links_of


def lanes_of_links(result: ResourceUses, links: Int64) -> Int64:
    """Return the number of lanes of each link (docs/design/gpu-model.md, *Ports and lanes*): int64[links].

    A GPU's outgoing link has its share of the GPU's ports; a later link is cut like the first links of its routes.
    """
    ports, records = result.model.ports.count, result.records
    out = {device: max(1, ports // len(outgoing)) for device, outgoing in scale_up_out(result).items() if outgoing}
    max_lanes = max(out.values(), default=1)
    cluster = result.cluster
    counts = []
    for link in links.tolist():
        link_spec = cluster.links[link]
        lanes_used = int(records.lane_number[records.lane_link == link].max(initial=0)) + 1
        stated = out.get(link_spec.source, max_lanes) if link_spec.link_class == SCALE_UP else 1
        counts.append(max(stated, lanes_used))
    return np.array(counts, np.int64)


def _bytes(result: ResourceUses, data: int, control: int, busy_ps: int, bytes_per_s: int) -> Traffic:
    """Return the bytes of messages; packet sizes differ, so packet bytes follow from the busy time."""
    model = result.model
    control_bytes = control * model.header_bytes
    if np.any(result.program.op_kind == DMA) or result.records.packets.any():
        return Traffic(data, control, max(0, busy_ps * bytes_per_s // PS_PER_S - control_bytes), control_bytes)
    return Traffic(data, control, data * (model.header_bytes + model.line_bytes), control_bytes)


def fabric_traffic(result: ResourceUses) -> Traffic:
    """Return the simulated GPUs' traffic on links: messages on links out of GPUs, counted at each GPU they leave."""
    out = [link for link in result.links if link.from_gpu]
    return Traffic(*(sum(getattr(link, name) for link in out) for name in Traffic._fields))


def noc_traffic(result: ResourceUses) -> Traffic:
    """Return the traffic of the simulated GPUs' CUs into and out of the NoC."""
    use = next(kind for kind in result.kinds if kind.kind == "cu")
    model = result.model
    return Traffic(
        use.data, use.control, use.data * (model.header_bytes + model.line_bytes), use.control * model.header_bytes
    )


def port_busy(result: ResourceUses, gpu: int) -> list[tuple[float | None, float | None]]:
    """Return the utilisation of the lanes at each I/O port of a simulated GPU, out and in; None: no traffic.

    With several lanes at a port, the busiest. In a folded run one link represents all equal links, at any of the equal
    GPUs: it has the same position among the links of each.
    """
    table = result.cluster.link_table
    ranks = np.flatnonzero(result.records.gpu_of == gpu).tolist()
    sides: list[list[float | None]] = []
    for near_device, far_device in ((table.source, table.target), (table.target, table.source)):
        busy: list[float | None] = [None] * result.model.ports.count
        for rank in ranks:
            _note_lanes(result, _from_near_to_far(result, rank, near_device, far_device), busy)
        sides.append(busy)
    return list(zip(*sides, strict=True))


def _from_near_to_far(result: ResourceUses, rank: int, near_device: Int32, far_device: Int32) -> list[int]:
    """Return a GPU's scale-up links in the order of port assignment.

    near_device, far_device: the devices at their ends. Order: docs/design/gpu-model.md, *Ports and lanes*.
    """
    cluster, group = result.cluster, [int(device) for device in result.group]
    grid, ranks = rank_grid(cluster, group), {device: place for place, device in enumerate(group)}

    def away(link: int) -> int:
        peer = ranks.get(int(far_device[link]))
        return len(group) if peer is None else distance(grid, peer, rank)

    links = np.flatnonzero(near_device == group[rank]).tolist()
    return sorted((link for link in links if cluster.links[link].link_class == SCALE_UP), key=away)


def _note_lanes(result: ResourceUses, links: list[int], busy: list[float | None]) -> None:
    """Add the utilisation of the lanes of a GPU's links to their ports; modifies ``busy`` in place."""
    records, time, used = result.records, max(1, result.time_ps), used_lanes(result)
    chosen = [place for place, link in enumerate(links) if link in records.lane_link[used]]
    widths = lanes_of_links(result, np.array([links[place] for place in chosen], np.int64)).tolist()
    for place, width in zip(chosen, widths, strict=True):
        for row in used[records.lane_link[used] == links[place]].tolist():
            port = (place * width + int(records.lane_number[row])) % len(busy)
            busy[port] = max(busy[port] or 0.0, int(records.lane_busy_ps[row]) / time)
