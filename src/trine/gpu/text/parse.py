"""Parser of the text form of GPU programs into its parts: the head, kernels, workgroups and loops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from trine.common.schema import show
from trine.errors import SpecError, nearest
from trine.gpu.program import Buffer
from trine.gpu.text.line import (
    MAX_VALUE,
    NAME,
    WORD,
    BinaryExpression,
    Expression,
    Name,
    Number,
    SourceLine,
    Value,
    constant,
    lines_of,
    read_value,
)
from trine.gpu.text.operations import OperationText, read_operation

MAX_RANKS = 4096
#: Limit over all ranks.
MAX_SEMAPHORES = 2**26
MAX_NESTED = 8
#: Buffers without an address, and the semaphores behind them, begin at multiples of this.
ALIGNMENT = 2**20
_HEAD_WORDS = ("program", "ranks", "hosts", "line", "buffer", "semaphores", "initially", "payload", "note")
_WORKGROUP_WORDS = ("workgroups", "workgroup", "blocks", "block", "thread_blocks", "thread_block", "thread")
_WAVEFRONT_WORDS = ("wavefronts", "wavefront", "warps", "warp")
#: Words that cannot name buffers (unless in quotes) or counters.
RESERVED = frozenset(
    (*_HEAD_WORDS, *_WORKGROUP_WORDS, "rank", "wg", "own", "lines", "sem", "step", "at", "by", "flagged", "uncached")
)


def aligned(address: int) -> int:
    """Return ``address`` rounded up to a multiple of :data:`ALIGNMENT`."""
    return -(-address // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, kw_only=True, slots=True)
class Loop:
    """A loop ``for name in first..last``, both included."""

    line: SourceLine
    name: str
    first: Expression
    last: Expression
    body: list[Statement]


Statement: TypeAlias = "OperationText | Loop"


@dataclass(frozen=True, kw_only=True, slots=True)
class Workgroups:
    """``count`` workgroups with the same statements; only ``wg`` differs."""

    line: SourceLine
    count: Expression
    body: list[Statement]


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelText:
    """A kernel on each of the ranks ``first`` to ``last``, both included."""

    line: SourceLine
    name: str
    first: Expression
    last: Expression
    wavefronts: Expression
    workgroups: list[Workgroups] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class InitialValues:
    """Initial ``value`` of the semaphores ``semaphores[0]`` to ``semaphores[1]`` of a range of ranks."""

    ranks: tuple[int, int]
    semaphores: tuple[int, int]
    value: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramHeader:
    """The lines before the first kernel. ``semaphore_base``, ``semaphore_step``: addresses of semaphores.

    num_ranks: number of GPUs; num_hosts: number of host ranks, which follow the GPUs.
    """

    name: str
    num_ranks: int
    num_hosts: int
    line_bytes: int
    payload_bytes: int
    buffers: tuple[Buffer, ...]
    num_semaphores: int
    semaphore_base: int
    semaphore_step: int
    initially: tuple[InitialValues, ...]
    notes: tuple[str, ...]


class _Counter(NamedTuple):
    """Counter of a loop, "" if it has no name, with its first and last value."""

    name: str
    first: Expression
    last: Expression


@dataclass(slots=True)
class _TextReader:
    """Reader of a program, line by line; ``bodies``: the open workgroups and loops, innermost last."""

    file: str
    given_ranks: int | None
    name: str | None = None
    num_ranks: int | None = None
    num_hosts: int | None = None
    line_bytes: int | None = None
    payload_bytes: int | None = None
    buffers: list[Buffer] = field(default_factory=list)
    num_semaphores: int | None = None
    semaphore_base: int | None = None
    semaphore_step: int | None = None
    initially: list[InitialValues] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    kernels: list[KernelText] = field(default_factory=list)
    bodies: list[list[Statement]] = field(default_factory=list)
    loops: list[SourceLine] = field(default_factory=list)

    def read(self, line: SourceLine) -> None:
        token = line.peek()
        if self.name is None and token.text != "program":
            raise line.unexpected("'program' and a name, the first line of a GPU program,", ("program",))
        if token.text in _HEAD_WORDS and token.kind == WORD:
            self._read_head(line)
        elif line.accept("kernel"):
            self._close_loops(line)
            self.kernels.append(self._kernel(line))
            self.bodies = []
        elif not self.kernels:
            words = (*_HEAD_WORDS, "kernel")
            raise line.fail(f"unknown word {show(token.text)} before the first kernel{nearest(token.text[:80], words)}")
        else:
            self._read_body(line)

    # the head

    def _read_head(self, line: SourceLine) -> None:
        word = line.take().text
        if self.kernels:
            raise line.fail(f"{word!r} must stand before the first kernel")
        read: dict[str, Callable[[SourceLine], None]] = {
            "program": self._program, "ranks": self._ranks, "hosts": self._hosts, "line": self._line,
            "buffer": self._buffer, "semaphores": self._semaphores, "initially": self._initially,
            "payload": self._payload, "note": self._note,
        }  # fmt: skip
        read[word](line)
        line.done()

    def _program(self, line: SourceLine) -> None:
        self._once(line, self.name, "program")
        self.name = line.name("a name")

    def _ranks(self, line: SourceLine) -> None:
        self._once(line, self.num_ranks, "ranks")
        self.num_ranks = self._number(line, "the number of ranks", 1, MAX_RANKS)
        if self.given_ranks not in (None, self.num_ranks):
            raise line.fail(f"the program is for {self.num_ranks} ranks, not {self.given_ranks}")

    def _hosts(self, line: SourceLine) -> None:
        self._once(line, self.num_hosts, "hosts")
        self.num_hosts = self._number(line, "the number of hosts", 0, MAX_RANKS - self._need_ranks(line))

    def _line(self, line: SourceLine) -> None:
        self._once(line, self.line_bytes, "line")
        self.line_bytes = self._number(line, "the size of a cache line", 1, 2**20)

    def _payload(self, line: SourceLine) -> None:
        self._once(line, self.payload_bytes, "payload")
        self.payload_bytes = self._number(line, "the payload", 0, MAX_VALUE)

    def _note(self, line: SourceLine) -> None:
        self.notes.append(line.name("a note in quotes"))

    def _buffer(self, line: SourceLine) -> None:
        if self.num_semaphores is not None:
            raise line.fail("buffers must stand before the semaphores, which lie behind them")
        quoted = line.peek().kind == NAME
        name = line.name("the name of a buffer")
        if not quoted and name in RESERVED:
            raise line.fail(f"{name!r} is a word of the language: put the buffer's name in quotes")
        if any(buffer.name == name for buffer in self.buffers):
            raise line.fail(f"there are two buffers {show(name)}")
        size = self._number(line, "the size of a buffer", 0, MAX_VALUE)
        base = self._number(line, "an address", 0, MAX_VALUE) if line.accept("at") else aligned(self._end())
        uncached = line.accept("uncached")
        line.done(("at", "uncached"))
        self.buffers.append(Buffer(name=name, base=base, size_bytes=size, uncached=uncached))

    def _semaphores(self, line: SourceLine) -> None:
        self._once(line, self.num_semaphores, "semaphores")
        max_semaphores = MAX_SEMAPHORES // (self.num_ranks or self.given_ranks or 1)
        self.num_semaphores = self._number(line, "the number of semaphores of a rank", 0, max_semaphores)
        if line.accept("at"):
            self.semaphore_base = self._number(line, "an address", -MAX_VALUE, MAX_VALUE)
            if line.accept("step"):
                self.semaphore_step = self._number(line, "a step", -(2**31), 2**31)

    def _initially(self, line: SourceLine) -> None:
        ranks = (0, self._need_ranks(line) + (self.num_hosts or 0) - 1)
        if line.accept("rank", "ranks"):
            ranks = self._range(line, "a rank", ranks[1])
        line.expect("sem", "'sem' and numbers of semaphores")
        semaphores = self._range(line, "a semaphore", (self.num_semaphores or 0) - 1)
        line.expect("=", "'=' and a value")
        value = self._number(line, "the value of a semaphore", 0, 2**31 - 1)
        self.initially.append(InitialValues(ranks=ranks, semaphores=semaphores, value=value))

    def _range(self, line: SourceLine, noun: str, highest: int) -> tuple[int, int]:
        """Read ``3`` or ``3..5``, from 0 to ``highest``."""
        first = self._number(line, noun, 0, highest)
        return first, self._number(line, noun, first, highest) if line.accept("..") else first

    def _number(self, line: SourceLine, noun: str, low: int, high: int) -> int:
        return constant(read_value(line, noun), self._names(), line, noun, low, high)

    def _names(self) -> dict[str, Value]:
        names: dict[str, Value] = {buffer.name: buffer.base for buffer in self.buffers}
        ranks = self.num_ranks or self.given_ranks
        return names if ranks is None else names | {"ranks": ranks}

    def _end(self) -> int:
        return max((buffer.base + buffer.size_bytes for buffer in self.buffers), default=0)

    def _once(self, line: SourceLine, value: object, word: str) -> None:
        if value is not None:
            raise line.fail(f"{word!r} is given twice")

    def _need_ranks(self, line: SourceLine) -> int:
        ranks = self.num_ranks or self.given_ranks
        if ranks is None:
            raise line.fail("how many ranks the program is for is not known here: a line 'ranks N' before this one")
        return ranks

    # kernels

    def _kernel(self, line: SourceLine) -> KernelText:
        self._need_ranks(line)
        has_name = line.peek().kind == NAME or (line.peek().kind == WORD and line.peek().text not in ("rank", "ranks"))
        name = line.name("a name") if has_name else ""
        first, last = self._kernel_ranks(line)
        wavefronts: Expression = Number(1)
        if line.accept(*_WAVEFRONT_WORDS):
            wavefronts = read_value(line, "the number of wavefronts")
        line.done((*_WAVEFRONT_WORDS, "rank", "ranks"))
        return KernelText(line=line, name=name, first=first, last=last, wavefronts=wavefronts)

    def _kernel_ranks(self, line: SourceLine) -> tuple[Expression, Expression]:
        if not line.accept("rank", "ranks"):
            raise line.unexpected("'rank' and a number, 'ranks all' or 'ranks 0..3'", ("rank", "ranks"))
        if line.accept("all"):
            return Number(0), BinaryExpression("-", Name("ranks"), Number(1))
        first = read_value(line, "a rank, or 'all',")
        return first, read_value(line, "a rank") if line.accept("..") else first

    def _read_body(self, line: SourceLine) -> None:
        if line.accept(*_WORKGROUP_WORDS):
            line.accept("blocks", "block")  # thread blocks
            self._close_loops(line)
            count: Expression = Number(1)
            if line.peek().kind != "end":
                count = read_value(line, "the number of workgroups")
            line.done()
            self._open_workgroups(line, count)
        elif line.accept("end"):
            line.done()
            if not self.loops:
                raise line.fail("'end' without 'for' or 'repeat'")
            self.bodies.pop()
            self.loops.pop()
        elif line.accept("for", "repeat"):
            self._loop(line)
        else:
            operation = read_operation(line, ("for", "repeat", "end", "kernel", *_WORKGROUP_WORDS))
            if not self.bodies:
                self._open_workgroups(line, Number(1))
            self.bodies[-1].append(operation)

    def _open_workgroups(self, line: SourceLine, count: Expression) -> None:
        block = Workgroups(line=line, count=count, body=[])
        self.kernels[-1].workgroups.append(block)
        self.bodies = [block.body]

    def _loop(self, line: SourceLine) -> None:
        """Read ``for d in 1..ranks-1``, or ``repeat 4``."""
        if not self.bodies:
            self._open_workgroups(line, Number(1))
        if len(self.loops) >= MAX_NESTED:
            raise line.fail(f"more than {MAX_NESTED} loops inside each other")
        counter = self._counted(line)
        line.done()
        loop = Loop(line=line, name=counter.name, first=counter.first, last=counter.last, body=[])
        self.bodies[-1].append(loop)
        self.bodies.append(loop.body)
        self.loops.append(line)

    def _counted(self, line: SourceLine) -> _Counter:
        if line.peek(1).text != "in" or line.peek(1).kind != WORD:
            return _Counter("", Number(1), read_value(line, "how often"))
        name = line.name("the name of a counter")
        if name in RESERVED or any(buffer.name == name for buffer in self.buffers):
            raise line.fail(f"{show(name)} means something else: give the counter another name")
        line.take()
        first = read_value(line, "the first number")
        line.expect("..", "'..' and the last number")
        return _Counter(name, first, read_value(line, "the last number"))

    def _close_loops(self, line: SourceLine) -> None:
        if self.loops:
            raise line.fail(f"the loop of {self.loops[-1].place} has no 'end'")

    def head(self, last: SourceLine | None) -> ProgramHeader:
        """Return the head after the last line."""
        if self.name is None or last is None:
            raise SpecError("is empty: a GPU program begins with 'program' and a name", file=self.file or "program")
        self._close_loops(last)
        if not self.kernels:
            raise last.fail("the program has no kernel")
        line_bytes = 128 if self.line_bytes is None else self.line_bytes
        num_ranks = self._need_ranks(last)
        num_hosts = self.num_hosts or 0
        if (num_ranks + num_hosts) * (self.num_semaphores or 0) > MAX_SEMAPHORES:
            raise last.fail(f"the ranks have more than {MAX_SEMAPHORES} semaphores in all")
        base = aligned(self._end()) if self.semaphore_base is None else self.semaphore_base
        step = line_bytes if self.semaphore_step is None else self.semaphore_step
        return ProgramHeader(
            name=self.name, num_ranks=num_ranks, num_hosts=num_hosts, line_bytes=line_bytes,
            payload_bytes=self.payload_bytes or 0, buffers=tuple(self.buffers),
            num_semaphores=self.num_semaphores or 0, semaphore_base=base, semaphore_step=step,
            initially=tuple(self.initially), notes=tuple(self.notes),
        )  # fmt: skip


def read_parts(text: str, file: str, num_ranks: int | None) -> tuple[ProgramHeader, list[KernelText]]:
    """Return the parts of a text program. num_ranks: None if the program has a line ``ranks``.

    Raises SpecError: names file, line, token and the nearest valid word.
    """
    reader, last = _TextReader(file, num_ranks), None
    for line in lines_of(text, file):
        reader.read(line)
        last = line
    return reader.head(last), reader.kernels
