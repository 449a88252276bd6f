"""``trine validate memory``: published peak memory against modelled peaks, and layouts that fit.

Nothing is simulated: trine writes each row's rank programs and replays PyTorch's allocator over them
(:mod:`trine.training.memory`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import ClassVar

from trine.common.units import format_bytes
from trine.errors import TrineError, one_line
from trine.graph.workload import Workload
from trine.parallel.plan import Plan
from trine.results.memory import DOES_NOT_FIT, FITS, TIGHT, MemoryUse
from trine.results.report import Row, Table
from trine.results.text import aligned, wrapped
from trine.software import Software
from trine.training.memory import rank_memory, shortened
from trine.validation.harness import Errors, UnreadRow, Validation, error_lines, errors_by, grouped, named_rows
from trine.validation.memory_rows import (
    ALLOCATED,
    GOLDEN,
    NEEDED,
    SOURCES,
    MemoryRow,
    load_memory_rows,
    read_memory_rows,
)
from trine.validation.stored import ReplayProgress, read_stored
from trine.validation.training_rows import ULTRASCALE, check_sources
from trine.workload.synthesis.model import written
from trine.workload.synthesis.spec import Transformer

#: Rows of each source in a sample, evenly from its table.
SAMPLE_ROWS = 12
#: Layouts on more nodes do not count: communicators and fabrics decide more there.
COUNTED_NODES = 2
SHOWN = 25
VERDICTS = (FITS, TIGHT, DOES_NOT_FIT)


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedMemory:
    """A row, the modelled memory of the measured ranks, and the verdict over all ranks that decide it.

    cpu_s: CPU time of the prediction.
    """

    row: MemoryRow
    use: MemoryUse | None
    verdict: str
    why_not: str = ""
    cpu_s: float = 0.0

    @property
    def predicted_bytes(self) -> int:
        assert self.use is not None
        counted = {ALLOCATED: self.use.allocated_bytes, NEEDED: self.use.needed_bytes}
        return counted.get(self.row.counter, self.use.reserved_bytes)

    @property
    def error(self) -> float:
        """Predicted / measured - 1."""
        assert self.row.measured_bytes is not None
        return self.predicted_bytes / self.row.measured_bytes - 1

    @property
    def is_compared(self) -> bool:
        return self.use is not None and self.row.measured_bytes is not None

    @property
    def counts(self) -> bool:
        """Whether the error counts: layouts count on 1-2 nodes only, other rows always."""
        return self.is_compared and (self.row.source != ULTRASCALE or self.row.nodes <= COUNTED_NODES)


@dataclass(frozen=True, kw_only=True, repr=False)
class MemoryValidation(Validation):
    """All rows beside their modelled memory."""

    SCHEMA: ClassVar[str] = "validate-memory"

    answers: tuple[ComparedMemory, ...]

    def errors(self) -> list[tuple[str, Errors]]:
        """Return errors by source; layouts on 1-2 nodes and on more nodes are apart."""

        def name(answer: ComparedMemory) -> str:
            return answer.row.source + ("" if answer.counts else f" at more than {COUNTED_NODES} nodes")

        compared = (answer for answer in self.answers if answer.is_compared)
        return list(errors_by(compared, name, lambda answer: answer.error).items())

    def spread(self) -> Errors | None:
        """Return differences of golden runs of one test on two platforms; None without such a test."""
        rows = [a.row for a in self.answers if a.row.source == GOLDEN and a.row.measured_bytes]
        tests = [[row.measured_bytes or 0 for row in test] for test in grouped(rows, lambda row: row.test).values()]
        return Errors.of_some([b / a - 1 for sizes in tests for a, b in combinations(sizes, 2)])

    def confusion(self) -> dict[str, dict[str, int]]:
        """Return verdicts on layouts that ran, and on layouts that have neither a result nor a structural reason."""
        found = {"ran": dict.fromkeys(VERDICTS, 0), "no result": dict.fromkeys(VERDICTS, 0)}
        for answer in self.answers:
            if answer.row.source == ULTRASCALE and answer.verdict in VERDICTS and not answer.row.structural:
                found["ran" if answer.row.measured_bytes else "no result"][answer.verdict] += 1
        return found

    @property
    def under_capacity(self) -> tuple[int, int]:
        """Layouts that ran with a modelled need below the capacity, and all layouts that ran."""
        ran = [a for a in self.answers if a.row.source == ULTRASCALE and a.is_compared]
        return sum(a.use is not None and a.use.needed_bytes <= a.row.capacity_bytes for a in ran), len(ran)

    @property
    def headline(self) -> str:
        """Mean error by source."""
        text = ", ".join(f"{name} {e.mean:.1%}" for name, e in self.errors())
        return f"{'sample: ' if self.is_sample else ''}{len(self.answers)} rows; mean error of peak memory: {text}"

    def paragraphs(self) -> Iterable[Sequence[str]]:
        """Return errors by source, the confusion of verdicts, and the worst rows."""
        spread = self.spread()
        errors = [*self.errors(), *([] if spread is None else [("one test on two platforms", spread)])]
        failed = [f"not predicted: {row.name}: {row.why}" for row in self.unpredicted]
        return error_lines("error of peak memory", errors, 30), self._verdicts(), self._worst(), failed

    @property
    def unpredicted(self) -> tuple[UnreadRow, ...]:
        rows = [a for a in self.answers if a.why_not]
        return (*self.unread, *(UnreadRow(source=a.row.source, name=a.row.name, why=a.why_not) for a in rows))

    def _verdicts(self) -> list[str]:
        found = self.confusion()
        rows: list[tuple[str, ...]] = [("layouts", *VERDICTS, "of")]
        for name, counts in found.items():
            total = sum(counts.values())
            if total:
                rows.append((name, *(f"{counts[v]} ({counts[v] / total:.1%})" for v in VERDICTS), str(total)))
        under, ran = self.under_capacity
        return [*aligned(rows, 30), f"of {ran} layouts that ran, {under} come out under the capacity"] if ran else []

    def _worst(self) -> list[str]:
        worst = sorted((a for a in self.answers if a.counts), key=lambda a: -abs(a.error))[:SHOWN]
        rows = [("worst rows", "counter", "measured", "predicted", "error")]
        rows += [
            (one_line(a.row.name, 55), a.row.counter, format_bytes(a.row.measured_bytes or 0),
             format_bytes(a.predicted_bytes), f"{a.error:+.1%}")
            for a in worst
        ]  # fmt: skip
        unknown = dict.fromkeys(text for a in worst for text in a.row.open)
        notes = [line for text in unknown for line in wrapped("not stated by the source", text)]
        return [*aligned(rows, 30), *notes] if worst else []

    def document(self) -> Row:
        """``errors`` by source, ``spread``, ``confusion`` and ``rows``; ``stored``: origin of a stored report."""
        spread, (under, ran) = self.spread(), self.under_capacity
        return {
            **self.replayed(), "errors": named_rows("source", self.errors()),
            "spread": spread.row() if spread is not None else None, "confusion": self.confusion(),
            "ran_under_capacity": under, "ran": ran, "not_predicted": self.not_predicted(), **self.tables(),
        }  # fmt: skip

    def tables(self) -> dict[str, Table]:
        """Return ``rows`` of :meth:`document`."""
        rows: list[Row] = [
            {"row": a.row.name, "source": a.row.source, "counter": a.row.counter, "nodes": a.row.nodes or None,
             "measured_bytes": a.row.measured_bytes, "predicted_bytes": a.predicted_bytes if a.use else None,
             "error": a.error if a.is_compared else None, "verdict": a.verdict or None,
             "structural": a.row.structural or None, "open": list(a.row.open), "why_not": a.why_not or None}
            for a in self.answers
        ]  # fmt: skip
        return {"rows": rows}


def validate_memory(
    *, sample: bool = False, sources: Sequence[str] | None = None, progress: Callable[[int, int], None] | None = None
) -> MemoryValidation:
    """Model the peak memory of all bundled rows; ``sample``: of some of each source.

    progress: called with the work done and all work, in milliseconds of CPU time. Raises InputError for an unknown
    source.
    """
    check_sources(sources, SOURCES)
    rows = [row for source in sources or SOURCES for row in _drawn(load_memory_rows(source), sample)]
    asked, found, work = ModelledMemory(), [], ReplayProgress("memory", (row.name for row in rows), progress)
    for row in rows:
        began = time.process_time()
        found.append(replace(asked.compared(row), cpu_s=time.process_time() - began))
        work(row.name)
    unread = [row for source in sources or SOURCES for row in read_memory_rows(source)[1]]
    return MemoryValidation(answers=tuple(found), is_sample=sample, unread=tuple(unread))


def load_stored_memory() -> MemoryValidation:
    """Return the stored report of all rows, without modelling them again."""
    origin, content = read_stored("memory")
    rows = {row.name: row for source in SOURCES for row in load_memory_rows(source)}
    answers = tuple(
        ComparedMemory(
            row=rows[one["row"]], use=one["use"] and MemoryUse(**one["use"]), verdict=one["verdict"],
            why_not=one["why_not"], cpu_s=one["cpu_s"],
        )
        for one in content["rows"]
        if one["row"] in rows
    )  # fmt: skip
    unread = tuple(row for source in SOURCES for row in read_memory_rows(source)[1])
    return MemoryValidation(answers=answers, unread=unread, stored=origin)


def _drawn(rows: Sequence[MemoryRow], sample: bool) -> Sequence[MemoryRow]:
    if not sample:
        return rows
    near = [row for row in rows if not row.structural and (row.source != ULTRASCALE or row.nodes <= COUNTED_NODES)]
    return near[:: max(len(near) // SAMPLE_ROWS, 1)]


class ModelledMemory:
    """Modelled peaks; layouts with the same memory are modelled once."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], MemoryUse] = {}
        self._workloads: dict[tuple[str, str], Workload] = {}

    def compared(self, row: MemoryRow) -> ComparedMemory:
        """Return the row beside its modelled memory, or with the reason for having none."""
        if row.structural:
            return ComparedMemory(row=row, use=None, verdict="", why_not="")
        try:
            use = self._largest(row, row.stages)
            ends = () if row.source != ULTRASCALE else (row.plan.pp - 1,)
            deciding = [use, self._largest(row, ends)] if ends and ends != row.stages else [use]
        except TrineError as error:
            return ComparedMemory(row=row, use=None, verdict="", why_not=str(error))
        worst = max((one.verdict for one in deciding), key=lambda v: VERDICTS.index(v) if v in VERDICTS else -1)
        return ComparedMemory(row=row, use=use, verdict=worst)

    def _largest(self, row: MemoryRow, stages: Iterable[int]) -> MemoryUse:
        return max((self._use(row, stage) for stage in stages), key=lambda use: use.needed_bytes)

    def _use(self, row: MemoryRow, stage: int) -> MemoryUse:
        plan = plain(row.plan)
        key = (repr(row.model), row.software.model_dump_json(), shortened(plan, 1), stage, row.capacity_bytes)
        if key not in self._known:
            workload = self._workload(row.model, row.software)
            uses = rank_memory(workload, plan, row.software, stages=[stage], capacity_bytes=row.capacity_bytes)
            self._known[key] = uses[0].use
        return self._known[key]

    def _workload(self, model: Transformer, software: Software) -> Workload:
        key = (repr(model), software.operators.model_dump_json())
        if key not in self._workloads:
            self._workloads[key] = written(model, software=software)
        return self._workloads[key]


def plain(plan: Plan) -> Plan:
    """Return the plan with at most two replicas if it has no sharding: more replicas need the same memory."""
    return replace(plan, dp=2) if plan.dp > 2 and plan.sharding == "none" else plan
