"""The plain-Python twin: the life of a wavefront on its compute unit, operation by operation.

In this order: the wavefront and its workgroup; the compute unit, which issues requests one after the other; a request
of a wavefront, and the effects of its answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from trine.gpu import program as isa
from trine.gpu.draws import MODULUS, MULTIPLIER, first_draw
from trine.gpu.records import BARRIER as AT_BARRIER
from trine.gpu.records import COMPUTING, ISSUE, MEMORY, SEMAPHORE
from trine.gpu.reference.events import CUS, WAVEFRONTS, Agenda
from trine.gpu.reference.packets import DmaRequest
from trine.gpu.reference.requests import NUMBERS, OwnRequest
from trine.gpu.reference.shared import SharedState, TwinOperand, TwinOperation
from trine.gpu.reference.switches import send_to_members

CONTROL_OPS = (isa.ACQUIRE, isa.RELEASE, isa.DMA)


class WavefrontRun:
    """One wavefront: its current operation, the request slots that it holds, its unfinished lines."""

    def __init__(self, workgroup: WorkgroupRun, number: int, slot: int) -> None:
        self.workgroup, self.number, self.slot, self.cu = workgroup, number, slot, workgroup.cu
        self.shared: SharedState = workgroup.cu.shared
        self.agenda: Agenda = self.shared.agenda
        self.wave_slot = self.cu.number * self.shared.model.wavefronts_per_cu + slot
        self.op = workgroup.first_op
        self.is_begun = False
        self.issued = 0
        self.line: LineInFlight | None = None
        self.slots_in_use = 0
        self.unfinished = 0
        self.waits_for_slot = False
        self.has_ended = False
        self.state, self.since_ps, self.full_before_ps = -1, 0, 0

    @property
    def operation(self) -> TwinOperation | None:
        return self.shared.operations[self.op] if self.op < self.workgroup.last_op else None

    def later(self, time_ps: int, do: Callable[[], None], poll: int = -1) -> None:
        """Schedule ``do`` as an event of the wavefront; ``poll``: the number of the request to repeat, or -1."""
        self.agenda.at(time_ps, (WAVEFRONTS, self.wave_slot, self.cu.rank, poll), do, is_poll=poll >= 0)

    def go_on(self) -> None:
        """Execute operations without duration, up to one that takes time or to the end."""
        while (operation := self.operation) is not None:
            if self.number > 0 and operation.kind in CONTROL_OPS:  # only wavefront 0 executes those
                self.op += 1
                continue
            if not self.is_begun:
                self.is_begun, self.issued = True, 0
                if self.shared.op_start_ps[operation.number] < 0:
                    self.shared.op_start_ps[operation.number] = self.agenda.now
            if not self._is_through(operation):
                return
            self.finish_operation()
        if self.unfinished > 0:
            self._enter(MEMORY)
            return
        self._leave_state()
        self.has_ended = True
        self.workgroup.wavefront_ended()

    def finish_operation(self) -> None:
        self.shared.op_end_ps[self.op] = self.agenda.now
        self.op += 1
        self.is_begun = False

    def _is_through(self, operation: TwinOperation) -> bool:
        """Begin the operation; return whether it is already over."""
        kind = operation.kind
        if kind in isa.DATA_OPS or kind in CONTROL_OPS:
            return self._queue_to_issue(operation)
        if kind in (isa.WAITCNT, isa.FENCE) and self.unfinished > operation.amount:
            self._enter(MEMORY)
            return False
        if kind in (isa.FENCE, isa.DELAY):
            self._enter(MEMORY)
            model = self.shared.model
            pause_ps = model.fence_ps if kind == isa.FENCE else operation.amount * model.cycle_ps
            self.later(self.agenda.now + pause_ps, self._next)
            return False
        if kind == isa.BARRIER:
            self._enter(AT_BARRIER)
            self.workgroup.arrive(self)
            return False
        if kind == isa.COMPUTE:
            self._enter(COMPUTING)
            self.later(self.cu.occupy_alu(operation.amount), self._next)
            return False
        return True

    def _next(self) -> None:
        self.finish_operation()
        self.go_on()

    def _queue_to_issue(self, operation: TwinOperation) -> bool:
        if self.issued == self._num_requests(operation):
            return operation.kind != isa.ACQUIRE
        if self.slots_in_use < operation.unroll:
            self._enter(ISSUE)
            self.cu.queue(self)
        else:
            self._enter(MEMORY)
            self.waits_for_slot = True
        return False

    def _num_requests(self, operation: TwinOperation) -> int:
        if operation.kind == isa.DMA:
            return 1
        per_line = len(operation.issued_by_wavefronts)
        if operation.kind in CONTROL_OPS:
            return per_line
        wavefronts = len(self.workgroup.wavefronts)
        return max(0, -(-(operation.amount - self.number) // wavefronts)) * per_line

    def issue(self) -> None:
        """Issue the next request; called by the CU."""
        operation = self.operation
        assert operation is not None
        operands = operation.issued_by_wavefronts
        turn, operand = (0, self.issued) if operation.kind in CONTROL_OPS else divmod(self.issued, len(operands))
        if operand == 0:
            self._begin_line(operation, self.number + turn * len(self.workgroup.wavefronts))
        assert self.line is not None
        self.issued += 1
        self.slots_in_use += 1
        self.cu.take_slot()
        if operation.kind == isa.DMA:
            self._hand_over(operation)
        else:
            self.cu.send(self.line, operands[operand])
        if operation.kind == isa.ACQUIRE:
            self._enter(SEMAPHORE)
        else:
            self.go_on()

    def _begin_line(self, operation: TwinOperation, number: int) -> None:
        self.unfinished += 1
        self.line = LineInFlight(self, operation, number, to_read=len(operation.reads))
        if operation.reads and operation.kind != isa.DMA:
            self.line.to_write.extend(operation.writes)
        elif operation.kind in (isa.STORE, isa.RELEASE):
            self.line.unposted = self.line.unanswered = len(operation.writes)

    def _hand_over(self, operation: TwinOperation) -> None:
        """Hand a DMA over to the copy engine or NIC."""
        self.free_slot()
        self.shared.requests_done += 1
        target = operation.writes[0]
        self.shared.engines.hand_over(
            DmaRequest(
                begins_ps=self.shared.engines.begins_ps(self.cu.gpu, self.cu.rank, target.peer), gpu=self.cu.gpu,
                rank=self.cu.rank, wave_slot=self.wave_slot, number=self.cu.next_number(self.slot),
                ordinal=self.cu.next_ordinal(self.slot, target.peer), peer=target.peer, target=target.rank,
                num_bytes=operation.amount, address=target.address, semaphore=target.semaphore,
                delivered=partial(self._delivered, target),
            )
        )  # fmt: skip

    def _delivered(self, target: TwinOperand, known_ps: int) -> None:
        """Release the semaphore of an arrived DMA, and schedule the notice to the wavefront."""
        if target.semaphore >= 0 and target.rank >= 0:
            self.shared.messages.memories[target.rank].release(target.semaphore, 1, target.address)
        self.later(known_ps, self.finish_line)

    def free_slot(self) -> None:
        """Free a request slot of the wavefront and of its CU."""
        self.slots_in_use -= 1
        self.cu.free_slot()
        operation = self.operation
        if self.waits_for_slot and operation is not None and self.slots_in_use < operation.unroll:
            self.waits_for_slot = False
            self.go_on()

    def finish_line(self) -> None:
        """Finish a line: all its answers are back."""
        self.unfinished -= 1
        operation = self.operation
        if operation is None:
            if self.unfinished == 0:
                self.go_on()
        elif operation.kind in (isa.WAITCNT, isa.FENCE) and self.is_begun and self.unfinished <= operation.amount:
            self.go_on()

    def acquired(self) -> None:
        self.free_slot()
        self.unfinished -= 1
        self._next()

    def _enter(self, state: int) -> None:
        self._leave_state()
        self.state = state

    def _leave_state(self) -> None:
        """Count the time in the current state; time without free request slots in the CU counts as memory."""
        now, full_ps = self.agenda.now, self.cu.full_ps()
        if self.state >= 0:
            time_ps = now - self.since_ps
            if self.state == ISSUE:
                self.cu.state_ps[MEMORY] += full_ps - self.full_before_ps
                time_ps -= full_ps - self.full_before_ps
            self.cu.state_ps[self.state] += time_ps
        self.since_ps, self.full_before_ps = now, full_ps

    def flush_state(self) -> None:
        if not self.has_ended:
            self._leave_state()


class WorkgroupRun:
    """A workgroup on a CU, from its start to the end of its last wavefront."""

    def __init__(self, cu: ComputeUnit, number: int, slots: list[int], on_end: Callable[[WorkgroupRun], None]) -> None:
        program = cu.shared.system.program
        self.cu, self.number, self.slots, self.on_end = cu, number, slots, on_end
        self.first_op, self.last_op = int(program.workgroup_ptr[number]), int(program.workgroup_ptr[number + 1])
        self.wavefronts = [WavefrontRun(self, w, slot) for w, slot in enumerate(slots)]
        self.at_barrier: list[WavefrontRun] = []
        self.num_left = len(slots)

    def arrive(self, wavefront: WavefrontRun) -> None:
        """Register a wavefront at the barrier; the last one lets all continue."""
        self.at_barrier.append(wavefront)
        if len(self.at_barrier) == len(self.wavefronts):
            shared = self.cu.shared
            self.wavefronts[0].later(shared.agenda.now + shared.model.barrier_ps, self._let_go)

    def _let_go(self) -> None:
        self.at_barrier = []
        for wavefront in self.wavefronts:
            wavefront.finish_operation()
            wavefront.go_on()

    def wavefront_ended(self) -> None:
        self.num_left -= 1
        if self.num_left == 0:
            self.on_end(self)


class ComputeUnit:
    """A compute unit, which issues requests one by one while it has request slots; its ALU reduces and computes."""

    def __init__(self, shared: SharedState, gpu: int, number: int) -> None:
        self.shared, self.agenda, self.model = shared, shared.agenda, shared.model
        self.gpu, self.number, self.rank = gpu, number, shared.ranks[gpu]
        self.workgroups: list[WorkgroupRun] = []
        self.free_slots = list(range(shared.model.wavefronts_per_cu))
        self.numbers = [0] * shared.model.wavefronts_per_cu
        #: requests of each wavefront slot to other GPUs
        self.ordinals = [0] * shared.model.wavefronts_per_cu
        self.outstanding = 0
        #: lines with writes to issue, and polls; wavefronts with requests to issue
        self.lines: deque[LineInFlight | WavefrontRequest] = deque()
        self.waves: deque[WavefrontRun] = deque()
        #: refused requests that poll their semaphores, or sleep
        self.asking: dict[WavefrontRequest, None] = {}
        self.issues_at = 0
        self.will_issue = False
        self.alu_free_ps = 0
        #: earliest turn of the next poll; the last random number, if the order of wavefronts is random
        self.turn_free_ps = 0
        self.drawn = first_draw(self.model.issue_seed, number)
        self.state_ps = [0] * 5
        self._full_ps, self._full_since_ps = 0, -1

    def has_room(self, num_wavefronts: int) -> bool:
        return len(self.workgroups) < self.model.workgroups_per_cu and num_wavefronts <= len(self.free_slots)

    def start(self, number: int, num_wavefronts: int, on_end: Callable[[WorkgroupRun], None]) -> None:
        slots, self.free_slots = self.free_slots[:num_wavefronts], self.free_slots[num_wavefronts:]
        workgroup = WorkgroupRun(self, number, slots, on_end)
        self.workgroups.append(workgroup)
        for wavefront in workgroup.wavefronts:
            wavefront.go_on()

    def end(self, workgroup: WorkgroupRun) -> None:
        self.workgroups.remove(workgroup)
        self.free_slots = sorted(self.free_slots + workgroup.slots)

    def queue(self, wavefront: WavefrontRun) -> None:
        """Append a wavefront to the queue; with random order, insert it at the front half of the time."""
        if self.waves and self.model.issue_seed is not None:
            self.drawn = self.drawn * MULTIPLIER % MODULUS
            if self.drawn > MODULUS // 2:
                self.waves.appendleft(wavefront)
                self.poke()
                return
        self.waves.append(wavefront)
        self.poke()

    def poke(self) -> None:
        """Schedule the next issue if a line, poll or wavefront waits."""
        if not self.will_issue and (self.lines or (self.waves and self.outstanding < self.model.max_outstanding)):
            self.will_issue = True
            is_poll = bool(self.lines) and isinstance(self.lines[0], WavefrontRequest)
            time_ps = max(self.agenda.now, self.issues_at)
            self.agenda.at(time_ps, (CUS, self.number, self.rank), self._issue, is_poll=is_poll)

    def _issue(self) -> None:
        self.will_issue = False
        self.issues_at = self.agenda.now + self.model.issue_cycles * self.model.cycle_ps
        if self.lines:
            self._issue_line()
        else:
            self.waves.popleft().issue()
        self.poke()

    def _issue_line(self) -> None:
        """Issue the next write of the first line, or its poll."""
        line = self.lines[0]
        if isinstance(line, WavefrontRequest):
            self.lines.popleft()
            self._send_again(line)
            return
        self.send(line, line.to_write.popleft())
        if not line.to_write:
            self.lines.popleft()

    def send(self, line: LineInFlight, operand: TwinOperand) -> None:
        """Send the request of an operand: for a line, or for the whole operation."""
        operation, wavefront = line.operation, line.wavefront
        kind, address, semaphore, amount = operation.kind, operand.address, operand.semaphore, operation.amount
        if kind in isa.DATA_OPS:
            is_read = any(operand is read for read in operation.reads)
            kind = isa.LOAD if is_read else isa.STORE
            address += line.number * operand.step
            semaphore = semaphore + line.number if operand.is_flagged else -1
            amount = 1
        request = WavefrontRequest(
            kind=kind, wavefront=wavefront, line=line, wave_slot=wavefront.wave_slot, rank=self.rank, peer=operand.peer,
            gpu=self.gpu, target=operand.rank, cu=self.number, address=address, semaphore=semaphore, amount=amount,
            number=self.next_number(wavefront.slot),
            ordinal=self.next_ordinal(wavefront.slot, -1 if operand.members else operand.peer),
            issued_ps=self.agenda.now,
        )  # fmt: skip
        self.shared.requests_done += 1
        self.shared.counters[self.gpu].count(request)
        if operand.members:
            send_to_members(request, operand, self.shared.messages)
        else:
            request.set_out(self.shared.messages)

    def _send_again(self, request: WavefrontRequest) -> None:
        request.is_again = True
        request.number = self.next_number(request.wavefront.slot)
        request.ordinal = self.next_ordinal(request.wavefront.slot, request.peer)
        request.issued_ps = self.agenda.now
        self.shared.counters[self.gpu].count(request)
        request.set_out(self.shared.messages)

    def next_number(self, slot: int) -> int:
        number = self.numbers[slot]
        self.numbers[slot] = (number + 1) % NUMBERS
        return number

    def next_ordinal(self, slot: int, peer: int) -> int:
        """Return the number of the slot's next request to another GPU, or to a switch (peer -1); -1 for local ones."""
        if peer == self.rank:
            return -1
        self.ordinals[slot] += 1
        return self.ordinals[slot] - 1

    def take_slot(self) -> None:
        self.outstanding += 1
        if self.outstanding == self.model.max_outstanding:
            self._full_since_ps = self.agenda.now

    def free_slot(self) -> None:
        if self.outstanding == self.model.max_outstanding:
            self._full_ps, self._full_since_ps = self.full_ps(), -1
        self.outstanding -= 1
        self.poke()

    def full_ps(self) -> int:
        """Return the total time without a free request slot."""
        return self._full_ps + (self.agenda.now - self._full_since_ps if self._full_since_ps >= 0 else 0)

    def turn_of_poll(self) -> int:
        """Queue a poll for its turn among the CU's polls; return the end of the turn."""
        self.turn_free_ps = max(self.agenda.now, self.turn_free_ps) + self.model.poll_turn_ps
        return self.turn_free_ps

    def occupy_alu(self, cycles: int) -> int:
        self.alu_free_ps = max(self.agenda.now, self.alu_free_ps) + cycles * self.model.cycle_ps
        return self.alu_free_ps


@dataclass(slots=True, eq=False)
class LineInFlight:
    """One line of a data operation, or one control operation, of one wavefront.

    to_read: reads still to return. to_write: writes still to issue, after the reads. unposted, unanswered: requests.
    """

    wavefront: WavefrontRun
    operation: TwinOperation
    number: int
    to_read: int = 0
    to_write: deque[TwinOperand] = field(default_factory=deque)
    unposted: int = 0
    unanswered: int = 0

    def read_back(self) -> None:
        """Count a returned read; after the last one reduce the line, which occupies the ALU."""
        self.to_read -= 1
        wavefront = self.wavefront
        if self.to_read > 0:
            wavefront.free_slot()
            return
        model, reads = wavefront.shared.model, len(self.operation.reads)
        if self.operation.kind == isa.REDUCE and reads > 1:
            cycles = -(-(reads - 1) * model.line_bytes // model.reduce_bytes_per_cycle)
            wavefront.later(wavefront.cu.occupy_alu(cycles), self._reduced)
        else:
            self._reduced()

    def _reduced(self) -> None:
        """Queue the writes of a line, which is now in registers."""
        wavefront = self.wavefront
        if not self.to_write:
            wavefront.free_slot()
            wavefront.finish_line()
            return
        self.unposted = self.unanswered = len(self.to_write)
        wavefront.cu.lines.append(self)
        wavefront.cu.poke()

    def posted(self) -> None:
        """Free the slot of a store; a line with reads has one slot for all its writes."""
        self.unposted -= 1
        if self.unposted == 0 or not self.operation.reads:
            self.wavefront.free_slot()


@dataclass(slots=True, eq=False, kw_only=True)
class WavefrontRequest(OwnRequest):
    """A request of a line; a data operation has one for each operand."""

    wavefront: WavefrontRun
    line: LineInFlight

    def answered(self) -> None:
        shared = self.wavefront.shared
        if self.kind == isa.LOAD:
            shared.counters[self.gpu].load_latency_ps += shared.agenda.now - self.issued_ps
        if not self.was_enough:
            self._ask_again()
            return
        self.wavefront.cu.asking.pop(self, None)
        if self.kind == isa.ACQUIRE:
            self.wavefront.acquired()
        elif self.kind == isa.LOAD:
            self.line.read_back()
        else:
            self.line.unanswered -= 1
            if not shared.model.posted_stores:
                self.line.posted()
            if self.line.unanswered == 0:
                self.wavefront.finish_line()

    def posted(self) -> None:
        if not self.wavefront.shared.model.posted_stores:
            return
        self.line.posted()
        if self.target >= 0 and self.wavefront.shared.system.is_host(self.target):  # hosts send no answer
            self.is_answered = False
            self.line.unanswered -= 1
            if self.line.unanswered == 0:
                self.wavefront.finish_line()

    def _ask_again(self) -> None:
        """Poll again, or sleep if a monitor watches the line."""
        shared = self.wavefront.shared
        self.wavefront.cu.asking[self] = None
        self.is_back = self.is_armed
        if self.is_woken:
            self.woken()
        elif not self.is_armed and not shared.is_futile():
            assert shared.model.poll_ps is not None
            self._ask_at(self.wavefront.cu.turn_of_poll() + shared.model.poll_ps)

    def woken(self) -> None:
        monitor = self.wavefront.shared.model.monitor
        assert monitor is not None
        self._ask_at(self.wavefront.agenda.now + monitor.wakeup_ps)

    def _ask_at(self, time_ps: int) -> None:
        self.wavefront.later(time_ps, self._join, self.number)

    def _join(self) -> None:
        self.wavefront.cu.lines.append(self)
        self.wavefront.cu.poke()
