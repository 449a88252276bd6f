"""Conversion of traces to rank programs on a grid: ranks with the same relative behaviour share one program.

The grid's axes are declared by trine's own traces, or derived from the groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from trine.formats.chakra.trace import ChakraTrace
from trine.graph.grid import RankGrid
from trine.graph.memory import MEMORY_CATEGORIES
from trine.graph.program import Collective, Job, Peer, RankProgram, Recv, Send, Step

Axes = tuple[tuple[str, int], ...]


def grid_axes(num_ranks: int, groups: Iterable[Sequence[int]]) -> Axes | None:
    """Return the coarsest grid, fastest axis first, whose axes, or joined axes, include every group, or None.

    A group along one axis is a run of ranks at one stride; along several axes it is runs of runs. Strides and sizes of
    all groups must then divide each other in a chain.
    """
    cuts = {1, num_ranks}
    for group in groups:
        factors = _factors(group)
        if factors is None:
            return None
        for stride, size in factors:
            cuts |= {stride, stride * size}
    chain = sorted(cuts)
    if any(large % small for small, large in pairwise(chain)) or chain[-1] != num_ranks:
        return None
    return tuple((f"axis{i}", large // small) for i, (small, large) in enumerate(pairwise(chain)))


def _factors(group: Sequence[int]) -> list[tuple[int, int]] | None:
    """Return stride and size of each axis of a group, fastest first; None for irregular or unordered ranks."""
    offsets = np.asarray(group, np.int64) - group[0]
    factors = []
    while len(offsets) > 1:
        stride = int(offsets[1])
        if stride < 1:
            return None
        breaks = np.flatnonzero(np.diff(offsets) != stride)
        size = int(breaks[0]) + 1 if len(breaks) else len(offsets)
        if len(offsets) % size:
            return None
        rows = offsets.reshape(-1, size)
        if (rows - rows[:, :1] != np.arange(size) * stride).any():
            return None
        factors.append((stride, size))
        offsets = rows[:, 0]
    return factors


def group_axis(grid: RankGrid, group: Sequence[int]) -> str | None:
    """Return the name of the axis, or of the joined axes, along which these ranks lie in order; None if impossible."""
    factors = _factors(group)
    if factors is None:
        return None
    names = []
    for stride, size in factors:
        while size > 1:
            name = next((n for n, at in grid.strides.items() if at == stride and grid.sizes[n] > 1), None)
            if name is None or size % grid.sizes[name]:
                return None
            names.append(name)
            stride, size = stride * grid.sizes[name], size // grid.sizes[name]
    axis = "+".join(names)
    return axis if names and grid.group(group[0], axis) == tuple(group) else None


def trace_job(trace: ChakraTrace) -> tuple[Job | None, str]:
    """Return the job of the traces, or None with the reason if programs by axes cannot express it.

    The groups must be axes of one rank grid, or several joined.
    """
    axes = _axes(trace)
    if axes is None:
        return None, "the groups are not axes of one rank grid"
    grid = RankGrid(axes)
    names = {group: group_axis(grid, ranks) for group, ranks in trace.groups.items()}
    assert all(names.values())
    return _Rewriter(trace, axes, grid, {group: str(name) for group, name in names.items()}).job(), ""


def _axes(trace: ChakraTrace) -> Axes | None:
    """Return the declared axes if all groups lie along them, else axes derived from the groups."""
    if trace.axes:
        grid = RankGrid(trace.axes)
        if grid.num_ranks == trace.num_ranks and all(group_axis(grid, ranks) for ranks in trace.groups.values()):
            return trace.axes
    return grid_axes(trace.num_ranks, trace.groups.values())


class _Rewriter:
    """Converter of rank numbers to positions on axes, which merges programs that become equal."""

    def __init__(self, trace: ChakraTrace, axes: Axes, grid: RankGrid, axis_of: dict[str, str]) -> None:
        self._trace, self._axes, self._grid, self._axis_of = trace, axes, grid, axis_of
        #: steps of programs without messages, equal for all ranks
        self._shared: dict[int, tuple[Step, ...]] = {}

    def job(self) -> Job:
        numbers: dict[tuple[Step, ...], int] = {}
        program_of = tuple(
            numbers.setdefault(self._steps(rank, program), len(numbers))
            for rank, program in enumerate(self._trace.program_of)
        )
        return Job(
            axes=self._axes,
            programs=tuple(
                RankProgram(
                    name=f"trace {program_of.index(number)}",
                    steps=steps,
                    memory=(),
                    resident_bytes=(0,) * len(MEMORY_CATEGORIES),
                )
                for steps, number in numbers.items()
            ),
            program_of=program_of,
            operator_names=self._trace.operator_names,
            layer_names=self._trace.layer_names,
        )

    def _steps(self, rank: int, program: int) -> tuple[Step, ...]:
        if program in self._shared:
            return self._shared[program]
        steps = self._trace.programs[program].steps
        placed = tuple(self._place_step(rank, step) for step in steps)
        if not any(isinstance(step, Send | Recv) for step in steps):
            self._shared[program] = placed
        return placed

    def _place_step(self, rank: int, step: Step) -> Step:
        """Return a step with its peer or group expressed by axes."""
        if isinstance(step, Send | Recv):
            # The axis that separates the two ranks; several are joined.
            axis = "+".join(
                name
                for name, stride in self._grid.strides.items()
                if rank // stride % self._grid.sizes[name] != step.peer.position // stride % self._grid.sizes[name]
            )
            return step._replace(peer=Peer(axis, self._grid.coordinate(step.peer.position, axis)))
        if isinstance(step, Collective):
            axis = self._axis_of[step.axis]
            return step._replace(axis=axis, key=(axis, *step.key))
        return step
