"""The envelope of JSON answers: checked, and taken off."""

from __future__ import annotations

import json
from typing import Any

import trine
from trine.results.report import ENVELOPE


def opened(text: str, command: str | None, schema: str) -> dict[str, Any]:
    """The answer's own keys, in an envelope of ``trine/<schema>/1`` that names ``command``."""
    content = json.loads(text)
    assert list(content)[: len(ENVELOPE)] == list(ENVELOPE), "the envelope comes first"
    found = tuple(content.pop(key) for key in ENVELOPE)
    assert found == (f"trine/{schema}/1", trine.__version__, command)
    return content
