"""Step times under other common software profiles, estimated from a few layers.

The estimate adds five differences to the simulated step: operator times of a micro-batch and of the optimizer, from
programs of two and three layers; exposed communication and contention of tensor parallelism, from simulations of these
programs, if one profile has userbuffers; the launching thread's waits at pipeline messages; weight gradients of the
head that one profile defers into the drain bubble; and gathers of parameters that one profile exposes. Other contention
and the likely range stay those of the simulated profile.
:func:`differences` is the only entry, so that a better estimate can replace this one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trine.common.observer import unobserved
from trine.common.units import PS_PER_S, format_time
from trine.compute.kinds import family_of, kind_of
from trine.errors import InputError
from trine.graph.program import COMPUTE_STREAM, Compute, Phase
from trine.graph.workload import FORWARD
from trine.parallel.plan import DEFAULT_BUCKETS
from trine.results.columns import Column, Columns
from trine.software.profile import Software, load_software, usual_software

if TYPE_CHECKING:
    from trine.graph.program import Job, RankProgram
    from trine.graph.workload import Workload
    from trine.parallel.job import JobContext
    from trine.parallel.plan import Plan
    from trine.results import Result
    from trine.training.options import SimulateOptions
    from trine.training.setup import Setup

PROFILE = Columns(
    Column(key="software", unit="text", meaning="Profile."),
    Column(key="step_s", unit="s", meaning="Estimated step."),
    Column(key="change", unit="number", meaning="Estimated step / step - 1."),
)  # fmt: skip

#: Smaller differences are not reported.
MIN_DIFFERENCE = 0.05
#: Smaller runs get no estimate: a run of this many events takes about 4 s, and an estimate 0.3 to 0.5 s, or 1 s
#: if one profile has userbuffers. A number of events, not a time, so that an answer does not depend on the machine.
MIN_EVENTS = 300_000
_LAYERS = (2, 3)


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileDifference:
    """Estimated step under another profile. change: relative to the simulated step."""

    software: str
    step_ps: int
    change: float

    @property
    def words(self) -> str:
        return f"with {self.software}: about {format_time(self.step_ps)} ({100 * self.change:+.0f} %)"


def differences(
    workload: Workload | str, plan: Plan, options: SimulateOptions, result: Result
) -> tuple[ProfileDifference, ...]:
    """Return the common profiles whose step differs by more than 5 %.

    None for small runs, of which an estimate would take over 10 % (25 % if one profile has userbuffers).

    workload, plan, options: as of the simulated ``result``.
    """
    from trine.training.setup import setup_of

    events = 0 if result.simulator is None else result.simulator.events
    if not result.step_time_ps or not result.plan.get("is_training") or events < MIN_EVENTS:
        return ()
    found: list[ProfileDifference] = []
    with unobserved():
        options = replace(options, warnings=(), compare=False)
        setup = setup_of(workload, plan, options)
        for other in _common(setup):
            try:
                step_ps = _estimate(setup, plan, other, result)
            except InputError:  # the other software does not run this layout
                continue
            change = step_ps / result.step_time_ps - 1
            if abs(change) > MIN_DIFFERENCE:
                found.append(ProfileDifference(software=other.name, step_ps=step_ps, change=change))
    return tuple(found)


def _common(setup: Setup) -> list[Software]:
    """Return the other common profiles of the job's kind; none if its software is not one of them."""
    from trine.search.probe import can_probe

    own = setup.software.profile
    families = usual_software().common
    if own is None or setup.mixed is not None or setup.plan.ep > 1 or not can_probe(setup.workload):
        return []
    if not any(own.name in (name, *alike) for name, alike in families.items()):
        return []
    return [load_software(name) for name, alike in families.items() if own.name not in (name, *alike)]


def _estimate(setup: Setup, asked: Plan, other: Software, result: Result) -> int:
    """Return the step time under ``other``. Raises InputError if it does not run the layout.

    asked: the plan before the profile fills its open fields.
    """
    own = setup.software.profile
    assert own is not None
    shorts = [[_short(setup, software, number, asked.userbuffers) for number in _LAYERS] for software in (other, own)]
    has_tensor = len({short.plan.userbuffers for pair in shorts for short in pair}) > 1
    other_ps, own_ps = (_operators_ps(setup, pair, has_tensor) for pair in shorts)
    more_ps = other_ps - own_ps
    more_ps += _waits_ps(setup, other, result) - _waits_ps(setup, own, result)
    more_ps += _gathers_ps(other, result) - _gathers_ps(own, result)
    if asked.defer_head_gradient is None:
        more_ps -= _deferred_ps(setup, other, shorts[0][0]) - _deferred_ps(setup, own, shorts[1][0])
    return max(result.step_time_ps + more_ps, 1)


def _operators_ps(setup: Setup, shorts: list[Setup], has_tensor: bool) -> int:
    """Return the operator times of the rank with the loss, under a profile: all micro-batches and the optimizer.

    shorts: of :data:`_LAYERS` layers. has_tensor: add the exposed communication and the contention of tensor
    parallelism, in which the profiles differ.
    """
    plan, layers = setup.plan, int(setup.workload.metadata["layers"])
    count = -(-(plan.batch or setup.workload.batch) // (plan.micro_batch or plan.batch or setup.workload.batch))
    few, more = (_times_of(short, has_tensor) for short in shorts)
    on_rank = layers / plan.pp
    ways = plan.dp * plan.cp if plan.sharding != "none" else 1
    micro_batch, optimizer = (a + (on_rank - _LAYERS[0]) * (b - a) for a, b in zip(few, more, strict=True))
    return round(count * micro_batch + optimizer / ways)


def _short(setup: Setup, software: Software, layers: int, userbuffers: bool | None) -> Setup:
    """Return the job of one micro-batch of a short model in one stage, under a profile."""
    from trine.training.setup import setup_of
    from trine.workload.synthesis.model import ModelRecipe

    recipe = setup.workload.recipe
    assert isinstance(recipe, ModelRecipe)  # can_probe
    workload = replace(recipe, software=software, asked=replace(recipe.asked, layers=layers)).write()
    plan = replace(
        setup.plan, pp=1, dp=1, schedule=None, virtual_stages=1, balance=None, cuts=(), sharding="none",
        shard_ways=None, prefetch=None, reshard=True, batch=setup.plan.micro_batch, replica_batches=(), steps=1,
        sync_every=None, dp_overlap=None, sync="last", offload="none", overlap=None, recompute_layers=None,
        first_bucket_bytes=DEFAULT_BUCKETS[0], bucket_bytes=DEFAULT_BUCKETS[1], userbuffers=userbuffers,
        defer_head_gradient=None,
    )  # fmt: skip
    options = replace(
        setup.options, software=software, loss=None, gradient_dtype=None, cluster=setup.machine, placement=None,
        stragglers=None,
    )  # fmt: skip
    return setup_of(workload, plan, options)


def _deferred_ps(setup: Setup, software: Software, short: Setup) -> int:
    """Return the time of the head's weight gradients that ``software`` moves into the drain bubble of the last stage.

    Backward passes take two thirds of a micro-batch. short: a job of two layers under the profile.
    """
    plan, most = setup.plan, software.plan.get("defer_head_gradient", False)
    if plan.pp == 1 or most is False:
        return 0
    count = -(-(plan.batch or setup.workload.batch) // (plan.micro_batch or plan.batch or setup.workload.batch))
    head = max(op.id for op in short.workload.operators if op.phase == FORWARD and family_of(kind_of(op)) == "linear")
    gradients = [op for op in short.workload.operators if op.forward_id == head and "weight" in op.name]
    work, batch = _context(short).work, short.plan.batch or short.workload.batch
    gradient_ps = sum(work.duration(op, batch)[0] for op in gradients)
    layers, few = int(setup.workload.metadata["layers"]) / (plan.pp * plan.virtual_stages), _LAYERS[0]
    drain_ps = (plan.pp - 1) * layers / few * 2 / 3 * _times_of(short, False)[0]
    return round(min(gradient_ps * min(int(most) or count, count), drain_ps))


def _times_of(short: Setup, has_tensor: bool) -> tuple[int, int]:
    """Return the operator times of one micro-batch, and of the optimizer's operators, of a short model in one stage."""
    program, more_ps = _simulated(short) if has_tensor else (_written(short), 0)
    computes = [s for s in program.steps if isinstance(s, Compute) and s.stream == COMPUTE_STREAM]
    optimizer = sum(step.duration_ps for step in computes if step.label.phase == Phase.OPTIMIZER)
    return sum(step.duration_ps for step in computes) - optimizer + more_ps, optimizer


def _context(short: Setup) -> JobContext:
    from trine.parallel.job import JobContext

    return JobContext(
        short.workload, short.plan, short.model, None, short.software.profile, tensor_times=short.tensor_times()
    )


def _written(short: Setup) -> RankProgram:
    """Return the program of a short model in one stage."""
    from trine.parallel.stage import StageBuilder

    return StageBuilder(_context(short), 0, False).build()


def _simulated(short: Setup) -> tuple[RankProgram, int]:
    """Return the program of a short model in one stage, and the time that communication adds to its operators.

    That is exposed communication and contention.
    """
    from trine.training.run import simulate

    jobs: list[Job] = []
    options = replace(short.options, cpu=False, warnings=(), compare=False, on_job=jobs.append)
    result = simulate(short.workload, short.plan, options=options)
    return jobs[0].programs[0], round(result.exposed_communication_s * PS_PER_S) + result.contention_ps


def _waits_ps(setup: Setup, software: Software, result: Result) -> int:
    """Return the time of messages for which the launching thread waits in each pass of a pipeline."""
    plan = setup.plan
    launch = software.launch if plan.virtual_stages == 1 else software.launch.on_virtual_stages()
    messages = [use for use in result.collectives if use.kind == "send_recv" and use.count]
    if plan.pp == 1 or launch.synchronises not in ("pass", "forward") or not messages:
        return 0
    use = max(messages, key=lambda each: each.transfer_ps)
    count = -(-(plan.batch or setup.workload.batch) // (plan.micro_batch or plan.batch or setup.workload.batch))
    return round(2 * count * plan.virtual_stages * (use.transfer_ps / use.count + launch.message_us * 1e6))


def _gathers_ps(software: Software, result: Result) -> int:
    """Return the time of parameter gathers after the optimizer, which nothing hides."""
    if software.zero.gather_beside != "optimizer" or result.plan.get("sharding") not in ("zero1", "zero2"):
        return 0
    return sum(use.transfer_ps for use in result.collectives if use.kind == "all_gather" and "dp" in use.axes)
