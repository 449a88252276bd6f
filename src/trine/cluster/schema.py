"""What a cluster file may hold. Imports pydantic, so it is itself imported only when a file is read."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from trine.spec import Bandwidth, Duration, Spec


def _name(value: Any) -> Any:
    """A device's name; whole numbers are names too. YAML reads an unquoted ``no`` or ``1.5`` as something else."""
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
    """The minimal form: a name is a GPU that forwards traffic."""
    return value if isinstance(value, dict) else {"name": value, "forwards": True}


Name = Annotated[str, BeforeValidator(_name)]
Names = Annotated[list[Name], BeforeValidator(_names), Field(min_length=1)]


class DeviceSpec(Spec):
    """One device, or ``count`` alike named ``name0``, ``name1``, ..."""

    name: Name
    kind: Literal["gpu", "host", "switch", "nic"] = "gpu"
    gpu: str | None = None
    node: Name | None = None
    forwards: bool | None = None
    count: int | None = Field(default=None, ge=1, le=1 << 20)


class LinkSpec(Spec):
    """Links from each of ``from`` to each of ``to``."""

    source: Names = Field(alias="from")
    target: Names = Field(alias="to")
    bandwidth: Bandwidth
    latency: Duration
    duplex: bool = False


class TopologySpec(Spec):
    """The arguments of :func:`trine.cluster.build_topology`."""

    kind: Literal["ring", "switch", "full", "mesh", "torus", "tree"]
    gpus: int | None = Field(default=None, ge=1, le=1 << 20)
    rows: int | None = Field(default=None, ge=1, le=1 << 20)
    cols: int | None = Field(default=None, ge=1, le=1 << 20)
    arity: int | None = Field(default=None, ge=2, le=1 << 20)
    bandwidth: Bandwidth
    latency: Duration
    gpu: str | None = None


class HostSpec(Spec):
    """The arguments of :func:`trine.cluster.topologies.add_host`."""

    bandwidth: Bandwidth
    latency: Duration
    gpus_per_link: int = Field(default=1, ge=1)


class ClusterFile(Spec):
    """A whole cluster file: either ``devices`` with ``links``, or ``topology`` with ``host``."""

    name: str | None = None
    devices: list[Annotated[DeviceSpec, BeforeValidator(_device)]] | None = None
    links: list[LinkSpec] | None = None
    topology: TopologySpec | None = None
    host: HostSpec | None = None
    evidence: Literal["measured", "interpolated", "modelled", "assumed"] = "assumed"
    sources: dict[str, str] = Field(default_factory=dict)
    notes: str = ""
