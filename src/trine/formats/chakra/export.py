"""``trine train --chakra``: the job as Chakra traces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trine.cli.output import Section, say
from trine.common.units import format_bytes
from trine.errors import InputError

if TYPE_CHECKING:
    from trine.formats.chakra import ChakraFiles
    from trine.graph.program import Job


class ChakraExport(Section):
    """Output of ``trine train --chakra``; rejects a target without a prefix."""

    def __init__(self, prefix: str | None, target: str | None) -> None:
        if prefix is None and target is not None:
            raise InputError("--chakra-target is about the traces that --chakra PREFIX writes, and it was not given")
        self._prefix, self._target = prefix, target or "astra-sim"
        self._files: ChakraFiles | None = None

    @property
    def leaves_launches_out(self) -> bool:
        """Whether traces are written for ASTRA-sim, whose statistics stop at CPU operators."""
        return self._prefix is not None and self._target == "astra-sim"

    def export(self, job: Job) -> None:
        """Write the traces of the job."""
        from trine.formats.chakra import write_chakra

        assert self._prefix is not None
        self._files = write_chakra(job, self._prefix, target=self._target)

    def write(self) -> None:
        """Print a summary of the written traces and their notes."""
        if self._files is None:
            return
        groups_text = f", groups in {self._files.groups}" if self._files.groups is not None else ""
        say(
            f"{self._files.num_nodes} nodes written to {self._files.prefix}.<rank>.et, {self._files.num_ranks} ranks, "
            f"{format_bytes(self._files.num_bytes)}{groups_text}"
        )
        for note in self._files.notes:
            say(f"note: {note}")
