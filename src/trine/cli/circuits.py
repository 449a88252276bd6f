"""The options that describe circuits: on their own, or in place of numbers of the cluster file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from trine.errors import InputError

if TYPE_CHECKING:
    from trine.cluster import Circuits, Cluster

_PANEL = "Circuits between GPUs"
SetupOption = Annotated[
    str | None, typer.Option(help='Until a new circuit carries bytes: "20 ms".', rich_help_panel=_PANEL)
]
PortsOption = Annotated[int | None, typer.Option(help="Circuits of a GPU at a time.", rich_help_panel=_PANEL)]
RateOption = Annotated[str | None, typer.Option(help='Of one circuit, each way: "60.5 GB/s".', rich_help_panel=_PANEL)]
DelayOption = Annotated[str | None, typer.Option(help='Of one circuit: "5 ns".', rich_help_panel=_PANEL)]
BufferOption = Annotated[
    str | None, typer.Option(help='Receive buffer of a GPU: "64 MiB" [always room].', rich_help_panel=_PANEL)
]


@dataclass(frozen=True, kw_only=True, slots=True)
class CircuitOptions:
    """The options as given: None where one was not."""

    setup: str | None = None
    ports: int | None = None
    bandwidth: str | None = None
    latency: str | None = None
    buffer: str | None = None

    @property
    def are_given(self) -> bool:
        return self != CircuitOptions()


def joined(cluster: Cluster, options: CircuitOptions) -> tuple[Cluster, list[str]]:
    """``cluster`` with the circuits that the options describe, and sentences about what was assumed."""
    if not options.are_given:
        return cluster, []
    circuits, warnings = _circuits(options, cluster.circuits)
    changed = replace(cluster, circuits=circuits)
    if cluster.circuits is None:
        sources = {**cluster.sources, "circuits": f"given: {circuits.describe()}"}
        changed = replace(changed, sources=sources, evidence="assumed")
    return changed, warnings


def circuits_alone(num_gpus: int | None, options: CircuitOptions, gpu: str | None) -> tuple[Cluster, list[str]]:
    """A cluster of nothing but GPUs and the circuits between them.

    Raises
    ------
    InputError: numbers that are missing.
    """
    from trine.cluster import Cluster, Device

    if num_gpus is None:
        raise InputError("circuits alone do not say how many GPUs there are: --gpus N, or --cluster NAME or FILE")
    circuits, warnings = _circuits(options, None)
    devices = tuple(Device(name=f"gpu{i}", gpu=gpu) for i in range(num_gpus))
    sources = {"circuits": f"given: {circuits.describe()}"}
    return Cluster(
        name=f"{num_gpus} GPUs on circuits", devices=devices, links=(), circuits=circuits, sources=sources
    ), warnings


def _circuits(options: CircuitOptions, known: Circuits | None) -> tuple[Circuits, list[str]]:
    from trine.cluster import Circuits
    from trine.units import parse_bandwidth, parse_bytes, parse_time

    given: dict[str, int] = {}
    if options.setup is not None:
        given["setup_ps"] = parse_time(options.setup, "--circuit-setup")
    if options.ports is not None:
        if options.ports < 1:
            raise InputError(f"--circuit-ports must be at least 1, got {options.ports}")
        given["ports"] = options.ports
    if options.bandwidth is not None:
        given["bytes_per_s"] = parse_bandwidth(options.bandwidth, "--circuit-bandwidth")
    if options.latency is not None:
        given["latency_ps"] = parse_time(options.latency, "--circuit-latency")
    if options.buffer is not None:
        given["buffer_bytes"] = parse_bytes(options.buffer, "--circuit-buffer")
    if known is not None:
        return replace(known, **given), []
    for name, option in (("setup_ps", "setup"), ("ports", "ports"), ("bytes_per_s", "bandwidth")):
        if name not in given:
            raise InputError(f"--circuit-{option} is missing: the cluster has no circuits that it could be taken from")
    warnings = [] if options.latency is not None else ["--circuit-latency was not given: circuits have none"]
    return Circuits(**{"latency_ps": 0, **given}), warnings
