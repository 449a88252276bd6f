"""From the options that describe a machine to a cluster; every option that is given must matter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated

import typer

from trine.cli.circuits import CircuitOptions, circuits_alone, joined
from trine.errors import InputError, SpecError, nearest

if TYPE_CHECKING:
    from trine.cluster import Cluster

_PANEL = "Machine"
#: GPUs of the largest machine whose routes are compared pair by pair: larger ones are taken as they are.
MAX_COMPARED = 64
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
    """The cluster of a job of ``num_ranks``: as it is, or as many nodes of it as ``--nodes`` says.

    Raises
    ------
    InputError: an option about links or routes that changes no way of a message.
    """
    machine, warnings = _job_machine(num_ranks, options)
    if machine is not None and 1 < len(machine.gpus) <= MAX_COMPARED:
        _refuse_idle_links(machine, options, lambda without: _job_machine(num_ranks, without)[0])
    return machine, warnings


def _job_machine(num_ranks: int, options: MachineOptions) -> tuple[Cluster | None, list[str]]:
    if options.topology is not None or options.cluster is None:
        alone = options.topology is None and not options.circuits.are_given
        return described_machine(replace(options, gpus=None if alone else num_ranks))
    return described_machine(replace(options, gpus=None if options.nodes is None else num_ranks))


def _refuse_idle_links(
    machine: Cluster, options: MachineOptions, build: Callable[[MachineOptions], Cluster | None]
) -> None:
    """Raise InputError for options about links and routes without which every message goes the same way, as fast."""
    known = None
    for option, without in options_of_links(options):
        other = build(without)
        if other is None or (other.routing == options.routing and without.routing != options.routing):
            continue  # what is usual was spelt out
        known = _ways(machine) if known is None else known
        if _ways(other) == known:
            raise InputError(f"{option} changes nothing: no message between GPUs, or from a host, goes another way")


def options_of_links(options: MachineOptions) -> Iterator[tuple[str, MachineOptions]]:
    """Each option about links and routes that was given, and the machine without it."""
    if options.routing is not None:
        yield f"--routing {options.routing}", replace(options, routing=None)
    for text in options.slow_links:
        rest = tuple(other for other in options.slow_links if other != text)
        yield f"--slow-link {text}", replace(options, slow_links=rest)
    for text in options.links_down:
        rest = tuple(other for other in options.links_down if other != text)
        yield f"--link-down {text}", replace(options, links_down=rest)


def _ways(machine: Cluster) -> list[tuple[object, ...]]:
    """All that a message can meet, in order: each link of each path between two GPUs, or a GPU and its host."""
    hosts = ((gpu, host) for gpu in machine.gpus if (host := machine.host_of(gpu)) is not None)
    ends = [(a, b) for a in machine.gpus for b in machine.gpus if a != b]
    ends += [end for gpu, host in hosts for end in ((gpu, host), (host, gpu))]
    met: list[tuple[object, ...]] = []
    for source, target in ends:
        try:
            paths = machine.paths(source, target)
        except SpecError:  # no way at all, which matters to jobs that need it alone
            paths = ()
        met.append((source, target))
        for route, share in paths:
            links = [machine.links[link] for link in route]
            met.append((share, *((link.name, link.bytes_per_s, link.latency_ps) for link in links)))
    return met


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
