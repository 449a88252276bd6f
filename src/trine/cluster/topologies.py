"""Clusters by name: rings, meshes, switches, fat trees and more, from a word and a few sizes.

Bandwidth and latency apply to every link in each direction. A path with several links (GPU - switch - GPU, or through
other GPUs) costs the latency of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from math import prod

from trine.cluster.cluster import Cluster
from trine.cluster.fabrics import FabricBuilder, add_dragonfly, add_leaves, add_pods, add_spines, check_size, chunks
from trine.cluster.parts import GPU, HOST, HOST_LINK, SCALE_OUT, SWITCH, Device, Link
from trine.cluster.tables import LinkTable
from trine.common.arguments import named_arguments
from trine.common.units import format_bandwidth, format_time, parse_bandwidth, parse_time
from trine.errors import SpecError, nearest

MAX_GPUS = 1 << 20


def known_topologies() -> tuple[str, ...]:
    """Return the names that :func:`build_topology` takes."""
    return known_texts()


@named_arguments
def build_topology(
    text: str,
    bandwidth: int | str,
    latency: int | str,
    num_gpus: int,
    gpu: str | None = None,
    *,
    medium: str | None = None,
) -> Cluster:
    """Build a cluster of ``num_gpus`` GPUs.

    text: a name from :func:`known_topologies` with its sizes: ``ring`` (each GPU joined to the next, the last to
        the first), ``switch`` (all on one switch; a path has two links), ``full`` (every pair joined), ``mesh:2x4`` and
        ``torus:4x4x4`` (a torus also joins the ends of each line), ``tree:4`` (switches with arity 4 above the GPUs),
        ``fat-tree:8:2`` (8 GPUs per leaf, oversubscribed 2 to 1), ... ; docs/formats/cluster.md lists all.
    bandwidth: of each link and direction, as text with its unit or in whole bytes per second.
    latency: of each link, as text with its unit or in whole picoseconds.
    gpu: name of the GPU model, for its memory size and compute rate.
    medium: name of the links in the link catalogue, if they are of one kind.

    Raises SpecError: an unknown name, or sizes that do not match ``num_gpus``. UnitError: a malformed quantity.
    """
    if not isinstance(text, str):
        raise SpecError(f"must be the name of a topology, got {text!r:.80}", field="topology")
    bytes_per_s = parse_bandwidth(bandwidth, "the bandwidth", base=isinstance(bandwidth, int))
    latency_ps = latency if isinstance(latency, int) else parse_time(latency, "the latency")
    if not 1 <= num_gpus <= MAX_GPUS:
        raise SpecError(f"topology {text!r} needs 1 to {MAX_GPUS} GPUs, got {num_gpus}")
    shape = shape_of(text, num_gpus, Link(bytes_per_s=bytes_per_s, latency_ps=latency_ps, medium=medium))
    devices = tuple(replace(device, gpu=gpu) for device in shape.devices[:num_gpus]) + tuple(shape.devices[num_gpus:])
    return Cluster(
        name=f"{text} of {num_gpus} GPUs",
        devices=devices,
        links=LinkTable.joined(tuple(device.name for device in devices), shape.rows),
        sources={
            "links": f"given: {format_bandwidth(bytes_per_s)} and {format_time(latency_ps)} per link and direction"
        },
        grid=shape.grid,
        routing=shape.routing,
        routing_reason=(shape.routing, f"usual for {text.partition(':')[0]}"),
    )


def implied_gpus(text: str) -> int | None:
    """Return the number of GPUs that the sizes in ``text`` imply, or None if they leave it open."""
    kind, _, sizes = text.partition(":")
    return BLUEPRINTS[kind].implied(sizes) if kind in BLUEPRINTS else None


def add_host(
    cluster: Cluster, bandwidth: int, latency_ps: int, gpus_per_link: int = 1, memory_bytes: int | None = None
) -> Cluster:
    """Add one host memory of ``memory_bytes``, with links of ``bandwidth`` bytes/s both ways to each GPU.

    ``gpus_per_link`` > 1 puts this number of GPUs, in order, behind a PCIe switch with one shared link to the host.
    Every link then has this bandwidth, and each of the two links half of ``latency_ps`` (the upper one rounded up).
    """
    devices = [*cluster.devices, Device(name="host", kind=HOST, memory_bytes=memory_bytes)]
    host = len(devices) - 1
    rows = [(link.source, link.target, link.bare) for link in cluster.links]

    def join(a: int, b: int, latency_ps: int) -> None:
        link = Link(bytes_per_s=bandwidth, latency_ps=latency_ps, link_class=HOST_LINK)
        rows.extend(((a, b, link), (b, a, link)))

    gpus = cluster.gpus
    for first in range(0, len(gpus), gpus_per_link):
        upstream, rest_ps = host, latency_ps
        if gpus_per_link > 1:
            upstream, rest_ps = len(devices), latency_ps // 2
            devices.append(Device(name=f"pcie{first // gpus_per_link}", kind=SWITCH, forwards=True))
            join(upstream, host, latency_ps - rest_ps)
        for gpu in gpus[first : first + gpus_per_link]:
            join(gpu, upstream, rest_ps)
    links = LinkTable.joined(tuple(device.name for device in devices), rows)
    return replace(cluster, devices=tuple(devices), links=links)


MAX_SIZE = 1 << 20
#: Pairs of the hybrid cube mesh of DGX-1 with NVLink 2, and the number of lanes of each (nvidia-smi topo -m).
CUBE_MESH = (
    (0, 1, 1), (0, 2, 1), (0, 3, 2), (0, 4, 2), (1, 2, 2), (1, 3, 1), (1, 5, 2), (2, 3, 2),
    (2, 6, 1), (3, 7, 1), (4, 5, 1), (4, 6, 1), (4, 7, 2), (5, 6, 2), (5, 7, 1), (6, 7, 2),
)  # fmt: skip

#: From, to, and the link without ends.
Row = tuple[int, int, Link]


@dataclass(kw_only=True)
class TopologyShape:
    """Devices (GPUs first) and rows of links; ``grid`` and ``routing`` as in :class:`trine.cluster.Cluster`."""

    devices: list[Device]
    rows: list[Row] = field(default_factory=list)
    grid: tuple[int, ...] = ()
    routing: str = "shortest"

    def join(self, wire: Link, a: int, b: int) -> None:
        """Join two devices, both ways."""
        self.rows.extend(((a, b, wire), (b, a, wire)))


Builder = Callable[[str, int, Link], TopologyShape]


@dataclass(frozen=True, kw_only=True, slots=True)
class Blueprint:
    """A topology. ``build``: creates the shape; ``texts``: its notations; ``implied``: GPUs implied by the sizes."""

    build: Builder
    texts: tuple[str, ...]
    implied: Callable[[str], int | None] = lambda sizes: None


def known_texts() -> tuple[str, ...]:
    """Return the notations of all blueprints."""
    return tuple(text for blueprint in BLUEPRINTS.values() for text in blueprint.texts)


def shape_of(text: str, num_gpus: int, wire: Link) -> TopologyShape:
    """Return the shape that ``text`` names. Raise SpecError for an unknown name, or sizes that do not match."""
    kind, colon, sizes = text.partition(":")
    if kind not in BLUEPRINTS or (colon and not sizes):
        raise SpecError(f"unknown topology {text!r}{nearest(kind if sizes else text, known_texts())}")
    return BLUEPRINTS[kind].build(sizes, num_gpus, wire)


def _gpus(count: int, forwards: bool, per_node: int | None = None) -> list[Device]:
    """Return ``count`` GPUs, ``per_node`` of them in each node."""
    devices = []
    for i in range(count):
        devices.append(
            Device(name=f"gpu{i}", kind=GPU, forwards=forwards, node=f"node{i // per_node}" if per_node else None)
        )
    return devices


def _plain(pairs: Callable[[int], Iterable[tuple[int, int]]], name: str, forwards: bool = True) -> Builder:
    """Return a builder of GPUs joined in pairs, without sizes."""

    def build(sizes: str, num_gpus: int, wire: Link) -> TopologyShape:
        if sizes:
            raise SpecError(f"unknown topology '{name}:{sizes}': a {name} has no sizes")
        shape = TopologyShape(devices=_gpus(num_gpus, forwards))
        for a, b in pairs(num_gpus):
            shape.join(wire, a, b)
        return shape

    return build


def _ring(num_gpus: int) -> list[tuple[int, int]]:
    pairs = [(i, i + 1) for i in range(num_gpus - 1)]
    return pairs + ([(num_gpus - 1, 0)] if num_gpus > 2 else [])


def _double_ring(num_gpus: int) -> list[tuple[int, int]]:
    """Return two rings over the same neighbours: twice the links of a ring."""
    return [pair for pair in _ring(num_gpus) for _ in range(2)]


def _full(num_gpus: int) -> Iterable[tuple[int, int]]:
    check_size(num_gpus * (num_gpus - 1) // 2)
    return combinations(range(num_gpus), 2)


def _switch(sizes: str, num_gpus: int, wire: Link) -> TopologyShape:
    if sizes:
        raise SpecError(f"unknown topology 'switch:{sizes}': a switch has no sizes")
    shape = TopologyShape(devices=_gpus(num_gpus, False))
    shape.devices.append(Device(name="switch", kind=SWITCH, forwards=True))
    for gpu in range(num_gpus):
        shape.join(wire, gpu, num_gpus)
    return shape


def _numbers(kind: str, sizes: str, separator: str = "x") -> tuple[int, ...]:
    """Parse ``4x4x4`` to whole numbers from 1."""
    parts = sizes.split(separator)
    if len(parts) > 8 or not all(
        part.isascii() and part.isdigit() and 1 <= int(part[:8]) <= MAX_SIZE for part in parts
    ):
        raise SpecError(f"topology '{kind}:{sizes}': sizes are whole numbers from 1, such as '{kind}:2x4'")
    return tuple(map(int, parts))


def _grid(kind: str, wrap: bool) -> Builder:
    def build(sizes: str, num_gpus: int, wire: Link) -> TopologyShape:
        shape = TopologyShape(devices=_gpus(num_gpus, True), grid=_grid_sizes(kind, sizes, num_gpus))
        for a, b in _grid_pairs(shape.grid, wrap):
            shape.join(wire, a, b)
        return shape

    return build


def _grid_sizes(kind: str, sizes: str, num_gpus: int) -> tuple[int, ...]:
    if not sizes or "x" not in sizes:
        raise SpecError(
            f"topology '{kind}{':' if sizes else ''}{sizes}' needs its rows and columns, such as '{kind}:2x4'"
        )
    numbers = _numbers(kind, sizes)
    if prod(numbers) != num_gpus:
        raise SpecError(f"topology '{kind}:{sizes}' has {prod(numbers)} GPUs, not {num_gpus}")
    return numbers


def _grid_pairs(sizes: Sequence[int], wrap: bool) -> list[tuple[int, int]]:
    """Return neighbours in a grid, row-major, the last dimension first. A ring of two has one pair of links."""
    check_size(prod(sizes) * sum(size > 1 for size in sizes))
    steps = [prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    pairs = []
    for device, place in enumerate(product(*map(range, sizes))):
        for axis in reversed(range(len(sizes))):
            if place[axis] + 1 < sizes[axis]:
                pairs.append((device, device + steps[axis]))
            elif wrap and sizes[axis] > 2:
                pairs.append((device, device - place[axis] * steps[axis]))
    return pairs


def _grid_implied(sizes: str) -> int | None:
    return prod(_numbers("mesh", sizes)) if sizes else None


def _hypercube(num_gpus: int) -> list[tuple[int, int]]:
    """Return the pairs of GPUs whose numbers differ in one bit."""
    if num_gpus & (num_gpus - 1):
        raise SpecError(f"a hypercube has a power of two of GPUs, not {num_gpus}")
    bits = num_gpus.bit_length() - 1
    check_size(num_gpus * bits // 2)
    return [(i, i | 1 << bit) for i in range(num_gpus) for bit in range(bits) if not i >> bit & 1]


def _hypercube_mesh(num_gpus: int) -> list[tuple[int, int]]:
    if num_gpus != 8:
        raise SpecError(f"a hypercube-mesh (as in DGX-1) has 8 GPUs, not {num_gpus}")
    return [(a, b) for a, b, lanes in CUBE_MESH for _ in range(lanes)]


def _tree(sizes: str, num_gpus: int, wire: Link) -> TopologyShape:
    """Build a tree: each level groups ``arity`` devices of the level below under a switch; a lone one moves up."""
    if sizes and not (sizes.isascii() and sizes.isdigit() and 2 <= int(sizes[:8]) <= MAX_SIZE):
        raise SpecError(f"topology 'tree:{sizes}': the arity of a tree is a whole number from 2")
    shape, number = TopologyShape(devices=_gpus(num_gpus, False)), 0
    level: Sequence[int] = range(num_gpus)
    while len(level) > 1:
        above = []
        for members in chunks(level, int(sizes or 2)):
            if len(members) == 1:
                above.append(members[0])
                continue
            shape.devices.append(Device(name=f"switch{number}", kind=SWITCH, forwards=True))
            number += 1
            above.append(len(shape.devices) - 1)
            for member in members:
                shape.join(wire, member, above[-1])
        level = above
    return shape


def _text(kind: str, sizes: str) -> str:
    return repr(f"{kind}:{sizes}" if sizes else kind)


def _fabric_builder(devices: Sequence[Device], wire: Link) -> FabricBuilder:
    outer = replace(wire, link_class=SCALE_OUT)
    return FabricBuilder(first=len(devices), end=outer, hop=outer)


def _with_fabric(devices: Sequence[Device], builder: FabricBuilder, rows: Iterable[Row] = ()) -> TopologyShape:
    """Return devices and their wires together with the added network."""
    return TopologyShape(devices=[*devices, *builder.switches], rows=[*rows, *builder.rows()], routing="d-mod-k")


def _fat_tree(sizes: str, num_gpus: int, wire: Link) -> TopologyShape:
    """Build ``P[:O]`` (two levels) or ``PxL[:O]`` (three): P GPUs per leaf, L leaves per pod, oversubscription O."""
    shape, over = sizes.partition(":")[::2]
    levels = _numbers("fat-tree", shape) if shape else ()
    if not 1 <= len(levels) <= 2:
        raise SpecError(
            f"topology {_text('fat-tree', sizes)} needs its GPUs a leaf, such as 'fat-tree:8', 'fat-tree:8x4:2'"
        )
    oversubscription = _numbers("fat-tree", over)[0] if over else 1
    if any(size % oversubscription for size in levels):
        raise SpecError(f"topology 'fat-tree:{sizes}': {shape} does not divide by the oversubscription {over}")
    gpus = _gpus(num_gpus, False, 1)
    builder = _fabric_builder(gpus, wire)
    leaves = add_leaves(builder, chunks(range(num_gpus), levels[0]))
    if len(levels) == 1 and len(leaves) > 1:
        add_spines(builder, leaves, levels[0] // oversubscription)
    elif len(leaves) > 1:
        add_pods(builder, leaves, levels[1], levels[0] // oversubscription, levels[1] // oversubscription)
    return _with_fabric(gpus, builder)


def _rail(sizes: str, num_gpus: int, wire: Link) -> TopologyShape:
    """Build ``G``: nodes with a switch and G GPUs; GPU i of every node is on leaf i; one spine per node."""
    size = _numbers("rail", sizes)[0] if sizes else 8
    if num_gpus % size:
        raise SpecError(f"topology 'rail:{size}': {num_gpus} GPUs do not divide into nodes of {size}")
    devices = _gpus(num_gpus, False, size)
    inner: list[Row] = []
    for number, members in enumerate(chunks(range(num_gpus), size)):
        devices.append(Device(name=f"node{number}.switch", kind=SWITCH, forwards=True, node=f"node{number}"))
        for gpu in members:
            inner.extend(((gpu, len(devices) - 1, wire), (len(devices) - 1, gpu, wire)))
    builder = _fabric_builder(devices, wire)
    leaves = add_leaves(builder, [range(rail, num_gpus, size) for rail in range(size)], list(range(size)))
    if size > 1:
        add_spines(builder, leaves, num_gpus // size)
    return _with_fabric(devices, builder, inner)


def _dragonfly(sizes: str, num_gpus: int, wire: Link) -> TopologyShape:
    numbers = _numbers("dragonfly", sizes) if sizes else ()
    if len(numbers) != 3:
        raise SpecError(
            f"topology {_text('dragonfly', sizes)} needs routers a group, GPUs a router and global links a router, "
            "such as 'dragonfly:4x2x2'"
        )
    routers, per_router, global_links = numbers
    gpus = _gpus(num_gpus, False, 1)
    builder = _fabric_builder(gpus, wire)
    add_dragonfly(builder, range(num_gpus), routers, per_router, global_links)
    return _with_fabric(gpus, builder)


def _pcie_tree(sizes: str, num_gpus: int, wire: Link) -> TopologyShape:
    """Build ``G[xS]``: G GPUs per PCIe switch, S switches per socket, whose host forwards; all sockets joined."""
    numbers = _numbers("pcie-tree", sizes) if sizes else (2, 2)
    if len(numbers) > 2:
        raise SpecError(
            f"topology 'pcie-tree:{sizes}' has GPUs a switch and switches a socket, such as 'pcie-tree:2x2'"
        )
    per_switch, per_socket = numbers if len(numbers) == 2 else (numbers[0], 2)
    inner = replace(wire, link_class=HOST_LINK)
    shape = TopologyShape(devices=_gpus(num_gpus, False, num_gpus))
    switches = []
    for number, members in enumerate(chunks(range(num_gpus), per_switch)):
        switches.append(len(shape.devices))
        shape.devices.append(Device(name=f"pcie{number}", kind=SWITCH, forwards=True, node="node0"))
        for gpu in members:
            shape.join(inner, gpu, switches[-1])
    hosts = []
    for number, members in enumerate(chunks(switches, per_socket)):
        hosts.append(len(shape.devices))
        shape.devices.append(Device(name=f"host{number}", kind=HOST, forwards=True, node="node0"))
        for switch in members:
            shape.join(inner, switch, hosts[-1])
    for a, b in combinations(hosts, 2):
        shape.join(inner, a, b)
    return shape


def _wafer(sizes: str, num_gpus: int, wire: Link) -> TopologyShape:
    """Build a mesh of chips with two hosts, joined to every chip of the first and of the last column."""
    shape = _grid("wafer", wrap=False)(sizes, num_gpus, wire)
    if len(shape.grid) != 2:
        raise SpecError(f"topology 'wafer:{sizes}' needs rows and columns, such as 'wafer:4x4'")
    rows, columns = shape.grid
    edges = (0, columns - 1) if columns > 1 else (0,)
    inner = replace(wire, link_class=HOST_LINK)
    for number, column in enumerate(edges):
        shape.devices.append(Device(name=f"edge{number}", kind=HOST))
        for row in range(rows):
            shape.join(inner, row * columns + column, len(shape.devices) - 1)
    return shape


BLUEPRINTS = {
    "ring": Blueprint(build=_plain(_ring, "ring"), texts=("ring",)),
    "double-ring": Blueprint(build=_plain(_double_ring, "double-ring"), texts=("double-ring",)),
    "switch": Blueprint(build=_switch, texts=("switch",)),
    "full": Blueprint(build=_plain(_full, "full"), texts=("full",)),
    "mesh": Blueprint(build=_grid("mesh", False), texts=("mesh:RxC",), implied=_grid_implied),
    "torus": Blueprint(build=_grid("torus", True), texts=("torus:RxC",), implied=_grid_implied),
    "hypercube": Blueprint(build=_plain(_hypercube, "hypercube"), texts=("hypercube",)),
    "hypercube-mesh": Blueprint(
        build=_plain(_hypercube_mesh, "hypercube-mesh"), texts=("hypercube-mesh",), implied=lambda sizes: 8
    ),
    "tree": Blueprint(build=_tree, texts=("tree", "tree:ARITY")),
    "fat-tree": Blueprint(build=_fat_tree, texts=("fat-tree:P[:OVER]", "fat-tree:PxL[:OVER]")),
    "clos": Blueprint(build=_fat_tree, texts=("clos:P[:OVER]", "clos:PxL[:OVER]")),
    "rail": Blueprint(build=_rail, texts=("rail:G",)),
    "dragonfly": Blueprint(build=_dragonfly, texts=("dragonfly:AxPxH",)),
    "pcie-tree": Blueprint(build=_pcie_tree, texts=("pcie-tree:GxS",)),
    "wafer": Blueprint(build=_wafer, texts=("wafer:RxC",), implied=_grid_implied),
}
