"""Schema of InfraGraph files (version 3.1.0, MIT, https://github.com/keysight/infragraph), read strictly."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from trine.common.schema import AfterValidator, BeforeValidator, Field, Spec

MAX_COUNT = 1 << 20


def _name(value: str) -> str:
    """Check the name of a part; endpoints use the characters ``.[]:``, so names must not."""
    if not value or len(value) > 200 or not value.isprintable() or any(char in value for char in ".[]:"):
        raise ValueError(f"a name has 1 to 200 printable characters without . [ ] :, got {value[:80]!r}")
    return value


def _number(value: Any) -> Any:
    """Convert integers to floats: JSON and YAML distinguish 400 from 400.0, the format does not."""
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


Name = Annotated[str, AfterValidator(_name)]
Text = Annotated[str, Field(max_length=1 << 24)]
Number = Annotated[float, BeforeValidator(_number), Field(ge=0, allow_inf_nan=False)]
Scheme = Literal["one2one", "many2many", "ring"]


class Bandwidth(Spec):
    choice: Literal["gigabits_per_second", "gigabytes_per_second", "gigatransfers_per_second"] | None = None
    gigabits_per_second: Number | None = None
    gigabytes_per_second: Number | None = None
    gigatransfers_per_second: Number | None = None


class Latency(Spec):
    choice: Literal["ms", "us", "ns"] | None = None
    ms: Number | None = None
    us: Number | None = None
    ns: Number | None = None


class Physical(Spec):
    bandwidth: Bandwidth | None = None
    latency: Latency | None = None


class LinkFile(Spec):
    name: Name
    description: Text = ""
    physical: Physical | None = None


class Custom(Spec):
    type: str | None = None


class ComponentFile(Spec):
    name: Name
    description: Text = ""
    count: Annotated[int, Field(ge=0, le=MAX_COUNT)]
    choice: Literal["cpu", "xpu", "nic", "memory", "port", "switch", "device", "custom"]
    custom: Custom | None = None
    # The format's other choices are empty messages.
    cpu: dict[str, Any] | None = Field(default=None, max_length=0)
    xpu: dict[str, Any] | None = Field(default=None, max_length=0)
    nic: dict[str, Any] | None = Field(default=None, max_length=0)
    memory: dict[str, Any] | None = Field(default=None, max_length=0)
    port: dict[str, Any] | None = Field(default=None, max_length=0)
    switch: dict[str, Any] | None = Field(default=None, max_length=0)
    device: dict[str, Any] | None = Field(default=None, max_length=0)


class DeviceEnd(Spec):
    device: str | None = None
    component: str


class DeviceEdge(Spec):
    ep1: DeviceEnd
    ep2: DeviceEnd
    scheme: Scheme
    link: str


class DeviceFile(Spec):
    """A device type: its parts and their connections. A file may hold a single one."""

    name: Name
    description: Text = ""
    components: Annotated[list[ComponentFile], Field(min_length=1)]
    links: list[LinkFile] = Field(default_factory=list)
    edges: list[DeviceEdge] = Field(default_factory=list)


class InstanceEnd(Spec):
    instance: str
    component: str


class InstanceEdge(Spec):
    ep1: InstanceEnd
    ep2: InstanceEnd
    scheme: Scheme
    link: str


class InstanceFile(Spec):
    name: Name
    description: Text = ""
    device: str
    count: Annotated[int, Field(ge=0, le=MAX_COUNT)]


class InfrastructureFile(Spec):
    """A whole file."""

    name: str = ""
    description: Text = ""
    devices: Annotated[list[DeviceFile], Field(min_length=1)]
    links: list[LinkFile] = Field(default_factory=list)
    instances: Annotated[list[InstanceFile], Field(min_length=1)]
    edges: list[InstanceEdge] = Field(default_factory=list)


class Attribute(Spec):
    attribute: str
    value: str


class NodeNote(Spec):
    name: str
    attributes: list[Attribute] = Field(default_factory=list)


class EdgeNote(Spec):
    ep1: str
    ep2: str
    attributes: list[Attribute] = Field(default_factory=list)


class AnnotationFile(Spec):
    """Attributes of nodes, edges, links and of the whole graph."""

    nodes: list[NodeNote] = Field(default_factory=list)
    edges: list[EdgeNote] = Field(default_factory=list)
    links: list[NodeNote] = Field(default_factory=list)
    graph: list[Attribute] = Field(default_factory=list)


class OwnComponent(Spec):
    """Data that trine's exporter adds to a component's description after ``trine: ``; lists have one entry per part."""

    kind: Literal["gpu", "host", "switch", "nic"]
    names: list[str]
    gpu: str | None = None
    node: list[str | None] | None = None
    forwards: bool = False
    reduces: bool = False
    rail: list[int | None] | None = None
    memory_bytes: int | None = None


class OwnInstance(Spec):
    """Data that trine's exporter adds to an instance: the prefix of its devices' names, and their node."""

    prefix: str = ""
    node: str | None = None


class OwnLink(Spec):
    """Data that trine's exporter adds to a link."""

    link_class: Literal["scale-up", "host", "scale-out"]
    medium: str | None = None
    peak_bytes_per_s: int | None = Field(default=None, ge=1)


class OwnFabric(Spec):
    kind: str
    link: str
    lanes: int
    oversubscription: Number
    radix: int
    reduces: bool
    latency_ps: int | None = Field(default=None, ge=0)


class OwnFile(Spec):
    """Data that trine's exporter adds to the infrastructure: the cluster's facts beyond the file's parts and edges.

    ``devices``: ``gpus first``, or each device's position in the file; ``links``: the same for each direction of an
    edge. Absent if the order equals the file's. ``link_names``: names other than ``source->target``, by position.
    """

    evidence: str = "assumed"
    sources: dict[str, str] = Field(default_factory=dict)
    notes: str = ""
    library: str | None = None
    routing: str = "shortest"
    grid: list[int] = Field(default_factory=list)
    peer_access: Literal["no", "yes"] | None = None
    fabric: OwnFabric | None = None
    devices: Literal["gpus first"] | list[int] | None = None
    links: list[int] | None = None
    link_names: dict[str, str] = Field(default_factory=dict)
