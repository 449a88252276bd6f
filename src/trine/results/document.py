"""A result as plain data with stable keys, described in docs/reference/result-json.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trine.results import headline
from trine.results.columns import to_row
from trine.results.report import Row, Table, evidence_rows, seconds
from trine.results.run import TaskRun
from trine.results.step_columns import COLLECTIVE, ENERGY, FOLD_STAGE, HOST, LINK, MEMORY
from trine.results.waits import RANK_REASONS

if TYPE_CHECKING:
    from trine.results.repeats import RepeatedSteps, Repeats


def document(result: TaskRun) -> Row:
    """Return the whole result as plain data; times in seconds, sizes in bytes."""
    ends = [seconds(end) for end in result.step_ends_ps.tolist()]
    repeats = {} if result.repeats is None else {"repeats": repeats_row(result.repeats)}
    repeated_steps = (
        {} if result.repeated_steps is None else {"repeated_steps": repeated_steps_row(result.repeated_steps)}
    )
    host_memory = None if result.host_memory is None else HOST.row(result.host_memory)
    energy = None if result.energy is None else ENERGY.row(result.energy)
    critical_path = {f"{_key(name)}_s": seconds(ps) for name, ps in result.critical_path_times.items()}
    return {
        **_step_numbers(result),
        "terms": _terms(result),
        "collectives": COLLECTIVE.rows(result.collectives),
        "evidence": evidence_rows(result.evidence),
        "warnings": list(result.warnings),
        "not_modelled": list(result.not_modelled),
        "simulator": {**to_row(result.simulator), **to_row(result.records, "engine", "network")},
        "plan": dict(result.plan),
        "inputs": dict(result.inputs),
        "step_ends_s": ends,
        "folding": folding_row(result),
        **repeats,
        **repeated_steps,
        "ranks": rank_rows(result),
        **_shares(result),
        "links": LINK.rows(result.links),
        "memory": memory_rows(result),
        "host_memory": host_memory,
        "energy": energy,
        "critical_path": critical_path,
    }


def _terms(result: TaskRun) -> Row:
    """Return the parts of the slowest rank's step by group, in seconds."""
    parts = result.terms._asdict()
    times: Row = {}
    for group, by_name in parts.items():
        times[f"{group}_s"] = {name: seconds(ps) for name, ps in by_name.items()}
    return times


def _step_numbers(result: TaskRun) -> Row:
    return {
        "step_time_s": result.step_time_s,
        **headline.numbers(result),
        **to_row(
            result, "compute_s", "communication_s", "exposed_communication_s", "bubble_s", "idle_s", "slowest_rank"
        ),
        "memory_peak_bytes": result.memory_peak_bytes,
        "memory_rank": result.fullest_rank if result.memory_uses else None,
        "memory_verdict": result.memory_verdict,
    }


#: Between the warnings of a record.
SEPARATOR = " | "
#: Facts about the plan in a record.
_PLAN_COLUMNS = "workload dp tp pp cp ep batch global_batch schedule virtual_stages recompute sharding gpu software"


def record(result: TaskRun) -> Row:
    """Return the numbers of the step, the memory needed and the plan as one flat row: a point of an experiment."""
    needed = result.memory_uses[result.fullest_row].needed_bytes if result.memory_uses else None
    facts = {key: result.plan[key] for key in _PLAN_COLUMNS.split() if result.plan.get(key) is not None}
    warnings = {"point_warnings": SEPARATOR.join(result.warnings)} if result.warnings else {}
    return {**_step_numbers(result), "memory_needed_bytes": needed, "gpus": result.num_ranks, **facts, **warnings}


def tables(result: TaskRun) -> dict[str, Table]:
    """Return the small tables by name, and the records of all tasks; memory categories become columns."""
    tables_by_name: dict[str, Table] = {
        "ranks": rank_rows(result),
        **_shares(result),
        "collectives": COLLECTIVE.rows(result.collectives),
        "links": LINK.rows(result.links),
        "memory": [_with_categories(row) for row in memory_rows(result)],
        "headline": headline.rows(result),
        "records": result.record_table,
    }
    return {name: table for name, table in tables_by_name.items() if table}


def rank_rows(result: TaskRun) -> list[Row]:
    """Return one row per rank: its breakdown of the step, and its waits."""
    times = result.rank_times
    parts = ("compute", "communication", "exposed", "bubble", "idle", "input_copy", "offload")
    columns = [getattr(times, part).tolist() for part in parts]
    keys = []
    for part in parts:
        keys.append(f"{'exposed_communication' if part == 'exposed' else part}_s")
    waits = [f"wait_{_key(reason)}_s" for reason in RANK_REASONS]
    rows = []
    for row, (rank, name, part_ps, wait_ps) in enumerate(
        zip(
            result.shown_ranks,
            result.graph.rank_names,
            zip(*columns, strict=True),
            times.waits.tolist(),
            strict=True,
        )
    ):
        rows.append(
            {"rank": rank, "name": name}
            | ({"gpu": result.gpu_models[row]} if result.gpu_models else {})
            | _class_row(result, rank)
            | dict(zip(keys, map(seconds, part_ps), strict=True))
            | dict(zip(waits, map(seconds, wait_ps), strict=True))
        )
    return rows


#: Keys of :func:`folding_row` for the bounds of an estimate.
ESTIMATE_KEYS = ("step_if_none_s", "step_if_all_s")


def folding_row(result: TaskRun) -> Row | None:
    """Return how ranks were folded; None if each was simulated separately and folding was not tried."""
    scope = result.scope
    if scope is None:
        return None
    ends_ps = scope.estimate_ps
    classes = max(stage.num_classes for stage in scope.stages)
    estimate = {} if ends_ps is None else dict(zip(ESTIMATE_KEYS, map(seconds, ends_ps), strict=True))
    return {
        "ranks": scope.num_ranks,
        "ranks_shown": len(scope.ranks),
        "classes": classes,
        "stages": FOLD_STAGE.rows(scope.stages),
        "notes": list(scope.notes),
        **estimate,
    }


def repeats_row(repeats: Repeats) -> Row:
    """Return the repetition that a run of few micro-batches stands for."""
    periods = [seconds(window.end_ps - window.start_ps) for window in repeats.windows]
    bound = {"bound_s": seconds(repeats.bound_ps)} if repeats.bound_ps else {}
    return {
        "micro_batches": repeats.micro_batches,
        "micro_batches_simulated": repeats.simulated,
        "micro_batches_per_period": repeats.period,
        "periods_skipped": repeats.count,
        "period_s": periods,
        **bound,
    }


def repeated_steps_row(steps: RepeatedSteps) -> Row:
    """Return the repetition that a run of few steps stands for."""
    return {
        "steps": steps.steps,
        "steps_simulated": steps.simulated,
        "steps_per_period": steps.period,
        "periods_skipped": steps.count,
        "period_s": seconds(steps.period_ps),
    }


def _class_row(result: TaskRun, rank: int) -> Row:
    """Return a rank's class, and the number of ranks in it."""
    scope = result.scope
    return {} if scope is None else {"class": scope.class_of(rank), "ranks_alike": scope.class_size(rank)}


def _shares(result: TaskRun) -> dict[str, Table]:
    """Return the tables of layers, operators, phases and stages."""
    shares = (
        ("layer", result.layers), ("operator", result.operators), ("phase", result.phases), ("stage", result.stages),
    )  # fmt: skip
    rows_by_label: dict[str, Table] = {}
    for label, shares_by_name in shares:
        rows_by_label[f"{label}s"] = [
            {label: each.name, **to_row(each, "compute_s", "communication_s")} for each in shares_by_name
        ]
    return rows_by_label


def memory_rows(result: TaskRun) -> list[Row]:
    """Return one row per rank: its peak, the peak's time and breakdown, and whether it fits."""
    capacities = result.memory_capacity_bytes or (0,) * len(result.memory_peaks)
    return [
        {
            "rank": rank,
            "peak_bytes": peak.total_bytes,
            "peak_at_s": seconds(peak.time_ps),
            "by_category_bytes": peak.by_category,
            "capacity_bytes": capacities[row] or None,
            **MEMORY.row(use),
        }
        for row, (rank, peak, use) in enumerate(
            zip(result.shown_ranks, result.memory_peaks, result.memory_uses, strict=False)
        )
    ]


def _with_categories(row: Row) -> Row:
    """Return a memory row with one column per category instead of the nested ones."""
    columns: Row = {}
    for key, value in row.items():
        if isinstance(value, dict):
            columns |= {f"{name}_bytes": size for name, size in value.items()}
        else:
            columns |= {key: value}
    return columns


def _key(name: str) -> str:
    return name.replace(" ", "_")
