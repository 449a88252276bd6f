"""Extraction of patterns from a job: the behaviour of each kind of rank, with its collectives expanded for it alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trine.collectives.library_flows import FlowPlan, Message, message_of
from trine.collectives.local import LocalStructures, local_structures
from trine.collectives.one_operation import schedule_of
from trine.collectives.schedule import RankSends, check_sent_by_ranks
from trine.common.arrays import Int32, Int64, counted_codes, distinct, row_of
from trine.errors import PlanError
from trine.folding.colors import numbered
from trine.folding.pattern import (
    ENTERED,
    HOST,
    MESSAGE,
    SELF,
    SENT,
    TASK,
    TO_HOST,
    Edges,
    JobPatterns,
    Pattern,
    Together,
)
from trine.graph.grid import RankGrid
from trine.graph.placement import GroupCosts
from trine.graph.program import Collective, Job, Peer
from trine.graph.taskgraph import JOIN, TRANSFER
from trine.parallel.template import ProgramTemplate, make_template


class GroupCall(NamedTuple):
    """A collective without its place in the program."""

    axis: str
    kind: str
    size_bytes: int
    root: int
    algorithm: str | None


def call_of(step: Collective) -> GroupCall:
    return GroupCall(step.axis, step.kind, step.size_bytes, step.root, step.algorithm)


@dataclass(frozen=True, slots=True, eq=False)
class ScheduledCall:
    """Execution of a call by a class of groups. timed_step, together: :class:`trine.collectives.schedule.Schedule`."""

    algorithm: str
    software_ps: int
    local: LocalStructures
    timed_step: int
    together: bool


@dataclass(frozen=True, slots=True, eq=False)
class CallPlan:
    """A call in all groups. firsts: int64[groups], sorted; group_class: int32[groups]; answers: per class."""

    call: GroupCall
    firsts: Int64
    group_class: Int32
    answers: tuple[ScheduledCall, ...]

    def of(self, ranks: Int64, grid: RankGrid) -> tuple[Int64, Int64]:
        """Return the class of each rank's group, and the structure of its position: int64[ranks] each."""
        group_class = self.group_class[np.searchsorted(self.firsts, grid.firsts(ranks, self.call.axis))].astype(
            np.int64
        )
        position = grid.coordinates(ranks, self.call.axis)
        structure = np.zeros(len(ranks), np.int64)
        for number, answer in enumerate(self.answers):
            in_class = group_class == number
            structure[in_class] = answer.local.structure_of[position[in_class]]
        return group_class, structure

    def sends(self, group_class: int, structure: int) -> RankSends:
        return self.answers[group_class].local.structures[structure]


def plan_call(call: GroupCall, ranks: Int64, grid: RankGrid, costs: GroupCosts | None) -> CallPlan:
    """Plan the execution of ``call`` in the groups of ``ranks``. Raises PlanError for schedules with switches."""
    firsts = distinct(grid.firsts(ranks, call.axis))
    groups = firsts[:, None] + grid.offsets(call.axis)[None, :]
    group_class, answers = group_answers(costs, call.kind, call.size_bytes, groups, call.algorithm)
    return CallPlan(call, firsts, group_class, tuple(_answer(call, groups.shape[1], *answer) for answer in answers))


def group_answers(
    costs: GroupCosts | None, kind: str, size_bytes: int, groups: Int64, algorithm: str | None
) -> tuple[Int32, list[tuple[Any, int]]]:
    """Return each group's answer number, and the distinct answers: (algorithm, ps of software before each message)."""
    if costs is None:
        return np.zeros(len(groups), np.int32), [(algorithm, 0)]
    group_class, answers = costs(kind, size_bytes, groups, algorithm)
    distinct = {answer: number for number, answer in enumerate(dict.fromkeys(answers))}
    number = np.array([distinct[answer] for answer in answers], np.int32)
    return number[group_class], list(distinct)


def _answer(call: GroupCall, num_ranks: int, algorithm: str | FlowPlan | None, software_ps: int) -> ScheduledCall:
    schedule = schedule_of(call.kind, num_ranks, call.size_bytes, algorithm, call.root)
    check_sent_by_ranks(schedule)
    local = local_structures(schedule)
    return ScheduledCall(schedule.algorithm, software_ps, local, schedule.timed_step, schedule.together)


class _Kinds(NamedTuple):
    """Kinds of ranks within a program. of_rank: int64[ranks of the program], the combination number of each.

    calls: class of its group and structure of its position; messages: class of each rank, and message of each class.
    """

    program: int
    calls: dict[GroupCall, tuple[Int64, Int64]]
    messages: dict[tuple[Peer, int], tuple[Int64, list[Message]]]
    of_rank: Int64


def extract_patterns(job: Job, costs: GroupCosts | None) -> JobPatterns:
    """Return the patterns of all ranks of ``job``; ``costs`` chooses schedules and their software cost per message.

    Raises PlanError if members of a group disagree on its collectives, or a message has no sender or receiver.
    """
    return Extraction(job, costs).job_patterns()


class Extraction:
    """A job with scheduled collectives, before its patterns are built; there may be one pattern for each rank."""

    def __init__(self, job: Job, costs: GroupCosts | None) -> None:
        self.job = job
        self.costs = costs
        self.grid = RankGrid(job.axes)
        self.streams: dict[str, int] = {}
        self.templates = [make_template(program, self.streams) for program in job.programs]
        self.program_of = np.asarray(job.program_of, dtype=np.int64)
        self.ranks_of = [np.flatnonzero(self.program_of == p) for p in range(len(job.programs))]
        self.keys: dict[tuple[str, tuple[int | str, ...]], int] = {}
        self.same_calls: dict[GroupCall, GroupCall] = {}
        self.calls: list[dict[int, GroupCall]] = [self._calls(template) for template in self.templates]
        self._check_agreement()
        self.plans: dict[GroupCall, CallPlan] = self._plans()
        self.messages: dict[tuple[str, tuple[int | str, ...]], int] = {}
        self.sent = [self._sent(template) for template in self.templates]
        self._check_received()
        self.many_targets = {
            axis for table, template in zip(self.sent, self.templates, strict=True)
            for axis in _axes_of_shared_tags(template)
        }  # fmt: skip

    def _calls(self, template: ProgramTemplate) -> dict[int, GroupCall]:
        """Return collective number -> call of a program, in program order; a collective of one rank sends nothing."""
        calls = {}
        for _, step in template.collectives.values():
            number = self.keys.setdefault((step.axis, step.key), len(self.keys))
            if self.grid.size(step.axis) > 1:
                call = call_of(step)
                calls[number] = self.same_calls.setdefault(call, call)  # one object is faster to compare and look up
        return calls

    def _check_agreement(self) -> None:
        for axis in dict.fromkeys(call.axis for calls in self.calls for call in calls.values()):
            groups = self.program_of[self.grid.members(axis)]
            mixed = groups[(groups != groups[:, :1]).any(axis=1)]
            for programs in np.unique(np.sort(mixed, axis=1), axis=0) if len(mixed) else ():
                self._check_group(axis, sorted(set(programs.tolist())))

    def _check_group(self, axis: str, programs: Sequence[int]) -> None:
        expected = [(key, call) for key, call in self.calls[programs[0]].items() if call.axis == axis]
        for program in programs[1:]:
            if [(key, call) for key, call in self.calls[program].items() if call.axis == axis] != expected:
                first, second = self.job.programs[programs[0]].name, self.job.programs[program].name
                raise PlanError(f"programs {first!r} and {second!r} disagree on the collectives of axis {axis}")

    def _plans(self) -> dict[GroupCall, CallPlan]:
        users: dict[GroupCall, list[int]] = {}
        for program, calls in enumerate(self.calls):
            for call in dict.fromkeys(calls.values()):
                users.setdefault(call, []).append(program)
        return {
            call: plan_call(call, np.concatenate([self.ranks_of[p] for p in programs]), self.grid, self.costs)
            for call, programs in users.items()
        }

    def _sent(self, template: ProgramTemplate) -> dict[tuple[int, int], int]:
        """Return (message, position of its receiver) -> the task that sends it."""
        table: dict[tuple[int, int], int] = {}
        for task, send in template.sends:
            number = self.messages.setdefault((send.peer.axis, send.tag), len(self.messages))
            if (number, send.peer.position) in table:
                raise PlanError(f"message {send.tag} is sent to position {send.peer.position} twice")
            table[number, send.peer.position] = task
        return table

    def _check_received(self) -> None:
        """Refuse messages that no task receives, because the simulated times would not show the error."""
        received = [{(r.peer.axis, r.tag) for _, r in template.receives} for template in self.templates]
        for program, template in enumerate(self.templates):
            tags_to: dict[Peer, list[tuple[int | str, ...]]] = {}
            for _, send in template.sends:
                tags_to.setdefault(send.peer, []).append(send.tag)
            for peer, tags in tags_to.items():
                receivers = self.program_of[resolve(self.grid, self.ranks_of[program], peer)]
                for receiver in distinct(receivers).tolist():
                    lost = [tag for tag in tags if (peer.axis, tag) not in received[receiver]]
                    if lost:
                        first, second = self.job.programs[program].name, self.job.programs[receiver].name
                        raise PlanError(f"program {first!r} sends message {lost[0]}, which {second!r} never receives")

    # -- patterns --------------------------------------------------------------------------------------------------

    @cached_property
    def key_axes(self) -> tuple[str, ...]:
        """The axis of each collective."""
        return tuple(axis for axis, _ in self.keys)

    @cached_property
    def num_patterns(self) -> int:
        """The number of patterns, a lower bound for the number of classes."""
        return sum(int(kinds.of_rank.max()) + 1 for kinds in self._kinds)

    def job_patterns(self) -> JobPatterns:
        """Return the patterns of all ranks. Raises PlanError if a message has no sender."""
        patterns = [pattern for kinds in self._kinds for pattern in self._patterns(kinds)]
        pattern_of, row_of = np.empty((2, self.grid.num_ranks), np.int32)
        for number, pattern in enumerate(patterns):
            pattern_of[pattern.ranks] = number
            row_of[pattern.ranks] = np.arange(len(pattern.ranks))
        # A result keeps the patterns: without the steps, the garbage collector has a fraction of the objects to scan.
        programs = tuple(replace(program, steps=(), memory=()) for program in self.job.programs)
        return JobPatterns(
            job=replace(self.job, programs=programs),
            grid=self.grid,
            patterns=tuple(patterns),
            pattern_of=pattern_of,
            row_of=row_of,
            keys=tuple(self.keys),
            templates=tuple(self.templates),
            streams=tuple(self.streams),
        )

    @cached_property
    def _kinds(self) -> list[_Kinds]:
        """The kinds of ranks of each program in use."""
        return [self._kinds_of(program) for program, ranks in enumerate(self.ranks_of) if len(ranks)]

    def _kinds_of(self, program: int) -> _Kinds:
        ranks = self.ranks_of[program]
        calls = {call: self.plans[call].of(ranks, self.grid) for call in dict.fromkeys(self.calls[program].values())}
        messages = self._message_costs(program, ranks)
        columns = [column for pair in calls.values() for column in pair]
        columns += [group_class for group_class, _ in messages.values()]
        columns += [self.grid.coordinates(ranks, axis) for axis in sorted(self.many_targets)]
        return _Kinds(program, calls, messages, _combined(columns, len(ranks)))

    def _patterns(self, kinds: _Kinds) -> Iterator[Pattern]:
        """Yield one pattern for each combination of schedules, positions and software among the ranks of a program."""
        ranks = self.ranks_of[kinds.program]
        for kind in range(int(kinds.of_rank.max()) + 1):
            rows = np.flatnonzero(kinds.of_rank == kind)
            first = rows[0]
            choices = {
                call: (int(group_class[first]), int(structure[first]))
                for call, (group_class, structure) in kinds.calls.items()
            }
            sent = {size: answers[int(group_class[first])] for size, (group_class, answers) in kinds.messages.items()}
            yield _PatternBuilder(self, kinds.program, ranks[rows], choices, sent).pattern()

    def _message_costs(self, program: int, ranks: Int64) -> dict[tuple[Peer, int], tuple[Int64, list[Message]]]:
        """Return (peer, bytes) of each message of the program -> class of each rank, message of each class."""
        sent = dict.fromkeys((send.peer, send.size_bytes) for _, send in self.templates[program].sends)
        costs = {}
        for peer, size in sent:
            pairs = np.stack([ranks, resolve(self.grid, ranks, peer)], axis=1)
            group_class, answers = group_answers(self.costs, "send_recv", size, pairs, None)
            costs[peer, size] = group_class.astype(np.int64), [message_of(size, *answer) for answer in answers]
        return costs


def resolve(grid: RankGrid, ranks: Int64, peer: Peer) -> Int64:
    """Return each rank's ``peer`` as a rank number: int64[ranks]."""
    offsets = grid.offsets(peer.axis)
    resolved: Int64 = ranks + offsets[peer.position] - offsets[grid.coordinates(ranks, peer.axis)]
    return resolved


def _axes_of_shared_tags(template: ProgramTemplate) -> set[str]:
    """Return the axes along which one message has several receivers, so that a receiver's position matters."""
    messages: set[tuple[str, tuple[int | str, ...]]] = set()
    axes = set()
    for _, send in template.sends:
        if (send.peer.axis, send.tag) in messages:
            axes.add(send.peer.axis)
        messages.add((send.peer.axis, send.tag))
    return axes


def _combined(columns: Sequence[Int64], num_rows: int) -> Int64:
    """Return each row's number among the distinct rows, in the order of their first occurrence."""
    varying = [column for column in columns if (column != column[0]).any()]
    if not varying:
        return np.zeros(num_rows, np.int64)
    key = np.zeros(num_rows, np.int64)
    for column in varying:
        key = numbered(key * (int(column.max()) + 1) + column)[0].astype(np.int64)
    return key


@dataclass(slots=True)
class _EdgeList:
    """Edges, collected in blocks."""

    blocks: list[tuple[Int64, Int64, int, Int64, Int64]] = field(default_factory=list)

    def add(self, task: Int64, role: int | Int64, kind: int, key: int | Int64, number: int | Int64 = 0) -> None:
        """Add edges of ``task``; the other arguments are scalars, or one value for each edge."""
        n = len(task)
        self.blocks.append((task, _all(role, n), kind, _all(key, n), _all(number, n)))

    def build(self) -> Edges:
        """Return the edges sorted by task, otherwise in insertion order."""
        if not self.blocks:
            empty = np.zeros(0, np.int64)
            return Edges(
                task=empty,
                role=empty.astype(np.int16),
                kind=empty.astype(np.int8),
                key=empty.astype(np.int32),
                number=empty.astype(np.int32),
            )
        task = np.concatenate([block[0] for block in self.blocks])
        order = np.argsort(task, kind="stable")
        kind = np.concatenate([np.full(len(block[0]), block[2], np.int8) for block in self.blocks])
        return Edges(
            task=task[order],
            role=np.concatenate([block[1] for block in self.blocks])[order].astype(np.int16),
            kind=kind[order],
            key=np.concatenate([block[3] for block in self.blocks])[order].astype(np.int32),
            number=np.concatenate([block[4] for block in self.blocks])[order].astype(np.int32),
        )


def _all(value: int | Int64, n: int) -> Int64:
    return np.full(n, value, np.int64) if np.isscalar(value) else np.asarray(value, np.int64)


class _PatternBuilder:
    """Builder of one pattern: ranks of one program with the same structure in every collective."""

    def __init__(
        self,
        extraction: Extraction,
        program: int,
        ranks: Int64,
        choices: dict[GroupCall, tuple[int, int]],
        messages: dict[tuple[Peer, int], Message],
    ) -> None:
        self.extraction = extraction
        self.program = program
        self.ranks = ranks
        self.choices = choices
        self.messages = messages
        self.template = extraction.templates[program]
        self.calls = extraction.calls[program]
        self.edges = _EdgeList()
        self.peers: list[Int32] = []
        self.role_axes: list[str] = []
        self._roles: dict[tuple[str, bytes], int] = {}
        self._groups: dict[str, tuple[Int64, Int64]] = {}
        self.together: list[Together] = []

    def pattern(self) -> Pattern:
        template, num_steps = self.template, len(self.template.kind)
        num_keys = len(self.extraction.keys)
        entered = np.full(num_keys, -1, np.int32)
        first_sent = np.full(num_keys, -1, np.int32)
        key_column = np.full(num_steps, -1, np.int32)
        for task, step in template.collectives.values():
            number = self.extraction.keys[step.axis, step.key]
            entered[number] = task
            key_column[task : task + 2] = number
        num_sends = {call: self._sends(call).num_sends for call in self.choices}
        counts = np.array([num_sends[call] for call in self.calls.values()], dtype=np.int64)
        firsts = num_steps + np.cumsum(counts) - counts
        total = num_steps + int(counts.sum())
        first_sent[list(self.calls)] = firsts
        columns = _PatternColumns(template, total, key_column)
        self.edges.add(template.edges[0], SELF, TASK, template.edges[1])
        self._collectives(columns, entered, dict(zip(self.calls, firsts.tolist(), strict=True)))
        self._messages(columns)
        plans = self.extraction.plans
        algorithms = {call: plans[call].answers[number].algorithm for call, (number, _) in self.choices.items()}
        return Pattern(
            program=self.program,
            ranks=self.ranks,
            peers=np.stack(self.peers, axis=1) if self.peers else np.zeros((len(self.ranks), 0), np.int32),
            role_axes=tuple(self.role_axes),
            kind=columns.kind,
            duration_ps=columns.duration_ps,
            size_bytes=columns.size_bytes,
            software_ps=columns.software_ps,
            caps=columns.caps,
            stream=columns.stream,
            labels=columns.labels,
            key=columns.key,
            role=columns.role,
            edges=self.edges.build(),
            entered=entered,
            first_sent=first_sent,
            messages=self.extraction.sent[self.program],
            key_axes=self.extraction.key_axes,
            together=tuple(self.together),
            pressure_ppm=columns.pressure_ppm,
            algorithm_of={key: algorithms[call] for key, call in self.calls.items()},
        )

    def _sends(self, call: GroupCall) -> RankSends:
        return self.extraction.plans[call].sends(*self.choices[call])

    def _role(self, axis: str, peers: npt.NDArray[np.integer]) -> int:
        """Return the role number of these peers, one for each rank."""
        column = np.ascontiguousarray(peers, dtype=np.int32)
        name = (axis, column.tobytes())
        if name not in self._roles:
            self._roles[name] = len(self.peers)
            self.peers.append(column)
            self.role_axes.append(axis)
        return self._roles[name]

    # -- collectives -----------------------------------------------------------------------------------------------

    def _collectives(self, columns: _PatternColumns, entered: Int32, firsts: dict[int, int]) -> None:
        """Add the sends of all collectives; a call's sends together, because only their numbers differ."""
        keys_of: dict[GroupCall, list[int]] = {}
        for key, call in self.calls.items():
            keys_of.setdefault(call, []).append(key)
        for call, call_keys in keys_of.items():
            keys = np.array(call_keys, np.int64)
            answer = self.extraction.plans[call].answers[self.choices[call][0]]
            site = _CollectiveSite(
                keys=keys,
                entry=entered[keys].astype(np.int64),
                first=np.array([firsts[key] for key in call_keys], np.int64),
                roles=np.array([SELF, *self._roles_of(call, answer)], np.int64),
                sends=self._sends(call),
            )
            columns.sends(site, answer)
            if answer.together:
                self.together.append(site.together(call.axis, answer.timed_step))
            site.add_edges(self.edges)

    def _roles_of(self, call: GroupCall, answer: ScheduledCall) -> list[int]:
        """Return the roles of a schedule's peers; peers depend on the position in the group alone."""
        positions, firsts = self._groups_along(call.axis)
        occupied = counted_codes(positions)
        offsets = self.extraction.grid.offsets(call.axis)[answer.local.peers_of(occupied.values)]
        return [self._role(call.axis, firsts + column[occupied.place]) for column in offsets.T]

    def _groups_along(self, axis: str) -> tuple[Int64, Int64]:
        """Return the position of each rank on an axis, and the first rank of its group: int64[ranks] each."""
        if axis not in self._groups:
            grid = self.extraction.grid
            self._groups[axis] = grid.coordinates(self.ranks, axis), grid.firsts(self.ranks, axis)
        return self._groups[axis]

    # -- messages --------------------------------------------------------------------------------------------------

    def _messages(self, columns: _PatternColumns) -> None:
        grid, roles = self.extraction.grid, {}
        sent_to, received_from = [s.peer for _, s in self.template.sends], [r.peer for _, r in self.template.receives]
        for peer in sent_to + received_from:
            if peer not in roles:
                roles[peer] = self._role(peer.axis, resolve(grid, self.ranks, peer))
        for task, send in self.template.sends:
            columns.role[task] = roles[send.peer]
            columns.send(task, self.messages[send.peer, send.size_bytes])
        columns.role[self.template.copies] = HOST
        columns.role[self.template.stores] = TO_HOST
        receives = self.template.receives
        numbers = []
        for _, receive in receives:
            name = (receive.peer.axis, receive.tag)
            if name not in self.extraction.messages:
                raise PlanError(
                    f"program {self.extraction.job.programs[self.program].name!r} waits for message {receive.tag}, "
                    "which nobody sends"
                )
            numbers.append(self.extraction.messages[name])
        if receives:
            tasks = np.array([task for task, _ in receives], np.int64)
            self.edges.add(tasks, np.array([roles[r.peer] for _, r in receives]), MESSAGE, np.array(numbers))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _CollectiveSite:
    """The collectives of one call in a rank's program. They have equal ``sends``; only the task numbers differ.

    keys, entry, first: int64[collectives], the number of each, the task that enters it (the next task ends it), and its
    first send. roles: int64[1 + peers], the role of each peer of the schedule, after SELF for -1.
    """

    keys: Int64
    entry: Int64
    first: Int64
    roles: Int64
    sends: RankSends

    @property
    def tasks(self) -> Int64:
        """int64[collectives, sends]: the tasks of the sends."""
        tasks: Int64 = self.first[:, None] + np.arange(self.sends.num_sends, dtype=np.int64)
        return tasks

    @property
    def receivers(self) -> Int64:
        """int64[sends]: the role of each send's receiver."""
        return self.roles[self.sends.receiver + 1]

    def together(self, axis: str, timed_step: int) -> Together:
        """Return the call's Together; its sends in steps before and after ``timed_step`` are signals."""
        step, num_signals = self.sends.step, int((self.sends.step < timed_step).sum())
        assert (np.diff(step) >= 0).all()
        assert int((step > timed_step).sum()) == num_signals > 0
        order = np.argsort(self.keys)
        keys, entered, first = self.keys[order], self.entry[order], self.first[order]
        return Together(
            axis=axis, keys=keys, entered=entered, first=first, num_sends=len(step), num_signals=num_signals
        )

    def add_edges(self, edges: _EdgeList) -> None:
        """Add the dependencies of the sends and of the ends of all collectives."""
        sends, tasks = self.sends, self.tasks
        # A send waits for earlier sends of this rank and of its peers,
        waiting = tasks[:, row_of(sends.predecessor_ptr)]
        self._wait_for_sends(edges, waiting, sends.predecessor_who, sends.predecessor_number)
        # until this rank has entered,
        by_self = np.flatnonzero(sends.entry_src)
        edges.add(tasks[:, by_self].ravel(), SELF, TASK, np.repeat(self.entry, len(by_self)))
        # and until its receiver has entered.
        by_peer = np.flatnonzero(sends.entry_dst)
        receivers = np.tile(self.receivers[by_peer], len(self.keys))
        edges.add(tasks[:, by_peer].ravel(), receivers, ENTERED, np.repeat(self.keys, len(by_peer)))
        # The collective ends after the sends that complete it.
        ends = np.repeat(self.entry[:, None] + 1, len(sends.completion_who), axis=1)
        self._wait_for_sends(edges, ends, sends.completion_who, sends.completion_number)

    def _wait_for_sends(self, edges: _EdgeList, waiting: Int64, who: Int32, number: Int32) -> None:
        """Add edges: ``waiting``, int64[collectives, edges], waits for send ``number`` of peer ``who`` (-1: this
        rank).
        """
        role = self.roles[who + 1]
        local, remote = np.flatnonzero(role == SELF), np.flatnonzero(role != SELF)
        edges.add(waiting[:, local].ravel(), SELF, TASK, (self.first[:, None] + number[local]).ravel())
        edges.add(
            waiting[:, remote].ravel(),
            np.tile(role[remote], len(self.keys)),
            SENT,
            np.repeat(self.keys, len(remote)),
            np.tile(number[remote].astype(np.int64), len(self.keys)),
        )


class _PatternColumns:
    """Columns of a pattern's tasks: the program's tasks, with room for the sends of its collectives."""

    def __init__(self, template: ProgramTemplate, total: int, keys: Int32) -> None:
        num_steps = len(template.kind)

        def grown(column: npt.NDArray[np.generic], fill: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
            array = np.full(total, fill, dtype)
            array[:num_steps] = column
            return array

        self.kind = grown(template.kind, TRANSFER, np.int8)
        self.duration_ps = grown(template.duration_ps, 0, np.int64)
        self.size_bytes = grown(template.size_bytes, 0, np.int64)
        self.stream = grown(template.stream, -1, np.int32)
        self.key = grown(keys, -1, np.int32)
        pressure = template.pressure_ppm
        self.pressure_ppm = None if pressure is None else grown(pressure, 0, np.int32)
        self.software_ps, self.caps = np.zeros((2, total), np.int64)
        self.role = np.full(total, SELF, np.int16)
        self.labels = np.full((len(template.labels), total), -1, np.int32)
        self.labels[:, :num_steps] = template.labels

    def send(self, task: int, message: Message) -> None:
        """Set the columns of a message of the program."""
        self.size_bytes[task], self.software_ps[task], self.caps[task] = message

    def sends(self, site: _CollectiveSite, answer: ScheduledCall) -> None:
        """Set the columns of one call's sends."""
        sends, tasks = site.sends, site.tasks
        is_sent = np.full(sends.num_sends, True) if answer.timed_step < 0 else sends.step == answer.timed_step
        caps = 0 if sends.caps is None else sends.caps
        has_software = is_sent if answer.timed_step < 0 else is_sent & ((sends.size_bytes == 0) | (caps > 0))
        self.caps[tasks] = np.where(is_sent, caps, 0)
        self.kind[tasks] = np.where(is_sent, TRANSFER, JOIN)
        self.size_bytes[tasks] = sends.size_bytes
        self.role[tasks] = np.where(is_sent, site.receivers, SELF)
        self.software_ps[tasks] = np.where(has_software, answer.software_ps, 0)
        self.key[tasks] = site.keys[:, None]
        self.labels[:, tasks] = self.labels[:, site.entry][:, :, None]
