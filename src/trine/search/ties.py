"""Ties: layouts whose times differ by less than the model's error, ordered by their assumptions."""

from __future__ import annotations

from collections.abc import Sequence

from trine.parallel.plan import PARAMETERS_SHARDED
from trine.search.ranked import Ranked
from trine.search.space import Layout

#: The model's resolution: steps that differ by less than this share are equally fast, as far as trine can tell.
RESOLUTION = 0.02


def assumptions(layout: Layout, node_gpus: int) -> tuple[int, ...]:
    """Return the assumptions of a layout, the most doubtful first; fewer is better.

    Offload needs a host that keeps up. Parameters sharded across nodes (``node_gpus`` GPUs each) are gathered for each
    micro-batch. Context parallelism and pipeline stages beyond those that memory needs only add communication, which is
    less certain than compute. Last come switches of experts (:mod:`trine.search.switches`).
    """
    group = (layout.shard_ways or layout.dp) * layout.cp * layout.tp
    return (
        int(layout.offload != "none"),
        int(layout.sharding in PARAMETERS_SHARDED and group > node_gpus),
        layout.cp,
        layout.pp,
        sum((layout.expert_overlap, layout.shared_expert_overlap, layout.dispatch is not None)),
    )


def with_first(ranked: Sequence[Ranked], node_gpus: int) -> list[Ranked]:
    """Return layouts by time, but first the one with the fewest assumptions of those within RESOLUTION of the fastest.

    A tie that only the doubt about the fabric makes is named in the answer, but changes no order.
    """
    ordered = sorted(ranked, key=lambda each: each.order)
    if not ordered:
        return []
    first = min(tied(ordered), key=lambda each: (assumptions(each.layout, node_gpus), each.order))
    return [first, *(each for each in ordered if each is not first)]


def tied(ranked: Sequence[Ranked], node_gpus: int = 0, fabric_error: float = 0.0) -> list[Ranked]:
    """Return the layouts that tie with the fastest one, see :func:`is_tie`."""
    fastest = min(ranked, key=lambda each: each.order)
    return [each for each in ranked if is_tie(fastest, each, node_gpus, fabric_error)]


def is_tie(fastest: Ranked, other: Ranked, node_gpus: int = 0, fabric_error: float = 0.0) -> bool:
    """Return whether trine cannot tell which of two layouts is faster.

    fabric_error: the likely error of a collective between nodes of ``node_gpus`` GPUs, as a share. It moves both steps
    alike, so that only the difference of their exposed communication between nodes is in doubt.
    """
    behind_ps = other.outcome.step_ps - fastest.outcome.step_ps
    doubt_ps = fabric_error * abs(exposed_between(other, node_gpus) - exposed_between(fastest, node_gpus))
    return behind_ps <= max(RESOLUTION * fastest.outcome.step_ps, doubt_ps)


def exposed_between(ranked: Ranked, node_gpus: int) -> float:
    """Return the exposed time of collectives between nodes in ps: their share of the transfers' time."""
    layout, outcome = ranked.layout, ranked.outcome
    inner = layout.tp * layout.cp
    sizes = {"cp": inner, "ep": inner * layout.ep, "dp": inner * layout.dp, "pp": inner * layout.dp * layout.pp}
    crossing = {axis for axis, gpus in sizes.items() if gpus > node_gpus}
    total = sum(outcome.communication.values())
    between = sum(ps for axes, ps in outcome.communication.items() if crossing & set(axes.split("+")))
    return outcome.exposed_ps * between / total if total else 0.0


def difference_words(first: Layout, second: Layout, node_gpus: int) -> str:
    """Return the further assumptions of the second layout, in words; empty for no difference."""
    names = ("offload", "gathers of parameters across nodes", "context parallelism", "pipeline stages",
             "switches of experts")  # fmt: skip
    pairs = zip(names, assumptions(first, node_gpus), assumptions(second, node_gpus), strict=True)
    return ", ".join(name for name, one, two in pairs if two > one)
