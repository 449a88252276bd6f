"""Predictions of published steps, one process per core. Answers can be cached for later runs.

The key of an answer is a hash of the row, the question, and trine's data and code.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from trine.common.processes import process_pool
from trine.errors import InputError, SimulationError, TrineError
from trine.results import Result
from trine.results.waits import RANK_REASONS
from trine.software.profile import NO_SOFTWARE, USUAL_FACTORS, Software, known_software
from trine.training.software import as_software
from validation.harness import hash_sources
from validation.training_rows import TrainingRow, load_layouts, load_rows

#: Least share of the step that a usable critical path covers.
MIN_PATH = 0.5
#: Parts of the critical path -> the factor that they are multiplied by.
_PARTS = {"compute": "gpu", "launch": "cpu", "communication": "communication"}
#: Fields of a source that its rows' answers depend on.
_SOURCE_FIELDS = ("cluster", "software", "operators", "model", "plan", "fill")

#: Multipliers of three factors of a profile, :data:`trine.software.profile.USUAL_FACTORS` by default.
Triple = tuple[float, float, float]
ONES: Triple = (1.0, 1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Ask:
    """The question to each row. software: a profile or its name (``none``: no profile); None: the source's profile.

    names: the factors of compute, the launching thread, and communication or a part of it.
    """

    software: Software | str | None = None
    factors: Triple = ONES
    names: tuple[str, ...] = USUAL_FACTORS

    @staticmethod
    def of(software: Software | str | None) -> Ask:
        """Return the question for a profile, its name or file. Raises SpecError for an unknown profile."""
        if software is None or software in (NO_SOFTWARE, *known_software()):
            return Ask(software)
        return Ask(as_software(software))


@dataclass(frozen=True, kw_only=True, slots=True)
class Predicted:
    """The prediction of a row. shares: parts of the critical path by factor; simulated: simulated micro-batches.

    model_flops: of the step on one GPU; peak_flops: of the GPU, per second. software: name of the profile, or ``none``.
    cpu_s: CPU time of the prediction. why_not: the reason if the row has no prediction, else empty.
    """

    row: str
    step_s: float = 0.0
    shares: Triple = (1.0, 0.0, 0.0)
    simulated: int = 0
    micro_batches: int = 0
    memory_bytes: int = 0
    model_flops: float = 0.0
    peak_flops: float = 0.0
    software: str = "none"
    cpu_s: float = 0.0
    why_not: str = ""

    @staticmethod
    def read(record: Mapping[str, Any]) -> Predicted:
        """Return the prediction of a record, which may have other keys too. Raises KeyError for a missing key."""
        values = {field.name: record[field.name] for field in fields(Predicted)}
        return Predicted(**{**values, "shares": tuple(values["shares"])})

    def scaled(self, factors: Sequence[float], simulated_factors: Sequence[float] = ONES) -> float:
        """Return the step in seconds with other factors, along the same critical path."""
        fixed_share = 1 - sum(self.shares)
        scaled_share = sum(s * f / a for s, f, a in zip(self.shares, factors, simulated_factors, strict=True))
        return self.step_s * (fixed_share + scaled_share)


def predict(row: TrainingRow, ask: Ask | None = None) -> Predicted:
    """Predict one row; the result has a reason if that fails."""
    began = time.process_time()
    if row.fault:
        return Predicted(row=row.name, why_not=row.fault)
    try:
        return _predict_sound_row(row, ask or Ask(), began)
    except TrineError as error:
        return Predicted(row=row.name, why_not=str(error), cpu_s=time.process_time() - began)


def _predict_sound_row(row: TrainingRow, ask: Ask, began: float) -> Predicted:
    from trine.training import simulate
    from trine.training.options import SimulateOptions
    from trine.workload import synthesize

    software = _software(row, ask)
    workload = synthesize(row.transformer(), gpu=row.gpu, dtype=row.dtype, software=software)
    documents = row.facts.get("documents") or None
    options = SimulateOptions(
        cluster=row.load_cluster(), software=software, documents=documents, precision=row.recipe
    )  # fmt: skip
    result = simulate(workload, row.plan(), options=options)
    work = result.work
    simulated = row.micro_batches if result.repeats is None else result.repeats.simulated
    model_flops = 0.0 if work is None else work.model_flops / work.num_gpus
    peak_flops = (work.peak_flops or 0.0) if work is not None else 0.0
    return Predicted(
        row=row.name, step_s=result.step_time_ps / 1e12, shares=_shares(result), simulated=simulated,
        micro_batches=row.micro_batches, memory_bytes=result.memory_peak_bytes or 0, model_flops=model_flops,
        peak_flops=peak_flops, software=str(result.plan["software"]), cpu_s=time.process_time() - began,
    )  # fmt: skip


def _shares(result: Result) -> Triple:
    """Return shares of the critical path by factor, or of the slowest rank's time if the path is too short."""
    step = max(1, result.step_time_ps)
    path = result.critical_path_times
    shares = []
    for name in USUAL_FACTORS:
        shares.append(sum(ps for part, ps in path.items() if _PARTS.get(part) == name) / step)
    if sum(shares) < MIN_PATH:
        times, row = result.rank_times, result.slowest_row
        launch = times.waits[row, RANK_REASONS.index("launch")]
        shares = [float(part) / step for part in (times.compute[row], launch, times.exposed[row])]
    return shares[0], shares[1], shares[2]


def _software(row: TrainingRow, ask: Ask) -> Software | str:
    """Return the profile with its factors, or ``none``."""
    profile = row.profile() if ask.software is None else as_software(ask.software)
    if profile is None:
        return NO_SOFTWARE
    factors = dict(zip(ask.names, ask.factors, strict=True))
    return profile if ask.factors == ONES else profile.scaled(factors, "trine validate")


class Answers:
    """Kept answers, a line each, in ``folder``; None keeps them in memory only."""

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / "rows.jsonl"
        self._by_key: dict[str, Predicted] = {}
        if self._path is not None and self._path.is_file():
            for line in self._path.read_text().splitlines():
                self._take(line)

    def _take(self, line: str) -> None:
        try:
            entry = json.loads(line)
            self._by_key[entry["key"]] = Predicted.read(entry["answer"])
        except (ValueError, TypeError, KeyError):  # a line that is not whole: a kill in the middle of a write
            return

    @property
    def cpu_s(self) -> float:
        """CPU time of all cached answers, in seconds."""
        return sum(answer.cpu_s for answer in self._by_key.values())

    def get(self, row: TrainingRow, ask: Ask) -> Predicted | None:
        """Return the cached answer, or None."""
        return self._by_key.get(_key(row, ask))

    def add(self, row: TrainingRow, ask: Ask, answer: Predicted) -> None:
        """Keep an answer, in one write."""
        key = _key(row, ask)
        self._by_key[key] = answer
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a") as file:
                file.write(json.dumps({"key": key, "answer": asdict(answer)}, separators=(",", ":")) + "\n")
        except OSError:  # the folder is read-only: keep answers in memory only
            self._path = None


def user_answers() -> Answers:
    """Return the answers in the user's cache."""
    from trine.common.user_folders import user_cache

    base = user_cache()
    return Answers(None if base is None else base / "trine" / "validate")


def _key(row: TrainingRow, ask: Ask) -> str:
    source = {name: str(getattr(row.source, name)) for name in _SOURCE_FIELDS}
    parts = [hash_sources(), dict(row.facts), source, asdict(ask)]
    text = json.dumps(parts, sort_keys=True, default=Software.model_dump_json)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def replay(
    rows: Sequence[TrainingRow],
    ask: Ask | None = None,
    *,
    answers: Answers | None = None,
    jobs: int | None = None,
    done: Callable[[str], None] = lambda name: None,
) -> list[Predicted]:
    """Predict rows, ``jobs`` at a time (None: one per core), and keep each answer.

    done: called with the name of each finished row. Raises InputError if ``jobs`` is below 1.
    """
    if jobs is not None and jobs < 1:
        raise InputError(f"must be at least 1, got {jobs}", field="jobs")
    ask, answers = ask or Ask(), answers or Answers(None)
    answers_by_row = {}
    for row in rows:
        if (saved_answer := answers.get(row, ask)) is not None:
            answers_by_row[row.name] = saved_answer
    remaining = [row for row in rows if row.name not in answers_by_row]
    for name in answers_by_row:
        done(name)
    for row, answer in _answers(shuffled(remaining), ask, jobs or os.cpu_count() or 1):
        answers.add(row, ask, answer)
        answers_by_row[row.name] = answer
        done(row.name)
    return [answers_by_row[row.name] for row in rows]


def shuffled(rows: Iterable[TrainingRow]) -> list[TrainingRow]:
    """Return rows in the order of the hashes of their names: the first few are a fair sample."""
    return sorted(rows, key=lambda row: hashlib.sha256(row.name.encode()).digest())


def _answers(rows: Sequence[TrainingRow], ask: Ask, jobs: int) -> Iterator[tuple[TrainingRow, Predicted]]:
    if jobs == 1 or len(rows) < 2:
        for row in rows:
            yield row, predict(row, ask)
        return
    with process_pool(min(jobs, len(rows)), _end_on_interrupt) as pool:
        with _interrupts_held():
            row_of = {pool.submit(_by_name, row.name, ask): row for row in rows}
        try:
            for future in as_completed(row_of):
                yield row_of[future], future.result()
        except BrokenExecutor:
            raise SimulationError(
                "a worker process was killed, most likely for lack of memory: take fewer --jobs"
            ) from None
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Block Ctrl-C meanwhile, also in started processes, which inherit the mask."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_on_interrupt() -> None:
    """Let Ctrl-C end a worker process at once, without a traceback."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _by_name(name: str, ask: Ask) -> Predicted:
    """Predict a row in a worker process, which reads the rows itself."""
    return predict(_by_names()[name], ask)


@cache
def _by_names() -> dict[str, TrainingRow]:
    return {row.name: row for row in (*load_rows(), *load_layouts())}


def cost(row: TrainingRow) -> float:
    """Return the approximate work of a row: layers times simulated micro-batches."""
    try:
        plan = row.plan()
        simulated = min(row.micro_batches, 3 * plan.pp + 2 if plan.virtual_stages == 1 else 8 * plan.pp)
        return row.whole("layers") * simulated * (2 if plan.tp > 1 else 1)
    except TrineError:
        return 0.0
