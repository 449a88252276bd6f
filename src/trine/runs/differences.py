"""The terms that explain the difference of a measured run and its reference, each with the effect of removing it.

The reference is another measured run or a prediction. Each term gives one kind of duration the reference's value: the
kernels of all ranks or of one, the transfers, the launches. Its effect is the difference of two replays of the
measured run, so that time behind other work counts nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trine.runs.causes import IMBALANCE, STRAGGLER
from trine.runs.measured_run import MeasuredRun
from trine.runs.peers import lower_median
from trine.runs.reference import BY_PHASE, RunReference
from trine.runs.replay import Durations, Replay

KERNELS, ALGORITHM, TRANSFERS, LAUNCHES = "kernel times", "algorithm", "slow link", "CPU launch"
#: Communication of a run in which one rank alone is known: its transfers and its waits cannot be told apart.
COMMUNICATION = "communication (transfers and waits)"
#: A rank's kernels are slower than the others' if the ratio of its slowdown and theirs reaches this. Assumed.
_MIN_STRAGGLER = 1.02
#: Ranks that lose this share of what the first one loses in transfers are named with it. Assumed.
_MOST = 0.9
#: Terms with smaller effects are left out, as a share of the step.
_MIN_SHARE = 0.001


@dataclass(frozen=True, slots=True)
class RemovalEffect:
    """One term: its kind, ranks (() for all), the operator or collective with the largest part, and the time in ps
    that the measured step loses by it; negative if the measured run is faster.
    """

    kind: str
    ranks: tuple[int, ...]
    operator: str
    ps: int


@dataclass(frozen=True, slots=True)
class Differences:
    """effects: the largest first. unexplained_ps: the difference that the effects together leave. aligned: share of the
    kernels' time that was aligned by kernel, by operator and by phase.
    """

    effects: tuple[RemovalEffect, ...]
    unexplained_ps: int
    aligned: dict[str, float]


def find_differences(run: MeasuredRun, reference: RunReference) -> Differences:
    """Return the terms of the difference between the step of ``run`` and its reference."""
    return _Terms(run, reference).differences()


class _Terms:
    """The replays of one comparison."""

    def __init__(self, run: MeasuredRun, reference: RunReference) -> None:
        self._run, self._reference = run, reference
        self._replay = Replay(run)
        self._factors = [self._factor(row) for row in range(len(run.ranks))]
        self._common = lower_median_ratio(self._factors)
        self._all = self._replay.base.copy()

    def differences(self) -> Differences:
        effects = []
        for effect, durations in (
            *self._kernel_terms(), *self._uneven_terms(), *self._transfer_terms(), *self._launch_terms()
        ):  # fmt: skip
            self._combine(durations)
            if abs(effect.ps) >= _MIN_SHARE * self._run.step_ps:
                effects.append(effect)
        effects.sort(key=lambda effect: -abs(effect.ps))
        difference_ps = self._run.step_ps - self._reference.step_ps
        explained_ps = (self._run.time_ps - self._replay.time_ps(self._all)) // self._run.num_steps
        if self._reference.calls is None:
            explained_ps += sum(effect.ps for effect in effects if effect.kind == LAUNCHES)
        return Differences(tuple(effects), difference_ps - explained_ps, self._aligned())

    def _effect(self, kind: str, ranks: tuple[int, ...], lost: dict[str, int], durations: Durations) -> RemovalEffect:
        ps = (self._run.time_ps - self._replay.time_ps(durations)) // self._run.num_steps
        operator = max(lost, key=lambda name: lost[name] if ps >= 0 else -lost[name], default="")
        return RemovalEffect(kind, ranks, operator, ps)

    def _combine(self, durations: Durations) -> None:
        """Add the changes of a term to the replay of all terms."""
        base, target = self._replay.base, self._all
        for old, new, result in zip(
            (base.kernels, base.calls, base.gaps), (durations.kernels, durations.calls, durations.gaps),
            (target.kernels, target.calls, target.gaps), strict=True,
        ):  # fmt: skip
            for row, values in enumerate(new):
                for number, value in enumerate(values):
                    if value != old[row][number]:
                        scale = value / old[row][number] if old[row][number] else 0.0
                        result[row][number] = round(result[row][number] * scale) if old[row][number] else value

    def _is_uneven(self, row: int, number: int) -> bool:
        """Return whether a kernel has no counterpart in a reference that has most of this rank's kernels."""
        return self._reference.kernels[row][number] is None

    def _factor(self, row: int) -> float:
        """Return the slowdown of a rank's kernels that run beside no collective; of all kernels if there are none."""
        sums = {True: [0, 0], False: [0, 0]}
        for number, activity in enumerate(self._run.ranks[row].activities):
            reference = self._reference.kernels[row][number]
            if activity.collective is None and reference is not None:
                sums[reference.is_clean][0] += activity.duration_ps
                sums[reference.is_clean][1] += reference.time_ps
        own, other = sums[True] if sums[True][1] else sums[False]
        return own / other if own and other else 1.0

    def _kernel_terms(self) -> Iterator[tuple[RemovalEffect, Durations]]:
        """Yield the term of all ranks' kernels, and one for each rank that is slower still."""
        common = self._replay.base.copy()
        lost: dict[str, int] = {}
        for row, trace in enumerate(self._run.ranks):
            share = self._factors[row] / self._common
            for number, activity in enumerate(trace.activities):
                reference = self._reference.kernels[row][number]
                if activity.collective is not None or reference is None:
                    continue
                if reference.is_clean:
                    time_ps = round(reference.time_ps * (share if share >= _MIN_STRAGGLER else 1.0))
                else:
                    time_ps = round(activity.duration_ps / (self._common if share >= _MIN_STRAGGLER else
                                                            self._factors[row]))  # fmt: skip
                common.kernels[row][number] = time_ps
                lost[activity.operator] = lost.get(activity.operator, 0) + activity.duration_ps - time_ps
        yield self._effect(KERNELS, (), lost, common), common
        for row in range(len(self._run.ranks)):
            if self._factors[row] >= _MIN_STRAGGLER * self._common:
                yield self._straggler(row)

    def _straggler(self, row: int) -> tuple[RemovalEffect, Durations]:
        share = self._factors[row] / self._common
        durations = self._replay.base.copy()
        self._without_waits(durations, row)
        lost: dict[str, int] = {}
        trace = self._run.ranks[row]
        for number, activity in enumerate(trace.activities):
            if activity.collective is None and self._reference.kernels[row][number] is not None:
                time_ps = round(activity.duration_ps / share)
                durations.kernels[row][number] = time_ps
                lost[activity.operator] = lost.get(activity.operator, 0) + activity.duration_ps - time_ps
        return self._effect(STRAGGLER, (trace.rank,), lost, durations), durations

    def _without_waits(self, durations: Durations, but: int = -1) -> None:
        """Give kernels beside collectives the reference's times at this run's speed, as if collectives did not wait."""
        for row, trace in enumerate(self._run.ranks):
            if row == but:
                continue
            for number in range(len(trace.activities)):
                reference = self._reference.kernels[row][number]
                if reference is None or reference.is_clean or reference.aligned == BY_PHASE:
                    continue
                time_ps = round(reference.time_ps * self._factors[row])
                durations.kernels[row][number] = min(durations.kernels[row][number], time_ps)

    def _uneven_terms(self) -> Iterator[tuple[RemovalEffect, Durations]]:
        """Yield the term of kernels that only this run has."""
        durations = self._replay.base.copy()
        lost: dict[str, int] = {}
        ranks = []
        for row, trace in enumerate(self._run.ranks):
            more_ps = 0
            for number, activity in enumerate(trace.activities):
                if activity.collective is None and self._is_uneven(row, number):
                    durations.kernels[row][number] = 0
                    more_ps += activity.duration_ps
                    lost[activity.operator] = lost.get(activity.operator, 0) + activity.duration_ps
            if more_ps > _MIN_SHARE * self._run.time_ps:
                ranks.append(trace.rank)
        if ranks:
            named = tuple(ranks) if len(ranks) < len(self._run.ranks) else ()
            yield self._effect(IMBALANCE, named, lost, durations), durations

    def _transfer_terms(self) -> Iterator[tuple[RemovalEffect, Durations]]:
        """Yield the term of collectives with another algorithm, and the term of those with the same one."""
        for kind, is_other in ((ALGORITHM, True), (TRANSFERS, False)):
            durations = self._replay.base.copy()
            lost: dict[str, int] = {}
            lost_by_rank: dict[int, int] = {}
            for index, transfer in self._reference.transfers.items():
                instance = self._run.instances[index]
                has_other = bool(transfer.algorithm and instance.call.algorithm) and (
                    transfer.algorithm != instance.call.algorithm
                )
                if has_other != is_other:
                    continue
                for row, place in instance.members:
                    more_ps = durations.kernels[row][place] - transfer.time_ps
                    durations.kernels[row][place] = transfer.time_ps
                    name = instance.call.kind
                    if has_other:
                        name += f" ({instance.call.algorithm}, {transfer.algorithm} in {self._reference.name})"
                    lost[name] = lost.get(name, 0) + more_ps
                    rank = self._run.ranks[row].rank
                    lost_by_rank[rank] = lost_by_rank.get(rank, 0) + more_ps
            if lost:
                self._without_waits(durations)
                most = max(lost_by_rank.values())
                ranks = tuple(sorted(rank for rank, ps in lost_by_rank.items() if ps > _MOST * most > 0))
                named = ranks if not is_other and len(ranks) < len(self._run.ranks) else ()
                yield self._effect(kind, named, lost, durations), durations
        if self._reference.lone_transfers:
            durations = self._replay.base.copy()
            lost = {}
            for (row, place), transfer in self._reference.lone_transfers.items():
                call = self._run.ranks[row].activities[place].collective
                kind = call.kind if call is not None else ""
                lost[kind] = lost.get(kind, 0) + durations.kernels[row][place] - transfer.time_ps
                durations.kernels[row][place] = transfer.time_ps
            yield self._effect(COMMUNICATION, (), lost, durations), durations

    def _launch_terms(self) -> Iterator[tuple[RemovalEffect, Durations]]:
        durations = self._replay.base.copy()
        lost: dict[str, int] = {}
        lost_by_rank: dict[int, int] = {}
        calls, gaps = self._reference.calls, self._reference.gaps
        for row, trace in enumerate(self._run.ranks):
            for number, call in enumerate(trace.calls):
                before_ps = durations.calls[row][number] + durations.gaps[row][number]
                durations.calls[row][number] = 0 if calls is None else calls[row][number]
                if gaps is not None:
                    durations.gaps[row][number] = gaps[row][number]
                elif number:
                    durations.gaps[row][number] = min(0, durations.gaps[row][number])
                more_ps = before_ps - durations.calls[row][number] - durations.gaps[row][number]
                lost[call.operator] = lost.get(call.operator, 0) + more_ps
                lost_by_rank[trace.rank] = lost_by_rank.get(trace.rank, 0) + more_ps
        if calls is None and self._reference.launch_ps is None:
            return
        effect = self._effect(LAUNCHES, (), lost, durations)
        if calls is not None and effect.ps >= _MIN_SHARE * self._run.step_ps:
            self._without_waits(durations)
            effect = self._effect(LAUNCHES, (), lost, durations)
        if calls is None:
            ps = effect.ps - (self._reference.launch_ps or 0)
            yield RemovalEffect(LAUNCHES, (), effect.operator, ps), self._replay.base
            return
        most = max(lost_by_rank.values(), default=0)
        ranks = tuple(sorted(rank for rank, ps in lost_by_rank.items() if ps > most / 2 > 0))
        yield (
            RemovalEffect(LAUNCHES, ranks if len(ranks) < len(self._run.ranks) else (), effect.operator, effect.ps),
            durations,
        )

    def _aligned(self) -> dict[str, float]:
        times: dict[str, int] = {}
        total_ps = 0
        for row, trace in enumerate(self._run.ranks):
            for number, activity in enumerate(trace.activities):
                if activity.collective is None:
                    reference = self._reference.kernels[row][number]
                    name = "not" if reference is None else reference.aligned
                    times[name] = times.get(name, 0) + activity.duration_ps
                    total_ps += activity.duration_ps
        return {name: ps / max(1, total_ps) for name, ps in sorted(times.items())}


def lower_median_ratio(values: list[float]) -> float:
    """Return the lower median of ratios."""
    return lower_median([round(value * 10**9) for value in values]) / 10**9
