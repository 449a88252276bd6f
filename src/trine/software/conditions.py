"""Conditions on a layout, as software profiles write them: ``"heads % tp == 0"``.

Names of numbers, words and truth values; comparisons, ``in (...)``, ``and``, ``or``, ``not``, whole-number arithmetic.
A condition about an unknown value, such as the heads of a trace, is neither true nor false.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal

from trine.common.schema import Field, Spec
from trine.errors import SpecError, nearest

#: Names of a condition: fields of a filled-in :class:`trine.Plan` (etp: its ``expert_tp``; shard_ways: all replicas
#: without hybrid sharding), and properties of plan and workload.
PLAN_NAMES = (
    "tp", "pp", "cp", "dp", "ep", "etp", "virtual_stages", "schedule", "balance", "sharding", "shard_ways", "recompute",
    "cp_style", "tp_style", "tp_overlap", "offload", "overlap", "data", "sequence_parallel",
)  # fmt: skip
#: batch, micro_batch: samples of a replica, of a micro-batch. micro_batches: of a replica in a step. heads, kv_heads:
#: of attention. experts: of a layer, or 0. layers: blocks of the model. sequence: tokens of a sample.
#: training: whether there is a backward pass. tied: embedding and head share a weight.
#: cut: whether the plan places its cuts itself. local_sgd: whether replicas average parameters.
WORKLOAD_NAMES = (
    "batch", "micro_batch", "micro_batches", "heads", "kv_heads", "experts", "layers", "sequence", "training",
    "tied", "cut", "local_sgd",
)  # fmt: skip
NAMES = (*PLAN_NAMES, *WORKLOAD_NAMES)
MAX_LENGTH = 200

Value = int | str | bool | None

_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    ast.Mult: operator.mul, ast.Mod: operator.mod, ast.FloorDiv: operator.floordiv, ast.Add: operator.add,
    ast.Sub: operator.sub,
}  # fmt: skip
_COMPARISONS: dict[type, Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.In: lambda item, items: item in items, ast.NotIn: lambda item, items: item not in items,
}  # fmt: skip


@cache
def parse(text: str) -> ast.expr:
    """Return the checked expression. Raises SpecError for one that is not of this language, or an unknown name."""
    if len(text) > MAX_LENGTH:
        raise SpecError(f"a condition has at most {MAX_LENGTH} characters")
    try:
        expression = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise SpecError(f"{text!r} is no condition, such as 'heads % tp == 0'") from None
    for node in ast.walk(expression):
        _check(node, text)
    return expression


def _check(node: ast.AST, text: str) -> None:
    if isinstance(node, ast.Name) and node.id not in NAMES:
        raise SpecError(f"{text!r} has an unknown name, {node.id[:40]!r}{nearest(node.id[:80], NAMES)}")
    is_constant = isinstance(node, ast.Constant) and isinstance(node.value, int | str)
    allowed = ast.Name | ast.BoolOp | ast.Compare | ast.Tuple | ast.expr_context | ast.boolop | ast.cmpop | ast.BinOp
    is_not = isinstance(node, ast.Not) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not))
    if not (is_constant or isinstance(node, allowed) or is_not or type(node) in _ARITHMETIC):
        raise SpecError(f"{text!r} holds {type(node).__name__}: a condition has comparisons, and, or, not, * % // + -")


def names_of(text: str) -> tuple[str, ...]:
    """Return the names in a condition, each once, in its order."""
    return tuple(dict.fromkeys(node.id for node in ast.walk(parse(text)) if isinstance(node, ast.Name)))


def evaluate(text: str, values: Mapping[str, Value]) -> Value:
    """Return the value of an expression; None if it depends on an unknown value."""
    try:
        return _value(parse(text), values)  # type: ignore[no-any-return]
    except (ZeroDivisionError, TypeError):
        return None


def _value(node: ast.expr, values: Mapping[str, Value]) -> Any:
    if isinstance(node, ast.Name):
        return values.get(node.id)
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Tuple):
        return tuple(_value(each, values) for each in node.elts)
    if isinstance(node, ast.UnaryOp):
        value = _value(node.operand, values)
        return None if value is None else not value
    if isinstance(node, ast.BoolOp):
        return _joined(isinstance(node.op, ast.Or), [_value(each, values) for each in node.values])
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, values), _value(node.right, values)
        if not isinstance(left, int) or not isinstance(right, int):
            return None
        return _ARITHMETIC[type(node.op)](left, right)
    assert isinstance(node, ast.Compare)
    terms = [_value(each, values) for each in (node.left, *node.comparators)]
    if any(term is None for term in terms):
        return None
    pairs = zip(node.ops, terms, terms[1:], strict=False)
    return all(_COMPARISONS[type(op)](left, right) for op, left, right in pairs)


def _joined(is_or: bool, values: list[Any]) -> Any:
    """Return the value of ``or`` or ``and``: one that decides, else None if any is unknown."""
    if any(value is not None and bool(value) == is_or for value in values):
        return is_or
    is_unknown = any(value is None for value in values)
    return None if is_unknown else not is_or


class LayoutRule(Spec):
    """A condition on layouts.

    require, when: conditions (:mod:`trine.software.conditions`); ``require`` must hold if ``when`` does. reason: the
    demand of the software, for the error. effect: other layouts are refused, or run with a note. source: file and line
    of the software's code.
    """

    require: str
    reason: str
    source: str
    when: str = "True"
    effect: Literal["refuse", "note"] = "refuse"

    def _check(self) -> None:
        for text in (self.require, self.when):
            parse(text)


class LayoutDefault(Spec):
    """A field that the software sets if ``when`` holds and the plan leaves it open."""

    field: Literal["sequence_parallel", "etp", "balance"]
    value: bool | int | str
    reason: str
    source: str
    when: str = "True"

    def _check(self) -> None:
        parse(self.when)


class LayoutConstraints(Spec):
    """All rules and defaults of a profile; without rules every layout runs."""

    defaults: list[LayoutDefault] = Field(default_factory=list)
    rules: list[LayoutRule] = Field(default_factory=list)
