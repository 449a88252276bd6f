"""Ask about one collective at the load-store level: as ``trine collective --fidelity loadstore`` prints it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trine.cluster.cluster import Cluster
from trine.collectives.loadstore.options import LoadStoreOptions
from trine.collectives.loadstore.runs import Callbacks, LoadStoreRow, LoadStoreRuns
from trine.collectives.sizes import check_sizes
from trine.gpu.model import GpuModel
from trine.graph.taskgraph import Progress
from trine.results.gpu.result import GpuResult

#: Bytes of a row times GPUs simulated up to which it is run again to see whether an option matters: about 0.1 s.
CHEAP_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, eq=False)
class LoadStoreAnswer:
    """Times of one collective on one group, one row a size. ``stopped``: by Ctrl-C, in the last row or after it."""

    op: str
    cluster: Cluster
    group: tuple[int, ...]
    model: GpuModel
    rows: tuple[LoadStoreRow, ...]
    notes: tuple[str, ...] = ()
    stopped: bool = False

    @property
    def finished(self) -> bool:
        """Whether all sizes were run to their end."""
        return not self.stopped

    @property
    def result(self) -> GpuResult:
        """Everything about the last size."""
        result = self.rows[-1].result
        assert result is not None
        return result

    @property
    def times_ps(self) -> tuple[int, ...]:
        """The time of each row."""
        return tuple(row.time.time_ps for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """The answer as documented in docs/reference/loadstore-json.md."""
        from trine.collectives.loadstore.table import answer_json

        return answer_json(self)

    def table(self) -> str:
        """One line a size: time, bandwidths, what ran, what decides."""
        from trine.collectives.loadstore.table import answer_table

        return answer_table(self)

    def text(self) -> str:
        """One size in full, several as a table."""
        return self.table() if len(self.rows) > 1 else f"{self.table()}\n\n{self.result.summary()}"

    def plot(self, path: str) -> None:
        """Draw time and bus bandwidth over the size. Needs the extra ``plot``."""
        from trine.collectives.ask import CollectiveAnswer
        from trine.collectives.plot import plot_collective

        rows = tuple(row.time for row in self.rows)
        drawn = CollectiveAnswer(
            op=self.op, cluster=self.cluster, group=self.group, library="none", version="", launch="none",
            network=None, rows=rows,
        )  # fmt: skip
        plot_collective(drawn, path)


def loadstore_collective(
    op: str,
    sizes: Sequence[int],
    cluster: Cluster,
    group: Sequence[int] | None = None,
    *,
    options: LoadStoreOptions | None = None,
    progress: Progress | None = None,
    on_compile: Callable[[], None] | None = None,
    on_stage: Callable[[str], None] | None = None,
) -> LoadStoreAnswer:
    """Run a collective load by load and store by store, for several sizes.

    Parameters
    ----------
    op, sizes: ``all_gather``, ``reduce_scatter``, ``all_reduce``, ``all_to_all``, or what a plan is for; bytes as
        nccl-tests counts them, at least 1. Each rank's part is rounded up to whole cache lines.
    cluster, group: ranks are positions in ``cluster.gpus``; None: all.
    options: how it is run.
    progress, on_compile: as of :func:`trine.gpu.run.run_gpus`. on_stage: called with a sentence before each run.

    On Ctrl-C the rows so far are the answer, the last of them not finished.

    Raises
    ------
    InputError, SpecError, PlanError: what does not exist, does not fit or cannot matter; unknown GPUs.
    """
    check_sizes(sizes)
    callbacks = Callbacks(progress=progress, on_compile=on_compile, on_stage=on_stage)
    asked = LoadStoreRuns(op, cluster, group, options, callbacks)
    rows: list[LoadStoreRow] = []
    stopped = False
    for size in sizes:
        try:
            row = asked.row(size)
        except KeyboardInterrupt:
            if not rows:
                raise
            stopped = True
            break
        rows = [*(replace(before, result=None) for before in rows), row]
        stopped = not row.finished
        if stopped:
            break
    return LoadStoreAnswer(
        op=op,
        cluster=cluster,
        group=asked.ranks,
        model=asked.model,
        rows=tuple(rows),
        notes=(*_notes(rows), *(() if stopped else _idle_options(asked, rows))),
        stopped=stopped,
    )


def _idle_options(asked: LoadStoreRuns, rows: Sequence[LoadStoreRow]) -> Iterator[str]:
    """A sentence for each option that moves no time, found by running without it where all sizes are small."""
    if any(row.time.size_bytes * row.simulated > CHEAP_BYTES for row in rows):
        return
    for name in ("workgroups", "wavefronts", "unroll", "max_outstanding", "arbitration"):
        value = getattr(asked.options, name)
        if value is None:
            continue
        others: dict[str, Any] = {name: None}
        plain = replace(asked.options, **others, fold="auto", verify=False)
        without = LoadStoreRuns(asked.op, asked.cluster, asked.ranks, plain, asked.callbacks)
        if all(without.row(row.time.size_bytes).time.time_ps == row.time.time_ps for row in reversed(rows)):
            yield f"{name} {value} changes no time at these sizes: without it they are the same"


def _notes(rows: Sequence[LoadStoreRow]) -> tuple[str, ...]:
    """What the programs say, each once; why some were not tried."""
    said = dict.fromkeys(note for row in rows for note in row.notes)
    left = [name for row in rows for name, ps in row.tried if ps is None]
    if left:
        said[f"{left[0]} was left out at {len(left)} of {len(rows)} sizes: its bytes alone take longer"] = None
    return tuple(said)
