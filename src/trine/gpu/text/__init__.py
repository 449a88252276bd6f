"""The text form of GPU programs (docs/formats/gpu-program.md): parse and print.

``line`` (tokens and expressions of a line), ``operations`` (operations of workgroups), ``parse`` (the head, kernels and
loops), ``build`` (from these to arrays), ``format`` (from arrays to text), ``summary`` (counts).
"""

from __future__ import annotations

import os

from trine.common.inputs import read_text
from trine.errors import SpecError
from trine.gpu.program import GpuProgram, same_program
from trine.gpu.text.build import TextCompiler
from trine.gpu.text.format import format_program
from trine.gpu.text.parse import read_parts
from trine.gpu.validate import find_fault

__all__ = ["format_program", "is_text_program", "parse_program", "read_program", "same_program"]


def read_program(path: str | os.PathLike[str], num_ranks: int | None = None) -> GpuProgram:
    """Read a text program; see :func:`parse_program`."""
    return parse_program(read_text(path), os.fspath(path), num_ranks=num_ranks)


def parse_program(text: str, file: str = "", *, num_ranks: int | None = None) -> GpuProgram:
    """Return the program that ``text`` describes.

    Parameters
    ----------
    file: name of the text in errors.
    num_ranks: for a program without a line ``ranks``; None if it has this line.

    Raises
    ------
    SpecError: anything unknown, out of range or too large; names file and line, the token and the nearest valid word.
    """
    head, kernels = read_parts(text, file, num_ranks)
    builder = TextCompiler(head)
    for kernel in kernels:
        builder.kernel(kernel)
    program = builder.program()
    fault = find_fault(program)
    if fault is not None:
        if fault.op >= 0:
            raise builder.lines[int(builder.op_line[fault.op])].fail(fault.message)
        raise SpecError(fault.message, file=file or "program")
    return program


def is_text_program(text: str) -> bool:
    """Return whether ``text`` begins like a text program, and not like any other file that trine reads."""
    for line in text.split("\n"):
        words = line.split("#")[0].split()
        if words:
            return words[0] == "program"
    return False


def says_ranks(text: str) -> bool:
    """Return whether a text program states its number of ranks."""
    return any(line.split("#")[0].split()[:1] == ["ranks"] for line in text.split("\n"))
