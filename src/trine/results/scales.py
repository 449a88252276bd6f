"""Scales of jobs by number of nodes, and the wider range of a level of another scale that stands in for a missing one.

Published steps on few nodes say little about many: layouts of one model and program on a shared fabric scatter by
-6 to +4 % on one node and by -10 to +47 % on 32 (Ultra-Scale Playbook). Factors by scale come from these layouts
(``scales`` of presets/measured/training/bands.yaml, written by :mod:`validation.bands`).
"""

from __future__ import annotations

from collections.abc import Mapping

from trine.compute.spread import GPU_SPREAD

#: Maximum nodes of each scale, and its name.
SCALES = ((1, "1 node"), (3, "2-3 nodes"), (32, "4-32 nodes"), (1 << 40, "more nodes"))
NAMES = tuple(name for _, name in SCALES)
#: Minimum votes of a scale among the steps of a level; with fewer, the level is of another scale.
MIN_AT_SCALE = 3
#: Half-width of the range around the mean speed that holds 80 % of GPUs of one model (normal distribution).
RUN_TO_RUN = 1.2816 * GPU_SPREAD


def scale_of(nodes: int) -> str:
    """Return the name of the scale of a job on ``nodes`` nodes."""
    return next(name for max_nodes, name in SCALES if nodes <= max_nodes)


def stand_in_factors(
    votes: Mapping[str, int], scale: str, widening: Mapping[str, Mapping[str, float]]
) -> tuple[float, float] | None:
    """Return the factors of a level's low and high end for a job of ``scale``; None if the level has that scale.

    votes: of the level's steps by scale. widening: ``low`` and ``high`` by scale, relative to one node. The largest
    scale of the level is the reference. A stand-in is wider by at least the spread of GPUs of one model.
    """
    if votes.get(scale, 0) >= MIN_AT_SCALE:
        return None
    present = [name for name in NAMES if votes.get(name, 0) >= MIN_AT_SCALE]
    nothing = {"low": 1.0, "high": 1.0}
    here = widening.get(scale, nothing)
    reference = widening.get(present[-1], nothing) if present else nothing
    return min(1 - RUN_TO_RUN, here["low"] / reference["low"]), max(1 + RUN_TO_RUN, here["high"] / reference["high"])
