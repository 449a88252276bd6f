"""Comparison of one collective at operator and load-store level, with the sources of the difference."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace

from trine.cluster.cluster import Cluster
from trine.cluster.load import as_cluster
from trine.collectives.options import AUTO, CollectiveOptions, CollectiveTime, TimePart, is_plan
from trine.collectives.query import collective
from trine.collectives.registry import known_algorithms
from trine.collectives.result import CollectiveResult
from trine.collectives.sizes import Sizes, as_sizes
from trine.common.arguments import named_arguments
from trine.common.observer import OnCompile, OnStage, Progress, ignore, observing
from trine.common.units import format_bytes
from trine.errors import InputError
from trine.gpu.collective.options import LoadStoreOptions
from trine.gpu.collective.result import OVERLAP, PARTS, ComparedRow, FidelityResult, LevelPart
from trine.gpu.collective.runs import LoadStoreRuns
from trine.gpu.collective.time_split import LATENCY, LAUNCH, LINKS, split
from trine.gpu.kernels.build import has_kernel

#: Part of the library's formula -> part common to both levels.
_OF_FORMULA = {"launch": LAUNCH, "set-up": LATENCY, "latency": LATENCY, "bandwidth": LINKS}


@named_arguments
def compare_fidelity(
    op: str,
    sizes: Sizes,
    cluster: Cluster | str | os.PathLike[str],
    group: Sequence[int] | None = None,
    *,
    options: LoadStoreOptions | None = None,
    operator: CollectiveOptions | None = None,
    network: str | None = None,
    progress: Progress | None = None,
    on_compile: OnCompile | None = None,
    on_stage: OnStage | None = None,
) -> FidelityResult:
    """Predict a collective at both levels, and split both times into the same parts.

    Parameters
    ----------
    op, sizes, cluster, group, options, progress, on_compile, on_stage: see
        :func:`trine.gpu.collective.loadstore_collective`.
    operator, network: options of the operator level (:func:`trine.collectives.query.collective`).

    The parts of the load-store time are differences between runs (:mod:`trine.gpu.collective.runs`). The
    operator level uses the parts of its formula; if messages are simulated, latency is the smallest message's time.

    Raises
    ------
    InputError, SpecError, PlanError: as in both functions.
    """
    sizes = as_sizes(sizes)
    cluster = as_cluster(cluster)
    operator_options = CollectiveOptions() if operator is None else operator
    runs = LoadStoreRuns(op, cluster, group, options)
    reasons: dict[str, None] = {}

    def ask(sizes: Sequence[int], choices: CollectiveOptions) -> CollectiveResult:
        with observing(progress=ignore):  # it would count tasks, not requests
            return collective(op, sizes, cluster, group, options=choices, network=network)

    rows: list[ComparedRow] = []
    with observing(progress=progress, on_compile=on_compile, on_stage=on_stage):
        answer = ask(sizes, operator_options)
        try:
            for size, operator_time in zip(sizes, answer.rows, strict=True):
                min_bytes = min(size, runs.programs.plan_bytes() or 16 * len(runs.ranks))
                parts = _operator_parts(operator_time, min_bytes, answer.network is not None, operator_options, ask)
                row, reason = _compared(runs, size, operator_time, parts)
                reasons |= dict.fromkeys([reason] if reason else [])
                rows.append(row)
                if not rows[-1].parts:
                    break
        except KeyboardInterrupt:
            if not rows:
                raise
    stopped = len(rows) < len(sizes) or not rows[-1].parts
    return FidelityResult(
        op=op, cluster=cluster, group=runs.ranks, model=runs.model, rows=tuple(rows), answer=answer,
        notes=(*reasons, *answer.notes), stopped=stopped,
    )  # fmt: skip


def _compared(
    runs: LoadStoreRuns, size: int, time: CollectiveTime, operator: dict[str, tuple[int, str]]
) -> tuple[ComparedRow, str | None]:
    """Return the row of a size with the operator level's algorithm at both levels, or the reason for another one."""
    own, wanted = runs.options.algorithm, time.algorithm
    reason = None
    if own == AUTO and has_kernel(runs.op, wanted):
        try:
            same = LoadStoreRuns(runs.op, runs.cluster, runs.ranks, replace(runs.options, algorithm=wanted))
            return _row(same, size, time, operator), None
        except InputError as error:
            reason = f"load-store: takes the fastest of its kernels, since {wanted} is impossible: {error}"
    elif own == AUTO:
        reason = f"load-store: has no {wanted}, the library's choice; takes the fastest of its kernels"
    elif not is_plan(own) and own.partition(":")[0] != wanted.partition(":")[0]:
        reason = f"operator: has no {own}; takes {wanted}, the library's choice"
    return _row(runs, size, time, operator), reason


def shared_algorithm(op: str, algorithm: str) -> str:
    """Return the operator-level algorithm to compare with the load-store ``algorithm``: the same one if it exists."""
    is_shared = algorithm in known_algorithms(op) or not has_kernel(op, algorithm)
    return algorithm if is_shared else AUTO


def _row(runs: LoadStoreRuns, size: int, time: CollectiveTime, operator: dict[str, tuple[int, str]]) -> ComparedRow:
    row = runs.row(size)
    time_split = split(runs, row) if row.finished else None
    if time_split is None or not time_split.finished:
        return ComparedRow(operator=time, loadstore=row.time, parts=(), finished=row.finished)
    loadstore = {name: (ps, why) for name, ps, why in time_split.parts}
    parts = tuple(_part(name, operator.get(name), loadstore.get(name)) for name in PARTS)
    return ComparedRow(operator=time, loadstore=row.time, parts=parts, finished=True)


def _part(name: str, operator: tuple[int, str] | None, loadstore: tuple[int, str] | None) -> LevelPart:
    operator_ps = None if operator is None else operator[0]
    loadstore_ps = None if loadstore is None else loadstore[0]
    operator_why = "" if operator is None else operator[1]
    loadstore_why = "" if loadstore is None else loadstore[1]
    return LevelPart(
        name=name,
        operator_ps=operator_ps,
        loadstore_ps=loadstore_ps,
        operator_why=operator_why,
        loadstore_why=loadstore_why,
    )


def _operator_parts(
    row: CollectiveTime,
    min_bytes: int,
    is_simulated: bool,
    options: CollectiveOptions,
    ask: Callable[[Sequence[int], CollectiveOptions], CollectiveResult],
) -> dict[str, tuple[int, str]]:
    """Return the parts of an operator-level time; they sum to it. min_bytes: the smallest size."""
    if not is_simulated:
        return summed_parts(row.parts)
    (messages,) = (part for part in row.parts if part.name == "messages")
    # The time of the smallest messages with the same schedule
    choice = options if is_plan(options.algorithm) else replace(options, algorithm=row.algorithm, protocol=row.protocol)
    small = ask([min_bytes], choice).rows[0]
    latency_ps = sum(part.time_ps for part in small.parts if part.name == "messages")
    return {
        LAUNCH: (row.time_ps - messages.time_ps, "as the library's formula has it"),
        LATENCY: (latency_ps, f"the messages of {format_bytes(min_bytes)} by the same schedule"),
        LINKS: (messages.time_ps - latency_ps, f"the rest of {messages.why}"),
    }


def summed_parts(parts: Sequence[TimePart]) -> dict[str, tuple[int, str]]:
    """Return the parts of a library's formula as parts of both levels: name -> (ps, reason)."""
    sums: dict[str, tuple[int, str]] = {}
    for part in parts:
        name = _OF_FORMULA.get(part.name, OVERLAP)
        time_ps, why = sums.get(name, (0, ""))
        if part.time_ps:
            sums[name] = time_ps + part.time_ps, f"{why}; {part.why}" if why else part.why
    return sums
