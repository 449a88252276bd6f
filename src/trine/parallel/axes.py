"""The axes of a plan's rank grid, and the communication groups of its forms of parallelism.

The ranks of a pipeline stage have two numberings. Dense weights: tp, cp and the replicas (``shard``: of hybrid
sharding, then ``dp``). Expert weights: etp, ep and the replicas of an expert, over the same ranks (Megatron-core's
parallel folding: core/parallel_state.py, expert_decoder_rank_generator; torchtitan: distributed/parallel_dims.py). The
grid has one axis for each part common to both numberings, so each group lies along whole axes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from trine.errors import PlanError, nearest

#: Megatron-Core's order of axes, fastest first.
DEFAULT_ORDER = "tp-cp-ep-dp-pp"
_NAMES = tuple(DEFAULT_ORDER.split("-"))
#: Replicas of expert weights, as the form of parallelism of an axis.
EXPERT_REPLICAS = "edp"


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of the grid. dense, expert: the form of parallelism along it, for dense weights and for expert weights
    (tp, cp, shard, dp, pp; etp, ep, edp, pp)."""

    name: str
    size: int
    dense: str
    expert: str


def grid_axes(order: str, degrees: Mapping[str, int], shard_degree: int | None) -> tuple[Axis, ...]:
    """Return the axes of the rank grid, fastest first; without axes of size 1, except tp, dp and pp.

    degrees: of tp, cp, ep, etp, pp; dp counts all replicas. shard_degree: ranks that share one copy in hybrid sharding.
    Raises PlanError if no grid has both numberings.
    """
    names = order.split("-")
    inner = [name for name in names if name != "pp"]
    if inner == ["tp", "cp", "ep", "dp"] and names.index("pp") in (0, len(names) - 1):
        folded = _folded(degrees, shard_degree)
        if folded is not None:
            pipeline = Axis("pp", degrees["pp"], "pp", "pp")
            return (pipeline, *folded) if names[0] == "pp" else (*folded, pipeline)
    return _replicas_divided(names, degrees, shard_degree)


def _folded(degrees: Mapping[str, int], shard_degree: int | None) -> list[Axis] | None:
    """Return the common parts of both numberings, or None if a group would lie along a part of an axis."""
    stage, shard = degrees["tp"] * degrees["cp"] * degrees["dp"], shard_degree or 1
    dense = [("tp", degrees["tp"]), ("cp", degrees["cp"]), ("shard", shard), ("dp", degrees["dp"] // shard)]
    replicas, rest = divmod(stage, degrees["etp"] * degrees["ep"])
    expert = [("etp", degrees["etp"]), ("ep", degrees["ep"]), (EXPERT_REPLICAS, replicas)]
    if rest:
        return None
    axes: list[Axis] = []
    for form, size in dense:
        undivided, parts = size, list[tuple[str, int]]()
        while undivided > 1:
            part = min(undivided, expert[0][1])
            if undivided % part or expert[0][1] % part:
                return None
            if part > 1:
                parts.append((expert[0][0], part))
            undivided //= part
            expert[0] = (expert[0][0], expert[0][1] // part)
            if expert[0][1] == 1 and len(expert) > 1:
                del expert[0]
        if form == "dp" and shard > 1 and any(role != EXPERT_REPLICAS for role, _ in parts):
            return None  # the ranks that share one copy must have all experts
        axes += [Axis(_name(form, role, len(parts)), part, form, role) for role, part in parts]
        if (form == "tp" and not parts) or (form == "dp" and not any(axis.name == form for axis in axes)):
            axes.append(Axis(form, 1, form, EXPERT_REPLICAS))
    return axes


def _name(form: str, role: str, num_parts: int) -> str:
    """Return a part's name: ``dp``, ``shard``, the experts' form for replicas they are spread over, or ``tp.ep``."""
    if form in ("dp", "shard"):
        return form if role == EXPERT_REPLICAS else role
    return form if num_parts == 1 else f"{form}.{role}"


def _replicas_divided(names: Sequence[str], degrees: Mapping[str, int], shard_degree: int | None) -> tuple[Axis, ...]:
    """Return axes with experts over a part of the data-parallel replicas only, placed by the order."""
    if degrees["dp"] % degrees["ep"] or degrees["etp"] != degrees["tp"]:
        raise PlanError(
            f"tp {degrees['tp']} x cp {degrees['cp']} x dp {degrees['dp']} and etp {degrees['etp']} x ep "
            f"{degrees['ep']} do not fit into one rank grid: take an ep that divides dp and etp = tp, or powers of 2 "
            f"in the order {DEFAULT_ORDER}"
        )
    shard = shard_degree // degrees["ep"] if shard_degree is not None else 1
    sizes = {**degrees, "shard": shard, "dp": degrees["dp"] // (degrees["ep"] * shard)}
    dense = {"ep": "shard" if shard_degree is not None else "dp"}
    expert = {"tp": "etp", "ep": "ep", "pp": "pp"}
    axes = []
    for name in names:
        for form in ("shard", name) if name == "dp" and shard > 1 else (name,):
            if sizes[form] > 1 or form in ("tp", "dp", "pp"):
                axes.append(Axis(form, sizes[form], dense.get(form, form), expert.get(form, EXPERT_REPLICAS)))
    return tuple(axes)


class AxisGroups:
    """Names of a plan's groups, as axes of its grid joined by ``+`` (fastest first); ``""`` for a single rank.

    tensor, expert_tensor: ranks that divide dense operators and expert operators. data: replicas of dense weights, so
    all ranks that reduce one gradient. replicas: the subset with separate batches. expert: replicas of expert weights.
    shard, expert_shard: ranks that shard parameters, gradients or optimizer state; copies: ranks with the same part
    (hybrid sharding).
    """

    def __init__(self, axes: Sequence[Axis], is_hybrid: bool) -> None:
        self._axes = axes
        self.tensor = self._join(lambda axis: axis.dense == "tp")
        self.expert_tensor = self._join(lambda axis: axis.expert == "etp")
        self.context = self._join(lambda axis: axis.dense == "cp")
        self.experts = self._join(lambda axis: axis.expert == "ep")
        self.data = self._join(lambda axis: axis.dense in ("cp", "shard", "dp"))
        self.replicas = self._join(lambda axis: axis.dense in ("shard", "dp"))
        self.expert = self._join(lambda axis: axis.expert == EXPERT_REPLICAS)
        self.shard, self.expert_shard, self.copies = self.data, self.expert, ""
        if is_hybrid:
            self.shard = self._join(lambda axis: axis.dense in ("cp", "shard"))
            self.expert_shard = self._join(lambda axis: axis.expert == EXPERT_REPLICAS and axis.dense != "dp")
            self.copies = self._join(lambda axis: axis.dense == "dp")

    def _join(self, is_wanted: Callable[[Axis], bool]) -> str:
        return "+".join(axis.name for axis in self._axes if is_wanted(axis) and axis.size > 1)

    def size(self, group: str) -> int:
        """Return the number of ranks in a group."""
        total, sizes = 1, {axis.name: axis.size for axis in self._axes}
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
