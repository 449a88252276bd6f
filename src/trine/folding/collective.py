"""One collective simulated with folding: a job with a single program and a single step, run once per class of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack

import numpy as np

from trine.cluster.cluster import Cluster
from trine.cluster.parts import SCALE_OUT
from trine.collectives.run import DomainSteps, MessageOptions, MessageTotals, run_schedule, wire_bytes
from trine.collectives.schedule import ExpandedSchedule, Schedule, symmetry_of
from trine.common.arrays import Int64
from trine.common.observer import ignore, observing
from trine.engine.circuit_model import network_on
from trine.engine.models import network_model, why_unfolded
from trine.errors import SimulationError, TrineError
from trine.folding.extract import extract_patterns
from trine.folding.stages import Folder
from trine.folding.traffic import link_bytes
from trine.graph.memory import MEMORY_CATEGORIES
from trine.graph.placement import Placement, RouteSoftware
from trine.graph.program import Collective, Job, Label, RankProgram
from trine.graph.taskgraph import TRANSFER

#: Schedules with fewer messages are simulated unfolded, because finding the classes takes longer.
FEW_MESSAGES = 20_000


def run_folded(
    schedule: Schedule | ExpandedSchedule, cluster: Cluster, group: Sequence[int], **options: Unpack[MessageOptions]
) -> MessageTotals:
    """Run a schedule as :func:`trine.collectives.run.run_schedule` does, without single messages; folded if possible.

    Folding needs a declared symmetry, and a network that tells one flow from many. Same parameters and errors.
    """
    folded = _try_folded(schedule, cluster, group, options)
    return run_schedule(schedule, cluster, group, **options) if folded is None else folded


def run_both(
    schedule: Schedule | ExpandedSchedule, cluster: Cluster, group: Sequence[int], **options: Unpack[MessageOptions]
) -> MessageTotals:
    """Run folded (if possible) and unfolded, and raise SimulationError if the results differ."""
    folded, unfolded = _try_folded(schedule, cluster, group, options), run_schedule(schedule, cluster, group, **options)
    for name in ("end_ps", "rank_end_ps", "link_bytes", "num_messages") if folded is not None else ():
        if not np.array_equal(getattr(folded, name), getattr(unfolded, name)):
            raise SimulationError(f"folded and unfolded runs differ in {name}: please report this as a bug of trine")
    return unfolded


def _try_folded(
    schedule: Schedule | ExpandedSchedule, cluster: Cluster, group: Sequence[int], options: MessageOptions
) -> MessageTotals | None:
    """Return the folded run, or None if the ranks cannot be folded; the unfolded run then reports any error."""
    if not isinstance(schedule, Schedule) or not _may_fold(schedule, cluster, group, options["network"]):
        return None
    try:
        return _run_folded(schedule, cluster, group, options)
    except SimulationError:
        raise
    except TrineError:  # no route, one of several paths, too many classes
        return None


def _may_fold(schedule: Schedule, cluster: Cluster, group: Sequence[int], network: str) -> bool:
    if symmetry_of(schedule) is None or schedule.num_switches or schedule.num_ranks != len(group):
        return False
    if len(set(group)) < len(group) or why_unfolded(network_model(network_on(cluster, network))) is not None:
        return False
    first_sends = schedule.sends_of(0, schedule.num_ranks, schedule.num_chunks, schedule.root)
    return len(first_sends.step) * len(group) >= FEW_MESSAGES


def _run_folded(schedule: Schedule, cluster: Cluster, group: Sequence[int], options: MessageOptions) -> MessageTotals:
    placement = _placement(schedule, cluster, group, options["step_ps"])
    job = extract_patterns(_job(schedule), placement.group_costs)
    factor = options["byte_factor"]
    patterns = [replace(pattern, size_bytes=wire_bytes(pattern.size_bytes, factor)) for pattern in job.patterns]
    job = replace(job, patterns=tuple(patterns))
    with observing(on_stage=ignore):
        run = Folder(job=job, placement=placement, network=options["network"]).run()
    ends = run.rank_ends()
    return MessageTotals(
        end_ps=int(ends.max(initial=0)),
        rank_end_ps=ends,
        link_bytes=link_bytes(job, placement, run.table, None),
        link_bytes_per_s=cluster.link_bytes_per_s,
        num_messages=sum(int((pattern.kind == TRANSFER).sum()) * len(pattern.ranks) for pattern in patterns),
    )


def _placement(schedule: Schedule, cluster: Cluster, group: Sequence[int], step_ps: int | DomainSteps) -> Placement:
    software = None
    if isinstance(step_ps, DomainSteps):
        software = RouteSoftware(cluster.link_table.of_class(SCALE_OUT), step_ps.inner_ps, step_ps.outer_ps)
    fixed_ps = step_ps if isinstance(step_ps, int) else 0

    def costs(
        kind: str, size_bytes: int, groups: Int64, algorithm: str | None
    ) -> tuple[np.ndarray, list[tuple[Schedule, int]]]:
        return np.zeros(len(groups), np.int32), [(schedule, fixed_ps)]

    return Placement(devices=np.array(group, np.int64), cluster=cluster, group_costs=costs, software=software)


def _job(schedule: Schedule) -> Job:
    step = Collective(schedule.kind, "group", ("c",), schedule.size_bytes, schedule.root, None, (), Label())
    program = RankProgram(
        name="rank", steps=(step,), memory=(), resident_bytes=(0,) * len(MEMORY_CATEGORIES)
    )  # fmt: skip
    return Job(
        axes=(("group", schedule.num_ranks),), programs=(program,), program_of=(0,) * schedule.num_ranks,
        operator_names=(), layer_names=(),
    )  # fmt: skip
