"""Multimem operands: grouping of rows into operands, checks, and the first row of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from trine.common.arrays import Bool, Int8, Int32, Int64, pointers, row_sums
from trine.gpu import program as isa
from trine.gpu.program import GpuProgram, is_flagged, is_member, is_read

#: A check: the faulty rows, bool[rows], and a function that returns the message for one of them.
Check = tuple[Bool, Callable[[int], str]]


class OperandHeads(NamedTuple):
    """The operands of a program with one row each, for loops over operands.

    ptr: int64[operations + 1]. rows: int64[m], the first row of each in the program. role: int8[m], with READ, WRITE or
    WRITE_FLAGGED for multimem operands. end: int64[m], behind the last row of each. num_reads: int64[operations].
    """

    ptr: Int64
    rows: Int64
    role: Int8
    end: Int64
    num_reads: Int64


def operand_heads(program: GpuProgram) -> OperandHeads:
    """Return the operands of a well-formed ``program``."""
    rows = np.flatnonzero(~is_member(program))
    heads = pointers(~is_member(program))
    role = program.operand_role[rows]
    write = np.where(is_flagged(program)[rows], isa.WRITE_FLAGGED, isa.WRITE)
    plain = np.where(role == isa.READ_SUM, isa.READ, np.where(np.isin(role, isa.MULTIMEM_ROLES), write, role)).astype(
        np.int8
    )
    ptr = heads[program.operand_ptr]
    return OperandHeads(ptr, rows, plain, np.append(rows[1:], len(heads) - 1), row_sums(is_read(program)[rows], ptr))


def first_rows(program: GpuProgram) -> Int64:
    """Return int64[rows]: the first row of each row's operand."""
    rows = np.arange(len(program.operand_role))
    return np.maximum.accumulate(np.where(is_member(program), 0, rows)) if len(rows) else rows


def multimem_checks(program: GpuProgram, op_of: Int64, issuer: Int32) -> Iterator[Check]:
    """Yield checks of multimem operands. op_of, issuer: the operation of each row, and the rank that runs it."""
    role, rank, step = program.operand_role, program.operand_rank, program.operand_step
    member, kind = is_member(program), program.op_kind[op_of]
    heads = np.isin(role, isa.MULTIMEM_ROLES)
    prior = np.concatenate([[-1], role[:-1]])
    same_op = np.concatenate([[False], op_of[1:] == op_of[:-1]])
    fits = np.where(role == isa.READ_MEMBER, np.isin(prior, (isa.READ_SUM, isa.READ_MEMBER)), prior >= isa.WRITE_ALL)
    fits &= ~((role == isa.WRITE_MEMBER) & (prior == isa.READ_MEMBER))
    yield member & ~(fits & same_op), lambda row: "a member that stands behind no multimem operand"
    may = np.isin(kind, isa.DATA_OPS) | ((kind == isa.RELEASE) & np.isin(role, (isa.WRITE_ALL, isa.WRITE_MEMBER)))
    yield (
        (heads | member) & ~may,
        lambda row: "only operations with lines read sums, and only those and releases write to all members",
    )
    first = first_rows(program)
    grouped = heads | member
    yield grouped & (step != step[first]), lambda row: "the members of a multimem operand have the same step"
    flagged = is_flagged(program)
    yield (
        grouped & (flagged != flagged[first]),
        lambda row: "all members of a multimem operand are flagged or none, and none where lines are added",
    )
    owns, count = np.zeros(len(role), bool), np.zeros(len(role), np.int64)
    np.logical_or.at(owns, first[grouped], (rank == issuer)[grouped])
    np.add.at(count, first[grouped], 1)
    yield heads & (count < 2), lambda row: "a multimem operand has at least two members"
    yield heads & ~owns, lambda row: f"the own rank {issuer[row]} is no member of this multimem operand"
    order = np.lexsort((rank, first))
    twice = np.zeros(len(role), bool)
    twice[order[1:]] = (rank[order[1:]] == rank[order[:-1]]) & (first[order[1:]] == first[order[:-1]])
    yield grouped & twice, lambda row: f"rank {rank[row]} is a member of this multimem operand twice"
