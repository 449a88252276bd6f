"""The driver of an experiment: gives points to an executor, reads what workers wrote, and replaces lost workers."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, wait
from contextlib import suppress
from pathlib import Path

from trine.common.processes import SerialExecutor
from trine.errors import InputError, SimulationError, StorageError, one_line
from trine.experiments.executors import Workers
from trine.experiments.journal import Entry, folder_of, read_lines, shard_folders
from trine.experiments.locks import locked
from trine.experiments.places import make_folder, place_in
from trine.experiments.sources import NumberedSource, Point, SearchSource
from trine.experiments.spec import ExperimentSpec, Shard
from trine.experiments.worker import Question, Task, answer_task, close_journals, failed_entry, open_journal

#: Called with (answered, failed, all points of this run) after each call of a worker.
OnProgress = Callable[[int, int, int], None]

#: Time that one call of a worker should take, and the maximum of its points: small points go in groups.
_CALL_S, _MAX_GROUP = 0.25, 256
#: Losses after which a point runs alone, and further losses alone after which it counts as failed.
_SUSPECT_AFTER, _FAILED_AFTER = 2, 3
_MAX_LOSSES = 12
#: Assumed number of workers of an executor that does not give it.
_UNKNOWN_WORKERS = 16
#: Longest specification, in characters, that goes to the workers with every call.
_MAX_SENT = 20_000


class WorkersLostError(Exception):
    """Lost workers, or a lost connection to them. tasks: calls without an answer; cause: the first error."""

    def __init__(self, tasks: Iterable[Task], cause: BaseException) -> None:
        super().__init__(one_line(f"{type(cause).__name__}: {cause}", 200))
        self.tasks = tasks


def run_points(
    directory: Path, spec: ExperimentSpec, workers: Workers, shard: Shard, on_progress: OnProgress | None = None,
    question: Question | None = None,
) -> None:  # fmt: skip
    """Answer all points of a shard that have no result in the journals.

    question: the caller's function; None: trine's own question.

    Raises SimulationError if the workers stay lost, StorageError if the disk refuses a write, InputError for workers
    with another version of trine, and for a shard that shares points with an unfinished one.
    """
    with locked(directory, spec, shard):
        run = _Run(directory, spec, workers, shard, on_progress, question)
        try:
            run.until_done()
        finally:
            run.close()


class _Run:
    """State of one run of the driver."""

    def __init__(
        self, directory: Path, spec: ExperimentSpec, workers: Workers, shard: Shard, on_progress: OnProgress | None,
        question: Question | None,
    ) -> None:  # fmt: skip
        self._directory, self._spec, self._workers, self._shard = directory, spec, workers, shard
        self._on_progress, self._question = on_progress, question
        self._calls_of_shard = place_in(directory, "running", folder_of(directory, shard).name)
        self._start_claims()
        self._source: NumberedSource | SearchSource
        if spec.search is None:
            done = (line.point for line in read_lines(directory, spec, shard))
            self._source = NumberedSource(spec.points(shard), done)
            self._refuse_overlap(self._source)
        else:
            self._source = SearchSource(spec, (line.entry() for line in read_lines(directory, spec)))
        self._total, self._failed, self._calls = self._source.left, 0, 0
        self._again: deque[Point] = deque()
        self._losses: Counter[int] = Counter()
        self._point_s: float | None = None

    def _refuse_overlap(self, source: NumberedSource) -> None:
        """Refuse a shard of another size than an unfinished one: both drivers would answer the shared points.

        The other driver may run on another machine, where locks do not show it. A run without shards answers whatever
        ended shards have left.
        """
        if self._shard.of == 1:
            return
        for other, folder in shard_folders(self._directory).items():
            shared = self._shard.shared(other, self._spec.size) if 1 < other.of != self._shard.of else range(0)
            if shared and source.has_left(shared) and next(folder.glob("*.jsonl"), None) is not None:
                raise InputError(
                    f"shard {self._shard} shares points with shard {other}, which is not finished: go on with shards "
                    f"i/{other.of}, or without --shard once all of them have ended", file=self._directory,
                )  # fmt: skip

    def _start_claims(self) -> None:
        """Start a new folder for claims, before the journals are read.

        Calls with claims in the old folder, which a scheduler may still run, end before their next point.
        """
        shutil.rmtree(self._calls_of_shard, ignore_errors=True)
        self._claims = self._calls_of_shard / os.urandom(4).hex()
        if self._workers.repeats:
            make_folder(self._directory, *self._claims.relative_to(self._directory).parts)

    def until_done(self) -> None:
        """Feed executors until every point has an answer."""
        losses, lost_since = 0, time.monotonic()
        while left := self._source.left:
            try:
                self._with_executor()
                continue
            except WorkersLostError as lost:
                self._take_back(lost)
                problem = str(lost)
            if self._source.left < left:
                losses, lost_since = 0, time.monotonic()
            losses += 1
            most = _MAX_LOSSES if self._workers.is_owned else 1  # trine cannot replace the caller's executor
            if losses > most and time.monotonic() - lost_since > self._workers.patience_s:
                raise SimulationError(
                    f"the workers were lost {losses} times in a row ({problem}); start again to go on"
                )
            time.sleep(min(5.0, 0.05 * 2**losses))

    def _with_executor(self) -> None:
        try:
            executor = self._workers.make()
        except (OSError, TimeoutError) as error:
            raise WorkersLostError([], error) from None
        is_done = False
        try:
            self._feed(executor)
            is_done = True
        finally:
            if self._workers.is_owned:
                with suppress(Exception):
                    executor.shutdown(wait=is_done, cancel_futures=True)

    def _feed(self, executor: Executor) -> None:
        pending: dict[Future[list[Entry]], Task] = {}
        lost: list[Task] = []
        cause: BaseException = ConnectionError("no connection to the scheduler")
        count = getattr(executor, "_max_workers", None)
        count = count if isinstance(count, int) else _UNKNOWN_WORKERS
        window = 1 if isinstance(executor, SerialExecutor) else 2 * count
        while not lost and getattr(executor, "is_connected", True):
            while len(pending) < window and (task := self._next_task(len(pending), count)) is not None:
                try:
                    pending[executor.submit(answer_task, task)] = task
                except (RuntimeError, OSError) as error:  # a broken pool is a RuntimeError
                    raise WorkersLostError([task, *pending.values()], error) from None
            if not pending:
                return
            finished, _ = wait(pending, timeout=1.0, return_when=FIRST_COMPLETED)
            for future in finished:
                task = pending.pop(future)
                try:
                    self._tell(future.result(), task)
                except InputError:
                    raise
                except (Exception, CancelledError) as error:  # of the executor: errors of points are answers
                    cause = error
                    lost.append(task)
        raise WorkersLostError([*lost, *pending.values()], cause)

    def _next_task(self, num_pending: int, workers: int) -> Task | None:
        """Return the next call, or None to wait for calls in flight.

        A call has one point at first, then about a quarter of a second of work. Points under suspicion run alone.
        """
        size = 1
        if self._point_s is not None:
            share = self._source.left // (4 * workers)
            size = max(1, min(_MAX_GROUP, share, int(_CALL_S / max(self._point_s, 1e-6))))
        points: list[Point] = []
        while self._again and len(points) < size and self._losses[self._again[0][0]] < _SUSPECT_AFTER:
            points.append(self._again.popleft())
        if not points and self._again:
            if num_pending:
                return None
            points = [self._again.popleft()]
        points = points or self._source.take(size)
        if not points:
            return None
        self._calls += 1
        claim = ""
        if self._workers.repeats:
            claim = str(self._claims / str(self._calls))
            try:
                Path(claim).touch()
            except OSError as error:
                raise StorageError(f"cannot write: {error.strerror or error}", file=claim) from None
        text = self._spec.text if len(self._spec.text) < _MAX_SENT else self._spec.id
        return Task(text, str(self._directory), self._shard, tuple(points), claim, question=self._question)

    def _tell(self, entries: list[Entry], task: Task) -> None:
        """Record the answers of a call, and write those that its worker could not write."""
        for entry in entries:
            if not entry.pop("is_written"):
                open_journal(task, self._spec).append(entry)
            self._source.tell(entry)
            self._failed += entry["status"] == "failed"
            seconds = entry["seconds"]
            self._point_s = seconds if self._point_s is None else 0.8 * self._point_s + 0.2 * seconds
        if task.claim:
            Path(task.claim).unlink(missing_ok=True)
        if self._on_progress is not None:
            self._on_progress(self._total - self._source.left, self._failed, self._total)

    def _take_back(self, lost: WorkersLostError) -> None:
        """Read what lost workers wrote; the first other point of each call was in flight, and all others repeat."""
        self._start_claims()
        points = {point for task in lost.tasks for point, _ in task.points}
        lines = read_lines(self._directory, self._spec, self._shard)
        written = {line.point: line for line in lines if line.point in points}
        self._tell([{**line.entry(), "is_written": True} for line in written.values()], Task("", "", self._shard, ()))
        for task in lost.tasks:
            missing = [point for point in task.points if point[0] not in written]
            for number, _ in missing[:1]:
                self._losses[number] += 1
            self._again.extend(point for point in missing if not self._give_up(point, str(lost)))
        self._again = deque(sorted(self._again, key=lambda point: (self._losses[point[0]], point[0])))

    def _give_up(self, point: Point, problem: str) -> bool:
        """Record a point as failed if its local workers keep ending."""
        number, chosen = point
        losses = self._losses[number]
        if losses < _SUSPECT_AFTER + _FAILED_AFTER or self._workers.repeats or not self._workers.is_owned:
            return False
        fields = self._spec.fields_of(number) if chosen is None else chosen
        entry = failed_entry(self._spec, number, fields, f"its worker ended {losses} times ({problem})")
        self._tell([{**entry, "is_written": False}], Task("", str(self._directory), self._shard, ()))
        return True

    def close(self) -> None:
        """Close the journals of this process, and remove notes about calls in flight."""
        close_journals(self._directory)
        shutil.rmtree(self._calls_of_shard, ignore_errors=True)
