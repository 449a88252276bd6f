"""The colour of each span of a timeline, and the words behind its name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from shlex import quote

import numpy as np
import numpy.typing as npt

from trine.common.arrays import Int64
from trine.common.units import format_bytes
from trine.compute.kinds import LOOP_FAMILIES, family_of, kind_of_name
from trine.graph.taskgraph import COMPUTE, TaskGraph
from trine.report.run_spans import SPAN_AXES, kind_of_transfer
from trine.results.activity import PHASE_NAMES, launches

#: Colour of each phase, and of work without a phase (-1).
_PHASE_COLOURS = {
    "forward": "forward", "backward": "backward", "optimizer": "optimizer", "input copy": "input",
    "recompute": "recompute", "offload": "offload",
}  # fmt: skip
#: Colours of spans: of computation by phase, of launches, of communication by axis.
SPAN_COLOURS = (
    "compute", *(_PHASE_COLOURS[name] for name in PHASE_NAMES), "launch", "tp", "cp", "ep", "pp", "dp", "communication",
)  # fmt: skip
_LAUNCH, _FIRST_AXIS = SPAN_COLOURS.index("launch"), SPAN_COLOURS.index("tp")


def span_details(graph: TaskGraph, tasks: Int64) -> tuple[npt.NDArray[np.signedinteger], tuple[str, ...]]:
    """Return the layer, or the size and algorithm of a collective, of each span: codes, and their words."""
    is_compute = graph.kind[tasks] == COMPUTE
    layer = graph.labels.layer[tasks].astype(np.int64)
    collective = np.where(is_compute, -1, graph.labels.collective[tasks].astype(np.int64))
    sizes = np.where(is_compute | (collective >= 0), -1, graph.size_bytes[tasks])
    different, first, of_span = np.unique(
        np.stack([layer, collective, sizes]), axis=1, return_index=True, return_inverse=True
    )
    words: dict[str, int] = {}
    codes = np.empty(different.shape[1], np.int32)
    for place in np.argsort(first).tolist():
        text = _detail(graph, *different[:, place].tolist())
        codes[place] = words.setdefault(text, len(words)) if text else -1
    return narrow(codes[of_span.reshape(-1)]), tuple(words)


def _detail(graph: TaskGraph, layer: int, collective: int, size_bytes: int) -> str:
    """Return the words of a span with these codes, -1: none."""
    parts = [graph.layer_names[layer]] if layer >= 0 else []
    if collective >= 0:
        label = graph.collectives[collective]
        parts.append(f"{format_bytes(label.size_bytes)} on {label.num_ranks} ranks, {label.algorithm}")
    elif size_bytes >= 0:
        parts.append(format_bytes(size_bytes))
    return ", ".join(parts)


def zoom_words(graph: TaskGraph, tasks: Int64, codes: npt.NDArray[np.signedinteger], count: int) -> tuple[str, ...]:
    """Return the word by which ``--zoom`` finds the collective of each of ``count`` details, "" for none.

    The longest collective of a layer is the one that its name stands for; without a layer it is that of the axis.
    """
    words = [""] * count
    used, first = np.unique(codes, return_index=True)
    for code, place in zip(used.tolist(), first.tolist(), strict=True):
        task = int(tasks[place])
        collective, layer = int(graph.labels.collective[task]), int(graph.labels.layer[task])
        if code < 0 or collective < 0 or graph.kind[task] == COMPUTE:
            continue
        words[code] = quote(graph.layer_names[layer] if layer >= 0 else graph.collectives[collective].axis)
    return tuple(words)


def operators_with_program(names: Sequence[str]) -> tuple[int, ...]:
    """Return the positions of the names that ``--zoom`` can run as operators, and that need no quotes in a shell."""
    found = []
    for place, name in enumerate(names):
        family = family_of(kind_of_name(name))
        if re.fullmatch(r"[\w.:]+", name) and family not in LOOP_FAMILIES | {"view", "other"}:
            found.append(place)
    return tuple(found)


def narrow(codes: npt.NDArray[np.signedinteger]) -> npt.NDArray[np.signedinteger]:
    """Return codes in the smallest of int16 and int32 that holds them."""
    is_small = not len(codes) or codes.max() < 2**15
    return codes.astype(np.int16 if is_small else np.int32)


def span_colours(graph: TaskGraph, tasks: Int64) -> npt.NDArray[np.uint8]:
    is_compute = graph.kind[tasks] == COMPUTE
    colour = graph.labels.phase[tasks].astype(np.int64) + 1
    colour[launches(graph)[tasks]] = _LAUNCH
    transfers = np.flatnonzero(~is_compute)
    kind = kind_of_transfer(graph, tasks[transfers])
    input_colour, offload_colour = SPAN_COLOURS.index("input"), SPAN_COLOURS.index("offload")
    of_kind = np.array([_FIRST_AXIS + number for number in range(len(SPAN_AXES))] + [input_colour, offload_colour])
    colour[transfers] = of_kind[kind]
    return colour.astype(np.uint8)
