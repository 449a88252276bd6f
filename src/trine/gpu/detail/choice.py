"""Choice of the collective of a training step to simulate load by load, and its times at the operator level."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from trine.collectives.one_operation import ONE_OPERATION
from trine.collectives.options import AUTO
from trine.common.arguments import named_arguments
from trine.common.arrays import Int64
from trine.common.shown import OneLine
from trine.common.units import format_bytes, whole_number
from trine.errors import InputError, nearest
from trine.gpu.kernels.build import known_kernels
from trine.gpu.model.options import SYNCS
from trine.graph.program import Phase
from trine.results.activity import PHASE_NAMES

if TYPE_CHECKING:
    from trine.graph.grid import RankGrid
    from trine.graph.taskgraph import Records, TaskGraph
    from trine.results import Result

#: Compare two ways to wait: the GPU's default, and a monitor.
BOTH = "both"
#: Wait as the GPU does by default; no comparison.
DEFAULT = "default"
_WHOLE = ("rank", "microbatch", "step", "number", "workgroups")
#: Messages list this many names and count the rest.
_SHOWN = 6


@named_arguments
@dataclass(frozen=True, kw_only=True, slots=True)
class DetailOptions(OneLine):
    """Choice of the kernel of a step to simulate load by load and store by store, and options for it.

    rank: the rank to look at. layer: number of a layer or block, or the first parts of a module's name (``layers.3``,
    ``layers.3.attention.out``); None: any. op: the collective (``all_reduce``) or its axis of the layout (``tp``).
    phase: ``forward``, ``backward``, ... microbatch, step: numbers, from 0 [the last step]. number: position among the
    matching collectives, from 1.
    algorithm, protocol, workgroups: kernel options of :class:`trine.gpu.collective.LoadStoreOptions`.
    sync: ``spin``, ``mwait`` or ``sleep``; ``default``: the GPU's; ``both`` compares it with mwait.
    poll: pause between reads of a flag. gpu_model: name or file of the GPU model [the cluster's].

    Raises
    ------
    InputError: A value is not allowed.
    """

    rank: int = 0
    layer: int | str | None = None
    op: str | None = None
    phase: str | None = None
    microbatch: int | None = None
    step: int | None = None
    number: int = 1
    algorithm: str = AUTO
    protocol: str = AUTO
    workgroups: int | None = None
    sync: str = BOTH
    poll: str | int | None = None
    gpu_model: str | None = None

    def __post_init__(self) -> None:
        for name in _WHOLE:
            value, minimum = getattr(self, name), 1 if name in ("number", "workgroups") else 0
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < minimum):
                raise InputError(f"must be a whole number from {minimum}, got {value!r:.80}", field=name)
        for name, allowed in (("phase", PHASE_NAMES), ("sync", (*SYNCS, BOTH, DEFAULT))):
            value = getattr(self, name)
            if value is not None and value not in allowed:
                raise InputError(f"unknown {name} {value!r:.80}{nearest(str(value)[:80], allowed)}", field=name)


def parse_detail(text: str) -> DetailOptions:
    """Parse a text such as ``rank=0,layer=3,op=all_reduce`` into options.

    Raises InputError for a part that is not KEY=VALUE, an unknown or repeated key, or an invalid value.
    """
    keys = [field.name for field in fields(DetailOptions)]
    options: dict[str, int | str] = {}
    for part in text.split(","):
        key, equals, value = (each.strip() for each in part.partition("="))
        if not equals or not value:
            raise InputError(f"--detail is KEY=VALUE,... such as rank=0,layer=3; got {part.strip()[:80]!r}")
        if key not in keys:
            raise InputError(f"--detail has no {key[:80]!r}{nearest(key[:80], keys)}")
        if key in options:
            raise InputError(f"--detail says {key} twice")
        is_number = re.fullmatch(r"\d{1,9}", value) and (key in _WHOLE or key == "layer")
        options[key] = int(value) if is_number else value
    try:
        return DetailOptions(**options)  # type: ignore[arg-type]
    except InputError as error:
        raise InputError(f"--detail, {error}") from None


@dataclass(frozen=True, slots=True)
class StepCollective:
    """Collective that a rank takes part in. place: its position among the rank's collectives, in order of time.

    layer, phase: names, "" if unknown. microbatch: -1 if without micro-batch. start_ps: when the rank is ready for it.
    end_ps: when its last task on the rank ends. count: how often it counts in a step whose periods repeat.
    """

    place: int
    kind: str
    axis: str
    algorithm: str
    size_bytes: int
    num_ranks: int
    layer: str
    layer_number: int
    phase: str
    microbatch: int
    step: int
    start_ps: int
    end_ps: int
    count: int

    @property
    def words(self) -> str:
        """Description in one line: kind, axis, layer, phase, micro-batch and size."""
        batch = f", micro-batch {self.microbatch}" if self.microbatch >= 0 else ""
        phase = f", {self.phase}" if self.phase else ""
        size = f"{format_bytes(self.size_bytes)} on {self.num_ranks} ranks"
        return f"{self.kind} ({self.axis}) of {self.layer or 'no layer'}{phase}{batch}, {size}"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ChosenCollective:
    """Chosen collective. what: its data on the chosen rank. group: its ranks, by position.

    start_ps, end_ps: int64[group], when each rank is ready for it and when each has finished it, at the operator level.
    others: descriptions of the other matching collectives.
    """

    what: StepCollective
    rank: int
    group: tuple[int, ...]
    start_ps: Int64
    end_ps: Int64
    others: tuple[str, ...]

    @property
    def position(self) -> int:
        """Position of the rank in the group."""
        return self.group.index(self.rank)


def choose(result: Result, grid: RankGrid, options: DetailOptions) -> ChosenCollective:
    """Find the collective that the options describe, in a result of any ranks.

    Raises InputError for a rank, layer, op, ... that the step does not have; the message names the nearest one.
    """
    if options.rank >= result.num_ranks:
        last = result.num_ranks - 1
        raise InputError(f"there is no rank {options.rank}; ranks are 0 to {last}, the nearest is {last}", field="rank")
    alone = result.rank(options.rank)
    names = alone.graph.layer_names
    matches = with_kernels(of_rank(alone, 0), options.rank)
    matches = _of_layer(matches, options.layer, names)
    matches = _narrowed(matches, options, result.num_steps)
    if options.number > len(matches):
        raise InputError(f"number {options.number}: {len(matches)} fit, the nearest is {len(matches)}", field="number")
    chosen = matches[options.number - 1]
    _refuse_unknown_root(chosen)
    group = grid.group(options.rank, chosen.axis)
    group_result = result.of_ranks(group)
    first = first_tasks(group_result, group.index(options.rank))[chosen.place]
    label = int(group_result.graph.labels.collective[first])
    records = simulated_records(group_result)
    start_ps = _of_rows(group_result, label, len(group), np.minimum, records.ready_ps)
    shown_ps = _of_rows(group_result, label, len(group), np.minimum, group_result.records.ready_ps)
    later_ps = int(shown_ps.min() - start_ps.min())  # of the micro-batches before it that are not simulated
    end_ps = _of_rows(group_result, label, len(group), np.maximum, records.end_ps)
    return ChosenCollective(
        what=chosen, rank=options.rank, group=group,
        start_ps=start_ps + later_ps, end_ps=end_ps + later_ps,
        others=tuple(match.words for match in matches if match is not chosen),
    )  # fmt: skip


def of_rank(result: Result, row: int) -> list[StepCollective]:
    """Return all collectives of the rank in a row, in order of time."""
    graph, records = result.graph, simulated_records(result)
    of_row = np.flatnonzero((graph.labels.collective >= 0) & (graph.rank == row))
    label = graph.labels.collective[of_row]
    ends_ps, counts = np.zeros(len(graph.collectives), np.int64), np.ones(len(graph.collectives), np.int64)
    np.maximum.at(ends_ps, label, records.end_ps[of_row])
    if result.weights is not None:
        np.maximum.at(counts, label, result.weights[of_row])
    return [
        _collective(graph, task, place, (records.ready_ps, ends_ps, counts))
        for place, task in enumerate(first_tasks(result, row))
    ]


def simulated_records(result: Result) -> Records:
    """Return the records with the times of one period where micro-batches stand for others.

    The records of such a step stretch these periods over all that they stand for.
    """
    return result.records if result.repeats is None else result.repeats.unstretched(result.records)


def first_tasks(result: Result, row: int) -> list[int]:
    """Return the first task of each collective of the rank in a row, in order of time."""
    graph, ready = result.graph, result.records.ready_ps
    tasks_of_rank = np.flatnonzero((graph.labels.collective >= 0) & (graph.rank == row))
    label = graph.labels.collective[tasks_of_rank]
    order = np.lexsort((tasks_of_rank, ready[tasks_of_rank], label))
    first = tasks_of_rank[order][np.unique(label[order], return_index=True)[1]]
    tasks: list[int] = first[np.lexsort((first, ready[first]))].tolist()
    return tasks


def _collective(graph: TaskGraph, task: int, place: int, times: tuple[Int64, Int64, Int64]) -> StepCollective:
    """Return a collective. times: ready times of all tasks; end and count of each collective on the rank."""
    ready_ps, ends_ps, counts = times
    labels = graph.labels
    about = graph.collectives[int(labels.collective[task])]
    layer, phase = int(labels.layer[task]), int(labels.phase[task])
    layer_name = graph.layer_names[layer] if layer >= 0 else ""
    phase_name = PHASE_NAMES[phase] if phase >= 0 else ""
    return StepCollective(
        place=place, kind=about.kind, axis=about.axis, algorithm=about.algorithm, size_bytes=about.size_bytes,
        num_ranks=about.num_ranks, layer=layer_name, layer_number=layer, phase=phase_name,
        microbatch=int(labels.microbatch[task]), step=max(0, int(labels.step[task])),
        start_ps=int(ready_ps[task]), end_ps=int(ends_ps[labels.collective[task]]),
        count=int(counts[labels.collective[task]]),
    )  # fmt: skip


def _of_rows(result: Result, label: int, rows: int, reduction: np.ufunc, times_ps: Int64) -> Int64:
    """Return the minimum or maximum of the times of each row's tasks of one collective: int64[rows]."""
    tasks = np.flatnonzero(result.graph.labels.collective == label)
    times_of_rows = np.full(rows, np.iinfo(np.int64).max if reduction is np.minimum else -1, np.int64)
    reduction.at(times_of_rows, result.graph.rank[tasks], times_ps[tasks])
    return times_of_rows


def with_kernels(collectives: Sequence[StepCollective], rank: int) -> list[StepCollective]:
    """Return the collectives that have a kernel. Raises InputError if none has."""
    matches = [collective for collective in collectives if collective.num_ranks > 1 and known_kernels(collective.kind)]
    if matches:
        return matches
    kinds = ", ".join(sorted({collective.kind for collective in collectives}))
    reason = f"and there is no kernel for its {kinds}" if kinds else "so there is nothing to look at"
    raise InputError(f"rank {rank} takes part in no collective that has a kernel, {reason}", field="rank")


def _of_layer(collectives: list[StepCollective], layer: int | str | None, names: Sequence[str]) -> list[StepCollective]:
    if layer is None:
        return collectives
    numbers = layers_called(layer, names)
    matches = [collective for collective in collectives if collective.layer_number in numbers]
    if matches:
        return matches
    with_collectives = dict.fromkeys(collective.layer for collective in collectives if collective.layer)
    if not numbers and str(layer).isdecimal():
        numbers_in_names = set()
        for name in names:
            if (number := _number(name)) is not None:
                numbers_in_names.add(number)
        counted = sorted(numbers_in_names)
        closest = min(counted, key=lambda number: abs(number - int(layer)), default=None)
        hint = "layers have names, not numbers" if closest is None else f"the nearest is {closest}"
        raise InputError(f"there is no layer {layer}; {hint}", field="layer")
    if not numbers:
        layers = with_collectives or dict.fromkeys(names)
        raise InputError(f"no layer is called {str(layer)[:80]!r}{nearest(str(layer)[:80], layers)}", field="layer")
    closest_one = min(collectives, key=lambda one: min(abs(one.layer_number - number) for number in numbers))
    raise InputError(
        f"no collective of the rank is of layer {layer}; the nearest is of {closest_one.layer!r}; collectives are of: "
        f"{_some(list(with_collectives))}",
        field="layer",
    )


def layers_called(layer: int | str, names: Sequence[str]) -> set[int]:
    """Return layers by number or name; ``3`` matches the layers with 3 as the first number in their name."""
    text = str(layer)
    exact = {number for number, name in enumerate(names) if name == text or name.startswith(f"{text}.")}
    wanted = whole_number(text)
    if exact or wanted is None:
        return exact
    return {number for number, name in enumerate(names) if _number(name) == wanted}


def _number(layer: str) -> int | None:
    """Return the first number in a layer's name, such as 3 for ``layers.3.mlp.down``."""
    match = re.search(r"(?:^|\.)(\d+)(?:\.|$)", layer)
    return whole_number(match[1]) if match else None


def _narrowed(collectives: list[StepCollective], options: DetailOptions, num_steps: int) -> list[StepCollective]:
    """Return the collectives with the requested op, phase, micro-batch and step (default: the last step)."""
    step = num_steps - 1 if options.step is None else options.step
    criteria = {"op": options.op, "phase": options.phase, "microbatch": options.microbatch, "step": step}
    for name, value in criteria.items():
        matches = [collective for collective in collectives if value is None or value in _values(collective, name)]
        if matches:
            collectives = matches
            continue
        values = {each for collective in collectives for each in _values(collective, name)}
        if isinstance(value, int):
            closest = min(values, key=lambda number: abs(number - value))
            raise InputError(f"no collective that fits is of {name} {value}; the nearest is {closest}", field=name)
        raise InputError(f"no collective that fits is of {name} {value!r:.80}{nearest(value, values)}", field=name)
    return collectives


def has_unknown_root(chosen: StepCollective) -> bool:
    """Return whether the ranks broadcast the weights that they have updated, as one operation of all."""
    is_of_owner = chosen.kind == "broadcast" and chosen.phase == PHASE_NAMES[Phase.OPTIMIZER]
    return is_of_owner and chosen.algorithm.startswith(ONE_OPERATION)


def _refuse_unknown_root(chosen: StepCollective) -> None:
    """Raise InputError for a broadcast of updated weights: each rank is a root, and the graph does not show which."""
    if has_unknown_root(chosen):
        raise InputError(
            f"{chosen.words}: each rank broadcasts the weights that it has updated, and which one is the root of this "
            "is not known at the operator level, which has them as one operation of all; choose another collective",
            field="op",
        )


def _values(collective: StepCollective, name: str) -> tuple[Any, ...]:
    return (collective.kind, collective.axis) if name == "op" else (getattr(collective, name),)


def _some(names: Sequence[str]) -> str:
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + rest
