"""The plain-Python twin: memory channels, L2 and semaphores."""

from __future__ import annotations

from collections import OrderedDict, deque
from functools import partial

from trine.gpu.program import LOAD, RELEASE, STORE
from trine.gpu.reference_agenda import Action, Visit
from trine.gpu.reference_messages import Messages, OwnRequest, Request, Wires
from trine.gpu.reference_monitor import Monitors
from trine.units import transfer_ps


class Memory:
    """Channels, L2 and semaphores of one GPU."""

    def __init__(self, messages: Messages, gpu: int, monitors: Monitors) -> None:
        self.messages, self.gpu, self.monitors = messages, gpu, monitors
        self.wires, self.model = messages.wires, messages.model
        self.values = self.wires.system.program.semaphores[gpu].tolist()
        #: who waits for each semaphore, in order of arrival
        self.waiting: dict[int, deque[Request]] = {}
        self.tags = Tags(self.model.memory.num_channels, self.wires)
        #: how often a semaphore has been released
        self.num_releases = 0

    def reached(self, request: Request) -> None:
        """It is at its channel, or at the slice of the L2 there."""
        channel = self.wires.channel(request.address)
        l2 = self.model.l2
        done = partial(self._has_it, request)
        if l2 is None or not self.wires.is_cached(request.address):
            self._at_channel(channel, request, done)
            return
        is_hit = True
        if request.is_line:
            is_hit, writes_back = self.tags.touch(channel, request.address, request.kind == STORE)
            if writes_back:
                first = self.wires.system.layout.first_channel
                line_ps = transfer_ps(self.model.line_bytes, self.wires.rates[first + channel])
                self.wires.inside[self.gpu][first + channel].occupy(line_ps)
        if request.kind == LOAD and not is_hit:
            done = partial(self._at_channel, channel, request, done)
        self._serve(self.wires.system.layout.first_slice + channel, request, l2.latency_ps, done)

    def _at_channel(self, channel: int, request: Request, done: Action) -> None:
        resource = self.wires.system.layout.first_channel + channel
        self._serve(resource, request, self.model.memory.latency_ps, done)

    def _serve(self, resource: int, request: Request, latency_ps: int, then: Action) -> None:
        num_bytes = self.model.line_bytes if request.is_line else self.model.header_bytes
        self.wires.inside[self.gpu][resource].take(
            Visit(
                self.wires.key(request, request.peer),
                transfer_ps(num_bytes, self.wires.rates[resource]),
                request.is_line,
                lambda end_ps: self.messages.at(end_ps + latency_ps, request, request.peer, then),
                None,
                request.is_again,
            )
        )

    def _has_it(self, request: Request) -> None:
        """What the request is for happens."""
        if request.kind in (STORE, RELEASE):
            if request.peer == request.rank:
                self.messages.has_left(request)
            self.messages.answer(request)
            if request.semaphore >= 0:
                self.release(request.semaphore, request.amount, request.address)
            else:
                self.monitors.data_written(request.address)
        elif request.semaphore < 0:
            self.messages.answer(request)
        elif self.model.poll_ps is not None:
            self._read(request)
            self.messages.answer(request)
        else:
            self.waiting.setdefault(request.semaphore, deque()).append(request)
            self._serve_waiting(request.semaphore)

    def release(self, semaphore: int, amount: int, address: int) -> None:
        self.num_releases += 1
        self.values[semaphore] += amount
        self._serve_waiting(semaphore)
        self.monitors.semaphore_written(semaphore, address)

    def _serve_waiting(self, semaphore: int) -> None:
        queue = self.waiting.get(semaphore)
        while queue and self._takes(queue[0]):
            self.messages.answer(queue.popleft())

    def _takes(self, request: Request) -> bool:
        if self.values[request.semaphore] < request.amount:
            return False
        self.values[request.semaphore] -= request.amount
        return True

    def _read(self, request: Request) -> None:
        """The semaphore is read once; who did not find enough will ask again."""
        request.was_enough = self._takes(request)
        if isinstance(request, OwnRequest):
            request.denied_at = -1 if request.was_enough else self.num_releases
            self.monitors.was_read(request)


class Tags:
    """Which lines are in the L2: sets of lines, the least recently used first, and whether each is dirty."""

    def __init__(self, num_channels: int, wires: Wires) -> None:
        l2 = wires.model.l2
        self.line_bytes, self.num_channels = wires.model.line_bytes, num_channels
        self.ways = l2.ways if l2 is not None else 1
        capacity = l2.capacity_bytes if l2 is not None else 0
        self.num_sets = max(1, capacity // (num_channels * self.ways * self.line_bytes))
        self.sets: dict[tuple[int, int], OrderedDict[int, bool]] = {}
        self.hits = self.misses = 0

    def touch(self, channel: int, address: int, is_store: bool) -> tuple[bool, bool]:
        """Whether the line is there, and whether a dirty one makes room for it."""
        number = address // self.line_bytes
        lines = self.sets.setdefault((channel, number // self.num_channels % self.num_sets), OrderedDict())
        is_hit = number in lines
        self.hits += is_hit
        self.misses += not is_hit
        writes_back = False
        if not is_hit and len(lines) == self.ways:
            _, writes_back = lines.popitem(last=False)
        lines[number] = is_store or (is_hit and lines[number])
        lines.move_to_end(number)
        return is_hit, writes_back
