"""A result as plain data with stable keys, described in docs/reference/result-json.md."""

from __future__ import annotations

from dataclasses import asdict

from trine.results import headline
from trine.results.metrics import Share
from trine.results.report import Row, Table, evidence_rows, seconds
from trine.results.run import TaskRun
from trine.results.waits import RANK_REASONS


def document(result: TaskRun) -> Row:
    """Return the whole result as plain data; times in seconds, sizes in bytes."""
    return {
        "step_time_s": result.step_time_s,
        **headline.numbers(result),
        "compute_s": result.compute_s,
        "communication_s": result.communication_s,
        "exposed_communication_s": result.exposed_communication_s,
        "bubble_s": result.bubble_s,
        "idle_s": result.idle_s,
        "slowest_rank": result.slowest_rank,
        "memory_peak_bytes": result.memory_peak_bytes,
        "memory_rank": result.fullest_rank if result.memory_uses else None,
        "memory_verdict": result.memory_uses[result.fullest_row].verdict if result.memory_uses else None,
        "collectives": collective_rows(result),
        "evidence": evidence_rows(result.evidence),
        "warnings": list(result.warnings),
        "not_modelled": list(result.not_modelled),
        "simulator": {
            **asdict(result.simulator),
            "engine": result.records.engine,
            "network": result.records.network,
        },
        "plan": dict(result.plan),
        "step_ends_s": [seconds(end) for end in result.step_ends_ps.tolist()],
        "folding": folding_row(result),
        "ranks": rank_rows(result),
        "layers": share_rows("layer", result.layers),
        "operators": share_rows("operator", result.operators),
        "phases": share_rows("phase", result.phases),
        "stages": share_rows("stage", result.stages),
        "links": link_rows(result),
        "memory": memory_rows(result),
        "energy": energy_row(result),
        "critical_path": {f"{_key(name)}_s": seconds(ps) for name, ps in result.critical_path_times.items()},
    }


def tables(result: TaskRun) -> dict[str, Table]:
    """Return the small tables by name, and the records of all tasks; memory categories become columns."""
    found: dict[str, Table] = {
        "ranks": rank_rows(result),
        "layers": share_rows("layer", result.layers),
        "operators": share_rows("operator", result.operators),
        "phases": share_rows("phase", result.phases),
        "stages": share_rows("stage", result.stages),
        "collectives": collective_rows(result),
        "links": link_rows(result),
        "memory": [_with_categories(row) for row in memory_rows(result)],
        "headline": headline.rows(result),
        "records": result.record_table,
    }
    return {name: table for name, table in found.items() if table}


def rank_rows(result: TaskRun) -> list[Row]:
    """Return one row per rank: its breakdown of the step, and its waits."""
    times = result.rank_times
    parts = ("compute", "communication", "exposed", "bubble", "idle", "input_copy", "offload")
    columns = [getattr(times, part).tolist() for part in parts]
    keys = [f"{'exposed_communication' if part == 'exposed' else part}_s" for part in parts]
    waits = [f"wait_{_key(reason)}_s" for reason in RANK_REASONS]
    return [
        {"rank": rank, "name": name}
        | ({"gpu": result.gpu_models[row]} if result.gpu_models else {})
        | _class_row(result, rank)
        | dict(zip(keys, map(seconds, spent), strict=True))
        | dict(zip(waits, map(seconds, waited), strict=True))
        for row, (rank, name, spent, waited) in enumerate(
            zip(
                result.shown_ranks,
                result.graph.rank_names,
                zip(*columns, strict=True),
                times.waits.tolist(),
                strict=True,
            )
        )
    ]


#: Keys of :func:`folding_row` for the bounds of an estimate.
ESTIMATE_KEYS = ("step_if_none_s", "step_if_all_s")


def folding_row(result: TaskRun) -> Row | None:
    """Return how ranks were folded; None if each was simulated separately and folding was not tried."""
    scope = result.scope
    if scope is None:
        return None
    ends_ps = scope.estimate_ps
    return {
        "ranks": scope.num_ranks,
        "ranks_shown": len(scope.ranks),
        "classes": max(stage.num_classes for stage in scope.stages),
        "stages": [
            {
                "begins_s": seconds(stage.begins_ps),
                "ranks": stage.num_ranks,
                "classes": stage.num_classes,
                "link_classes": stage.num_link_classes,
                "tasks": stage.num_tasks,
                "events": stage.num_events,
            }
            for stage in scope.stages
        ],
        "notes": list(scope.notes),
        **({} if ends_ps is None else dict(zip(ESTIMATE_KEYS, map(seconds, ends_ps), strict=True))),
    }


def _class_row(result: TaskRun, rank: int) -> Row:
    """Return a rank's class, and the number of ranks in it."""
    scope = result.scope
    return {} if scope is None else {"class": scope.class_of(rank), "ranks_alike": scope.class_size(rank)}


def share_rows(what: str, shares: tuple[Share, ...]) -> list[Row]:
    """Return one row per layer, operator, phase or stage."""
    return [
        {what: share.name, "compute_s": seconds(share.compute_ps), "communication_s": seconds(share.communication_ps)}
        for share in shares
    ]


def collective_rows(result: TaskRun) -> list[Row]:
    """Return one row per (kind, payload, group size)."""
    return [
        {
            "kind": use.kind,
            "bytes": use.size_bytes,
            "count": use.count,
            "group_size": use.group_size,
            "total_count": use.total,
            "time_s": seconds(use.time_ps),
            "transfer_s": seconds(use.transfer_ps),
            "waiting_s": seconds(use.waiting_ps),
            "axes": list(use.axes),
            "algorithms": list(use.algorithms),
        }
        for use in result.collectives
    ]


def link_rows(result: TaskRun) -> list[Row]:
    """Return one row per link, in the order of the cluster's links."""
    return [
        {
            "link": use.name,
            "bytes": use.size_bytes,
            "bytes_per_s": use.bytes_per_s,
            "utilisation": use.utilisation,
            "links_alike": use.count,
            "tier": use.tier or None,
        }
        for use in result.links
    ]


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
            "verdict": use.verdict,
            "allocated_bytes": use.allocated_bytes,
            "reserved_bytes": use.reserved_bytes,
            "outside_bytes": use.outside_bytes,
            "available_bytes": use.available_bytes,
            "needed_bytes": use.needed_bytes,
            "needed_low_bytes": use.low_bytes,
            "needed_high_bytes": use.high_bytes,
            "margin_bytes": use.margin_bytes,
        }
        for row, (rank, peak, use) in enumerate(
            zip(result.shown_ranks, result.memory_peaks, result.memory_uses, strict=False)
        )
    ]


def energy_row(result: TaskRun) -> Row | None:
    """Return energy and power of the step; None if the power of a GPU is not known."""
    found = result.energy
    if found is None:
        return None
    return {
        "step_j": found.joules,
        "mean_w": found.mean_w,
        "peak_rank_w": found.peak_rank_w,
        "by_state_j": found.by_state,
        "states_w": found.states_w,
        "ranks": found.num_ranks,
        "ranks_counted": found.num_counted,
        "evidence": found.evidence,
        "detail": found.detail,
    }


def _with_categories(row: Row) -> Row:
    """Return a memory row with one column per category instead of the nested ones."""
    found: Row = {}
    for key, value in row.items():
        found |= {f"{name}_bytes": size for name, size in value.items()} if isinstance(value, dict) else {key: value}
    return found


def _key(name: str) -> str:
    return name.replace(" ", "_")
