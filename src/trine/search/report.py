"""The answer of a search: the best layouts, the terms that separate them, and the rejected ones by reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from trine.common.evidence import Evidence
from trine.common.units import format_bytes, format_time
from trine.parallel.plan import Plan
from trine.results.headline import mfu_words
from trine.results.published_mfu import mfu_warning
from trine.results.report import Report, Row, Table, seconds
from trine.results.text import MAX_LINES, aligned, width, wrapped_at
from trine.search.layout_row import LAYOUT, LayoutRow
from trine.search.ranked import Ranked
from trine.search.space import Layout
from trine.search.ties import RESOLUTION, difference_words, is_tie, tied
from trine.search.worker import Outcome, per_second

#: Layouts on one screen; the details have all.
SHOWN = 10
_TRANSFER = "transfers"
_FRONTIER = "time against memory: no other simulated layout has less of both"


@dataclass(frozen=True, kw_only=True, repr=False)
class PlanSearch(Report):
    """Result of :func:`trine.plan`: ranked layouts, the best first.

    ranked: the requested number of layouts: ``simulated`` ones and, in a large space, estimates of the screen
    (``outcome.is_estimated``). The first one is simulated. frontier: layouts that no other beats in both
    time and memory, for a search with ``pareto``. given: the layout of a configuration file, with its outcome.
    rejected: numbers of layouts by reason. command: simulates the best layout in detail. plan: of the best layout, as
    the software fills it in. fabric: a note on the bandwidth of single collectives, if it decides. screen_errors: of
    the screen, as shares of the simulated times, for the layouts that it chose. num_screened: layouts with an estimate
    of their own. node_gpus: GPUs of a node. fabric_error: likely error of collectives between nodes, as a share.
    assumptions: about a machine and a batch that the request leaves open.
    """

    SCHEMA: ClassVar[str] = "plan"

    model: str
    gpus: int
    gpu: str
    cluster: str
    software: str
    global_batch: int
    sequence: int | None
    layers: int | None
    num_layouts: int
    num_screened: int = 0
    num_simulated: int
    ranked: tuple[Ranked, ...]
    simulated: tuple[Ranked, ...] = ()
    frontier: tuple[Ranked, ...] = ()
    given: Ranked | None = None
    rejected: Mapping[str, int]
    command: str = ""
    fabric: str = ""
    plan: Plan | None = None
    screen_errors: tuple[float, ...] = ()
    node_gpus: int = 0
    fabric_error: float = 0.0
    assumptions: tuple[Evidence, ...] = ()

    @property
    def best(self) -> Ranked:
        """The recommended layout: of those that tie with the fastest, the one that takes the least for granted."""
        return self.ranked[0]

    @property
    def headline(self) -> str:
        """The best layout in one line."""
        first = self.best.outcome
        return f"{words(self.best.layout)}: {format_time(first.step_ps)} a step{_rate_words(first)}, {_memory(first)}"

    @property
    def tied(self) -> list[Ranked]:
        """The listed simulated layouts that are as fast as the fastest of them, as far as trine can tell."""
        return tied(self._simulated_rows, self.node_gpus, self.fabric_error)

    @property
    def tie(self) -> str:
        """A note if several layouts are equally fast as far as trine can tell, else an empty string."""
        equal = self.tied
        if len(equal) < 2:
            return ""
        fastest = min(equal, key=lambda each: each.order)
        numbers = [n for n, each in enumerate(self.ranked, start=1) if each in equal]
        behind = max(each.outcome.step_ps for each in equal) / fastest.outcome.step_ps - 1
        width = f"within {RESOLUTION:.0%}" if behind <= RESOLUTION else (
            f"within {behind:.1%}, which the doubt about communication between nodes covers"
        )  # fmt: skip
        text = f"layouts {', '.join(map(str, numbers[:-1]))} and {numbers[-1]} are a tie ({width})"
        if fastest is self.best:
            return text
        place = self.ranked.index(fastest) + 1
        ahead = 1 - fastest.outcome.step_ps / self.best.outcome.step_ps
        more = difference_words(self.best.layout, fastest.layout, self.node_gpus)
        return f"{text}; the first takes less for granted than number {place} (faster by {ahead:.1%}; more {more})"

    @property
    def screen(self) -> str:
        """The number of layouts that the screen estimated and its error; empty if the search did not use it."""
        if not self.screen_errors:
            return ""
        off = sorted(map(abs, self.screen_errors))[len(self.screen_errors) // 2]
        text = (
            f"screen: estimated {self.num_screened:,} of {self.num_layouts:,} layouts, off by {off:.1%} on the "
            f"{len(self.screen_errors)} simulated (at most {max(map(abs, self.screen_errors)):.1%})"
        )
        numbers = [str(n) for n, each in enumerate(self.ranked, start=1) if each.outcome.is_estimated]
        if not numbers:
            return text
        rows = f"row {numbers[0]} is" if len(numbers) == 1 else f"rows {', '.join(numbers[:-1])} and {numbers[-1]} are"
        return f"{text}; {rows} estimated, --exact simulates"

    @property
    def _simulated_rows(self) -> list[Ranked]:
        """The listed layouts that were simulated."""
        return [each for each in self.ranked if not each.outcome.is_estimated]

    @property
    def second(self) -> Ranked | None:
        """The first simulated layout besides the best, None without one."""
        return next(iter(self._simulated_rows[1:]), None)

    @property
    def assumed(self) -> str:
        """The assumptions about the request, with the options that replace them; empty without any."""
        options = {"machine": "--cluster", "global batch": "--global-batch"}
        return "; ".join(
            f"assumed: {each.what} {each.detail} ({options[each.what]} sets another)" for each in self.assumptions
        )

    @property
    def comparison(self) -> str:
        """The given layout against the first one, in words; empty without one."""
        given = self.given
        if given is None:
            return ""
        if given.layout == self.best.layout:
            return "your layout is the first"
        if given.outcome.refused:
            return f"your layout cannot run: {given.outcome.refused}"
        ratio = given.outcome.step_ps / self.best.outcome.step_ps - 1
        parts = [row for row in self.differences() if row[0] != "step" and not row[0].startswith(_TRANSFER)]
        name, mine, yours = max(parts, key=lambda row: (row[2] - row[1]) * (1 if ratio > 0 else -1))
        pace = "slower" if ratio > 0 else "faster"
        why = f"mostly {name} ({_signed(yours - mine)})"
        verdict = "" if given.outcome.verdict in ("", "fits") else f"; its memory: {given.outcome.verdict}"
        fastest = min(given, self.best, key=lambda each: each.outcome.step_ps)
        other = self.best if fastest is given else given
        if is_tie(fastest, other, self.node_gpus, self.fabric_error):
            return f"your layout ties with the first: {abs(ratio):.1%} {pace}, {why}{verdict}"
        return f"your layout is {abs(ratio):.1%} {pace} than the first, {why}{verdict}"

    @property
    def offload(self) -> str:
        """A note on the fastest layout without offload, listed or else simulated, if the first has some; else empty."""
        if self.best.layout.offload == "none":
            return ""
        for place, each in enumerate(self.ranked, start=1):
            if each.layout.offload == "none":
                return f"number {place} is the fastest listed without offload to the host, {self._pace(each)}"
        others = [each for each in self.simulated if each.layout.offload == "none"]
        if not others:
            return "no simulated layout does without offload to the host"
        fastest = min(others, key=lambda each: each.order)
        return f"{words(fastest.layout)} is the fastest simulated without offload to the host, {self._pace(fastest)}"

    def _pace(self, other: Ranked) -> str:
        """Return how much slower or faster than the best another layout is, in words."""
        longer = other.outcome.step_ps / self.best.outcome.step_ps - 1
        about = "about " if other.outcome.is_estimated else ""
        return f"{about}{abs(longer):.1%} {'slower' if longer >= 0 else 'faster'}"

    @property
    def overlap(self) -> str:
        """A note if the likely ranges of the first two layouts overlap, else an empty string."""
        if self.second is None or self.tie:
            return ""
        first, second = self.best.outcome, self.second.outcome
        if first.high_ps is None or second.low_ps is None or second.low_ps > first.high_ps:
            return ""
        ahead = second.step_ps / first.step_ps - 1
        ranges = f"{_range(first)}; {_range(second)}"
        return (
            f"the first is {ahead:.1%} ahead of {self._second_words}, and their likely ranges overlap ({ranges}): "
            "measure both"
        )

    @property
    def _second_words(self) -> str:
        """The place of :attr:`second` in words."""
        place = 0 if self.second is None else self.ranked.index(self.second)
        return "the second" if place == 1 else f"number {place + 1}"

    def differences(self) -> list[tuple[str, int, int]]:
        """Return (part of the step, ps of the first layout, ps of the given or :attr:`second`), without empty parts."""
        other = self.given or self.second
        if other is None:
            return []
        first, second = dict(_terms(self.best.outcome)), dict(_terms(other.outcome))
        names = dict.fromkeys((*first, *second))
        rows = [(name, first.get(name, 0), second.get(name, 0)) for name in names]
        return [row for row in rows if row[1] or row[2]]

    def terms(self) -> list[Row]:
        """Return :meth:`differences` in seconds, with the difference."""
        return [
            {"term": name, "first_s": seconds(a), "second_s": seconds(b), "difference_s": seconds(b - a)}
            for name, a, b in self.differences()
        ]

    def summary(self) -> str:
        """Return the answer on one screen; terms and reasons give way to the layouts."""
        count = min(len(self.ranked), SHOWN)
        more = [f"{len(self.ranked) - count} more: --details"] if count < len(self.ranked) else []
        head = [*wrapped_at("", self._question(), 0), "", *self._table(count), *more, ""]
        note, last = wrapped_at("note", self._note(), 10), wrapped_at("next", f"{self.command}; --details", 10)
        for num_rows, num_reasons in self._sizes():
            listing = self._frontier(num_rows) if self.frontier else self._terms(num_rows)
            reasons = "; ".join(f"{count:,} {reason}" for count, reason in self._reasons()[:num_reasons])
            lines = [*head, *listing, *wrapped_at("rejected", reasons, 10), *note, *last]
            if len(lines) <= MAX_LINES:
                break
        return "\n".join(lines)

    def _sizes(self) -> Iterator[tuple[int, int]]:
        """Yield numbers of rows of the second table and of reasons, ever fewer."""
        for num_rows in range(12 if self.frontier else 5, 0, -1):
            yield from ((num_rows, num_reasons) for num_reasons in ((3, 2) if num_rows > 2 else (2, 1)))
        yield 0, 1

    def _terms(self, num_rows: int) -> list[str]:
        """Return the terms that differ most, in the order of the step."""
        sizes = [abs(b - a) for name, a, b in self.differences() if name != "step" and not name.startswith(_TRANSFER)]
        largest = sorted(range(len(sizes)), key=lambda number: (-sizes[number], number))[:num_rows]
        rows = [self._term_rows()[number] for number in sorted(largest)]
        return [self._terms_title(), *(f"  {line}" for line in aligned(rows, 0)), ""] if rows else []

    def _frontier(self, num_rows: int) -> list[str]:
        """Return rows of the frontier, evenly spaced from its fastest layout to its smallest."""
        rows, last = self._frontier_rows(), max(1, num_rows - 1)
        if num_rows < len(rows):
            rows = [rows[place * (len(rows) - 1) // last] for place in range(num_rows)]
        shown = f" ({num_rows} of {len(self.frontier)}; --details has all)" if num_rows < len(self.frontier) else ""
        return [_FRONTIER + shown, *(f"  {line}" for line in aligned(rows, 0, 2)), ""] if rows else []

    def details(self) -> str:
        """Return all requested layouts, terms, reasons and notes."""
        lines = [*wrapped_at("", self._question(), 0), "", *self._table(len(self.ranked))]
        reasons = [(f"{count:,}", reason) for count, reason in self._reasons()]
        for title, rows, left in (
            (self._terms_title(), self._term_rows(), 1),
            (_FRONTIER, self._frontier_rows(), 2),
            ("rejected layouts", reasons, 2),
        ):
            if rows:
                lines += ["", title, *(f"  {line}" for line in aligned(rows, 0, left))]
        lines.append("")
        for note in self.notes:
            lines += wrapped_at("note", note, 10)
        return "\n".join([*lines, *wrapped_at("next", self.command, 10)])

    @property
    def notes(self) -> tuple[str, ...]:
        """Limits of the search, and the overlap of the likely ranges."""
        space = (
            "searched: dp, tp up to a node, pp, cp with at least 1,024 tokens a rank, ep, etp, sharding, schedule, "
            "virtual stages, micro-batches up to 16, sequence parallelism, recomputation, offload; --fix takes others"
        )
        precision = "precision is the model's: model:NAME,dtype=fp16 and --precision change it"
        notes = (
            self.assumed, self.comparison, self.tie, self.overlap, self.offload, self.fabric, self.screen, space,
            precision,
        )  # fmt: skip
        return tuple(note for note in notes if note)

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """The bounds that pruned layouts, and the simulation of the others."""
        return (
            *self.assumptions,
            Evidence("layouts", "modelled", f"{self.num_simulated} simulated as by trine train"),
            Evidence(
                "layouts not simulated", "modelled", self.screen or "lower bounds of time and memory from three layers"
            ),
        )

    def document(self) -> Row:
        """Return the search's facts and its tables as plain data."""
        return {
            "model": self.model, "mfu_definition": "full attention",
            "num_gpus": self.gpus, "gpu": self.gpu, "cluster": self.cluster,
            "software": self.software, "global_batch": self.global_batch, "sequence": self.sequence,
            "num_layouts": self.num_layouts, "num_simulated": self.num_simulated, "ranges_overlap": bool(self.overlap),
            "num_tied": len(self.tied), "num_screened": self.num_screened, "screen_errors": list(self.screen_errors),
            "train_command": self.command, "notes": list(self.notes), **self.tables(),
            "given": None if self.given is None else _row(0, self.given),
        }  # fmt: skip

    def record(self) -> Row:
        """Return the search's facts and the best layout as a flat row."""
        return {**self.document(), **_row(1, self.ranked[0])}

    def tables(self) -> dict[str, Table]:
        """Return ``layouts``, ``terms``, ``rejected``, and with ``--pareto`` ``frontier``."""
        rejected: list[Row] = [{"reason": reason, "layouts": count} for count, reason in self._reasons()]
        tables: dict[str, Table] = {
            "layouts": [_row(number, each) for number, each in enumerate(self.ranked, start=1)],
            "terms": self.terms(),
            "rejected": rejected,
        }
        if self.frontier:
            tables["frontier"] = [_row(number, each) for number, each in enumerate(self.frontier, start=1)]
        return tables

    def pictures(self) -> Mapping[str, Callable[..., Any]]:
        """Return the picture of time against memory."""
        return {"pareto": self._draw}

    # -- text --------------------------------------------------------------------------------------------------------

    def _question(self) -> str:
        tokens = "" if self.sequence is None else f" of {self.sequence:,} tokens"
        return (
            f"{self.model} on {self.gpus:,} x {self.gpu} ({self.cluster}), global batch {self.global_batch:,}{tokens}: "
            f"{self.num_layouts:,} layouts, {self.num_simulated:,} simulated"
        )

    def _table(self, count: int) -> list[str]:
        """Return the lines of the best layouts and the given one; columns give way on a narrow terminal."""
        given = [] if self.given is None else [("yours", self.given)]
        pairs = [*((str(n), each) for n, each in enumerate(self.ranked[:count], start=1)), *given]
        for spare, is_short in (((), False), ((3,), False), ((3,), True), ((3, 5), True), ((3, 4, 5), True)):
            rows: list[tuple[str, ...]] = [("", "layout", "step", "tokens/s", "MFU", "memory")]
            rows += [_cells(name, each, is_short) for name, each in pairs]
            kept = [tuple(cell for n, cell in enumerate(row) if n not in spare) for row in rows]
            lines = aligned(kept, 0, 2)
            if max(map(len, lines)) <= width():
                break
        return lines

    def _note(self) -> str:
        """Return the most important notes."""
        is_tight = self.best.outcome.verdict == "tight"
        tight = "the memory of the first layout is tight: the model's error may exceed the rest"
        best = self.best.outcome
        limits = tight if is_tight else self.tie or self.overlap
        mfu = mfu_warning(self.gpu, best.precision, best.mfu)
        notes = self.assumed, self.comparison, mfu, limits, self.offload, self.fabric, self.screen
        return "; ".join(filter(None, notes))

    def _frontier_rows(self) -> list[tuple[str, ...]]:
        return [_cells(str(n), each) for n, each in enumerate(self.frontier, start=1)]

    def _terms_title(self) -> str:
        other = "yours" if self.given else self._second_words.removeprefix("the ")
        return f"parts of the step of the first and {other}"

    def _term_rows(self) -> list[tuple[str, ...]]:
        rows = self.differences()
        return [(name, format_time(a), format_time(b), _signed(b - a)) for name, a, b in rows]

    def _reasons(self) -> list[tuple[int, str]]:
        """Return the numbers of rejected layouts with their reasons, the most frequent first."""
        return sorted(((count, reason) for reason, count in self.rejected.items()), key=lambda row: (-row[0], row[1]))

    def _draw(self) -> Any:
        from trine.search.picture import draw_layouts

        return draw_layouts(self._question(), self.simulated, self.frontier, self.ranked, words(self.best.layout))


def words(layout: Layout, is_short: bool = False) -> str:
    """Return a layout in a few words, such as ``dp 8 x tp 4 x pp 4, 1f1b, mb 1, zero1``; short: ``dp8 tp4 pp4 v2``."""
    degrees = [("dp", layout.dp), ("tp", layout.tp), ("pp", layout.pp), ("cp", layout.cp)]
    parts = [" x ".join(f"{name} {ways}" for name, ways in degrees if ways > 1) or "1 GPU"]
    parts += [f"ep {layout.ep}"] if layout.ep > 1 else []
    parts += [f"etp {layout.etp}"] if layout.etp is not None and layout.etp != layout.tp else []
    if layout.pp > 1 and layout.schedule is not None:
        parts.append(layout.schedule + (f" {layout.virtual_stages}" if layout.virtual_stages > 1 else ""))
    parts.append(f"mb {layout.micro_batch}")
    parts += [layout.sharding] if layout.sharding != "none" else []
    parts += ["sp"] if layout.sequence_parallel else []
    parts += [f"recompute {layout.recompute}"] if layout.recompute != "none" else []
    parts += [f"offload {layout.offload}"] if layout.offload != "none" else []
    parts += ["expert overlap"] if layout.expert_overlap else []
    parts += ["shared-expert overlap"] if layout.shared_expert_overlap else []
    parts += [layout.dispatch] if layout.dispatch is not None else []
    if not is_short:
        return ", ".join(parts)
    text = " ".join(part.replace(" x ", "_").replace(" ", "").replace("_", " ") for part in parts)
    return text.replace("interleaved", "v").replace("recompute", "").replace("offload", "")


def _cells(name: str, each: Ranked, is_short: bool = False) -> tuple[str, ...]:
    outcome = each.outcome
    if outcome.refused:
        return (name, words(each.layout, is_short), "refused", "", "", "")
    rate = "" if outcome.tokens is None else f"{per_second(outcome.tokens, outcome.step_ps):,.0f}"
    share = "" if outcome.mfu is None else f"{outcome.mfu:.1%}"
    about = "about " if outcome.is_estimated else ""
    return (name, words(each.layout, is_short), about + format_time(outcome.step_ps), rate, share, _memory(outcome))


def _row(number: int, each: Ranked) -> Row:
    return LAYOUT.row(LayoutRow(number, each))


def _terms(outcome: Outcome) -> list[tuple[str, int]]:
    """Return the parts of a step, their sum, and the transfer time of each axis, hidden or exposed.

    The parts add up to the step of the slowest rank; transfers are no parts.
    """
    parts = [
        ("compute", outcome.compute_ps), ("exposed communication", outcome.exposed_ps), ("bubble", outcome.bubble_ps),
        ("other waits", outcome.idle_ps),
    ]  # fmt: skip
    rest = outcome.step_ps - sum(ps for _, ps in parts)
    axes = [(f"{_TRANSFER} {axis}", ps) for axis, ps in sorted(outcome.communication.items())]
    return [*parts, *([("rest", rest)] if rest else []), ("step", outcome.step_ps), *axes]


def _memory(outcome: Outcome) -> str:
    if outcome.memory_bytes is None:
        return "memory unknown"
    of = f" of {format_bytes(outcome.capacity_bytes)}" if outcome.capacity_bytes else ""
    return f"{format_bytes(outcome.memory_bytes)}{of}"


def _rate_words(outcome: Outcome) -> str:
    rate = "" if outcome.tokens is None else f", {per_second(outcome.tokens, outcome.step_ps):,.0f} tokens/s"
    return rate + ("" if outcome.mfu is None else f", {mfu_words(outcome.mfu)}")


def _range(outcome: Outcome) -> str:
    return f"{format_time(outcome.low_ps or 0)} to {format_time(outcome.high_ps or 0)}"


def _signed(ps: int) -> str:
    return ("+" if ps >= 0 else "-") + format_time(abs(ps))


def pareto(ranked: Iterable[Ranked]) -> tuple[Ranked, ...]:
    """Return the layouts that no other beats in both step time and memory, by time."""
    frontier: list[Ranked] = []
    for each in sorted(ranked, key=lambda r: (r.outcome.step_ps, r.outcome.memory_bytes or 0, r.layout.key)):
        memory = each.outcome.memory_bytes
        if memory is not None and (not frontier or memory < (frontier[-1].outcome.memory_bytes or 0)):
            frontier.append(each)
    return tuple(frontier)
