"""Fast parser of plain block YAML, the usual output of tools: PyYAML takes 4 s per megabyte, this a tenth of it.

It reads a subset of YAML with PyYAML's results: keys and values on one line, block lists, no comments, no flow style,
no multi-line text, no words with a special meaning. For all other text it returns None, and the caller uses PyYAML.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_KEY = re.compile(r"( *)((?:- )*)([A-Za-z_][\w-]*):(?: (.*))?")
_ITEM = re.compile(r"( *)((?:- )+)([^ ].*)")
_INT = re.compile(r"0|-?[1-9][0-9]{0,17}")
_FLOAT = re.compile(r"-?[0-9]{1,15}\.[0-9]{1,17}")
_QUOTED = re.compile(r"'[^'\\\t]*'")
_WORDS = re.compile(r"[A-Za-z][\w ./()\[\]:+-]*", re.ASCII)
#: Words with a special meaning in YAML.
_SPECIAL = {"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"}
_MAX_DEPTH = 32


class _Token(NamedTuple):
    """A dash (no key, no text), ``key: text`` or an item's text, at a column."""

    column: int
    key: str | None
    text: str | None


class _NotPlain(Exception):
    """Signal that the text is outside the plain subset."""


def parse_plain(text: str) -> object | None:
    """Return the data of a plain YAML text, or None if it is not plain."""
    try:
        tokens = _tokens(text)
        if not tokens:
            return None
        data, end = _node(tokens, 0, tokens[0].column, 0)
    except _NotPlain:
        return None
    return data if end == len(tokens) else None


def _tokens(text: str) -> list[_Token]:
    if not text.isascii() or "\r" in text or "\x85" in text:
        raise _NotPlain
    tokens: list[_Token] = []
    for line in text.split("\n"):
        if not line:
            continue
        match = _KEY.fullmatch(line) or _ITEM.fullmatch(line)
        if match is None:
            raise _NotPlain
        column = len(match[1])
        for _ in range(len(match[2]) // 2):
            tokens.append(_Token(column, None, None))
            column += 2
        if match.re is _KEY:
            tokens.append(_Token(column, match[3], match[4]))
        else:
            tokens.append(_Token(column, None, match[3]))
    return tokens


def _node(tokens: list[_Token], at: int, column: int, depth: int) -> tuple[object, int]:
    """Return the value that begins at token ``at``, in this column, and the index of the token after it."""
    token = tokens[at]
    if token.column != column or depth > _MAX_DEPTH:
        raise _NotPlain
    if token.key is not None:
        return _mapping(tokens, at, column, depth)
    if token.text is not None:
        return _scalar(token.text), at + 1
    return _list(tokens, at, column, depth)


def _list(tokens: list[_Token], at: int, column: int, depth: int) -> tuple[list[object], int]:
    items = []
    while at < len(tokens) and tokens[at] == (column, None, None):
        item, at = _node(tokens, at + 1, column + 2, depth + 1)
        items.append(item)
    if at < len(tokens) and tokens[at].column > column:
        raise _NotPlain
    return items, at


def _mapping(tokens: list[_Token], at: int, column: int, depth: int) -> tuple[dict[str, object], int]:
    found: dict[str, object] = {}
    while at < len(tokens) and tokens[at].column == column and tokens[at].key is not None:
        key, text = tokens[at].key, tokens[at].text
        if key is None or key in found or key.lower() in _SPECIAL:
            raise _NotPlain
        at += 1
        if text is not None:
            found[key] = _scalar(text)
        else:
            found[key], at = _below(tokens, at, column, depth)
    if at < len(tokens) and tokens[at].column > column:
        raise _NotPlain
    return found, at


def _below(tokens: list[_Token], at: int, column: int, depth: int) -> tuple[object, int]:
    """Return the value under a key: indented, or a list with its dashes in the key's column."""
    if at == len(tokens):
        raise _NotPlain
    after = tokens[at]
    if after.column > column or (after.column == column and after.key is None and after.text is None):
        return _node(tokens, at, after.column, depth + 1)
    raise _NotPlain


def _scalar(text: str) -> object:
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _QUOTED.fullmatch(text):
        return text[1:-1]
    if _WORDS.fullmatch(text) and text.lower() not in _SPECIAL and ": " not in text and text[-1] not in ": ":
        return text
    if text == "[]":
        return []
    raise _NotPlain
