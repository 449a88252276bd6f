"""Parser of the operation lines of a text program: each keyword and its arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from trine.common.schema import show
from trine.errors import nearest
from trine.gpu import program as isa
from trine.gpu.text.line import NAME, NUMBER, WORD, Expression, Number, SourceLine, has_unit, read_factor, read_value


@dataclass(frozen=True, kw_only=True, slots=True)
class OperandText:
    """An operand. ``rank`` None: its own rank; ``relative``: modulo ranks. ``address`` None: the semaphore's address.

    everyone: stands for the rows of a multimem operand of all ranks, beginning with the operand's own rank.
    """

    role: int
    rank: Expression | None
    relative: bool = False
    address: Expression | None = None
    step: Expression | None = None
    semaphore: Expression | None = None
    everyone: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class OperationText:
    """One line of a workgroup.

    amount_is_bytes: a data operation's amount in bytes, whole lines. must_leave: role of the operand that must belong
    to another rank (put, get); -1: none.
    """

    line: SourceLine
    kind: int
    amount: Expression
    amount_is_bytes: bool = False
    operands: tuple[OperandText, ...] = ()
    unroll: Expression | None = None
    label: str | None = None
    must_leave: int = -1


class _DataForm(NamedTuple):
    """Form of a data operation. ``sources``, ``targets``: (min, max) operands left and right of the arrow."""

    kind: int
    sources: tuple[int, int] = (0, 0)
    targets: tuple[int, int] = (0, 0)
    must_leave: int = -1


_MANY = 4096
_DATA: Mapping[str, _DataForm] = {
    "load": _DataForm(isa.LOAD, (1, _MANY)),
    "store": _DataForm(isa.STORE, (0, 0), (1, _MANY)),
    "copy": _DataForm(isa.COPY, (1, 1), (1, _MANY)),
    "put": _DataForm(isa.COPY, (1, 1), (1, _MANY), isa.WRITE),
    "get": _DataForm(isa.COPY, (1, 1), (1, _MANY), isa.READ),
    "reduce": _DataForm(isa.REDUCE, (1, _MANY), (0, _MANY)),
}
_CONTROL = ("dma", "acquire", "release", "waitcnt", "fence", "barrier", "compute", "delay", "nop")
#: Synonyms from CUDA, AMD's instruction set and MSCCL++.
ALIASES = {
    "memcpy": "copy", "signal": "release", "wait": "acquire", "__syncthreads": "barrier", "syncthreads": "barrier",
    "s_barrier": "barrier", "s_waitcnt": "waitcnt", "flush": "fence", "__threadfence": "fence",
    "__threadfence_system": "fence", "threadfence": "fence", "s_nop": "nop", "s_sleep": "nop",
}  # fmt: skip
_OPERATION_WORDS = (*_DATA, *_CONTROL, *ALIASES)
_OPTIONS = ("unroll", "label")


def read_operation(line: SourceLine, other_words: Iterable[str] = ()) -> OperationText:
    """Read one operation. other_words: further words that are valid here, for hints in errors.

    Raises SpecError: names file, line, token and the nearest valid word.
    """
    word = line.take().text
    plain = ALIASES.get(word, word)
    if plain in _DATA:
        return _data(line, _DATA[plain])
    if plain not in _CONTROL:
        raise line.fail(f"unknown operation {show(word)}{nearest(word[:80], (*_OPERATION_WORDS, *other_words))}")
    parts: dict[str, Any] = _dma(line) if plain == "dma" else _control(line, plain)
    return OperationText(line=line, **parts, **_options(line, ("label",)))


def _data(line: SourceLine, form: _DataForm) -> OperationText:
    amount = read_value(line, "how much, such as '32 lines'")
    in_lines = line.accept("lines", "line")
    if not in_lines and not has_unit(amount):
        raise line.unexpected("'lines', or a size with a unit,")
    sources = [] if line.peek().text == "->" else _operands(line, isa.READ)
    targets = _operands(line, isa.WRITE) if line.accept("->") else []
    for operands, (minimum, maximum), side in ((sources, form.sources, "before"), (targets, form.targets, "after")):
        count = sum(operand.role not in isa.MEMBER_ROLES for operand in operands)
        if not minimum <= count <= maximum:
            needed = f"{minimum}" if minimum == maximum else f"at least {minimum}"
            raise line.fail(f"has {count} operands {side} '->', and needs {needed}")
    return OperationText(
        line=line, kind=form.kind, amount=amount, amount_is_bytes=not in_lines, operands=(*sources, *targets),
        must_leave=form.must_leave, **_options(line, _OPTIONS),
    )  # fmt: skip


def _operands(line: SourceLine, role: int) -> list[OperandText]:
    operands: list[OperandText] = []
    while not operands or line.accept(","):
        operands += _members(line, role, _operand) if line.accept("multimem") else [_operand(line, role)]
    return operands


def _members(line: SourceLine, role: int, read: Callable[[SourceLine, int], OperandText]) -> list[OperandText]:
    """Read the rows of ``multimem all:out`` or ``multimem own:out & rank+1:out``; ``add`` adds to the old content."""
    if role == isa.READ:
        first = isa.READ_SUM
    elif line.accept("add"):
        first = isa.ADD_ALL
    else:
        first = isa.WRITE_ALL
    if line.peek().text == "all":
        return [replace(read(line, first), everyone=True)]
    members = [read(line, first)]
    while line.accept("&"):
        members.append(read(line, isa.READ_MEMBER if role == isa.READ else isa.WRITE_MEMBER))
    return members


def _operand(line: SourceLine, role: int) -> OperandText:
    rank, relative = _rank(line, role in isa.MULTIMEM_ROLES)
    line.expect(":", "':' and an address")
    address = read_value(line, "an address")
    step = read_value(line, "a step in bytes") if line.accept("step") else None
    semaphore = None
    if role in (isa.READ, isa.WRITE, isa.WRITE_ALL, isa.WRITE_MEMBER) and line.accept("flagged"):
        semaphore = _semaphore(line)
        role = {isa.READ: isa.READ_FLAGGED, isa.WRITE: isa.WRITE_FLAGGED}.get(role, role)
    return OperandText(role=role, rank=rank, relative=relative, address=address, step=step, semaphore=semaphore)


def _rank(line: SourceLine, multimem: bool = False) -> tuple[Expression | None, bool]:
    """Read ``own``, ``rank 2`` or ``rank + 1``, which is relative; or ``all`` in multimem operands."""
    if line.accept("own") or (multimem and line.accept("all")):
        return None, False
    token, following = line.peek(), line.peek(1)
    if token.text != "rank" or token.kind != WORD:
        raise line.unexpected("'own', 'rank+1' or 'rank 2'", ("own", "rank"))
    if following.kind in (NUMBER, WORD, NAME) or following.text == "(":
        if following.text == "sem":
            raise line.fail("'rank' alone is nobody: 'own', 'rank+1' or 'rank 2'")
        line.take()
        return read_factor(line, "a rank"), False
    return read_value(line, "a rank"), True


def _semaphore(line: SourceLine) -> Expression:
    line.expect("sem", "'sem' and a number")
    return read_value(line, "the number of a semaphore")


def _dma(line: SourceLine) -> dict[str, Any]:
    """Read ``dma 4 KiB own:a -> rank+1:b sem 3``, or ``dma -> rank+1 sem 3``."""
    if line.accept("->"):
        return {"kind": isa.DMA, "amount": Number(0), "operands": (_target(line),)}
    amount = read_value(line, "a size")
    if not has_unit(amount) and amount != Number(0):
        raise line.fail("the size of a dma needs a unit, such as 4 KiB")
    source = _dma_operand(line, isa.READ)
    line.expect("->", "'->' and a target")
    return {"kind": isa.DMA, "amount": amount, "operands": (source, _dma_operand(line, isa.WRITE))}


def _dma_operand(line: SourceLine, role: int) -> OperandText:
    rank, relative = _rank(line)
    line.expect(":", "':' and an address")
    address = read_value(line, "an address")
    semaphore = _semaphore(line) if line.peek().text == "sem" else None
    return OperandText(role=role, rank=rank, relative=relative, address=address, semaphore=semaphore)


def _target(line: SourceLine, role: int = isa.WRITE) -> OperandText:
    """Read ``rank+1 sem 3 at 0x1000``: a semaphore of a rank, at a memory address."""
    rank, relative = _rank(line, role in isa.MULTIMEM_ROLES)
    semaphore = _semaphore(line)
    return OperandText(role=role, rank=rank, relative=relative, semaphore=semaphore, address=_at(line))


def _at(line: SourceLine) -> Expression | None:
    return read_value(line, "an address") if line.accept("at") else None


def _control(line: SourceLine, word: str) -> dict[str, Any]:
    if word == "acquire":
        operand = OperandText(role=isa.READ, rank=None, semaphore=_semaphore(line), address=_at(line))
        return {"kind": isa.ACQUIRE, "amount": _by(line), "operands": (operand,)}
    if word == "release":
        targets: list[OperandText] = []
        while not targets or line.accept(","):
            targets += _members(line, isa.WRITE, _target) if line.accept("multimem") else [_target(line)]
        return {"kind": isa.RELEASE, "amount": _by(line), "operands": tuple(targets)}
    if word == "waitcnt":
        return {"kind": isa.WAITCNT, "amount": read_value(line, "how many may be unfinished, such as 0,")}
    if word in ("compute", "delay"):
        amount = read_value(line, "a number of cycles")
        if not line.accept("cycles", "cycle"):
            raise line.unexpected("'cycles'", ("cycles",))
        return {"kind": isa.COMPUTE if word == "compute" else isa.DELAY, "amount": amount}
    return {"kind": {"fence": isa.FENCE, "barrier": isa.BARRIER, "nop": isa.NOP}[word], "amount": Number(0)}


def _by(line: SourceLine) -> Expression:
    return read_value(line, "how much") if line.accept("by") else Number(1)


def _options(line: SourceLine, allowed: tuple[str, ...]) -> dict[str, Any]:
    """Read ``unroll 8``, ``label 'x'``, each at most once, to the end of the line."""
    options: dict[str, Any] = {}
    while line.peek().text in allowed and line.peek().kind == WORD:
        option = line.take().text
        if option in options:
            raise line.fail(f"{option!r} is given twice")
        options[option] = line.name("a label") if option == "label" else read_value(line, "how many requests")
    line.done((*allowed, "step", "flagged", "sem", "by", "at", "lines", "multimem"))
    return options
