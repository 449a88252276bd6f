"""Traces as rank programs of a grid: ranks that do the same relative to their place share one program."""

from __future__ import annotations

from dataclasses import replace

from trine.formats.chakra.axes import Axes, grid_axes, group_axis, peer_axis
from trine.formats.chakra.trace import ChakraTrace
from trine.graph.grid import RankGrid
from trine.graph.memory import MEMORY_CATEGORIES
from trine.graph.program import Collective, Job, Peer, RankProgram, Recv, Send, Step


def trace_job(trace: ChakraTrace) -> tuple[Job | None, str]:
    """The job of the traces; None, with the reason, where programs by axes cannot express it.

    That needs a rank grid of which every group is an axis, or several joined.
    """
    found = _axes(trace)
    if found is None:
        return None, "the groups are not axes of one rank grid"
    grid = RankGrid(found)
    names = {group: group_axis(grid, ranks) for group, ranks in trace.groups.items()}
    assert all(names.values())
    return _Rewriter(trace, found, grid, {group: str(name) for group, name in names.items()}).job(), ""


def _axes(trace: ChakraTrace) -> Axes | None:
    """The declared axes if all groups lie along them, else those that the groups have."""
    if trace.axes:
        grid = RankGrid(trace.axes)
        if grid.num_ranks == trace.num_ranks and all(group_axis(grid, ranks) for ranks in trace.groups.values()):
            return trace.axes
    return grid_axes(trace.num_ranks, trace.groups.values())


class _Rewriter:
    """Puts positions on axes in the place of rank numbers, and finds the programs that are then the same."""

    def __init__(self, trace: ChakraTrace, axes: Axes, grid: RankGrid, axis_of: dict[str, str]) -> None:
        self._trace, self._axes, self._grid, self._axis_of = trace, axes, grid, axis_of
        #: steps of programs without messages, which are the same for every rank
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
        own = tuple(self._placed(rank, step) for step in steps)
        if not any(isinstance(step, Send | Recv) for step in steps):
            self._shared[program] = own
        return own

    def _placed(self, rank: int, step: Step) -> Step:
        """A step with its peer, or its group, by axes."""
        if isinstance(step, Send | Recv):
            axis = peer_axis(self._grid, rank, step.peer.position)
            return replace(step, peer=Peer(axis, self._grid.coordinate(step.peer.position, axis)))
        if isinstance(step, Collective):
            axis = self._axis_of[step.axis]
            return replace(step, axis=axis, key=(axis, *step.key))
        return step
