"""The causes of lost time in a measured run of several ranks, each with the gain of removing it.

Each suspicion is a change of durations: the kernels or launches of one rank take what they take on its peers, slow
transfers take what they take in comparable groups, uneven work is spread evenly. The gain is the difference of two
replays (:mod:`trine.runs.replay`), so it counts only what the step really waits for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trine.runs.links import repaired, slow_groups
from trine.runs.measured_run import MeasuredRun
from trine.runs.peers import Peers
from trine.runs.replay import Durations, Replay

#: A cause is named if removing it saves this share of the step. Assumed: GPUs of one system differ by up to 3 %
#: (docs/guides/stragglers.md), and a healthy run should name no cause.
MIN_SHARE = 0.03
#: Launches of all ranks are a cause if removing them saves this share. Assumed.
MIN_LAUNCH_SHARE = 0.10
#: Excess of a rank, as a share of the run, below which a replay is not worth its time.
_MIN_EXCESS = 0.005
#: Slowdown of the kernels of a straggler. Assumed.
_MIN_SLOWDOWN = 1.02
STRAGGLER, LATE_LAUNCH, SLOW_LINK, IMBALANCE = "straggler", "late CPU launch", "slow link", "imbalance"
#: Causes by kind, with what to look at first.
ADVICE = {
    STRAGGLER: "clocks, temperature and other processes of this GPU (nvidia-smi -q -d CLOCK,PERFORMANCE)",
    LATE_LAUNCH: "the CPU thread: data loading, Python, CPU clocks and pinning; CUDA graphs remove launches",
    SLOW_LINK: "this link: nvidia-smi nvlink -e, ibstat, errors of switch ports; trine check LOG for nccl-tests",
    IMBALANCE: "the work: tokens per expert, sequence lengths, layers per pipeline stage",
}


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause of lost time.

    kind: one of ADVICE. ranks: those that the others wait for; () for all ranks. operator: the operator or collective
    that loses most. slowdown: of the rank's kernels, launches, transfers or work against the reference. gain_ps: time
    per step that its removal saves. share: of the step.
    """

    kind: str
    ranks: tuple[int, ...]
    operator: str
    slowdown: float
    gain_ps: int
    share: float


def find_causes(run: MeasuredRun) -> tuple[Cause, ...]:
    """Return the causes that cost at least MIN_SHARE of the step, the largest gain first; () for a healthy run."""
    return _Search(run).causes()


class _Search:
    """The replays of one run."""

    def __init__(self, run: MeasuredRun) -> None:
        self._run = run
        self._replay = Replay(run)
        self._peers = Peers(run)
        self._time_ps = run.time_ps

    def causes(self) -> tuple[Cause, ...]:
        if len(self._run.ranks) > 1:
            found = [*self._rank_causes(), *self._link_cause(), *self._imbalance_cause()]
        else:
            found = []
        named = [(cause, durations) for cause, durations in found if cause.share >= MIN_SHARE]
        launches = self._all_launches([durations for _, durations in named])
        causes = [cause for cause, _ in named]
        if launches.share >= MIN_LAUNCH_SHARE:
            causes.append(launches)
        return tuple(sorted(causes, key=lambda cause: -cause.gain_ps))

    def _cause(self, kind: str, ranks: Sequence[int], operator: str, slowdown: float, durations: Durations) -> Cause:
        gain_ps = self._time_ps - self._replay.time_ps(durations)
        return Cause(kind, tuple(ranks), operator, slowdown, gain_ps // self._run.num_steps, gain_ps / self._time_ps)

    def _rank_causes(self) -> list[tuple[Cause, Durations]]:
        found = []
        for row, trace in enumerate(self._run.ranks):
            for kind, durations, lost in (
                (STRAGGLER, *self._with_peers_kernels(row)), (LATE_LAUNCH, *self._with_peers_launches(row)),
            ):  # fmt: skip
                if sum(lost.values()) < _MIN_EXCESS * self._time_ps:
                    continue
                if kind == STRAGGLER and self._peers.factor(row) < _MIN_SLOWDOWN:
                    continue
                measured, reference = self._sums(kind, row, durations)
                operator = max(lost, key=lambda name: lost[name])
                slowdown = measured / max(1, reference)
                found.append((self._cause(kind, [trace.rank], operator, slowdown, durations), durations))
        return found

    def _sums(self, kind: str, row: int, durations: Durations) -> tuple[int, int]:
        """Return the time of a rank's kernels or launches, measured and in other durations."""
        base = self._replay.base
        if kind == LATE_LAUNCH:
            sums = [sum(each.calls[row]) + sum(each.gaps[row]) for each in (base, durations)]
            return sums[0], sums[1]
        measured = reference = 0
        for number, activity in enumerate(self._run.ranks[row].activities):
            if activity.collective is None:
                measured += base.kernels[row][number]
                reference += durations.kernels[row][number]
        return measured, reference

    def _without_waits_for(self, row: int) -> Durations:
        """Return the durations without the slowdown of the peers' kernels beside collectives that wait for this rank.

        There the own time of this rank, at its peers' speed, is what all of them would take.
        """
        durations = self._replay.base.copy()
        factor = max(1.0, self._peers.factor(row))
        for number, activity in enumerate(self._run.ranks[row].activities):
            if not self._peers.is_clean[row][number] and self._peers.is_same_work[row][number]:
                reference = round(activity.duration_ps / factor)
                for other, place in self._peers.peers_of[row][number]:
                    if other != row and self._peers.is_same_work[other][place]:
                        durations.kernels[other][place] = min(durations.kernels[other][place], reference)
        return durations

    def _with_peers_kernels(self, row: int) -> tuple[Durations, dict[str, int]]:
        """Return the durations with a rank's kernels as fast as on its peers, and the time each operator loses."""
        durations = self._without_waits_for(row)
        factor = max(1.0, self._peers.factor(row))
        lost: dict[str, int] = {}
        for number, activity in enumerate(self._run.ranks[row].activities):
            reference = self._peers.kernel_ps[row][number]
            if reference is None or not self._peers.is_same_work[row][number]:
                continue
            if not self._peers.is_clean[row][number]:
                reference = round(activity.duration_ps / factor)
            durations.kernels[row][number] = reference
            lost[activity.operator] = lost.get(activity.operator, 0) + activity.duration_ps - reference
        return durations, lost

    def _with_peers_launches(self, row: int) -> tuple[Durations, dict[str, int]]:
        """Return the durations with a rank's CPU calls and gaps as on its peers, and the time each operator loses."""
        durations = self._without_waits_for(row)
        base = self._replay.base
        lost: dict[str, int] = {}
        for number, call in enumerate(self._run.ranks[row].calls):
            own = base.gaps[row][number] + (0 if call.is_wait else base.calls[row][number])
            reference = self._peers.gap_ps[row][number] + (0 if call.is_wait else self._peers.call_ps[row][number])
            durations.gaps[row][number] = self._peers.gap_ps[row][number]
            durations.calls[row][number] = self._peers.call_ps[row][number]
            lost[call.operator] = lost.get(call.operator, 0) + own - reference
        return durations, lost

    def _link_cause(self) -> list[tuple[Cause, Durations]]:
        slow = slow_groups(self._run, self._replay)
        if slow is None:
            return []
        durations = repaired(self._replay.base, self._run, slow)
        self._speed_up_beside_collectives(durations)
        return [(self._cause(SLOW_LINK, slow.ranks, slow.kind, slow.slowdown, durations), durations)]

    def _speed_up_beside_collectives(self, durations: Durations) -> None:
        """Let kernels beside collectives take what they take on the rank where they run fastest.

        A slow transfer slows the kernels beside it down, on the ranks of its group.
        """
        for row, trace in enumerate(self._run.ranks):
            for number in range(len(trace.activities)):
                if self._peers.is_clean[row][number] or not self._peers.is_same_work[row][number]:
                    continue
                own_ps = durations.kernels[row][number]
                for other, place in self._peers.peers_of[row][number]:
                    own_ps = min(own_ps, self._run.ranks[other].activities[place].duration_ps)
                durations.kernels[row][number] = own_ps

    def _imbalance_cause(self) -> list[tuple[Cause, Durations]]:
        """Return the cause that some ranks have more work, if they do: each rank then gets the mean work."""
        operators = [self._work_by_operator(row) for row in range(len(self._run.ranks))]
        works = [sum(each.values()) for each in operators]
        mean = sum(works) / len(works)
        most = max(range(len(works)), key=lambda row: works[row])
        if works[most] - mean < _MIN_EXCESS * self._time_ps:
            return []
        durations = self._replay.base.copy()
        for row, trace in enumerate(self._run.ranks):
            for number, activity in enumerate(trace.activities):
                if activity.collective is None and works[row]:
                    durations.kernels[row][number] = round(durations.kernels[row][number] * mean / works[row])
        ranks = [trace.rank for row, trace in enumerate(self._run.ranks) if works[row] >= 0.98 * works[most]]
        least = operators[min(range(len(works)), key=lambda row: works[row])]
        operator = max(operators[most], key=lambda name: operators[most][name] - least.get(name, 0))
        return [(self._cause(IMBALANCE, ranks, operator, works[most] / mean, durations), durations)]

    def _work_by_operator(self, row: int) -> dict[str, int]:
        """Return the time of a rank's kernels by operator, at the speed of its peers where they do the same work."""
        times: dict[str, int] = {}
        for number, activity in enumerate(self._run.ranks[row].activities):
            if activity.collective is not None:
                continue
            reference = self._peers.kernel_ps[row][number]
            is_same = self._peers.is_same_work[row][number]
            own_ps = reference if is_same and reference is not None else activity.duration_ps
            times[activity.operator] = times.get(activity.operator, 0) + own_ps
        return times

    def _all_launches(self, removed: Sequence[Durations]) -> Cause:
        """Return the cause that launches of all ranks take time, beyond the other causes: as if launches were free."""
        base = self._replay.base
        before = base.copy()
        for durations in removed:
            for target, source, measured in zip(
                (before.kernels, before.calls, before.gaps), (durations.kernels, durations.calls, durations.gaps),
                (base.kernels, base.calls, base.gaps), strict=True,
            ):  # fmt: skip
                for row, values in enumerate(source):
                    for number, value in enumerate(values):
                        if value != measured[row][number]:
                            target[row][number] = value
        after = before.copy()
        lost: dict[str, int] = {}
        total_ps = 0
        for row, trace in enumerate(self._run.ranks):
            for number, call in enumerate(trace.calls):
                own_ps = max(0, after.calls[row][number]) + (max(0, after.gaps[row][number]) if number else 0)
                lost[call.operator] = lost.get(call.operator, 0) + own_ps
                total_ps += own_ps
                after.calls[row][number] = 0
                if number:
                    after.gaps[row][number] = min(0, after.gaps[row][number])
        gain_ps = self._replay.time_ps(before) - self._replay.time_ps(after)
        operator = max(lost, key=lambda name: lost[name], default="")
        gpu_ps = max(1, self._time_ps * len(self._run.ranks))
        return Cause(
            LATE_LAUNCH, (), operator, total_ps / gpu_ps, gain_ps // self._run.num_steps, gain_ps / self._time_ps
        )
