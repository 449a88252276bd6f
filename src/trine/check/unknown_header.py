"""Headers of tables with sizes and bandwidths whose columns are not those of nccl-tests."""

from __future__ import annotations

import re

#: Words of a table's header; a line with all of a group names columns of sizes and rates.
_HEADER_WORDS = re.compile(r"\b(?:alg|bus)_?(?:bw|bandwidth)", re.IGNORECASE)
_SIZE_WORDS = re.compile(r"(?:\b|_)(?:size|bytes)(?:\b|_)", re.IGNORECASE)
_CELLS = re.compile(r"[\s,;|]+")


def unknown_header(line: str) -> str | None:
    """Return the columns of a header of sizes and bandwidths; None if a line is no such header."""
    if not (_SIZE_WORDS.search(line) and _HEADER_WORDS.search(line)) or "{" in line or len(_CELLS.split(line)) < 4:
        return None
    return " ".join(line.strip("#|> \t").split())
