"""The pieces of a printed GPU program: its head, sizes, peers, and sums of what a rule says."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from trine.gpu.program import ACQUIRE, DMA, RELEASE, Buffer, GpuProgram
from trine.gpu.text_fit import Peers, Rules
from trine.gpu.text_line import in_quotes, quoted
from trine.gpu.text_read import RESERVED, aligned


def size_text(size: int) -> str:
    """A number of bytes with the largest unit that keeps it whole: ``64 KiB``, ``100 B``."""
    for factor, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size and size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} B"


def buffer_name(buffer: Buffer) -> str:
    return in_quotes(buffer.name) if buffer.name in RESERVED else quoted(buffer.name)


def peer_text(peers: Peers, i: int) -> str:
    if peers.rank[i] >= 0:
        return f"rank {peers.rank[i]}"
    distance, rise = int(peers.distance[i]), int(peers.rise[i])
    if not distance and not rise:
        return "own"
    text = f"rank+{distance}" if distance or not rise else "rank"
    return text + ("" if not rise else "+wg" if rise == 1 else "-wg")


def value_text(rules: Rules, i: int) -> str:
    return terms("", int(rules.base[i]), rules, i, plain=True)


def terms(name: str, offset: int, rules: Rules, i: int, plain: bool = False) -> str:
    """``name + offset + slope * rank + rise * wg`` without what is 0; sizes have units unless ``plain``."""
    slope, shift, rise = int(rules.slope[i]), int(rules.shift[i]), int(rules.rise[i])
    rank = "rank" if shift < 0 else f"((rank + {shift}) % ranks)"
    parts = [(1, name)] if name else []
    for factor, variable in ((slope, rank), (rise, "wg")):
        if factor:
            scale = "" if abs(factor) == 1 else f"{_size(abs(factor), plain)} * "
            parts.append((-1 if factor < 0 else 1, scale + variable))
    if offset or not parts:
        parts.insert(1 if name or offset < 0 else 0, (-1 if offset < 0 else 1, _size(abs(offset), plain)))
    text = " ".join(("+ " if sign > 0 else "- ") + part for sign, part in parts)
    return text.removeprefix("+ ") if parts[0][0] > 0 else f"0 {text}"


def _size(size: int, plain: bool) -> str:
    return str(size) if plain or size % 1024 or not size else size_text(size)


def head_lines(program: GpuProgram, base: int, step: int) -> Iterator[str]:
    yield f"program {quoted(program.name)}"
    yield from (f"note {in_quotes(note)}" for note in program.notes)
    yield f"ranks {program.num_ranks}"
    yield f"line {program.line_bytes} B"
    if program.payload_bytes:
        yield f"payload {size_text(program.payload_bytes)}"
    end = 0
    for buffer in program.buffers:
        where = "" if buffer.base == aligned(end) else f" at {size_text(buffer.base) if buffer.base else 0}"
        kind = " uncached" if buffer.uncached else ""
        yield f"buffer {buffer_name(buffer)} {size_text(buffer.size_bytes)}{where}{kind}"
        end = max(end, buffer.base + buffer.size_bytes)
    if program.semaphores.shape[1]:
        where = "" if (base, step) == (aligned(end), program.line_bytes) else f" at {base}"
        where += "" if step == program.line_bytes else f" step {step}"
        yield f"semaphores {program.semaphores.shape[1]}{where}"
        yield from _initial_values(program.semaphores)


def _initial_values(semaphores: npt.NDArray[np.int32]) -> Iterator[str]:
    if (semaphores == semaphores[:1]).all():
        yield from (f"initially sem {text}" for text in _runs(semaphores[0]))
        return
    for rank, values in enumerate(semaphores):
        yield from (f"initially rank {rank} sem {text}" for text in _runs(values))


def _runs(values: npt.NDArray[np.int32]) -> Iterator[str]:
    """Runs of equal numbers other than 0, as ``0..7 = 1``."""
    ends = np.flatnonzero(np.diff(values)) + 1
    for first, end in zip([0, *ends.tolist()], [*ends.tolist(), len(values)], strict=True):
        if values[first]:
            yield f"{first} = {values[first]}" if end == first + 1 else f"{first}..{end - 1} = {values[first]}"


def places_of_semaphores(program: GpuProgram) -> tuple[int, int]:
    """Base and step of the addresses that most semaphores without lines or data have: what needs no ``at``."""
    end = max((buffer.base + buffer.size_bytes for buffer in program.buffers), default=0)
    default = aligned(end), program.line_bytes
    kind = np.repeat(program.op_kind, np.diff(program.operand_ptr))
    alone = np.repeat(np.diff(program.operand_ptr), np.diff(program.operand_ptr)) == 1
    which = ((kind == ACQUIRE) | (kind == RELEASE) | ((kind == DMA) & alone)) & (program.operand_semaphore >= 0)
    numbers = program.operand_semaphore[which].astype(np.int64)
    addresses = program.operand_address[which]
    if not len(numbers) or (addresses == default[0] + default[1] * numbers).all():
        return default
    other = np.flatnonzero(numbers != numbers[0])
    if not len(other):
        return int(addresses[0]) - default[1] * int(numbers[0]), default[1]
    step, rest = divmod(int(addresses[other[0]] - addresses[0]), int(numbers[other[0]] - numbers[0]))
    fits = not rest and abs(step) < 2**31
    return (int(addresses[0]) - step * int(numbers[0]), step) if fits else default
