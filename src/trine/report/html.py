"""A page as one HTML file: data, script and style inside, no request to any other place.

All texts are data: they stand in one JSON element, and the script inserts them with ``textContent`` only. A Content
Security Policy allows this script and this style by their hashes, and nothing else. Equal pages give equal bytes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from html import escape
from importlib.resources import files

import numpy as np

from trine.common._version import __version__
from trine.common.outputs import write_bytes
from trine.errors import one_line, safe
from trine.report.page import Page

#: Scripts in their order in the file, the style sheet, and the dark palette, which the style sheet has in two places.
SCRIPTS = ("base.js", "charts.js", "scatter.js", "network.js", "spans.js", "timeline.js", "page.js")
STYLE, DARK_PALETTE = "report.css", "dark.css"
#: The most characters of a text in the page; the middle of a longer text is left out.
MAX_TEXT = 2000


def write_page(page: Page, path: str | os.PathLike[str]) -> None:
    """Write a page to a file. Raises InputError if the file cannot be written."""
    write_bytes(path, render(page))


def render(page: Page) -> bytes:
    """Return a page as the bytes of an HTML file."""
    data = json.dumps(plain({"writer": __version__, "page": page}), separators=(",", ":"), allow_nan=False)
    data = data.replace("<", "\\u003c")  # no text can end the element; json.dumps escapes all but ASCII
    script, style = _script(), _style()
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    title = escape(_text(f"{page.title}: trine {page.subject}"))
    document = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>{title}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        "<noscript>This report needs JavaScript. It loads nothing from a network.</noscript>\n"
        f'<script type="application/json" id="data">{data}</script>\n<script>{script}</script>\n</body>\n</html>\n'
    )
    return document.encode()


def plain(value: object) -> object:
    """Return a page's value as data for JSON.

    A dataclass becomes an object of its fields, with its ``KIND`` if it has one. Arrays are base64 of little-endian
    numbers. Control and bidirectional characters of texts are escaped. Numbers that JSON lacks become None.
    """
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, np.ndarray):
        array = np.ascontiguousarray(value).astype(value.dtype.newbyteorder("<"))
        return {
            "dtype": f"{value.dtype.kind}{value.dtype.itemsize}",
            "shape": list(value.shape),
            "base64": base64.b64encode(array.tobytes()).decode(),
        }
    if is_dataclass(value) and not isinstance(value, type):
        content = {each.name: plain(getattr(value, each.name)) for each in fields(value)}
        kind = getattr(value, "KIND", None)
        return content if kind is None else {"kind": kind, **content}
    if isinstance(value, Mapping):
        return {_text(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value


def _text(text: str) -> str:
    return one_line(safe(text, "\n"), MAX_TEXT) if len(text) > MAX_TEXT else safe(text, "\n")


@cache
def _script() -> str:
    parts = [_asset(name) for name in SCRIPTS]
    return '"use strict";\n(() => {\n' + "\n".join(parts) + "})();\n"


@cache
def _style() -> str:
    return _asset(STYLE).replace(f"/* {DARK_PALETTE} */", _asset(DARK_PALETTE).strip())


@cache
def _asset(name: str) -> str:
    return (files("trine.report") / "assets" / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """Return the hash of an inline script or style as a Content Security Policy names it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
