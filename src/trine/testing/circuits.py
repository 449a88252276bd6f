"""Conformance check of network models with circuits."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from trine.engine.circuit_model import CircuitModel, IdleCircuit
from trine.engine.circuits import Change, on_circuit
from trine.engine.models import drain_ps
from trine.engine.reference import Reference
from trine.errors import TrineError
from trine.graph.builder import TaskGraphBuilder
from trine.graph.taskgraph import Records, TaskGraph
from trine.testing.plug_ins import require, require_order

#: Ranks in excess of ports, so that circuits must be torn down; maximum number of ranks.
SPARE, MAX_RANKS = 3, 14


def check_circuit_run(model: CircuitModel, rng: random.Random, case: str) -> None:
    """Check ``model``'s choice of victims; run a random graph twice, and with permuted rank numbers."""
    _require_choice(model, rng, case)
    graph = _platform(rng, min(model.circuits.ports + SPARE, MAX_RANKS))
    records, history = _simulated(graph, model, case)
    require_lawful_circuits(graph, records, history, model, case)
    rerun, history_again = _simulated(graph, model, case)
    is_same = history == history_again and np.array_equal(records.end_ps, rerun.end_ps)
    require(is_same, f"{case}: a second run differs from the first")
    relabelled, _ = _simulated(_relabelled(graph, rng), model, case)
    is_same = np.array_equal(records.end_ps, relabelled.end_ps)
    require(is_same, f"{case}: transfers end at other times when ranks are numbered otherwise")


class _CircuitWatch:
    """Wrapper that forwards a model's choices and checks them."""

    def __init__(self, model: CircuitModel, case: str) -> None:
        self.name, self.circuits, self.rates = model.name, model.circuits, model.rates
        self._model, self._case = model, case

    def victim(self, idle: Sequence[IdleCircuit]) -> int:
        return _choice(self._model, idle, self._case)


def _require_choice(model: CircuitModel, rng: random.Random, case: str) -> None:
    idle = sorted(IdleCircuit(rng.randrange(3), task) for task in rng.sample(range(100), rng.randint(1, 8)))
    first = _choice(model, idle, case)
    message = f"{case}: another victim when asked again about {idle}: it must depend on the argument only"
    require(_choice(model, idle, case) == first, message)


def _choice(model: CircuitModel, idle: Sequence[IdleCircuit], case: str) -> int:
    """Return the model's answer after checking its form."""
    argument = list(idle)
    place = model.victim(argument)
    require(argument == list(idle), f"{case}: victim() must not change its argument")
    is_position = isinstance(place, int) and 0 <= place < len(argument)
    require(is_position, f"{case}: victim() is a position, 0 to {len(argument) - 1}, got {place!r}")
    return place


def _platform(rng: random.Random, num_ranks: int) -> TaskGraph:
    """Return random transfers between ranks; sometimes an empty one, one to itself, or work before the next."""
    builder = TaskGraphBuilder([], [], rank_names=[f"rank {i}" for i in range(num_ranks)])
    for task in range(60):
        after = rng.sample(range(task), min(task, rng.choice((0, 0, 1, 2))))
        if rng.random() < 0.15:
            builder.compute(rng.randrange(num_ranks), "main", rng.choice((0, 1, 10**6, 3 * 10**10)), after)
            continue
        hub = rng.random() < 0.7  # many ranks with one rank: its ports do not suffice
        source, target = (0, rng.randrange(1, num_ranks)) if hub else rng.sample(range(num_ranks), 2)
        if rng.random() < 0.5:
            source, target = target, source
        builder.transfer(source, target, [], rng.choice((0, 1, 1000, 10**6, 123_456_789)), after)
    return builder.build()


def _simulated(graph: TaskGraph, model: CircuitModel, case: str) -> tuple[Records, list[Change]]:
    run = Reference(graph, _CircuitWatch(model, case))
    try:
        run.run()
    except TrineError as error:
        raise AssertionError(f"{case}: {error}") from error
    assert run.circuits is not None
    return run.records(), run.circuits.history


def require_lawful_circuits(
    graph: TaskGraph, records: Records, history: Sequence[Change], model: CircuitModel, case: str
) -> None:
    """Check that every task ends, after its predecessors; that circuits fit into the ports and are torn down only when
    unused; that lines send one transfer at a time, at their bandwidth; and that receive buffers do not overflow.
    """
    require(int(records.end_ps.min(initial=0)) >= 0, f"{case}: task {records.end_ps.argmin()} never ends")
    for task in range(graph.num_tasks):
        require_order(graph, records, task, case)
    transfers = np.flatnonzero(on_circuit(graph)).tolist()
    _require_standing(graph, records, history, model, transfers, case)
    _require_sent(graph, records, model, transfers, case)


def _require_standing(
    graph: TaskGraph, records: Records, history: Sequence[Change], model: CircuitModel, transfers: Sequence[int],
    case: str,
) -> None:  # fmt: skip
    """Check that circuits stand from set-up until after their last transfer, and that no rank exceeds its ports."""
    circuits: dict[tuple[int, int], int] = {}
    spans: dict[tuple[int, int], list[tuple[int, float]]] = {}
    for now, event, ends in history:
        if event == "torn down":
            require(ends in circuits, f"{case}: the circuit {ends} is torn down, but does not stand")
            spans.setdefault(ends, []).append((circuits.pop(ends), now))
            continue
        require(ends not in circuits, f"{case}: the circuit {ends} is set up twice")
        circuits[ends] = now
        for rank in ends:
            used = sum(rank in other for other in circuits)
            require(used <= model.circuits.ports, f"{case}: rank {rank} has {used} circuits at {now} ps")
    for ends, since in circuits.items():
        spans.setdefault(ends, []).append((since, float("inf")))
    for task in transfers:
        ends = (int(min(graph.rank[task], graph.peer[task])), int(max(graph.rank[task], graph.peer[task])))
        sent_ps, end_ps = _sending(graph, records, model, task)[0], int(records.end_ps[task])
        ready = model.circuits.setup_ps
        stands = any(since + ready <= sent_ps and end_ps <= until for since, until in spans.get(ends, []))
        message = f"{case}: transfer {task} is sent from {sent_ps} to {end_ps} ps without a circuit {ends} that stands"
        require(stands, message)


def _require_sent(graph: TaskGraph, records: Records, model: CircuitModel, transfers: Sequence[int], case: str) -> None:
    """Check for one transfer at a time in each direction of a circuit, and buffers that hold all bytes in flight."""
    buffer = model.circuits.buffer_bytes
    lines: dict[tuple[int, int], list[tuple[int, int]]] = {}
    rooms: dict[int, list[tuple[int, int]]] = {}
    for task in transfers:
        begin_ps, done_ps = _sending(graph, records, model, task)
        message = f"{case}: transfer {task} ends at {records.end_ps[task]} ps: its bytes need longer"
        require(begin_ps >= records.start_ps[task], message)
        lines.setdefault((int(graph.rank[task]), int(graph.peer[task])), []).append((begin_ps, done_ps))
        if buffer is not None:
            need = min(int(graph.size_bytes[task]), buffer)
            room = rooms.setdefault(int(graph.peer[task]), [])
            room += [(begin_ps, need), (int(records.end_ps[task]), -need)]
    for ends, intervals in lines.items():
        intervals.sort()
        for (_, done_ps), (begin_ps, _) in pairwise(intervals):
            require(done_ps <= begin_ps, f"{case}: two transfers from {ends[0]} to {ends[1]} at {begin_ps} ps")
    for rank, changes in rooms.items():
        occupancy = 0
        for now, change in sorted(changes):  # at one instant, departures come first
            occupancy += change
            require(occupancy <= (buffer or 0), f"{case}: {occupancy} bytes in the buffer of rank {rank} at {now} ps")


def _sending(graph: TaskGraph, records: Records, model: CircuitModel, task: int) -> tuple[int, int]:
    """Return the times at which the first and the last byte of ``task`` left."""
    done_ps = int(records.end_ps[task]) - model.circuits.latency_ps
    return done_ps - drain_ps(float(graph.size_bytes[task]), float(model.circuits.bytes_per_s)), done_ps


def _relabelled(graph: TaskGraph, rng: random.Random) -> TaskGraph:
    """Return the same tasks on permuted ranks."""
    number = np.array(rng.sample(range(len(graph.rank_names)), len(graph.rank_names)), np.int32)
    rank = np.where(graph.rank >= 0, number[graph.rank], np.int32(-1))
    peer = np.where(graph.peer >= 0, number[graph.peer], np.int32(-1))
    return replace(graph, rank=rank, peer=peer)
