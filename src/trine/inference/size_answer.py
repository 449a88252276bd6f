"""The answer of ``trine size --serve``: the fewest GPUs of each machine type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from trine.common.evidence import Evidence
from trine.inference.basis import NOT_MODELLED
from trine.inference.plan_answer import goal_words, point_words
from trine.inference.point_search import LatencyLimits
from trine.inference.screen import number_words
from trine.inference.served_machine import ServedMachine
from trine.inference.serving_goal import ServingGoal
from trine.inference.serving_points import ServingPoint
from trine.results.report import Report, Row, Table
from trine.results.screen import Listing, Screen
from trine.results.text import aligned, gpus_words, wrapped_at

_HEAD = ("machine", "GPUs", "copies", "layout", "precision", "in flight", "TTFT", "TPOT", "requests/s")
_ARRIVALS = "waiting of requests that arrive at random: the unused share of the throughput leaves room for it"
#: Further columns with a price.
_PRICES = ("$/hour", "$/M tokens")
_COLUMN = 12


@dataclass(frozen=True, kw_only=True, repr=False)
class ServingSize(Report):
    """Result of :func:`trine.size_serving`: machine types, the fewest GPUs first; then those without an answer.

    With prices, the machine type with the fewest dollars per hour comes first.
    """

    SCHEMA: ClassVar[str] = "size-serve"

    goal: ServingGoal
    limits: LatencyLimits
    requests_per_second: float
    utilisation: float
    machines: tuple[ServedMachine, ...]

    @property
    def _question(self) -> str:
        return f"{self._rate} of {goal_words(self.goal, self.limits)}"

    @property
    def best(self) -> ServingPoint:
        """The copies on the machine type with the fewest GPUs."""
        point = self.machines[0].point
        assert point is not None
        return point

    @property
    def _answer(self) -> str:
        return f"{gpus_words(self.best.total_gpus)} of {self.machines[0].cluster}"

    @property
    def _order(self) -> str:
        """The order of the machine types in words."""
        if self.machines[0].dollars_per_hour is None:
            return "the fewest GPUs first"
        return f"the lowest price first; $/M tokens: per million output tokens at {self._rate}"

    @property
    def _rate(self) -> str:
        return f"{number_words(self.requests_per_second)} requests/s"

    @property
    def headline(self) -> str:
        """The first machine type with its GPUs."""
        return f"{self.best.answer.model}, {self._question}: {self._answer} ({point_words(self.best)})"

    @property
    def basis(self) -> str:
        """The rule for the number of GPUs."""
        needed = number_words(self.requests_per_second / self.utilisation)
        rule = f"the rate / {self.utilisation:g} (--utilisation)"
        return f"closed-loop throughput at this load, at least {needed} requests/s: {rule}"

    def _rows(self) -> list[tuple[str, ...]]:
        head = _HEAD if self.machines[0].dollars_per_hour is None else (*_HEAD, *_PRICES)
        return [head, *(each.cells() for each in self.machines if each.point is not None)]

    def _problems(self) -> list[str]:
        return [f"{each.cluster}: {each.problem}" for each in self.machines if each.point is None]

    def _warnings(self) -> list[tuple[str, str]]:
        warning = self.best.answer.context_warning
        return [("warning", warning)] if warning else []

    def summary(self) -> str:
        """Return the machine types on one screen."""
        return Screen(
            question=f"{self.best.answer.model}, {self.best.answer.engine}: {self._question}",
            numbers=[("answer", self._answer, point_words(self.best))],
            listings=(Listing(title=self._order, rows=self._rows(), spare=(4, 2, 5)),),
            warnings=self._problems(),
            warning_label="no answer",
            closing=(*self._warnings(), ("rests on", self.basis), ("without", _ARRIVALS),
                     ("next", "trine plan --serve --gpus N for other layouts; --details")),
        ).text()  # fmt: skip

    def details(self) -> str:
        """Return all machine types with assumptions and effects left out."""
        lines = [self.headline, "", *aligned(self._rows(), 0), *self._problems(), ""]
        for label, texts in (("rests on", (self.basis,)), ("note", self.notes), ("without", self.not_modelled)):
            for text in texts:
                lines += wrapped_at(label, text, _COLUMN)
        return "\n".join(lines)

    @property
    def notes(self) -> tuple[str, ...]:
        """Assumptions of the first machine's answer."""
        return self.best.answer.notes

    @property
    def not_modelled(self) -> tuple[str, ...]:
        """Effects left out."""
        return (_ARRIVALS, *NOT_MODELLED[1:])

    def pictures(self) -> Mapping[str, Callable[..., Any]]:
        """Return the picture of the GPUs of each machine type, with prices if they are known."""
        return {"machines": self._draw}

    def _draw(self) -> Any:
        from trine.inference.size_picture import draw_size

        title = f"{self.best.answer.model}, {self.best.answer.engine}: {self._question}"
        return draw_size(title, [each for each in self.machines if each.point is not None])

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """Evidence of the first machine's times."""
        return self.best.answer.evidence

    def document(self) -> Row:
        """Return the sizing as plain data (docs/reference/plan-serve-json.md)."""
        return {
            "requests_per_second": self.requests_per_second, "utilisation": self.utilisation,
            "engine": self.goal.engine, "input_tokens": self.goal.input_tokens,
            "output_tokens": self.goal.output_tokens, "prefix_tokens": self.goal.prefix_tokens,
            "ttft_limit_s": self.limits.ttft_s, "tpot_limit_s": self.limits.tpot_s, "notes": list(self.notes),
            "not_modelled": list(self.not_modelled), **self.tables(),
        }  # fmt: skip

    def record(self) -> Row:
        """Return the sizing and its first machine as a flat row."""
        return {**self.document(), **self.machines[0].row()}

    def tables(self) -> dict[str, Table]:
        """Return ``machines``: one row per machine type."""
        return {"machines": [each.row() for each in self.machines]}
