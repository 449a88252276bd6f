"""Views of a training step's time by rank, phase, stage, layer and operator."""

from __future__ import annotations

from trine.report.blocks import Bar, Bars, Block
from trine.report.reading import Document, amount, rows, text
from trine.report.step import RANK_PARTS, one_per_class


def share_views(document: Document) -> tuple[tuple[str, Block], ...]:
    """Return the views that the answer has: name and block each."""
    views = (_rank_view(document), *_share_views(document))
    return tuple(view for view in views if view is not None)


def _rank_view(document: Document) -> tuple[str, Block] | None:
    found = one_per_class(document, rows(document, "ranks"))
    bars = []
    for row in found[:200]:
        alike = amount(row, "ranks_alike")
        bars.append(
            Bar(
                name=f"rank {text(row, 'rank')}",
                parts=tuple((name, amount(row, key), colour) for name, key, colour in RANK_PARTS),
                note=f"{alike:,.0f} ranks alike" if alike > 1 else "",
            )
        )
    if not bars:
        return None
    return "Rank", Bars(title="", unit="s", bars=tuple(bars))


def _share_views(document: Document) -> list[tuple[str, Block]]:
    views: list[tuple[str, Block]] = []
    for name, key, label in (
        ("Phase", "phases", "phase"), ("Stage", "stages", "stage"), ("Layer", "layers", "layer"),
        ("Operator", "operators", "operator"),
    ):  # fmt: skip
        found = rows(document, key)
        if len(found) < 2:
            continue
        shares = _by_layer(found) if key == "layers" else {
            text(row, label): (amount(row, "compute_s"), amount(row, "communication_s")) for row in found
        }  # fmt: skip
        prefix = "stage " if key == "stages" else ""
        order = shares.items() if key == "stages" else sorted(shares.items(), key=lambda part: -sum(part[1]))
        bars = tuple(_share_bar(f"{prefix}{each}", *share) for each, share in order)
        note = "Sums over the ranks shown; communication that hides behind compute is included."
        views.append((name, Bars(title="", unit="s", bars=bars, note=note)))
    return views


def _share_bar(name: str, compute_s: float, moved_s: float) -> Bar:
    return Bar(name=name, parts=(("compute", compute_s, "compute"), ("communication", moved_s, "communication")))


def _by_layer(found: list[Document]) -> dict[str, tuple[float, float]]:
    """Return compute and communication of whole layers: modules named ``layers.3.mlp.up`` belong to ``layers.3``."""
    shares: dict[str, tuple[float, float]] = {}
    for row in found:
        parts = text(row, "layer").split(".")
        place = next((number for number, part in enumerate(parts) if part.isdigit()), len(parts) - 1)
        name = ".".join(parts[: place + 1])
        compute, moved = shares.get(name, (0.0, 0.0))
        shares[name] = (compute + amount(row, "compute_s"), moved + amount(row, "communication_s"))
    return shares
