"""How many copies of a token an expert-parallel group sends: one for each expert, node or rank.

An all-to-all of the library sends a copy of a token for each of its ``top_k`` experts. DeepEP (DeepSeek, 2025;
deepseek-ai/DeepEP) sends one copy to each node with such an expert, where NVLink passes it on; within one node it sends
one copy to each rank. Megatron-core calls it ``flex`` (``moe_flex_dispatcher_backend``); HybridEP is alike. Experts are
assumed to be chosen independently and evenly, from all groups of experts or from a few (DeepSeek-V3: 4 of 8 groups, so
that a token goes to at most 4 nodes).
"""

from __future__ import annotations

from fractions import Fraction
from math import comb
from typing import NamedTuple

from trine.graph.workload import Operator

#: Forms of the exchange.
ALL_TO_ALL, DEEPEP = "all-to-all", "deepep"
DISPATCHES = (ALL_TO_ALL, DEEPEP)


class ExpertSpan(NamedTuple):
    """Nodes that an expert-parallel group spans, and its ranks on each."""

    nodes: int = 1
    ranks_per_node: int = 1


#: A group without a machine, or on one GPU.
ONE_PLACE = ExpertSpan()


class Routing(NamedTuple):
    """The choice of a token's experts: ``top_k``, from ``top_groups`` of ``groups`` equal groups (0: from all)."""

    top_k: int
    groups: int = 0
    top_groups: int = 0


def routing_of(op: Operator) -> Routing:
    """Return the routing of an operator that dispatches or combines tokens."""
    numbers = [op.attributes.get(name) for name in ("top_k", "groups", "top_groups")]
    top_k, groups, top_groups = (number if isinstance(number, int) else 0 for number in numbers)
    return Routing(top_k or 1, groups, top_groups)


def sent_share(dispatch: str, routing: Routing, span: ExpertSpan) -> Fraction:
    """Return the bytes that a rank sends, relative to one copy for each expert."""
    if dispatch == ALL_TO_ALL or routing.top_k < 2:
        return Fraction(1)
    places = span.nodes if span.nodes > 1 else span.ranks_per_node
    return min(Fraction(1), distinct(routing, places) / routing.top_k)


def distinct(routing: Routing, places: int) -> Fraction:
    """Return the expected number of different places of a token's experts, which are spread evenly over ``places``.

    Groups are neighbouring experts: a place has whole groups, or a group has whole places; otherwise their limit is
    left out.
    """
    top_k, groups, top_groups = routing
    if groups and groups % places == 0:
        return places * _used_share(groups, groups // places, top_groups, top_k)
    if groups and places % groups == 0:
        of_group = places // groups
        is_used = 1 - (1 - Fraction(1, top_groups * of_group)) ** top_k
        return places * Fraction(top_groups, groups) * is_used
    return places * (1 - Fraction(places - 1, places) ** top_k)


def _used_share(groups: int, of_place: int, top_groups: int, top_k: int) -> Fraction:
    """Return the chance that a place with ``of_place`` of the groups gets a token: one of its groups is chosen, with
    one of the token's experts in it."""
    missed = Fraction(0)
    for chosen in range(min(of_place, top_groups) + 1):
        ways = comb(of_place, chosen) * comb(groups - of_place, top_groups - chosen)
        missed += Fraction(ways, comb(groups, top_groups)) * (1 - Fraction(chosen, top_groups)) ** top_k
    return 1 - missed
