"""The plain-Python twin: compute units issue requests, take answers, reduce lines and write them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from trine.gpu.program import ACQUIRE, DATA_OPS, LOAD, REDUCE, STORE
from trine.gpu.reference_agenda import CUS
from trine.gpu.reference_messages import NUMBERS, OwnRequest
from trine.gpu.reference_operations import Operand
from trine.gpu.reference_wavefronts import Line, Shop, Wavefront, Workgroup


class ComputeUnit:
    """Issues one request after the other, as long as there are places; its ALU reduces and computes."""

    def __init__(self, shop: Shop, gpu: int, number: int) -> None:
        self.shop, self.agenda, self.model = shop, shop.agenda, shop.model
        self.gpu, self.number, self.rank = gpu, number, shop.ranks[gpu]
        self.workgroups: list[Workgroup] = []
        self.free_slots = list(range(shop.model.wavefronts_per_cu))
        self.numbers = [0] * shop.model.wavefronts_per_cu
        #: requests of each slot to other GPUs
        self.ordinals = [0] * shop.model.wavefronts_per_cu
        self.outstanding = 0
        #: lines that have writes to issue, and polls; wavefronts that have requests to issue
        self.lines: deque[Line | OwnRequest] = deque()
        self.waves: deque[Wavefront] = deque()
        #: requests that found not enough in their semaphores: they ask again and again, or sleep
        self.asking: dict[OwnRequest, None] = {}
        self.issues_at = 0
        self.will_issue = False
        self.alu_free_ps = 0
        self.state_ps = [0] * 5
        self._full_ps, self._full_since_ps = 0, -1

    def has_room(self, num_wavefronts: int) -> bool:
        return len(self.workgroups) < self.model.workgroups_per_cu and num_wavefronts <= len(self.free_slots)

    def start(self, number: int, num_wavefronts: int, ended: Callable[[Workgroup], None]) -> None:
        slots, self.free_slots = self.free_slots[:num_wavefronts], self.free_slots[num_wavefronts:]
        workgroup = Workgroup(self, number, slots, ended)
        self.workgroups.append(workgroup)
        workgroup.begin()

    def end(self, workgroup: Workgroup) -> None:
        self.workgroups.remove(workgroup)
        self.free_slots = sorted(self.free_slots + workgroup.slots)

    def poke(self) -> None:
        """Foresee the next issue, if there is something to issue."""
        if not self.will_issue and (self.lines or (self.waves and self.outstanding < self.model.max_outstanding)):
            self.will_issue = True
            is_poll = bool(self.lines) and isinstance(self.lines[0], OwnRequest)
            self.agenda.at(
                max(self.agenda.now, self.issues_at), (CUS, self.number, self.rank), self._issue, is_poll=is_poll
            )

    def _issue(self) -> None:
        self.will_issue = False
        self.issues_at = self.agenda.now + self.model.issue_cycles * self.model.cycle_ps
        if self.lines:
            self._issue_line()
        else:
            self.waves.popleft().issue()
        self.poke()

    def _issue_line(self) -> None:
        """The next write of the first line, or its poll."""
        line = self.lines[0]
        if isinstance(line, OwnRequest):
            self.lines.popleft()
            self._send_again(line)
            return
        self.send(line, line.to_write.popleft())
        if not line.to_write:
            self.lines.popleft()

    def send(self, line: Line, operand: Operand) -> None:
        operation, wavefront = line.operation, line.wavefront
        kind = operation.kind
        if kind in DATA_OPS:
            kind = LOAD if any(operand is read for read in operation.reads) else STORE
        semaphore = operand.semaphore
        if operation.kind in DATA_OPS:
            semaphore = operand.semaphore + line.number if operand.is_flagged else -1
        request = OwnRequest(
            kind=kind,
            wavefront=wavefront,
            line=line,
            place=wavefront.place,
            rank=self.rank,
            peer=operand.peer,
            gpu=self.gpu,
            target=operand.rank,
            cu=self.number,
            address=operand.address + (line.number * operand.step if operation.kind in DATA_OPS else 0),
            semaphore=semaphore,
            amount=1 if operation.kind in DATA_OPS else operation.amount,
            number=self.next_number(wavefront.slot),
            ordinal=self._next_ordinal(wavefront.slot, operand.peer),
            issued_ps=self.agenda.now,
        )
        self.shop.requests_done += 1
        self.shop.counters[self.gpu].count(request)
        self.shop.messages.send(request)

    def _send_again(self, request: OwnRequest) -> None:
        request.is_again = True
        request.number = self.next_number(request.wavefront.slot)
        request.ordinal = self._next_ordinal(request.wavefront.slot, request.peer)
        request.issued_ps = self.agenda.now
        self.shop.counters[self.gpu].count(request)
        self.shop.messages.send(request)

    def next_number(self, slot: int) -> int:
        number = self.numbers[slot]
        self.numbers[slot] = (number + 1) % NUMBERS
        return number

    def _next_ordinal(self, slot: int, peer: int) -> int:
        if peer == self.rank:
            return -1
        self.ordinals[slot] += 1
        return self.ordinals[slot] - 1

    def take_place(self) -> None:
        self.outstanding += 1
        if self.outstanding == self.model.max_outstanding:
            self._full_since_ps = self.agenda.now

    def free_place(self) -> None:
        if self.outstanding == self.model.max_outstanding:
            self._full_ps, self._full_since_ps = self.full_ps(), -1
        self.outstanding -= 1
        self.poke()

    def full_ps(self) -> int:
        """For how long, in all, it has had no place left."""
        return self._full_ps + (self.agenda.now - self._full_since_ps if self._full_since_ps >= 0 else 0)

    def occupy_alu(self, cycles: int) -> int:
        self.alu_free_ps = max(self.agenda.now, self.alu_free_ps) + cycles * self.model.cycle_ps
        return self.alu_free_ps


def answered(request: OwnRequest) -> None:
    """An answer is back at its CU."""
    line, wavefront = request.line, request.wavefront
    shop = wavefront.shop
    if request.kind == LOAD:
        shop.counters[request.gpu].load_latency_ps += shop.agenda.now - request.issued_ps
    if not request.was_enough:
        _ask_again(request)
        return
    wavefront.cu.asking.pop(request, None)
    if request.kind == ACQUIRE:
        wavefront.acquired()
    elif request.kind == LOAD:
        _read_back(line)
    else:
        line.unanswered -= 1
        if not shop.model.posted_stores:
            posted_one(line)
        if line.unanswered == 0:
            wavefront.finish_line()


def posted(request: OwnRequest) -> None:
    """A store or release has left its GPU, or its own memory has it."""
    if request.wavefront.shop.model.posted_stores:
        posted_one(request.line)


def posted_one(line: Line) -> None:
    """A store gives its place back; a line with reads has one place for all its writes."""
    line.unposted -= 1
    if line.unposted == 0 or not line.operation.reads:
        line.wavefront.free_place()


def _ask_again(request: OwnRequest) -> None:
    """Unless a monitor watches: then when it has seen a write."""
    wavefront, model = request.wavefront, request.wavefront.shop.model
    wavefront.cu.asking[request] = None
    request.is_back = request.is_armed
    if request.is_woken:
        woken(request)
    elif not request.is_armed and not wavefront.shop.is_futile():
        assert model.poll_ps is not None
        _ask_after(request, model.poll_ps)


def woken(request: OwnRequest) -> None:
    """A monitor has seen a write, and the answer that sent it to sleep is back."""
    monitor = request.wavefront.shop.model.monitor
    assert monitor is not None
    _ask_after(request, monitor.wakeup_ps)


def _ask_after(request: OwnRequest, pause_ps: int) -> None:
    wavefront = request.wavefront

    def join() -> None:
        wavefront.cu.lines.append(request)
        wavefront.cu.poke()

    wavefront.later(wavefront.shop.agenda.now + pause_ps, join, request.number)


def _read_back(line: Line) -> None:
    line.to_read -= 1
    wavefront = line.wavefront
    if line.to_read > 0:
        wavefront.free_place()
        return
    model, reads = wavefront.shop.model, len(line.operation.reads)
    if line.operation.kind == REDUCE and reads > 1:
        cycles = -(-(reads - 1) * model.line_bytes // model.reduce_bytes_per_cycle)
        wavefront.later(wavefront.cu.occupy_alu(cycles), partial(_reduced, line))
    else:
        _reduced(line)


def _reduced(line: Line) -> None:
    """The line is in registers: now its writes."""
    wavefront = line.wavefront
    if not line.to_write:
        wavefront.free_place()
        wavefront.finish_line()
        return
    line.unposted = line.unanswered = len(line.to_write)
    wavefront.cu.lines.append(line)
    wavefront.cu.poke()
