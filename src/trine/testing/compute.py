"""The check of compute models."""

from __future__ import annotations

from trine.compute.law import FitReport
from trine.compute.models import ComputeModel
from trine.compute.resize import Split
from trine.compute.roofline import Duration
from trine.errors import PlanError
from trine.evidence import EVIDENCE, MEASURED
from trine.graph.workload import Operator, Workload
from trine.testing.require import require


def check_compute_model(model: ComputeModel, workload: Workload, *, anchored: bool = True, slack: float = 0.0) -> None:
    """Check ``model``, made for ``workload``, on each of its operators at batches around and far from the trace's.

    At the trace's own sizes it must answer, and with the recorded time; elsewhere it may refuse with PlanError. Times
    are whole picoseconds, not negative, and do not fall as the batch grows; the evidence is a word that trine knows;
    asked again in another order it says the same. ``anchored`` False is for a model that predicts the trace's own sizes
    too: then only what it calls 'measured' must be the recorded time. ``slack``: by which share of its time a larger
    batch may be faster, in a model that follows measurements: it may fill a GPU better.
    """
    require(isinstance(model.name, str) and model.name != "", f"a compute model has a name, {model!r} has not")
    where = f"compute model {model.name!r}"
    recorded = workload.batch
    batches = sorted({1, 2, 3, max(1, recorded // 2), recorded, recorded + 1, 2 * recorded, 10 * recorded})
    asked = [(operator, batch) for operator in workload.operators for batch in batches]
    answers = {(op.id, batch): _duration(model, op, batch, recorded, where) for op, batch in asked}
    for op in workload.operators:
        _require_recorded(op, answers[op.id, recorded], anchored, f"{where}, operator {op.id} ({op.name})")
        longest, at = 0, 0
        for batch in batches:
            answer = answers[op.id, batch]
            if answer is not None:
                require(
                    answer.ps >= longest * (1 - slack),
                    f"{where}, operator {op.id} ({op.name}): {answer.ps} ps at batch {batch}, but {longest} ps at "
                    f"batch {at}",
                )
                longest, at = answer.ps, batch
    for op, batch in reversed(asked):
        again = _duration(model, op, batch, recorded, where)
        require(
            again == answers[op.id, batch],
            f"{where}, operator {op.id} ({op.name}), batch {batch}: {answers[op.id, batch]} at first, {again} when "
            "asked again",
        )
    report, notes = model.fit_report(), model.notes
    require(report is None or isinstance(report, FitReport), f"{where}: fit_report() returns {report!r}")
    require(
        isinstance(notes, tuple) and all(isinstance(note, str) for note in notes),
        f"{where}: notes are a tuple of sentences, not {notes!r}",
    )


def _duration(model: ComputeModel, operator: Operator, batch: int, recorded: int, where: str) -> Duration | None:
    """The model's answer, of the right form; None where it refuses."""
    where = f"{where}, operator {operator.id} ({operator.name}), batch {batch}"
    try:
        answer = model.duration(operator, Split(batch))
    except PlanError as error:
        require(batch != recorded, f"{where}: refuses the trace's own sizes: {error}")
        return None
    is_number = isinstance(answer, Duration) and isinstance(answer.ps, int) and not isinstance(answer.ps, bool)
    require(is_number, f"{where}: a duration is a Duration of whole picoseconds, not {answer!r}")
    require(answer.ps >= 0, f"{where}: takes {answer.ps} ps")
    require(
        answer.evidence in EVIDENCE, f"{where}: the evidence is {answer.evidence!r}, not one of {', '.join(EVIDENCE)}"
    )
    return answer


def _require_recorded(operator: Operator, answer: Duration | None, anchored: bool, where: str) -> None:
    """The answer at the trace's own sizes."""
    if answer is not None and (anchored or answer.evidence == MEASURED):
        require(
            answer.ps == operator.gpu_time_ps,
            f"{where}: {answer.ps} ps ({answer.evidence}) at the trace's own sizes, recorded were "
            f"{operator.gpu_time_ps} ps",
        )
