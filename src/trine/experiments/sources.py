"""The points that an experiment still has to answer: of a grid or sample by number, or as a search draws them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np

from trine.errors import InputError, MissingExtraError, nearest
from trine.experiments.journal import Entry
from trine.experiments.spec import ExperimentSpec, Settings, Shard
from trine.experiments.values import RandomValues

#: A point by its number, with its fields if they do not follow from the number.
Point = tuple[int, Settings | None]
#: Trials that a search asks for at a time. Fixed, so that results do not depend on the number of workers.
BATCH = 8


class NumberedSource:
    """The points of a grid or a sample.

    done: numbers of answered points.
    """

    def __init__(self, spec: ExperimentSpec, shard: Shard, done: Iterable[int]) -> None:
        self._shard = shard
        self._total = len(range(shard.number, spec.size, shard.count))
        self._done = np.zeros(self._total, np.bool_)
        for point in done:
            position, rest = divmod(point - shard.number, shard.count)
            if rest == 0:
                self._done[position] = True
        self._left, self._next = self._total - int(self._done.sum()), 0

    def take(self, count: int) -> list[Point]:
        """Return the next points without an answer."""
        points: list[Point] = []
        while len(points) < count and self._next < self._total:
            if not self._done[self._next]:
                points.append((self._next * self._shard.count + self._shard.number, None))
            self._next += 1
        return points

    def tell(self, entry: Entry) -> None:
        """Mark a point as answered."""
        position = (entry["point"] - self._shard.number) // self._shard.count
        self._left -= not self._done[position]
        self._done[position] = True

    @property
    def left(self) -> int:
        """Number of points without an answer."""
        return self._left


class SearchSource:
    """Trials of optuna's TPE sampler, in batches; a restart asks again and gets the answers from the journal.

    Raises MissingExtraError without optuna.
    """

    def __init__(self, spec: ExperimentSpec, entries: Iterable[Entry]) -> None:
        self._optuna = _optuna()
        assert spec.search is not None
        self._spec, self._search = spec, spec.search
        self._known = {(entry["point"], str(entry["fields"])): entry for entry in entries}
        sampler = self._optuna.samplers.TPESampler(seed=spec.seed)
        direction = "minimize" if spec.search.minimise is not None else "maximize"
        self._study = self._optuna.create_study(sampler=sampler, direction=direction)
        self._trials: dict[int, Any] = {}
        self._answers: dict[int, Entry] = {}
        self._queue: deque[Point] = deque()
        self._told = 0
        self._advance()

    def take(self, count: int) -> list[Point]:
        """Return trials of the current batch."""
        return [self._queue.popleft() for _ in range(min(count, len(self._queue)))]

    def tell(self, entry: Entry) -> None:
        """Record a trial's result; the last one of a batch starts the next batch."""
        self._answers[entry["point"]] = entry
        self._advance()

    @property
    def left(self) -> int:
        """Number of trials without a result."""
        return self._search.trials - self._told - len(self._answers)

    def _advance(self) -> None:
        while len(self._answers) == len(self._trials) and self._told < self._search.trials:
            for number in sorted(self._trials):
                self._tell_study(self._trials[number], self._answers[number])
            self._told += len(self._trials)
            self._trials, self._answers = {}, {}
            for number in range(self._told, min(self._told + BATCH, self._search.trials)):
                self._ask(number)

    def _ask(self, number: int) -> None:
        trial = self._study.ask()
        fields = {name: self._suggest(trial, name, axis) for name, axis in self._spec.vary.items()}
        self._trials[number] = trial
        known = self._known.get((number, str(fields)))
        if known is None:
            self._queue.append((number, fields))
        else:
            self._answers[number] = known

    def _suggest(self, trial: Any, name: str, axis: Any) -> Any:
        if not isinstance(axis, RandomValues):
            return trial.suggest_categorical(name, list(axis))
        suggest = trial.suggest_int if axis.is_whole else trial.suggest_float
        ends = (int(axis.low), int(axis.high)) if axis.is_whole else (axis.low, axis.high)
        return axis.with_unit(suggest(name, *ends, log=axis.is_log))

    def _tell_study(self, trial: Any, entry: Entry) -> None:
        if entry["status"] != "done":
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
            return
        name = self._search.minimise or self._search.maximise or ""
        value = entry["result"].get(name)
        if not isinstance(value, int | float):
            numbers = [key for key, each in entry["result"].items() if isinstance(each, int | float)]
            raise InputError(f"no number called {name!r:.80} in the results{nearest(name, numbers)}", field="search")
        self._study.tell(trial, value)


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise MissingExtraError("a search", "search", "optuna") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
