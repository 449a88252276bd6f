"""How a run folds: which repetitions one simulated part stands for, and what it may leave open."""

from __future__ import annotations

from enum import StrEnum

from trine.errors import InputError, nearest


class FoldMode(StrEnum):
    """Mode of folding; its value is the option's text.

    ON: ranks, micro-batches and steps. EXACT: ranks and micro-batches, to the picosecond. RANKS: ranks alone. OFF:
    nothing. VERIFY: as ON, exact, and compared with a run of everything.
    """

    ON = "on"
    EXACT = "exact"
    RANKS = "ranks"
    OFF = "off"
    VERIFY = "verify"

    @property
    def folds_micro_batches(self) -> bool:
        """Whether few micro-batches may stand for all."""
        return self in (FoldMode.ON, FoldMode.EXACT, FoldMode.VERIFY)

    @property
    def folds_steps(self) -> bool:
        """Whether few steps may stand for all."""
        return self in (FoldMode.ON, FoldMode.VERIFY)

    @property
    def may_estimate(self) -> bool:
        """Whether a job that is too large to simulate may get an estimate."""
        return self in (FoldMode.ON, FoldMode.RANKS)

    @property
    def verifies(self) -> bool:
        """Whether the folded run is compared with one of everything."""
        return self is FoldMode.VERIFY


def fold_of(name: object) -> FoldMode:
    """Return the mode of this name. Raises InputError with the nearest one."""
    modes = {str(mode): mode for mode in FoldMode}
    if not isinstance(name, str) or name not in modes:
        raise InputError(f"unknown folding {name!r:.80}{nearest(str(name), modes)}", field="fold")
    return modes[name]
