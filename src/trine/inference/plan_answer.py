"""The answer of ``trine plan --serve``: the best layouts, and the front of tokens/s per user against per GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from trine.common.evidence import Evidence
from trine.inference.basis import NOT_MODELLED
from trine.inference.job import ServingLayout
from trine.inference.point_search import TIE, LatencyLimits
from trine.inference.screen import number_words, seconds_words
from trine.inference.serving_goal import ServingGoal
from trine.inference.serving_points import ServingPoint
from trine.results.report import Report, Row, Table
from trine.results.screen import Listing, Screen
from trine.results.text import MAX_LINES, aligned, wrapped_at

#: Layouts, and most and fewest rows of the front, on one screen; the details have all.
_SHOWN, _FRONT_ROWS, _MIN_ROWS = 5, 9, 2
_COLUMN = 10
_HEAD = ("layout", "precision", "copies", "in flight", "TTFT", "TPOT", "per user", "per GPU")
_BEST = "best load and precision of each layout; tokens/s"
_FRONT = "front: no simulated point has more tokens/s per user and per GPU"
_NOT_JUDGED = "the quality of answers in fewer bits; --precision takes one"
#: Points of the front that carry their layout in the picture.
NAMED_POINTS = 4


@dataclass(frozen=True, kw_only=True, repr=False)
class ServingPlan(Report):
    """Result of :func:`trine.plan_serving`: points within the limits, the best first.

    ranked: the best load and precision of each layout, most tokens/s per GPU first; the first ``num_tied`` tie.
    front: points that no simulated one beats in both tokens/s per user and per GPU. simulated: all points within the
    limits whose scheduler was followed. num_layouts: layouts in a precision that fit. num_points: of all their loads.
    num_simulated: points whose scheduler was followed. rejected: numbers of layouts by reason. model_name,
    cluster_name: as given, empty for objects.
    """

    SCHEMA: ClassVar[str] = "plan-serve"

    goal: ServingGoal
    limits: LatencyLimits
    gpus: int
    ranked: tuple[ServingPoint, ...]
    front: tuple[ServingPoint, ...]
    simulated: tuple[ServingPoint, ...]
    num_tied: int
    num_layouts: int
    num_points: int
    num_simulated: int
    rejected: Mapping[str, int]
    model_name: str = ""
    cluster_name: str = ""

    @property
    def best(self) -> ServingPoint:
        """The point with the most tokens/s per GPU."""
        return self.ranked[0]

    @property
    def headline(self) -> str:
        """The best layout in one line."""
        best = self.best
        return (
            f"{best.answer.model} on {self.gpus} x {best.answer.gpu.upper()}: {point_words(best)}: "
            f"{number_words(best.per_gpu)} tokens/s per GPU, {number_words(best.per_user)} per user"
        )

    @property
    def tie(self) -> str:
        """A note if several layouts are equally good as far as trine can tell, else an empty string."""
        if self.num_tied < 2:
            return ""
        numbers = "1 and 2" if self.num_tied == 2 else f"1 to {self.num_tied}"
        return f"layouts {numbers} tie (within {TIE:.0%})"

    @property
    def command(self) -> str:
        """The command that predicts one copy of the best layout in detail."""
        answer = self.best.answer
        job, layout = answer.job, answer.job.layout
        words = ["trine infer", self.model_name or answer.model, "--cluster", self.cluster_name or answer.cluster]
        for name in ("tp", "pp", "ep", "attention_dp"):
            if (ways := getattr(layout, name)) > 1:
                words += [f"--{name.replace('_', '-')}", str(ways)]
        words += ["--isl", str(job.input_tokens), "--osl", str(job.output_tokens)]
        words += ["--concurrency", str(job.concurrency), "--precision", answer.precision]
        words += ["--engine", self.goal.engine] if self.goal.engine != "vllm" else []
        words += ["--kv-dtype", self.goal.kv_precision] if self.goal.kv_precision else []
        words += ["--prefix", str(job.prefix_tokens)] if job.prefix_tokens else []
        return " ".join(words)

    def _question(self) -> str:
        best = self.best.answer
        return (
            f"{best.model} on {self.gpus} x {best.gpu.upper()} ({best.cluster}), {best.engine}, "
            f"{goal_words(self.goal, self.limits)}: {self.num_layouts:,} layouts and precisions at "
            f"{self.num_points:,} loads, {self.num_simulated:,} simulated"
        )

    def summary(self) -> str:
        """Return the answer on one screen; rows of the front give way, evenly."""
        for count in range(_FRONT_ROWS, _MIN_ROWS, -1):
            screen = self._screen(count)
            if len(screen.text(2 * MAX_LINES).splitlines()) <= MAX_LINES:
                break
        return screen.text()

    def _screen(self, front_rows: int) -> Screen:
        rows = spaced(self.front, front_rows)
        title = _FRONT if len(rows) == len(self.front) else f"{_FRONT} ({len(rows)} of {len(self.front)})"
        rate = self.best.answer.output_tokens_per_s.times(self.best.copies / self.gpus)
        likely = f"likely {number_words(rate.low)} to {number_words(rate.high)}; {point_words(self.best)}"
        return Screen(
            question=self._question(),
            numbers=[("best", f"{number_words(rate.value)} tokens/s per GPU", likely)],
            listings=[
                Listing(title=_BEST, rows=[_HEAD, *numbered_rows(self.ranked[:_SHOWN])], spare=(2, 4, 1)),
                Listing(title=title, rows=[_HEAD, *(point_row(each) for each in rows)], spare=(2, 4, 1)),
            ],
            warnings=self._warnings(),
            closing=[*self._closing(), ("next", f"{self.command}; --details; --plot FILE; --emit ENGINE")],
        )

    def _warnings(self) -> list[str]:
        warning = self.best.answer.context_warning
        return [warning] if warning else []

    def _closing(self) -> list[tuple[str, str]]:
        rejected = "; ".join(f"{count:,} {reason}" for reason, count in self.rejected.items())
        rows = (("tie", self.tie), ("rejected", rejected))
        return [(name, text) for name, text in rows if text]

    def details(self) -> str:
        """Return all layouts and the whole front, with notes."""
        lines = [*wrapped_at("", self._question(), 0), "", _BEST]
        lines += aligned([_HEAD, *numbered_rows(self.ranked)], 0)
        lines += ["", _FRONT, *aligned([_HEAD, *(point_row(each) for each in self.front)], 0), ""]
        for label, text in (*self._closing(), *(("note", each) for each in self.notes)):
            lines += wrapped_at(label, text, _COLUMN)
        for text in (*NOT_MODELLED, _NOT_JUDGED):
            lines += wrapped_at("without", text, _COLUMN)
        return "\n".join([*lines, *wrapped_at("next", self.command, _COLUMN)])

    @property
    def notes(self) -> tuple[str, ...]:
        """Assumptions of the search, and of the best layout."""
        return (
            "searched: all tp, pp, ep and attention dp that divide the model and that the engine has options for; "
            "copies within a node or on whole nodes; four loads per octave; no precision wider than the stored weights",
            "each copy has the same load; limits hold for the means over requests, not for their likely ranges",
            *self.best.answer.notes,
        )

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """Evidence of the best layout's times."""
        return self.best.answer.evidence

    def document(self) -> Row:
        """Return the search's facts and its tables as plain data (docs/reference/plan-serve-json.md)."""
        best = self.best.answer
        return {
            "model": best.model, "gpu": best.gpu, "cluster": best.cluster, "num_gpus": self.gpus, "engine": best.engine,
            "input_tokens": self.goal.input_tokens, "output_tokens": self.goal.output_tokens,
            "prefix_tokens": self.goal.prefix_tokens, "ttft_limit_s": self.limits.ttft_s,
            "tpot_limit_s": self.limits.tpot_s, "num_layouts": self.num_layouts, "num_points": self.num_points,
            "num_simulated": self.num_simulated, "num_tied": self.num_tied, "infer_command": self.command,
            "notes": list(self.notes), "not_modelled": [*NOT_MODELLED, _NOT_JUDGED], **self.tables(),
        }  # fmt: skip

    def record(self) -> Row:
        """Return the search's facts and the best layout as a flat row."""
        return {**self.document(), **self.best.row()}

    def tables(self) -> dict[str, Table]:
        """Return ``layouts``, ``front`` and ``rejected``."""
        return {
            "layouts": [each.row() for each in self.ranked],
            "front": [each.row() for each in self.front],
            "rejected": [{"reason": reason, "layouts": count} for reason, count in self.rejected.items()],
        }

    def pictures(self) -> Mapping[str, Callable[..., Any]]:
        """Return the picture of tokens/s per GPU against per user."""
        return {"front": self._draw}

    def _draw(self) -> Any:
        from trine.inference.plan_picture import draw_front

        best = self.best.answer
        goal = goal_words(self.goal, self.limits)
        heading = f"{best.model} on {self.gpus} x {best.gpu.upper()}, {goal}"
        names = []
        for point in spaced(self.front, NAMED_POINTS):
            layout = layout_words(point.answer.job.layout)
            names.append((point, f"{layout}, {point.answer.precision}, {point.concurrency:,} in flight"))
        return draw_front(heading, self.simulated, self.front, self.best, names)


def goal_words(goal: ServingGoal, limits: LatencyLimits) -> str:
    """Return lengths and limits in words."""
    words = [f"{goal.input_tokens:,} + {goal.output_tokens:,} tokens"]
    for name, limit_s in (("TTFT", limits.ttft_s), ("TPOT", limits.tpot_s)):
        words += [] if limit_s is None else [f"{name} at most {seconds_words(limit_s)}"]
    return ", ".join(words)


def layout_words(layout: ServingLayout) -> str:
    """Return the layout of one copy, such as ``tp 4 x attention dp 2, ep 8``."""
    ways = [("tp", layout.tp), ("pp", layout.pp), ("attention dp", layout.attention_dp)]
    text = " x ".join(f"{name} {count}" for name, count in ways if count > 1) or "1 GPU"
    return text + (f", ep {layout.ep}" if layout.ep > 1 else "")


def point_words(point: ServingPoint) -> str:
    """Return layout, precision, copies and load of a point."""
    copies = f"{point.copies} {'copy' if point.copies == 1 else 'copies'}"
    return (
        f"{layout_words(point.answer.job.layout)}, {point.answer.precision}, {copies}, {point.concurrency:,} in flight"
    )


def point_row(point: ServingPoint) -> tuple[str, ...]:
    """Return the cells of a point in a table."""
    return (
        layout_words(point.answer.job.layout), point.answer.precision, str(point.copies), f"{point.concurrency:,}",
        seconds_words(point.ttft_s), seconds_words(point.tpot_s), number_words(point.per_user),
        number_words(point.per_gpu),
    )  # fmt: skip


def numbered_rows(points: Sequence[ServingPoint]) -> list[tuple[str, ...]]:
    """Return the rows of points with their rank in the first cell."""
    rows = []
    for number, point in enumerate(points, start=1):
        first, *others = point_row(point)
        rows.append((f"{number}  {first}", *others))
    return rows


def spaced(points: Sequence[ServingPoint], count: int) -> list[ServingPoint]:
    """Return at most ``count`` of the points, evenly spaced from the first to the last."""
    if len(points) <= count:
        return list(points)
    return [points[place * (len(points) - 1) // (count - 1)] for place in range(count)]
