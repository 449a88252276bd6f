"""What a number rests on: the five words that every answer uses, and one statement of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trine.errors import InputError, nearest

MEASURED, INTERPOLATED, MODELLED, TRANSFERRED, ASSUMED = (
    "measured", "interpolated", "modelled", "transferred", "assumed",
)  # fmt: skip
#: From the surest to the least sure. Transferred: measured on a sibling, carried over by the ratios of data sheets.
EVIDENCE = (MEASURED, INTERPOLATED, MODELLED, TRANSFERRED, ASSUMED)


def count_kinds(evidence: Iterable[Evidence]) -> str:
    """Return how many statements there are of each kind, the surest first: ``5 measured, 19 modelled``."""
    kinds = [item.kind for item in evidence]
    return ", ".join(f"{kinds.count(kind)} {kind}" for kind in EVIDENCE if kind in kinds)


@dataclass(frozen=True, slots=True)
class Evidence:
    """Where numbers of a result come from.

    kind: one of EVIDENCE. share: the part of the time in question (0..1) that rests on it, where that is known.
    Raises InputError for another kind, or a share outside 0..1.
    """

    what: str
    kind: str
    detail: str = ""
    share: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in EVIDENCE:
            raise InputError(f"unknown evidence {self.kind!r}{nearest(self.kind, EVIDENCE)}", field="kind")
        if self.share is not None and not 0 <= self.share <= 1:
            raise InputError(f"must be between 0 and 1, got {self.share!r}", field="share")
