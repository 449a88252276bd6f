"""The flat record table of a run's tasks, as columns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trine.common.shown import titled

Column = npt.NDArray[np.integer]


class RecordTable(NamedTuple):
    """Columns of one length; a text column is coded: ``categories[name][code]``, -1 for empty."""

    columns: dict[str, Column]
    categories: dict[str, tuple[str, ...]]

    def __repr__(self) -> str:
        return titled(self, f"{len(self.columns['task']):,} tasks, columns {', '.join(self.columns)}")

    def text(self, name: str) -> list[str]:
        """Return a text column decoded, with "" for code -1."""
        words = (*self.categories[name], "")
        return [words[code] for code in self.columns[name].tolist()]
