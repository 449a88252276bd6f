"""Traces of all ranks of a job: programs by rank number, and the groups that they name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trine.formats.chakra.programs import NodeRoofline, Program


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ChakraTrace:
    """The files ``<prefix>.<rank>.et`` of a job; their messages and collectives match.

    programs: distinct contents of files; ``program_of`` has one entry per rank. groups: name used as a collective's
    axis -> ranks. operator_names, layer_names: indexed by labels. axes: the rank grid, fastest axis first, if trine
    wrote the traces and recorded it; empty otherwise. notes: assumptions, one sentence each.
    roofline: the model that timed compute nodes; None: their recorded durations.
    """

    prefix: str
    files: tuple[Path, ...]
    programs: tuple[Program, ...]
    program_of: tuple[int, ...]
    groups: Mapping[str, tuple[int, ...]]
    operator_names: tuple[str, ...]
    layer_names: tuple[str, ...]
    axes: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()
    roofline: NodeRoofline | None = None

    @property
    def num_ranks(self) -> int:
        return len(self.program_of)

    @property
    def num_nodes(self) -> int:
        """Number of nodes that become steps, over all ranks."""
        return sum(len(self.programs[program].steps) for program in self.program_of)
