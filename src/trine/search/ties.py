"""Ties: layouts whose times differ by less than the model can tell, ordered by how much each takes for granted."""

from __future__ import annotations

from collections.abc import Sequence

from trine.parallel.plan import PARAMETERS_SHARDED
from trine.search.ranked import Ranked
from trine.search.space import Layout

#: The model's resolution: steps that differ by less than this share are equally fast, as far as trine can tell.
RESOLUTION = 0.02


def assumptions(layout: Layout, node_gpus: int) -> tuple[int, ...]:
    """Return what a layout takes for granted, the most doubtful first; fewer is better.

    Offload needs a host that keeps up. Parameters sharded across nodes (``node_gpus`` GPUs each) are gathered for each
    micro-batch. Context parallelism and pipeline stages beyond those that memory needs only add communication, which is
    less certain than compute.
    """
    group = (layout.shard_ways or layout.dp) * layout.cp * layout.tp
    return (
        int(layout.offload != "none"),
        int(layout.sharding in PARAMETERS_SHARDED and group > node_gpus),
        layout.cp,
        layout.pp,
    )


def with_first(ranked: Sequence[Ranked], node_gpus: int) -> list[Ranked]:
    """Return layouts by time, but first the one with the fewest assumptions of those that tie with the fastest."""
    ordered = sorted(ranked, key=lambda each: each.order)
    if not ordered:
        return []
    first = min(tied(ordered), key=lambda each: (assumptions(each.layout, node_gpus), each.order))
    return [first, *(each for each in ordered if each is not first)]


def tied(ranked: Sequence[Ranked]) -> list[Ranked]:
    """Return the layouts that tie with the fastest one."""
    least = min(each.outcome.step_ps for each in ranked)
    return [each for each in ranked if each.outcome.step_ps <= (1 + RESOLUTION) * least]


def difference_words(first: Layout, second: Layout, node_gpus: int) -> str:
    """Return what the second layout takes for granted beyond the first one, in words; empty for no difference."""
    names = ("offload", "gathers of parameters across nodes", "context parallelism", "pipeline stages")
    pairs = zip(names, assumptions(first, node_gpus), assumptions(second, node_gpus), strict=True)
    return ", ".join(name for name, one, two in pairs if two > one)
