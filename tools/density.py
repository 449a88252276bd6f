"""Measures of how densely a module is written: second ideas, packed statements, tuples of three or more parts.

A second idea stands below a heading: a comment of its own in the first column, after the first definition. A packed
statement holds two or more comprehensions, conditional expressions, assignment expressions or lambdas. A function that
returns a tuple of three or more parts should return a record with named fields.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

PACKING = (
    ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.IfExp, ast.NamedExpr, ast.Lambda,
)  # fmt: skip
#: Expressions that make a statement packed, and parts that make a tuple large.
MIN_PACKED, MIN_PARTS = 2, 3
#: A heading is a sentence; shorter comments are labels.
MIN_HEADING = 20


def second_ideas(text: str) -> list[int]:
    """Return the line numbers of headings after the first definition of a module."""
    lines = [*text.splitlines(), ""]
    tree = ast.parse(text)
    first = next((node.lineno for node in tree.body if _is_definition(node)), len(lines))
    return [number for number in range(first + 1, len(lines)) if _is_heading(lines, number)]


def _is_definition(node: ast.stmt) -> bool:
    return isinstance(
        node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign
    )  # fmt: skip


def _is_heading(lines: list[str], number: int) -> bool:
    """Return whether line ``number`` (from 1) begins a comment that stands alone or goes on for several lines."""
    line, before, after = lines[number - 1], lines[number - 2], lines[number]
    is_sentence = line.startswith("# ") and line[2:3].isupper() and len(line) >= MIN_HEADING
    return is_sentence and not before.strip() and (not after.strip() or after.startswith("#"))


def packed_statements(tree: ast.AST) -> list[int]:
    """Return the line numbers of packed statements; the body of a compound statement does not count for its head."""
    packed = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if isinstance(node, ast.stmt) and sum(isinstance(part, PACKING) for part in _expressions(node)) >= MIN_PACKED:
            packed.append(node.lineno)
    return sorted(packed)


def _expressions(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a statement without the statements inside it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.stmt):
            yield child
            yield from _expressions(child)


def tuple_functions(tree: ast.AST) -> list[str]:
    """Return the names of functions whose annotation says that they return a tuple of three or more parts."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _tuple_parts(node.returns) >= MIN_PARTS:
            names.append(node.name)
    return names


def _tuple_parts(returns: ast.expr | None) -> int:
    """Return the number of parts of an annotation ``tuple[a, b, c]``; 0 for other types and for ``tuple[a, ...]``."""
    if not isinstance(returns, ast.Subscript) or ast.unparse(returns.value) != "tuple":
        return 0
    if not isinstance(returns.slice, ast.Tuple):
        return 1
    parts = returns.slice.elts
    has_any_length = any(isinstance(part, ast.Constant) and part.value is ... for part in parts)
    return 0 if has_any_length else len(parts)
