"""The groups of collectives in a folded graph: one label for all groups with members of the same classes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trine.folding.partition import Partition
from trine.folding.sketch import Sketch
from trine.folding.sketching import JobSketch
from trine.model.program import Collective
from trine.model.taskgraph import CollectiveLabel

Int32 = npt.NDArray[np.int32]


class GroupLabels:
    """Numbers collectives as (collective, classes of the group)."""

    def __init__(self, job: JobSketch, partition: Partition) -> None:
        self.job = job
        self.partition = partition
        self._kinds: dict[tuple[str, tuple[int, ...]], int] = {}
        self._kind_of_group: dict[tuple[str, int], int] = {}
        self._labels: dict[tuple[int, int], CollectiveLabel] = {}
        self._numbers: dict[tuple[int, int], int] = {}
        self._known: dict[tuple[int, ...], Int32] = {}
        self._steps = [
            {self._key(step): step for _, step in template.collectives.values()} for template in job.templates
        ]

    def _key(self, step: Collective) -> tuple[str, tuple[int | str, ...]]:
        return step.axis, step.key

    def numbers(self, sketch: Sketch, rank: int) -> Int32:
        """The label of each collective as ``rank`` sees it, -1 where it takes no part; the last entry is -1 too."""
        kinds = {
            axis: self._kind(axis, rank) for axis in dict.fromkeys(self.job.keys[k][0] for k in sketch.algorithm_of)
        }
        name = (id(sketch), *kinds.values())
        if name not in self._known:
            numbers = np.full(len(self.job.keys) + 1, -1, np.int32)
            for key, algorithm in sketch.algorithm_of.items():
                kind = kinds[self.job.keys[key][0]]
                if (kind, key) not in self._numbers:
                    self._numbers[kind, key] = len(self._numbers)
                    self._labels[kind, key] = self._label(sketch, rank, key, algorithm)
                numbers[key] = self._numbers[kind, key]
            self._known[name] = numbers
        return self._known[name]

    def labels(self) -> tuple[CollectiveLabel, ...]:
        """The labels, by number."""
        return tuple(self._labels.values())

    def _kind(self, axis: str, rank: int) -> int:
        """The number of the kind of group that ``rank`` is in."""
        group = self.job.grid.group(rank, axis)
        name = (axis, group[0])
        if name not in self._kind_of_group:
            classes = tuple(np.unique(self.partition.class_of[list(group)]).tolist())
            self._kind_of_group[name] = self._kinds.setdefault((axis, classes), len(self._kinds))
        return self._kind_of_group[name]

    def _label(self, sketch: Sketch, rank: int, key: int, algorithm: str) -> CollectiveLabel:
        step = self._steps[sketch.program][self.job.keys[key]]
        classes = self.partition.class_of[list(self.job.grid.group(rank, step.axis))]
        mine = self.partition.class_of[rank]
        copies = int(self.partition.sizes[mine]) // int((classes == mine).sum())
        return CollectiveLabel(
            kind=step.kind,
            algorithm=algorithm,
            size_bytes=step.size_bytes,
            ranks=tuple(np.unique(classes).tolist()),
            axis=step.axis,
            step=step.label.step,
            group_size=len(classes),
            copies=copies,
        )
