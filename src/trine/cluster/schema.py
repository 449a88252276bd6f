"""Schema of cluster files."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from trine.cluster.collective_bandwidth import FROM_NODES, Curve
from trine.cluster.presets import LinkClass
from trine.common.schema import Bandwidth, BeforeValidator, Duration, Field, Size, Spec
from trine.common.units import parse_bandwidth


def _name(value: Any) -> Any:
    """Check a device's name; whole numbers are names too. YAML does not read an unquoted ``no`` or ``1.5`` as text."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise ValueError(f"a name must be text, got {value!r}; put it in quotes")
    if not value or len(value) > 200 or not value.isprintable():
        raise ValueError("a name has 1 to 200 printable characters")
    return value


def _names(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _device(value: Any) -> Any:
    """Expand the minimal form: a bare name is a GPU that forwards traffic."""
    return value if isinstance(value, dict) else {"name": value, "forwards": True}


Name = Annotated[str, BeforeValidator(_name)]
Names = Annotated[list[Name], BeforeValidator(_names), Field(min_length=1)]


class DeviceSpec(Spec):
    """One device, or ``count`` identical ones named ``name0``, ``name1``, ...; ``rail`` is the rail of device 0.

    With ``per_node``, the first ``per_node`` devices belong to node ``NODE0``, the next to ``NODE1`` (``node: NODE``).
    """

    name: Name
    kind: Literal["gpu", "host", "switch", "nic"] = "gpu"
    gpu: str | None = None
    node: Name | None = None
    per_node: int | None = Field(default=None, ge=1, le=1 << 20)
    forwards: bool | None = None
    reduces: bool = False
    rail: int | None = Field(default=None, ge=0, le=1 << 20)
    memory: Size | None = None
    count: int | None = Field(default=None, ge=1, le=1 << 20)


class LinkFields(Spec):
    """The numbers of links, given directly or by a kind of link and its number of lanes."""

    link: str | None = None
    lanes: int | None = Field(default=None, ge=1, le=1 << 10)
    bandwidth: Bandwidth | None = None
    latency: Duration | None = None


class LinkEnds(Spec):
    """The ends of links: from each of ``from`` to each of ``to``."""

    source: Names = Field(alias="from")
    target: Names = Field(alias="to")


class JoiningLink(LinkFields, LinkEnds):
    """Links between devices; the fields of the last base come first."""

    peak: Bandwidth | None = None


class LinkSpec(JoiningLink):
    """Links of a file.

    With ``pairs`` the first joins the first, and so on; the longer list is spread evenly over the shorter one.
    """

    link_class: LinkClass | None = Field(default=None, alias="class")
    name: Name | None = None
    pairs: bool = False
    duplex: bool = False


class LinkChange(JoiningLink):
    """New numbers for links of a base, in both directions unless ``duplex`` is false."""

    duplex: bool = True


class FabricSpec(Spec):
    """The fabric between nodes, with the fields of :class:`trine.cluster.Fabric`."""

    kind: Literal["switch", "rail", "fat-tree", "clos", "dragonfly", "none"]
    link: str
    lanes: int = Field(default=1, ge=1, le=1 << 10)
    oversubscription: float | None = Field(default=None, ge=1, le=1000, strict=False)
    radix: int | None = Field(default=None, ge=4, le=1 << 12)
    reduces: bool = False
    latency: Duration | None = None


class CircuitsSpec(Spec):
    """Circuits between GPUs without links, with the fields of :class:`trine.cluster.Circuits`."""

    setup: Duration
    ports: int = Field(ge=1, le=1 << 16)
    bandwidth: Bandwidth
    latency: Duration
    buffer: Size | None = Field(default=None)


def _curve(value: Any) -> Curve:
    """Return a bus bandwidth, or one for each number of nodes, as a curve."""
    if not isinstance(value, dict):
        return ((FROM_NODES, parse_bandwidth(value)),)
    if not value:
        raise ValueError("needs a bandwidth for a number of nodes, such as {2: 360 GB/s, 32: 65 GB/s}")
    for nodes in value:
        if isinstance(nodes, bool) or not isinstance(nodes, int) or not 1 <= nodes <= 1 << 18:
            raise ValueError(f"numbers of nodes are whole numbers from 1 to {1 << 18}, got {nodes!r:.40}")
    rates = {nodes: parse_bandwidth(rate) for nodes, rate in value.items()}
    return tuple(sorted(rates.items()))


BusBandwidth = Annotated[Any, BeforeValidator(_curve)]


class CollectiveBandwidthSpec(Spec):
    """Bus bandwidths of collectives: one from two nodes on, or one for each number of nodes."""

    all_reduce: BusBandwidth | None = None
    all_gather: BusBandwidth | None = None
    reduce_scatter: BusBandwidth | None = None
    all_to_all: BusBandwidth | None = None
    broadcast: BusBandwidth | None = None
    reduce: BusBandwidth | None = None
    size: Size | None = None
    gpus_per_node: int | None = Field(default=None, ge=1, le=1 << 20)
    evidence: Literal["measured", "interpolated", "modelled", "assumed"] = "assumed"


class NodeSpec(Spec):
    """``count`` copies of a preset or of the cluster file ``file``, each with its first ``gpus`` GPUs."""

    preset: str | None = None
    file: str | None = None
    count: int = Field(default=1, ge=1, le=1 << 18)
    gpus: int | None = Field(default=None, ge=1, le=1 << 20)


class TopologySizes(Spec):
    """A regular network; the text of ``kind`` may include the sizes."""

    kind: str
    gpus: int | None = Field(default=None, ge=1, le=1 << 20)
    rows: int | None = Field(default=None, ge=1, le=1 << 20)
    cols: int | None = Field(default=None, ge=1, le=1 << 20)
    arity: int | None = Field(default=None, ge=2, le=1 << 20)


class TopologySpec(LinkFields, TopologySizes):
    """The arguments of :func:`trine.cluster.build_topology`."""

    gpu: str | None = None


class HostSpec(Spec):
    """The arguments of :func:`trine.cluster.topologies.add_host`."""

    bandwidth: Bandwidth
    latency: Duration
    gpus_per_link: int = Field(default=1, ge=1)
    memory: Size | None = None


class ClusterFile(Spec):
    """A whole cluster file: ``devices`` with ``links``, or ``topology`` with ``host``, or ``node`` or ``nodes``.

    ``fabric`` joins the nodes; without nodes it is the usual fabric between copies of this cluster. ``circuits`` join
    GPUs without links.
    """

    name: str | None = None
    devices: list[Annotated[DeviceSpec, BeforeValidator(_device)]] | None = None
    links: list[LinkSpec] | None = None
    topology: TopologySpec | None = None
    host: HostSpec | None = None
    node: NodeSpec | None = None
    nodes: list[NodeSpec] | None = Field(default=None, min_length=1, max_length=1 << 18)
    fabric: FabricSpec | None = None
    circuits: CircuitsSpec | None = None
    library: Literal["nccl", "rccl"] | None = None
    routing: str | None = None
    grid: list[Annotated[int, Field(ge=1, le=1 << 20)]] | None = Field(default=None, min_length=1, max_length=8)
    spread: float | None = Field(default=None, ge=0, le=1, strict=False)
    collective_bandwidth: CollectiveBandwidthSpec | None = None
    segment: int | None = Field(default=None, ge=1, le=1 << 18)
    peer_access: bool | None = None
    evidence: Literal["measured", "interpolated", "modelled", "assumed"] | None = None
    sources: dict[str, str] = Field(default_factory=dict)
    notes: str = ""


class DeviceChange(Spec):
    """Changes to devices of a base."""

    name: Names
    gpu: str | None = None
    forwards: bool | None = None
    reduces: bool | None = None
    memory: Size | None = None


class FabricChange(Spec):
    """Changes to the usual fabric between copies of a base; a complete fabric if the base has no usual one."""

    kind: str | None = None
    link: str | None = None
    lanes: int | None = None
    oversubscription: float | None = Field(default=None, strict=False)
    radix: int | None = None
    reduces: bool | None = None
    latency: Duration | None = None


class ChangedFile(Spec):
    """A cluster file that changes another one, its base."""

    base: str
    name: str | None = None
    devices: list[DeviceChange] | None = None
    links: list[LinkChange] | None = None
    fabric: FabricChange | None = None
    collective_bandwidth: CollectiveBandwidthSpec | None = None
    library: Literal["nccl", "rccl"] | None = None
    routing: str | None = None
    segment: int | None = Field(default=None, ge=1, le=1 << 18)
    peer_access: bool | None = None
    evidence: Literal["measured", "interpolated", "modelled", "assumed"] | None = None
    sources: dict[str, str] = Field(default_factory=dict)
    notes: str = ""
