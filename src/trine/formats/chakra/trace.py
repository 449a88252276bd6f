"""Traces of all ranks of a job, as read: programs by rank number and the groups that they name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trine.formats.chakra.programs import NodeRoofline, Program


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ChakraTrace:
    """What ``<prefix>.<rank>.et`` say together; messages and collectives are known to match.

    programs: distinct contents of files; ``program_of`` has one entry a rank. groups: name used as a collective's axis
    -> ranks. operator_names, layer_names: what labels index. axes: the rank grid, fastest axis first, where trine wrote
    the traces and said so; empty otherwise. notes: what was taken for granted, one sentence each.
    roofline: what compute nodes were timed by; None: their own durations.
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
        """Nodes of all ranks that do something."""
        return sum(len(self.programs[program].steps) for program in self.program_of)
