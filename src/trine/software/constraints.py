"""Which layouts a training software runs, as its profile states it, and what it does unless the user says."""

from __future__ import annotations

from typing import Literal

from trine.schema import Field, Spec
from trine.software.conditions import parse


class LayoutRule(Spec):
    """A condition that layouts meet.

    require, when: conditions (:mod:`trine.software.conditions`); a rule holds wherever ``when`` is not true. reason:
    what the software demands, for the error. effect: layouts that do not meet it are refused, or run with a note.
    source: where the software's code says so.
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
    """What the software sets where ``when`` is true and the user says nothing."""

    field: Literal["sequence_parallel", "etp"]
    value: bool | int
    reason: str
    source: str
    when: str = "True"

    def _check(self) -> None:
        parse(self.when)


class LayoutConstraints(Spec):
    """Everything that a profile states about layouts; nothing means that every layout runs."""

    defaults: list[LayoutDefault] = Field(default_factory=list)
    rules: list[LayoutRule] = Field(default_factory=list)
