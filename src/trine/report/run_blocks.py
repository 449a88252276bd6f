"""Blocks that need a run itself: its timeline, memory over time, traffic over time and roofline."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from trine.report.blocks import Block, Choice
from trine.report.memory import memory_over_time
from trine.report.memory_modules import memory_by_module
from trine.report.roofline import roofline
from trine.report.timeline import timeline
from trine.report.traffic import traffic_over_time
from trine.results.run import TaskRun


@dataclass(frozen=True, kw_only=True, slots=True)
class RunBlocks:
    """Blocks that a JSON answer does not hold; None for one that the run does not have."""

    timeline: Block | None = None
    memory: Block | None = None
    traffic: Block | None = None
    roofline: Block | None = None


NO_RUN = RunBlocks()


@runtime_checkable
class HasRunBlocks(Protocol):
    """An answer about a measured run, which has a timeline besides its JSON."""

    def run_blocks(self) -> RunBlocks:
        """Return the blocks of the run."""


def blocks_of_run(run: TaskRun) -> RunBlocks:
    """Return the blocks of a run."""
    work = None if run.operator_work is None else run.operator_work()
    return RunBlocks(
        timeline=timeline(run), memory=_memory(run), traffic=traffic_over_time(run), roofline=roofline(work)
    )


def _memory(run: TaskRun) -> Block | None:
    """Return the memory over time, by kind and by module."""
    by_kind, by_module = memory_over_time(run), memory_by_module(run)
    if by_kind is None or by_module is None:
        return by_kind
    title = by_kind.title
    views = ("By kind", replace(by_kind, title="")), ("By module", replace(by_module, title=""))
    return Choice(title=title, options=views)
