"""Clusters as a list of links in CSV: ``source,target,bandwidth,latency`` and optional columns."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from trine.cluster.cluster import Cluster
from trine.cluster.parts import GPU, HOST, LINK_CLASSES, NIC, SWITCH, Device, Link
from trine.cluster.serialize import exact_bandwidth, exact_time, refuse_circuits
from trine.common.units import parse_bandwidth, parse_time
from trine.errors import InputError, SpecError, nearest
from trine.formats.media import check_links_from, parse_choice
from trine.formats.reader import Cable, TopologyBuilder, assemble, class_between, gpu_named, kind_named

REQUIRED = ("source", "target", "bandwidth", "latency")
OPTIONAL = ("class", "medium", "duplex", "source_kind", "target_kind", "source_node", "target_node")
_YES_NO = {"true": True, "yes": True, "1": True, "": True, "false": False, "no": False, "0": False}
#: The kind of a device whose rows do not say it, by how its name begins; others are GPUs.
_BY_NAME = (
    (("gpu", "xpu", "npu", "rank"), GPU),
    (("cpu", "host", "mem", "numa", "socket"), HOST),
    (("nic", "mlx", "hca", "eth", "ib"), NIC),
    (("switch", "sw", "nvswitch", "nvsw", "pcie", "leaf", "spine", "core", "tor", "router", "rail"), SWITCH),
)


def edge_list_cluster(
    text: str, file: str, gpu: str | None = None, links: Mapping[str, str] | None = None, links_from: str | None = None
) -> Cluster:
    """Read a CSV with a header and a row a link (docs/formats/imports.md).

    gpu: the GPU model of all GPUs.
    links: numbers for rows without, by the row's ``medium``: a catalogue entry or ``"BANDWIDTH, LATENCY"``.
    links_from: ``"catalogue"``: a row without numbers gets them from the catalogue entry of its medium.

    Raises SpecError: an unknown column, a row that cannot be read; names the line.
    """
    check_links_from(links_from)
    gpu = gpu_named(gpu)
    reader = _RowReader(file, gpu, dict(links or {}), from_catalogue=links_from is not None)
    try:
        for line, row in _rows(text, file):
            reader.row(row, f"{file}:{line}")
    except csv.Error as error:
        raise SpecError(f"not valid CSV: {error}", file=file) from None
    unused = sorted(set(reader.links) - reader.media)
    if unused:
        raise SpecError(f"the file has no medium {unused[0]!r}{nearest(unused[0], reader.media)}", field="links")
    return assemble(
        Path(file).stem,
        reader.draft.devices,
        [wire._replace(link=_classed(wire, reader.draft)) for wire in reader.draft.wires],
        file=file,
        sources={"links": Path(file).name, **reader.sources},
    )


def _rows(text: str, file: str) -> list[tuple[int, dict[str, str]]]:
    """Line number and cells by column; the header must be there, comments (#) and empty lines may be."""
    reader = csv.reader(io.StringIO(text), skipinitialspace=True)
    header: list[str] | None = None
    rows = []
    for cells in reader:
        if not any(cell.strip() for cell in cells) or cells[0].lstrip().startswith("#"):
            continue
        if header is None:
            header = _header([cell.strip().lower() for cell in cells], f"{file}:{reader.line_num}")
            continue
        if len(cells) > len(header):
            text = f"has {len(cells)} cells, the header has {len(header)}"
            raise SpecError(text, file=f"{file}:{reader.line_num}")
        rows.append((reader.line_num, {name: cell.strip() for name, cell in zip(header, cells, strict=False)}))
    if header is None:
        raise SpecError("has no header", file=file)
    return rows


def _header(names: list[str], line: str) -> list[str]:
    for name in names:
        if name not in (*REQUIRED, *OPTIONAL):
            raise SpecError(f"unknown column {name[:80]!r}{nearest(name[:80], (*REQUIRED, *OPTIONAL))}", file=line)
    if len(set(names)) != len(names):
        raise SpecError("a column is given twice", file=line)
    for name in ("source", "target"):
        if name not in names:
            raise SpecError(f"the header must name the column {name!r}; it may name {', '.join(OPTIONAL)}", file=line)
    return names


class _RowReader:
    def __init__(self, file: str, gpu: str | None, links: dict[str, str], *, from_catalogue: bool) -> None:
        self.gpu, self.links, self.from_catalogue = gpu, links, from_catalogue
        self.draft = TopologyBuilder(file)
        self.media: set[str] = set()
        self.sources: dict[str, str] = {}

    def row(self, row: dict[str, str], line: str) -> None:
        try:
            a, b = (self.device(row, end) for end in ("source", "target"))
            if a == b:
                raise SpecError(f"joins {row['source']!r} to itself")
            self.draft.join(a, b, self.rates(row))
            if not _yes(row.get("duplex", "")):
                self.draft.wires[-1] = self.draft.wires[-1]._replace(one_way=True)
        except InputError as error:
            raise SpecError(str(error), file=line) from None

    def device(self, row: dict[str, str], end: str) -> int:
        name, kind, node = row.get(end, ""), row.get(f"{end}_kind", ""), row.get(f"{end}_node", "") or None
        if not name or len(name) > 200 or not name.isprintable():
            raise SpecError(f"{end}: a name has 1 to 200 printable characters")
        stated_kind = kind_named(kind, None, f"{end}_kind") if kind else None
        if name not in self.draft.index:
            new_kind = stated_kind or _kind_by_name(name)
            gpu = self.gpu if new_kind == GPU else None
            forwards = new_kind in (SWITCH, NIC, HOST)
            return self.draft.add(Device(name=name, kind=new_kind, gpu=gpu, node=node, forwards=forwards))
        index = self.draft.index[name]
        earlier = self.draft.devices[index]
        if stated_kind not in (None, earlier.kind):
            raise SpecError(f"{name!r} is a {stated_kind} here and a {earlier.kind} before")
        if node not in (None, earlier.node):
            raise SpecError(f"{name!r} belongs to node {node!r} here and to {earlier.node!r} before")
        return index

    def rates(self, row: dict[str, str]) -> Link:
        medium, link_class = row.get("medium", "") or None, row.get("class", "")
        if link_class and link_class not in LINK_CLASSES:
            raise SpecError(f"class: unknown {link_class[:80]!r}{nearest(link_class[:80], LINK_CLASSES)}")
        bandwidth, latency = row.get("bandwidth", ""), row.get("latency", "")
        rates = Link(bytes_per_s=0, latency_ps=0, link_class=link_class, medium=medium)
        if medium is not None:
            self.media.add(medium)
        if not bandwidth or not latency:
            rates = self.chosen(medium, link_class)
        bytes_per_s = parse_bandwidth(bandwidth) if bandwidth else rates.bytes_per_s
        latency_ps = parse_time(latency) if latency else rates.latency_ps
        return replace(rates, bytes_per_s=bytes_per_s, latency_ps=latency_ps)

    def chosen(self, medium: str | None, link_class: str) -> Link:
        if medium is None or (medium not in self.links and not self.from_catalogue):
            remedy = "write it, or a 'medium' with --link MEDIUM=ENTRY or --links-from catalogue"
            raise SpecError(f"bandwidth or latency is missing: {remedy}")
        text = self.links.get(medium, medium)
        self.sources[f"link {medium}"] = f"chosen for this import: {text}"
        rates = parse_choice(text, f"links[{medium}]").rates(link_class)
        return replace(rates, link_class=link_class or rates.link_class)


def _kind_by_name(name: str) -> str:
    """``leaf3`` is a switch; the last part of a name with dots or slashes counts: ``node0.nic1``."""
    last = name.lower().replace("/", ".").split(".")[-1]
    for begins, kind in _BY_NAME:
        if last.rstrip("0123456789-_") in begins:
            return kind
    return GPU


def _yes(text: str) -> bool:
    if text.lower() not in _YES_NO:
        raise SpecError(f"duplex: must be true or false, got {text[:80]!r}")
    return _YES_NO[text.lower()]


def _classed(wire: Cable, draft: TopologyBuilder) -> Link:
    if wire.link.link_class:
        return wire.link
    return replace(wire.link, link_class=class_between(draft.devices[wire.a], draft.devices[wire.b]))


def edge_list_text(cluster: Cluster) -> str:
    """CSV with a row a link, both directions apart. It has no GPU models, rails, sources and notes.

    Raises SpecError: a cluster with circuits.
    """
    refuse_circuits(cluster, "a list of links")
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow((*REQUIRED, *OPTIONAL))
    for link in cluster.links:
        source, target = cluster.devices[link.source], cluster.devices[link.target]
        rates = exact_bandwidth(link.bytes_per_s), exact_time(link.latency_ps), link.link_class, link.medium or ""
        ends = source.kind, target.kind, source.node or "", target.node or ""
        writer.writerow((source.name, target.name, *rates, "false", *ends))
    return out.getvalue()
