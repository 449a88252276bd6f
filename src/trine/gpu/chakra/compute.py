"""Compute nodes as kernels: workgroups that take turns at the ALU of their compute units and move the node's tensors.

A node has a duration, and possibly a number of bytes that it moves. Its kernel must take that duration when it runs
alone, so trine simulates it alone and adjusts its cycles. Next to other kernels it may take longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from trine.common.units import PS_PER_S
from trine.errors import InputError
from trine.gpu.builder import Operations, ProgramBuilder
from trine.gpu.model import GpuModel
from trine.gpu.program import COMPUTE, READ, REDUCE, WRITE, GpuProgram

#: ALU cycles of a workgroup before the next workgroup of the compute unit has its turn.
TURN_CYCLES = 128
#: Maximum turns of a workgroup; longer kernels have longer turns.
MAX_TURNS = 2048
#: Maximum operations in all compute kernels of a job; more kernels have fewer, longer turns.
MAX_OPS = 4_000_000
#: Below this many cycles per wavefront, whole cycles are too coarse for an error of 1 %.
_FINE = 200
#: A kernel adds two tensors into a third.
_TENSORS = 3
_MAX_TRIES = 16

#: Runs one-rank programs, each alone on a GPU, and returns the time of each in ps.
Alone = Callable[[Sequence[GpuProgram]], Sequence[int]]


@dataclass(frozen=True, kw_only=True, slots=True)
class ComputeShape:
    """Shape of compute kernels. workgroups: number per kernel; wavefronts: number per workgroup.

    Raises InputError for a number below 1.
    """

    workgroups: int
    wavefronts: int = 8

    def __post_init__(self) -> None:
        for field in ("workgroups", "wavefronts"):
            if getattr(self, field) < 1:
                raise InputError(f"must be at least 1, got {getattr(self, field)}", field=f"compute_{field}")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ComputeKernel:
    """Kernel for one rank. alone_ps: its time when it runs alone; moved_bytes: bytes of its loads and stores."""

    program: GpuProgram
    alone_ps: int
    moved_bytes: int


@dataclass(frozen=True, slots=True)
class _Work:
    """Work of a kernel. cycles: ALU cycles of each workgroup; lines: lines of each tensor, over all workgroups."""

    cycles: int
    lines: int


def fit_kernels(
    targets: Iterable[tuple[int, int]], model: GpuModel, shape: ComputeShape, max_turns: int, run_alone: Alone
) -> dict[tuple[int, int], ComputeKernel | None]:
    """Return kernels for these durations (ps) and bytes; alone, each takes its duration within 1 % (mostly 0.2 %).

    A kernel moves fewer bytes if memory cannot move all of them in time. None: the duration is too short for a kernel.
    max_turns: maximum turns of a workgroup (:func:`turns_for`). run_alone: runs one-rank programs.

    Raises InputError if a workgroup has more wavefronts than fit in a compute unit.
    """
    if shape.wavefronts > model.wavefronts_per_cu:
        raise InputError(
            f"a compute unit of {model.name!r} has room for {model.wavefronts_per_cu} wavefronts, not for "
            f"{shape.wavefronts}",
            field="compute_wavefronts",
        )
    kernels = _fit(targets, model, shape, max_turns, run_alone)
    unfit = [key for key, kernel in kernels.items() if kernel is None and key[1]]
    without_bytes = _fit([(duration_ps, 0) for duration_ps, _ in unfit], model, shape, max_turns, run_alone)
    return kernels | {key: without_bytes[key[0], 0] for key in unfit}


def _fit(
    targets: Iterable[tuple[int, int]], model: GpuModel, shape: ComputeShape, max_turns: int, run_alone: Alone
) -> dict[tuple[int, int], ComputeKernel | None]:
    searches = {key: _Search(key, model, shape, max_turns) for key in dict.fromkeys(targets)}
    for _ in range(_MAX_TRIES):
        open_searches = [search for search in searches.values() if not search.is_over]
        if not open_searches:
            break
        programs = [search.program() for search in open_searches]
        for search, program, took_ps in zip(open_searches, programs, run_alone(programs), strict=True):
            search.note(program, took_ps)
    return {key: search.kernel for key, search in searches.items()}


class _Dial:
    """Integer that lengthens a kernel as it grows; ``low`` is known to be too small and ``high`` too large."""

    def __init__(self, value: int, low: int, high: int) -> None:
        self.value, self.low, self.high = value, low, high

    def turn(self, guess: int, *, down: bool) -> None:
        """Move to the guess if it lies between the bounds, else to their midpoint."""
        if down:
            self.high = self.value
        else:
            self.low = self.value
        self.value = guess if self.low < guess < self.high else (self.low + self.high) // 2

    @property
    def is_stuck(self) -> bool:
        return self.high - self.low <= 1


class _Search:
    """Search for the work whose kernel takes a given duration."""

    def __init__(self, key: tuple[int, int], model: GpuModel, shape: ComputeShape, max_turns: int) -> None:
        self.duration_ps, wanted_bytes = key
        self._model, self._max_turns = model, max_turns
        self._line_bytes = model.line_bytes
        fitted = _fitted(self.duration_ps, model, shape)
        self.is_over = fitted is None
        self._shape = shape if fitted is None else fitted
        #: time that one more cycle in each workgroup adds
        self._cycle_ps = model.cycle_ps * -(-self._shape.workgroups // model.num_cus)
        cycles = self.duration_ps // self._cycle_ps
        lines = min(wanted_bytes, movable_bytes(self.duration_ps, model)) // (_TENSORS * model.line_bytes)
        self._cycles, self._lines = _Dial(cycles, -1, 4 * cycles + 4), _Dial(lines, 0, lines + 1)
        self._last_try: tuple[int, int] | None = None
        self._best: ComputeKernel | None = None

    @property
    def kernel(self) -> ComputeKernel | None:
        """Best kernel of the search; None if its error exceeds 1 %."""
        return self._best if self._best is not None and self._error_ps(self._best) * 100 <= self.duration_ps else None

    def program(self) -> GpuProgram:
        """Return the next program to run."""
        work = _Work(self._cycles.value, self._lines.value)
        return compute_program(work, self._shape, self._line_bytes, self._max_turns)

    def note(self, program: GpuProgram, took_ps: int) -> None:
        """Record the time of a program and choose the next work."""
        moved_bytes = self._lines.value * _TENSORS * self._line_bytes
        kernel = ComputeKernel(program=program, alone_ps=took_ps, moved_bytes=moved_bytes)
        if self._best is None or self._error_ps(kernel) < self._error_ps(self._best):
            self._best = kernel
        self.is_over = self._error_ps(kernel) * 500 <= self.duration_ps
        if not self.is_over:
            self._turn(took_ps)

    def _error_ps(self, kernel: ComputeKernel) -> int:
        return abs(kernel.alone_ps - self.duration_ps)

    def _turn(self, took_ps: int) -> None:
        """Change the cycles; if even 0 cycles are too long because of memory, change the lines."""
        missing_ps, down = self.duration_ps - took_ps, took_ps > self.duration_ps
        if self._cycles.high > 0 and not (self._cycles.value == 0 and down):
            self._cycles.turn(self._guess(took_ps), down=down)
            dial = self._cycles
        else:
            self._cycles.high = self._cycles.value = 0
            self._lines.turn(self._lines.value + round(self._lines.value * missing_ps / took_ps), down=down)
            dial = self._lines
        self.is_over = dial.is_stuck

    def _guess(self, took_ps: int) -> int:
        """Return the next guess of the cycles; 0 if the last reduction hardly shortened the kernel."""
        cycles, missing_ps = self._cycles.value, self.duration_ps - took_ps
        last_try, self._last_try = self._last_try, (cycles, took_ps)
        if last_try is not None and missing_ps < 0 and last_try[0] > cycles:
            hoped_ps = (last_try[0] - cycles) * self._cycle_ps
            if 2 * (last_try[1] - took_ps) < hoped_ps:
                return 0
        change = max(1, round(abs(missing_ps) / self._cycle_ps))
        return max(0, cycles + (change if missing_ps > 0 else -change))


def _fitted(duration_ps: int, model: GpuModel, shape: ComputeShape) -> ComputeShape | None:
    """Return the shape, smaller for short kernels: dispatch takes at most half of the time, and a cycle 1 %."""
    groups = shape.workgroups
    if model.dispatch_ps:
        groups = min(groups, 1 + duration_ps // (2 * model.dispatch_ps))
    per_cu = duration_ps // (model.cycle_ps * _FINE)
    if per_cu == 0:
        return None
    groups = min(groups, per_cu * model.num_cus)
    cycles = duration_ps // (model.cycle_ps * -(-groups // model.num_cus))
    return ComputeShape(workgroups=groups, wavefronts=max(1, min(shape.wavefronts, cycles // _FINE)))


def movable_bytes(duration_ps: int, model: GpuModel) -> int:
    """Return an upper bound of the bytes that can move: writes, a third of all bytes, may stay in the L2."""
    memory = model.memory
    return 3 * memory.num_channels * memory.bytes_per_s * duration_ps // (2 * PS_PER_S)


def turns_for(num_kernels: int, shape: ComputeShape) -> int:
    """Return the maximum turns of a workgroup at which ``num_kernels`` kernels have at most MAX_OPS operations."""
    return max(1, min(MAX_TURNS, MAX_OPS // max(1, 2 * num_kernels * shape.workgroups)))


def compute_program(work: _Work, shape: ComputeShape, line_bytes: int, max_turns: int) -> GpuProgram:
    """Return a one-rank kernel whose workgroups in each turn reduce some lines and compute for some cycles.

    It reads the first and second tensor and writes the third; the tensors are contiguous from address 0.
    """
    groups = shape.workgroups
    per_wave = work.cycles // shape.wavefronts
    turns = max(1, min(work.cycles // TURN_CYCLES, max_turns, max(per_wave, 1)))
    if not work.cycles:
        turns = min(max_turns, max(1, work.lines // (groups * shape.wavefronts)))
    bounds = np.linspace(0, work.lines, groups * turns + 1).astype(np.int64).reshape(-1)
    lines = np.diff(bounds)
    cycles = np.tile(np.diff(np.arange(turns + 1, dtype=np.int64) * per_wave // turns), groups)
    kind = np.tile(np.array([REDUCE, COMPUTE], np.int64), groups * turns)
    amount = np.stack((lines, cycles), axis=1).ravel()
    is_nonzero = amount > 0
    counts = is_nonzero.reshape(groups, -1).sum(axis=1)
    kind, amount = kind[is_nonzero], amount[is_nonzero]
    reduces = kind == REDUCE
    begins = bounds[:-1][lines > 0]
    tensor = np.arange(_TENSORS, dtype=np.int64) * work.lines
    builder = ProgramBuilder("compute", 1, line_bytes=line_bytes)
    labels = builder.label("tensors"), builder.label("arithmetic")
    num_operands = reduces * np.int64(_TENSORS)
    operands = {
        "operand_role": np.tile(np.array([READ, READ, WRITE], np.int64), len(begins)),
        "operand_address": ((begins[:, None] + tensor) * line_bytes).ravel(),
        "operand_step": np.full(_TENSORS * len(begins), line_bytes, np.int64),
        "operand_semaphore": np.full(_TENSORS * len(begins), -1, np.int64),
    }
    ops = {"op_kind": kind, "op_amount": amount, "op_label": np.where(reduces, *labels)}
    builder.extend(Operations(ops, num_operands, operands), counts.tolist())
    builder.end_kernel(0, shape.wavefronts, "compute")
    return builder.program()
