"""Comparison of two answers: the terms that explain the difference of their times, and the inputs that differ."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from trine.common.units import PS_PER_S, format_time
from trine.decide.answers import Answer, answer_name, flat, narrowed, picoseconds, read_answer
from trine.errors import InputError
from trine.results.report import Report, Row, Table, seconds
from trine.results.screen import Listing, Screen
from trine.results.text import aligned, columns, wrapped_at

_PS_PER_US = PS_PER_S // 10**6
#: Name of the remainder of a step that an answer does not explain.
UNEXPLAINED = "unexplained"
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


@dataclass(frozen=True, slots=True)
class Term:
    """A part of both times in ps; the parts of one comparison add up to its times."""

    name: str
    a_ps: int
    b_ps: int

    @property
    def difference_ps(self) -> int:
        return self.b_ps - self.a_ps


@dataclass(frozen=True, slots=True)
class InputDifference:
    """An input with different values in A and B, None if an answer lacks it."""

    name: str
    a: object
    b: object


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison(Report):
    """Two answers side by side.

    form: ``result`` or ``collective``. names: of A and B. questions: in words. a_ps, b_ps: step times, or the times of
    the largest common size. terms: their parts, which add up to both times. inputs: the inputs that differ, in order.
    sizes: of collectives, one row per common size.
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
        first = "; no input differs" if not self.inputs else f"; first input that differs: {_words(self.inputs[0])}"
        return times + first

    @property
    def _verdict(self) -> str:
        if not self.difference_ps:
            return "the times are equal"
        word = "slower" if self.difference_ps > 0 else "faster"
        share = f" ({abs(self.difference_ps) / self.a_ps:.1%})" if self.a_ps else ""
        return f"{self.names[1]} is {format_time(abs(self.difference_ps))}{share} {word}"

    def summary(self) -> str:
        """Return the comparison on one screen, the largest terms first."""
        first = "none differs" if not self.inputs else _words(self.inputs[0])
        terms = sorted(self.terms, key=lambda term: -abs(term.difference_ps))
        rows = [("", "A", "B", "B - A"), *map(_cells, terms)]
        inputs = [(each.name, _value(each.a), _value(each.b)) for each in self.inputs[1:]]
        return Screen(
            question=f"A: {self.questions[0]}; B: {self.questions[1]}",
            numbers=[
                (f"A {self.names[0]}"[:24], format_time(self.a_ps), ""),
                (f"B {self.names[1]}"[:24], format_time(self.b_ps), self._verdict),
            ],
            listings=(
                Listing(title="terms of the difference", rows=narrowed(rows, (2, 1))),
                Listing(title="further inputs that differ", rows=narrowed(inputs, (2, 1))),
            ),
            closing=(("first input", first), ("next", "--details (all terms and inputs); --json")),
        ).text()

    def details(self) -> str:
        """Return all terms, sizes and inputs that differ."""
        lines = [*wrapped_at("A: ", self.questions[0], 3), *wrapped_at("B: ", self.questions[1], 3), self._verdict]
        total = Term("sum", self.a_ps, self.b_ps)
        lines += ["", *aligned([("term", "A", "B", "B - A"), *map(_cells, (*self.terms, total))], 24)]
        if self.sizes:
            cells = [tuple(str(value) for value in row.values()) for row in self.sizes]
            lines += ["", *columns([tuple(self.sizes[0]), *cells])]
        inputs = [("input", "A", "B"), *((each.name, _value(each.a), _value(each.b)) for each in self.inputs)]
        return "\n".join([*lines, "", *columns(inputs)])

    def document(self) -> Row:
        """Return the comparison as plain data (docs/reference/decide-json.md)."""
        return {
            "form": self.form,
            "a": self.names[0],
            "b": self.names[1],
            "a_s": seconds(self.a_ps),
            "b_s": seconds(self.b_ps),
            "difference_s": seconds(self.difference_ps),
            **self.tables(),
            "first_input": None if not self.inputs else self.inputs[0].name,
        }

    def tables(self) -> dict[str, Table]:
        """Return ``terms``, ``inputs`` and ``sizes``."""
        terms = [
            {"term": each.name, "a_s": seconds(each.a_ps), "b_s": seconds(each.b_ps),
             "difference_s": seconds(each.difference_ps)}
            for each in self.terms
        ]  # fmt: skip
        inputs = [{"input": each.name, "a": each.a, "b": each.b} for each in self.inputs]
        return {"terms": terms, "inputs": inputs, "sizes": list(self.sizes)}


Source = Answer | Report | str | os.PathLike[str]


def compare(a: Source, b: Source) -> Comparison:
    """Compare two answers of :func:`trine.simulate`, or two of :func:`trine.collective`.

    a, b: files written with ``--json``, their content, or results. Raises InputError for files that are no such
    answers, answers of different forms, and collectives without a common size.
    """
    (form, one), (form_b, other) = read_answer(a, "a"), read_answer(b, "b")
    if form != form_b:
        raise InputError(f"is an answer of form {form_b!r}, and the first of {form!r}: compare answers of one command",
                         file=b if isinstance(b, str | os.PathLike) else "b")  # fmt: skip
    build = _compare_steps if form == "result" else _compare_collectives
    files = tuple(str(each) if isinstance(each, str | os.PathLike) else name for each, name in ((a, "A"), (b, "B")))
    comparison = build((files[0], files[1]), one, other)
    names = answer_name(a, "A"), answer_name(b, "B")
    return replace(comparison, names=names) if names[0] != names[1] else comparison


def _compare_steps(names: tuple[str, str], a: Answer, b: Answer) -> Comparison:
    a_ps, b_ps = (picoseconds(each, "step_time_s", name) for each, name in zip((a, b), names, strict=True))
    has_terms = all(isinstance(each.get("terms"), Mapping) for each in (a, b))
    parts = [dict(_step_parts(each, name, has_terms)) for each, name in zip((a, b), names, strict=True)]
    has_inputs = all(isinstance(each.get("inputs"), Mapping) for each in (a, b))
    return Comparison(
        form="result", names=names, questions=(_question(a), _question(b)), a_ps=a_ps, b_ps=b_ps,
        terms=tuple(_terms(parts[0], parts[1], a_ps, b_ps)),
        inputs=_differences(*(_inputs(each, has_inputs) for each in (a, b))),
    )  # fmt: skip


def _step_parts(answer: Answer, file: str, has_terms: bool) -> Iterator[tuple[str, int]]:
    if not has_terms:
        for key, name in _COARSE.items():
            yield name, picoseconds(answer, key, file)
        return
    for group, prefix in _PREFIXES.items():
        parts = answer["terms"].get(group)
        for key in parts if isinstance(parts, Mapping) else ():
            yield _NAMES.get(key, f"{prefix}{key}"), picoseconds(parts, key, file)


def _terms(a: Mapping[str, int], b: Mapping[str, int], a_ps: int, b_ps: int) -> Iterator[Term]:
    """Yield the terms of both answers; a remainder, if any, keeps the sums exact."""
    for name in dict.fromkeys((*a, *b)):
        yield Term(name, a.get(name, 0), b.get(name, 0))
    rest = a_ps - sum(a.values()), b_ps - sum(b.values())
    if any(rest):
        yield Term(UNEXPLAINED, *rest)


def _question(answer: Answer) -> str:
    plan = answer.get("plan")
    facts: Mapping[str, Any] = plan if isinstance(plan, Mapping) else {}
    axes = [f"{axis} {facts[axis]}" for axis in ("tp", "cp", "ep", "pp", "dp") if facts.get(axis) not in (None, 1)]
    machine = f"{facts.get('num_ranks', '?')} x {facts.get('gpu') or 'GPU'}"
    cluster = f" ({facts['cluster']})" if facts.get("cluster") else ""
    return f"{facts.get('workload') or 'job'} on {machine}{cluster}: {' x '.join(axes) or 'one GPU'}"


def _inputs(answer: Answer, has_inputs: bool) -> dict[str, object]:
    if has_inputs:
        groups = {**answer["inputs"], "version": answer.get("version")}
        return flat({name: groups[name] for name in (*_GROUPS, *groups) if name in groups})
    plan = answer.get("plan")
    facts: Mapping[str, object] = plan if isinstance(plan, Mapping) else {}
    return {**facts, "version": answer.get("version")}


def _differences(a: Mapping[str, object], b: Mapping[str, object]) -> tuple[InputDifference, ...]:
    names = dict.fromkeys((*a, *b))
    order = {group: number for number, group in enumerate(_GROUPS)}
    ordered = sorted(names, key=lambda name: order.get(name.partition(".")[0].partition("[")[0], len(order)))
    return tuple(InputDifference(name, a.get(name), b.get(name)) for name in ordered if a.get(name) != b.get(name))


def _compare_collectives(names: tuple[str, str], a: Answer, b: Answer) -> Comparison:
    rows_a, rows_b = (_rows(each, name) for each, name in zip((a, b), names, strict=True))
    common = [size for size in rows_a if size in rows_b]
    if not common:
        raise InputError("has no size of the first answer: run both with the same --size", file=names[1])
    largest = max(common)
    times = [picoseconds(rows[largest], "time_us", name, _PS_PER_US)
             for rows, name in zip((rows_a, rows_b), names, strict=True)]  # fmt: skip
    parts = [_collective_parts(each, largest, name) for each, name in zip((a, b), names, strict=True)]
    shown = parts if all(parts) else [{"time": ps} for ps in times]
    return Comparison(
        form="collective", names=names,
        questions=(_collective_question(a, largest), _collective_question(b, largest)), a_ps=times[0], b_ps=times[1],
        terms=tuple(_terms(shown[0], shown[1], times[0], times[1])),
        inputs=_differences(*({name: each.get(name) for name in (*_COLLECTIVE_INPUTS, "version")} for each in (a, b))),
        sizes=tuple(_size_row(size, rows_a[size], rows_b[size], names) for size in common),
    )  # fmt: skip


def _rows(answer: Answer, file: str) -> dict[int, Answer]:
    rows = answer.get("rows")
    valid = [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []
    sizes = {row["size_bytes"]: row for row in valid if isinstance(row.get("size_bytes"), int)}
    if not sizes:
        raise InputError("has no rows", file=file, field="rows")
    return sizes


def _collective_parts(answer: Answer, size: int, file: str) -> dict[str, int]:
    """Return the parts of a size's time with ``--explain``, else an empty mapping."""
    explained = answer.get("explain")
    entries: Sequence[Any] = explained if isinstance(explained, list) else []
    entry = next((each for each in entries if isinstance(each, Mapping) and each.get("size_bytes") == size), {})
    parts = [part for part in entry.get("parts", ()) if isinstance(part, Mapping)]
    return {str(part.get("name")): picoseconds(part, "time_us", file, _PS_PER_US) for part in parts}


def _collective_question(answer: Answer, size: int) -> str:
    return f"{answer.get('op')} of {size:,} B on {answer.get('num_ranks')} GPUs ({answer.get('cluster')})"


def _size_row(size: int, a: Answer, b: Answer, names: tuple[str, str]) -> Row:
    times = [picoseconds(row, "time_us", name, _PS_PER_US) for row, name in zip((a, b), names, strict=True)]
    choice_a, choice_b = (f"{row.get('algorithm')}/{row.get('protocol')}" for row in (a, b))
    return {
        "size_bytes": size, "a_us": times[0] / _PS_PER_US, "b_us": times[1] / _PS_PER_US,
        "difference_us": (times[1] - times[0]) / _PS_PER_US, "a_choice": choice_a, "b_choice": choice_b,
    }  # fmt: skip


def _cells(term: Term) -> tuple[str, str, str, str]:
    return term.name, format_time(term.a_ps), format_time(term.b_ps), _signed(term.difference_ps)


def _signed(ps: int) -> str:
    return f"{'-' if ps < 0 else '+'}{format_time(abs(ps))}" if ps else "0"


def _words(difference: InputDifference) -> str:
    return f"{difference.name}: {_value(difference.a)} (A), {_value(difference.b)} (B)"


def _value(value: object) -> str:
    text = "not given" if value is None else ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 28 else f"{text[:16]}...{text[-9:]}"
