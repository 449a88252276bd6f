"""The machine: devices, directed links, and the routes of messages."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from trine.cluster.data import SPLIT, ClusterData
from trine.cluster.parts import GPU, HOST_LINK, SCALE_UP
from trine.cluster.routing.router import MAX_KEPT, Path, Router
from trine.cluster.tables import LinkTable
from trine.cluster.tiers import joined_sets
from trine.common.arrays import Bool, Int64
from trine.common.plugins import Registry
from trine.common.shown import facts as fact_table
from trine.common.shown import folded, page, table, titled
from trine.common.units import format_bandwidth
from trine.errors import SpecError, nearest

if TYPE_CHECKING:
    from trine.cluster.routing.batch_routing import BatchRoutes
    from trine.cluster.tables import LinkedDevices, NodeBlock
    from trine.cluster.tiers import Tiers

#: Up to this many devices, a graph search finds single routes faster than the node-based method.
SEARCHED = 4096


#: Readers and writers of whole clusters. They import this module, so they are loaded on first use.
FILES: Registry[Callable[..., Any]] = Registry(
    "reader or writer of clusters",
    "trine.cluster_files",
    {
        "read_yaml": "trine.cluster.file:read_cluster",
        "read_any": "trine.formats.clusters:read_any",
        "write": "trine.formats.clusters:write_cluster",
        "check_ending": "trine.formats.clusters:check_ending",
        "format_of": "trine.formats.clusters:format_of",
        "known_writers": "trine.formats.clusters:WRITERS.names",
        "to_networkx": "trine.formats.networkx_graph:to_networkx",
    },
)


@dataclass(frozen=True, kw_only=True)
class Cluster(ClusterData):
    """A machine: its :class:`ClusterData` and the routes of messages."""

    def __repr__(self) -> str:
        return titled(self, self._headline)

    def _repr_html_(self) -> str:
        facts = {"GPUs": f"{len(self.gpus):,}", "devices": f"{len(self.devices):,}", "routing": self.routing}
        facts |= {"evidence": self.evidence, "library": self.library or "not known"}
        rates, counts = np.unique(self.link_bytes_per_s, return_counts=True)
        links = [
            {"bandwidth": format_bandwidth(rate), "links": f"{count:,}"}
            for rate, count in zip(rates.tolist()[::-1], counts.tolist()[::-1], strict=True)
        ]
        sources = (f"{name}: {words}" for name, words in self.sources.items())
        return page(self._headline, fact_table(facts), table("links by bandwidth", links), folded("sources", sources))

    @property
    def _headline(self) -> str:
        return f"{self.name}: {len(self.gpus):,} GPUs, {len(self.link_bytes_per_s):,} links"

    @cached_property
    def _router(self) -> Router:
        return Router(self, self.routing, self.grid)

    @cached_property
    def _batch(self) -> BatchRoutes | None:
        """Batch router for machines of identical nodes; None if the layout or routing does not suit it."""
        layout = self.device_table.layout
        if layout is None or layout is not self.link_table.layout:
            return None
        from trine.cluster.routing.batch_routing import BatchRoutes

        if not BatchRoutes.suits(layout, self.routing):
            return None
        return BatchRoutes(self.device_table, self.link_table, layout, self.routing)

    @cached_property
    def node_classes(self) -> NodeClasses:
        """Facts about many devices at once, and the classes of identical nodes."""

        return NodeClasses(self, self._batch)

    @cached_property
    def link_tiers(self) -> Tiers:
        """Groups of links with the same role: ``gpu-nvswitch``, ``nic-leaf``, ``leaf-spine``."""
        from trine.cluster.tiers import tiers_of

        return tiers_of(self)

    @cached_property
    def scale_up_components(self) -> npt.NDArray[np.int64]:
        """Component number of each device, int64[devices]; scale-up links connect devices of one component.

        Host links also connect two devices if neither has a scale-up link.
        """

        return scale_up_components_of(self)

    def index(self, name: str) -> int:
        """Return the index of the device of this name. Raises SpecError for an unknown name; suggests the nearest."""
        if self.device_table.layout is not None:
            from trine.cluster.lookup import device_named

            number = device_named(self.device_table, name)
        else:
            number = self._index.get(name)
        if number is None:
            from trine.cluster.lookup import likely_names

            hint = nearest(name, likely_names(self.device_names))
            raise SpecError(f"cluster {self.name!r} has no device {name!r}{hint}")
        return number

    def route(self, source: int, target: int) -> tuple[int, ...]:
        """Return the indices of the links from one device to another, in path order.

        Static and deterministic, by the policy :attr:`routing`; see :mod:`trine.cluster.routing.router`.

        Raises SpecError if no path exists through forwarding devices (names both ends), or if the policy spreads
        messages over several paths (use :meth:`paths`).
        """
        paths = self.paths(source, target)
        if len(paths) > 1:
            raise SpecError(
                f"routing {self.routing!r} spreads messages from {self.devices[source].name!r} to "
                f"{self.devices[target].name!r} over {len(paths)} routes, but one is needed; "
                "use 'ecmp-hash' or 'd-mod-k', which choose one"
            )
        return paths[0][0]

    def paths(self, source: int, target: int) -> tuple[Path, ...]:
        """Return the routes from one device to another, each with its share of the bytes; the shares sum to 1.

        Two GPUs that only a circuit joins have a route without links.

        Raises SpecError if no path exists, as :meth:`route`.
        """
        paths = self._known_paths.get((source, target)) or self._find_paths(source, target)
        if not paths and self.circuits is not None and self.devices[source].kind == self.devices[target].kind == GPU:
            return (((), 1.0),)
        if not paths:
            names = f"from {self.devices[source].name!r} to {self.devices[target].name!r}"
            why = "only GPUs and hosts with 'forwards: true' carry other devices' traffic"
            if self.node_of[source] != self.node_of[target] and not self.has_fabric:
                why = "no link leads from one node to another (give a --fabric, or list such links)"
            if lost := self._lost_between(source, target):
                why = f"link {lost!r} is down, and no other way is left"
            raise SpecError(f"cluster {self.name!r} has no route {names}; {why}")
        return paths

    def _lost_between(self, source: int, target: int) -> str:
        """Return the name of a dead link on the original route between two devices, or ""."""
        if self.cut_from is None:
            return ""
        intact, lost = self.cut_from
        try:
            route = [link for links, _ in intact.paths(source, target) for link in links]
        except SpecError:
            return intact._lost_between(source, target)
        down = sorted(set(lost.tolist()) & set(route))
        return intact.link_names[down[0]] if down else ""

    @cached_property
    def _known_paths(self) -> dict[tuple[int, int], tuple[Path, ...]]:
        return {}

    def _find_paths(self, source: int, target: int) -> tuple[Path, ...]:
        """Find routes with the batch router if the machine has one, else by search."""
        if len(self.devices) <= SEARCHED or self._batch is None:
            return self._router.paths(source, target)
        _, links, unrouted = self._batch.routes(np.array([source]), np.array([target]))
        paths = self._router.paths(source, target) if len(unrouted) else ((tuple(links.tolist()), 1.0),)
        if len(self._known_paths) < MAX_KEPT:
            self._known_paths[source, target] = paths
        return paths

    def routes(
        self, sources: npt.NDArray[np.int64], targets: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        """Return many routes at once, as CSR: (ptr int64[m + 1], links int32[ptr[-1]]).

        sources, targets: int64[m], devices. A device's route to itself has no links.

        Raises SpecError: as :meth:`route`, for the first pair without a route.
        """
        from trine.cluster.routing.many_routes import many_routes

        return many_routes(
            len(self.devices), self.route, self._batch, np.asarray(sources, np.int64), np.asarray(targets, np.int64)
        )

    def ways(self, sources: npt.NDArray[np.int64], targets: npt.NDArray[np.int64]) -> Sequence[tuple[Path, ...]]:
        """Return the :meth:`paths` of many pairs at once. Raises SpecError: as :meth:`paths`."""
        if len(self.devices) <= SEARCHED or self.routing == SPLIT:
            return [self.paths(a, b) for a, b in zip(sources.tolist(), targets.tolist(), strict=True)]
        ptr, links = self.routes(sources, targets)
        ends, flat = ptr.tolist(), links.tolist()
        return [((tuple(flat[first:last]), 1.0),) for first, last in pairwise(ends)]

    def host_routes(
        self, gpus: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]]:
        """Return each GPU's host memory and the routes from it: (hosts int64[m], -1: none; routes as CSR).

        gpus: int64[m], devices. The route of a GPU without a host has no links.
        """
        hosts = self.hosts_of(gpus)
        return hosts, self.routes(np.where(hosts < 0, gpus, hosts), gpus)

    def hosts_of(self, gpus: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return :meth:`host_of` for many GPUs at once, as int64[m]; -1: none."""
        if self.cut_from is not None:  # a dead link does not move a GPU's data to another host
            return self.cut_from[0].hosts_of(gpus)
        gpus = np.asarray(gpus, np.int64)
        of_nodes = None if self._batch is None else self._batch.hosts_of(gpus)
        if of_nodes is not None:
            return of_nodes
        hosts = [self._router.host_of(gpu) for gpu in gpus.tolist()]
        return np.array([-1 if host is None else host for host in hosts], np.int64)

    def route_latency_ps(self, route: tuple[int, ...]) -> int:
        """Return the sum of the latencies of a route's links."""
        latency_ps = self.link_table.latency_ps
        return sum(int(latency_ps[link]) for link in route)

    def seen_by_messages(self, link: int) -> tuple[int, int]:
        """Return a link's bytes/s and latency (ps) for messages that carry their own headers: loads, stores, packets.

        See :func:`trine.cluster.presets.seen_by_messages`.
        """
        from trine.cluster.presets import seen_by_messages

        wire = self.links[link]
        return seen_by_messages(wire.bytes_per_s, wire.latency_ps, wire.medium)

    def host_of(self, gpu: int) -> int | None:
        """Return the index of the host memory nearest to a GPU (by route length), or None if it reaches none.

        A host's memory may be a separate device that connects only to that host; its index is then returned.
        """
        host = int(self.hosts_of(np.array([gpu]))[0])
        return None if host < 0 else host

    def nic_of(self, gpu: int) -> int | None:
        """Return the index of the NIC through which a GPU reaches other nodes, or None; see ``routing/router.py``."""
        if self._batch is None or self.device_table.kinds[self.device_table.kind[gpu]].kind != GPU:
            return self._router.nic_of(gpu)
        nic = int(self._batch.nics_of(np.array([gpu]))[0])
        return None if nic < 0 else nic

    def to_networkx(self) -> Any:
        """Return a ``networkx.MultiDiGraph``, see :func:`trine.formats.networkx_graph.to_networkx`; needs networkx."""
        return FILES.get("to_networkx")(self)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the whole cluster in a canonical form."""
        from trine.cluster.serialize import fingerprint

        return fingerprint(self)

    @classmethod
    def from_yaml(cls, path: str | os.PathLike[str]) -> Cluster:
        """Read a cluster file, YAML or JSON (docs/formats/cluster.md).

        Raises SpecError with the file, field, value and nearest valid name.
        """
        cluster: Cluster = FILES.get("read_yaml")(path)
        return cluster

    def to_yaml(self) -> str:
        """Return text that :meth:`from_yaml` reads back as an equal cluster."""
        from trine.cluster.serialize import to_yaml

        return to_yaml(self)


@dataclass(frozen=True)
class NodeClasses:
    """Classes of one cluster's devices and nodes, computed on first use."""

    cluster: LinkedDevices
    bulk: BatchRoutes | None

    @cached_property
    def has_scale_up(self) -> Bool:
        """Whether scale-up links start at each device, bool[devices]."""
        links = self.cluster.link_table
        starts = np.zeros(len(self.cluster.devices), np.bool_)
        starts[links.source[links.of_class(SCALE_UP)]] = True
        return starts

    @cached_property
    def is_reduced(self) -> Bool:
        """Whether a device has scale-up links and all of them lead to devices that reduce, bool[devices]."""
        links, devices = self.cluster.link_table, self.cluster.device_table
        reduces = np.array([kind.reduces for kind in devices.kinds], np.bool_)[devices.kind]
        is_reduced = self.has_scale_up.copy()
        is_reduced[links.source[links.of_class(SCALE_UP) & ~reduces[links.target]]] = False
        return is_reduced

    @cached_property
    def node_make(self) -> Int64 | None:
        """Class of each device's node, int64[devices]; nodes of a class have equal links. -1: a fabric's switch.

        None if the cluster has no known layout of nodes.
        """
        bulk = self.bulk
        if bulk is None:
            return None
        number, class_of, code = self.cluster.link_table.number, np.full(len(self.cluster.devices), -1, np.int64), 0
        first_of: dict[tuple[int, frozenset[int], bytes], int] = {}
        for block in bulk.layout.blocks:
            width = len(block.node.links)
            rows = number[block.first_link : block.first_link + width * block.count].reshape(block.count, width)
            rows = np.concatenate((rows, self._ends(block)), axis=1)
            make = np.zeros(block.count, np.int64)
            odd = np.flatnonzero((rows != rows[0]).any(axis=1))
            for copy in [0, *odd.tolist()]:
                key = (id(block.node), block.joined, rows[copy].tobytes())
                code = first_of.setdefault(key, len(first_of))
                make[copy if copy else slice(None)] = code
            local = np.arange(len(block.node.devices))
            class_of[block.devices(local, np.arange(block.count)[:, None])] = make[:, None]
        return class_of

    def _ends(self, block: NodeBlock) -> npt.NDArray[np.int32]:
        """Return the numbers of the links between each node's NICs and the fabric, int32[nodes, ends]; -1: none."""
        clos = None if self.bulk is None else self.bulk.clos
        if clos is None or not block.joined:
            return np.zeros((block.count, 0), np.int32)
        nics = block.devices(np.array(sorted(block.joined)), np.arange(block.count)[:, None])
        number = self.cluster.link_table.number
        ends = [np.where(links[nics] < 0, -1, number[links[nics]]) for links in (clos.up, clos.down)]
        return np.concatenate(ends, axis=1).astype(np.int32)


def scale_up_components_of(cluster: LinkedDevices) -> Int64:
    """Compute :attr:`trine.cluster.Cluster.scale_up_components`, once per block of identical nodes."""
    layout = cluster.device_table.layout
    if layout is None or layout is not cluster.link_table.layout:
        return _components(cluster.link_table, len(cluster.devices))
    components = np.arange(len(cluster.devices))
    for block in layout.blocks:
        local = np.arange(len(block.node.devices))
        roots = _components(block.node.link_table, len(local))
        copies = np.arange(block.count)[:, None]
        components[block.devices(local, copies)] = block.devices(roots, copies)
    return components


def _components(links: LinkTable, num_devices: int) -> Int64:
    up = links.of_class(SCALE_UP)
    fast = np.zeros(num_devices, np.bool_)
    fast[links.source[up]] = True
    joins = np.flatnonzero(up | (links.of_class(HOST_LINK) & ~fast[links.source] & ~fast[links.target]))
    pairs = zip(links.source[joins].tolist(), links.target[joins].tolist(), strict=True)
    return np.array(joined_sets(num_devices, pairs), np.int64)
