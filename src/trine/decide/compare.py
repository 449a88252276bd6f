"""Comparison of two answers: the terms that explain the difference of their times, and the inputs that differ."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from trine.common.arguments import named_arguments
from trine.common.inputs import read_text
from trine.common.spec import parse_json
from trine.common.units import MAX_INT64, PS_PER_S, format_time
from trine.decide.term import TERM, Term
from trine.errors import InputError, one_line
from trine.results.columns import Column, Columns, column, to_row
from trine.results.report import Report, Row, Table, seconds
from trine.results.screen import Listing, Screen
from trine.results.text import aligned, columns, wrapped_at

INPUT = Columns(
    Column(key="input", unit="text", meaning="Input."),
    Column(key="a", unit="any", meaning="Its value in A.", null_if="A lacks the input"),
    Column(key="b", unit="any", meaning="Its value in B.", null_if="B lacks the input"),
)  # fmt: skip

#: Maximum size of a JSON answer; one of 131,072 GPUs has less than 2 MiB.
MAX_ANSWER_BYTES = 256 * 2**20
#: Forms of answers that can be compared, and the commands that write them.
FORMS = {"result": "trine train", "collective": "trine collective"}
#: Name of the remainder of a step that an answer does not explain.
UNEXPLAINED = "unexplained"
_PS_PER_US = PS_PER_S // 10**6
#: Names of terms by their keys in ``terms`` of a result; other keys keep their own.
_NAMES = {
    "recompute": "memory: recomputation", "input_copy": "memory: input copies", "offload": "memory: offload",
    "bubble": "pipeline bubble", "launch": "launches", "wait": "other waits", "other": "compute: other",
}  # fmt: skip
_PREFIXES = {"compute_s": "compute: ", "exposed_s": "communication: ", "idle_s": ""}
#: Times of a result without ``terms`` (trine before 0.13), and their names.
_COARSE = {
    "compute_s": "compute", "exposed_communication_s": "communication", "bubble_s": "pipeline bubble",
    "idle_s": "other waits",
}  # fmt: skip
#: Inputs of a collective.
_COLLECTIVE_INPUTS = ("op", "cluster", "num_ranks", "num_nodes", "library", "library_version", "launch", "network")
#: Order of groups of inputs: groups that set defaults of others come first.
_GROUPS = ("workload", "gpus", "cluster", "software", "layout", "options", "version")
#: Facts of a workload that follow from its software, which pads the vocabulary: behind the software's own inputs.
_DERIVED = ("workload.parameter_bytes", "workload.metadata.parameters")
_SPARE = (2, 1)  # columns that narrow terminals leave out


@dataclass(frozen=True, slots=True)
class InputDifference:
    """An input with different values in A and B, None if an answer lacks it."""

    name: str = field(metadata=column("input"))
    a: object
    b: object


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison(Report):
    """Two answers side by side.

    form: ``result`` or ``collective``. names: of A and B. questions: in words. a_ps, b_ps: step times, or the times of
    the largest common size. terms: their parts, which add up to both times. inputs: the inputs that differ, in order.
    sizes: of collectives, one row per common size. tokens: of the steps of A and B; if they differ, B's time and terms
    are scaled to A's tokens. steps_ps: the step times. verdicts: on the memory of A and B.
    """

    SCHEMA: ClassVar[str] = "compare"

    form: str
    names: tuple[str, str]
    questions: tuple[str, str]
    a_ps: int
    b_ps: int
    terms: tuple[Term, ...]
    inputs: tuple[InputDifference, ...]
    sizes: tuple[Row, ...] = ()
    tokens: tuple[int, int] | None = None
    steps_ps: tuple[int, int] | None = None
    verdicts: tuple[str | None, str | None] = (None, None)

    @property
    def difference_ps(self) -> int:
        """Time of B less time of A."""
        return self.b_ps - self.a_ps

    @property
    def headline(self) -> str:
        """Both times, the largest term of the difference, and the first input that differs."""
        times = f"{self.names[0]} {format_time(self.a_ps)}, {self.names[1]} {format_time(self.b_ps)}: {self._verdict}"
        largest = max(self.terms, key=lambda term: abs(term.difference_ps), default=None)
        if largest is not None and largest.difference_ps:
            times += f", mostly {largest.name} ({_signed(largest.difference_ps)})"
        return times + (f"; first input that differs: {self._first}" if self.inputs else "; no input differs")

    @property
    def _first(self) -> str:
        name, a, b = self._inputs()[0] if self.inputs else ("", "", "")
        return f"{name}: {a} (A), {b} (B)" if self.inputs else "none differs"

    @property
    def _verdict(self) -> str:
        if not self.difference_ps:
            return "the times are equal"
        word = "slower" if self.difference_ps > 0 else "faster"
        share = f" ({abs(self.difference_ps) / self.a_ps:.1%})" if self.a_ps else ""
        per = f" per {self.tokens[0]:,} tokens" if self.tokens is not None and self._is_scaled else ""
        return f"{self.names[1]} is {format_time(abs(self.difference_ps))}{share} {word}{per}"

    @property
    def _is_scaled(self) -> bool:
        return self.tokens is not None and self.tokens[0] != self.tokens[1]

    def _remarks(self) -> tuple[str, str]:
        """Return the words beside the times of A and B: the verdicts on memory, and the difference."""
        first, second = (f"memory {verdict}" if verdict else "" for verdict in self.verdicts)
        return first, "; ".join(filter(None, (self._verdict, second)))

    def _scale_note(self) -> str:
        """Return how the times of steps with other tokens are compared, or ""."""
        if self.tokens is None or self.steps_ps is None or not self._is_scaled:
            return ""
        steps = (f"{name}'s step is {format_time(ps)} of {tokens:,} tokens"
                 for name, ps, tokens in zip(self.names, self.steps_ps, self.tokens, strict=True))  # fmt: skip
        return f"times per {self.tokens[0]:,} tokens, because the global batches differ: {'; '.join(steps)}"

    def _inputs(self) -> list[tuple[str, str, str]]:
        return [(each.name, _value(each.a), _value(each.b)) for each in self.inputs]

    def summary(self) -> str:
        """Return the comparison on one screen, the largest terms first."""
        terms = sorted(self.terms, key=lambda term: -abs(term.difference_ps))
        note = self._scale_note()
        return Screen(
            question=f"A: {self.questions[0]}; B: {self.questions[1]}",
            numbers=[
                (f"A {self.names[0]}"[:24], format_time(self.a_ps), self._remarks()[0]),
                (f"B {self.names[1]}"[:24], format_time(self.b_ps), self._remarks()[1]),
            ],
            listings=(
                Listing(title="terms of the difference", rows=[("", "A", "B", "B - A"), *map(_cells, terms)],
                        spare=_SPARE),
                Listing(title="further inputs that differ", rows=self._inputs()[1:], spare=_SPARE),
            ),
            closing=(
                *([("note", note)] if note else []),
                ("first input", self._first),
                ("next", "--details (all terms and inputs); --plot FILE; --json FILE"),
            ),
        ).text()  # fmt: skip

    def details(self) -> str:
        """Return all terms, sizes and inputs that differ."""
        lines = [*wrapped_at("A: ", self.questions[0], 3), *wrapped_at("B: ", self.questions[1], 3),
                 "; ".join(filter(None, self._remarks())), self._scale_note(), ""]  # fmt: skip
        cells = map(_cells, (*self.terms, Term("sum", self.a_ps, self.b_ps)))
        lines += [*aligned([("term", "A", "B", "B - A"), *cells], 24), ""]
        if self.sizes:
            rows = [tuple(map(str, row.values())) for row in self.sizes]
            lines += [*columns([tuple(self.sizes[0]), *rows]), ""]
        return "\n".join([*lines, *columns([("input", "A", "B"), *self._inputs()])])

    def pictures(self) -> Mapping[str, Callable[..., Any]]:
        """Return the picture of the terms."""
        return {"terms": self._draw}

    def _draw(self) -> Any:
        from trine.decide.picture import draw_terms

        return draw_terms(self.headline, (f"A: {self.names[0]}", f"B: {self.names[1]}"), self.terms)

    def document(self) -> Row:
        """Return the comparison as plain data (docs/reference/decide-json.md)."""
        first = self.inputs[0].name if self.inputs else None
        times = to_row(self, "a_s", "b_s", "difference_s")
        tokens, steps = self.tokens or (None, None), self.steps_ps or (None, None)
        facts: Row = {}
        for letter, number, ps, verdict in zip("ab", tokens, steps, self.verdicts, strict=True):
            facts |= {f"{letter}_tokens": number, f"{letter}_step_s": None if ps is None else seconds(ps),
                      f"{letter}_memory_verdict": verdict}  # fmt: skip
        return {"form": self.form, "a": self.names[0], "b": self.names[1], **times, **facts, **self.tables(),
                "first_input": first}  # fmt: skip

    def tables(self) -> dict[str, Table]:
        """Return ``terms``, ``inputs`` and ``sizes``."""
        terms, inputs = TERM.rows(self.terms), INPUT.rows(self.inputs)
        return {"terms": terms, "inputs": inputs, "sizes": list(self.sizes)}


Answer = Mapping[str, Any]
Source = Answer | Report | str | os.PathLike[str]


class _Side(NamedTuple):
    """One answer. file: for errors; A or B for an answer that is no file."""

    file: str
    name: str
    form: str
    keys: Answer


class _Facts(NamedTuple):
    question: str
    time_ps: int
    parts: dict[str, int]
    inputs: Mapping[str, object]
    tokens: int | None = None
    verdict: str | None = None

    def per_tokens(self, tokens: int | None) -> _Facts:
        """Return the time and its parts for so many tokens; the largest part takes the rounding, so sums stay exact."""
        if tokens is None or self.tokens is None or tokens == self.tokens:
            return self
        time_ps = _scaled(self.time_ps, tokens, self.tokens)
        parts = {name: _scaled(ps, tokens, self.tokens) for name, ps in self.parts.items()}
        if parts and sum(self.parts.values()) == self.time_ps:
            parts[max(parts, key=lambda name: parts[name])] += time_ps - sum(parts.values())
        return self._replace(time_ps=time_ps, parts=parts)


def _scaled(ps: int, tokens: int, step_tokens: int) -> int:
    """Return a time in ps, scaled to other tokens and rounded."""
    return (2 * ps * tokens + step_tokens) // (2 * step_tokens)


@named_arguments
def compare(a: Source, b: Source) -> Comparison:
    """Compare two answers of :func:`trine.simulate`, or two of :func:`trine.collective`.

    a, b: files written with ``--json``, their content, or results. Raises InputError for files that are no such
    answers, answers of different forms, and collectives without a common size.
    """
    sides = one, other = _read(a, "A"), _read(b, "B")
    if one.form != other.form:
        raise InputError(f"is an answer of form {other.form!r}, and the first of {one.form!r}: compare answers of one "
                         "command", file=other.file)  # fmt: skip
    sizes: list[Row] = []
    if one.form == "result":
        has_terms, has_inputs = (all(_has(each.keys, key) for each in sides) for key in ("terms", "inputs"))
        facts = [_step(each, has_terms, has_inputs) for each in sides]
    else:
        rows, more = map(_rows, sides)
        common = [size for size in rows if size in more]
        if not common:
            raise InputError("has no size of the first answer: run both with the same --size", file=other.file)
        sizes = [_size_row(size, rows[size], more[size], sides) for size in common]
        facts = [_collective(each, max(common), found) for each, found in zip(sides, (rows, more), strict=True)]
        if not all(each.parts for each in facts):
            facts = [each._replace(parts={"time": each.time_ps}) for each in facts]
    tokens = (facts[0].tokens, facts[1].tokens)
    steps_ps = (facts[0].time_ps, facts[1].time_ps)
    scaled = [facts[0], facts[1].per_tokens(tokens[0])]
    names = (one.file, other.file) if one.name == other.name else (one.name, other.name)
    tokens_of_both = None if tokens[0] is None or tokens[1] is None else (tokens[0], tokens[1])
    steps_of_form = steps_ps if one.form == "result" else None
    return Comparison(
        form=one.form, names=names, questions=(scaled[0].question, scaled[1].question), a_ps=scaled[0].time_ps,
        b_ps=scaled[1].time_ps, sizes=tuple(sizes),
        terms=tuple(_terms(scaled[0].parts, scaled[1].parts, scaled[0].time_ps, scaled[1].time_ps)),
        inputs=tuple(_differences(scaled[0].inputs, scaled[1].inputs)), tokens=tokens_of_both, steps_ps=steps_of_form,
        verdicts=(scaled[0].verdict, scaled[1].verdict),
    )  # fmt: skip


def _read(source: Source, letter: str) -> _Side:
    """Read and check an answer."""
    file = name = letter
    content: object = source.to_json() if isinstance(source, Report) else source
    if isinstance(source, str | os.PathLike):
        file, name = os.fspath(source), Path(source).stem
        content = parse_json(read_text(source, MAX_ANSWER_BYTES, InputError), file)
    schema = content.get("schema") if isinstance(content, Mapping) else None
    parts = schema.split("/") if isinstance(schema, str) else []
    if not isinstance(content, Mapping) or len(parts) != 3 or parts[0] != "trine":
        raise InputError("is no answer of trine: write one with --json FILE", file=file)
    if parts[1] not in FORMS:
        known = " and ".join(map(repr, FORMS.values()))
        raise InputError(f"is an answer of form {one_line(parts[1], 40)!r}; answers of {known} compare", file=file)
    return _Side(file, name, parts[1], content)


def _time(answer: Answer, key: str, file: str, unit_ps: int = PS_PER_S) -> int:
    """Return a time of an answer in ps, exact to the picosecond. Raises InputError if it is missing or no time."""
    value = answer.get(key)
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            ps = round(Decimal(repr(value)) * unit_ps)
        except (InvalidOperation, OverflowError, ValueError):
            ps = -1
        if 0 <= ps <= MAX_INT64:
            return ps
    raise InputError(f"has no time of this name, got {value!r:.40}", file=file, field=key)


def _has(answer: Answer, key: str) -> bool:
    return isinstance(answer.get(key), Mapping)


def _step(side: _Side, has_terms: bool, has_inputs: bool) -> _Facts:
    answer, file = side.keys, side.file
    step_ps = _time(answer, "step_time_s", file)
    facts: Answer = answer["plan"] if _has(answer, "plan") else {}
    axes = [f"{axis} {facts[axis]}" for axis in ("tp", "cp", "ep", "pp", "dp") if facts.get(axis) not in (None, 1)]
    cluster = f" ({facts['cluster']})" if facts.get("cluster") else ""
    machine = f"{facts.get('num_ranks', '?')} x {facts.get('gpu') or 'GPU'}{cluster}"
    question = f"{facts.get('workload') or 'job'} on {machine}: {' x '.join(axes) or 'one GPU'}"
    if not has_terms:
        parts = {name: _time(answer, key, file) for key, name in _COARSE.items()}
    else:
        parts = {
            _NAMES.get(key, f"{prefix}{key}"): _time(answer["terms"][group], key, file)
            for group, prefix in _PREFIXES.items()
            if _has(answer["terms"], group)
            for key in answer["terms"][group]
        }
    inputs = flat(answer["inputs"]) if has_inputs else facts
    verdict = answer.get("memory_verdict")
    return _Facts(question, step_ps, parts, {**inputs, "version": answer.get("version")}, _tokens(answer),
                  verdict if isinstance(verdict, str) else None)  # fmt: skip


def _tokens(answer: Answer) -> int | None:
    """Return the tokens of a step, or the samples of a model without tokens; None in an answer without a rate."""
    for key in ("tokens_per_s", "samples_per_s"):
        rate = answer.get(key)
        if isinstance(rate, int | float) and not isinstance(rate, bool) and 0 < rate < MAX_INT64:
            return round(rate * answer["step_time_s"]) or None
    return None


def _collective(side: _Side, size: int, rows: Mapping[int, Answer]) -> _Facts:
    """Return the facts of one size; its parts with ``--explain`` only."""
    answer, explained = side.keys, side.keys.get("explain")
    if isinstance(explained, list):
        entries = [each for each in explained if isinstance(each, Mapping)]
    else:
        entries = []
    entry: Answer = next((each for each in entries if each.get("size_bytes") == size), {})
    parts = {str(part.get("name")): _time(part, "time_us", side.file, _PS_PER_US)
             for part in entry.get("parts", ()) if isinstance(part, Mapping)}  # fmt: skip
    question = f"{answer.get('op')} of {size:,} B on {answer.get('num_ranks')} GPUs ({answer.get('cluster')})"
    inputs = {name: answer.get(name) for name in (*_COLLECTIVE_INPUTS, "version")}
    return _Facts(question, _time(rows[size], "time_us", side.file, _PS_PER_US), parts, inputs)


def _rows(side: _Side) -> dict[int, Answer]:
    rows = side.keys.get("rows")
    if isinstance(rows, list):
        valid = [row for row in rows if isinstance(row, Mapping)]
    else:
        valid = []
    sizes = {row["size_bytes"]: row for row in valid if isinstance(row.get("size_bytes"), int)}
    if not sizes:
        raise InputError("has no rows", file=side.file, field="rows")
    return sizes


def _size_row(size: int, a: Answer, b: Answer, sides: tuple[_Side, _Side]) -> Row:
    times = [_time(row, "time_us", side.file, _PS_PER_US) for row, side in zip((a, b), sides, strict=True)]
    choice_a, choice_b = (f"{row.get('algorithm')}/{row.get('protocol')}" for row in (a, b))
    return {
        "size_bytes": size, "a_us": times[0] / _PS_PER_US, "b_us": times[1] / _PS_PER_US,
        "difference_us": (times[1] - times[0]) / _PS_PER_US, "a_choice": choice_a, "b_choice": choice_b,
    }  # fmt: skip


def _terms(a: Mapping[str, int], b: Mapping[str, int], a_ps: int, b_ps: int) -> Iterator[Term]:
    """Yield the terms of both answers; a remainder, if any, keeps the sums exact."""
    yield from (Term(name, a.get(name, 0), b.get(name, 0)) for name in dict.fromkeys((*a, *b)))
    rest = a_ps - sum(a.values()), b_ps - sum(b.values())
    if any(rest):
        yield Term(UNEXPLAINED, *rest)


def flat(values: object, prefix: str = "") -> dict[str, object]:
    """Return nested mappings and lists as one mapping with dotted names, in their order."""
    if isinstance(values, Mapping):
        items = []
        for key, value in values.items():
            items.append((f"{prefix}.{key}" if prefix else str(key), value))
    elif isinstance(values, list) and any(isinstance(each, Mapping | list) for each in values):
        items = [(f"{prefix}[{number}]", value) for number, value in enumerate(values)]
    else:
        return {prefix: values}
    return {name: leaf for key, value in items for name, leaf in flat(value, key).items()}


def _differences(a: Mapping[str, object], b: Mapping[str, object]) -> Iterator[InputDifference]:
    names = sorted(dict.fromkeys((*a, *b)), key=_place_of_input)
    return (InputDifference(name, a.get(name), b.get(name)) for name in names if a.get(name) != b.get(name))


def _place_of_input(name: str) -> tuple[int, bool]:
    """Return the place of an input in the order of differences: its group's place, and whether it is derived."""
    is_derived = name in _DERIVED
    group = "software" if is_derived else re.split(r"[.\[]", name)[0]
    return (_GROUPS.index(group) if group in _GROUPS else len(_GROUPS)), is_derived


def _cells(term: Term) -> tuple[str, ...]:
    return term.name, format_time(term.a_ps), format_time(term.b_ps), _signed(term.difference_ps)


def _signed(ps: int) -> str:
    if ps:
        return f"{'-' if ps < 0 else '+'}{format_time(abs(ps))}"
    return "0"


def _value(value: object) -> str:
    if value is None:
        text = "not given"
    elif isinstance(value, list):
        text = ", ".join(map(str, value))
    else:
        text = str(value)
    return text if len(text) <= 28 else f"{text[:16]}...{text[-9:]}"
