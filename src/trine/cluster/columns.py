"""Devices and links of a cluster as columns, and what is read off them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from trine.cluster.parts import GPU, Device, Link
from trine.cluster.tables import DeviceTable, LinkTable


class Columns:
    """What a cluster's ``devices`` and ``links`` are, whether it holds them as objects or as tables."""

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

    @cached_property
    def _links_from(self) -> tuple[tuple[Link, ...], ...] | None:
        """Of clusters that hold objects."""
        if isinstance(self.links, LinkTable):
            return None
        found: list[list[Link]] = [[] for _ in self.devices]
        for link in self.links:
            found[link.source].append(link)
        return tuple(map(tuple, found))

    def links_from(self, device: int) -> tuple[Link, ...]:
        """The links that start at the device of this index, in order."""
        if self._links_from is not None:
            return self._links_from[device]
        return tuple(self.links[link] for link in self.link_table.links_from(device).tolist())
