"""The points that an experiment still has to answer: of a grid or sample by number, or as a search draws them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np

from trine.errors import InputError, MissingExtraError, nearest
from trine.experiments.journal import Entry
from trine.experiments.spec import ExperimentSpec, Settings
from trine.experiments.values import RandomValues

#: A point by its number, with its fields if they do not follow from the number.
Point = tuple[int, Settings | None]
#: Trials that a search asks for at a time. Fixed, so that results do not depend on the number of workers.
BATCH = 8


class NumberedSource:
    """The points of a grid or a sample.

    points: numbers of all points; done: of those with an answer, and perhaps of other points.
    """

    def __init__(self, points: range, done: Iterable[int]) -> None:
        self._points, self._next = points, 0
        self._done = np.zeros(len(points), np.bool_)
        self._done[[points.index(point) for point in done if point in points]] = True
        self.left = len(points) - int(self._done.sum())

    def take(self, count: int) -> list[Point]:
        """Return the next points without an answer."""
        taken: list[Point] = []
        while len(taken) < count and self._next < len(self._points):
            if not self._done[self._next]:
                taken.append((self._points[self._next], None))
            self._next += 1
        return taken

    def has_left(self, points: range) -> bool:
        """Return whether one of ``points``, every n-th point of this source, has no answer."""
        start, step = self._points.index(points[0]), points.step // self._points.step
        return not self._done[start::step].all()

    def tell(self, entry: Entry) -> None:
        """Mark a point as answered."""
        position = self._points.index(entry["point"])
        self.left -= not self._done[position]
        self._done[position] = True


class SearchSource:
    """Trials of optuna's TPE sampler, in batches; a restart asks again and gets the answers from the journal.

    Raises MissingExtraError without optuna.
    """

    def __init__(self, spec: ExperimentSpec, entries: Iterable[Entry]) -> None:
        try:
            import optuna
        except ImportError:
            raise MissingExtraError("a search", "search", "optuna") from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        assert spec.search is not None
        self._vary, self._search, self._fail = spec.vary, spec.search, optuna.trial.TrialState.FAIL
        self._known = {(entry["point"], str(entry["fields"])): entry for entry in entries}
        self._study = optuna.create_study(
            sampler=optuna.samplers.TPESampler(seed=spec.seed),
            direction="minimize" if spec.search.minimise is not None else "maximize",
        )
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
                value = self._value(self._answers[number])
                self._study.tell(self._trials[number], value, state=self._fail if value is None else None)
            self._told += len(self._trials)
            self._trials, self._answers = {}, {}
            for number in range(self._told, min(self._told + BATCH, self._search.trials)):
                trial = self._trials[number] = self._study.ask()
                fields = {name: self._suggest(trial, name, axis) for name, axis in self._vary.items()}
                if (number, str(fields)) in self._known:
                    self._answers[number] = self._known[number, str(fields)]
                else:
                    self._queue.append((number, fields))

    def _suggest(self, trial: Any, name: str, axis: Any) -> Any:
        if not isinstance(axis, RandomValues):
            return trial.suggest_categorical(name, list(axis))
        suggest, kind = (trial.suggest_int, int) if axis.is_whole else (trial.suggest_float, float)
        return axis.with_unit(suggest(name, kind(axis.low), kind(axis.high), log=axis.is_log))

    def _value(self, entry: Entry) -> float | None:
        """Return the result to optimise; None (a failed trial for optuna) for a failed point."""
        if entry["status"] != "done":
            return None
        name, result = self._search.minimise or self._search.maximise, entry["result"]
        if not isinstance(result.get(name), int | float):
            numbers = [key for key, each in result.items() if isinstance(each, int | float)]
            raise InputError(f"no number called {name!r:.80} in the results{nearest(name, numbers)}", field="search")
        return float(result[name])
