"""The schema of a profile's layout rules and of the fields of a plan that the software fills in."""

from __future__ import annotations

from typing import Literal

from trine.schema import Field, Spec
from trine.software.conditions import parse


class LayoutRule(Spec):
    """A condition on layouts.

    require, when: conditions (:mod:`trine.software.conditions`); ``require`` must hold if ``when`` does. reason: the
    demand of the software, for the error. effect: other layouts are refused, or run with a note. source: file and line
    of the software's code.
    """

    require: str
    reason: str
    source: str
    when: str = "True"
    effect: Literal["refuse", "note"] = "refuse"

    def _check(self) -> None:
        for text in (self.require, self.when):
            parse(text)


class LayoutDefault(Spec):
    """A field that the software sets if ``when`` holds and the plan leaves it open."""

    field: Literal["sequence_parallel", "etp"]
    value: bool | int
    reason: str
    source: str
    when: str = "True"

    def _check(self) -> None:
        parse(self.when)


class LayoutConstraints(Spec):
    """All rules and defaults of a profile; without rules every layout runs."""

    defaults: list[LayoutDefault] = Field(default_factory=list)
    rules: list[LayoutRule] = Field(default_factory=list)
