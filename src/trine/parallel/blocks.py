"""The layers of a model, as the names of its operators tell: ``layers.17.attention.qkv`` is of block ``layers.17``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from trine.graph.workload import Operator

_BLOCK = re.compile(r"(?:.*?\.)?\d+(?=\.)")


@lru_cache(maxsize=65536)
def block_of(layer: str) -> str:
    """The block that a layer is of, ``""`` for one outside all: the name up to its first number, if more follows."""
    found = _BLOCK.match(layer)
    return found[0] if found else ""


def has_blocks(operators: Sequence[Operator]) -> bool:
    """Whether the names of ``operators`` tell any layer."""
    return any(block_of(op.layer) for op in operators)


def units_of(forward: Sequence[Operator]) -> list[int]:
    """Where in ``forward`` each unit of the model begins: what comes before the blocks, each block, what comes after.

    Operators between two blocks belong to the one before. Without blocks the whole model is one unit.
    """
    blocks = [block_of(op.layer) for op in forward]
    inside = [i for i, block in enumerate(blocks) if block]
    if not inside:
        return [0]
    starts = [i for before, i in zip([-1, *inside], inside, strict=False) if before < 0 or blocks[before] != blocks[i]]
    after = inside[-1] + 1
    return [*([0] if starts[0] else []), *starts, *([after] if after < len(forward) else [])]
