"""The section "Which link?" of a training step."""

from __future__ import annotations

from trine.collectives.bus_bandwidth import bus_factor
from trine.common.units import PS_PER_S, format_bandwidth, format_bytes, format_time
from trine.report.blocks import Block, Cell, ClusterDrawing, Head, Table, TierDrawing
from trine.report.page import PageSection
from trine.report.reading import Document, amount, number, rows, section, text, texts
from trine.report.run_blocks import RunBlocks


def links_section(document: Document, run: RunBlocks) -> PageSection:
    """Return the section: links by tier, their utilisation over time, and the collectives."""
    tiers = link_tiers(document)
    blocks: list[Block] = []
    if tiers:
        title = "Links by tier: the width shows the utilisation"
        blocks.append(ClusterDrawing(title=title, tiers=tiers, counts=_counts(document)))
    if run.traffic is not None:
        blocks.append(run.traffic)
    if rows(document, "collectives"):
        blocks.append(_collectives(document))
    return PageSection(key="link", question="Which link?", answer=_busiest(document, tiers), blocks=tuple(blocks))


def _busiest(document: Document, tiers: tuple[TierDrawing, ...]) -> str:
    if not tiers:
        return "The step uses no links, or its collectives' times come from the library model without links."
    hottest = max(tiers, key=lambda tier: tier.utilisation)
    words = (
        f"The busiest link is {hottest.busiest} ({hottest.name}): {100 * hottest.utilisation:.0f} % of "
        f"{format_bandwidth(hottest.bytes_per_s)} over the step."
    )
    uses = rows(document, "collectives")
    if uses:
        top = max(uses, key=lambda row: amount(row, "transfer_s"))
        words += (
            f" The largest collective is {text(top, 'kind')} of {format_bytes(amount(top, 'bytes'))} on "
            f"{amount(top, 'group_size'):.0f} ranks, {format_time(amount(top, 'transfer_s') * PS_PER_S)} per rank."
        )
    return words


def link_tiers(document: Document) -> tuple[TierDrawing, ...]:
    """Return the tiers of links that carry bytes, with the busiest link of each."""
    of_tier: dict[str, list[Document]] = {}
    for row in rows(document, "links"):
        if amount(row, "bytes") > 0:
            of_tier.setdefault(text(row, "tier") or "links", []).append(row)
    found = []
    for name, links in of_tier.items():
        busiest = max(links, key=lambda row: amount(row, "utilisation"))
        source, _, target = name.partition("-")
        found.append(
            TierDrawing(
                source=source, target=target or "network", name=name,
                links=int(sum(max(amount(row, "links_alike"), 1) for row in links)),
                bytes_per_s=amount(busiest, "bytes_per_s"), size_bytes=amount(busiest, "bytes"),
                utilisation=min(amount(busiest, "utilisation"), 1.0), busiest=text(busiest, "link"),
            )
        )  # fmt: skip
    return tuple(found)


def _counts(document: Document) -> dict[str, int]:
    gpus = int(amount(section(document, "plan"), "num_ranks"))
    return {"gpu": gpus} if gpus else {}


def _collectives(document: Document) -> Table:
    uses = rows(document, "collectives")
    has_waits = any(amount(row, "waiting_s") > 0 for row in uses)
    columns = [
        Head(name="collective"), Head(name="of"), Head(name="size", unit="bytes"),
        Head(name="ranks", unit="count"), Head(name="times", unit="count"), Head(name="time per rank", unit="s"),
        Head(name="bus bandwidth", unit="bytes/s"), Head(name="algorithm"),
    ]  # fmt: skip
    if has_waits:
        columns.append(Head(name="waiting for late ranks", unit="s"))
    found = []
    for row in uses:
        kind, ranks, time = text(row, "kind"), amount(row, "group_size"), amount(row, "transfer_s")
        moved = amount(row, "bytes") * amount(row, "count")
        factor = bus_factor(kind, int(ranks)) if ranks > 1 else 1.0
        achieved = moved * factor / time if time else None
        cells: list[Cell] = [
            kind, ", ".join(texts(row, "axes")), number(row, "bytes"), ranks, number(row, "count"), time, achieved,
            ", ".join(texts(row, "algorithms")),
        ]  # fmt: skip
        found.append(tuple([*cells, number(row, "waiting_s")] if has_waits else cells))
    note = "Bus bandwidth as nccl-tests counts it: comparable with the bandwidth of a link."
    return Table(title="Collectives of a rank in the step", columns=tuple(columns), rows=tuple(found), note=note)
