"""The plain-Python twin: the memory of a GPU, with its channels, L2 and semaphores.

:class:`MonitorTable` holds the lines that sleeping wavefronts watch (docs/design/replay.md).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from functools import partial

from trine.common.units import transfer_ps
from trine.gpu.program import ACQUIRE, LOAD, RELEASE, STORE
from trine.gpu.reference.events import Action, ServerVisit
from trine.gpu.reference.interconnect import Interconnect
from trine.gpu.reference.messages import Messages
from trine.gpu.reference.requests import OwnRequest, Request, RequestCounters
from trine.gpu.system import GpuSystem


class GpuMemory:
    """Channels, L2 and semaphores of one GPU."""

    def __init__(self, messages: Messages, gpu: int, counters: RequestCounters) -> None:
        self.messages, self.gpu, self.model = messages, gpu, messages.model
        self.interconnect = messages.interconnect
        self.monitors = MonitorTable(self.interconnect.system, gpu, counters)
        self.values = self.interconnect.system.program.semaphores[gpu].tolist()
        #: requests that wait for each semaphore, in order of arrival
        self.waiters: dict[int, deque[Request]] = {}
        self.tags = CacheTags(self.interconnect)
        #: number of releases, over all semaphores
        self.num_releases = 0

    def reached(self, request: Request) -> None:
        """Serve a request at its channel or L2 slice; a host's memory time is included in the links to it."""
        if self.interconnect.system.is_host(self.gpu):
            has_it = partial(self._has_it, request)
            if request.semaphore < 0:
                has_it()
            else:
                self.messages.at(self.messages.agenda.now, request, request.peer, has_it)
            return
        channel = self.interconnect.channel(request.address)
        layout, l2 = self.interconnect.system.layout, self.model.l2
        on_done = partial(self._has_it, request)
        if l2 is None or not self.interconnect.is_cached(request.address):
            self._at_channel(channel, request, on_done)
            return
        is_hit = True
        if request.is_line:
            is_hit, writes_back = self.tags.touch(channel, request.address, request.kind == STORE)
            if writes_back:
                resource = layout.first_channel + channel
                line_ps = transfer_ps(self.model.line_bytes, self.interconnect.rates[resource])
                self.interconnect.gpu_servers[self.gpu][resource].occupy(line_ps)
        if (request.kind == LOAD or request.adds) and not is_hit:
            on_done = partial(self._at_channel, channel, request, on_done)
        self._serve(layout.first_slice + channel, request, l2.latency_ps + self._far_ps(request), on_done)

    def _far_ps(self, request: Request) -> int:
        """Return the extra latency of the far L2 half; for requests from other GPUs the links' latency includes it.

        Writes and flag reads go to the half in which the line is at home; plain loads use a copy in the CU's half.
        """
        is_own = isinstance(request, OwnRequest) and request.peer == request.rank
        if not is_own or (request.kind == LOAD and not request.is_flagged_load):
            return 0
        l2, line = self.model.l2, request.address // self.model.line_bytes
        return l2.far_ps if l2 is not None and (request.cu + line.bit_count()) % 2 else 0

    def _at_channel(self, channel: int, request: Request, on_done: Action) -> None:
        resource = self.interconnect.system.layout.first_channel + channel
        self._serve(resource, request, self.model.memory.latency_ps, on_done)

    def _serve(self, resource: int, request: Request, latency_ps: int, then: Action) -> None:
        num_bytes = self.model.line_bytes if request.is_line else self.model.header_bytes
        self.interconnect.gpu_servers[self.gpu][resource].take(
            ServerVisit(
                self.interconnect.key(request, request.peer),
                transfer_ps(num_bytes, self.interconnect.rates[resource]),
                request.is_line,
                lambda end_ps: self.messages.at(end_ps + latency_ps, request, request.peer, then),
                None,
                request.is_again,
            )
        )

    def _has_it(self, request: Request) -> None:
        """Carry out the request in the memory."""
        if request.kind in (STORE, RELEASE):
            if isinstance(request, OwnRequest) and request.peer == request.rank:
                request.posted()
            self.messages.answer(request)
            if request.semaphore >= 0:
                self.release(request.semaphore, request.amount, request.address)
            else:
                self.monitors.data_written(request.address)
        elif request.semaphore < 0:
            self.messages.answer(request)
        elif self.model.poll_ps is not None:
            # The semaphore is read once; a wavefront that finds too low a value polls again
            request.was_enough = self._takes(request)
            if isinstance(request, OwnRequest):
                request.denied_at = -1 if request.was_enough else self.num_releases
                self.monitors.was_read(request)
            self.messages.answer(request)
        else:
            self.waiters.setdefault(request.semaphore, deque()).append(request)
            self._serve_waiting(request.semaphore)

    def release(self, semaphore: int, amount: int, address: int) -> None:
        self.num_releases += 1
        self.values[semaphore] += amount
        self._serve_waiting(semaphore)
        self.monitors.semaphore_written(semaphore, address)

    def _serve_waiting(self, semaphore: int) -> None:
        queue = self.waiters.get(semaphore)
        while queue and self._takes(queue[0]):
            self.messages.answer(queue.popleft())

    def _takes(self, request: Request) -> bool:
        if self.values[request.semaphore] < request.amount:
            return False
        self.values[request.semaphore] -= request.amount
        return True


class CacheTags:
    """Tags of the L2: sets of lines, least recently used first, and whether each line is dirty."""

    def __init__(self, interconnect: Interconnect) -> None:
        model = interconnect.model
        self.line_bytes, self.num_channels = model.line_bytes, model.memory.num_channels
        self.ways = model.l2.ways if model.l2 is not None else 1
        capacity = model.l2.capacity_bytes if model.l2 is not None else 0
        self.num_sets = max(1, capacity // (self.num_channels * self.ways * self.line_bytes))
        self.sets: dict[tuple[int, int], OrderedDict[int, bool]] = {}
        self.hits = self.misses = 0

    def touch(self, channel: int, address: int, is_store: bool) -> tuple[bool, bool]:
        """Access a line; return whether it hits, and whether it evicts a dirty line."""
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


class MonitorTable:
    """Lines of one GPU's memory that sleeping wavefronts watch."""

    def __init__(self, system: GpuSystem, gpu: int, counters: RequestCounters) -> None:
        monitor = system.model.monitor
        self.capacity = monitor.capacity if monitor is not None else 0
        self.is_there = monitor is not None
        self.line_bytes = system.model.line_bytes
        self.line_of = _lines_of_semaphores(system, gpu)
        self.counters = counters
        self.armed: dict[int, list[OwnRequest]] = {}
        self.num_armed = 0

    def was_read(self, request: OwnRequest) -> None:
        """Handle the result of an acquire or flagged load; a denied acquire's line is watched from now on."""
        self.counters.spurious_wakeups += request.is_woken and not request.was_enough
        request.is_woken = request.is_back = False
        if request.was_enough or not self.is_there or request.kind != ACQUIRE:
            return
        line = self.line_of[request.semaphore]
        if line < 0:
            return
        if self.num_armed == self.capacity:
            self.counters.monitor_full += 1
            return
        request.is_armed = True
        self.num_armed += 1
        self.armed.setdefault(line, []).append(request)

    def semaphore_written(self, semaphore: int, address: int) -> None:
        self._written(self.line_of.get(semaphore, address // self.line_bytes))

    def data_written(self, address: int) -> None:
        self._written(address // self.line_bytes)

    def _written(self, line: int) -> None:
        for request in self.armed.pop(line, ()):
            self.num_armed -= 1
            self.counters.wakeups += 1
            request.is_armed, request.is_woken, request.denied_at = False, True, -1
            if request.is_back:
                request.woken()


def _lines_of_semaphores(system: GpuSystem, gpu: int) -> dict[int, int]:
    """Return the line of each semaphore that kernels of ``gpu`` acquire; -1 if they use several lines."""
    program, lines_of = system.program, dict[int, set[int]]()
    for kernel in (program.kernel_rank == gpu).nonzero()[0].tolist():
        groups = program.kernel_ptr[kernel], program.kernel_ptr[kernel + 1]
        for op in range(*program.workgroup_ptr[list(groups)].tolist()):
            if program.op_kind[op] == ACQUIRE:
                operand = int(program.operand_ptr[op])
                line = int(program.operand_address[operand]) // system.model.line_bytes
                lines_of.setdefault(int(program.operand_semaphore[operand]), set()).add(line)
    line_of = {}
    for semaphore, lines in lines_of.items():
        line_of[semaphore] = lines.pop() if len(lines) == 1 else -1
    return line_of
