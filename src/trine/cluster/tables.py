"""Devices and links of a large machine as columns; objects are created on access.

2 million links take 24 MB as columns, and 1 GB as objects. Small clusters hold tuples of objects;
:meth:`LinkTable.of` and :meth:`DeviceTable.of` convert these to columns for code that works on whole arrays.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from trine.cluster.names import ChosenNames, EndNames, Lazy
from trine.cluster.parts import GPU, Device, Link
from trine.common.arrays import Int32, Int64, pointers

T = TypeVar("T")
#: Tables of at most this length create and keep all objects on the first access.
KEPT = 1 << 14


class _OnDemand(Lazy[T]):
    """A sequence that creates its items on access; short tables create all at once and keep them."""

    @abstractmethod
    def _create(self, index: int) -> T:
        """Return a new item."""

    @cached_property
    def _items(self) -> tuple[T, ...] | None:
        return tuple(map(self._create, range(len(self)))) if len(self) <= KEPT else None

    def item(self, index: int) -> T:
        return self._create(index) if self._items is None else self._items[index]

    def __iter__(self) -> Iterator[T]:
        return map(self._create, range(len(self))) if self._items is None else iter(self._items)


class DeviceKind(NamedTuple):
    """Attributes shared by many devices, with the field names of :class:`Device`."""

    kind: str
    gpu: str | None
    forwards: bool
    reduces: bool
    rail: int | None
    memory_bytes: int | None


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class DeviceTable(_OnDemand[Device]):
    """Devices as columns.

    ``kind``: int32[devices], index into ``kinds``. ``node``: int32[devices], index into ``node_names``, -1: none.
    ``layout``: the machine's blocks of identical nodes, None if unknown."""

    kinds: tuple[DeviceKind, ...]
    kind: Int32
    node: Int32
    names: Sequence[str]
    node_names: Sequence[str]
    layout: NodeLayout | None = None

    def __len__(self) -> int:
        return len(self.kind)

    def _create(self, index: int) -> Device:
        kind, node = self.kinds[self.kind[index]], int(self.node[index])
        return Device(
            name=self.names[index], kind=kind.kind, gpu=kind.gpu, node=None if node < 0 else self.node_names[node],
            forwards=kind.forwards, reduces=kind.reduces, rail=kind.rail,
            memory_bytes=kind.memory_bytes,
        )  # fmt: skip

    @classmethod
    def of(cls, devices: Sequence[Device]) -> DeviceTable:
        """Return the columns of any devices."""
        if isinstance(devices, DeviceTable):
            return devices
        kinds: dict[DeviceKind, int] = {}
        nodes: dict[str | None, int] = {None: -1}
        kind = [kinds.setdefault(kind_of(device), len(kinds)) for device in devices]
        node = [nodes.setdefault(device.node, len(nodes) - 1) for device in devices]
        device_names = tuple(device.name for device in devices)
        node_names = tuple(name for name in nodes if name is not None)
        return cls(
            kinds=tuple(kinds),
            kind=np.array(kind, np.int32),
            node=np.array(node, np.int32),
            names=device_names,
            node_names=node_names,
        )

    def where(self, *kinds: str) -> npt.NDArray[np.bool_]:
        """Return bool[devices]: whether each device is of one of these kinds."""
        return np.array([kind.kind in kinds for kind in self.kinds], np.bool_)[self.kind]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class LinkTable(_OnDemand[Link]):
    """Links as columns.

    ``source``, ``target``: int32[links], devices. ``number``: int32[links], index into ``numbers``.
    ``numbers``: the distinct link parameters, each a link without name and ends."""

    numbers: tuple[Link, ...]
    number: Int32
    source: Int32
    target: Int32
    names: Sequence[str]
    layout: NodeLayout | None = None

    def __len__(self) -> int:
        return len(self.number)

    def _create(self, index: int) -> Link:
        return self.unnamed(index, self.names[index])

    def unnamed(self, index: int, name: str = "") -> Link:
        """Return a link without its name: generating the name takes longer than the rest."""
        kind: Link = self.numbers[int(self.number[index])]
        return kind.between(int(self.source[index]), int(self.target[index]), name)

    @classmethod
    def of(cls, links: Sequence[Link]) -> LinkTable:
        """Return the columns of any links."""
        if isinstance(links, LinkTable):
            return links
        names = tuple(link.name for link in links)
        return cls.joined(names, ((link.source, link.target, link) for link in links), names)

    @classmethod
    def joined(
        cls, devices: Sequence[str], rows: Iterable[tuple[int, int, Link]], names: Sequence[str] | None = None
    ) -> LinkTable:
        """Return the columns of links given as rows (source, target, link parameters).

        A link without a name, in itself and in ``names``, is named after its ends: ``a->b``, or ``a->b#2`` for a
        parallel one. ``devices``: their names.
        """
        numbers: dict[Link, int] = {}
        number_of: dict[int, tuple[int, Link]] = {}  # by identity: most rows share their links
        ends: list[tuple[int, int]] = []
        number: list[int] = []
        name_of: dict[int, str] = {}
        for source, target, link in rows:
            if id(link) not in number_of:
                number_of[id(link)] = numbers.setdefault(link.bare, len(numbers)), link
            if link.name:
                name_of[len(ends)] = link.name
            ends.append((source, target))
            number.append(number_of[id(link)][0])
        end_columns = np.clip(np.array(ends, np.int64).reshape(-1, 2), -1, np.iinfo(np.int32).max).astype(np.int32)
        source_of, target_of = np.ascontiguousarray(end_columns[:, 0]), np.ascontiguousarray(end_columns[:, 1])
        if names is None:
            after_ends = EndNames(devices, source_of, target_of)
            if not name_of:
                names = after_ends
            else:
                names = tuple(name_of.get(i, "") or after_ends[i] for i in range(len(ends)))
        return cls(
            numbers=tuple(numbers), number=np.array(number, np.int32), source=source_of, target=target_of, names=names
        )

    @cached_property
    def bytes_per_s(self) -> Int64:
        """int64[links]."""
        return np.array([numbers.bytes_per_s for numbers in self.numbers], np.int64)[self.number]

    @cached_property
    def latency_ps(self) -> Int64:
        """int64[links]."""
        return np.array([numbers.latency_ps for numbers in self.numbers], np.int64)[self.number]

    @cached_property
    def has_media(self) -> bool:
        """True if any link names its medium."""
        return bool(np.array([bool(numbers.medium) for numbers in self.numbers], np.bool_)[self.number].any())

    def of_class(self, *classes: str) -> npt.NDArray[np.bool_]:
        """Return bool[links]: whether each link is of one of these classes."""
        return np.array([numbers.link_class in classes for numbers in self.numbers], np.bool_)[self.number]

    @cached_property
    def by_source(self) -> tuple[Int64, Int64]:
        """(ptr int64[devices up to the last source + 2], links int64[links]): CSR of the links from each device."""
        order = np.argsort(self.source, kind="stable")
        count = np.bincount(self.source) if len(order) else np.zeros(0, np.int64)
        return pointers(count), order

    def links_from(self, device: int) -> Int64:
        """Return int64[...]: the links that start at a device, in order."""
        ptr, order = self.by_source
        return order[ptr[device] : ptr[device + 1]] if device + 1 < len(ptr) else order[:0]

    def chosen(self, links: Int64, layout: NodeLayout | None = None) -> LinkTable:
        """Return the links with these numbers; they keep their names."""
        return LinkTable(
            numbers=self.numbers, number=self.number[links], source=self.source[links], target=self.target[links],
            names=ChosenNames(self.names, links), layout=layout,
        )  # fmt: skip


def kind_of(device: Device) -> DeviceKind:
    """Return the attributes that a device shares with others."""
    return DeviceKind(device.kind, device.gpu, device.forwards, device.reduces, device.rail, device.memory_bytes)


@dataclass(frozen=True, kw_only=True)
class LinkedDevices:
    """Devices and links, as objects or as columns, and values derived from them."""

    name: str
    devices: Sequence[Device]
    links: Sequence[Link]

    @cached_property
    def device_table(self) -> DeviceTable:
        """The devices as columns."""
        return DeviceTable.of(self.devices)

    @cached_property
    def link_table(self) -> LinkTable:
        """The links as columns."""
        return LinkTable.of(self.links)

    @cached_property
    def gpus(self) -> tuple[int, ...]:
        """Indices of the GPUs in device order; a job's ranks fill them in this order."""
        return tuple(np.flatnonzero(self.device_table.where(GPU)).tolist())

    @property
    def node_of(self) -> npt.NDArray[np.int32]:
        """int32[devices]: the number of each device's node (host); -1: none, for example switches of a fabric."""
        return self.device_table.node

    @property
    def link_names(self) -> Sequence[str]:
        """Names of the links; large machines generate them on access."""
        return self.link_table.names

    @property
    def device_names(self) -> Sequence[str]:
        """Names of the devices; large machines generate them on access."""
        return self.device_table.names

    def link_name(self, link: int) -> str:
        """Return the name of one link."""
        return self.link_names[link]

    def device_name(self, device: int) -> str:
        """Return the name of one device."""
        return self.device_names[device]

    @property
    def link_bytes_per_s(self) -> npt.NDArray[np.int64]:
        """int64[links]."""
        return self.link_table.bytes_per_s

    @property
    def link_latency_ps(self) -> npt.NDArray[np.int64]:
        """int64[links]."""
        return self.link_table.latency_ps

    def links_from(self, device: int) -> tuple[Link, ...]:
        """Return the links that start at the device with this index, in order."""
        return tuple(self.links[link] for link in self.link_table.links_from(device).tolist())


@dataclass(frozen=True, kw_only=True, slots=True)
class Clos:
    """Switches of a fabric, by their device numbers.

    One leaf; or leaves joined by ``spines``; or pods of ``per_pod`` leaves, with ``aggregations[pod][a]`` in each and
    ``cores[a][c]`` above aggregation switch a of every pod.
    """

    leaves: tuple[int, ...]
    spines: tuple[int, ...] = ()
    per_pod: int = 0
    aggregations: tuple[tuple[int, ...], ...] = ()
    cores: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class NodeBlock:
    """``count`` identical nodes from node number ``first`` on. ``node``: one of them, its GPUs first.

    Devices of ``node`` have their names inside the node. Hosts have the part after the node's number (``.tray3``, or an
    empty string if the node is one host). ``joined``: the NICs that lead to the fabric. ``first_gpu``, ``first_other``,
    ``first_link``: machine-wide numbers of the first node's first GPU, other device and link.
    """

    node: LinkedDevices
    joined: frozenset[int]
    prefix: str
    first: int
    count: int
    first_gpu: int
    first_other: int
    first_link: int

    @cached_property
    def _base(self) -> Int64:
        """int64[devices of the node]: machine-wide numbers of the devices of the block's first node."""
        gpus = len(self.node.gpus)
        others = np.arange(len(self.node.devices) - gpus) + self.first_other
        return np.concatenate((np.arange(gpus) + self.first_gpu, others))

    @cached_property
    def _stride(self) -> Int64:
        gpus = len(self.node.gpus)
        return np.repeat([gpus, len(self.node.devices) - gpus], [gpus, len(self.node.devices) - gpus])

    def devices(self, local: npt.NDArray[np.int64], copy: npt.NDArray[np.int64]) -> Int64:
        """Return machine-wide device numbers; ``local``: device number in the node, ``copy``: node of the block."""
        return self._base[local] + copy * self._stride[local]

    def device(self, local: int, copy: int) -> int:
        """Return one machine-wide device number (see :meth:`devices`)."""
        return int(self._base[local] + copy * self._stride[local])

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts of a node."""
        return tuple(dict.fromkeys(device.node or "" for device in self.node.devices))


class DevicePlaces(NamedTuple):
    """Places of devices, int64[devices] each.

    block: -1 for a fabric switch. copy: node of the block. local: device of the node.
    """

    block: Int64
    copy: Int64
    local: Int64


class _DeviceRuns(NamedTuple):
    """Runs of devices with consecutive numbers, in their order, int64 each.

    width: devices per node. block: -1 for the fabric. shift: number of the first device in the node.
    """

    start: Int64
    width: Int64
    block: Int64
    shift: Int64


@dataclass(frozen=True, kw_only=True, eq=False)
class NodeLayout:
    """Blocks in order; ``clos``: the fabric, or None for another shape or no fabric.

    ``fabric_device``, ``fabric_link``: the fabric's first device and link. ``trimmed``: the fabric has lost links.
    """

    blocks: tuple[NodeBlock, ...]
    fabric_device: int
    fabric_link: int
    clos: Clos | None
    trimmed: bool = False

    def places(self, devices: npt.NDArray[np.int64]) -> DevicePlaces:
        """Return the places of ``devices`` among the blocks and nodes."""
        runs = self._segments
        segment = np.searchsorted(runs.start, devices, side="right") - 1
        copy, local = np.divmod(devices - runs.start[segment], runs.width[segment])
        return DevicePlaces(runs.block[segment], copy, local + runs.shift[segment])

    @cached_property
    def _segments(self) -> _DeviceRuns:
        rows = []
        for number, block in enumerate(self.blocks):
            gpus, devices = len(block.node.gpus), len(block.node.devices)
            rows.append((block.first_gpu, gpus, number, 0))
            rows.append((block.first_other, devices - gpus, number, gpus))
        rows = sorted(row for row in rows if row[1])
        rows.append((self.fabric_device, 1 << 62, -1, 0))
        return _DeviceRuns(*np.array(rows, np.int64).T)
