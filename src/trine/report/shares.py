"""Views of a training step's time by rank, phase, stage, layer and operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from trine.report.blocks import Bar, Bars, Block
from trine.report.reading import Document, amount, rows, text
from trine.report.step import RANK_PARTS, one_per_class

#: Views by part of the step: name, key of the answer, and key of a row's name.
_PARTS = (
    ("Phase", "phases", "phase"),
    ("Stage", "stages", "stage"),
    ("Layer", "layers", "layer"),
    ("Operator", "operators", "operator"),
)
_MAX_RANKS = 200


class PartShare(NamedTuple):
    """Time of one part of a step, in seconds."""

    compute_s: float = 0.0
    communication_s: float = 0.0


def share_views(document: Document) -> tuple[tuple[str, Block], ...]:
    """Return the views that the answer has: name and block each."""
    views: list[tuple[str, Block]] = []
    ranks = _rank_bars(document)
    if ranks:
        views.append(("Rank", Bars(title="", unit="s", bars=ranks)))
    note = "Sums over the ranks shown; communication that hides behind compute is included."
    for name, key, label in _PARTS:
        found = rows(document, key)
        if len(found) > 1:
            bars = _bars_by_stage(found) if key == "stages" else _bars_by_time(_shares(found, label))
            views.append((name, Bars(title="", unit="s", bars=bars, note=note)))
    return tuple(views)


def _rank_bars(document: Document) -> tuple[Bar, ...]:
    bars = []
    for row in one_per_class(document, rows(document, "ranks"))[:_MAX_RANKS]:
        alike = amount(row, "ranks_alike")
        parts = tuple((name, amount(row, key), colour) for name, key, colour in RANK_PARTS)
        note = f"{alike:,.0f} ranks alike" if alike > 1 else ""
        bars.append(Bar(name=f"rank {text(row, 'rank')}", parts=parts, note=note))
    return tuple(bars)


def _bars_by_stage(found: list[Document]) -> tuple[Bar, ...]:
    """Return the bars of pipeline stages, in their order."""
    bars = []
    for name, share in _shares(found, "stage").items():
        bars.append(_share_bar(f"stage {name}", share))
    return tuple(bars)


def _bars_by_time(shares: Mapping[str, PartShare]) -> tuple[Bar, ...]:
    """Return the bars, the longest first."""
    order = sorted(shares, key=lambda name: -sum(shares[name]))
    return tuple(_share_bar(name, shares[name]) for name in order)


def _share_bar(name: str, share: PartShare) -> Bar:
    parts = (("compute", share.compute_s, "compute"), ("communication", share.communication_s, "communication"))
    return Bar(name=name, parts=parts)


def _shares(found: list[Document], label: str) -> dict[str, PartShare]:
    """Return the time of each part; modules named ``layers.3.mlp.up`` belong to the layer ``layers.3``."""
    shares: dict[str, PartShare] = {}
    for row in found:
        if label != "layer":
            shares[text(row, label)] = _share_of(row)
            continue
        name = _whole_layer(text(row, label))
        earlier, further = shares.get(name, PartShare()), _share_of(row)
        compute_s = earlier.compute_s + further.compute_s
        shares[name] = PartShare(compute_s, earlier.communication_s + further.communication_s)
    return shares


def _share_of(row: Document) -> PartShare:
    return PartShare(amount(row, "compute_s"), amount(row, "communication_s"))


def _whole_layer(module: str) -> str:
    """Return the name of a module's layer: its name up to the first number, or all of it."""
    parts = module.split(".")
    for place, part in enumerate(parts):
        if part.isdigit():
            return ".".join(parts[: place + 1])
    return module
