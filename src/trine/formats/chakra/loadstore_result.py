"""The answer of traces at the load-store level: that of any run, and what happened inside the GPUs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from trine.arrays import Int64
from trine.graph.taskgraph import TRANSFER, Records, TaskGraph
from trine.results import Result
from trine.results.report import Row, Timeline
from trine.results.traffic import LinkUse
from trine.units import PS_PER_S

if TYPE_CHECKING:
    from trine.results.gpu.result import GpuResult


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class LoadStoreResult(Result):
    """What a run gave. Tasks of communication kernels are transfers of their rank, from the launch to the kernel's end.

    gpu: what CUs, wavefronts and requests did; of all ranks and the whole run. drawn: the graph as timelines show it:
    with collectives on streams of their own.
    """

    gpu: GpuResult
    drawn: TaskGraph

    @cached_property
    def links(self) -> tuple[LinkUse, ...]:
        """Bytes (with headers) and utilisation of each link that messages crossed in the run."""
        time_ps = self.gpu.time_ps
        return tuple(
            LinkUse(
                link=use.link,
                name=use.name,
                size_bytes=use.data_bytes + use.control_bytes,
                bytes_per_s=use.bytes_per_s,
                utilisation=_busy(use.data_bytes + use.control_bytes, use.bytes_per_s, time_ps),
            )
            for use in self.gpu.links
        )

    def summary(self) -> str:
        """Return a text for people: the job, then the inside of its GPUs."""
        return f"{super().summary()}\n\ninside the GPUs\n{self.gpu.summary()}"

    def document(self) -> Row:
        """Return the result as plain data (docs/reference/result-json.md), with that of the GPUs as ``gpus``."""
        return super().document() | {"gpus": self.gpu.document()}

    def timeline(self) -> Timeline:
        """Return the tasks; ``.gpu.timeline`` is that of workgroups."""
        shown = self if self.part is not None else replace(self, graph=self.drawn)
        return super(LoadStoreResult, shown).timeline()


def _busy(size_bytes: int, bytes_per_s: int, time_ps: int) -> float:
    return size_bytes * PS_PER_S / (bytes_per_s * time_ps) if time_ps else 0.0


def drawn_graph(seen: TaskGraph, ran: TaskGraph) -> TaskGraph:
    """The graph as results see it, but collectives as work on the streams on which they ran."""
    back = (ran.stream >= 0) & (seen.kind == TRANSFER)
    return replace(
        seen,
        kind=np.where(back, ran.kind, seen.kind).astype(np.int8),
        peer=np.where(back, ran.peer, seen.peer).astype(np.int32),
        stream=np.where(back, ran.stream, seen.stream).astype(np.int32),
    )


def until(records: Records, end_ps: int) -> tuple[Records, int]:
    """Records of a run that was stopped then: what had not ended ends there. Also how many tasks had not."""

    def known(column: Int64) -> Int64:
        return np.where(column < 0, end_ps, column)

    left = int(np.count_nonzero(records.end_ps < 0))
    return replace(
        records,
        ready_ps=known(records.ready_ps),
        start_ps=known(records.start_ps),
        end_ps=known(records.end_ps),
    ), left
