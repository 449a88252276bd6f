"""Explain a job's peak memory: the modules that hold it, and the effect of other options.

No simulation runs: trine builds the rank programs for the plan and for each option, as :func:`trine.simulate` would,
and follows their memory in program order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from trine.common.units import format_bytes
from trine.errors import TrineError
from trine.graph.grid import RankGrid
from trine.graph.memory import MEMORY_CATEGORIES
from trine.graph.program import Job, Label, MemoryChange, Phase, RankProgram
from trine.parallel.plan import Plan
from trine.results.columns import Column, Columns, column, to_row
from trine.results.memory import MemoryFacts, MemoryUse, least_headroom
from trine.results.report import Row
from trine.results.snapshot import SnapshotChange, snapshot
from trine.results.text import aligned
from trine.training.memory import in_order, program_uses, recorded_launches, shortened
from trine.training.memory_facts import facts_of
from trine.training.options import SimulateOptions
from trine.training.setup import Setup, setup_of

if TYPE_CHECKING:
    import os
    from typing import Any

    from trine.graph.workload import Workload

HELD = Columns(
    Column(key="module", unit="text", meaning="Module; `layers.*.mlp` stands for `count` modules."),
    Column(key="category", unit="text", meaning="Kind of memory, such as `activations`."),
    Column(key="bytes", unit="bytes", meaning="Size."),
    Column(key="since", unit="text", meaning="Pass that allocated it."),
    Column(key="count", unit="integer", meaning="Modules that the row stands for."),
)  # fmt: skip

#: Number of modules listed; the remaining ones share one row.
SHOWN_MODULES = 12
MODULE_OF_RESIDENT = "stays"


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldMemory:
    """Memory of one category that modules hold at the peak. module: ``layers.*.mlp`` stands for ``count`` modules.
    since: pass that allocated it, such as ``forward, micro-batch 0``."""

    module: str
    category: str
    size_bytes: int = field(metadata=column("bytes"))
    since: str
    count: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class OtherOption:
    """Memory of the worst rank with another option; ``why_not``: the reason if that option is impossible, else ""."""

    option: str
    num_ranks: int
    use: MemoryUse | None
    why_not: str = field(default="", metadata=column(none=""))


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryExplained:
    """Memory of the ranks with the least headroom: their pipeline stage and name, their use, the point of the peak in
    their program (``at``), the modules that hold it, the peak of each phase, and other options."""

    stage: int
    ranks: str
    use: MemoryUse
    at: str
    held: tuple[HeldMemory, ...]
    phases: tuple[tuple[str, int], ...]
    options: tuple[OtherOption, ...]

    def text(self) -> list[str]:
        """Return the lines that the command prints."""
        rows = [("held at the peak by", "what", "bytes", "since")]
        for entry in self.held:
            module = f"{entry.module} ({entry.count} of them)" if entry.count > 1 else entry.module
            rows.append((module, entry.category.replace("_", " "), format_bytes(entry.size_bytes), entry.since))
        peaks = ", ".join(f"{name} {format_bytes(size)}" for name, size in self.phases)
        option_rows = [("with", "ranks", "needs", "change", "verdict")]
        for option in self.options:
            if option.use is None:
                option_rows.append((option.option, str(option.num_ranks), "-", "-", option.why_not[:60]))
            else:
                change = option.use.needed_bytes - self.use.needed_bytes
                option_rows.append(
                    (
                        option.option,
                        str(option.num_ranks),
                        format_bytes(option.use.needed_bytes),
                        f"{'+' if change >= 0 else '-'}{format_bytes(abs(change))}",
                        option.use.verdict,
                    )
                )
        return [
            f"memory of {self.ranks}: {format_bytes(self.use.allocated_bytes)} allocated at the peak, {self.at}",
            f"most in each phase: {peaks}",
            "",
            *aligned(rows, 40),
            "",
            *aligned(option_rows, 40),
        ]

    def document(self) -> Row:
        """Return the explanation as plain data for JSON."""
        option_rows = []
        for option in self.options:
            needed = option.use.needed_bytes if option.use else None
            verdict = option.use.verdict if option.use else None
            option_rows.append(
                {
                    **to_row(option, "option", "num_ranks", "why_not"),
                    "needed_bytes": needed,
                    "verdict": verdict,
                }
            )
        return {
            **to_row(self, "stage", "ranks", "at"),
            **to_row(self.use, "allocated_bytes", "needed_bytes"),
            "held": HELD.rows(self.held),
            "phases": dict(self.phases),
            "options": option_rows,
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class _Programs:
    """Rank programs of a job, with the facts and the setup behind their memory."""

    job: Job
    facts: MemoryFacts
    setup: Setup

    def uses(self) -> list[MemoryUse]:
        """Return the memory use of one rank of each program."""
        return program_uses(self.job, self.facts, self.setup.memory_bytes)

    def stage_of(self, program: int) -> int:
        """Return the pipeline stage of a program."""
        return RankGrid(self.job.axes).coordinate(self.job.program_of.index(program), "pp")


def programs_of(workload: Workload | str | os.PathLike[str], plan: Plan | None, options: SimulateOptions) -> _Programs:
    """Build the rank programs as a simulation would, with only the micro-batches that can change the peak memory.

    Raises InputError and its subclasses, as :func:`trine.simulate` does.
    """
    from trine.parallel.build import build_job

    setup = setup_of(workload, plan, options)
    short_plan = shortened(setup.plan, setup.workload.batch)
    job, _ = build_job(
        setup.workload, short_plan, setup.model, has_host=setup.has_host, host_bytes_per_s=setup.host_bytes_per_s,
        software=setup.software.profile, launch=recorded_launches(setup.workload, setup.software.profile),
        mixed=setup.mixed,
    )  # fmt: skip
    facts = facts_of(setup.software.profile, setup.plan, setup.workload)
    return _Programs(job=job, facts=facts, setup=setup)


def explain_memory(
    workload: Workload | str | os.PathLike[str], plan: Plan | None, options: SimulateOptions
) -> MemoryExplained:
    """Explain the peak memory of the worst rank, and the effect of each other option on it."""
    programs = programs_of(workload, plan, options)
    uses = programs.uses()
    worst = least_headroom(uses)
    program = programs.job.programs[worst]
    changes = in_order(program)
    index = _peak(changes)
    base_plan = replace(programs.setup.plan, sequence_parallel=None if plan is None else plan.sequence_parallel)
    place = _place_text(program.steps[changes[index].step].label, programs.job) if index >= 0 else "before the step"
    further = tuple(
        _with_option(workload, text, (base_plan, changes), options)
        for text, changes in other_plans(base_plan, programs.setup.workload.batch)
    )
    return MemoryExplained(
        stage=programs.stage_of(worst),
        ranks=program.name,
        use=uses[worst],
        at=place,
        held=tuple(_peak_rows(program, changes[: index + 1], programs.job)),
        phases=tuple(_phases(program, changes)),
        options=further,
    )


def memory_snapshot(
    workload: Workload | str | os.PathLike[str], plan: Plan | None, options: SimulateOptions
) -> dict[str, Any]:
    """Return an allocator snapshot for a rank of the worst stage; see :mod:`trine.results.snapshot`."""
    programs = programs_of(workload, plan, options)
    program = programs.job.programs[least_headroom(programs.uses())]
    changes = [
        SnapshotChange(change.delta_bytes, change.block, _module(label, programs.job, change.category), _pass(label))
        for change in in_order(program)
        if change.block >= 0
        for label in (program.steps[change.step].label,)
    ]
    resident = list(zip(MEMORY_CATEGORIES, program.resident_bytes, strict=False))
    return snapshot(changes, resident, programs.facts.rounding_bytes)


# -- the peak ----------------------------------------------------------------------------------------------------------


def _peak(changes: Sequence[MemoryChange]) -> int:
    """Return the index of the change that makes the peak, or -1 if the peak is before the step."""
    allocated, peak, index = 0, 0, -1
    for i, change in enumerate(changes):
        allocated += change.delta_bytes
        if allocated > peak:
            peak, index = allocated, i
    return index


def _peak_rows(program: RankProgram, changes: Sequence[MemoryChange], job: Job) -> Iterator[HeldMemory]:
    """Yield the memory held after ``changes``, largest first; small entries share the last row."""
    entries: dict[tuple[str, str, str], dict[str, int]] = {
        (MODULE_OF_RESIDENT, name, "before the step"): {name: size}
        for name, size in zip(MEMORY_CATEGORIES, program.resident_bytes, strict=False)
        if size
    }
    alive = {change.block: change for change in changes if change.delta_bytes > 0 and change.block >= 0}
    for change in changes:
        if change.delta_bytes < 0:
            alive.pop(change.block, None)
    for change in alive.values():
        label = program.steps[change.step].label
        module = _module(label, job, change.category)
        pattern_parts = []
        for part in module.split("."):
            pattern_parts.append("*" if part.isdigit() else part)
        pattern = ".".join(pattern_parts)
        sizes = entries.setdefault((pattern, MEMORY_CATEGORIES[change.category], _pass(label)), {})
        sizes[module] = sizes.get(module, 0) + change.delta_bytes
    rows = sorted(entries.items(), key=lambda item: (-sum(item[1].values()), item[0]))
    for (pattern, category, since), sizes in rows[:SHOWN_MODULES]:
        name = pattern if len(sizes) > 1 else next(iter(sizes))
        yield HeldMemory(
            module=name, category=category, size_bytes=sum(sizes.values()), since=since, count=len(sizes)
        )  # fmt: skip
    remainder = rows[SHOWN_MODULES:]
    if remainder:
        size = sum(sum(sizes.values()) for _, sizes in remainder)
        yield HeldMemory(module=f"{len(remainder)} more", category="activations", size_bytes=size, since="any pass")


def _phases(program: RankProgram, changes: Sequence[MemoryChange]) -> Iterator[tuple[str, int]]:
    """Yield the peak memory of each phase."""
    allocated = sum(program.resident_bytes)
    peaks: dict[str, int] = {}
    for change in changes:
        allocated += change.delta_bytes
        name = Phase(program.steps[change.step].label.phase).name.lower()
        peaks[name] = max(peaks.get(name, 0), allocated)
    yield from peaks.items()


def _module(label: Label, job: Job, category: int) -> str:
    """Return the layer of a step, or its block of layers (``layers.3``)."""
    name = job.layer_names[label.layer] if label.layer >= 0 else ""
    parts = name.split(".")
    if len(parts) > 2 and parts[1].isdigit():
        return ".".join(parts[:3])
    return name or MEMORY_CATEGORIES[category].replace("_", " ")


def _pass(label: Label) -> str:
    text = Phase(label.phase).name.lower()
    return f"{text}, micro-batch {label.microbatch}" if label.microbatch >= 0 else text


def _place_text(label: Label, job: Job) -> str:
    name = job.layer_names[label.layer] if label.layer >= 0 else "communication"
    return f"in {_pass(label)}, at {name}"


# -- other options -----------------------------------------------------------------------------------------------------


def other_plans(plan: Plan, batch: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield other options of a plan, each with the fields it changes; the global batch stays the same.

    batch: samples per replica if the plan does not set it.
    """
    batch = plan.batch or batch
    if plan.dp > 1 and plan.data == "ddp":
        for sharding in ("zero1", "zero2", "fsdp"):
            if sharding != plan.sharding and (plan.sharding, sharding) != ("zero2", "zero1"):
                yield f"sharding {sharding}", {"sharding": sharding}
    for recompute in ("selective", "full"):
        if recompute != plan.recompute:
            yield f"recompute {recompute}", {"recompute": recompute, "recompute_layers": None}
    size = plan.micro_batch or batch
    if size > 1:
        yield f"micro-batch {size // 2}", {"batch": batch, "micro_batch": size // 2}
    halved: dict[str, Any] = {"dp": plan.dp // 2, "batch": 2 * batch} if plan.dp % 2 == 0 else {}
    if halved.get("dp") == 1:
        halved["sharding"] = "none"
    keeps = {"micro_batch": size, "cuts": (), **halved}
    yield f"tp {2 * plan.tp}", {"tp": 2 * plan.tp, **keeps}
    yield f"pp {2 * plan.pp}", {"pp": 2 * plan.pp, **keeps, **({"schedule": "1f1b"} if plan.pp == 1 else {})}
    for offload in ("activations", "optimizer"):
        if offload != plan.offload:
            yield f"offload {offload}", {"offload": offload}


def _with_option(
    workload: Workload | str | os.PathLike[str], text: str, trial: tuple[Plan, dict[str, Any]], options: SimulateOptions
) -> OtherOption:
    plan, changes = trial
    ranks = plan.num_ranks
    try:
        changed = replace(plan, **changes)
        ranks = changed.num_ranks
        programs = programs_of(workload, changed, replace(options, warnings=()))
        uses = programs.uses()
        use = uses[least_headroom(uses)]
    except TrineError as error:
        return OtherOption(option=text, num_ranks=ranks, use=None, why_not=str(error))
    return OtherOption(option=text, num_ranks=ranks, use=use)
