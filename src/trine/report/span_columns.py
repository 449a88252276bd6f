"""The colour of each span of a timeline, and the words behind its name."""

from __future__ import annotations

from shlex import quote

import numpy as np
import numpy.typing as npt

from trine.common.arrays import Int64
from trine.common.units import format_bytes
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
    words: dict[str, int] = {}
    layer, collective = graph.labels.layer[tasks].tolist(), graph.labels.collective[tasks].tolist()
    sizes, kinds = graph.size_bytes[tasks].tolist(), graph.kind[tasks].tolist()
    codes = np.empty(len(tasks), np.int32)
    for place, (of_layer, of_collective, size, kind) in enumerate(zip(layer, collective, sizes, kinds, strict=True)):
        parts = [graph.layer_names[of_layer]] if of_layer >= 0 else []
        if kind != COMPUTE and of_collective >= 0:
            label = graph.collectives[of_collective]
            parts.append(f"{format_bytes(label.size_bytes)} on {label.num_ranks} ranks, {label.algorithm}")
        elif kind != COMPUTE:
            parts.append(format_bytes(size))
        text = ", ".join(parts)
        codes[place] = words.setdefault(text, len(words)) if text else -1
    return narrow(codes), tuple(words)


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
