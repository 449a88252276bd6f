"""The plain-Python twin: the monitor table of a GPU, on whose lines wavefronts sleep (docs/design/replay.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from trine.gpu.program import ACQUIRE
from trine.gpu.reference_messages import OwnRequest
from trine.gpu.system import GpuSystem

if TYPE_CHECKING:
    from trine.gpu.reference_wavefronts import Counters


class Monitors:
    """Who sleeps on which line; ``wake`` is told of a sleeper whose answer is back and whose line has been written."""

    def __init__(self, system: GpuSystem, gpu: int, counters: Counters, wake: Callable[[OwnRequest], None]) -> None:
        monitor = system.model.monitor
        self.capacity = monitor.capacity if monitor is not None else 0
        self.is_there = monitor is not None
        self.line_bytes = system.model.line_bytes
        self.line_of = lines_of_semaphores(system, gpu)
        self.counters, self._wake = counters, wake
        self.armed: dict[int, list[OwnRequest]] = {}
        self.num_armed = 0

    def was_read(self, request: OwnRequest) -> None:
        """An acquire or flagged load has just found enough or not: at this instant its line is watched."""
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
                self._wake(request)


def lines_of_semaphores(system: GpuSystem, gpu: int) -> dict[int, int]:
    """The line of each semaphore that kernels of ``gpu`` acquire, -1: they do it at several."""
    program, found = system.program, dict[int, set[int]]()
    for kernel in (program.kernel_rank == gpu).nonzero()[0].tolist():
        groups = program.kernel_ptr[kernel], program.kernel_ptr[kernel + 1]
        for op in range(*program.workgroup_ptr[list(groups)].tolist()):
            if program.op_kind[op] == ACQUIRE:
                operand = int(program.operand_ptr[op])
                line = int(program.operand_address[operand]) // system.model.line_bytes
                found.setdefault(int(program.operand_semaphore[operand]), set()).add(line)
    return {semaphore: lines.pop() if len(lines) == 1 else -1 for semaphore, lines in found.items()}
