"""Rows and headers of nccl-tests and rccl-tests in a line of text, whatever a launcher or log collector added to it.

Format: the printing code of github.com/NVIDIA/nccl-tests, src/util.cu.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from trine.common.precision import NCCL_BYTES

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
#: Time stamps differ from line to line; the rest of the text before a row is the label of its process.
_STAMPS = re.compile(
    r"\[?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?:?"
    r"|\[?\b\d\d:\d\d:\d\d(?:[.,]\d+)?\b\]?|\[\s*\d+\.\d+\]"
)
_ANY_TYPE = re.compile("|".join(NCCL_BYTES))
_ROW = re.compile(r"(?<![\w.+-])(\d{1,19})\s+(\d{1,19})\s+([A-Za-z][A-Za-z0-9_]*)(?=\s+[\w.-])", re.ASCII)
#: A size with a unit before its count and type, as spreadsheets and other programs print it: ``8M``, ``8 MiB``.
_SIZE_UNIT = re.compile(
    r"(?<![\w.+-])(\d{1,9}(?:\.\d{1,3})?) ?([KMGT])(i?B)?(?=\s+(\d{1,19})\s+([A-Za-z][A-Za-z0-9_]*)\s)", re.ASCII
)
#: A row's columns between its type and its first result, which NCCL's messages may follow without a space.
_HEAD = re.compile(r"(sum|prod|min|max|avg|mulsum|none)?\s*(-1|0)?(?![\d.])")
#: A result on a separate line: NCCL's messages came between it and the size.
_TAIL = re.compile(
    r"(?P<label>\S*[>:\]|])?(?P<cells>(?:\s+\d[\d.e+]*\s+\d+\.\d+\s+\d+\.\d+\s+(?:N/A|\d+(?:\.\d+)?(?:e[+-]\d\d)?)){1,2})"
)
_FIRST_COLUMNS = r"\b(?:size|bytes)(?:\s+\(B\))?\s+(?:count|N)(?:\s+\(elements\))?\s+type\b"
#: The unit behind a column's name: ``time (us)``.
_UNIT_OF_COLUMN = re.compile(r"\([^()]{1,10}\)")
_TIME_UNIT = re.compile(r"\btime\s*\((ns|us|ms|s)\)")
#: The side of a result in a column's name: ``time_oop``, ``algbw_in_place``.
_SIDE_OF_COLUMN = re.compile(r"[_.](?:(?P<out>oop|out_?of_?place)|ip|in_?place)$")
_HEADER = re.compile(rf"{_FIRST_COLUMNS}(?P<columns>.*?)(?={_FIRST_COLUMNS}|$)")
#: A number in groups of three digits, as a whole cell: ``1,048,576``, ``1'048'576``, ``1_048_576``, ``1.048.576``.
_GROUPS = r"\d{1,3}(?:(?:,\d{3})+|(?:'\d{3})+|(?:_\d{3})+|(?:[\u00a0\u2009\u202f]\d{3})+|(?:\.\d{3}){2,})"
_GROUPED = re.compile(rf"(?<![^\s|;\">]){_GROUPS}(?=(?:\.\d+)?(?:[\s|;\"]|$))")
_GROUP_MARKS = re.compile(r"[,'_.\u00a0\u2009\u202f]")
#: A cell that proves a decimal comma (spreadsheets of many countries): one comma before one or two last digits.
_DECIMAL_COMMA = re.compile(r"(?<![^\s;|])(?:\d{1,3}(?:\.\d{3})+|\d+),\d{1,2}(?![^\s;|])", re.ASCII)
#: A number of a line with decimal commas: dots mark thousands.
_COMMA_NUMBER = re.compile(r"(?<![^\s;|])(?:\d{1,3}(?:\.\d{3})+|\d+)(?:,\d+)?(?![^\s;|])", re.ASCII)
#: Separators of the cells of a markdown table or a CSV file.
_SEPARATORS = re.compile(r'[|,;"]')
#: What only the JSON file of nccl-tests holds; a JSON log line may quote it, behind backslashes.
_JSON_RESULTS = re.compile(r'"(?:out_of_place|nccl_version|aggregated_iterations)"\s*:')
#: Fields of a JSON log line that hold the text of the program (Docker, Fluent Bit, Google Cloud, Loki, journald).
_JSON_TEXT = ("log", "message", "msg", "textPayload", "line", "MESSAGE")
_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?"
_PRINTED = re.compile(_NUMBER, re.ASCII)
_QUANTITY = re.compile(rf"({_NUMBER})(ns|us|ms|s)?", re.ASCII)
_ROOT = re.compile(r"-?\d{1,7}", re.ASCII)
_TYPE = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)
_TIME_COLUMNS = ("time", "cputime")
_WRONG_COLUMNS = ("#wrong", "wrong", "error", "res")
_LEAD_COLUMNS = ("redop", "op", "root")
PS_PER_UNIT = {"ns": 10**3, "us": 10**6, "ms": 10**9, "s": 10**12}
#: Most GPUs that one process of nccl-tests may be said to drive.
MAX_PER_PROCESS = 1024
#: Longest plausible time of a collective: 11 days.
_MAX_TIME_PS = 10**18
#: Largest plausible bandwidth in GB/s and count of wrong elements.
_MAX_NUMBER = 1e18


@dataclass(frozen=True, slots=True)
class Measure:
    """One of a row's two results. ``time_ps`` int; bandwidths in bytes/s as printed; ``wrong`` None: not checked."""

    time_ps: int
    algbw_bytes_per_s: float
    busbw_bytes_per_s: float
    wrong: float | None


@dataclass(frozen=True, slots=True)
class LogRow:
    """One size. ``root`` and ``redop`` None: the table has no such column, or it is empty."""

    size_bytes: int
    count: int
    dtype: str
    redop: str | None
    root: int | None
    out_of_place: Measure | None
    in_place: Measure | None


class ResultPlaces(NamedTuple):
    """Positions of the columns of one result. wrong: of the number of wrong elements, None without such a column."""

    time: int
    algbw: int
    busbw: int
    wrong: int | None


@dataclass(frozen=True, slots=True)
class LogLayout:
    """Names of the columns: ``lead`` between the type and the first time, ``result`` of each result.

    ``others``: columns that trine does not read.
    """

    lead: tuple[str, ...] = ("redop", "root")
    result: tuple[str, ...] = ("time", "algbw", "busbw", "#wrong")
    others: tuple[str, ...] = ()
    unit: str = "us"

    @property
    def places(self) -> ResultPlaces:
        """Places of time, algbw, busbw and the number of wrong elements in a result."""
        names = self.result
        wrong = next((i for i, name in enumerate(names) if name in _WRONG_COLUMNS), None)
        return ResultPlaces(0, names.index("algbw"), names.index("busbw"), wrong)


class RowText(NamedTuple):
    """A row's cells and the label before it."""

    label: str
    words: list[str]


def unpacked(raw: bytes, max_bytes: int) -> bytes:
    """Return at most ``max_bytes`` of the content of a gzip file; other bytes, and broken gzip files, unchanged."""
    if not raw.startswith(b"\x1f\x8b"):
        return raw
    try:
        return zlib.decompressobj(31).decompress(raw, max_bytes)
    except zlib.error:
        return raw


def decode(raw: bytes) -> str:
    """Return the text of a log in UTF-8 or UTF-16 (PowerShell writes the latter)."""
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return raw.decode("utf-16", "replace")
    for first, encoding in ((1, "utf-16-le"), (0, "utf-16-be")):
        if raw[first:2000:2].count(0) > len(raw[:2000]) // 4:
            return raw.decode(encoding, "replace")
    return raw.decode("utf-8-sig", "replace")


def printed_text(text: str) -> str:
    """Return the JSON file of nccl-tests (``--output_file``) as the table that it prints; other texts unchanged.

    Raises ValueError: such a file is cut or damaged.
    """
    if not text.lstrip().startswith("{") or not _JSON_RESULTS.search(text):
        return text
    try:
        run = json.loads(text)
        config = run.get("config", {})
        lines = [f"# Collective test starting: {os.path.basename(run['args'][0])}"] if run.get("args") else []
        lines += [each for each in run.get("env", []) if each.startswith("NCCL_")]
        lines += [f"nccl-library={run['nccl_version']}"] if "nccl_version" in run else []
        if "nthreads" in config and "ngpus" in config:
            lines.append(f"nThread {config['nthreads']} nGpus {config['ngpus']} graph: {config.get('graph', 0)}")
        if config.get("blocking_collectives") in (True, "true"):
            lines.append("# Blocking Enabled")
        lines += _device_lines(config)
        lines.append("# size count type redop root time algbw busbw #wrong time algbw busbw #wrong")
        lines += [_printed_row(row) for row in run["results"]]
        return "\n".join(lines)
    except json.JSONDecodeError as error:
        raise ValueError(f"is no complete JSON: {error.msg} (line {error.lineno})") from None
    except KeyError as error:
        raise ValueError(f"lacks {error.args[0]!r}") from None
    except (ValueError, OverflowError, RecursionError, TypeError, AttributeError, IndexError):
        raise ValueError("has a value of the wrong type") from None


def _device_lines(config: Mapping[str, Any]) -> list[str]:
    """Return the device lines of a JSON file, which names the first GPU of each process only."""
    per_process = max(1, min(MAX_PER_PROCESS, int(config.get("nthreads", 1)) * int(config.get("ngpus", 1))))
    gpus = config.get("devices", [])
    named = {gpu["rank"] for gpu in gpus}
    lines = []
    for gpu in gpus:
        for i in range(per_process):
            if i and gpu["rank"] + i in named:
                break
            lines.append(
                f"# Rank {gpu['rank'] + i} Group {gpu['group']} Pid {gpu['pid']} on {gpu['hostname']} "
                f"device {gpu['device'] + i} [{gpu.get('device_hex')}] {gpu['device_info']}"
            )
    return lines


def _printed_row(row: Mapping[str, Any]) -> str:
    """Return one result of nccl-tests' JSON file as the row that it prints."""
    cells = [row["size"], row["count"], row["type"], row.get("redop") or "none", row.get("root", -1)]
    for side in (row.get("out_of_place"), row.get("in_place")):
        time = side and side.get("time", side.get("cpu_time"))
        cells += [time, side["alg_bw"], side["bus_bw"], side.get("nwrong")] if side else [None] * 4
    texts = []
    for cell in cells:
        texts.append("N/A" if cell is None else str(cell).strip())
    return " ".join(texts)


def plain_text(line: str) -> str:
    """Return the program's own text of a log line: without colours, out of a JSON object."""
    line = _ANSI.sub("", line).replace("\r", "")
    if not line.lstrip().startswith("{"):
        return line
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return line
    if not isinstance(data, dict):
        return line
    text = next((data[key] for key in _JSON_TEXT if isinstance(data.get(key), str)), line)
    return _ANSI.sub("", text).strip("\r\n")


def label_of(prefix: str) -> str:
    """Return the label in the text before a row or header, without time stamps and blanks."""
    return "".join(_STAMPS.sub("", prefix).split()).strip("#|>\"'")


def find_rows(text: str) -> list[RowText]:
    """Return the rows of a line: one, or several where tables stand side by side."""
    if not (_ANY_TYPE.search(text) or text.lstrip()[:1].isdigit()):
        return []
    text = without_group_marks(text)
    for separated in (text, _SEPARATORS.sub(" ", text)):
        candidate = _SIZE_UNIT.sub(_size_in_bytes, separated)
        found = _ROW.finditer(candidate)
        matches = [row for row in found if row[3] in NCCL_BYTES or not candidate[: row.start()].strip()]
        if matches:
            ends = [*(match.start() for match in matches[1:]), len(candidate)]
            before = candidate[: matches[0].start()]
            label = before.strip() if before.rstrip().endswith((">:", "]", ":")) else "|"  # each flush may repeat it
            rests = (candidate[match.end() : end] for match, end in zip(matches, ends, strict=True))
            cells = [rest.replace(label, " ").replace("|", " ").split() for rest in rests]
            return [RowText(label_of(before), [*m.groups(), *more]) for m, more in zip(matches, cells, strict=True)]
    return []


def _size_in_bytes(match: re.Match[str]) -> str:
    """Return a size with a unit in bytes.

    Units are powers of 1024, as nccl-tests reads them, unless the count of elements only fits powers of 1000.
    """
    text, unit, suffix, count, dtype = match.groups()
    if dtype not in NCCL_BYTES:
        return match[0]
    power = "KMGT".index(unit) + 1
    size = round(float(text) * 1024**power)
    decimal = round(float(text) * 1000**power)
    block = int(count) * NCCL_BYTES[dtype]
    if suffix == "B" and block and size % block and decimal % block == 0:
        size = decimal
    return str(size)


def head_of(words: Sequence[str]) -> list[str]:
    """Return size, count, type, redop and root of a row whose result is missing."""
    match = _HEAD.match(" ".join(words[3:5]))
    groups = match.groups() if match else ()
    return [*words[:3], *(cell for cell in groups if cell)]


def find_tail(text: str) -> RowText | None:
    """Return the results of a line that holds nothing before them but a label; None if it is another line."""
    match = _TAIL.match(text)
    return None if match is None else RowText(label_of(match["label"] or ""), match["cells"].split())


def find_header(text: str) -> tuple[str, LogLayout] | None:
    """Return label and columns of a ``# size count type ...`` line; None if it is another line."""
    if "type" not in text:
        return None
    match = _HEADER.search(text) or _HEADER.search(_SEPARATORS.sub(" ", text))
    words = [] if match is None else _UNIT_OF_COLUMN.sub("", match["columns"]).split()
    sides = [side for word in words if (side := _SIDE_OF_COLUMN.search(word))]
    if sides and not sides[0]["out"]:
        return None  # in-place results come first, unlike in nccl-tests
    words = [_SIDE_OF_COLUMN.sub("", word) for word in words]
    times = [i for i, word in enumerate(words) if word in _TIME_COLUMNS]
    if match is None or not times:
        return None
    end = times[1] if len(times) > 1 else len(words)
    lead, result, rest = (
        words[: times[0]],
        words[times[0] : end],
        words[end + end - times[0] :] if len(times) > 1 else [],
    )
    if not {"algbw", "busbw"} <= set(result):
        return None
    known = (*_LEAD_COLUMNS, *_TIME_COLUMNS, *_WRONG_COLUMNS, "algbw", "busbw")
    others = tuple(dict.fromkeys(word for word in (*lead, *result, *rest) if word not in known))
    unit = _TIME_UNIT.search(match["columns"])
    layout = LogLayout(tuple(lead), tuple(result), others, unit[1] if unit else "us")
    return label_of(match.string[: match.start()]), layout


def parse_row(words: Sequence[str], layout: LogLayout | None) -> LogRow | None:
    """Return a row of the table; None if the line is cut before its first result is complete.

    ``layout`` None: there was no header, so the columns follow from their number: 4 for each result.
    """
    if len(words) < 4:
        return None
    redop, root, cells = _lead_of(words[3:], layout)
    layout = layout or LogLayout()
    width = len(layout.result)
    if len(cells) < width:
        return None
    try:
        first = _measure(cells[:width], layout)
        second = _measure(cells[width : 2 * width], layout) if len(cells) >= 2 * width else None
    except ValueError:
        return None
    if first is None and second is None:
        return None
    return LogRow(
        size_bytes=int(words[0]), count=int(words[1]), dtype=words[2], redop=redop, root=root,
        out_of_place=first, in_place=second,
    )  # fmt: skip


def count_surplus(words: Sequence[str], layout: LogLayout | None) -> int:
    """Return the number of numeric cells after the results that the layout describes."""
    cells = _lead_of(words[3:], layout).cells
    width = len((layout or LogLayout()).result)
    rest = cells[2 * width :] if len(cells) >= 2 * width else cells[width:]
    numbers = [cell for cell in rest if _QUANTITY.fullmatch(cell) or cell == "N/A"]
    return len(numbers) if len(numbers) == len(rest) else 0


class LineLead(NamedTuple):
    """Start of a line of results, before the first time.

    redop, root: as printed, None if the line has none. cells: the remaining ones, from the first time on.
    """

    redop: str | None
    root: int | None
    cells: list[str]


def _lead_of(cells: Sequence[str], layout: LogLayout | None) -> LineLead:
    """Split a line after its size into the leading columns and the cells of results."""
    redop, root, cells = None, None, list(cells)
    if layout is None:
        if cells and _TYPE.fullmatch(cells[0]) and cells[0] != "N":
            redop, cells = cells[0], cells[1:]
        if (len(cells) % 4 == 1 or cells[:1] == ["-1"]) and cells and _ROOT.fullmatch(cells[0]):
            root, cells = int(cells[0]), cells[1:]
        return LineLead(redop, root, cells)
    for name in layout.lead:
        if not cells:
            break
        if name in ("redop", "op"):
            if _TYPE.fullmatch(cells[0]):
                redop, cells = cells[0], cells[1:]
        elif name == "root":
            if _ROOT.fullmatch(cells[0]):
                root, cells = int(cells[0]), cells[1:]
        else:
            cells = cells[1:]
    if (
        "redop" not in layout.lead
        and "op" not in layout.lead
        and cells
        and _TYPE.fullmatch(cells[0])
        and cells[0] != "N"
    ):
        redop, cells = cells[0], cells[1:]  # a header typed by hand may lack the column
    return LineLead(redop, root, cells)


def _measure(words: Sequence[str], layout: LogLayout) -> Measure | None:
    """Return a result; None for ``N/A``. Raises ValueError for other words."""
    time, alg, bus, wrong = layout.places
    if all(words[place].upper() in ("N/A", "NA", "-") for place in (time, alg, bus)):
        return None
    time_ps, algbw, busbw = time_of(words[time], layout.unit), number_of(words[alg]), number_of(words[bus])
    if time_ps is None or algbw is None or busbw is None:
        raise ValueError("not a result")
    return Measure(time_ps, algbw * 1e9, busbw * 1e9, None if wrong is None else number_of(words[wrong]))


def without_group_marks(text: str) -> str:
    """Return a line whose numbers have no separators of thousands, and decimal points."""
    if _DECIMAL_COMMA.search(text):
        return _COMMA_NUMBER.sub(lambda match: match[0].replace(".", "").replace(",", "."), text)
    return _GROUPED.sub(lambda match: _GROUP_MARKS.sub("", match[0]), text)


def time_of(word: str, unit: str = "us") -> int | None:
    """Return ``1234.5``, ``1.0e+06``, ``12.3ms`` as picoseconds; None if it is no plausible time."""
    match = _QUANTITY.fullmatch(word)
    if match is None:
        return None
    time_ps = float(match[1]) * PS_PER_UNIT[match[2] or unit]
    return round(time_ps) if 0.5 < time_ps < _MAX_TIME_PS else None


def number_of(word: str) -> float | None:
    """Return a bandwidth or a count as C prints it; None if it is no plausible one."""
    match = _PRINTED.fullmatch(word)
    number = -1.0 if match is None else float(word)
    return number if 0 <= number <= _MAX_NUMBER else None
