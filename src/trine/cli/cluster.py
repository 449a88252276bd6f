"""``trine cluster``: the machines that trine knows, and their devices and links."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

from trine.cli.completions import clusters, gpus
from trine.cli.machine import CIRCUITS, MachineOptions, group_machine
from trine.cli.options import MACHINE, OUTPUT, Json, Option, argument
from trine.cli.output import say, show, show_table, write_json, written
from trine.cli.parameters import Fields
from trine.errors import InputError, SpecError
from trine.results.columns import Column, Columns, to_row

if TYPE_CHECKING:
    from trine.cluster import Cluster

DEVICE = Columns(
    Column(key="name", unit="text", meaning="Name of the device."),
    Column(key="kind", unit="text", meaning="Kind, such as `gpu` or `switch`."),
    Column(key="gpu", unit="text", meaning="Preset of its GPU.", null_if="not a GPU"),
    Column(key="node", unit="integer", meaning="Node of the device.", null_if="outside nodes"),
    Column(key="forwards", unit="true/false", meaning="Whether it forwards messages."),
    Column(key="reduces", unit="true/false", meaning="Whether it reduces in the network."),
    Column(key="rail", unit="integer", meaning="Rail of the device.", null_if="no rail"),
)  # fmt: skip

#: Clusters with more GPUs are shown without the table of pairs.
MAX_PAIRS = 16


def list_clusters(json: Json = None) -> None:
    """List the cluster presets.

    Example: trine cluster list
    """
    from trine.cluster import known_clusters, load_cluster

    rows, cells = [], []
    for name in known_clusters():
        machine = load_cluster(name)
        fabric = f"{machine.fabric.kind} {machine.fabric.link}" if machine.fabric else None
        rows.append(
            {
                "name": name, "gpus": len(machine.gpus), "links": len(machine.links), "library": machine.library,
                "fabric": fabric, "evidence": machine.evidence, "notes": machine.notes,
            }
        )  # fmt: skip
        description = machine.notes.split(": ", 1)[-1].split(". ")[0]
        cells.append((name, len(machine.gpus), fabric or "-", _clip(description, 90)))
    titles = ("name", "GPUs", "usual fabric", "what it is")
    show_table("{:18} {:3} GPUs  {:22} {}", titles, cells, json, has_head=False)
    write_json({"clusters": rows}, json, "cluster list")


def list_links(json: Json = None) -> None:
    """List the link catalogue: bandwidth of a lane in one direction, by kind of link.

    Example: trine cluster links
    """
    from trine.cluster.presets import load_links
    from trine.common.units import format_bandwidth, format_time

    titles = ("name", "class", "reached", "data sheet", "latency", "lanes", "bandwidth is")
    cells = [
        (
            kind.name, kind.link_class, format_bandwidth(kind.bytes_per_s), format_bandwidth(kind.peak_bytes_per_s),
            format_time(kind.latency_ps), kind.lanes, kind.evidence["bandwidth"],
        )
        for kind in load_links().values()
    ]  # fmt: skip
    show_table("{:17} {:10} {:>10} {:>11} {:>8} {:>6}  {}", titles, cells, json)
    rows = [
        {
            "name": kind.name, "class": kind.link_class, "bytes_per_s": kind.bytes_per_s,
            "peak_bytes_per_s": kind.peak_bytes_per_s, "latency_ps": kind.latency_ps, "hop_ps": kind.hop_ps,
            "request_ps": kind.request_ps, "lanes": kind.lanes, "evidence": dict(kind.evidence),
            "sources": dict(kind.sources),
        }
        for kind in load_links().values()
    ]  # fmt: skip
    write_json({"links": rows}, json, "cluster links")


def list_topologies(json: Json = None) -> None:
    """List the kinds of --topology and of 'topology: {kind: ...}'.

    Example: trine cluster topologies
    """
    from trine.cluster import known_topologies

    for text in known_topologies():
        show(text, json)
    write_json({"topologies": list(known_topologies())}, json, "cluster topologies")


def show_cluster(
    machine: Annotated[MachineOptions, Fields(without=("cluster", *CIRCUITS))],
    cluster: Annotated[str | None, argument("Choose the cluster: preset or file.", values=clusters)] = None,
    gpu: Annotated[str | None, Option("Set the GPU model of --topology.", panel=MACHINE, values=gpus)] = None,
    links: Annotated[bool, Option("Print every device and every link.", panel=OUTPUT)] = False,
    yaml: Annotated[str | None, Option("Write the cluster as a file.", "FILE", OUTPUT)] = None,
    json: Json = None,
) -> None:
    """Show a cluster: its devices, bandwidths, and the source of each number.

    Example: trine cluster show dgx-h100 --nodes 4
    """
    from trine.cluster.cluster import FILES

    FILES.get("check_ending")(yaml, "yaml")
    if gpu is not None and machine.topology is None:
        raise InputError("--gpu names the GPU model of --topology, which was not given")
    if cluster is None and machine.topology is None:
        raise InputError("name a cluster, as in 'trine cluster show dgx-h100', or give --topology with --bandwidth")
    described, warnings = group_machine(replace(machine, cluster=cluster, gpu=gpu))
    for warning in warnings:
        say(f"note: {warning}")
    for line in _summary(described):
        show(line, json)
    for line in _device_and_link_lines(described) if links else ():
        show(line, json)
    for part, source in described.sources.items():
        show(f"source of {part}: {source}", json)
    if json is not None:
        write_json(_document(described), json, "cluster show")
    written(yaml, lambda path: FILES.get("write")(described, path, "yaml"), "written to {}")


def _clip(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 3]}..."


def _summary(machine: Cluster) -> list[str]:
    from trine.cluster.capacity import bisection_bytes_per_s
    from trine.cluster.planes import spread_over_planes
    from trine.common.units import format_bandwidth

    hosts = {machine.devices[gpu].node for gpu in machine.gpus}
    lines = [f"{machine.name}: {len(machine.gpus)} GPUs on {len(hosts)} node{'s' if len(hosts) > 1 else ''}"]
    if machine.notes:
        lines.append(machine.notes.strip())
    devices = []
    for device in machine.devices:
        devices.append(device.gpu or device.kind if device.kind == "gpu" else device.kind)
    lines.append(f"devices: {', '.join(f'{devices.count(name)} x {name}' for name in dict.fromkeys(devices))}")
    usual = f"; usually joined by {machine.fabric.kind} of {machine.fabric.link}" if machine.fabric else ""
    peers = {None: "", True: ", GPUs have peer access", False: ", GPUs have no peer access"}[machine.peer_access]
    lines.append(f"library {machine.library or 'not said'}, routing {machine.routing}{usual}{peers}")
    lines.append(f"numbers are {machine.evidence}")
    lines += _kinds(machine) if len(machine.links) else []
    if machine.circuits is not None:
        lines.append(f"GPUs without links: {machine.circuits.describe()}")
    bisection = bisection_bytes_per_s(machine)
    if bisection is not None:
        lines.append(f"first half of the GPUs to the second: {format_bandwidth(bisection)}")
    return lines + _pairs(spread_over_planes(machine))


def _kinds(machine: Cluster) -> list[str]:
    from trine.cluster.capacity import link_kinds
    from trine.common.units import format_bandwidth, format_time

    lines = [
        f"  {'links':17} {'class':10} {'between':17} {'count':>6} {'each way':>11} {'data sheet':>11} {'latency':>8}"
    ]
    for kind in link_kinds(machine):
        peak = "-" if kind.peak_bytes_per_s is None else format_bandwidth(kind.peak_bytes_per_s)
        lines.append(
            f"  {kind.medium or 'given':17} {kind.link_class:10} {kind.joins:17} {kind.count:6} "
            f"{format_bandwidth(kind.bytes_per_s):>11} {peak:>11} {format_time(kind.latency_ps):>8}"
        )
    return lines + _store_rates(machine)


def _store_rates(machine: Cluster) -> list[str]:
    """Return a line with the links whose rates for loads and stores differ from the operator level's."""
    from trine.cluster.capacity import link_kinds
    from trine.cluster.parts import SCALE_UP
    from trine.cluster.presets import seen_by_messages
    from trine.common.units import format_bandwidth, format_time

    kinds = []
    for kind in link_kinds(machine):
        rate, latency_ps = seen_by_messages(kind.bytes_per_s, kind.latency_ps, kind.medium)
        if kind.link_class == SCALE_UP and (rate, latency_ps) != (kind.bytes_per_s, kind.latency_ps):
            kinds.append(f"{kind.medium} {format_bandwidth(rate)}, {format_time(latency_ps)}")
    return [f"  load by load (--fidelity loadstore): {'; '.join(dict.fromkeys(kinds))}"] if kinds else []


def _pairs(machine: Cluster) -> list[str]:
    """Return a table between GPUs: GB/s of the narrowest link / latency in us; empty for one or too many GPUs."""
    gpus = machine.gpus
    if not 1 < len(gpus) <= MAX_PAIRS:
        return []
    cells = []
    for a in gpus:
        cells.append([_cell(machine, a, b) if a != b else "-" for b in gpus])
    width = max(len(cell) for row in cells for cell in row)
    lines = ["GPU to GPU, GB/s of the narrowest link / us of the links' latencies:"]
    lines.append("       " + " ".join(f"{i:>{width}}" for i in range(len(gpus))))
    row_lines = []
    for i, row in enumerate(cells):
        row_lines.append(f"  {i:4} " + " ".join(f"{cell:>{width}}" for cell in row))
    return lines + row_lines


def _cell(machine: Cluster, a: int, b: int) -> str:
    from trine.cluster.capacity import route_bytes_per_s

    try:
        paths = machine.paths(a, b)
    except SpecError:
        return "no route"
    latency_ps = max(machine.route_latency_ps(route) for route, _ in paths)
    if machine.circuits is not None and not paths[0][0]:
        latency_ps = machine.circuits.latency_ps
    return f"{route_bytes_per_s(machine, a, b) / 1e9:.4g}/{latency_ps / 1e6:.3g}"


def _device_and_link_lines(machine: Cluster) -> list[str]:
    from trine.common.units import format_bandwidth, format_time

    lines = []
    for d in machine.devices:
        lines.append(f"  {d.kind:7} {d.name}{f' ({d.gpu})' if d.gpu else ''}")
    for link in machine.links:
        lines.append(f"  {link.name:34} {format_bandwidth(link.bytes_per_s):>12}  {format_time(link.latency_ps):>10}")
    return lines


def _document(machine: Cluster) -> dict[str, Any]:
    from trine.cluster.capacity import bisection_bytes_per_s, link_kinds

    speeds = ("bytes_per_s", "peak_bytes_per_s", "latency_ps")
    link_rows = [
        {
            "name": link.name,
            "from": machine.devices[link.source].name,
            "to": machine.devices[link.target].name,
            **to_row(link, *speeds),
            "class": link.link_class,
            "medium": link.medium,
        }
        for link in machine.links
    ]
    kinds_of_links = [
        {"medium": kind.medium, "class": kind.link_class, **to_row(kind, "joins", "count", *speeds)}
        for kind in link_kinds(machine)
    ]
    circuits = None if machine.circuits is None else asdict(machine.circuits)
    return {
        **to_row(machine, "name", "evidence", "library", "routing", "fingerprint"),
        "bisection_bytes_per_s": bisection_bytes_per_s(machine),
        "devices": DEVICE.rows(machine.devices),
        "links": link_rows,
        "kinds_of_links": kinds_of_links,
        "circuits": circuits,
        "notes": machine.notes,
        "sources": dict(machine.sources),
    }  # fmt: skip
