"""Checks of plug-ins: collective algorithms, compute models and trace readers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory

from trine.collectives.algorithm import MakeSchedule
from trine.collectives.expand import expand
from trine.collectives.schedule import ROOTED, Schedule, Sends
from trine.common.evidence import EVIDENCE, MEASURED
from trine.compute.law import FitReport
from trine.compute.models import ComputeModel
from trine.compute.resize import Split
from trine.compute.roofline import Duration
from trine.errors import PlanError, TrineError
from trine.graph.taskgraph import Records, TaskGraph
from trine.graph.workload import Operator, Workload
from trine.testing import schedule_proof
from trine.workload.consistency import check_workload
from trine.workload.native import load_native, save
from trine.workload.readers import TraceReader

# Assertions that the conformance checks share.


def require(condition: bool, message: str) -> None:
    """Raise AssertionError with ``message`` unless ``condition`` holds; unlike ``assert``, python -O keeps it."""
    if not condition:
        raise AssertionError(message)


def require_order(graph: TaskGraph, records: Records, task: int, case: str) -> None:
    """Raise AssertionError if a task starts before its predecessors have ended."""
    require(
        records.start_ps[task] >= records.end_ps[graph.predecessors(task)].max(initial=0),
        f"{case}: task {task} starts before its dependencies have ended",
    )


SIZES = (0, 1, 10, 4096, 1_000_003, 64 * 2**20)


def check_collective(kind: str, make: MakeSchedule, *, ranks: Iterable[int] | None = None) -> None:
    """Prove that ``make`` implements the collective ``kind``, by running its schedules on symbols.

    The proof covers 1 to 9 ranks (send_recv: 2), every root and several sizes. ``ranks`` overrides the rank counts, for
    example for algorithms that need a power of two. Every rank must end with the right data, each contribution once, in
    any order that the dependencies allow. Chunks must add up to the payload. A schedule must repeat its arguments, be
    the same on every call, and declare ``shift_symmetric`` and ``symmetry`` only if they hold.
    """
    require(kind in schedule_proof.KINDS, f"the collective {kind!r} is not one of {', '.join(schedule_proof.KINDS)}")
    if ranks is not None:
        counts = ranks
    elif kind == "send_recv":
        counts = (2,)
    else:
        counts = range(1, 10)
    for num_ranks in counts:
        proven: set[tuple[int, int]] = set()
        questions = []
        for s in SIZES:
            for r in range(num_ranks) if kind in ROOTED else (-1,):
                questions.append((s, r))
        for size, root in questions:
            case = f"{kind} of {num_ranks} ranks, {size} bytes" + ("" if root < 0 else f", root {root}")
            try:
                schedule = make(num_ranks, size, root)
                _require_arguments(schedule, kind, num_ranks, size, root, case)
                if (schedule.num_chunks, root) not in proven:
                    _require_sends(schedule, case)
                    schedule_proof.check_schedule(schedule)
                    proven.add((schedule.num_chunks, root))
                num_bytes = expand(schedule).size_bytes.sum()
            except TrineError as error:
                raise AssertionError(f"{case}: {error}") from error
            require(num_ranks == 1 or size == 0 or num_bytes > 0, f"{case}: moves no bytes")


def _require_arguments(schedule: Schedule, kind: str, num_ranks: int, size: int, root: int, case: str) -> None:
    """Check that the schedule repeats its arguments, and that its chunks match the payload."""
    arguments = {"kind": kind, "num_ranks": num_ranks, "size_bytes": size} | ({"root": root} if root >= 0 else {})
    for name, value in arguments.items():
        require(getattr(schedule, name) == value, f"{case}: the schedule says {name} {getattr(schedule, name)!r}")
    chunks, chunk_bytes = schedule.num_chunks, schedule.chunk_bytes
    require(chunks >= 1 and chunk_bytes >= 0, f"{case}: {chunks} chunks of {chunk_bytes} bytes")
    # The payload of an all-to-all is the blocks that one rank sends; the payload of a shift is one rank's buffer.
    if kind in schedule_proof.BLOCKED:
        parts = num_ranks
    elif kind == "shift":
        parts = chunks // num_ranks
    else:
        parts = chunks
    require(
        size <= parts * chunk_bytes < size + parts,
        f"{case}: {parts} chunks of {chunk_bytes} bytes are {parts * chunk_bytes}; equal chunks, rounded up, would "
        f"have {-(-size // parts)} bytes each",
    )
    if kind in schedule_proof.PARTED:
        require(chunks % num_ranks == 0, f"{case}: {chunks} chunks do not divide over {num_ranks} ranks")


def _require_sends(schedule: Schedule, case: str) -> None:
    """Check that each rank's and switch's sends are well formed, repeatable, and symmetric if so declared."""
    shape = schedule.num_ranks, schedule.num_chunks, schedule.root
    first = schedule.sends_of(0, *shape)
    for position in range(schedule.num_ranks + schedule.num_switches):
        sends = schedule.sends_of(position, *shape)
        columns = {field.name: getattr(sends, field.name) for field in fields(Sends)}
        lengths = {name: len(column) for name, column in columns.items() if column is not None}
        require(len(set(lengths.values())) == 1, f"{case}: columns of rank {position} have the lengths {lengths}")
        require(
            schedule_proof.equal_sends(sends, schedule.sends_of(position, *shape)),
            f"{case}: the sends of rank {position} differ from call to call",
        )
        if schedule.shift_symmetric and position < schedule.num_ranks:
            require(
                schedule_proof.equal_sends(sends, schedule_proof.shifted_sends(schedule, first, position)),
                f"{case}: declares shift_symmetric, but the sends of rank {position} differ from the shifted sends of "
                "rank 0",
            )


def check_compute_model(model: ComputeModel, workload: Workload, *, anchored: bool = True, slack: float = 0.0) -> None:
    """Check ``model``, made for ``workload``, on each of its operators at batches near and far from the trace's.

    At the trace's own sizes it must return the recorded time; elsewhere it may raise PlanError. Times must be whole
    picoseconds, not negative, and must not fall as the batch grows. The evidence must be one of trine's words. A second
    pass in another order must give equal results. ``anchored`` False is for models that also predict the trace's own
    sizes: only times they call 'measured' must equal the recorded ones. ``slack``: the fraction by which a larger batch
    may be faster, for models that follow measurements, since a larger batch may fill a GPU better.
    """
    require(isinstance(model.name, str) and model.name != "", f"a compute model has a name, {model!r} has not")
    case = f"compute model {model.name!r}"
    recorded = workload.batch
    batches = sorted({1, 2, 3, max(1, recorded // 2), recorded, recorded + 1, 2 * recorded, 10 * recorded})
    questions = [(operator, batch) for operator in workload.operators for batch in batches]
    answers = {(op.id, batch): _duration(model, op, batch, recorded, case) for op, batch in questions}
    for op in workload.operators:
        _require_recorded(op, answers[op.id, recorded], anchored, f"{case}, operator {op.id} ({op.name})")
        longest, longest_batch = 0, 0
        for batch in batches:
            answer = answers[op.id, batch]
            if answer is not None:
                require(
                    answer.ps >= longest * (1 - slack),
                    f"{case}, operator {op.id} ({op.name}): {answer.ps} ps at batch {batch}, but {longest} ps at "
                    f"batch {longest_batch}",
                )
                longest, longest_batch = answer.ps, batch
    for op, batch in reversed(questions):
        second = _duration(model, op, batch, recorded, case)
        require(
            second == answers[op.id, batch],
            f"{case}, operator {op.id} ({op.name}), batch {batch}: {answers[op.id, batch]} at first, {second} when "
            "asked again",
        )
    report, notes = model.fit_report(), model.notes
    require(report is None or isinstance(report, FitReport), f"{case}: fit_report() returns {report!r}")
    require(
        isinstance(notes, tuple) and all(isinstance(note, str) for note in notes),
        f"{case}: notes are a tuple of sentences, not {notes!r}",
    )


def _duration(model: ComputeModel, operator: Operator, batch: int, recorded: int, case: str) -> Duration | None:
    """Return the model's duration after checking its form, or None if the model refuses."""
    case = f"{case}, operator {operator.id} ({operator.name}), batch {batch}"
    try:
        answer = model.duration(operator, Split(batch))
    except PlanError as error:
        require(batch != recorded, f"{case}: refuses the trace's own sizes: {error}")
        return None
    is_number = isinstance(answer, Duration) and isinstance(answer.ps, int) and not isinstance(answer.ps, bool)
    require(is_number, f"{case}: a duration is a Duration of whole picoseconds, not {answer!r}")
    require(answer.ps >= 0, f"{case}: takes {answer.ps} ps")
    require(
        answer.evidence in EVIDENCE, f"{case}: the evidence is {answer.evidence!r}, not one of {', '.join(EVIDENCE)}"
    )
    return answer


def _require_recorded(operator: Operator, answer: Duration | None, anchored: bool, case: str) -> None:
    """Check the duration at the trace's own sizes."""
    if answer is not None and (anchored or answer.evidence == MEASURED):
        require(
            answer.ps == operator.gpu_time_ps,
            f"{case}: {answer.ps} ps ({answer.evidence}) at the trace's own sizes, recorded were "
            f"{operator.gpu_time_ps} ps",
        )


def check_reader(reader: TraceReader, path: str | Path) -> None:
    """Check that ``reader`` finds and reads the trace at ``path``, and ignores an empty folder.

    The workload must be non-empty, consistent, the same on every read, and unchanged by a round trip through trine's
    own format. For an empty folder ``find`` must return None, so that trine tries the next reader.
    """
    case = f"trace reader {reader.name!r}"
    require(bool(reader.name) and bool(reader.looks_for), f"{case}: needs a name and a text looks_for")
    with TemporaryDirectory() as folder:
        _require_finds_nothing(reader, Path(folder), case)
    try:
        files = reader.find(Path(path))
        if not files:
            raise AssertionError(f"{case}: finds nothing at {path}; it looks for {reader.looks_for}")
        for role, file in files.items():
            require(isinstance(file, Path) and file.exists(), f"{case}: found {file!r} as {role!r}, which is no file")
        workload, reread = reader.read(files, None), reader.read(files, None)
        require(isinstance(workload, Workload), f"{case}: reads {workload!r}, which is no Workload")
        require(workload == reread, f"{case}: another workload when {path} is read again")
        check_workload(workload, Path(path))
        batch = reader.read(files, workload.batch).batch
        require(batch == workload.batch, f"{case}: batch {workload.batch} was given, the workload has {batch}")
    except TrineError as error:
        raise AssertionError(f"{case}: {error}") from error
    require(len(workload.operators) > 0, f"{case}: read no operator from {path}")
    for op in workload.operators:
        require(op.gpu_time_ps >= 0, f"{case}: operator {op.id} ({op.name}) takes {op.gpu_time_ps} ps")
    _require_round_trip(workload, case)


def _require_finds_nothing(reader: TraceReader, folder: Path, case: str) -> None:
    try:
        files = reader.find(folder)
    except TrineError as error:
        raise AssertionError(f"{case}: find() must return None for an empty folder, not raise: {error}") from error
    require(files is None, f"{case}: finds {files!r} in an empty folder instead of None")


def _require_round_trip(workload: Workload, case: str) -> None:
    """Write the workload in trine's own format and read it back."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "a.trine.json"
        try:
            save(workload, file)
            back = load_native(file)
        except TrineError as error:
            raise AssertionError(f"{case}: the workload does not survive trine's own format: {error}") from error
    for field in fields(Workload):
        before, after = getattr(workload, field.name), getattr(back, field.name)
        require(
            before == after,
            f"{case}: {field.name} of the workload comes back different from trine's own format: {before!r:.200} "
            f"became {after!r:.200}",
        )
