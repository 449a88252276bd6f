"""The axes of a plan's rank grid, and the groups of ranks that its forms of parallelism talk in.

The data-parallel replicas are cut into up to three axes of the grid: ``ep`` (experts are spread over it), ``shard`` (of
hybrid sharding: parameters are spread over it) and ``dp`` (what is left). Ranks that differ on any of them are
data-parallel replicas for all weights but those of experts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from trine.errors import PlanError, nearest

#: The order of axes of Megatron-Core, fastest first.
DEFAULT_ORDER = "tp-cp-ep-dp-pp"
_NAMES = tuple(DEFAULT_ORDER.split("-"))


def grid_axes(order: str, degrees: Mapping[str, int], shard_degree: int | None) -> tuple[tuple[str, int], ...]:
    """Axes of the rank grid with their sizes, fastest first; cp, ep and shard only where they have several ranks.

    degrees: of tp, cp, ep, pp, and in dp all replicas. shard_degree: ranks that share one copy in hybrid sharding.
    """
    shard = shard_degree // max(degrees["ep"], 1) if shard_degree is not None else 1
    sizes = {**degrees, "shard": shard, "dp": degrees["dp"] // (degrees["ep"] * shard)}
    found = []
    for name in order.split("-"):
        if name == "dp" and shard > 1:
            found.append(("shard", shard))
        if sizes[name] > 1 or name in ("tp", "dp", "pp"):
            found.append((name, sizes[name]))
    return tuple(found)


class AxisGroups:
    """Names of the groups of a plan, as axes of its grid joined by ``+`` (fastest first); ``""`` for one rank alone.

    data: replicas of the weights that are not an expert's, so of all that reduce one gradient. expert: those of an
    expert's weights. shard, expert_shard: over which parameters, gradients or optimizer state are spread, and copies,
    expert_copies: the ranks that hold the same part (hybrid sharding).
    """

    def __init__(self, axes: Sequence[tuple[str, int]], is_hybrid: bool) -> None:
        self._axes = axes
        self.tensor, self.context, self.experts = self._join(["tp"]), self._join(["cp"]), self._join(["ep"])
        self.data, self.expert = self._join(["cp", "ep", "shard", "dp"]), self._join(["cp", "shard", "dp"])
        self.shard, self.expert_shard, self.copies = self.data, self.expert, ""
        if is_hybrid:
            self.shard, self.expert_shard = self._join(["cp", "ep", "shard"]), self._join(["cp", "shard"])
            self.copies = self._join(["dp"])

    def _join(self, names: Iterable[str]) -> str:
        wanted = set(names)
        return "+".join(name for name, size in self._axes if name in wanted and size > 1)

    def size(self, group: str) -> int:
        """Ranks of a group of that name."""
        total, sizes = 1, dict(self._axes)
        for name in group.split("+") if group else ():
            total *= sizes[name]
        return total


def check_order(order: str) -> None:
    """Raise PlanError unless ``order`` names each axis once."""
    names = order.split("-") if isinstance(order, str) else []
    for name in names:
        if name not in _NAMES:
            raise PlanError(f"order names {name!r}, which is no axis{nearest(name, _NAMES)}")
    if sorted(names) != sorted(_NAMES):
        raise PlanError(f"order names each of {', '.join(_NAMES)} once, fastest first, such as {DEFAULT_ORDER}")
