"""The ranks of tasks in a graph that shows only some ranks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Ends(NamedTuple):
    """The actual ranks of each task, for a graph that shows only some ranks; int64[tasks] each.

    rank, peer: as in the TaskGraph, but rank numbers, including hidden ranks. is_copy: bool, joins of hidden ranks that
    a shown rank waits for; they are not rows of the table.
    """

    rank: npt.NDArray[np.int64]
    peer: npt.NDArray[np.int64]
    is_copy: npt.NDArray[np.bool_]
