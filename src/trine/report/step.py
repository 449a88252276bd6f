"""Facts of a training step in its JSON that several sections read."""

from __future__ import annotations

from trine.common.units import PS_PER_S
from trine.report.reading import Document, amount, number, rows

#: Axes of a layout.
AXES = ("tp", "cp", "ep", "pp", "dp")
#: Parts of a rank's step: name, key and colour.
RANK_PARTS = (
    ("compute", "compute_s", "compute"), ("exposed communication", "exposed_communication_s", "communication"),
    ("pipeline bubble", "bubble_s", "bubble"), ("idle", "idle_s", "idle"),
)  # fmt: skip


def step_ps(document: Document) -> float:
    """Return the step time in ps."""
    return amount(document, "step_time_s") * PS_PER_S


def fullest_memory(document: Document) -> Document:
    """Return the memory row of the rank with the least headroom."""
    rank = number(document, "memory_rank")
    return next((row for row in rows(document, "memory") if number(row, "rank") == rank), {})


def one_per_class(document: Document, of_ranks: list[Document]) -> list[Document]:
    """Return the rows of the first rank of each class; all rows without classes."""
    classes: dict[float | None, float | None] = {}
    for row in rows(document, "ranks"):
        if number(row, "class") is None:
            return of_ranks
        classes.setdefault(number(row, "class"), number(row, "rank"))
    chosen = set(classes.values())
    return [row for row in of_ranks if number(row, "rank") in chosen]
