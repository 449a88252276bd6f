"""Logs of nccl-tests and rccl-tests, as people paste them.

Read: both print forms (with and without the redop and root columns, ``error`` or ``#wrong``), in-place and
out-of-place, ``N/A``, device and version lines, labels of mpirun and srun, colours, time stamps, NCCL's own messages in
between, cut logs, several runs in one file. Format: the printing code of github.com/NVIDIA/nccl-tests, src/util.cu.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from trine.errors import InputError, nearest
from trine.inputs import open_input
from trine.studies import nccl_tests

#: What comes before a line: colours, mpirun's and srun's labels, time stamps of container logs, quotes.
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_PREFIXES = (
    re.compile(r"\[\d+,\d+\]\s*<std(?:out|err)>:\s?"),
    re.compile(r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?:?\s"),
    re.compile(r"\[\d\d:\d\d:\d\d(?:\.\d+)?\]\s"),
    re.compile(r"\s*\d{1,5}:\s(?=\s*(?:#|\d))"),
    re.compile(r"(?:>|\|)\s?"),
)
_MAX_PREFIXES = 4
_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?"
_PRINTED = re.compile(_NUMBER, re.ASCII)
_QUANTITY = re.compile(rf"({_NUMBER})(ns|us|ms|s)?", re.ASCII)
_WHOLE = re.compile(r"\d{1,19}", re.ASCII)
_ROOT = re.compile(r"-?\d{1,7}", re.ASCII)
_TYPE = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)
_TIME_COLUMNS = ("time", "cputime")
PS_PER_UNIT = {"ns": 10**3, "us": 10**6, "ms": 10**9, "s": 10**12}
#: A time above it (11 days) is no time of a collective.
_MAX_TIME_PS = 10**18
#: What is above it is no bandwidth in GB/s, and no count of wrong elements.
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


@dataclass(frozen=True, slots=True)
class LogLayout:
    """Columns after size, count and type. ``extra``: columns after each result (statistics of iterations)."""

    has_root: bool
    extra: int = 0
    unit: str = "us"


def clean(line: str) -> str:
    """The line without what terminals, launchers and log collectors put before it."""
    line = _ANSI.sub("", line).replace("\r", "")
    for _ in range(_MAX_PREFIXES):
        for prefix in _PREFIXES:
            if match := prefix.match(line):
                line = line[match.end() :]
                break
        else:
            break
    return line


def header(line: str) -> LogLayout | None:
    """The columns that a ``# size count type ...`` line announces, None if it is another line."""
    words = line.lstrip("# \t").split()
    if words[:3] != ["size", "count", "type"] or not any(word in _TIME_COLUMNS for word in words):
        return None
    first = next(i for i, word in enumerate(words) if word in _TIME_COLUMNS)
    second = next((i for i, word in enumerate(words) if word in _TIME_COLUMNS and i > first), len(words))
    return LogLayout(has_root="root" in words[:first], extra=second - first - 4)


def looks_like_row(words: Sequence[str]) -> bool:
    """Size, count and data type: what every row begins with."""
    return (
        len(words) >= 4
        and _WHOLE.fullmatch(words[0]) is not None
        and _WHOLE.fullmatch(words[1]) is not None
        and _TYPE.fullmatch(words[2]) is not None
    )


def row(words: Sequence[str], layout: LogLayout | None) -> LogRow | None:
    """A row of the table; None if the line is cut before its first result is complete.

    ``layout`` None: there was no header, so the columns follow from their number: 4 for each result.
    """
    redop, rest = (words[3], list(words[4:])) if _TYPE.fullmatch(words[3]) and words[3] != "N" else (None, words[3:])
    layout = layout or LogLayout(has_root=len(rest) % 4 == 1 or rest[:1] == ["-1"])
    root = None
    if layout.has_root and rest and _ROOT.fullmatch(rest[0]):
        root, rest = int(rest[0]), rest[1:]
    width = 4 + max(0, layout.extra)
    if len(rest) < 4:
        return None
    try:
        first = _measure(rest[:4], layout.unit)
        second = _measure(rest[width : width + 4], layout.unit) if len(rest) >= width + 4 else None
    except ValueError:
        return None
    if first is None and second is None:
        return None
    return LogRow(
        size_bytes=int(words[0]), count=int(words[1]), dtype=words[2], redop=redop, root=root,
        out_of_place=first, in_place=second,
    )  # fmt: skip


def _measure(words: Sequence[str], unit: str) -> Measure | None:
    """A result; None where the test has none (``N/A``). Raises ValueError if it is neither."""
    if all(word.upper() in ("N/A", "NA", "-") for word in words[:3]):
        return None
    time_ps, algbw, busbw = time_of(words[0], unit), _number(words[1]), _number(words[2])
    if time_ps is None or algbw is None or busbw is None:
        raise ValueError("not a result")
    return Measure(time_ps, algbw * 1e9, busbw * 1e9, _number(words[3]))


def time_of(word: str, unit: str = "us") -> int | None:
    """``1234.5``, ``1.0e+06``, ``12.3ms`` as picoseconds; None for anything else, or what cannot be a time."""
    match = _QUANTITY.fullmatch(word)
    if match is None:
        return None
    time_ps = float(match[1]) * PS_PER_UNIT[match[2] or unit]
    return round(time_ps) if 0 < time_ps < _MAX_TIME_PS else None


def _number(word: str) -> float | None:
    """A bandwidth or a count as C prints it; None for anything else, or what cannot be one."""
    match = _PRINTED.fullmatch(word)
    number = -1.0 if match is None else float(word)
    return number if 0 <= number <= _MAX_NUMBER else None


__all__ = ["LogLayout", "LogRow", "Measure", "NcclLog", "op_named", "read_log", "read_runs"]

MAX_BYTES = 64 << 20
MAX_LINE = 4096
MAX_ROWS = 100_000
#: The collective of each test program.
OPS = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
    "broadcast": "broadcast", "reduce": "reduce", "alltoall": "all_to_all", "alltoallv": "all_to_all_v",
    "gather": "gather", "scatter": "scatter", "sendrecv": "send_recv",
}  # fmt: skip
_PROGRAM = re.compile(r"\b([a-z_]+?)_perf(?:_mpi)?\b")
_RANK = re.compile(r"Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?Pid\s+(\d+)\s+on\s+(\S+)\s+device\s+(\d+)\s+\[[^\]]*\]\s*(.*)")
_VERSIONS = (
    re.compile(r"\b(NCCL|RCCL) version\s*:?\s*v?(\d+\.\d+(?:\.\d+)?)"),
    re.compile(r"\b(nccl|rccl)-library=(\d{4,6})\b"),
)
_ENVIRONMENT = re.compile(r"\b(?:NCCL|RCCL)_([A-Z_]+)(?:=| set by environment to )([\w.:,^-]+)")
_COUNTS = re.compile(r"nThread\s+(\d+)\s+nGpus\s+(\d+)\b")
_GRAPH = re.compile(r"\bgraph:\s*(\d+)")
_AVERAGE = re.compile(r"Avg bus bandwidth\s*:\s*(\S+)")
_UNIT = re.compile(r"\((ns|us|ms|s)\)\s+\(GB/s\)")
#: What of the environment changes the prediction.
SETTINGS = ("ALGO", "PROTO", "NVLS_ENABLE", "MIN_NCHANNELS", "MAX_NCHANNELS")


@dataclass(frozen=True, kw_only=True)
class NcclLog:
    """One run of one test. What the log does not tell is None or empty; ``*_from`` says where a value comes from.

    ``launch``: ``process-per-gpu``, ``single-process`` or ``graph``. ``environment``: NCCL_* settings seen, without the
    prefix, those of :data:`SETTINGS` only. ``notes``: what was left out of the log, and why.
    """

    path: str
    rows: tuple[LogRow, ...]
    op: str | None = None
    op_from: str = ""
    num_ranks: int | None = None
    ranks_from: str = ""
    hosts: tuple[str, ...] = ()
    gpu_names: tuple[str, ...] = ()
    launch: str | None = None
    library: str | None = None
    version: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    average_busbw_bytes_per_s: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def has_wrong_results(self) -> bool:
        """Whether the test itself found wrong elements."""
        return _counts_errors(self.rows)

    @property
    def bus_ratio(self) -> float | None:
        """busbw / algbw where rounding matters least; None below 1 GB/s."""
        return _ratio(self.rows)


@dataclass
class _Draft:
    """A run while its lines are read."""

    layout: LogLayout | None = None
    unit: str = "us"
    program: str | None = None
    ranks: dict[tuple[int, int], tuple[str, str, str]] = field(default_factory=dict)
    threads_gpus: tuple[int, int] | None = None
    graph: int = 0
    library: str | None = None
    version: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    average: float | None = None
    rows: list[LogRow] = field(default_factory=list)
    cut: list[int] = field(default_factory=list)


def read_log(path: str | os.PathLike[str], op: str | None = None) -> NcclLog:
    """The run in a log; ``op`` says which collective it is, or picks it where the file holds several.

    Raises
    ------
    InputError: no rows, several runs to choose from, or a collective that neither the log nor ``op`` names.
    """
    runs = read_runs(path)
    if op is not None:
        wanted = op_named(op)
        named = [run for run in runs if run.op == wanted]
        runs = named or [replace(run, op=wanted, op_from="as given") for run in runs if _may_be(run)]
        if not runs:
            raise InputError(f"the log is of {_ops_of(read_runs(path))}, not of {wanted}", file=path)
    if len(runs) > 1:
        raise InputError(f"holds {len(runs)} runs ({_ops_of(runs)}); give --op, or a file with one of them", file=path)
    if runs[0].op is None:
        raise InputError(
            "does not say which collective it is, and the columns fit more than one: give --op all_gather, "
            "--op all_to_all, ...",
            file=path,
        )
    return runs[0]


def read_runs(path: str | os.PathLike[str]) -> list[NcclLog]:
    """All runs in a log, in order.

    Raises
    ------
    InputError: a file that is too large or has no row of results.
    """
    drafts, started = [_Draft()], False
    with (
        open_input(path, MAX_BYTES, InputError) as raw,
        io.TextIOWrapper(raw, encoding="utf-8", errors="replace", newline="\n") as file,
    ):
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE), ""), start=1):
            text = nccl_tests.clean(line.rstrip("\n"))
            if started and _begins_run(text, drafts[-1]):
                drafts.append(_following(drafts[-1]))
                started = False
            _read_line(text, number, drafts[-1])
            started = started or bool(drafts[-1].rows)
            if len(drafts[-1].rows) > MAX_ROWS:
                raise InputError(f"more than {MAX_ROWS} rows", file=path)
    runs = [_finished(draft, str(path)) for draft in drafts if draft.rows]
    if not runs:
        raise InputError(
            "no row of nccl-tests or rccl-tests found; a row is size, count, type[, redop[, root]], then time, algbw, "
            "busbw and #wrong once or twice, such as '1048576 262144 float sum -1 26.62 39.39 68.93 0 ...'",
            file=path,
        )
    return runs


def op_named(op: str) -> str:
    """The collective of a name as nccl-tests or as we write it: ``alltoall``, ``all_reduce_perf``, ``all_to_all``.

    Raises
    ------
    InputError: unknown; names the nearest.
    """
    plain = op.lower().replace("-", "_").removesuffix("_perf")
    squeezed = {name.replace("_", ""): value for known, value in OPS.items() for name in (known, value)}
    if plain.replace("_", "") not in squeezed:
        raise InputError(f"unknown collective {op!r}{nearest(plain, set(OPS.values()))}", field="--op")
    return squeezed[plain.replace("_", "")]


def _begins_run(text: str, draft: _Draft) -> bool:
    """Whether a line can only belong to a run after the one whose rows were just read."""
    if "Collective test starting" in text or _COUNTS.search(text):
        return True
    if nccl_tests.header(text) is not None:
        return True
    match = _PROGRAM.search(text)
    return match is not None and match[1] in OPS and "concluded" not in text and match[1] != draft.program


def _following(before: _Draft) -> _Draft:
    """The next run of the same file: the library is the same until it says otherwise."""
    return _Draft(library=before.library, version=before.version, environment=dict(before.environment))


def _read_line(text: str, number: int, draft: _Draft) -> None:
    words = text.split()
    if nccl_tests.looks_like_row(words):
        layout = draft.layout and replace(draft.layout, unit=draft.unit)
        if (row := nccl_tests.row(words, layout)) is not None:
            draft.rows.append(row)
        else:
            draft.cut.append(number)
        return
    if (layout := nccl_tests.header(text)) is not None:
        draft.layout = layout
    elif match := _UNIT.search(text):
        draft.unit = match[1]
    else:
        _read_fact(text, draft)


def _read_fact(text: str, draft: _Draft) -> None:
    """Lines that say what ran where."""
    if match := _RANK.search(text):
        rank, group, pid, host, _, name = match.groups()
        draft.ranks[int(group or 0), int(rank)] = (pid, host, name.strip())
        return
    if match := _COUNTS.search(text):
        draft.threads_gpus = int(match[1]), int(match[2])
    if match := _GRAPH.search(text):
        draft.graph = int(match[1])
    if (match := _PROGRAM.search(text)) and match[1] in OPS:
        draft.program = match[1]
    if match := _AVERAGE.search(text):
        average = _number(match[1])
        draft.average = None if average is None else average * 1e9
    for pattern in _VERSIONS:
        if match := pattern.search(text):
            draft.library, draft.version = match[1].lower(), _version(match[2])
    for name, value in _ENVIRONMENT.findall(text):
        if name in SETTINGS:
            draft.environment[name] = value.rstrip(".,:")


def _version(text: str) -> str:
    """``22707`` is 2.27.7, as the library counts its versions."""
    if "." in text:
        return text
    code = int(text)
    return f"{code // 10000}.{code // 100 % 100}.{code % 100}" if code >= 20900 else text


def _finished(draft: _Draft, path: str) -> NcclLog:
    ranks = [value for (group, _), value in sorted(draft.ranks.items()) if group == 0]
    op, op_from = (OPS[draft.program], "the name of the program") if draft.program else _op_of(draft.rows)
    num_ranks, ranks_from = (len(ranks), "the device lines") if ranks else _ranks_of(draft.rows, op)
    return NcclLog(
        path=path,
        rows=tuple(draft.rows),
        op=op,
        op_from=op_from,
        num_ranks=num_ranks,
        ranks_from=ranks_from,
        hosts=tuple(dict.fromkeys(host for _, host, _ in ranks)),
        gpu_names=tuple(dict.fromkeys(name for _, _, name in ranks if name)),
        launch=_launch(draft, ranks),
        library=draft.library,
        version=draft.version,
        environment=draft.environment,
        average_busbw_bytes_per_s=draft.average,
        notes=_notes(draft),
    )


def _notes(draft: _Draft) -> tuple[str, ...]:
    notes = [f"line {number} is cut and was left out" for number in islice(draft.cut, 5)]
    if len(draft.cut) > 5:
        notes.append(f"{len(draft.cut) - 5} more cut lines were left out")
    wrong = [row.size_bytes for row in draft.rows if any(m and m.wrong for m in (row.out_of_place, row.in_place))]
    if wrong and _counts_errors(draft.rows):
        notes.append(f"the test found wrong results, first at {wrong[0]} bytes: times of a broken run say little")
    return tuple(notes)


def _counts_errors(rows: Sequence[LogRow]) -> bool:
    """``#wrong`` counts elements; the older ``error`` is a deviation, and small ones are rounding."""
    found = [m.wrong for row in rows for m in (row.out_of_place, row.in_place) if m and m.wrong]
    return any(value >= 1 for value in found)


def _launch(draft: _Draft, ranks: list[tuple[str, str, str]]) -> str | None:
    if draft.graph:
        return "graph"
    if ranks:
        processes = {(host, pid) for pid, host, _ in ranks}
        return "process-per-gpu" if len(processes) == len(ranks) else "single-process"
    if draft.threads_gpus is None:
        return None
    return "process-per-gpu" if draft.threads_gpus == (1, 1) else "single-process"


def _ratio(rows: Sequence[LogRow]) -> float | None:
    """busbw / algbw of the row where rounding matters least."""
    measures = [m for row in rows for m in (row.out_of_place, row.in_place) if m and m.algbw_bytes_per_s]
    if not measures:
        return None
    best = max(measures, key=lambda m: m.algbw_bytes_per_s)
    return best.busbw_bytes_per_s / best.algbw_bytes_per_s if best.algbw_bytes_per_s >= 1e9 else None


def _op_of(rows: Sequence[LogRow]) -> tuple[str | None, str]:
    """The collective that the columns and busbw / algbw allow, None if there are several."""
    ratio, row = _ratio(rows), rows[0]
    if ratio is None:
        return None, ""
    adds = row.redop not in (None, "none")
    rooted = row.root is not None and row.root >= 0
    one = abs(ratio - 1) < 0.005
    if ratio > 1.005 or (adds and one and not rooted):
        return "all_reduce", "the columns and busbw / algbw"
    if adds:
        return ("reduce" if one else "reduce_scatter"), "the columns and busbw / algbw"
    return ("broadcast" if rooted else "send_recv", "the columns and busbw / algbw") if one else (None, "")


def _ranks_of(rows: Sequence[LogRow], op: str | None) -> tuple[int | None, str]:
    """busbw / algbw is 2(n-1)/n for an all-reduce and (n-1)/n for those that move each block once."""
    ratio = _ratio(rows)
    if ratio is None or op in (None, "send_recv", "broadcast", "reduce"):
        return None, ""
    share = ratio / 2 if op == "all_reduce" else ratio
    if not 0 < share < 0.9995:
        return None, ""
    return round(1 / (1 - share)), "busbw / algbw"


def _may_be(run: NcclLog) -> bool:
    """Whether a run whose program is not named can be of ``op``: a guess of ours yields to the user's word."""
    return run.op is None or run.op_from != "the name of the program"


def _ops_of(runs: Sequence[NcclLog]) -> str:
    return ", ".join(dict.fromkeys(run.op or "an unnamed collective" for run in runs))
