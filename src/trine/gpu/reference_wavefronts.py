"""The plain-Python twin: workgroups, and wavefronts that go through their operations."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trine.gpu.program import ACQUIRE, BARRIER, COMPUTE, DATA_OPS, DMA, LOAD, RELEASE, STORE, WAITCNT
from trine.gpu.records import BARRIER as AT_BARRIER
from trine.gpu.records import COMPUTING, ISSUE, MEMORY, SEMAPHORE
from trine.gpu.reference_agenda import WAVEFRONTS, Agenda
from trine.gpu.reference_messages import Messages, Request
from trine.gpu.reference_operations import CONTROL_OPS, Operand, Operation, operations
from trine.gpu.system import GpuSystem

if TYPE_CHECKING:
    from trine.gpu.reference_cus import ComputeUnit
    from trine.gpu.reference_packets import CopyEngines


@dataclass(slots=True, eq=False)
class Line:
    """One line of a data operation, or one control operation, of one wavefront.

    to_read: reads that are not back. to_write: writes not yet issued, after the reads. unposted, unanswered: requests.
    """

    wavefront: Wavefront
    operation: Operation
    number: int
    to_read: int = 0
    to_write: deque[Operand] = field(default_factory=deque)
    unposted: int = 0
    unanswered: int = 0


class Counters:
    """Of one GPU; as in GpuRecords."""

    def __init__(self) -> None:
        self.loads = self.stores = self.acquires = self.releases = self.polls = self.load_latency_ps = 0
        self.flagged_loads = self.wakeups = self.spurious_wakeups = self.monitor_full = 0

    def count(self, request: Request) -> None:
        self.loads += request.kind == LOAD
        self.stores += request.kind == STORE
        self.acquires += request.kind == ACQUIRE
        self.releases += request.kind == RELEASE
        self.polls += request.is_again
        self.flagged_loads += request.is_flagged_load


class Shop:
    """What all CUs share: operations, messages, copy engines, records of operations."""

    def __init__(self, system: GpuSystem, agenda: Agenda) -> None:
        self.system, self.agenda, self.model = system, agenda, system.model
        self.operations = operations(system)
        self.op_start_ps = [-1] * len(self.operations)
        self.op_end_ps = [-1] * len(self.operations)
        self.ranks = system.ranks.tolist()
        self.counters = [Counters() for _ in self.ranks]
        self.requests_done = 0
        self.is_futile: Callable[[], bool] = lambda: False
        self.messages: Messages
        self.engines: CopyEngines


class Workgroup:
    """On a CU from its start to the end of its last wavefront."""

    def __init__(self, cu: ComputeUnit, number: int, slots: list[int], ended: Callable[[Workgroup], None]) -> None:
        program = cu.shop.system.program
        self.cu, self.number, self.slots, self.ended = cu, number, slots, ended
        self.first_op, self.last_op = int(program.workgroup_ptr[number]), int(program.workgroup_ptr[number + 1])
        self.wavefronts = [Wavefront(self, w, slot) for w, slot in enumerate(slots)]
        self.at_barrier: list[Wavefront] = []
        self.num_left = len(slots)

    def begin(self) -> None:
        for wavefront in self.wavefronts:
            wavefront.go_on()

    def arrive(self, wavefront: Wavefront) -> None:
        """At the barrier."""
        self.at_barrier.append(wavefront)
        if len(self.at_barrier) == len(self.wavefronts):
            shop = self.cu.shop
            self.wavefronts[0].later(shop.agenda.now + shop.model.barrier_ps, self._let_go)

    def _let_go(self) -> None:
        self.at_barrier = []
        for wavefront in self.wavefronts:
            wavefront.finish_operation()
            wavefront.go_on()

    def wavefront_ended(self) -> None:
        self.num_left -= 1
        if self.num_left == 0:
            self.ended(self)


class Wavefront:
    """One wavefront: where it is in its operations, the places that it holds, what of it is unfinished."""

    def __init__(self, workgroup: Workgroup, number: int, slot: int) -> None:
        self.workgroup, self.number, self.slot, self.cu = workgroup, number, slot, workgroup.cu
        self.shop = workgroup.cu.shop
        self.place = self.cu.number * self.shop.model.wavefronts_per_cu + slot
        self.at = workgroup.first_op
        self.is_begun = False
        self.issued = 0
        self.line: Line | None = None
        self.held = 0
        self.unfinished = 0
        self.waits_for_place = False
        self.has_ended = False
        self.state, self.since_ps, self.full_before_ps = -1, 0, 0

    @property
    def operation(self) -> Operation | None:
        return self.shop.operations[self.at] if self.at < self.workgroup.last_op else None

    def later(self, time_ps: int, do: Callable[[], None], poll: int = -1) -> None:
        """``poll``: the number of the request that is to be asked again."""
        self.shop.agenda.at(time_ps, (WAVEFRONTS, self.place, self.cu.rank, poll), do, is_poll=poll >= 0)

    def go_on(self) -> None:
        """Through all operations that take no time, up to one that does or the end."""
        while (operation := self.operation) is not None:
            if not self._takes_part(operation):
                self.at += 1
                continue
            self._take_up(operation)
            if not self._is_through(operation):
                return
            self.finish_operation()
        if self.unfinished > 0:
            self._enter(MEMORY)
            return
        self._leave_state()
        self.has_ended = True
        self.workgroup.wavefront_ended()

    def _takes_part(self, operation: Operation) -> bool:
        return self.number == 0 or operation.kind not in CONTROL_OPS

    def _take_up(self, operation: Operation) -> None:
        if not self.is_begun:
            self.is_begun, self.issued = True, 0
            if self.shop.op_start_ps[operation.number] < 0:
                self.shop.op_start_ps[operation.number] = self.shop.agenda.now

    def finish_operation(self) -> None:
        self.shop.op_end_ps[self.at] = self.shop.agenda.now
        self.at += 1
        self.is_begun = False

    def _is_through(self, operation: Operation) -> bool:
        """Whether the operation is over at once; else what it takes has begun."""
        kind = operation.kind
        if kind in DATA_OPS or kind in CONTROL_OPS:
            return self._queue_to_issue(operation)
        if kind == WAITCNT and self.unfinished > operation.amount:
            self._enter(MEMORY)
            return False
        if kind == BARRIER:
            self._enter(AT_BARRIER)
            self.workgroup.arrive(self)
            return False
        if kind == COMPUTE:
            self._enter(COMPUTING)
            self.later(self.cu.occupy_alu(operation.amount), self._next)
            return False
        return True

    def _next(self) -> None:
        self.finish_operation()
        self.go_on()

    def _queue_to_issue(self, operation: Operation) -> bool:
        if self.issued == self._num_requests(operation):
            return operation.kind != ACQUIRE
        if self.held < operation.unroll:
            self._enter(ISSUE)
            self.cu.waves.append(self)
            self.cu.poke()
        else:
            self._enter(MEMORY)
            self.waits_for_place = True
        return False

    def _num_requests(self, operation: Operation) -> int:
        if operation.kind == DMA:
            return 1
        per_line = len(operation.issued_by_wavefronts)
        if operation.kind in CONTROL_OPS:
            return per_line
        wavefronts = len(self.workgroup.wavefronts)
        return max(0, -(-(operation.amount - self.number) // wavefronts)) * per_line

    def issue(self) -> None:
        """The CU takes the next request."""
        operation = self.operation
        assert operation is not None
        operands = operation.issued_by_wavefronts
        turn, which = (0, self.issued) if operation.kind in CONTROL_OPS else divmod(self.issued, len(operands))
        if which == 0:
            self._begin_line(operation, self.number + turn * len(self.workgroup.wavefronts))
        assert self.line is not None
        self.issued += 1
        self.held += 1
        self.cu.take_place()
        if operation.kind == DMA:
            self._hand_over(operation, self.line)
        else:
            self.cu.send(self.line, operands[which])
        if operation.kind == ACQUIRE:
            self._enter(SEMAPHORE)
        else:
            self.go_on()

    def _begin_line(self, operation: Operation, number: int) -> None:
        self.unfinished += 1
        self.line = Line(self, operation, number, to_read=len(operation.reads))
        if operation.reads and operation.kind != DMA:
            self.line.to_write.extend(operation.writes)
        elif operation.kind in (STORE, RELEASE):
            self.line.unposted = self.line.unanswered = len(operation.writes)

    def _hand_over(self, operation: Operation, line: Line) -> None:
        self.free_place()
        self.shop.requests_done += 1
        self.shop.engines.hand_over(self, operation, self.cu.next_number(self.slot), self.finish_line)

    def free_place(self) -> None:
        """One of its places, which is one of the CU's."""
        self.held -= 1
        self.cu.free_place()
        operation = self.operation
        if self.waits_for_place and operation is not None and self.held < operation.unroll:
            self.waits_for_place = False
            self.go_on()

    def finish_line(self) -> None:
        """All answers of one of its lines are back."""
        self.unfinished -= 1
        operation = self.operation
        if operation is None:
            if self.unfinished == 0:
                self.go_on()
        elif operation.kind == WAITCNT and self.is_begun and self.unfinished <= operation.amount:
            self.go_on()

    def acquired(self) -> None:
        self.free_place()
        self.unfinished -= 1
        self._next()

    def _enter(self, state: int) -> None:
        self._leave_state()
        self.state = state

    def _leave_state(self) -> None:
        """Book the time since it entered its state; while its CU has no places it waits for memory."""
        now, full_ps = self.shop.agenda.now, self.cu.full_ps()
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
