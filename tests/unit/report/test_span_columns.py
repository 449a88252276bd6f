"""Do the words behind the spans of a timeline name their layer and their collective, and --zoom find it?"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from trine.graph.taskgraph import COMPUTE, TRANSFER
from trine.report.span_columns import narrow, span_details, zoom_words

#: Task 0 computes in a layer, 1 is a collective of that layer, 2 a collective without a layer, 3 a message alone,
#: 4 computes without a layer, and 5 is a computation that a collective launches.
LAYERS, COLLECTIVES = [0, 0, -1, -1, -1, 0], [-1, 0, 1, -1, -1, 0]
KINDS = [COMPUTE, TRANSFER, TRANSFER, TRANSFER, COMPUTE, COMPUTE]


def graph() -> Any:
    collectives = (
        SimpleNamespace(size_bytes=1 << 20, num_ranks=8, algorithm="ring", axis="tp"),
        SimpleNamespace(size_bytes=1 << 21, num_ranks=2, algorithm="tree", axis="dp"),
    )
    labels = SimpleNamespace(layer=np.array(LAYERS), collective=np.array(COLLECTIVES))
    return SimpleNamespace(
        layer_names=("layers.0.mlp up",), collectives=collectives, labels=labels, kind=np.array(KINDS),
        size_bytes=np.array([0, 1 << 17, 1 << 20, 4096, 0, 0]),
    )  # fmt: skip


def test_details_name_the_layer_and_the_collective():
    codes, words = span_details(graph(), np.arange(6))
    shown = [words[code] if code >= 0 else "" for code in codes.tolist()]
    layer = "layers.0.mlp up"
    assert shown == [layer, f"{layer}, 1 MiB on 8 ranks, ring", "2 MiB on 2 ranks, tree", "4 KiB", "", layer]


def test_zoom_finds_collectives_by_layer_or_axis():
    made, tasks = graph(), np.arange(6)
    codes, words = span_details(made, tasks)
    found = dict(zip(words, zoom_words(made, tasks, codes, len(words)), strict=True))
    assert found == {
        "layers.0.mlp up": "", "layers.0.mlp up, 1 MiB on 8 ranks, ring": "'layers.0.mlp up'",
        "2 MiB on 2 ranks, tree": "dp", "4 KiB": "",
    }  # fmt: skip


def test_codes_take_the_smallest_type_that_holds_them():
    assert narrow(np.array([-1, 2**15 - 1])).dtype == np.int16
    assert narrow(np.array([2**15])).dtype == np.int32
    assert narrow(np.array([], np.int32)).dtype == np.int16
