"""Which ranks a result shows of all that ran, and which ranks behaved alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from trine.arrays import Int64
from trine.results.records import Ends
from trine.results.traffic import LinkUse

if TYPE_CHECKING:
    from trine.results.result import Result


@dataclass(frozen=True, slots=True)
class FoldStage:
    """A stretch of a folded run: when it began (ps), its classes of ranks and links, the tasks simulated, events,
    and the ranks that had something left to do.
    """

    begins_ps: int
    num_classes: int
    num_link_classes: int
    num_tasks: int
    num_events: int
    num_ranks: int


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Part:
    """Some ranks of a job. ranks: of each row of the graph; num_ranks: of the job.

    ends: between whom the tasks were, ranks that are not shown too. step_ends_ps: int64[steps], when each step ended on
    all ranks of the job. reasons: int8[tasks], what each task waited for, where the graph does not show it.
    """

    ranks: tuple[int, ...]
    num_ranks: int
    ends: Ends
    step_ends_ps: Int64
    reasons: npt.NDArray[np.int8] | None = None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Scope:
    """What stands behind the rows of a result that was folded.

    ranks: the rank of each row of the graph. num_ranks: of the job. stages: of the run. notes: why there are so many
    classes. links, totals: bytes on all links and numbers of collectives in the whole system; None where the graph
    shows all of it. link_bytes: int64[links of the cluster], in the last step.
    observe: a result that shows the given ranks. class_of: the class of a rank in the last stage;
    class_size: how many ranks are in it. program_of: the program of a rank, and how many ranks run it. spread: a
    few ranks that together are like all, and how many each stands for.
    step_ends_ps: int64[steps], when each step ended on all ranks.
    """

    ranks: tuple[int, ...]
    num_ranks: int
    stages: tuple[FoldStage, ...]
    notes: tuple[str, ...]
    links: tuple[LinkUse, ...] | None
    totals: Mapping[tuple[str, int, int], int] | None
    link_bytes: Int64
    observe: Callable[[Sequence[int]], Result]
    class_of: Callable[[int], int]
    class_size: Callable[[int], int]
    program_of: Callable[[int], tuple[int, int]]
    spread: Callable[[], Mapping[int, float]]
    step_ends_ps: Int64

    @property
    def shows_all(self) -> bool:
        """Whether the result has a row for every rank."""
        return len(self.ranks) == self.num_ranks
