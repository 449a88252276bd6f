"""Runs of operators with equal structure: layers of a model differ in the numbers of operators and tensors only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from trine.common.kept import keep
from trine.compute.kinds import layer_of
from trine.compute.roofline import alike_in
from trine.graph.workload import Operator, Workload
from trine.parallel.chunks import OperatorRun
from trine.parallel.workload_facts import gradient_of_weights, operators_by_id, storage_of_tensors


@dataclass(frozen=True, kw_only=True, eq=False)
class Structure:
    """Runs of operators. number: equal for runs that differ in the numbers of operators and tensors only.

    names: operator id -> its position among the operators that the runs name; storages: the same of storages.
    """

    number: int
    names: dict[int, int]
    storages: dict[int, int]


class Structures:
    """The structures of runs of a workload's operators."""

    def __init__(self, workload: Workload) -> None:
        self._alike = alike_in(workload)
        self._operators = operators_by_id(workload)
        self._storage_of = storage_of_tensors(workload)
        self._gradient_of = gradient_of_weights(workload)
        self._known: dict[Hashable, Structure] = {}
        self._numbers: dict[Hashable, int] = {}
        self._counts: Counter[int] = Counter()

    def is_repeated(self, structure: Structure) -> bool:
        """Return whether other runs seen so far have the same structure."""
        return self._counts[structure.number] > 1

    def of(self, runs: Sequence[OperatorRun]) -> Structure:
        """Return the structure of consecutive runs."""
        key = tuple([(run.op.id, run.part, run.rerun, run.adds) for run in runs])
        structure = self._known.get(key)
        if structure is None:
            structure = self._known[key] = self._structure(runs)
        return structure

    def _structure(self, runs: Sequence[OperatorRun]) -> Structure:
        names: dict[int, int] = {}
        storages: dict[int, int] = {}
        rows = []
        for run in runs:
            op = run.op
            forward = None if op.forward_id is None else self._operators.get(op.forward_id)
            row: tuple[Hashable, ...] = (run.part, run.rerun, run.adds, op.layer[len(layer_of(op.layer)) :])
            for each in (op, forward):
                row = (*row, None if each is None else self._operator(each, names, storages))
            rows.append((*row, op.forward_id is None))
        number = self._numbers.setdefault(tuple(rows), len(self._numbers))
        self._counts[number] += 1
        return Structure(number=number, names=names, storages=storages)

    def _operator(self, op: Operator, names: dict[int, int], storages: dict[int, int]) -> Hashable:
        """Return all that a program may read of an operator, with its operators and storages numbered."""
        tensors = (*op.inputs, *op.outputs)
        numbers = tuple([storages.setdefault(self._storage_of[t], len(storages)) for t in tensors])
        has_gradient = tuple([t in self._gradient_of for t in op.inputs])
        return self._alike.first(op), names.setdefault(op.id, len(names)), len(op.inputs), numbers, has_gradient


@keep
def structures_of(workload: Workload) -> Structures:
    """Return the structures of a workload, which all its jobs share."""
    return Structures(workload)
