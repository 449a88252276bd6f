"""How many copies of a token an expert-parallel group sends: one for each expert, node or rank.

An all-to-all of the library sends a copy of a token for each of its ``top_k`` experts. DeepEP (DeepSeek, 2025;
deepseek-ai/DeepEP) sends one copy to each node with such an expert, where NVLink passes it on; within one node it sends
one copy to each rank. Megatron-core calls it ``flex`` (``moe_flex_dispatcher_backend``); HybridEP is alike. Experts are
assumed to be chosen independently and evenly.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

#: Forms of the exchange.
ALL_TO_ALL, DEEPEP = "all-to-all", "deepep"
DISPATCHES = (ALL_TO_ALL, DEEPEP)


class ExpertSpan(NamedTuple):
    """Nodes that an expert-parallel group spans, and its ranks on each."""

    nodes: int = 1
    ranks_per_node: int = 1


#: A group without a machine, or on one GPU.
ONE_PLACE = ExpertSpan()


def sent_share(dispatch: str, top_k: int, span: ExpertSpan) -> Fraction:
    """Return the bytes that a rank sends, relative to one copy for each expert."""
    if dispatch == ALL_TO_ALL or top_k < 2:
        return Fraction(1)
    places = span.nodes if span.nodes > 1 else span.ranks_per_node
    return min(Fraction(1), distinct(top_k, places) / top_k)


def distinct(top_k: int, places: int) -> Fraction:
    """Return the expected number of different places of ``top_k`` experts spread evenly over ``places``."""
    return places * (1 - Fraction(places - 1, places) ** top_k)
