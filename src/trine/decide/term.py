"""A term of a comparison: a part of two times, and its columns."""

from __future__ import annotations

from dataclasses import dataclass, field

from trine.results.columns import Column, Columns, column

TERM = Columns(
    Column(key="term", unit="text", meaning="Term of the time."),
    Column(key="a_s", unit="s", meaning="Its time in A."),
    Column(key="b_s", unit="s", meaning="Its time in B."),
    Column(key="difference_s", unit="s", meaning="B - A."),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Term:
    """A part of both times in ps; the parts of one comparison add up to its times."""

    name: str = field(metadata=column("term"))
    a_ps: int
    b_ps: int

    @property
    def difference_ps(self) -> int:
        return self.b_ps - self.a_ps
