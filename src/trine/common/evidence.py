"""Evidence behind a number: the five kinds in every answer, and one statement of each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trine.errors import InputError, nearest

MEASURED, INTERPOLATED, MODELLED, TRANSFERRED, ASSUMED = (
    "measured", "interpolated", "modelled", "transferred", "assumed",
)  # fmt: skip
#: From the surest to the least sure. Transferred: measured on a sibling, scaled by the ratios of data sheets.
EVIDENCE = (MEASURED, INTERPOLATED, MODELLED, TRANSFERRED, ASSUMED)
#: Statement about the user's own file of measured kernels; the answer's last lines quote it.
GPU_FILE = "GPU file"
#: Statement about the load of experts, if it is uneven; the answer's last lines quote it.
EXPERT_LOAD = "load of experts"


def count_kinds(evidence: Iterable[Evidence]) -> str:
    """Return the number of statements of each kind, the surest first: ``5 measured, 19 modelled``."""
    kinds = [item.kind for item in evidence]
    return ", ".join(f"{kinds.count(kind)} {kind}" for kind in EVIDENCE if kind in kinds)


@dataclass(frozen=True, slots=True)
class Evidence:
    """Source of a result's numbers.

    kind: one of EVIDENCE. share: the fraction of the time (0..1) that rests on it, if known. Raises InputError for
    another kind, or a share outside 0..1.
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
