"""The distinct collectives of a job, and which schedule each group runs them by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from trine.arrays import Int32, Int64
from trine.collectives.local import LocalStructures, local_structures
from trine.collectives.one_operation import schedule_of
from trine.collectives.registry import check_sent_by_ranks
from trine.collectives.schedule import RankSends
from trine.graph.grid import RankGrid
from trine.graph.placement import GroupCosts
from trine.graph.program import Collective


class Call(NamedTuple):
    """A collective but for its place in the program."""

    axis: str
    kind: str
    size_bytes: int
    root: int
    algorithm: str | None


def call_of(step: Collective) -> Call:
    return Call(step.axis, step.kind, step.size_bytes, step.root, step.algorithm)


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """How groups of one make run a call. timed_step: see :class:`trine.collectives.schedule.Schedule`."""

    algorithm: str
    software_ps: int
    local: LocalStructures
    timed_step: int


@dataclass(frozen=True, slots=True, eq=False)
class CallPlan:
    """How all groups run one call. firsts: int64[groups], sorted; make: int32[groups]; answers: of each make."""

    call: Call
    firsts: Int64
    make: Int32
    answers: tuple[Answer, ...]

    def of(self, ranks: Int64, grid: RankGrid) -> tuple[Int64, Int64]:
        """The make of each rank's group, and the structure of its position: int64[ranks] each."""
        make = self.make[np.searchsorted(self.firsts, grid.firsts(ranks, self.call.axis))].astype(np.int64)
        position = grid.coordinates(ranks, self.call.axis)
        structure = np.zeros(len(ranks), np.int64)
        for number, answer in enumerate(self.answers):
            own = make == number
            structure[own] = answer.local.structure_of[position[own]]
        return make, structure

    def sends(self, make: int, structure: int) -> RankSends:
        return self.answers[make].local.structures[structure]


def plan_call(call: Call, ranks: Int64, grid: RankGrid, costs: GroupCosts | None) -> CallPlan:
    """How the groups of ``ranks`` run ``call``. Raises PlanError for a schedule that needs switches that add up."""
    firsts = np.unique(grid.firsts(ranks, call.axis))
    groups = firsts[:, None] + grid.offsets(call.axis)[None, :]
    make, answers = group_answers(costs, call.kind, call.size_bytes, groups, call.algorithm)
    return CallPlan(call, firsts, make, tuple(_answer(call, groups.shape[1], *answer) for answer in answers))


def group_answers(
    costs: GroupCosts | None, kind: str, size_bytes: int, groups: Int64, algorithm: str | None
) -> tuple[Int32, list[tuple[str | None, int]]]:
    """Which answer each group gets, and the distinct answers: (algorithm, ps of software before each message)."""
    if costs is None:
        return np.zeros(len(groups), np.int32), [(algorithm, 0)]
    make, answers = costs(kind, size_bytes, groups, algorithm)
    distinct = {answer: number for number, answer in enumerate(dict.fromkeys(answers))}
    number = np.array([distinct[answer] for answer in answers], np.int32)
    return number[make], list(distinct)


def _answer(call: Call, num_ranks: int, algorithm: str | None, software_ps: int) -> Answer:
    schedule = schedule_of(call.kind, num_ranks, call.size_bytes, algorithm, call.root)
    check_sent_by_ranks(schedule)
    return Answer(schedule.algorithm, software_ps, local_structures(schedule), schedule.timed_step)
