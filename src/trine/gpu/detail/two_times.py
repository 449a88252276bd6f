"""The collective of a zoom at both levels: its two times, their difference by cause, and the effect on the step."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from trine.collectives.options import AUTO, CollectiveTime
from trine.common.arguments import takes
from trine.common.evidence import Evidence
from trine.common.units import format_bytes, format_time
from trine.errors import InputError
from trine.gpu.collective.extension import ExtendedTime
from trine.gpu.collective.options import LoadStoreOptions
from trine.gpu.collective.result import PARTS
from trine.gpu.collective.runs import LoadStoreRow, LoadStoreRuns
from trine.gpu.collective.time_split import LAUNCH, LINKS, split
from trine.gpu.collective.two_levels import summed_parts
from trine.gpu.detail.choice import of_rank
from trine.gpu.detail.detail import KernelDetail, detailed_kernel, simulated_step
from trine.gpu.detail.long import LongRow, row_of_long, run_long
from trine.gpu.detail.zoom import ZoomChoice, choose_zoom
from trine.gpu.kernels.build import has_kernel
from trine.gpu.kernels.options import PROTOCOLS
from trine.graph.grid import RankGrid
from trine.graph.workload import Workload
from trine.parallel.plan import Plan
from trine.results import Result
from trine.results.report import Report, Row, Table, seconds
from trine.results.text import aligned, wrapped
from trine.training.options import SimulateOptions, observed
from trine.training.setup import Setup, costs_on

#: Above this size the load-store time is not split further, because each part needs a run of its own.
SPLIT_BYTES = 8 << 20
IN_THE_STEP, FACTOR, REST, ALGORITHM, LATE = "in the step", "software profile", "rest", "algorithm", "late ranks"
_ESTIMATE = "estimated: each such collective changes by the same time, of which the exposed share counts"


@dataclass(frozen=True, kw_only=True, slots=True)
class CauseRow:
    """A part of the difference load-store - operator level, in ps, with its meaning."""

    name: str
    time_ps: int
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class StepEffect:
    """What the difference would do to the step. count: collectives of this kind, axis, size and group on the rank.

    exposed_share: exposed communication of the axis / time of its collectives, at most 1. change_ps: of the step.
    """

    count: int
    exposed_share: float
    step_ps: int
    change_ps: int


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ZoomResult(Report):
    """One collective of a step at both levels.

    detail: the collective load by load, or its first part. extension: from that part to the whole message; None if the
    whole one was run. formula: the operator level's answer for the collective alone; None without a library's formula.
    same: the kernel compared with the formula, alone, with all ranks arriving together: by the operator level's
    algorithm, if that has a kernel. same_extension: of its time, as extension. causes: add up to the difference of the
    two times.
    """

    SCHEMA: ClassVar[str] = "zoom"

    choice: ZoomChoice
    detail: KernelDetail
    extension: ExtendedTime | None
    formula: CollectiveTime | None
    same: CollectiveTime
    same_extension: ExtendedTime | None
    causes: tuple[CauseRow, ...]
    effect: StepEffect

    @property
    def operator_ps(self) -> int:
        """Time at the operator level, from the arrival of the last rank to the end on the rank."""
        return self.detail.operator_after_last_ps

    @property
    def loadstore_ps(self) -> int:
        """Time at the load-store level, from the arrival of the last rank to the end on the rank."""
        return self.detail.after_last_ps if self.extension is None else self.extension.time_ps

    @property
    def loadstore_with_wait_ps(self) -> int:
        """Time at the load-store level, from the arrival of the rank itself."""
        return self.loadstore_ps + self.detail.time_ps - self.detail.after_last_ps

    @property
    def difference_ps(self) -> int:
        """Load-store level - operator level."""
        return self.loadstore_ps - self.operator_ps

    @property
    def range_ps(self) -> tuple[int, int] | None:
        """The operator level's likely range; None without a library's formula."""
        return None if self.formula is None else (self.formula.low_ps, self.formula.high_ps)

    @property
    def is_inside(self) -> bool | None:
        """Whether the load-store time lies in the operator level's likely range; None without a range."""
        if self.range_ps is None:
            return None
        low_ps, high_ps = self.range_ps
        return low_ps <= self.loadstore_ps <= high_ps

    @property
    def main_cause(self) -> CauseRow:
        """The largest cause in the direction of the difference."""
        direction = 1 if self.difference_ps >= 0 else -1
        return max(self.causes, key=lambda cause: cause.time_ps * direction)

    @property
    def verdict(self) -> str:
        """Whether the levels agree within the likely range, or the reason that they do not."""
        if self.range_ps is None:
            return "the operator level gives no range: these links have no library's formula"
        low, high = map(format_time, self.range_ps)
        if self.is_inside:
            return f"the load-store time lies in the operator level's likely range, {low} to {high}"
        same = self.same
        name = f"{same.algorithm}/{same.protocol}"
        is_other = name != f"{self.detail.algorithm}/{self.detail.protocol}"
        alone = f" (by {name}: {format_time(same.time_ps)})" if is_other else ""
        side = "above" if self.loadstore_ps > self.range_ps[1] else "below"
        cause = self.main_cause
        main = f"mainly {cause.name} ({_signed(cause.time_ps)})"
        return f"the load-store time{alone} is {side} the operator level's likely range, {low} to {high}; {main}"

    # Views

    @property
    def headline(self) -> str:
        what = self.choice.what
        change = f"{_signed(self.effect.change_ps)} a step"
        return (
            f"{self.choice.word}: {what.kind} of {what.layer or what.axis} on rank {self.choice.rank}: "
            f"{format_time(self.operator_ps)} at the operator level, {format_time(self.loadstore_ps)} load by load "
            f"({self.detail.algorithm}); {change} if all took that"
        )

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        change = Evidence("change of the step", "modelled", _ESTIMATE)
        if self.extension is None:
            return (*self.detail.evidence, change)
        return (*self.detail.evidence, Evidence("time load by load", "modelled", self.extension.words), change)

    @property
    def notes(self) -> tuple[str, ...]:
        return self.detail.notes

    def details(self) -> str:
        """Return both times, the difference by cause, and the effect on the step."""
        effect, what = self.effect, self.choice.what
        largest = f"the longest of {self.choice.matches} on rank {self.choice.rank}, the slowest"
        lines = [*wrapped("zoom", f"{what.words}; {largest}"), *aligned(self._level_lines(), 1)]
        if self.extension is not None:
            lines += wrapped("load by load", self.extension.words)
        if self.same_extension is not None:
            lines += wrapped("load by load, alone", self.same_extension.words)
        lines.append("")
        lines += aligned([("difference by cause", "time"), *self._cause_lines()], 1)
        lines += [line for cause in self.causes if cause.time_ps for line in wrapped(cause.name, cause.why)]
        lines += ["", *wrapped("levels", self.verdict), *wrapped("replay", self._replay_words())]
        share = 100 * effect.change_ps / effect.step_ps if effect.step_ps else 0.0
        plural = "s" if effect.count > 1 else ""
        lines += wrapped(
            "step",
            f"{effect.count:,} such collective{plural}, {100 * effect.exposed_share:.0f} % of {what.axis} exposed: "
            f"{_signed(effect.change_ps)} ({share:+.2f} %) of {format_time(effect.step_ps)} if each took the "
            f"load-store time ({_ESTIMATE})",
        )
        whole = "" if self.extension is None else " (it runs the whole message, which takes long)"
        lines += wrapped("next", f"--detail {self.choice.detail_words} shows the waits and the peers{whole}")
        return "\n".join(line.rstrip() for line in lines)

    def summary(self) -> str:
        """Return the same text as :meth:`details`; it is short."""
        return self.details()

    def _level_lines(self) -> list[tuple[str, ...]]:
        detail, formula, same = self.detail, self.formula, self.same
        algorithm = self.choice.what.algorithm if formula is None else f"{formula.algorithm}/{formula.protocol}"
        return [
            ("after the last rank comes", "time", "algorithm", "with the wait for it"),
            ("operator level", format_time(self.operator_ps), algorithm, format_time(detail.operator_ps)),
            (
                "load by load", format_time(self.loadstore_ps), f"{detail.algorithm}/{detail.protocol}",
                format_time(self.loadstore_with_wait_ps),
            ),
            ("load by load, alone", format_time(same.time_ps), f"{same.algorithm}/{same.protocol}", ""),
        ]  # fmt: skip

    def _replay_words(self) -> str:
        kernel, rank = self.detail.kernel, self.choice.rank
        peers = len(self.detail.chosen.group) - 1
        how = (
            f"alone, with the writes of its {peers} peer{'s' if peers > 1 else ''}"
            if kernel.inside.num_replayed
            else "in the run of all ranks"
        )
        wait = "" if kernel.wait_ps is None else f", a wavefront waits {format_time(kernel.wait_ps)} for flags"
        part = "" if self.extension is None else f", {format_bytes(self.detail.chosen.what.size_bytes)} of the message"
        return f"rank {rank} {how}{part}: {format_time(self.detail.after_last_ps)}{wait}"

    def _cause_lines(self) -> list[tuple[str, str]]:
        rows = [(cause.name, _signed(cause.time_ps)) for cause in self.causes if cause.time_ps]
        return [*rows, ("together", _signed(self.difference_ps))]

    def document(self) -> Row:
        """Return the result as plain data (docs/reference/detail-json.md)."""
        effect = self.effect
        low_ps, high_ps = self.range_ps or (None, None)
        return {
            "word": self.choice.word,
            "matches": self.choice.matches,
            "detail_option": self.choice.detail_words,
            "operator_s": seconds(self.operator_ps),
            "operator_low_s": None if low_ps is None else seconds(low_ps),
            "operator_high_s": None if high_ps is None else seconds(high_ps),
            "operator_algorithm": None if self.formula is None else self.formula.algorithm,
            "operator_protocol": None if self.formula is None else self.formula.protocol,
            "loadstore_s": seconds(self.loadstore_ps),
            "loadstore_algorithm": self.detail.algorithm,
            "loadstore_protocol": self.detail.protocol,
            "same_s": seconds(self.same.time_ps),
            "same_algorithm": self.same.algorithm,
            "same_protocol": self.same.protocol,
            "same_extension": None if self.same_extension is None else self.same_extension.words,
            "extension": self._extension_row(),
            "difference_s": seconds(self.difference_ps),
            "inside_range": self.is_inside,
            "verdict": self.verdict,
            "causes": self._cause_rows(),
            "step": {
                "count": effect.count, "exposed_share": effect.exposed_share, "step_time_s": seconds(effect.step_ps),
                "change_s": seconds(effect.change_ps), "how": _ESTIMATE,
            },
            "detail": self.detail.document(),
        }  # fmt: skip

    def _extension_row(self) -> Row | None:
        if self.extension is None:
            return None
        parts = [{"bytes": part.size_bytes, "time_s": seconds(part.time_ps)} for part in self.extension.parts]
        return {"words": self.extension.words, "rates_differ_by": self.extension.difference, "parts": parts}

    def tables(self) -> dict[str, Table]:
        """Return ``causes``, and the tables of the detail."""
        return {"causes": self._cause_rows(), **self.detail.tables()}

    def _cause_rows(self) -> list[Row]:
        return [{"name": cause.name, "time_s": seconds(cause.time_ps), "why": cause.why} for cause in self.causes]


def _signed(time_ps: int) -> str:
    return f"{'-' if time_ps < 0 else '+'}{format_time(abs(time_ps))}"


@takes(SimulateOptions)
@observed
def zoom(
    workload: Workload | str | os.PathLike[str],
    plan: Plan,
    word: str,
    result: Result | None = None,
    *,
    options: SimulateOptions,
) -> ZoomResult:
    """Simulate one collective of a step at the load-store level, and compare it with the operator level.

    Parameters
    ----------
    workload, plan, options: the step, as in :func:`trine.simulate`. word: ``largest`` or a name
        (:func:`trine.gpu.detail.zoom.choose_zoom`). result: the step's result, if known.

    The rank is replayed with its peers' writes from the step; for the causes, the kernel also runs with all ranks
    arriving together, and up to ``SPLIT_BYTES`` without one limit after the other. Of a long message the first parts
    are run, and the time is extended (:mod:`trine.gpu.collective.extension`).

    Raises
    ------
    InputError, SpecError, PlanError: as :func:`trine.gpu.detail.detail.kernel_detail`, and for an unknown word.
    KeyboardInterrupt: on Ctrl-C before the end.
    """
    setup, machine, result = simulated_step(workload, plan, result, options, "a zoom is into")
    choice = choose_zoom(result, RankGrid(setup.plan.axes), word)
    long = run_long(detailed_kernel(setup, machine, result, choice.options))
    detail, loadstore_ps = long.detail, long.after_last_ps
    places = [int(setup.places[rank]) for rank in detail.chosen.group]
    formula = _formula(setup, choice, places)
    runs = LoadStoreRuns(choice.what.kind, machine, places)
    same, causes = _Causes(detail, choice.what.size_bytes, loadstore_ps, formula, runs).all()
    time = same.row.time
    effect = _effect(result, choice, loadstore_ps - detail.operator_after_last_ps)
    return ZoomResult(
        choice=choice,
        detail=detail,
        extension=long.extension,
        formula=formula,
        same=time,
        same_extension=same.extension,
        causes=causes,
        effect=effect,
    )


def _formula(setup: Setup, choice: ZoomChoice, places: list[int]) -> CollectiveTime | None:
    """Return the operator level's answer for the collective alone, with the software profile's factor."""
    profile = setup.software.profile
    costs = costs_on(
        setup.options.collective_costs, setup.machine, network=setup.network,
        factors=(1.0, 1.0) if profile is None else profile.communication_factors(),
    )  # fmt: skip
    if costs is None:
        return None
    found = costs.predicted(choice.what.kind, choice.what.size_bytes, np.array([places], np.int64))
    if not found:
        return None
    (time,) = found
    own_ps = sum(part.time_ps for part in time.parts) or time.time_ps
    factor = time.time_ps / own_ps if own_ps else 1.0
    return replace(time, low_ps=round(time.low_ps * factor), high_ps=round(time.high_ps * factor))


@dataclass(frozen=True, slots=True)
class _Causes:
    """The way from the operator level's time to the load-store time, one change after the other."""

    detail: KernelDetail
    size_bytes: int
    loadstore_ps: int
    formula: CollectiveTime | None
    runs: LoadStoreRuns

    def all(self) -> tuple[LongRow, tuple[CauseRow, ...]]:
        """Return the row of the compared kernel, alone, and the causes; these add up to the difference."""
        same_runs, why = self._same_algorithm()
        compared = row_of_long(same_runs, self.size_bytes)
        same = compared.row
        fastest_ps = self._fastest_ps(same)
        causes = [self._in_the_step(), *self._of_parts(same_runs, same)]
        causes.append(CauseRow(name=ALGORITHM, time_ps=fastest_ps - same.time.time_ps, why=why))
        late_ps = self.loadstore_ps - fastest_ps
        late = "early ranks have begun when the last one comes; and this rank may end before others do"
        return compared, (*causes, CauseRow(name=LATE, time_ps=late_ps, why=late))

    @property
    def _alone_ps(self) -> int:
        """Time at the operator level, alone and with all ranks arriving together."""
        return self.detail.operator_after_last_ps if self.formula is None else self.formula.time_ps

    def _in_the_step(self) -> CauseRow:
        why = "the operator level's time alone, without the step's other traffic, late ranks and CPU launches"
        return CauseRow(name=IN_THE_STEP, time_ps=self._alone_ps - self.detail.operator_after_last_ps, why=why)

    def _fastest_ps(self, same: LoadStoreRow) -> int:
        """Return the time of the detail's kernel alone, with all ranks arriving together.

        Where they do so in the step too, this is the detail itself, which saves a run.
        """
        if (same.time.algorithm, same.time.protocol) == (self.detail.algorithm, self.detail.protocol):
            return same.time.time_ps
        starts_ps = self.detail.chosen.start_ps
        if (starts_ps == starts_ps[0]).all():
            return self.loadstore_ps
        own = LoadStoreOptions(algorithm=self.detail.algorithm, protocol=self.detail.protocol)
        return row_of_long(self._with(own), self.size_bytes).row.time.time_ps

    def _same_algorithm(self) -> tuple[LoadStoreRuns, str]:
        """Return runs by the operator level's algorithm, or else by the detail's, and what the difference means.

        The protocol is the operator level's too, if the kernel has it.
        """
        detail, runs, formula = self.detail, self.runs, self.formula
        own = LoadStoreOptions(algorithm=detail.algorithm, protocol=detail.protocol)
        if formula is None:
            return self._with(own), "no library's choice to compare with"
        wanted = formula.algorithm
        if not has_kernel(runs.op, wanted):
            return self._with(own), f"no kernel for {wanted}: {detail.algorithm} stands for it"
        protocols = (formula.protocol, AUTO) if formula.protocol in PROTOCOLS else (AUTO,)
        problems = []
        for protocol in protocols:
            try:
                found = self._with(LoadStoreOptions(algorithm=wanted, protocol=protocol))
                found.programs.program(found.programs.names(self.size_bytes)[0], self.size_bytes)
            except InputError as problem:
                problems.append(str(problem))
                continue
            names = f"{detail.algorithm}/{detail.protocol}", f"{wanted}/{found.programs.protocol}"
            same = (
                "the same at both levels" if names[0] == names[1] else f"{names[0]} instead of {names[1]}, load by load"
            )
            return found, same
        return self._with(own), f"{wanted} is impossible load by load: {problems[-1]}"

    def _with(self, options: LoadStoreOptions) -> LoadStoreRuns:
        return LoadStoreRuns(self.runs.op, self.runs.cluster, self.runs.ranks, options)

    def _of_parts(self, runs: LoadStoreRuns, row: LoadStoreRow) -> Iterator[CauseRow]:
        """Yield the difference of each part of the time of one algorithm; parts add up to row - alone."""
        operator = self._operator_parts()
        loadstore = _loadstore_parts(runs, row)
        names = [name for name in (*PARTS, FACTOR, REST) if name in operator or name in loadstore]
        if REST in loadstore:  # not split: everything but the launch is compared as one
            names = [LAUNCH, REST]
            rest = [value for name, value in operator.items() if name != LAUNCH]
            operator = {
                LAUNCH: operator.get(LAUNCH, (0, "")),
                REST: (sum(ps for ps, _ in rest), "; ".join(why for _, why in rest if why)),
            }
        for name in names:
            operator_ps, operator_why = operator.get(name, (0, ""))
            loadstore_ps, loadstore_why = loadstore.get(name, (0, ""))
            sides = [
                f"{level} {format_time(time_ps)}{f' ({why})' if why else ''}"
                for level, time_ps, why in (
                    ("operator level", operator_ps, operator_why), ("load by load", loadstore_ps, loadstore_why),
                )
            ]  # fmt: skip
            yield CauseRow(name=name, time_ps=loadstore_ps - operator_ps, why="; ".join(sides))

    def _operator_parts(self) -> dict[str, tuple[int, str]]:
        if self.formula is None or not self.formula.parts:
            return {LINKS: (self._alone_ps, "the schedule's messages on the links")}
        parts = summed_parts(self.formula.parts)
        factor_ps = self.formula.time_ps - sum(time_ps for time_ps, _ in parts.values())
        if factor_ps:
            parts[FACTOR] = factor_ps, "its factor on collectives"
        return parts


def _loadstore_parts(runs: LoadStoreRuns, row: LoadStoreRow) -> Mapping[str, tuple[int, str]]:
    """Return the parts of a load-store time: name -> (ps, reason). Above SPLIT_BYTES: launch and rest."""
    if row.time.size_bytes <= SPLIT_BYTES:
        found = split(runs, row)
        if found.finished:
            return {name: (time_ps, why) for name, time_ps, why in found.parts}
    launch_ps = runs.model.launch_ps
    limit = f"bound by {row.time.limit}" if row.time.limit else ""
    return {LAUNCH: (launch_ps, "before the first workgroup"), REST: (row.time.time_ps - launch_ps, limit)}


def _effect(result: Result, choice: ZoomChoice, difference_ps: int) -> StepEffect:
    """Estimate the effect on the step if all collectives of this kind, axis and size took ``difference_ps`` longer."""
    what, alone = choice.what, result.rank(choice.rank)
    of_step = [one for one in of_rank(alone, 0) if one.step == what.step]
    count, axis_ps = 0, 0
    for one in of_step:
        if one.axis == what.axis:
            axis_ps += one.count * max(0, one.end_ps - one.start_ps)
        if (one.kind, one.axis, one.size_bytes, one.num_ranks) == (
            what.kind, what.axis, what.size_bytes, what.num_ranks,
        ):  # fmt: skip
            count += one.count
    exposed_ps = alone.terms.exposed.get(what.axis, 0)
    share = min(1.0, exposed_ps / axis_ps) if axis_ps else 0.0
    change_ps = round(count * difference_ps * share)
    return StepEffect(count=count, exposed_share=share, step_ps=result.step_time_ps, change_ps=change_ps)
