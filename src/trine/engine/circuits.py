"""Circuits in plain Python: the readable definition, and the oracle of _circuits.py.

A transfer between two ranks over a route without links uses a circuit between them. docs/background/photonic.md
explains the rules; this module implements their timing.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trine.engine.circuit_model import CircuitModel, IdleCircuit
from trine.engine.describe import describe_task
from trine.engine.models import drain_ps
from trine.errors import InputError, SimulationError
from trine.graph.taskgraph import TRANSFER, TaskGraph

NEVER = IdleCircuit(-1, -1)
#: State of a transfer until its next event.
LATENCY, SETUP, SENDING, UNDERWAY = "latency", "setup", "sending", "underway"


@dataclass(slots=True, eq=False)
class Circuit:
    """A circuit between two ranks, from the beginning of its set-up on.

    ``lines``: by sender, the transfers still to be sent, in order; ``busy``: senders whose first transfer sends or
    waits for room. ``users``: transfers that have joined it and not ended.
    """

    ends: tuple[int, int]
    lines: dict[int, deque[int]]
    stands: bool = False
    busy: set[int] = field(default_factory=set)
    users: int = 0
    idle: IdleCircuit = NEVER


class Change(NamedTuple):
    """Set-up (its beginning) or tear-down of a circuit at an instant, with the circuit's ends in ascending order."""

    now_ps: int
    what: str
    ends: tuple[int, int]


class CircuitState:
    """All circuits of a run. ``schedule(delay_ps, task)`` adds an event; ``start(task)`` reports a transfer's start."""

    def __init__(
        self,
        graph: TaskGraph,
        model: CircuitModel,
        schedule: Callable[[int, int], object],
        start: Callable[[int], None],
    ) -> None:
        self.graph = graph
        self.model = model
        self.numbers = model.circuits
        self.is_circuit = on_circuit(graph).tolist()
        self.history: list[Change] = []
        self._schedule, self._start = schedule, start
        self._doing: dict[int, str] = {}
        self._began: set[int] = set()
        self._between: dict[tuple[int, int], Circuit] = {}
        self._at_rank: dict[int, list[Circuit]] = defaultdict(list)
        self._used: dict[int, Circuit] = {}
        self._asking: list[int] = []  # transfers that wait for a circuit, in order of arrival
        self._arrived: list[int] = []
        self._freed_lines: set[tuple[Circuit, int]] = set()
        self._room: dict[int, list[int]] = defaultdict(list)  # by receiver: transfers that wait for room in its buffer
        self._reserved: dict[int, int] = defaultdict(int)
        self.has_changed = False

    def ready(self, task: int) -> None:
        """Begin the latency of the route, which is software."""
        self._doing[task] = LATENCY

    def event(self, task: int, now: int) -> bool:
        """Handle the end of the current state of ``task``; return whether the task has ended."""
        doing = self._doing.pop(task)
        self.has_changed = True
        if doing == LATENCY:
            self._arrived.append(task)
            return False
        if doing == SETUP:
            circuit = self._used[task]
            circuit.stands = True
            self._freed_lines.update((circuit, sender) for sender in circuit.lines)
            return False
        if doing == SENDING:
            self._free_line(task)
            if self.numbers.latency_ps:
                self._doing[task] = UNDERWAY
                self._schedule(self.numbers.latency_ps, task)
                return False
        self._leave(task, now)
        return True

    def settle(self, now: int) -> None:
        """Assign circuits and start sends, once an instant after all its events."""
        self.has_changed = False
        waiting, self._asking = [*self._asking, *sorted(self._arrived)], []
        self._arrived = []
        for task in waiting:
            if not self._join(task, now):
                self._asking.append(task)
        heads = []
        for circuit, sender in self._freed_lines:
            if circuit.stands and sender not in circuit.busy and circuit.lines[sender]:
                circuit.busy.add(sender)
                heads.append(circuit.lines[sender][0])
        self._freed_lines.clear()
        for task in sorted(heads):
            self._room[int(self.graph.peer[task])].append(task)
        for receiver, tasks in self._room.items():
            while tasks and self._reserve(receiver, tasks[0]):
                self._send(tasks.pop(0))

    def _join(self, task: int, now: int) -> bool:
        """Put ``task`` on the circuit between its ends; without one, set it up if both ends have a port for it."""
        ends = self._ends(task)
        circuit = self._between.get(ends)
        if circuit is None:
            if not all(self._has_port(rank) for rank in ends):
                return False
            for rank in ends:
                self._free_port(rank, now)
            circuit = Circuit(ends, {rank: deque() for rank in ends})
            self._between[ends] = circuit
            for rank in ends:
                self._at_rank[rank].append(circuit)
            self.history.append(Change(now, "set up", ends))
            self._start(task)
            self._began.add(task)
            self._doing[task] = SETUP
            self._schedule(self.numbers.setup_ps, task)
        sender = int(self.graph.rank[task])
        circuit.lines[sender].append(task)
        circuit.users += 1
        self._used[task] = circuit
        if circuit.stands:
            self._freed_lines.add((circuit, sender))
        return True

    def _has_port(self, rank: int) -> bool:
        circuits = self._at_rank[rank]
        return len(circuits) < self.numbers.ports or any(not circuit.users for circuit in circuits)

    def _free_port(self, rank: int, now: int) -> None:
        """Tear down a circuit of ``rank`` if all its ports hold one."""
        circuits = self._at_rank[rank]
        if len(circuits) < self.numbers.ports:
            return
        unused = [circuit for circuit in circuits if not circuit.users]
        idle = sorted(unused, key=lambda circuit: circuit.idle)
        place = self.model.victim([circuit.idle for circuit in idle])
        if not isinstance(place, int) or not 0 <= place < len(idle):
            raise SimulationError(
                f"network model {self.model.name!r}: victim must be 0 to {len(idle) - 1}, got {place!r}"
            )
        circuit = idle[place]
        del self._between[circuit.ends]
        for end in circuit.ends:
            self._at_rank[end].remove(circuit)
        self.history.append(Change(now, "torn down", circuit.ends))

    def _reserve(self, receiver: int, task: int) -> bool:
        """Reserve room for ``task`` in the receive buffer; larger transfers reserve all of it."""
        if self.numbers.buffer_bytes is not None:
            need = min(int(self.graph.size_bytes[task]), self.numbers.buffer_bytes)
            if self._reserved[receiver] + need > self.numbers.buffer_bytes:
                return False
            self._reserved[receiver] += need
        return True

    def _send(self, task: int) -> None:
        if task in self._began:
            self._began.remove(task)
        else:
            self._start(task)
        self._doing[task] = SENDING
        self._schedule(drain_ps(float(self.graph.size_bytes[task]), float(self.numbers.bytes_per_s)), task)

    def _free_line(self, task: int) -> None:
        """Free the line of ``task`` after its last byte has left, so that the next transfer may send."""
        circuit, sender = self._used[task], int(self.graph.rank[task])
        circuit.lines[sender].popleft()
        circuit.busy.discard(sender)
        self._freed_lines.add((circuit, sender))

    def _leave(self, task: int, now: int) -> None:
        """Remove ``task`` from its circuit and receive buffer after it has been received."""
        circuit = self._used.pop(task)
        circuit.users -= 1
        circuit.idle = IdleCircuit(now, max(task, circuit.idle.last_task) if circuit.idle.since_ps == now else task)
        if self.numbers.buffer_bytes is not None:
            need = min(int(self.graph.size_bytes[task]), self.numbers.buffer_bytes)
            self._reserved[int(self.graph.peer[task])] -= need

    def _ends(self, task: int) -> tuple[int, int]:
        a, b = int(self.graph.rank[task]), int(self.graph.peer[task])
        return (a, b) if a < b else (b, a)


def on_circuit(graph: TaskGraph) -> npt.NDArray[np.bool_]:
    """Return which transfers need a circuit: with bytes, between two ranks, over a route without links: bool[tasks]."""
    needs = (graph.kind == TRANSFER) & (graph.size_bytes > 0) & (graph.rank != graph.peer)
    linked = np.append(np.diff(graph.route_ptr) > 0, False)  # the last entry is for route -1
    needs_circuit: npt.NDArray[np.bool_] = needs & ~linked[graph.route]
    return needs_circuit


def check_circuits(graph: TaskGraph) -> None:
    """Raise InputError for a transfer that needs a circuit, but does not name both of its ends."""
    nobody = on_circuit(graph) & ((graph.rank < 0) | (graph.peer < 0))
    if nobody.any():
        raise InputError(
            f"{describe_task(graph, int(nobody.argmax()))} needs a circuit, but names not both of its ends"
        )


def ranks_of(graph: TaskGraph) -> int:
    """Return the number of ranks that circuits may join: one more than the highest rank in any task."""
    return 1 + max(int(np.max(graph.rank, initial=-1)), int(np.max(graph.peer, initial=-1)))
