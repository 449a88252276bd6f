"""Read and write clusters in other tools' formats: InfraGraph, nvidia-smi, NCCL, lstopo, CSV, networkx, GraphML.

docs/formats/imports.md lists the data read from each. Readers and writers are plug-ins; this module detects formats.
"""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from trine.cluster.cluster import Cluster
from trine.cluster.file import check_readable
from trine.common.inputs import head, read_text
from trine.common.outputs import write_text
from trine.common.plugins import Registry
from trine.common.recognise import CLUSTER, MAX_CHARS, foreign_file
from trine.common.spec import parse_json, parse_yaml
from trine.errors import SpecError, nearest
from trine.formats.gpu_names import gpu_of_text, listed_gpus, refuse_environment

# Fast parser of plain block YAML, the usual output of tools: PyYAML takes 4 s per megabyte, this a tenth of it.
#
# It reads a subset of YAML with PyYAML's results: keys and values on one line, block lists, no comments, no flow
# style, no multi-line text, no words with a special meaning. For all other text it returns None, and the caller uses
# PyYAML.

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


def _node(tokens: list[_Token], index: int, column: int, depth: int) -> tuple[object, int]:
    """Return the value that begins at token ``index``, in this column, and the index of the token after it."""
    token = tokens[index]
    if token.column != column or depth > _MAX_DEPTH:
        raise _NotPlain
    if token.key is not None:
        return _mapping(tokens, index, column, depth)
    if token.text is not None:
        return _scalar(token.text), index + 1
    return _list(tokens, index, column, depth)


def _list(tokens: list[_Token], index: int, column: int, depth: int) -> tuple[list[object], int]:
    items = []
    while index < len(tokens) and tokens[index] == (column, None, None):
        item, index = _node(tokens, index + 1, column + 2, depth + 1)
        items.append(item)
    if index < len(tokens) and tokens[index].column > column:
        raise _NotPlain
    return items, index


def _mapping(tokens: list[_Token], index: int, column: int, depth: int) -> tuple[dict[str, object], int]:
    mapping: dict[str, object] = {}
    while index < len(tokens) and tokens[index].column == column and tokens[index].key is not None:
        key, text = tokens[index].key, tokens[index].text
        if key is None or key in mapping or key.lower() in _SPECIAL:
            raise _NotPlain
        index += 1
        if text is not None:
            mapping[key] = _scalar(text)
        else:
            mapping[key], index = _value_below(tokens, index, column, depth)
    if index < len(tokens) and tokens[index].column > column:
        raise _NotPlain
    return mapping, index


def _value_below(tokens: list[_Token], index: int, column: int, depth: int) -> tuple[object, int]:
    """Return the value under a key: indented, or a list with its dashes in the key's column."""
    if index == len(tokens):
        raise _NotPlain
    after = tokens[index]
    if after.column > column or (after.column == column and after.key is None and after.text is None):
        return _node(tokens, index, after.column, depth + 1)
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


#: A reader takes the content (text, or parsed JSON and YAML), the file's name, and the keyword options ``gpu``,
#: ``links`` and ``links_from``; the InfraGraph reader also takes ``annotations`` and ``merge_switches``.
READERS: Registry[Callable[..., Cluster]] = Registry(
    "format",
    "trine.cluster_readers",
    {
        "trine": "trine.cluster.file:read_cluster",
        "infragraph": "trine.formats.infragraph.read:infragraph_cluster",
        "nvidia-smi": "trine.formats.nvidia_smi:nvidia_smi_cluster",
        "nccl": "trine.formats.nccl_xml:nccl_xml_cluster",
        "lstopo": "trine.formats.lstopo:lstopo_cluster",
        "csv": "trine.formats.edge_list:edge_list_cluster",
        "networkx": "trine.formats.networkx_graph:node_link_cluster",
        "graphml": "trine.formats.networkx_graph:graphml_cluster",
        "astra-sim": "trine.formats.astra_network:astra_cluster",
    },
)
#: A writer takes the cluster and returns text; the InfraGraph writer also takes ``as_json`` and ``lossy``.
WRITERS: Registry[Callable[..., str]] = Registry(
    "format",
    "trine.cluster_writers",
    {
        "yaml": "trine.cluster.serialize:to_yaml",
        "infragraph": "trine.formats.infragraph.write:infragraph_text",
        "csv": "trine.formats.edge_list:edge_list_text",
        "graphml": "trine.formats.networkx_graph:graphml_text",
    },
)
#: Formats of :data:`WRITERS` -> their file name endings.
_ENDINGS = {
    "yaml": (".yaml", ".yml"),
    "infragraph": (".json", ".yaml", ".yml"),
    "csv": (".csv",),
    "graphml": (".graphml",),
}
#: The known formats, for error messages about other files.
_KNOWN = (
    "nvidia-smi topo -m, topology XML of NCCL or RCCL (NCCL_TOPO_DUMP_FILE), lstopo XML, InfraGraph, a CSV list of "
    "links, node-link JSON, GraphML, ASTRA-sim's network file, a cluster file of trine; see trine help imports"
)
#: Formats whose readers take parsed data instead of text.
_DATA = ("infragraph", "networkx", "astra-sim")
_XML_ROOT = re.compile(r"<(?![?!])\s*([\w.-]+)")
_XPU = re.compile(r"\bGPU \d+/\d+\b.*\b(S|XL\d+|XL\*|MDF)\b")
_MATRIX_ROW = re.compile(r"^(?:\W*(?:\[\dm)?GPU0\s|(?:(?!GPU\d).)*\bGPU0[\s|]+X[\s|])", re.MULTILINE)
#: Top-level YAML keys that may mean InfraGraph or node-link data.
_OTHER_KEYS = frozenset({"infrastructure", "instances", "components", "nodes", "inventory"})
_TOP_KEY = re.compile(r"^([A-Za-z_]\w*)[ ]*:", re.MULTILINE)


def read_any(
    path: str | os.PathLike[str], format: str | None = None, *, links: Mapping[str, str] | None = None,
    links_from: str | None = None, gpu: str | None = None, annotations: str | os.PathLike[str] | None = None,
    merge_switches: bool = False,
) -> Cluster:  # fmt: skip
    """Read a cluster from a file of any known format, detected from its content.

    format: one of :data:`READERS`, for a file with ambiguous content.
    links, links_from, gpu: link numbers and GPU model for files that lack them; see the readers.
    annotations, merge_switches: InfraGraph only.

    Raises SpecError: the format is unknown or does not support an option, or its reader rejects the file.
    """
    options = {"links": links, "links_from": links_from, "gpu": gpu}
    more = {"annotations": annotations, "merge_switches": merge_switches}
    with _no_collector():
        return _read(os.fspath(path), format, options, more)


def _read(file: str, format: str | None, options: dict[str, Any], more: dict[str, Any]) -> Cluster:
    kind, content = detect(file, format)
    option = next((name for name, value in more.items() if value), None)
    if kind != "infragraph" and option is not None:
        raise SpecError(f"goes with InfraGraph only, this is {kind}", file=file, field=option)
    if kind == "trine":
        option = next((name for name, value in options.items() if value), None)
        if option is not None:
            raise SpecError("a cluster file of trine says its own links and GPUs", file=file, field=option)
        return Cluster.from_yaml(file)
    return READERS.get(kind)(content, file, **options, **(more if kind == "infragraph" else {}))


@contextmanager
def _no_collector() -> Iterator[None]:
    """Pause garbage collection: readers create many small objects but no garbage, and it costs a third of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def detect(file: str, format: str | None = None) -> tuple[str, object]:
    """Return the format's name and the file's content: parsed data for YAML and JSON, else text.

    A mapping with fields like a trine cluster file's counts as one; trine's reader then reports its errors.

    Raises SpecError for an unknown format name, an unreadable file, or content that no reader recognises.
    """
    if format is not None and format not in READERS:
        raise SpecError(f"unknown format {format!r}{nearest(format, READERS.names())}", field="format")
    text = _text_of(file)
    kind = format or _by_text(text, file)
    if kind is not None and kind not in _DATA:
        return kind, text
    data = _plain_data(text, file)
    return kind or _by_keys(data, file), data


def _text_of(file: str) -> str:
    """Return a file's text. Raises SpecError, which names the file's program if its bytes are compressed or binary."""
    try:
        return read_text(file)
    except SpecError:
        foreign = foreign_file(head(file, MAX_CHARS).decode("utf-8", "replace"), CLUSTER)
        if foreign is None:
            raise
        raise SpecError(foreign, file=file) from None


def _by_text(text: str, file: str) -> str | None:
    """Return the format if the raw text shows it, None for other YAML and JSON."""
    head = text.lstrip()[:4096]
    if not head:
        raise SpecError("is empty", file=file)
    if head.startswith("<"):
        root = _XML_ROOT.search(head)
        tags = {"system": "nccl", "topology": "lstopo", "graphml": "graphml"}
        if root is None or root[1] not in tags:
            tag = "no element" if root is None else f"<{root[1][:40]}>"
            if root is not None and root[1] == "graphs":
                tag += " (NCCL's channels, NCCL_GRAPH_DUMP_FILE, which hold no links)"
            formats = "<system> (NCCL), <topology> (lstopo), <graphml>"
            raise SpecError(f"is XML with {tag} at its root; known: {formats}", file=file)
        return tags[root[1]]
    has_matrix = _MATRIX_ROW.search(text) is not None and "X" in text.replace("|", " ").split()
    if (foreign := foreign_file(text, CLUSTER)) is not None and not has_matrix:
        raise SpecError(f"{foreign}{_seen_gpus(text)}", file=file)
    first = next((line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")), "")
    if {"source", "target"} <= {cell.strip().lower() for cell in first.split(",")}:
        return "csv"
    if _XPU.search(text):
        raise SpecError(f"is a topology of xpu-smi, which trine does not read; known: {_KNOWN}", file=file)
    if has_matrix:
        return "nvidia-smi"
    refuse_environment(text, file)
    keys = set(_TOP_KEY.findall(text))
    if keys >= {"topology", "npus_count"}:
        return "astra-sim"
    if keys and not head.startswith("{") and not keys & _OTHER_KEYS:
        return "trine" if _like_cluster_file(keys) and is_like_yaml(text, file) else None
    return None


def _seen_gpus(text: str) -> str:
    """Return the option for the GPU model that a text names for all GPUs, or an empty text."""
    gpu = gpu_of_text(text)
    return "" if gpu is None else f" (its{listed_gpus(text).replace('(', '').replace(')', '')}: --gpu {gpu})"


#: Lines of block and flow YAML: a key, an item of a list, an end of a bracket, a comment, a mark.
_YAML_LINE = re.compile(r"""\s*(?:[\w.'"/-]+\s*:(?:\s|$)|-(?:\s|$)|[\[\]{}]|\#|---|\.\.\.|["'])""")
#: Minimum share of such lines in a file that may be YAML.
_MIN_YAML = 0.6


def is_like_yaml(text: str, file: str) -> bool:
    """Return whether a text may be YAML, by the file's ending or its lines, so that a YAML parser's errors help."""
    if file.lower().endswith((".yaml", ".yml", ".json")):
        return True
    lines = [line for line in text[: 1 << 18].splitlines() if line.strip()]
    return sum(_YAML_LINE.match(line) is not None for line in lines) >= _MIN_YAML * len(lines)


def _like_cluster_file(keys: Collection[str]) -> bool:
    """Return whether any top-level key is a field of cluster files, or close to one."""
    from trine.cluster.schema import ClusterFile

    fields = ["base", *ClusterFile.model_fields]
    return any(get_close_matches(key, fields, n=1) for key in keys)


def _plain_data(text: str, file: str) -> object:
    if text.lstrip().startswith("{"):
        return parse_json(text, file)
    data = parse_plain(text)
    if data is not None:
        return data
    try:
        return parse_yaml(text, file)
    except SpecError:
        keys = set(_TOP_KEY.findall(text))
        if (keys & _OTHER_KEYS or _like_cluster_file(keys)) and is_like_yaml(text, file):
            raise
        raise SpecError(f"is in no format that trine recognises; known: {_KNOWN}", file=file) from None


def _by_keys(data: object, file: str) -> str:
    if not isinstance(data, dict):
        raise SpecError(f"is in no format that trine recognises; known: {_KNOWN}", file=file)
    keys = set(data)
    if keys & {"infrastructure", "instances", "components", "inventory"}:
        return "infragraph"
    if {"topology", "npus_count"} <= keys:
        return "astra-sim"
    nodes = data.get("nodes")
    if keys & {"edges", "links"} and isinstance(nodes, list) and any(isinstance(n, dict) and "id" in n for n in nodes):
        return "networkx"
    if keys and not _like_cluster_file([str(key) for key in keys]):
        raise SpecError(f"is in no format that trine recognises; known: {_KNOWN}", file=file)
    return "trine"


def format_of(path: str | os.PathLike[str]) -> str | None:
    """Return the format of :data:`WRITERS` for a file name's ending, None if unknown."""
    suffix = Path(path).suffix.lower()
    return next((name for name, endings in _ENDINGS.items() if suffix in endings), None)


def check_ending(path: str | os.PathLike[str] | None, format: str) -> None:
    """Raise SpecError if the file name has the ending of another format."""
    endings = _ENDINGS.get(format, ())
    if path is not None and endings and format_of(path) is not None and Path(path).suffix.lower() not in endings:
        suffix = Path(path).suffix
        raise SpecError(f"ends in {suffix}, but holds {format}: end it in {' or '.join(endings)}", file=path)


def export_text(cluster: Cluster, format: str, *, as_json: bool = False, lossy: bool = False) -> str:
    """Return a cluster as file text.

    format: one of :data:`WRITERS`.
    as_json: JSON instead of YAML, InfraGraph only.
    lossy: let InfraGraph write both directions of an asymmetric link at the slower rate.

    Raises SpecError: an unknown format, links that InfraGraph cannot express, or circuits in a format other than YAML.
    """
    if format not in WRITERS:
        raise SpecError(f"unknown format {format!r}{nearest(format, WRITERS.names())}", field="format")
    return WRITERS.get(format)(cluster, **({"as_json": as_json, "lossy": lossy} if format == "infragraph" else {}))


def write_cluster(
    cluster: Cluster, path: str | os.PathLike[str], format: str, *, lossy: bool = False, source: object = None
) -> None:
    """Write a cluster to a file; for InfraGraph, the ending .json selects JSON.

    source: the cluster's original file, which error messages name instead of ``path``.

    Raises SpecError as :func:`export_text`, for another format's ending, and for YAML that trine could not read back;
    InputError if the file cannot be written.
    """
    check_ending(path, format)
    if format == "yaml":
        check_readable(cluster, source or path)
    write_text(path, export_text(cluster, format, as_json=Path(path).suffix == ".json", lossy=lossy))
