"""References for a measured run from the JSON answer of ``trine train``: times of operators, phases and collectives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trine.common.units import PS_PER_S
from trine.errors import InputError
from trine.runs.kineto_rank import BACKWARD
from trine.runs.measured_run import MeasuredRun
from trine.runs.peers import beside_no_collective
from trine.runs.rank_trace import RankTrace
from trine.runs.reference import (
    BY_OPERATOR,
    BY_PHASE,
    KernelReference,
    ReferenceTransfer,
    RunReference,
    add_class_transfers,
)

#: Phases of an answer that a trace does not tell from another one.
_PHASES = {"recompute": BACKWARD}


def reference_from_answer(answer: Mapping[str, Any], run: MeasuredRun, name: str, file: str) -> RunReference:
    """Return what ``run`` would need by the JSON answer of ``trine train``.

    Raises InputError for an answer without times of operators and collectives.
    """
    step_ps = _ps(answer.get("step_time_s"), "step_time_s", file)
    operators = _times(answer, "operators", "operator", file)
    phases: dict[str, float] = {}
    for phase, ps in _times(answer, "phases", "phase", file).items():
        phase = _PHASES.get(phase, phase)
        phases[phase] = phases.get(phase, 0) + ps
    kernels = [_kernels(trace, operators, phases, run.num_steps) for trace in run.ranks]
    terms = answer.get("terms")
    idle = terms.get("idle_s") if isinstance(terms, Mapping) else None
    launch = idle.get("launch", 0) if isinstance(idle, Mapping) else 0
    reference = RunReference(name, step_ps, kernels, launch_ps=_ps(launch, "terms.idle_s.launch", file))
    add_class_transfers(reference, _transfers(answer, file), run)
    return reference


def _ps(value: object, field: str, file: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 10**6:
        raise InputError(f"must be a time in seconds, got {value!r:.40}", file=file, field=field)
    return round(value * PS_PER_S)


def _times(answer: Mapping[str, Any], table: str, column: str, file: str) -> dict[str, float]:
    """Return the compute time in ps of each row of a table."""
    rows = answer.get(table)
    if not isinstance(rows, list):
        raise InputError("has no such table: write the answer with trine train --json", file=file, field=table)
    times: dict[str, float] = {}
    for row in rows:
        if isinstance(row, Mapping) and isinstance(row.get(column), str):
            times[row[column]] = times.get(row[column], 0) + _ps(row.get("compute_s"), f"{table}.compute_s", file)
    return times


def _transfers(answer: Mapping[str, Any], file: str) -> dict[tuple[str, int | None, int], ReferenceTransfer]:
    rows = answer.get("collectives")
    transfers = {}
    for row in rows if isinstance(rows, list) else ():
        count = row.get("count") if isinstance(row, Mapping) else None
        if not isinstance(count, int) or count < 1:
            continue
        time_ps = _ps(row.get("transfer_s"), "collectives.transfer_s", file) // count
        algorithms = row.get("algorithms")
        algorithm = str(algorithms[0]).replace("/", "_").upper() if isinstance(algorithms, list) and algorithms else ""
        key = (str(row.get("kind")), row.get("bytes"), row.get("group_size", 0))
        transfers[key] = ReferenceTransfer(time_ps, algorithm)
    return transfers


def _kernels(
    trace: RankTrace, operators: Mapping[str, float], phases: Mapping[str, float], num_steps: int
) -> list[KernelReference | None]:
    """Return references by operator, and for operators that the answer does not have, by the rest of their phase."""
    own: dict[str, int] = {}
    rest = dict(phases)
    own_rest: dict[str, int] = {}
    for activity in trace.activities:
        if activity.collective is None:
            own[activity.operator] = own.get(activity.operator, 0) + activity.duration_ps
    for activity in trace.activities:
        if activity.collective is not None:
            continue
        if activity.operator in operators:
            part = activity.duration_ps / max(1, own[activity.operator])
            rest[activity.phase] = rest.get(activity.phase, 0) - operators[activity.operator] * part
        else:
            own_rest[activity.phase] = own_rest.get(activity.phase, 0) + activity.duration_ps
    clean = beside_no_collective(trace)
    references: list[KernelReference | None] = []
    for number, activity in enumerate(trace.activities):
        if activity.collective is not None:
            references.append(None)
        elif activity.operator in operators:
            ratio = operators[activity.operator] * num_steps / max(1, own[activity.operator])
            references.append(KernelReference(round(activity.duration_ps * ratio), BY_OPERATOR, clean[number]))
        elif activity.phase in phases:
            ratio = max(0.0, rest[activity.phase]) * num_steps / max(1, own_rest[activity.phase])
            references.append(KernelReference(round(activity.duration_ps * ratio), BY_PHASE, clean[number]))
        else:
            references.append(KernelReference(activity.duration_ps, BY_PHASE, clean[number]))
    return references
