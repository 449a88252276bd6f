"""Conversion of machine options to a cluster; options without an effect are errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated

from trine.cli.output import is_recording
from trine.cli.parameters import Fields
from trine.common.arguments import option
from trine.errors import InputError, SpecError, nearest

if TYPE_CHECKING:
    from trine.cluster import Circuits, Cluster

#: Maximum number of GPUs for the check that options about links and routes change a route.
MAX_COMPARED = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineOptions:
    """Options that describe a machine; None or ``()`` if not given. gpu: the GPU model of an inline cluster."""

    cluster: str | None = option(None, "Choose the cluster: preset or file.")
    gpus: int | None = option(None, "Use N GPUs, filling nodes in order.")
    nodes: int | None = option(None, "Use N nodes of the preset.")
    segment: int | None = option(None, "Place N hosts at a time in one rack (Slurm's --segment).")
    fabric: str | None = option(None, "Choose the fabric between nodes: switch, rail, clos, ...")
    sharp: bool = option(False, "Let the switches between nodes reduce (InfiniBand SHARP).")
    slow_link: tuple[str, ...] = option((), "Slow a link down.")
    link_down: tuple[str, ...] = option((), "Take a link out.")
    routing: str | None = option(None, "Choose the routing policy [the fabric's or file's].")
    topology: str | None = option(None, "Describe the cluster inline, such as torus:4x4.")
    bandwidth: str | None = option(None, 'Set the bandwidth of each link and direction of --topology: "65 GB/s".')
    latency: str | None = option(None, 'Set the latency of each link of --topology: "1 us".')
    circuit_setup: str | None = option(None, 'Set the set-up time of a circuit: "20 ms".')
    circuit_ports: int | None = option(None, "Limit the circuits of a GPU at a time.")
    circuit_bandwidth: str | None = option(None, 'Set the bandwidth of a circuit, each way: "60.5 GB/s".')
    circuit_latency: str | None = option(None, 'Set the latency of a circuit: "5 ns".')
    circuit_buffer: str | None = option(None, 'Set the receive buffer of a GPU: "64 MiB" [unlimited].')
    gpu: str | None = None

    @property
    def has_circuits(self) -> bool:
        """Whether any circuit option was given."""
        return any(getattr(self, name) is not None for name in CIRCUITS)


CIRCUITS = ("circuit_setup", "circuit_ports", "circuit_bandwidth", "circuit_latency", "circuit_buffer")
#: Machine options for commands that support neither circuits nor libraries of collectives nor several racks.
LinkedMachine = Annotated[MachineOptions, Fields(without=(*CIRCUITS, "sharp", "segment"))]


def group_machine(options: MachineOptions) -> tuple[Cluster, list[str]]:
    """Return the cluster, all of whose GPUs form the group, and the assumptions as sentences.

    Raises InputError: no machine, or contradictory options.
    """
    machine, warnings = described_machine(options)
    if machine is None:
        raise InputError(
            "add a machine: --cluster NAME or FILE (such as --cluster dgx-h100), --topology with --bandwidth, or "
            "--circuit-setup with --circuit-ports and --circuit-bandwidth"
        )
    return machine, warnings


def described_machine(options: MachineOptions) -> tuple[Cluster | None, list[str]]:
    """Return :func:`group_machine`, with None instead of the cluster if no option describes one."""
    if options.topology is not None:
        return _inline(options)
    for name, value in (("--bandwidth", options.bandwidth), ("--latency", options.latency)):
        if value is not None:
            raise InputError(f"{name} describes the links of --topology, which was not given")
    if options.cluster is None:
        _refuse(
            options,
            ("nodes", "segment", "fabric", "sharp", "slow_link", "link_down", "routing"),
            "and none was described: give --cluster",
        )
        if options.has_circuits:
            return _circuits_alone(options)
        return None, []
    from trine.cluster import load_cluster

    cluster = load_cluster(
        options.cluster, nodes=options.nodes, gpus=options.gpus, fabric=options.fabric,
        slow_links=[slow_link(text) for text in options.slow_link], links_down=options.link_down,
        routing=options.routing, sharp=options.sharp, segment=options.segment,
    )  # fmt: skip
    return _with_circuits(cluster, options)


def job_machine(num_ranks: int, options: MachineOptions) -> tuple[Cluster | None, list[str]]:
    """Return the cluster of a job of ``num_ranks``: all of it, or as many nodes as ``--nodes`` or the job asks for.

    Raises InputError: an option about links or routes changes no message's path.
    """
    from trine.cluster.presets import known_clusters

    is_kept = is_recording() and options.cluster in known_clusters() and not (options.slow_link or options.link_down)
    machine, warnings = (_kept_machine if is_kept else _job_machine)(num_ranks, options)
    if machine is not None and 1 < len(machine.gpus) <= MAX_COMPARED:
        _refuse_idle_links(machine, options, lambda without: _job_machine(num_ranks, without)[0])
    return machine, warnings


def _job_machine(num_ranks: int, options: MachineOptions) -> tuple[Cluster | None, list[str]]:
    if options.topology is not None or options.cluster is None:
        has_no_network = options.topology is None and not options.has_circuits
        return described_machine(replace(options, gpus=None if has_no_network else num_ranks))
    from trine.cluster.load import load_cluster, spans_copies

    has_nodes = options.nodes is not None or spans_copies(load_cluster(options.cluster), num_ranks)
    return described_machine(replace(options, gpus=num_ranks if has_nodes else None))


#: Clusters of the points of experiments: answers about routes and collectives are kept with a cluster.
_kept_machine = lru_cache(maxsize=16)(_job_machine)


def _refuse_idle_links(
    machine: Cluster, options: MachineOptions, build: Callable[[MachineOptions], Cluster | None]
) -> None:
    """Raise InputError for options about links and routes that change no message's path or speed."""
    paths = None
    for flag, without in options_of_links(options):
        changed = build(without)
        if changed is None or (changed.routing == options.routing and without.routing != options.routing):
            continue  # the option names the default
        paths = _ways(machine) if paths is None else paths
        if _ways(changed) == paths:
            raise InputError(f"{flag} changes nothing: no message between GPUs, or from a host, goes another way")


def options_of_links(options: MachineOptions) -> Iterator[tuple[str, MachineOptions]]:
    """Yield each given option about links and routes, and the machine options without it."""
    if options.routing is not None:
        yield f"--routing {options.routing}", replace(options, routing=None)
    for text in options.slow_link:
        remaining = tuple(name for name in options.slow_link if name != text)
        yield f"--slow-link {text}", replace(options, slow_link=remaining)
    for text in options.link_down:
        remaining = tuple(name for name in options.link_down if name != text)
        yield f"--link-down {text}", replace(options, link_down=remaining)


def _ways(machine: Cluster) -> list[tuple[object, ...]]:
    """Return the links of each path between two GPUs, and between a GPU and its host, in order."""
    hosts = ((gpu, host) for gpu in machine.gpus if (host := machine.host_of(gpu)) is not None)
    ends = [(a, b) for a in machine.gpus for b in machine.gpus if a != b]
    ends += [end for gpu, host in hosts for end in ((gpu, host), (host, gpu))]
    ways: list[tuple[object, ...]] = []
    for source, target in ends:
        try:
            paths = machine.paths(source, target)
        except SpecError:  # no path: only jobs that need it fail
            paths = ()
        ways.append((source, target))
        for route, share in paths:
            links = [machine.links[link] for link in route]
            ways.append((share, *((link.name, link.bytes_per_s, link.latency_ps) for link in links)))
    return ways


def _inline(options: MachineOptions) -> tuple[Cluster, list[str]]:
    if options.cluster is not None:
        raise InputError("--cluster and --topology both describe the machine: give one")
    _refuse(options, ("nodes", "segment", "fabric", "sharp"), "and --topology describes all of it: use --cluster")
    if options.has_circuits:
        raise InputError("--topology joins all GPUs by links and leaves no circuits: use --cluster, or neither")
    from trine.cluster import build_topology
    from trine.cluster.select import slow_down, take_down
    from trine.cluster.topologies import BLUEPRINTS, implied_gpus

    text = str(options.topology)
    kind = text.partition(":")[0]
    if kind in BLUEPRINTS and ":" in text and not any(":" in form for form in BLUEPRINTS[kind].texts):
        raise InputError(f"--topology {text:.80} has a size: use --topology {kind}, and --gpus N without a layout")
    if options.bandwidth is None:
        raise InputError(f'--topology {text:.80} needs --bandwidth, such as --bandwidth "65 GB/s"')
    gpus = implied_gpus(text) if options.gpus is None else options.gpus
    if gpus is None:
        if kind not in BLUEPRINTS:
            raise InputError(f"unknown --topology {text!r:.80}{nearest(kind[:80], BLUEPRINTS)}")
        raise InputError(_lacks(kind, text))
    warnings = [] if options.latency is not None else ["links have no latency: --latency sets it"]
    latency = options.latency if options.latency is not None else 0
    machine = build_topology(text, options.bandwidth, latency, gpus, options.gpu)
    machine = take_down(slow_down(machine, [slow_link(each) for each in options.slow_link]), options.link_down)
    return machine if options.routing is None else machine.routed(options.routing, "asked for"), warnings


def _lacks(kind: str, text: str) -> str:
    """Return the error for a topology without a known number of GPUs: it needs --gpus, or sizes if all forms do."""
    from trine.cluster.topologies import BLUEPRINTS, implied_gpus

    forms = BLUEPRINTS[kind].texts
    if ":" in text or not all(":" in form for form in forms):
        return f"--topology {text} needs --gpus"
    enough = any(implied_gpus(f"{kind}:{sizes}") for sizes in ("2", "2x2", "2x2x2"))
    return f"--topology {kind} needs its sizes, {' or '.join(forms)}" + ("" if enough else ", and --gpus")


def slow_link(text: str) -> tuple[str, str]:
    """Split text such as ``gpu0->nvswitch:0.5`` into the link's name and its factor or bandwidth."""
    name, _, rate = text.rpartition(":")
    if not name or not rate.strip():
        raise InputError(f"--slow-link takes LINK:FACTOR or LINK:BANDWIDTH, such as 'gpu0->nvswitch:0.5'; got {text!r}")
    return name.strip(), rate.strip()


def _refuse(options: MachineOptions, names: tuple[str, ...], reason: str) -> None:
    for name in names:
        if getattr(options, name) not in (None, (), False):
            raise InputError(f"--{name.replace('_', '-')} is about the machine, {reason}")


def _with_circuits(cluster: Cluster, options: MachineOptions) -> tuple[Cluster, list[str]]:
    """Return ``cluster`` with the options' circuits, and the assumptions as sentences."""
    if not options.has_circuits:
        return cluster, []
    circuits, warnings = _circuits(options, cluster.circuits)
    changed = replace(cluster, circuits=circuits)
    if cluster.circuits is None:
        sources = {**cluster.sources, "circuits": f"given: {circuits.describe()}"}
        changed = replace(changed, sources=sources, evidence="assumed")
    return changed, warnings


def _circuits_alone(options: MachineOptions) -> tuple[Cluster, list[str]]:
    """Return a cluster of only GPUs and circuits, and the assumptions. Raises InputError for missing numbers."""
    from trine.cluster import Cluster, Device

    if options.gpus is None:
        raise InputError("circuits need a number of GPUs: --gpus N, or --cluster NAME or FILE")
    circuits, warnings = _circuits(options, None)
    devices = tuple(Device(name=f"gpu{i}", gpu=options.gpu) for i in range(options.gpus))
    name, sources = f"{options.gpus} GPUs on circuits", {"circuits": f"given: {circuits.describe()}"}
    return Cluster(name=name, devices=devices, links=(), circuits=circuits, sources=sources), warnings


def _circuits(options: MachineOptions, defaults: Circuits | None) -> tuple[Circuits, list[str]]:
    """Return the circuits (from the options, else from ``defaults``), and the assumptions as sentences."""
    from trine.cluster import Circuits
    from trine.common.units import parse_bandwidth, parse_bytes, parse_time

    if options.circuit_ports is not None and options.circuit_ports < 1:
        raise InputError(f"--circuit-ports must be at least 1, got {options.circuit_ports}")
    parsers: dict[str, tuple[str, Callable[[str, str], int]]] = {
        "setup_ps": ("setup", parse_time), "bytes_per_s": ("bandwidth", parse_bandwidth),
        "latency_ps": ("latency", parse_time), "buffer_bytes": ("buffer", parse_bytes),
    }  # fmt: skip
    values = {} if options.circuit_ports is None else {"ports": options.circuit_ports}
    for field, (word, parse) in parsers.items():
        if (text := getattr(options, f"circuit_{word}")) is not None:
            values[field] = parse(text, f"--circuit-{word}")
    if defaults is not None:
        return replace(defaults, **values), []
    for field, word in (("setup_ps", "setup"), ("ports", "ports"), ("bytes_per_s", "bandwidth")):
        if field not in values:
            raise InputError(f"--circuit-{word} is missing, and the cluster has no circuits to take it from")
    warnings = [] if options.circuit_latency is not None else ["circuits have no latency: --circuit-latency sets it"]
    return Circuits(**{"latency_ps": 0, **values}), warnings
