"""Blocks that need a run itself: its timeline, memory over time and traffic over time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from trine.report.blocks import Block
from trine.report.memory import memory_over_time
from trine.report.timeline import timeline
from trine.report.traffic import traffic_over_time
from trine.results.run import TaskRun


@dataclass(frozen=True, kw_only=True, slots=True)
class RunBlocks:
    """Blocks that a JSON answer does not hold; None for one that the run does not have."""

    timeline: Block | None = None
    memory: Block | None = None
    traffic: Block | None = None


NO_RUN = RunBlocks()


@runtime_checkable
class HasRunBlocks(Protocol):
    """An answer about a measured run, which has a timeline besides its JSON."""

    def run_blocks(self) -> RunBlocks:
        """Return the blocks of the run."""


def blocks_of_run(run: TaskRun) -> RunBlocks:
    """Return the blocks of a run."""
    return RunBlocks(timeline=timeline(run), memory=memory_over_time(run), traffic=traffic_over_time(run))
