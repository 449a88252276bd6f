"""Copies of a cluster, joined: scaling to a number of nodes and GPUs, and switches that reduce."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trine.cluster.cluster import Cluster
from trine.cluster.join import MAX_GPUS, join_nodes, usual_text, with_joint_nics, with_usual_fabric
from trine.cluster.parts import NIC
from trine.cluster.segments import SegmentedHosts, segmented_hosts
from trine.cluster.select import first_gpus, with_gpus, with_hosts_of
from trine.errors import SpecError


def scaled(
    cluster: Cluster, *, nodes: int | None = None, gpus: int | None = None, gpus_per_node: int | None = None,
    fabric: str | None = None, segment: int | None = None,
) -> Cluster:  # fmt: skip
    """Return copies of ``cluster`` with ``gpus`` GPUs in total; see :func:`trine.cluster.load_cluster`.

    ``nodes`` counts copies of the cluster. It counts hosts instead if the cluster spans several (a rack of trays) and
    ``gpus`` is also given and fits into that number of hosts. Whole hosts of several racks come in segments.

    Raises SpecError for too many GPUs, GPUs that do not spread evenly, or a segment without an effect.
    """
    for name, value in (("nodes", nodes), ("gpus", gpus), ("gpus_per_node", gpus_per_node), ("segment", segment)):
        if value is not None and value < 1:
            raise SpecError(f"{name} must be at least 1, got {value}")
    hosts = _gpus_by_host(cluster)
    if segment is not None:
        _check_segment(cluster, hosts, nodes, gpus, gpus_per_node)
    if nodes is None and gpus is None and gpus_per_node is None:
        _check_not_joined(cluster, nodes, gpus, fabric)
        if fabric is not None:
            raise SpecError(f"a fabric ({fabric}) joins nodes, but there is one: add --nodes N")
        return cluster
    _check_not_joined(cluster, nodes, gpus, fabric)
    if gpus is None and gpus_per_node is None and joined_nodes(cluster):
        return cluster
    if len(hosts) > 1 and gpus is not None:
        if nodes is not None and gpus <= nodes * max(map(len, hosts)):
            return _hosts_of(cluster, hosts, nodes, gpus, gpus_per_node, fabric, segment)
        if gpus_per_node is None and (segmented := _segmented(cluster, hosts, nodes, gpus, segment)) is not None:
            return _racks_of_segments(cluster, hosts, segmented, fabric)
    size = len(cluster.gpus)
    per_node = gpus_per_node or size
    if per_node > size:
        raise SpecError(f"{cluster.name!r} has {size} GPUs, not {per_node}")
    counts, words = _counts(nodes, gpus, per_node, cluster.name)
    return _copies(cluster, counts, words, fabric)


def more_gpus(cluster: Cluster, gpus: int) -> str:
    """Return a hint how to get ``gpus`` GPUs from a cluster that has fewer."""
    number = -(-gpus // len(cluster.gpus))
    joined = joined_nodes(cluster)
    if joined:
        return f"its {joined} nodes are joined already; --nodes joins copies of a cluster of one node"
    if not cluster.device_table.where(NIC).any():
        return "it has no NICs to join copies of it"
    if cluster.fabric is not None:
        return f"--nodes {number} (nodes={number} of load_cluster) joins {number} copies by its usual fabric"
    return f"--nodes {number} --fabric {usual_text(cluster)} joins {number} copies"


def joined_nodes(cluster: Cluster) -> int:
    """Return the number of nodes if links between nodes already join them, or 0 for one node or rack."""
    hosts = len(_gpus_by_host(cluster))
    return hosts if hosts > 1 and cluster.has_fabric else 0


def _check_not_joined(cluster: Cluster, nodes: int | None, gpus: int | None, fabric: str | None) -> None:
    """Raise SpecError if the options request copies of a cluster that already has several nodes."""
    joined, name = joined_nodes(cluster), cluster.name
    if not joined:
        return
    if fabric is not None:
        raise SpecError(f"the {joined} nodes of {name!r} are joined already, so that --fabric {fabric} joins nothing")
    if gpus is not None and gpus > len(cluster.gpus):
        raise SpecError(f"{name!r} has {len(cluster.gpus)} GPUs, not {gpus}: {more_gpus(cluster, gpus)}")
    if nodes is not None and gpus is None and nodes != joined:
        per_node = max(map(len, _gpus_by_host(cluster)))
        first_nodes = "node" if nodes == 1 else f"{nodes} nodes"
        part = f"; --gpus {nodes * per_node} takes its first {first_nodes}" if nodes < joined else ""
        raise SpecError(
            f"{name!r} is {joined} nodes that are joined already, and --nodes joins copies of one node: give "
            f"--nodes {nodes} with a cluster of one node, or write a file with {nodes}{part}"
        )


def _check_segment(
    cluster: Cluster, hosts: Sequence[Sequence[int]], nodes: int | None, gpus: int | None, gpus_per_node: int | None
) -> None:
    """Raise SpecError for a segment on a machine without several racks of several hosts."""
    if len(hosts) == 1 or joined_nodes(cluster):
        raise SpecError(f"segments are parts of a rack of several hosts, and {cluster.name!r} is not one: leave it out")
    if gpus is None or gpus_per_node is not None:
        raise SpecError("a segment divides the hosts of a number of GPUs: add gpus, and leave gpus_per_node out")
    counts_hosts = nodes is not None and gpus <= nodes * max(map(len, hosts))
    if nodes is None:
        racks = -(-gpus // len(cluster.gpus))
    elif counts_hosts:
        racks = -(-nodes // len(hosts))
    else:
        racks = nodes
    if racks == 1:
        raise SpecError(f"{gpus} GPUs are in one {cluster.name}, so that a segment changes nothing: leave it out")


def _segmented(
    cluster: Cluster, hosts: Sequence[Sequence[int]], nodes: int | None, gpus: int, segment: int | None
) -> SegmentedHosts | None:
    """Return the segments of ``gpus`` GPUs on several racks, or None for one rack or GPUs that are not whole hosts."""
    per_host = len(hosts[0])
    is_whole = gpus % per_host == 0 and all(len(host) == per_host for host in hosts)
    if not is_whole and segment is not None:
        raise SpecError(f"segment {segment}: {gpus} GPUs are not whole hosts of {per_host}")
    racks = -(-gpus // len(cluster.gpus)) if nodes is None else nodes
    if not is_whole or racks == 1 or gpus > racks * len(cluster.gpus):
        return None
    _check_number(gpus)
    segment = cluster.segment if segment is None else segment
    return segmented_hosts(gpus // per_host, len(hosts), nodes, segment)


def _racks_of_segments(
    cluster: Cluster, hosts: Sequence[Sequence[int]], segmented: SegmentedHosts, fabric: str | None
) -> Cluster:
    """Return racks with the first hosts of ``cluster``, joined; the fabric joins the job's hosts only."""
    counts = segmented.hosts_by_rack
    usual = cluster.fabric if fabric is None else with_usual_fabric(cluster, fabric)
    name, words = f"{len(counts)} x {cluster.name}", ""
    total, segment_gpus = sum(counts) * len(hosts[0]), segmented.segment * len(hosts[0])
    if sum(counts) < len(counts) * len(hosts):
        name += f" ({total} GPUs in segments of {segment_gpus})"
        words = f"segments of {segmented.segment} hosts ({segment_gpus} GPUs), each in one rack: "
    joint, usual = with_joint_nics(cluster, usual)
    makes = {}
    for count in set(counts):
        selected = {gpu for host in _gpus_by_host(joint)[:count] for gpu in host}
        makes[count] = joint if count == len(hosts) else with_hosts_of(joint, selected)
    joined = join_nodes([makes[count] for count in counts], usual, name, asked=fabric)
    return replace(joined, notes=words + joined.notes)


def _counts(nodes: int | None, gpus: int | None, per_node: int, name: str) -> tuple[list[int], str]:
    """Return the number of GPUs of each node, and a note on their distribution."""
    if gpus is None:
        _check_number((nodes or 1) * per_node)
        return [per_node] * (nodes or 1), ""
    number = -(-gpus // per_node) if nodes is None else nodes
    if gpus > number * per_node:
        hint = f"{-(-gpus // per_node)} of them have {gpus} GPUs"
        raise SpecError(f"{gpus} GPUs do not fit into {number} x {name} with {per_node} each: {hint}")
    _check_number(gpus)
    if number == -(-gpus // per_node):
        return [min(per_node, gpus - per_node * i) for i in range(number)], ""
    if gpus % number:
        raise SpecError(f"{gpus} GPUs neither fill {number} x {name} in order nor spread over them evenly")
    return [gpus // number] * number, f"{gpus // number} GPUs of each are used"


def _check_number(gpus: int) -> None:
    """Raise SpecError for too many GPUs, before building anything."""
    if gpus > MAX_GPUS:
        raise SpecError(f"{gpus} GPUs: trine simulates at most {MAX_GPUS}")


def _copies(cluster: Cluster, counts: Sequence[int], words: str, fabric: str | None) -> Cluster:
    if len(counts) == 1 and fabric is not None:
        raise SpecError(f"a fabric ({fabric}) joins nodes, and there is one")
    if len(counts) == 1:
        return first_gpus(cluster, counts[0])
    usual = cluster.fabric if fabric is None else with_usual_fabric(cluster, fabric)
    cluster, usual = with_joint_nics(cluster, usual)
    makes = {count: replace(first_gpus(cluster, count), name=cluster.name) for count in set(counts)}
    joined = join_nodes([makes[count] for count in counts], usual, _name(cluster, counts), asked=fabric)
    if len(set(counts)) > 1:
        words = f"{counts[0]} GPUs of each but the last are used, {counts[-1]} of that"
    elif counts[0] < len(cluster.gpus):
        words = f"{counts[0]} GPUs of each are used"
    return replace(joined, notes=f"{words}: {joined.notes}" if words else joined.notes)


def _name(cluster: Cluster, counts: Sequence[int]) -> str:
    """Return the cluster's name. It includes the GPU count if nodes are partly used, because results show it."""
    is_full = len(counts) * len(cluster.gpus) == sum(counts)
    return f"{len(counts)} x {cluster.name}" + ("" if is_full else f" ({sum(counts)} GPUs)")


def _gpus_by_host(cluster: Cluster) -> list[list[int]]:
    gpus_of: dict[str | None, list[int]] = {}
    for gpu in cluster.gpus:
        gpus_of.setdefault(cluster.devices[gpu].node, []).append(gpu)
    return list(gpus_of.values())


def _hosts_of(
    cluster: Cluster, hosts: Sequence[Sequence[int]], nodes: int, gpus: int, gpus_per_node: int | None,
    fabric: str | None, segment: int | None,
) -> Cluster:  # fmt: skip
    """Return ``gpus`` GPUs on ``nodes`` hosts, in segments on the fewest racks."""
    largest = max(map(len, hosts))
    if gpus_per_node is not None and gpus_per_node > largest:
        raise SpecError(f"hosts of {cluster.name!r} have {largest} GPUs, not {gpus_per_node}")
    counts, _ = _counts(nodes, gpus, gpus_per_node or largest, f"hosts of {cluster.name}")
    hosts_by_rack: tuple[int, ...] = (nodes,)
    words = f"{gpus} GPUs on {nodes} hosts"
    if nodes > len(hosts):
        segment = cluster.segment if segment is None else segment
        segmented = segmented_hosts(nodes, len(hosts), None, segment)
        assert segmented is not None  # segments of one host always fit
        hosts_by_rack = segmented.hosts_by_rack
        words += f" in segments of {segmented.segment}"
    racks, first = [], 0
    for number in hosts_by_rack:
        part = counts[first : first + number]
        first += number
        selected = {gpu for host, count in zip(hosts, part, strict=False) for gpu in host[:count]}
        if len(selected) != sum(part):
            raise SpecError(f"the hosts of {cluster.name!r} have not {gpus} GPUs on {nodes} of them")
        racks.append(with_gpus(cluster, selected) if nodes <= len(hosts) else with_hosts_of(cluster, selected))
    if len(racks) == 1:
        if fabric is not None:
            raise SpecError(f"a fabric ({fabric}) joins copies of {cluster.name!r}, and {nodes} hosts are in one")
        words = f"{gpus} GPUs on {nodes} hosts of one {cluster.name}. {cluster.notes}"
        return replace(racks[0], name=f"{cluster.name} ({gpus} GPUs on {nodes} hosts)", notes=words)
    usual = cluster.fabric if fabric is None else with_usual_fabric(cluster, fabric)
    name = f"{len(racks)} x {cluster.name} ({words})"
    return join_nodes(racks, usual, name, asked=fabric)


#: Links whose switches reduce streams (SHARP), and the switches: the SHARP guide of NVIDIA (NCCL needs HDR or later).
SHARP_LINKS = {"ib-hdr": "Quantum", "ib-ndr": "Quantum-2", "ib-xdr": "Quantum-X800"}


def with_sharp(cluster: Cluster, fabric: str | None) -> Cluster:
    """Return a node whose fabric, or ``fabric`` in place of it, has switches that reduce.

    Raises SpecError for fabrics other than InfiniBand HDR, NDR and XDR, and for nodes that are joined already.
    """
    if joined_nodes(cluster):
        raise SpecError(
            f"the nodes of {cluster.name!r} are joined already: SHARP is 'reduces: true' of its switches in the file"
        )
    usual = cluster.fabric if fabric is None else with_usual_fabric(cluster, fabric)
    if usual is None or usual.link not in SHARP_LINKS:
        links = ", ".join(f"{link} ({switch})" for link, switch in SHARP_LINKS.items())
        raise SpecError(f"SHARP needs InfiniBand switches that reduce: {links}; {cluster.name!r} has "
                        f"{'no fabric' if usual is None else usual.link}")  # fmt: skip
    words = f"SHARP: {SHARP_LINKS[usual.link]} switches reduce; {cluster.notes}"
    return replace(cluster, fabric=replace(usual, reduces=True), notes=words)
