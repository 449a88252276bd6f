"""From the options that describe a machine to a cluster; every option that is given must matter."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated

import typer

from trine.cli.circuits import CircuitOptions, circuits_alone, joined
from trine.errors import InputError, nearest

if TYPE_CHECKING:
    from trine.cluster import Cluster

_PANEL = "Machine"
#: The options themselves, as every command that takes a machine declares them.
ClusterOption = Annotated[str | None, typer.Option(help="Preset name or cluster file.", rich_help_panel=_PANEL)]
GpusOption = Annotated[int | None, typer.Option(help="GPUs, nodes filled in order.", rich_help_panel=_PANEL)]
NodesOption = Annotated[int | None, typer.Option(help="Nodes of the preset.", rich_help_panel=_PANEL)]
FabricOption = Annotated[
    str | None,
    typer.Option(
        metavar="KIND[:OVER][@LINK]", help="What joins the nodes: switch, rail, clos, ...", rich_help_panel=_PANEL
    ),
]
SlowLinkOption = Annotated[
    list[str] | None, typer.Option(metavar="LINK:FACTOR", help="Slow a link down.", rich_help_panel=_PANEL)
]
LinkDownOption = Annotated[
    list[str] | None, typer.Option(metavar="LINK", help="Take a link out.", rich_help_panel=_PANEL)
]
RoutingOption = Annotated[
    str | None, typer.Option(help="How routes are chosen [the fabric's or file's own].", rich_help_panel=_PANEL)
]
TopologyOption = Annotated[
    str | None, typer.Option(help="Describe the cluster inline, such as torus:4x4.", rich_help_panel=_PANEL)
]
BandwidthOption = Annotated[
    str | None, typer.Option(help='Of each link and direction of --topology: "65 GB/s".', rich_help_panel=_PANEL)
]
LatencyOption = Annotated[str | None, typer.Option(help='Of each link of --topology: "1 us".', rich_help_panel=_PANEL)]


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineOptions:
    """The options as given: None where one was not. ``gpu`` is the GPU model of an inline cluster."""

    cluster: str | None = None
    gpus: int | None = None
    nodes: int | None = None
    fabric: str | None = None
    slow_links: tuple[str, ...] = ()
    links_down: tuple[str, ...] = ()
    routing: str | None = None
    topology: str | None = None
    bandwidth: str | None = None
    latency: str | None = None
    gpu: str | None = None
    circuits: CircuitOptions = field(default_factory=CircuitOptions)


def group_machine(options: MachineOptions) -> tuple[Cluster, list[str]]:
    """The cluster whose GPUs are all in the group, with sentences about what was assumed.

    Raises
    ------
    InputError: no machine, or options that contradict each other.
    """
    machine, warnings = described_machine(options)
    if machine is None:
        raise InputError(
            "no machine was described: --cluster NAME or FILE, or --topology with --bandwidth; in commands with "
            "circuits also --circuit-setup with --circuit-ports and --circuit-bandwidth"
        )
    return machine, warnings


def described_machine(options: MachineOptions) -> tuple[Cluster | None, list[str]]:
    """As :func:`group_machine`; None where nothing was described."""
    if options.topology is not None:
        return _inline(options)
    for name, value in (("--bandwidth", options.bandwidth), ("--latency", options.latency)):
        if value is not None:
            raise InputError(f"{name} describes the links of --topology, which was not given")
    if options.cluster is None:
        _refuse(
            options,
            ("nodes", "fabric", "slow_links", "links_down", "routing"),
            "and none was described: give --cluster",
        )
        if options.circuits.are_given:
            return circuits_alone(options.gpus, options.circuits, options.gpu)
        return None, []
    from trine.cluster import load_cluster

    cluster = load_cluster(
        options.cluster,
        nodes=options.nodes,
        gpus=options.gpus,
        fabric=options.fabric,
        slow_links=[slow_link(text) for text in options.slow_links],
        links_down=options.links_down,
        routing=options.routing,
    )
    return joined(cluster, options.circuits)


def job_machine(num_ranks: int, options: MachineOptions) -> tuple[Cluster | None, list[str]]:
    """The cluster of a job of ``num_ranks``: as it is, or as many nodes of it as ``--nodes`` says."""
    if options.topology is not None or options.cluster is None:
        alone = options.topology is None and not options.circuits.are_given
        return described_machine(replace(options, gpus=None if alone else num_ranks))
    return described_machine(replace(options, gpus=None if options.nodes is None else num_ranks))


def _inline(options: MachineOptions) -> tuple[Cluster, list[str]]:
    if options.cluster is not None:
        raise InputError("--cluster and --topology both describe the machine: give one")
    _refuse(options, ("nodes", "fabric"), "and --topology describes all of it: use --cluster")
    if options.circuits.are_given:
        raise InputError("--topology joins all GPUs by links, where circuits are none: use --cluster, or neither")
    if options.bandwidth is None:
        raise InputError(f'--topology {options.topology} needs --bandwidth, e.g. --bandwidth "65 GB/s"')
    from trine.cluster import build_topology
    from trine.cluster.blueprints import BLUEPRINTS
    from trine.cluster.select import slow_down, take_down
    from trine.cluster.topologies import implied_gpus

    text = str(options.topology)
    gpus = implied_gpus(text) if options.gpus is None else options.gpus
    if gpus is None:
        kind = text.partition(":")[0]
        if kind not in BLUEPRINTS:
            raise InputError(f"unknown --topology {text!r:.80}{nearest(kind[:80], BLUEPRINTS)}")
        raise InputError(_lacks(kind, text))
    warnings = [] if options.latency is not None else ["--latency was not given: links have none"]
    latency = options.latency if options.latency is not None else 0
    machine = build_topology(text, options.bandwidth, latency, gpus, options.gpu)
    machine = take_down(slow_down(machine, [slow_link(each) for each in options.slow_links]), options.links_down)
    return machine if options.routing is None else machine.routed(options.routing, "asked for"), warnings


def _lacks(kind: str, text: str) -> str:
    """What a topology without a known number of GPUs needs: sizes, where none of its forms goes without, or --gpus."""
    from trine.cluster.blueprints import BLUEPRINTS
    from trine.cluster.topologies import implied_gpus

    forms = BLUEPRINTS[kind].texts
    if ":" in text and all(":" not in form for form in forms):
        return f"--topology {kind} has no sizes, got {text!r:.80}: give --topology {kind} and --gpus"
    if ":" in text or not all(":" in form for form in forms):
        return f"--topology {text} needs --gpus"
    enough = any(implied_gpus(f"{kind}:{sizes}") for sizes in ("2", "2x2", "2x2x2"))
    return f"--topology {kind} needs its sizes, {' or '.join(forms)}" + ("" if enough else ", and --gpus")


def slow_link(text: str) -> tuple[str, str]:
    """``gpu0->nvswitch:0.5`` as name and slowness."""
    name, _, how = text.rpartition(":")
    if not name or not how.strip():
        raise InputError(f"--slow-link takes LINK:FACTOR or LINK:BANDWIDTH, such as 'gpu0->nvswitch:0.5'; got {text!r}")
    return name.strip(), how.strip()


_OPTIONS = {
    "nodes": "--nodes", "fabric": "--fabric", "slow_links": "--slow-link", "links_down": "--link-down",
    "routing": "--routing",
}  # fmt: skip


def _refuse(options: MachineOptions, names: tuple[str, ...], why: str) -> None:
    for name in names:
        if getattr(options, name) not in (None, ()):
            raise InputError(f"{_OPTIONS[name]} is about the machine, {why}")
