"""Work of one process of a search: it loads the job once, then probes forms of parallelism and simulates layouts.

Every task carries the pickled job, so that any :class:`concurrent.futures.Executor` works, also on other machines.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from trine.common.collector import without_collector
from trine.common.observer import unobserved
from trine.common.units import PS_PER_S
from trine.common.work_reports import doing
from trine.errors import InputError
from trine.graph.workload import Workload
from trine.parallel.plan import Plan
from trine.results.headline import ends_ps, mfu
from trine.search.probe import LayerCosts, Probe, with_layers
from trine.search.words import plan_words
from trine.training.options import SimulateOptions

if TYPE_CHECKING:
    from trine.results import Result


@dataclass(frozen=True, kw_only=True)
class SearchJob:
    """The inputs that all layouts of a search share. with_power: outcomes have the power of the GPUs."""

    workload: Workload
    options: SimulateOptions
    gpus: int
    with_power: bool = False

    @cached_property
    def probe(self) -> Probe:
        """The writer of three-layer programs."""
        return Probe(self.workload, self.options, self.gpus)

    def short(self, layers: int) -> Workload:
        """Return the job's model with another number of layers."""
        if layers not in self._short:
            recipe: Any = self.workload.recipe
            self._short[layers] = with_layers(recipe, layers)
        return self._short[layers]

    @cached_property
    def _short(self) -> dict[int, Workload]:
        return {}

    def __getstate__(self) -> dict[str, Any]:
        names = ("workload", "options", "gpus", "with_power")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Result of one layout. Times in ps, of the slowest rank; memory in bytes, of the fullest.

    refused: why the layout cannot run; all numbers are then 0. communication: transfer time of collectives by axes.
    mean_w: power of all GPUs, None if unknown or not asked for. is_estimated: by the screen, without a simulation: no
    likely range, no parts of the step, no communication.
    """

    step_ps: int = 0
    low_ps: int | None = None
    high_ps: int | None = None
    tokens: int | None = None
    samples: int = 0
    mfu: float | None = None
    precision: str | None = None
    compute_ps: int = 0
    exposed_ps: int = 0
    bubble_ps: int = 0
    idle_ps: int = 0
    communication: Mapping[str, int] = field(default_factory=dict)
    memory_bytes: int | None = None
    capacity_bytes: int = 0
    verdict: str = ""
    refused: str = ""
    mean_w: float | None = None
    is_estimated: bool = False

    @property
    def fits(self) -> bool:
        """Whether the layout runs, as far as its memory is known."""
        return not self.refused and self.verdict != "does not fit"

    @property
    def is_tight(self) -> bool:
        """Whether the upper end of the memory's range exceeds the capacity."""
        return self.verdict == "tight"

    def estimated(self, step_ps: int, memory_bytes: int) -> Outcome:
        """Return the outcome of another layout of the same job that fits, from the screen's estimates."""
        mfu = None if self.mfu is None else self.mfu * self.step_ps / step_ps
        return Outcome(
            step_ps=step_ps, memory_bytes=memory_bytes or None, mfu=mfu, tokens=self.tokens, samples=self.samples,
            precision=self.precision, capacity_bytes=self.capacity_bytes, verdict=self.verdict, is_estimated=True,
        )  # fmt: skip


class PackedJob:
    """A pickled job and its hash; a process unpickles each job once."""

    def __init__(self, job: SearchJob) -> None:
        self.content = pickle.dumps(job)
        self.digest = hashlib.sha256(self.content).hexdigest()
        _JOBS[self.digest] = job

    @property
    def needs_script(self) -> bool:
        """Whether the job refers to objects that the caller's script defines."""
        return b"__main__" in self.content

    def job(self) -> SearchJob:
        """Return the job, unpickled on first use in this process."""
        if self.digest not in _JOBS:
            _JOBS.clear()
            _JOBS[self.digest] = pickle.loads(self.content)  # written by this class
        return _JOBS[self.digest]


_JOBS: dict[str, SearchJob] = {}


def probe_all(packed: PackedJob, plans: list[Plan]) -> list[LayerCosts | None]:
    """Return the costs of a layer under each plan; None for a plan that cannot be built."""
    with doing(f"bounds of {len(plans)} form{'s' if len(plans) > 1 else ''} of layouts"):
        return _probe_each(packed, plans)


def _probe_each(packed: PackedJob, plans: list[Plan]) -> list[LayerCosts | None]:
    probe = packed.job().probe
    costs: list[LayerCosts | None] = []
    for plan in plans:
        try:
            costs.append(probe.costs(plan))
        except InputError:
            costs.append(None)
    return costs


def simulate_layout(packed: PackedJob, plan: Plan) -> Outcome:
    """Return the outcome of one layout; a refusal is an outcome, too.

    The garbage collector starts again once the result is freed, so it need not scan it.
    """
    from trine.folding.run import showing_few
    from trine.training import simulate
    from trine.training.times_only import times_only

    job, what = packed.job(), f"layout {plan_words(plan)}"
    try:
        with doing(what), without_collector(), unobserved(), showing_few(), times_only():
            return outcome_of(simulate(job.workload, plan, options=job.options), job.with_power)
    except InputError as error:
        return Outcome(refused=str(error))


def memory_verdict_of(packed: PackedJob, plan: Plan, capacity_bytes: int) -> str:
    """Return the memory verdict of a layout from the programs of its first and last stages, without a simulation.

    Programs of a step take a tenth of its simulation's time. An empty text: no program can be written.
    """
    from trine.parallel.stage import StageBuilder
    from trine.training.facts import memory_facts
    from trine.training.memory import program_use, shortened
    from trine.training.setup import setup_of

    job = packed.job()
    try:
        with doing(f"memory of {plan_words(plan)}"), without_collector(), unobserved():
            setup = setup_of(job.workload, shortened(plan, job.workload.batch), job.options)
            context, facts = setup.job_context(None), memory_facts(setup)
            uses = []
            for stage in sorted({0, plan.pp - 1}):
                program = StageBuilder(context, stage, setup.has_host).build()
                uses.append(program_use(program, facts, stage, capacity_bytes).use)
    except InputError:
        return ""
    return max(uses, key=lambda use: use.needed_bytes).verdict


def outcome_of(result: Result, with_power: bool) -> Outcome:
    """Return the numbers of a result that a search reports.

    with_power: add the power of the GPUs. It needs the busy times of up to 32 ranks, which in a job of 5 million tasks
    takes a third of the simulation's time, and no ranking depends on it.
    """
    energy = result.energy if with_power else None
    row, times, work = result.slowest_row, result.rank_times, result.work
    ends = ends_ps(result) or (None, None)
    use = result.memory_uses[result.fullest_row] if result.memory_uses else None
    communication: dict[str, int] = {}
    for each in result.collectives:
        name = "+".join(each.axes) or "world"
        communication[name] = communication.get(name, 0) + each.transfer_ps
    return Outcome(
        step_ps=result.step_time_ps, low_ps=ends[0], high_ps=ends[1],
        tokens=None if work is None else work.tokens, samples=0 if work is None else work.samples, mfu=mfu(result),
        precision=None if work is None else work.dtype,
        compute_ps=int(times.compute[row]), exposed_ps=int(times.exposed[row]), bubble_ps=int(times.bubble[row]),
        idle_ps=int(times.idle[row]), communication=communication,
        memory_bytes=None if use is None else use.needed_bytes, capacity_bytes=0 if use is None else use.capacity_bytes,
        verdict=result.memory_verdict or "", mean_w=None if energy is None else energy.mean_w,
    )  # fmt: skip


def per_second(amount: float, step_ps: int) -> float:
    """Return a rate per second."""
    return amount * PS_PER_S / step_ps
