"""``trine cluster import``, ``export`` and ``draw``: clusters from and to other tools' files, and pictures."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

from trine.cli.completions import clusters, formats, gpus
from trine.cli.options import MACHINE, OUTPUT, Option, argument
from trine.cli.output import keep_input, show, write_json, writes

if TYPE_CHECKING:
    from trine.cluster import Cluster

Cluster_ = Annotated[str, argument("Choose the cluster: preset or file.", values=clusters)]
Nodes = Annotated[int | None, Option("Use N nodes, joined by their usual fabric.", panel=MACHINE)]
Fabric = Annotated[str | None, Option("Choose the fabric between nodes.", panel=MACHINE)]


def import_cluster(
    file: Annotated[str, argument("InfraGraph, nvidia-smi topo -m, NCCL or lstopo XML, CSV, GraphML, node-link JSON.")],
    format: Annotated[
        str | None, Option("Name the file's format if its content does not tell.", values=formats)
    ] = None,
    link: Annotated[
        list[str] | None, Option("Describe links without numbers: NAME=ENTRY[*LANES] or 'NAME=50 GB/s, 1 us'.")
    ] = None,
    links_from: Annotated[str | None, Option("Take links' numbers from the catalogue by their names.")] = None,
    gpu: Annotated[str | None, Option("Set the GPU model if the file has none.", values=gpus)] = None,
    annotations: Annotated[str | None, Option("Read InfraGraph annotations; 'rank' orders the GPUs.", "FILE")] = None,
    merge_switches: Annotated[bool, Option("Merge switches that join the same GPUs (InfraGraph).")] = False,
    yaml: Annotated[str | None, Option("Write a cluster file of trine.", "FILE", OUTPUT)] = None,
    json: Annotated[str | None, Option("Write a summary as JSON; - for stdout.", "FILE", OUTPUT)] = None,
) -> None:
    """Convert another tool's topology file to a cluster file, and list what was assumed.

    Example: trine cluster import topology.xml --yaml my-cluster.yaml
    """
    from trine.cluster.cluster import FILES
    from trine.cluster.file import check_readable
    from trine.common.outputs import write_text
    from trine.common.units import format_bandwidth, format_time

    FILES.get("check_ending")(yaml, "yaml")
    cluster: Cluster = FILES.get("read_any")(
        file, format, links=_links(link or []), links_from=links_from, gpu=gpu, annotations=annotations,
        merge_switches=merge_switches,
    )  # fmt: skip
    if yaml is not None:
        check_readable(cluster, file)
    kinds = Counter(device.kind for device in cluster.devices)
    rows = _link_rows(cluster)
    counts = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    show(
        f"{cluster.name}: {counts}; {len(cluster.links)} links (one direction each); numbers are {cluster.evidence}",
        json,
    )
    for row in rows:
        speed, latency = format_bandwidth(row["bytes_per_s"]), format_time(row["latency_ps"])
        show(f"  {row['count']:>7} x {row['class']:9} {row['medium'] or '-':15} {speed:>12} {latency:>10}", json)
    for part, source in cluster.sources.items():
        show(f"  {part}: {source}", json)
    for note in cluster.notes.splitlines():
        show(f"  note: {note}", json)
    if yaml is not None:
        with writes():
            keep_input(yaml)
            write_text(yaml, cluster.to_yaml())
            show(f"written to {yaml}", json)
    words = {"sources": dict(cluster.sources), "notes": cluster.notes}
    write_json({"name": cluster.name, "devices": dict(kinds), "links": rows, **words}, json, "cluster import")


def export_cluster(
    cluster: Cluster_,
    output: Annotated[str, Option("File to write.", "FILE", OUTPUT, ("--output", "-o"))],
    format: Annotated[
        str | None, Option("Choose the format [by the file's ending].", "infragraph|yaml|csv|graphml", OUTPUT)
    ] = None,
    nodes: Nodes = None,
    fabric: Fabric = None,
    lossy: Annotated[bool, Option("Give both directions of a link one bandwidth (InfraGraph).")] = False,
) -> None:
    """Write a cluster for other tools: InfraGraph (YAML, or JSON for a name in .json), CSV, GraphML.

    Example: trine cluster export dgx-h100 --nodes 2 --output two.graphml
    """
    from trine.cluster import load_cluster
    from trine.cluster.cluster import FILES
    from trine.errors import InputError

    target_format = format or FILES.get("format_of")(output)
    if target_format is None:
        raise InputError(f"name the format: --format {', '.join(FILES.get('known_writers')())}", file=output)
    FILES.get("check_ending")(output, target_format)
    FILES.get("write")(load_cluster(cluster, nodes=nodes, fabric=fabric), output, target_format, lossy=lossy)
    show(f"written to {output} ({target_format})", None)


def draw(
    cluster: Cluster_,
    output: Annotated[str, Option("Picture to write: .svg, .png or .pdf.", "FILE", OUTPUT, ("--output", "-o"))],
    nodes: Nodes = None,
    fabric: Fabric = None,
    title: Annotated[str | None, Option("Set the title [the cluster's name].", panel=OUTPUT)] = None,
) -> None:
    """Draw a cluster: its devices, and its links by class and bandwidth.

    Example: trine cluster draw dgx-h100 --output dgx.svg
    """
    from trine.cluster import load_cluster
    from trine.cluster.draw.figure import draw_cluster

    draw_cluster(load_cluster(cluster, nodes=nodes, fabric=fabric), output, title=title)
    show(f"written to {output}", None)


def _links(texts: list[str]) -> dict[str, str]:
    from trine.errors import InputError

    links: dict[str, str] = {}
    for text in texts:
        name, equals, choice = text.partition("=")
        if not equals or not name.strip() or not choice.strip():
            raise InputError(f"must be NAME=ENTRY or 'NAME=50 GB/s, 1 us', got {text!r}", field="--link")
        if name.strip() in links:
            raise InputError(f"{name.strip()!r} is given twice", field="--link")
        links[name.strip()] = choice.strip()
    return links


def _link_rows(cluster: Cluster) -> list[dict[str, Any]]:
    """Return the counts of links by class, medium and numbers."""
    counts = Counter((k.link_class, k.medium, k.bytes_per_s, k.latency_ps) for k in cluster.links)
    names = ("class", "medium", "bytes_per_s", "latency_ps")
    return [{**dict(zip(names, key, strict=True)), "count": count} for key, count in counts.items()]
