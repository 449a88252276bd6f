"""Factors of stragglers on the operators of a folded job."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from trine.common.arrays import Bool, Int32, Int64
from trine.folding.pattern import JobPatterns
from trine.graph.program import COMPUTE_STREAM
from trine.graph.taskgraph import COMPUTE, TaskGraph

if TYPE_CHECKING:
    from trine.parallel.stragglers import Stragglers


@dataclass(frozen=True, slots=True, eq=False)
class StragglerScaling:
    """Factors of ``stragglers`` on the operators of a job. Draws depend only on the seed, the rank and the number of
    the task in the program (or of the training step), so that a rank drawn alone gets the same factors as among all.
    draws_as: int64[ranks], the number that each rank uses for its draws; None: its rank.
    """

    job: JobPatterns
    stragglers: Stragglers
    draws_as: Int64 | None = None

    def __call__(self, rank: int, tasks: Int64, duration_ps: Int64) -> Int64:
        """Return the scaled durations of ``tasks`` in the pattern of ``rank``."""
        from trine.parallel.stragglers import scaled_ps

        pattern = self.job.patterns[int(self.job.pattern_of[rank])]
        scaled_tasks = np.flatnonzero((pattern.kind[tasks] == COMPUTE) & self._on_gpu(pattern.stream[tasks]))
        index = pattern.labels[5][tasks[scaled_tasks]] if self.stragglers.per == "step" else tasks[scaled_tasks]
        durations = duration_ps.copy()
        number = None if self.draws_as is None else self.draws_as[rank]
        factors = self.stragglers.factors(np.array(rank), index.astype(np.int64), number)
        durations[scaled_tasks] = scaled_ps(duration_ps[scaled_tasks], factors)
        return durations

    def _on_gpu(self, stream: Int32) -> Bool:
        compute_stream = self.job.streams.index(COMPUTE_STREAM) if COMPUTE_STREAM in self.job.streams else -2
        return np.asarray(stream == compute_stream)

    def initial_colors(self) -> Int64:
        """Return int64[ranks] with equal numbers for equally slow ranks with the same draws."""
        factors = self.stragglers.slow_factors(np.arange(self.job.grid.num_ranks))
        slow = np.unique(factors, return_inverse=True)[1].ravel().astype(np.int64)
        if self.draws_as is None:
            return slow
        return slow * (int(self.draws_as.max(initial=0)) + 1) + self.draws_as

    def on_graph(self, graph: TaskGraph) -> TaskGraph:
        """Scale the tasks of all ranks in a graph of :func:`trine.parallel.instantiate.instantiate` in the same way."""
        duration_ps = graph.duration_ps.copy()
        num_steps = np.array([len(template.kind) for template in self.job.templates], np.int64)
        sizes = num_steps[np.asarray(self.job.job.program_of, np.int64)]
        for rank, (first, size) in enumerate(zip((np.cumsum(sizes) - sizes).tolist(), sizes.tolist(), strict=True)):
            tasks = slice(first, first + size)
            duration_ps[tasks] = self(rank, np.arange(size), duration_ps[tasks])
        return replace(graph, duration_ps=duration_ps)
