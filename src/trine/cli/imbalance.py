"""``--expert-imbalance``: a keyword, or a file with a share of each expert."""

from __future__ import annotations

from typing import Any

from trine.common.inputs import exists, read_text
from trine.errors import InputError

#: Maximum size of a file of expert shares, which has one line per expert.
MAX_SHARES_BYTES = 4 * 2**20


def imbalance_fields(text: str) -> dict[str, Any]:
    """Return plan fields for a keyword, or for a file with one expert's share (or token count) per line."""
    if text.lower() == "balanced" or text.lower().startswith("zipf:"):
        return {"expert_imbalance": text.lower()}
    if not exists(text):
        return {"expert_imbalance": text}  # the plan refuses it and lists the valid keywords
    shares = []
    for number, line in enumerate(read_text(text, MAX_SHARES_BYTES, InputError).splitlines(), start=1):
        if line.strip() and not line.startswith("#"):
            try:
                shares.append(float(line))
            except ValueError:
                raise InputError(f"line {number}: a share is a number, got {line[:40]!r}", file=text) from None
    if not shares:
        raise InputError("holds no shares: one number a line", file=text)
    return {"expert_imbalance": "balanced", "expert_shares": tuple(shares)}
