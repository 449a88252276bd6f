"""Total traffic of a job over all ranks, from the patterns alone, and contention of classes for links."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trine.cluster.cluster import Cluster
from trine.common.arrays import Int32, Int64, counted_codes, distinct
from trine.common.units import PS_PER_S
from trine.folding.classes import Partition
from trine.folding.extract import Extraction
from trine.folding.neighbourhood import RouteTable
from trine.folding.pattern import HOSTS, JobPatterns, Pattern
from trine.folding.stages import FoldedRun
from trine.graph.placement import Placement
from trine.graph.program import Label
from trine.graph.taskgraph import TRANSFER, Records
from trine.parallel.template import LABEL_FIELDS

if TYPE_CHECKING:
    from trine.results.link_use import LinkUse
    from trine.results.repeats import RepeatedSteps, Repeats

_MICROBATCH, _PHASE = LABEL_FIELDS.index("microbatch"), LABEL_FIELDS.index("phase")


def link_bytes(
    job: JobPatterns, placement: Placement, table: RouteTable, step: int | None, repeats: Repeats | None = None
) -> Int64:
    """Return the bytes that each link of the cluster carries in a step (None: in all): int64[links].

    repeats: of the run, if it stands for a longer one.
    """
    carried = np.zeros(len(placement.link_bytes_per_s), np.int64)
    for pattern in job.patterns:
        for role, size in _bytes_by_role(pattern, step, repeats).items():
            np.add.at(carried, table.links_to(pattern, role), size)
    return carried


def link_uses(carried: Int64, placement: Placement, step_ps: int) -> tuple[LinkUse, ...]:
    """Return one row for all links of equal rate, tier and load; ``carried``: :func:`link_bytes`."""
    used = np.flatnonzero(carried)
    rates = placement.link_bytes_per_s[used]
    tiers = placement.cluster.link_tiers if isinstance(placement.cluster, Cluster) else None
    tier = np.zeros(len(used), np.int64) if tiers is None else tiers.tier[used].astype(np.int64)
    key = tier
    for column in (carried[used], rates):
        values = distinct(column)
        key = _dense(key * len(values) + np.searchsorted(values, column))
    kinds = counted_codes(key)
    order = np.argsort(kinds.first, kind="stable")
    names = ("",) if tiers is None else tiers.names
    first, counts = kinds.first[order], kinds.times[order]
    links, sizes, rates = used[first], carried[used[first]], rates[first]
    from trine.results.link_use import LinkUse

    return tuple(
        LinkUse(
            link=link,
            name=placement.link_name(link),
            size_bytes=size,
            bytes_per_s=rate,
            utilisation=size * PS_PER_S / (rate * step_ps) if step_ps else 0.0,
            count=count,
            tier=names[tier_number],
        )
        for link, size, rate, count, tier_number in zip(
            links.tolist(),
            sizes.tolist(),
            rates.tolist(),
            counts.tolist(),
            tier[first].tolist(),
            strict=True,
        )
    )


def _dense(codes: Int64) -> Int64:
    """Return equal numbers from 0 for equal codes, without gaps."""
    return np.searchsorted(distinct(codes), codes)


def _bytes_by_role(pattern: Pattern, step: int | None, repeats: Repeats | None) -> dict[int, int]:
    is_sent = (pattern.kind == TRANSFER) & ((pattern.role >= 0) | np.isin(pattern.role, HOSTS))
    if step is not None:
        is_sent &= pattern.labels[5] == step
    roles = pattern.role[is_sent].astype(np.int64) - min(HOSTS)
    exact = np.zeros(int(roles.max(initial=-1)) + 1, np.int64)
    np.add.at(exact, roles, _weighed_bytes(pattern, repeats)[is_sent])
    return {int(role) + min(HOSTS): int(exact[role]) for role in np.flatnonzero(exact)}


def _weighed_bytes(pattern: Pattern, repeats: Repeats | None) -> Int64:
    """Return the bytes of each task of a pattern, and of the tasks that it stands for: int64[tasks]."""
    if repeats is None:
        return pattern.size_bytes
    return pattern.size_bytes * repeats.weights(pattern.labels[_MICROBATCH], pattern.labels[_PHASE])


def collective_totals(
    job: JobPatterns, step: int | None, repeats: Repeats | None = None
) -> dict[tuple[str, int, int], int]:
    """Return the number of collectives of each (kind, bytes, group size) in a step (None: in all), over the system."""

    def times(label: Label) -> int:
        return 1 if repeats is None or label.microbatch not in repeats.repeated else 1 + repeats.count

    members: dict[tuple[str, int, int], int] = {}
    for pattern in job.patterns:
        steps = job.templates[pattern.program].collectives
        for key in pattern.algorithm_of:
            axis, name = job.keys[key]
            collective = steps[name][1]
            if step is None or collective.label.step == step:
                kind = (collective.kind, collective.size_bytes, job.grid.size(axis))
                members[kind] = members.get(kind, 0) + len(pattern.ranks) * times(collective.label)
    totals = {kind: count // kind[2] for kind, count in members.items()}
    for pattern in job.patterns:
        for _, send in job.templates[pattern.program].sends:
            if step is None or send.label.step == step:
                kind = ("send_recv", send.size_bytes, 2)
                totals[kind] = totals.get(kind, 0) + len(pattern.ranks) * times(send.label)
    return totals


#: Contention and skew of classes are reported from this share of the run; below it the effect is smaller still.
WORTH_A_WORD = 2e-3


def sensitivity_warning(
    run: FoldedRun, placement: Placement, repeats: Repeats | None = None, steps: RepeatedSteps | None = None
) -> str:
    """Return a warning if ranks of one program behave differently and share links, else "".

    The effect is possible but not certain: such ranks need not send at the same time.
    """
    programs = len(run.job.job.programs)
    finest = max((stage.partition for stage in run.stages), key=lambda partition: partition.num_classes)
    ends = run.step_ends() if repeats is None else repeats.stretch(run.step_ends())
    least_ps = WORTH_A_WORD * (int(ends[-1]) + (0 if steps is None else steps.skipped_ps))
    if finest.num_classes <= programs or class_skew_ps(run) < least_ps:
        return ""
    all_steps = 1.0 if steps is None else steps.steps / steps.simulated
    if shared_s(run.job, placement, finest, repeats) * all_steps * PS_PER_S < least_ps:
        return ""
    kinds = "one program" if programs == 1 else f"{programs} programs"
    return (
        f"ranks of {finest.num_classes} classes, which run {kinds}, share links: such contention can be sensitive to "
        "picoseconds; --repeat 5 gives the spread"
    )


def class_skew_ps(run: FoldedRun) -> int:
    """Return the largest skew between classes of one program: the spread of end times, over all program steps."""
    ends: dict[int, tuple[Int64, Int64]] = {}
    for stage in run.stages:
        for number, part_number in enumerate(stage.part_of.tolist()):
            part = stage.parts[part_number]
            num_tasks = len(run.job.templates[part.pattern.program].kind)
            if part.pattern.program not in ends:
                ends[part.pattern.program] = np.full(num_tasks, np.iinfo(np.int64).max), np.full(num_tasks, -1)
            first, last = ends[part.pattern.program]
            end_ps = stage.end_ps[stage.tasks_of(number)]
            in_program = (part.tasks < num_tasks) & (end_ps >= 0)
            first[part.tasks[in_program]] = np.minimum(first[part.tasks[in_program]], end_ps[in_program])
            last[part.tasks[in_program]] = np.maximum(last[part.tasks[in_program]], end_ps[in_program])
    return max((int((last - first)[last >= 0].max(initial=0)) for first, last in ends.values()), default=0)


def rank_skew_ps(extraction: Extraction, records: Records) -> int:
    """Return :func:`class_skew_ps` for a run that simulated each rank by itself."""
    num_tasks = np.array([len(template.kind) for template in extraction.templates], np.int64)
    sizes = num_tasks[extraction.program_of]
    base = np.cumsum(sizes) - sizes
    skew_ps = 0
    for program, ranks in enumerate(extraction.ranks_of):
        ends = records.end_ps[base[ranks][:, None] + np.arange(num_tasks[program])]
        skew_ps = max(skew_ps, int((ends.max(axis=0) - ends.min(axis=0)).max(initial=0)) if len(ends) else 0)
    return skew_ps


def shared_s(job: JobPatterns, placement: Placement, partition: Partition, repeats: Repeats | None = None) -> float:
    """Return the maximum time in s that a link spends on traffic from several classes to several, per collective kind.

    Excludes links with a single receiver, which waits for all its data in any order, and copies to and from the host,
    which are short.
    """
    crossing: dict[object, _Crossing] = {}
    table = RouteTable(placement.routes)
    sent = [_sent(job, pattern, repeats) for pattern in job.patterns]
    table.prepare((pattern, role) for pattern, sizes in zip(job.patterns, sent, strict=True) for _, role in sizes)
    for pattern, sizes in zip(job.patterns, sent, strict=True):
        for (kind, role), size_bytes in sizes.items():
            if kind not in crossing:
                crossing[kind] = _Crossing(len(placement.link_bytes_per_s), partition.num_classes)
            ptr, links = table.of_role(pattern, role)
            senders, receivers = partition.class_of[pattern.ranks], partition.class_of[pattern.peers[:, role]]
            counts = np.diff(ptr)
            crossing[kind].add(np.repeat(senders, counts), np.repeat(receivers, counts), links, size_bytes)
    return max((links_of_kind.shared_s(placement.link_bytes_per_s) for links_of_kind in crossing.values()), default=0.0)


class _Crossing:
    """Bytes of each link, and the least and the greatest class of its senders and receivers: int64[links] each."""

    def __init__(self, num_links: int, num_classes: int) -> None:
        self.least, self.greatest = np.full((2, num_links), num_classes), np.full((2, num_links), -1)
        self.carried = np.zeros(num_links, np.int64)

    def add(self, senders: Int32, receivers: Int32, links: Int32, size_bytes: int) -> None:
        are_known = (senders >= 0) & (receivers >= 0)
        for least, greatest, classes in zip(self.least, self.greatest, (senders, receivers), strict=True):
            np.minimum.at(least, links[are_known], classes[are_known])
            np.maximum.at(greatest, links[are_known], classes[are_known])
        np.add.at(self.carried, links, size_bytes)

    def shared_s(self, bytes_per_s: Int64) -> float:
        shared = (self.greatest > self.least).all(axis=0)
        return float((self.carried[shared] / bytes_per_s[shared]).max(initial=0.0))


def _sent(job: JobPatterns, pattern: Pattern, repeats: Repeats | None) -> dict[tuple[object, int], int]:
    """Return a rank's bytes to each role: in collectives of one axis and algorithm, and in messages of one axis."""
    sends = (pattern.kind == TRANSFER) & ~np.isin(pattern.role, HOSTS)
    pairs, inverse = np.unique(np.stack([pattern.key[sends], pattern.role[sends]]), axis=1, return_inverse=True)
    sizes = np.zeros(pairs.shape[1], np.int64)
    np.add.at(sizes, inverse.ravel(), _weighed_bytes(pattern, repeats)[sends])
    bytes_to: dict[tuple[object, int], int] = {}
    for (key, role), size_bytes in zip(pairs.T.tolist(), sizes.tolist(), strict=True):
        kind = (job.keys[key][0], pattern.algorithm_of[key]) if key >= 0 else pattern.role_axes[role]
        bytes_to[kind, role] = bytes_to.get((kind, role), 0) + size_bytes
    return bytes_to
