"""Which format a file has, told from its content, never from its name alone."""

from __future__ import annotations

import re

from trine.errors import SpecError, nearest
from trine.inputs import read_text
from trine.spec import parse_json, parse_yaml

#: Formats of files that hold a cluster.
FORMATS = ("trine", "infragraph", "nvidia-smi", "nccl", "lstopo", "csv", "networkx")
_XML_ROOT = re.compile(r"<(?![?!])\s*([\w.-]+)")
_MATRIX_ROW = re.compile(r"^\W*(?:\[\dm)?GPU0\s", re.MULTILINE)
_TOP_KEY = re.compile(r"^([A-Za-z_]\w*)[ ]*:", re.MULTILINE)
_PLAIN = ("trine", "infragraph", "networkx")


def detect(file: str, format: str | None = None) -> tuple[str, object]:
    """The format's name, and the file's content: plain data of YAML and JSON, else its text.

    A mapping that is none of the others is taken for a cluster file of trine, whose reader says what is wrong with it.

    Raises
    ------
    SpecError: an unknown name, a file that cannot be read, or content that is none of :data:`FORMATS`.
    """
    if format is not None and format not in FORMATS:
        raise SpecError(f"unknown format {format!r}{nearest(format, FORMATS)}", field="format")
    text = read_text(file)
    kind = format or _by_text(text, file)
    if kind == "trine" or (kind is not None and kind not in _PLAIN):
        return kind, text
    data = _plain_data(text, file)
    return kind or _by_keys(data, file), data


def _by_text(text: str, file: str) -> str | None:
    """The formats that need no parsing to tell, None for other YAML and JSON."""
    head = text.lstrip()[:4096]
    if head.startswith("<"):
        root = _XML_ROOT.search(head)
        tags = {"system": "nccl", "topology": "lstopo"}
        if root is None or root[1] not in tags:
            tag = "no element" if root is None else f"<{root[1][:40]}>"
            raise SpecError(f"is XML with {tag} at its root; known: <system> (NCCL), <topology> (lstopo)", file=file)
        return tags[root[1]]
    first = next((line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")), "")
    if {"source", "target"} <= {cell.strip().lower() for cell in first.split(",")}:
        return "csv"
    if _MATRIX_ROW.search(text) and "X" in text.split():
        return "nvidia-smi"
    keys = set(_TOP_KEY.findall(text))
    if keys and not head.startswith("{") and not keys & {"infrastructure", "instances", "components", "nodes"}:
        return "trine"
    return None


def _plain_data(text: str, file: str) -> object:
    if text.lstrip().startswith("{"):
        return parse_json(text, file)
    from trine.cluster.importers.plain_yaml import parse_plain

    data = parse_plain(text)
    return parse_yaml(text, file) if data is None else data


def _by_keys(data: object, file: str) -> str:
    if not isinstance(data, dict):
        raise SpecError(
            f"is in no format that trine recognises; name it (--format {', '.join(FORMATS)}), see "
            "docs/formats/imports.md",
            file=file,
        )
    keys = set(data)
    if keys & {"infrastructure", "instances", "components"}:
        return "infragraph"
    nodes = data.get("nodes")
    if keys & {"edges", "links"} and isinstance(nodes, list) and any(isinstance(n, dict) and "id" in n for n in nodes):
        return "networkx"
    return "trine"
