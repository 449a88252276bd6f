"""Memory over time of the fullest rank, by module: each block of memory belongs to the module that allocated it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trine.common.arrays import Int64
from trine.graph.memory import MEMORY_CATEGORIES, MemoryEvents
from trine.graph.taskgraph import TaskGraph
from trine.report.blocks import Areas
from trine.report.memory import drawn_memory
from trine.report.memory_colours import MEMORY_COLOURS
from trine.results.run import TaskRun

#: Modules with an area of their own; all others share one.
MAX_MODULES = 8
_OTHERS = "other modules"
#: Colours of modules, largest first; kinds of tensors have the other colours.
_COLOURS = ("forward", "tp", "dp", "bubble", "cp", "ep", "recompute", "pp")


def memory_by_module(run: TaskRun) -> Areas | None:
    """Return the memory over time by module; None if memory or its blocks are not modelled.

    Memory outside modules, such as the weights, has the name of its kind.
    """
    memory = run.memory
    if memory is None or memory.block is None:
        return None
    own = memory.only(memory.rank == run.fullest_row)
    if own.block is None or not len(own.task):
        return None
    names = _module_names(run.graph, own)
    modules = _largest_modules(names, own.delta_bytes)
    labels = [*MEMORY_CATEGORIES, *modules, _OTHERS]
    number = {name: place for place, name in enumerate(labels)}
    codes = np.empty(len(names), np.int8)
    for place, (name, category) in enumerate(zip(names, own.category.tolist(), strict=True)):
        codes[place] = number.get(name, len(labels) - 1) if name else category
    resident = np.zeros((len(memory.resident_bytes), len(labels)), np.int64)
    resident[:, : memory.resident_bytes.shape[1]] = memory.resident_bytes
    timeline = run.timeline_of(replace(own, category=codes, resident_bytes=resident))
    colours = []
    for name in MEMORY_CATEGORIES:
        colours.append((name.replace("_", " "), MEMORY_COLOURS.get(name, "other")))
    for name, colour in zip(modules, _COLOURS, strict=False):
        colours.append((name, colour))
    colours.append((_OTHERS, "other"))
    return drawn_memory(run, timeline, colours)


def _module_names(graph: TaskGraph, memory: MemoryEvents) -> list[str]:
    """Return the module of each change, or ""; a free belongs to the module that allocated its block."""
    assert memory.block is not None
    patterns = [module_of(name) for name in graph.layer_names]
    layer: Int64 = graph.labels.layer[memory.task].astype(np.int64)
    of_block: dict[int, str] = {}
    changes = list(zip(layer.tolist(), memory.delta_bytes.tolist(), memory.block.tolist(), strict=True))
    for number, delta, block in changes:
        if delta > 0 and block >= 0:
            of_block.setdefault(block, patterns[number] if number >= 0 else "")
    return [of_block.get(block, "") for _, _, block in changes]


def module_of(layer: str) -> str:
    """Return the module of a layer among all blocks: ``layers.3.mlp.up`` belongs to ``layers.*.mlp``."""
    parts = layer.split(".")
    place = next((number for number, part in enumerate(parts) if part.isdigit()), None)
    if place is None:
        return parts[0]
    kept = ["*" if part.isdigit() else part for part in parts[: place + 2]]
    return ".".join(kept)


def _largest_modules(names: list[str], delta_bytes: Int64) -> list[str]:
    """Return the modules that hold most at one time, largest first."""
    held: dict[str, int] = {}
    most: dict[str, int] = {}
    for name, delta in zip(names, delta_bytes.tolist(), strict=True):
        if name:
            held[name] = held.get(name, 0) + delta
            most[name] = max(most.get(name, 0), held[name])
    ranked = sorted(most, key=lambda name: (-most[name], name))
    return ranked[:MAX_MODULES]
