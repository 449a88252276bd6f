"""Devices and links of a large machine as columns; each is made when it is looked at.

2 million links take 24 MB so, and 1 GB as objects. Small clusters hold tuples of objects; :meth:`LinkTable.of` and
:meth:`DeviceTable.of` give their columns to whoever works on whole arrays.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from trine.arrays import Int32, Int64, pointers
from trine.cluster.names import ChosenNames, EndNames, Lazy
from trine.cluster.parts import GPU, Device, Link

T = TypeVar("T")
#: Up to here all objects are made and kept as soon as one is asked for.
KEPT = 1 << 14


class _Made(Lazy[T]):
    """Items that are made when they are looked at; of short tables all at once, and kept."""

    @abstractmethod
    def _made(self, index: int) -> T:
        """A new item."""

    @cached_property
    def _kept(self) -> tuple[T, ...] | None:
        return tuple(map(self._made, range(len(self)))) if len(self) <= KEPT else None

    def item(self, index: int) -> T:
        return self._made(index) if self._kept is None else self._kept[index]

    def __iter__(self) -> Iterator[T]:
        return map(self._made, range(len(self))) if self._kept is None else iter(self._kept)


class DeviceKind(NamedTuple):
    """What devices have in common; the fields are those of :class:`Device`."""

    kind: str
    gpu: str | None
    forwards: bool
    reduces: bool
    rail: int | None


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class DeviceTable(_Made[Device]):
    """``kind``: int32[devices], index into ``kinds``. ``node``: int32[devices], index into ``node_names``, -1: none.

    ``layout``: how the machine is made of nodes alike, None where nobody knows.
    """

    kinds: tuple[DeviceKind, ...]
    kind: Int32
    node: Int32
    names: Sequence[str]
    node_names: Sequence[str]
    layout: NodeLayout | None = None

    def __len__(self) -> int:
        return len(self.kind)

    def _made(self, index: int) -> Device:
        what, node = self.kinds[self.kind[index]], int(self.node[index])
        return Device(
            name=self.names[index],
            kind=what.kind,
            gpu=what.gpu,
            node=None if node < 0 else self.node_names[node],
            forwards=what.forwards,
            reduces=what.reduces,
            rail=what.rail,
        )

    @classmethod
    def of(cls, devices: Sequence[Device]) -> DeviceTable:
        """The columns of any devices."""
        if isinstance(devices, DeviceTable):
            return devices
        kinds: dict[DeviceKind, int] = {}
        nodes: dict[str | None, int] = {None: -1}
        kind = [kinds.setdefault(kind_of(device), len(kinds)) for device in devices]
        node = [nodes.setdefault(device.node, len(nodes) - 1) for device in devices]
        return cls(
            kinds=tuple(kinds),
            kind=np.array(kind, np.int32),
            node=np.array(node, np.int32),
            names=tuple(device.name for device in devices),
            node_names=tuple(name for name in nodes if name is not None),
        )

    def where(self, *kinds: str) -> npt.NDArray[np.bool_]:
        """bool[devices]: which are of one of these kinds."""
        return np.array([what.kind in kinds for what in self.kinds], np.bool_)[self.kind]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class LinkTable(_Made[Link]):
    """``source``, ``target``: int32[links], devices. ``number``: int32[links], index into ``numbers``.

    ``numbers``: what links have in common, each a link without name and ends.
    """

    numbers: tuple[Link, ...]
    number: Int32
    source: Int32
    target: Int32
    names: Sequence[str]
    layout: NodeLayout | None = None

    def __len__(self) -> int:
        return len(self.number)

    def _made(self, index: int) -> Link:
        return self.unnamed(index, self.names[index])

    def unnamed(self, index: int, name: str = "") -> Link:
        """A link without its name: names take longer than all else."""
        kind: Link = self.numbers[int(self.number[index])]
        return kind.between(int(self.source[index]), int(self.target[index]), name)

    @classmethod
    def of(cls, links: Sequence[Link]) -> LinkTable:
        """The columns of any links."""
        if isinstance(links, LinkTable):
            return links
        names = tuple(link.name for link in links)
        return cls.joined(names, ((link.source, link.target, link) for link in links), names)

    @classmethod
    def joined(
        cls, devices: Sequence[str], rows: Iterable[tuple[int, int, Link]], names: Sequence[str] | None = None
    ) -> LinkTable:
        """Links between devices: from, to, and what the link has in common with others.

        A link without a name, where ``names`` gives none, is named after its ends: ``a->b``, ``a->b#2`` for one
        parallel to it. ``devices``: their names.
        """
        numbers: dict[Link, int] = {}
        known: dict[int, tuple[int, Link]] = {}  # by identity: most rows share their links
        ends: list[tuple[int, int]] = []
        number: list[int] = []
        given: dict[int, str] = {}
        for source, target, link in rows:
            if id(link) not in known:
                known[id(link)] = numbers.setdefault(link.bare, len(numbers)), link
            if link.name:
                given[len(ends)] = link.name
            ends.append((source, target))
            number.append(known[id(link)][0])
        both = np.clip(np.array(ends, np.int64).reshape(-1, 2), -1, np.iinfo(np.int32).max).astype(np.int32)
        source_of, target_of = np.ascontiguousarray(both[:, 0]), np.ascontiguousarray(both[:, 1])
        if names is None:
            after_ends = EndNames(devices, source_of, target_of)
            names = after_ends if not given else tuple(given.get(i, "") or after_ends[i] for i in range(len(ends)))
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
        """Whether any link says of what kind it is."""
        return bool(np.array([bool(numbers.medium) for numbers in self.numbers], np.bool_)[self.number].any())

    def of_class(self, *classes: str) -> npt.NDArray[np.bool_]:
        """bool[links]: which are of one of these classes."""
        return np.array([numbers.link_class in classes for numbers in self.numbers], np.bool_)[self.number]

    @cached_property
    def by_source(self) -> tuple[Int64, Int64]:
        """(ptr int64[devices up to the last source + 2], links int64[links]): CSR of the links from each device."""
        order = np.argsort(self.source, kind="stable")
        count = np.bincount(self.source) if len(order) else np.zeros(0, np.int64)
        return pointers(count), order

    def links_from(self, device: int) -> Int64:
        """int64[...]: the links that start at a device, in order."""
        ptr, order = self.by_source
        return order[ptr[device] : ptr[device + 1]] if device + 1 < len(ptr) else order[:0]

    def chosen(self, links: Int64, layout: NodeLayout | None = None) -> LinkTable:
        """Some of the links, by their numbers, under their names."""
        return LinkTable(
            numbers=self.numbers,
            number=self.number[links],
            source=self.source[links],
            target=self.target[links],
            names=ChosenNames(self.names, links),
            layout=layout,
        )


def kind_of(device: Device) -> DeviceKind:
    """What a device has in common with others."""
    return DeviceKind(device.kind, device.gpu, device.forwards, device.reduces, device.rail)


@dataclass(frozen=True, kw_only=True)
class LinkedDevices:
    """Devices and links, as objects or as columns, and what is read off them."""

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
        """Indices of the GPUs, in the order of the devices: the ranks of a job fill them in this order."""
        return tuple(np.flatnonzero(self.device_table.where(GPU)).tolist())

    @property
    def node_of(self) -> npt.NDArray[np.int32]:
        """int32[devices]: a number of the node (host) that each belongs to; -1: none, such as switches of a fabric."""
        return self.device_table.node

    @property
    def link_names(self) -> Sequence[str]:
        """Names of the links; those of large machines are made when they are asked for."""
        return self.link_table.names

    @property
    def device_names(self) -> Sequence[str]:
        """Names of the devices, likewise."""
        return self.device_table.names

    def link_name(self, link: int) -> str:
        """The name of one link."""
        return self.link_names[link]

    def device_name(self, device: int) -> str:
        """The name of one device."""
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
        """The links that start at the device of this index, in order."""
        return tuple(self.links[link] for link in self.link_table.links_from(device).tolist())


@dataclass(frozen=True, kw_only=True, slots=True)
class Clos:
    """Switches of a fabric, by their device numbers.

    One leaf; or leaves joined by ``spines``; or pods of ``per_pod`` leaves, with ``aggregations[pod][a]`` in each and
    ``cores[a][c]`` above those of number a.
    """

    leaves: tuple[int, ...]
    spines: tuple[int, ...] = ()
    per_pod: int = 0
    aggregations: tuple[tuple[int, ...], ...] = ()
    cores: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class NodeBlock:
    """``count`` nodes alike, from node number ``first`` on. ``node``: one of them, its GPUs first.

    Devices of ``node`` are named as in it, and their hosts as what follows the number (``.tray3``, or nothing where the
    node is one host). ``joined``: its NICs that lead into the fabric. ``first_gpu``, ``first_other``, ``first_link``:
    numbers in the machine of the first node's.
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
        """int64[devices of the node]: their numbers in the machine, of the block's first node."""
        gpus = len(self.node.gpus)
        others = np.arange(len(self.node.devices) - gpus) + self.first_other
        return np.concatenate((np.arange(gpus) + self.first_gpu, others))

    @cached_property
    def _stride(self) -> Int64:
        gpus = len(self.node.gpus)
        return np.repeat([gpus, len(self.node.devices) - gpus], [gpus, len(self.node.devices) - gpus])

    def devices(self, local: npt.NDArray[np.int64], copy: npt.NDArray[np.int64]) -> Int64:
        """Numbers in the machine of devices of nodes; ``local``: in the node, ``copy``: which node of the block."""
        return self._base[local] + copy * self._stride[local]

    def device(self, local: int, copy: int) -> int:
        """One of :meth:`devices`."""
        return int(self._base[local] + copy * self._stride[local])

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts of a node."""
        return tuple(dict.fromkeys(device.node or "" for device in self.node.devices))


@dataclass(frozen=True, kw_only=True, eq=False)
class NodeLayout:
    """Blocks in order; ``clos``: the fabric, None where it has another shape or where there is none.

    ``fabric_device``, ``fabric_link``: numbers of the fabric's first. ``trimmed``: the fabric has lost links.
    """

    blocks: tuple[NodeBlock, ...]
    fabric_device: int
    fabric_link: int
    clos: Clos | None
    trimmed: bool = False

    def places(self, devices: npt.NDArray[np.int64]) -> tuple[Int64, Int64, Int64]:
        """(block, node of the block, device of the node) of devices, int64 each; block -1: a switch of the fabric."""
        starts, widths, owners, shifts = self._segments
        segment = np.searchsorted(starts, devices, side="right") - 1
        copy, local = np.divmod(devices - starts[segment], widths[segment])
        return owners[segment], copy, local + shifts[segment]

    @cached_property
    def _segments(self) -> tuple[Int64, Int64, Int64, Int64]:
        """Of each run of devices: its start, how many a node, the block (-1: the fabric), the first one in a node."""
        rows = []
        for number, block in enumerate(self.blocks):
            gpus, devices = len(block.node.gpus), len(block.node.devices)
            rows.append((block.first_gpu, gpus, number, 0))
            rows.append((block.first_other, devices - gpus, number, gpus))
        rows = sorted(row for row in rows if row[1])
        rows.append((self.fabric_device, 1 << 62, -1, 0))
        starts, widths, owners, shifts = np.array(rows, np.int64).T
        return starts, widths, owners, shifts
