"""Prediction of one collective at the load-store level, as printed by ``trine collective --fidelity loadstore``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from trine.cluster.cluster import Cluster
from trine.cluster.load import as_cluster
from trine.collectives.sizes import Sizes, as_sizes
from trine.common.arguments import named_arguments
from trine.common.observer import OnCompile, OnStage, Progress, observing
from trine.errors import InputError
from trine.gpu.collective.options import LoadStoreOptions
from trine.gpu.collective.result import LoadStoreCollectiveResult
from trine.gpu.collective.runs import LoadStoreRow, LoadStoreRuns
from trine.gpu.kernels.moe.options import MOE
from trine.results.text import unused_options

#: Rows up to this size times simulated GPUs run again to test each option: about 0.1 s.
CHEAP_BYTES = 1 << 20


@named_arguments
def loadstore_collective(
    op: str,
    sizes: Sizes | None,
    cluster: Cluster | str | os.PathLike[str],
    group: Sequence[int] | None = None,
    *,
    options: LoadStoreOptions | None = None,
    progress: Progress | None = None,
    on_compile: OnCompile | None = None,
    on_stage: OnStage | None = None,
) -> LoadStoreCollectiveResult:
    """Run a collective load by load and store by store, for several sizes.

    Parameters
    ----------
    op, sizes: ``all_gather``, ``reduce_scatter``, ``all_reduce``, ``all_to_all``, ``broadcast``, ``reduce``,
        ``gather``, ``scatter``, ``all_to_all_v``, or a plan's collective; sizes in bytes by nccl-tests' convention, at
        least 1. Each rank's part is rounded up to whole cache lines. ``moe_dispatch`` and ``moe_combine`` need sizes
        None: they send tokens to experts and back (``options.moe``); their size is a rank's sent bytes with copies.
    cluster, group: ranks are positions in ``cluster.gpus``; None: all.
    options: options of the runs.
    progress, on_compile: see :func:`trine.run_eidolon`. on_stage: called with a sentence before each run.

    On Ctrl-C the result holds the rows up to then, the last one unfinished.

    Raises
    ------
    InputError, SpecError, PlanError: unknown, incompatible or ineffective options; unknown GPUs.
    """
    if op in MOE:
        if sizes is not None:
            raise InputError(f"of {op} follow from its tokens and experts: leave them out", field="sizes")
        sizes = [1]
    elif op == "all_to_all_v" and options is not None and options.matrix is not None and sizes is None:
        sizes = [max(sum(row) for row in options.matrix)]
    sizes = as_sizes(sizes)
    cluster = as_cluster(cluster)
    runs = LoadStoreRuns(op, cluster, group, options)
    rows: list[LoadStoreRow] = []
    with observing(progress=progress, on_compile=on_compile, on_stage=on_stage):
        try:
            for size in sizes:
                rows = [*(replace(earlier, result=None) for earlier in rows), runs.row(size)]
                if not rows[-1].finished:
                    break
        except KeyboardInterrupt:
            if not rows:
                raise
        stopped = len(rows) < len(sizes) or not rows[-1].finished
        notes = (*_notes(rows), *(() if stopped else _unused_options(runs, rows)))
    return LoadStoreCollectiveResult(
        op=op, cluster=cluster, group=runs.ranks, model=runs.model, rows=tuple(rows), notes=notes, stopped=stopped
    )


def _unused_options(runs: LoadStoreRuns, rows: Sequence[LoadStoreRow]) -> Iterator[str]:
    """Yield a sentence for each option without effect on the times; if all sizes are small, trine runs without it."""
    if any(row.time.size_bytes * row.simulated > CHEAP_BYTES for row in rows):
        return
    names = ("workgroups", "wavefronts", "unroll", "max_outstanding", "arbitration", "bookkeeping", "initiator")

    def same_without(name: str) -> bool:
        cleared: dict[str, Any] = {name: None}
        options = replace(runs.options, **cleared, fold="auto", verify=False)
        runs_without = LoadStoreRuns(runs.op, runs.cluster, runs.ranks, options)
        return all(runs_without.row(row.time.size_bytes).time.time_ps == row.time.time_ps for row in reversed(rows))

    yield from unused_options({name: getattr(runs.options, name) for name in names}, same_without, "at these sizes")


def _notes(rows: Sequence[LoadStoreRow]) -> tuple[str, ...]:
    """Return the programs' notes without duplicates, and the reason for skipped algorithms."""
    notes = dict.fromkeys(note for row in rows for note in row.notes)
    skipped = [name for row in rows for name, ps in row.tried if ps is None]
    if skipped:
        notes[f"{skipped[0]} skipped at {len(skipped)} of {len(rows)} sizes: its bytes alone take longer"] = None
    return tuple(notes)
