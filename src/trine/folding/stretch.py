"""Compute durations that differ from rank to rank: slow ranks and jitter, put on tasks when they are instantiated."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from trine.arrays import Int64
from trine.folding.sketching import JobSketch
from trine.graph.program import COMPUTE_STREAM
from trine.graph.taskgraph import COMPUTE, TaskGraph
from trine.parallel.stragglers import Stragglers, scaled_ps


@dataclass(frozen=True, slots=True, eq=False)
class StretchOf:
    """Factors of ``stragglers`` on the operators of a job. What is drawn depends on the seed, the rank and the number
    of the task in the program (or of the training step), so that a rank drawn alone gets what it gets among all.
    draws_as: int64[ranks], the number that a rank draws by; None: its own.
    """

    job: JobSketch
    stragglers: Stragglers
    draws_as: Int64 | None = None

    def __call__(self, rank: int, tasks: Int64, duration_ps: Int64) -> Int64:
        """Durations of ``tasks`` of the sketch of ``rank``."""
        sketch = self.job.sketches[int(self.job.sketch_of[rank])]
        chosen = np.flatnonzero((sketch.kind[tasks] == COMPUTE) & self._on_gpu(sketch.stream[tasks]))
        index = sketch.labels[5][tasks[chosen]] if self.stragglers.per == "step" else tasks[chosen]
        stretched = duration_ps.copy()
        number = None if self.draws_as is None else self.draws_as[rank]
        factors = self.stragglers.factors(np.array(rank), index.astype(np.int64), number)
        stretched[chosen] = scaled_ps(duration_ps[chosen], factors)
        return stretched

    def _on_gpu(self, stream: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        wanted = self.job.streams.index(COMPUTE_STREAM) if COMPUTE_STREAM in self.job.streams else -2
        on_gpu: npt.NDArray[np.bool_] = stream == wanted
        return on_gpu

    def colours(self) -> Int64:
        """int64[ranks]: equal numbers for ranks that are equally slow and draw alike."""
        factors = self.stragglers.slow_factors(np.arange(self.job.grid.num_ranks))
        slow = np.unique(factors, return_inverse=True)[1].ravel().astype(np.int64)
        if self.draws_as is None:
            return slow
        return slow * (int(self.draws_as.max(initial=0)) + 1) + self.draws_as

    def on_graph(self, graph: TaskGraph) -> TaskGraph:
        """The same durations on the tasks of all ranks, as :func:`trine.parallel.instantiate.instantiate` numbers."""
        duration_ps = graph.duration_ps.copy()
        own = np.array([len(template.kind) for template in self.job.templates], np.int64)
        sizes = own[np.asarray(self.job.job.program_of, np.int64)]
        for rank, (first, size) in enumerate(zip((np.cumsum(sizes) - sizes).tolist(), sizes.tolist(), strict=True)):
            tasks = slice(first, first + size)
            duration_ps[tasks] = self(rank, np.arange(size), duration_ps[tasks])
        return replace(graph, duration_ps=duration_ps)
