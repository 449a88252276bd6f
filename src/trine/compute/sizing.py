"""Sizes and work of a workload's operators under splits, looked up fast."""

from __future__ import annotations

from trine.compute.cost import Work, work_of
from trine.compute.resize import Split, resized
from trine.graph.workload import OPTIMIZER, Operator, Workload


class Sizing:
    """Answers, for the operators of one workload, what a split changes and how much work is left.

    ``notes`` names operators whose dimensions did not divide evenly in any split that was asked for.
    """

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._by_id = {op.id: op for op in workload.operators}
        self._as_recorded = Split(workload.batch)
        self._known: dict[tuple[int, Split], Work] = {}
        self._uneven: dict[str, None] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        if not self._uneven:
            return ()
        names = ", ".join(list(self._uneven)[:3]) + (", ..." if len(self._uneven) > 3 else "")
        return (f"dimensions that do not divide evenly were rounded up (largest part): {names}",)

    def work(self, operator: Operator, split: Split) -> Work:
        """FLOPs and bytes of ``operator`` under ``split``."""
        key = operator.id, split
        found = self._known.get(key)
        if found is None:
            forward = None if operator.forward_id is None else self._by_id.get(operator.forward_id)
            sizes = resized(operator, self._workload, split, forward)
            if sizes.uneven:
                self._uneven[operator.layer or operator.name] = None
            found = self._known[key] = work_of(sizes)
        return found

    def recorded(self, operator: Operator) -> Work:
        """FLOPs and bytes of ``operator`` in the trace."""
        return self.work(operator, self._as_recorded)

    def is_as_recorded(self, operator: Operator, split: Split) -> bool:
        """Whether ``operator`` does under ``split`` what it did in the trace."""
        if operator.phase == OPTIMIZER:
            return split.share == 1
        return split.is_whole and (
            split.batch == self._workload.batch or self.work(operator, split) == self.recorded(operator)
        )
