"""Does memory over time belong to the module that allocated it, the first layer's included?"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from trine.report.memory_modules import _largest_modules, _module_names, module_of

NAMES = ("layers.0.mlp.up", "layers.1.attention.core", "embedding")


def names_of(changes: list[tuple[int, int, int]], layers: list[int]) -> list[str]:
    """Return the module of each change of (task, bytes, block); layers: index of each task's layer, or -1."""
    task, delta, block = (np.array(column, np.int64) for column in zip(*changes, strict=True))
    graph: Any = SimpleNamespace(layer_names=NAMES, labels=SimpleNamespace(layer=np.array(layers)))
    memory: Any = SimpleNamespace(task=task, delta_bytes=delta, block=block)
    return _module_names(graph, memory)


def test_a_free_belongs_to_the_module_that_allocated():
    changes = [(0, 10, 0), (1, 20, 1), (2, -10, 0), (0, -20, 1), (2, 5, 2), (3, 7, 3)]
    expected = ["layers.*.mlp", "layers.*.attention", "layers.*.mlp", "layers.*.attention", "embedding", ""]
    assert names_of(changes, [0, 1, 2, -1]) == expected


def test_changes_without_a_block_have_no_module():
    assert names_of([(0, 10, -1), (0, 10, 0), (1, -10, -1)], [0, 1]) == ["", "layers.*.mlp", ""]


@pytest.mark.parametrize(
    ("layer", "module"),
    [("layers.3.mlp.up", "layers.*.mlp"), ("embedding.words", "embedding"), ("a.b.2.c.4.d", "a.b.*.c"), ("h.0", "h.*")],
)
def test_a_module_is_the_part_behind_the_first_number(layer: str, module: str):
    assert module_of(layer) == module


def test_modules_are_ordered_by_what_they_hold_at_one_time():
    names = ["a", "b", "a", "a", "b", ""]
    deltas = np.array([6, 7, -6, 6, 1, 100], np.int64)  # a holds 6 at most, b holds 8
    assert _largest_modules(names, deltas) == ["b", "a"]
