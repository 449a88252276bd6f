"""Reader for logs of nccl-tests and rccl-tests, as people paste them.

It accepts both print forms (with and without the redop and root columns, ``error`` or ``#wrong``), in-place and
out-of-place, ``N/A``, device and version lines, labels of any launcher or log collector, colours, time stamps, JSON log
lines, markdown tables, CSV, UTF-16, interleaved NCCL messages, cut logs, and several runs in one file.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple

from trine.check import nccl_facts as facts
from trine.check.guessed_op import GuessedOp, guess_op
from trine.check.nccl_rows import (
    LogLayout,
    LogRow,
    RowText,
    count_surplus,
    decode,
    find_header,
    find_rows,
    find_tail,
    head_of,
    label_of,
    number_of,
    parse_row,
    plain_text,
    printed_text,
    unpacked,
)
from trine.check.rate_units import RateUnits, read_units
from trine.check.short_tables import ShortTable, read_short_table
from trine.check.unknown_header import unknown_header
from trine.collectives.sizes import format_size
from trine.common.inputs import head, open_input
from trine.common.known_files import LOG, NEEDS
from trine.common.recognise import MAX_CHARS, foreign_file, foreign_table
from trine.errors import InputError, nearest

__all__ = ["LogRow", "NcclLog", "op_named", "read_log", "read_runs"]

MAX_BYTES = 64 << 20
MAX_LINE = 4096
MAX_ROWS = 100_000
#: Above this number of labels, the text before the rows is not a label.
MAX_LABELS = 256
#: The collective of each test program.
OPS = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
    "broadcast": "broadcast", "reduce": "reduce", "alltoall": "all_to_all",
    "gather": "gather", "scatter": "scatter", "sendrecv": "send_recv",
}  # fmt: skip
REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")
_PROGRAM = re.compile(r"\b([a-z_]+?)_perf(?:_mpi)?\b")
#: The test that a log names, of this list or another.
_NAMED = re.compile(r"Collective test (?:starting|concluded):\s*(?:\S{0,200}/)?([a-z0-9_]{1,40}?)_perf")
_RANK = re.compile(
    r"Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?(?:Pid\s+(\d+)\s+)?on\s+(\S+)\s+device\s+(\d+\s+\[[^\]]*\])\s*(.*)"
)
_VERSIONS = (
    re.compile(r"\b(NCCL|RCCL) version\s*:?\s*v?(\d+\.\d+(?:\.\d+)?)"),
    re.compile(r"\b(nccl|rccl)-library=(\d{4,6})\b"),
)
_ENVIRONMENT = re.compile(r"\b(?:NCCL|RCCL)_([A-Z0-9_]+)(?:=| set by environment to )([\w.:,^-]+)")
_COUNTS = re.compile(r"nThread\s+(\d+)\s+nGpus\s+(\d+)\b")
_ITERATIONS = re.compile(r"\b(warmup|agg) iters:\s*(\d{1,9})\b")
_SIZES = re.compile(r"maxBytes\s+(\d{1,19})\s+step:\s*(\d{1,19})\((factor|bytes)\)")
_LESS_MEMORY = re.compile(r"Reducing maxBytes to (\d{1,19})")
_COMMUNICATOR = re.compile(r"\bnranks (\d{1,7})\b.*(?:Init|cudaDev)", re.IGNORECASE)
_NETWORK = re.compile(r"Using network (\S.{0,40}?)\s*$|\bvia NET/(\w+)|\bNET/(IB|Socket) : Using\b")
_GRAPH = re.compile(r"\bgraph:\s*(\d+)")
_AVERAGE = re.compile(r"Avg bus bandwidth\s*:\s*(\S+)")
_UNIT = re.compile(r"\((ns|us|ms|s)\)\s+\([KMGT]i?(?:B|b|bit)(?:/s|ps)\)")
#: Settings that change the prediction, and settings that are evidence for a cause.
SETTINGS = ("ALGO", "PROTO", "NVLS_ENABLE", "NVLS_CHUNKSIZE", "MIN_NCHANNELS", "MAX_NCHANNELS")
EVIDENCE = ("IB_DISABLE", "P2P_DISABLE", "SHM_DISABLE")
#: Lines that nccl-tests prints after its last size, and when it fails.
_CLOSING = re.compile(r"Out of bounds values\s*:|Avg bus bandwidth\s*:|Collective test concluded")
_FAILURE = re.compile(r"\bTest (?:(?:NCCL|CUDA) )?failure\b.*|\bTest timeout\b.*")
GIVEN = "as given"


@dataclass(frozen=True, kw_only=True)
class NcclLog:
    """One run of one test. Values missing from the log are None or empty; ``*_from`` names the source of a value.

    ``launch``: ``process-per-gpu``, ``single-process`` or ``graph``. ``environment``: NCCL_* settings seen, without the
    prefix, limited to :data:`SETTINGS` and :data:`EVIDENCE`. ``network``: NCCL's name (``IB``, ``Socket``).
    ``fewest_ranks``, ``most_ranks``: range of an uncertain count; most None: no upper bound. ``num_hosts``: None if
    unknown. ``num_alone``: processes that report rank 0. ``incomplete``: how the log ends before its last size.
    ``fault``: why its numbers contradict each other, or are no times of the collective. ``op_others``: other
    collectives that fit, if ``op`` is a guess. ``in_process``: nThread x nGpus, the ranks of one process.
    ``other_program``: the test that the log names, if trine does not model it. ``warmups``: calls before the measured
    ones; None if unknown. ``aggregated``: calls that nccl-tests launches as one group (-m).
    ``is_old_form``: a table without a root column, of nccl-tests before 2.12.
    ``first_line``: of the first row, from 1; 0 if unknown.
    ``notes``: parts of the log left out, guesses, and their reasons.
    """

    path: str
    rows: tuple[LogRow, ...]
    op: str | None = None
    op_from: str = ""
    num_ranks: int | None = None
    ranks_from: str = ""
    fewest_ranks: int | None = None
    most_ranks: int | None = None
    num_hosts: int | None = None
    num_alone: int = 1
    hosts: tuple[str, ...] = ()
    gpu_names: tuple[str, ...] = ()
    launch: str | None = None
    library: str | None = None
    version: str | None = None
    network: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    average_busbw_bytes_per_s: float | None = None
    incomplete: str | None = None
    fault: str | None = None
    op_others: tuple[str, ...] = ()
    in_process: int = 1
    other_program: str | None = None
    warmups: int | None = None
    aggregated: int = 1
    is_old_form: bool = False
    first_line: int = 0
    notes: tuple[str, ...] = ()

    @property
    def has_wrong_results(self) -> bool:
        """Whether the test itself found wrong elements."""
        return _counts_errors(self.rows)

    @property
    def unsound(self) -> str | None:
        """Why the times say little about the machine, or None."""
        if self.has_wrong_results:
            return "the test found wrong results, so its times say little"
        return self.fault

    @property
    def bus_ratio(self) -> float | None:
        """busbw / algbw at the size with the least rounding; None below 1 GB/s."""
        return facts.bus_ratio(self.rows)


@dataclass
class _Draft:
    """A run whose lines are still being read."""

    layout: LogLayout | None = None
    unit: str = "us"
    states_unit: bool = False
    program: str | None = None
    other_program: str | None = None
    warmups: int | None = None
    aggregated: int = 1
    ranks: dict[tuple[int, int], tuple[str, str, str]] = field(default_factory=dict)
    devices: dict[tuple[int, int], tuple[str, str]] = field(default_factory=dict)
    is_blocking: bool = False
    root_processes: set[tuple[str, str]] = field(default_factory=set)
    threads_gpus: tuple[int, int] | None = None
    last_bytes: int | None = None
    step: tuple[int, bool] = (0, True)
    graph: int = 0
    library: str | None = None
    version: str | None = None
    network: str | None = None
    communicator: int | None = None
    environment: dict[str, str] = field(default_factory=dict)
    average: float | None = None
    rows: list[LogRow] = field(default_factory=list)
    cut: list[int] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    surplus: Counter[int] = field(default_factory=Counter)
    strange_header: str | None = None
    is_closed: bool = False
    failure: str | None = None
    runs: int = 1
    first_line: int = 0

    def following(self) -> _Draft:
        """Return a draft of the next run in the file; it inherits the library until a line names another."""
        library, version = self.library, self.version
        return _Draft(library=library, version=version, network=self.network, environment=dict(self.environment))


def read_log(path: str | os.PathLike[str], op: str | None = None, run: int | None = None) -> NcclLog:
    """Return one run of a log; ``op`` names its collective, and ``run`` (from 1) or ``op`` select one of several.

    Raises InputError: no rows, several runs to choose from, or a collective that neither the log nor ``op`` names.
    """
    runs = read_runs(path)
    if run is not None:
        if not 1 <= run <= len(runs):
            raise InputError(f"must be 1 to {len(runs)} ({_list_runs(runs)}), got {run}", file=path, field="--run")
        runs = [runs[run - 1]]
    if op is not None:
        runs = _runs_of(runs, op_named(op))
    if len(runs) > 1:
        choices = f"give --run N ({_list_runs(runs)})"
        choices += " or --op" if len({each.op for each in runs}) == len(runs) else ""
        raise InputError(f"holds {len(runs)} runs ({_ops_of(runs)}); {choices}", file=path)
    if runs[0].op is None and runs[0].other_program is not None:
        known = f"is a run of {runs[0].other_program}_perf, which trine does not model"
        message = f"{known}; --op NAME compares it with all_to_all, all_reduce, all_gather, ..."
        raise InputError(message, file=path)
    if runs[0].op is None:
        others = runs[0].op_others or ("all_gather", "all_to_all", "...")
        options = []
        for each in others:
            options.append(each if each == "..." else f"--op {each}")
        remedy = ", ".join(options)
        message = f"does not name its collective, and the columns fit more than one: give {remedy}"
        raise InputError(message, file=path)
    if (alone := runs[0].num_alone) > 1:
        message = f"{alone} processes are rank 0, so that each ran a test alone: build nccl-tests with MPI=1"
        raise InputError(message, file=path)
    return runs[0]


def read_runs(path: str | os.PathLike[str]) -> list[NcclLog]:
    """Return all runs in a log, in order.

    Raises InputError: a file that is too large or has no row of results.
    """
    with open_input(path, MAX_BYTES, InputError) as file:
        text = decode(unpacked(file.read(MAX_BYTES + 1), MAX_BYTES))
    try:
        text = printed_text(text)
    except ValueError as error:
        raise InputError(f"the JSON output of nccl-tests {error}", file=path) from None
    lines = [part for line in text.split("\n") for part in plain_text(line[:MAX_LINE]).split("\n")]
    reader = _Reader(_labels_of(lines), path)
    for number, line in enumerate(lines, start=1):
        reader.read(number, line)
    drafts = reader.finished()
    joined = sorted(_joined_sweeps(drafts), key=lambda draft: draft.first_line)
    runs = [_finished(draft, str(path)) for draft in joined]
    has_header = any(draft.layout is not None for draft in reader.drafts)
    if runs and not has_header and (table := foreign_table(text)) is not None:
        raise InputError(f"is {table}: {NEEDS[LOG]}", file=path)
    strange = next((draft.strange_header for draft in reader.drafts if draft.strange_header), None)
    if not runs and (foreign := foreign_file(text, LOG) or foreign_file(_start_of(path), LOG)) is not None:
        raise InputError(foreign, file=path)
    is_short = not runs and not has_header
    short = _short_table(lines, path) if is_short else None
    if short is not None:
        return [_from_short_table(short, str(path))]
    if strange is not None and not has_header:
        message = f"has the columns {strange!r}, which are not those of nccl-tests or rccl-tests"
        raise InputError(message, file=path)
    if not runs:
        raise InputError(_no_rows(text), file=path)
    return runs


def _short_table(lines: Sequence[str], path: str | os.PathLike[str]) -> ShortTable | None:
    try:
        return read_short_table("\n".join(lines))
    except InputError as error:
        raise InputError(error.problem, file=path) from None


def _from_short_table(table: ShortTable, path: str) -> NcclLog:
    """Return the run of a table with a size and a result per line."""
    run = _finished(_Draft(rows=list(table.rows)), path)
    return replace(run, notes=(*table.notes, *run.notes))


def _start_of(path: str | os.PathLike[str]) -> str:
    """Return the start of a file as UTF-8, for binary files, which resemble UTF-16."""
    return head(path, MAX_CHARS).decode("utf-8", "replace")


def _no_rows(text: str) -> str:
    """Return what is wrong with a text that holds no row of results and that no other program is known to write."""
    if not text.strip():
        return "is empty: the test printed nothing, or its output went elsewhere"
    row = "size, count, type[, redop[, root]], then time, algbw, busbw and #wrong once or twice"
    example = "'1048576 262144 float sum -1 26.62 39.39 68.93 0 ...'"
    short = "a header such as 'size,time_us' makes a size and one result enough"
    return f"no row of nccl-tests or rccl-tests found; a row is {row}, such as {example}; {short}"


def _joined_sweeps(drafts: Sequence[_Draft]) -> list[_Draft]:
    """Join at least three consecutive runs of the same test into one if each has a single, different size."""
    groups: list[list[_Draft]] = []
    for draft in drafts:
        sizes = {row.size_bytes for row in draft.rows}
        group = groups[-1] if groups else []
        before = {row.size_bytes for each in group for row in each.rows}
        if group and len(sizes) == 1 and len(before) == len(group) and not sizes & before and _match(group[0], draft):
            group.append(draft)
        else:
            groups.append([draft])
    runs: list[_Draft] = []
    for group in groups:
        if len(group) < 3:
            runs += group
            continue
        rows, cut = ([item for each in group for item in getattr(each, name)] for name in ("rows", "cut"))
        runs.append(replace(group[0], rows=rows, cut=cut, last_bytes=None, runs=len(group), average=None))
    return runs


def _match(first: _Draft, second: _Draft) -> bool:
    """Return whether two runs are of one test on the same GPUs, judging by the log."""
    facts_of = [
        (run.program, run.threads_gpus, run.environment, run.network, run.graph, run.version,
         {rank: (host, name) for rank, (_, host, name) in run.ranks.items()},
         run.rows[0].dtype, run.rows[0].redop, run.rows[0].root)
        for run in (first, second)
    ]  # fmt: skip
    return facts_of[0] == facts_of[1]


def _labels_of(lines: Sequence[str]) -> list[str]:
    """Return the labels that separate runs of several processes or hosts, longest first; empty for one process.

    A label separates runs if rows of the same size, type and operation appear under different labels.
    """
    label_of_row: dict[tuple[str, ...], str] = {}
    labels: Counter[str] = Counter()
    repeated = False
    for line in lines:
        for column, (label, words) in enumerate(find_rows(line)):
            name = f"{label}#{column}"
            labels[name] += 1
            repeated |= label_of_row.setdefault((*words[:3], *(w for w in words[3:4] if w.isalpha())), name) != name
    if not repeated or len(labels) > MAX_LABELS:
        return []
    return sorted(labels, key=len, reverse=True)


class _Reader:
    """Runs in the order of their first lines, with one stream of runs per label."""

    def __init__(self, labels: Sequence[str], path: str | os.PathLike[str]) -> None:
        self.path, self.labels = path, labels
        self.drafts: list[_Draft] = []
        self.current = {label: self.add_draft(_Draft()) for label in labels or [""]}

    def add_draft(self, draft: _Draft) -> _Draft:
        self.drafts.append(draft)
        return draft

    def read(self, number: int, line: str) -> None:
        rows, header = find_rows(line), find_header(line)
        for column, cells in enumerate(rows):
            self.row(number, cells, self.streams_of(cells.label, column)[0])
        if rows or self.tail(line):
            return
        label = header[0] if header else label_of(line[: max(line.find("#"), 0)])
        is_of_shell = not label and _ENVIRONMENT.search(line) is not None
        for stream in list(self.current) if is_of_shell else self.streams_of(label):
            draft = self.current[stream]
            if (draft.rows or draft.cut) and _begins_run(line, header is not None, draft):
                draft = self.current[stream] = self.add_draft(draft.following())
            _read_line(line, header, draft)

    def finished(self) -> list[_Draft]:
        """Return the runs with rows. Settings after the last run of a file, which no run follows, are its own."""
        runs = [each for each in self.drafts if each.rows]
        if len(runs) == 1:
            for draft in self.drafts[self.drafts.index(runs[0]) + 1 :]:
                runs[0].environment |= draft.environment
        return runs

    def streams_of(self, label: str, column: int = 0) -> list[str]:
        """Return the streams of a line: its label's stream, or all of them."""
        if not self.labels:
            return [""]
        matches = [name for name in self.labels if name.rpartition("#")[0] == label]
        exact = f"{label}#{column}"
        return [exact] if exact in matches else matches or list(self.labels)

    def row(self, number: int, cells: RowText, stream: str) -> None:
        draft = self.current[stream]
        draft.first_line = draft.first_line or number
        layout = draft.layout and replace(draft.layout, unit=draft.unit)
        row = parse_row(cells.words, layout)
        draft.open = []
        if row is None:
            draft.cut.append(number)
            draft.open = head_of(cells.words)
            if tail := find_tail(" " + " ".join(cells.words[len(draft.open) :])):
                _complete(draft, tail.words)
            return
        draft.rows.append(row)
        draft.surplus[count_surplus(cells.words, layout)] += 1
        if len(draft.rows) > MAX_ROWS:
            raise InputError(f"more than {MAX_ROWS} rows", file=self.path)

    def tail(self, line: str) -> bool:
        """Read the rest of a row that NCCL's messages cut; return whether the line is such a rest."""
        tail = find_tail(line)
        draft = None if tail is None else self.current[self.streams_of(tail.label)[0]]
        return tail is not None and draft is not None and bool(draft.open) and _complete(draft, tail.words)


def _complete(draft: _Draft, words: Sequence[str]) -> bool:
    """Add results to the incomplete row, out-of-place, then in-place; return whether they fit."""
    is_first = len(draft.open) < 7
    row = parse_row([*draft.open, *words], draft.layout and replace(draft.layout, unit=draft.unit))
    if row is not None:
        if is_first:
            draft.cut.pop()
        draft.rows[len(draft.rows) - (not is_first) :] = [row]
        draft.open = [*draft.open, *words] if is_first else []
    return row is not None


def op_named(op: str) -> str:
    """Return the collective for nccl-tests' name or trine's: ``alltoall``, ``all_reduce_perf``, ``all_to_all``.

    Raises InputError: unknown name; suggests the nearest.
    """
    plain = op.lower().replace("-", "_").removesuffix("_perf")
    squeezed = {name.replace("_", ""): value for program, value in OPS.items() for name in (program, value)}
    if plain.replace("_", "") not in squeezed:
        raise InputError(f"unknown collective {op!r}{nearest(plain, set(OPS.values()))}", field="--op")
    return squeezed[plain.replace("_", "")]


def _begins_run(text: str, is_header: bool, draft: _Draft) -> bool:
    """Return whether a line can only belong to the run after the current one."""
    if is_header or "Collective test starting" in text or _COUNTS.search(text):
        return True
    if draft.is_closed and (_ENVIRONMENT.search(text) or _RANK.search(text)):
        return True  # settings after a run's last lines are of the next one
    match = _PROGRAM.search(text)
    return match is not None and match[1] in OPS and "concluded" not in text and match[1] != draft.program


def _read_line(text: str, header: tuple[str, LogLayout] | None, draft: _Draft) -> None:
    if header is not None:
        draft.layout = header[1]
        if header[1].unit != "us":
            draft.unit, draft.states_unit = header[1].unit, True
    elif match := _UNIT.search(text):
        draft.unit, draft.states_unit = match[1], True
    else:
        draft.strange_header = draft.strange_header or unknown_header(text)
        _read_fact(text, draft)


def _read_fact(text: str, draft: _Draft) -> None:
    """Read a line about the setup of a run."""
    if match := _RANK.search(text):
        rank, group, pid, host, device, name = match.groups()
        place = int(group or 0), int(rank)
        if place == (0, 0):
            draft.root_processes.add((pid or "", host))
        draft.ranks[place] = (pid or rank, host, name.strip(" \"',"))
        draft.devices[place] = (host, device)
        return
    draft.is_blocking |= "Blocking Enabled" in text
    draft.is_closed |= _CLOSING.search(text) is not None
    if match := _FAILURE.search(text):
        draft.failure = draft.failure or match[0][:80].strip()
    if match := _COUNTS.search(text):
        draft.threads_gpus = int(match[1]), int(match[2])
    if match := _SIZES.search(text):
        draft.last_bytes, draft.step = int(match[1]), (int(match[2]), match[3] == "factor")
    if match := _LESS_MEMORY.search(text):
        draft.last_bytes = int(match[1])
    if match := _NETWORK.search(text):
        draft.network = match[1] or draft.network or match[2] or match[3]
    if match := _COMMUNICATOR.search(text):
        draft.communicator = int(match[1])
    if match := _GRAPH.search(text):
        draft.graph = int(match[1])
    if (match := _PROGRAM.search(text)) and match[1] in OPS:
        draft.program = match[1]
    if (match := _NAMED.search(text)) and match[1] not in OPS:
        draft.other_program = match[1]
    for name, count in _ITERATIONS.findall(text):
        if name == "warmup":
            draft.warmups = int(count)
        else:
            draft.aggregated = max(1, int(count))
    if match := _AVERAGE.search(text):
        average = number_of(match[1])
        draft.average = None if average is None else average * 1e9
    for pattern in _VERSIONS:
        if match := pattern.search(text):
            draft.library, draft.version = match[1].lower(), _version(match[2])
    if "rccl-tests: Version" in text and draft.library != "rccl":
        draft.library, draft.version = "rccl", None
    for name, value in _ENVIRONMENT.findall(text):
        if name in SETTINGS or name in EVIDENCE:
            draft.environment[name] = value.rstrip(".,:")


def _version(text: str) -> str:
    """Return ``2.27.7`` for ``22707``, the library's own numbering."""
    if "." in text:
        return text
    code = int(text)
    return f"{code // 10000}.{code // 100 % 100}.{code % 100}" if code >= 20900 else text


def _finished(draft: _Draft, path: str) -> NcclLog:
    ranks = [value for (group, _), value in sorted(draft.ranks.items()) if group == 0]
    in_process = math.prod(draft.threads_gpus or (1, 1))
    units = read_units(draft.rows, facts.blocks_of(draft.rows), draft.states_unit)
    draft.rows = units.apply(draft.rows)
    rows, contradictions = facts.without_contradictions(draft.rows)
    if draft.program:
        guess = GuessedOp(OPS[draft.program], "the name of the program")
    elif draft.other_program:
        guess = GuessedOp(None)
    else:
        guess = guess_op(rows or draft.rows, units, max(len(ranks), in_process))
    counts = _count_ranks(draft, guess.op, units)
    marked = [] if draft.program or guess.op is None else [_describe_guess(guess)]
    host_names = dict.fromkeys(host for _, host, _ in ranks)
    gpu_names = dict.fromkeys(name for _, _, name in ranks if name)
    return NcclLog(
        path=path, rows=tuple(rows), op=guess.op, op_from=guess.source, num_ranks=counts.estimate,
        fewest_ranks=counts.fewest, most_ranks=counts.most, ranks_from=counts.source,
        num_hosts=_num_hosts(draft, counts, ranks), num_alone=max(1, len(draft.root_processes)),
        hosts=tuple(host_names), gpu_names=tuple(gpu_names), launch=_launch(draft, ranks), library=draft.library,
        version=draft.version, network=draft.network, environment=draft.environment,
        average_busbw_bytes_per_s=draft.average, incomplete=_why_incomplete(draft), fault=_fault(draft, units),
        op_others=guess.others, in_process=in_process, other_program=draft.other_program, warmups=draft.warmups,
        aggregated=draft.aggregated, is_old_form=_is_old_form(draft.layout), first_line=draft.first_line,
        notes=(*_notes(draft, counts, units), *contradictions, *marked),
    )  # fmt: skip


def _fault(draft: _Draft, units: RateUnits) -> str | None:
    """Return why the times of a run are not those of the collective, or None."""
    if draft.layout is not None and "cputime" in draft.layout.result:
        return "the times are CPU times of the calls (-C 1), not of the collective: measure without -C"
    return units.fault or None


def _is_old_form(layout: LogLayout | None) -> bool:
    """Return whether a header is of nccl-tests before 2.12: an error column, and no root column."""
    return layout is not None and "root" not in layout.lead and any(name in layout.result for name in ("error", "res"))


def _describe_guess(guess: GuessedOp) -> str:
    others = f", which also fit {' and '.join(guess.others)}" if guess.others else ""
    return f"guess: the collective is {guess.op}, from {guess.source}{others} (--op)"


def _why_incomplete(draft: _Draft) -> str | None:
    """Return how a run ended before its last size, or None. A cut row before closing lines is no sign of an end."""
    if draft.failure is not None:
        return f"the test failed: {draft.failure}"
    if draft.last_bytes is not None and (missing := facts.missing_sizes(draft.rows, draft.last_bytes, *draft.step)):
        return missing
    if draft.open and len(draft.open) < 7 and not draft.is_closed:
        return f"the row of {draft.open[0]} bytes has no result"
    return None


class _Ranks(NamedTuple):
    """Number of ranks, its range, and its source. ``most`` None: no upper bound."""

    estimate: int | None = None
    fewest: int | None = None
    most: int | None = None
    source: str = ""
    note: str = ""


def _count_ranks(draft: _Draft, op: str | None, units: RateUnits) -> _Ranks:
    """Combine the device lines (highest rank + 1), the count column and busbw / algbw.

    Pasted logs often omit some device lines, so busbw / algbw decides if it contradicts their number.
    """
    listed = [rank for group, rank in draft.ranks if group == 0]
    num_listed = max(listed, default=-1) + 1
    implied, source = facts.ranks_by_ratio(draft.rows, op), "busbw / algbw"
    if (by_count := facts.ranks_by_count(draft.rows, op)) is not None:
        implied, source = (by_count, by_count), "the count column"
    if units.blocks is not None:
        implied, source = (units.blocks, units.blocks), "the block that algbw leaves out"
    if draft.communicator is not None and draft.communicator > 1:
        implied, source = (draft.communicator, draft.communicator), "NCCL's messages"
    if num_listed and (implied is None or num_listed >= implied[0] or len(draft.root_processes) > 1):
        if len(listed) == num_listed:
            return _Ranks(num_listed, num_listed, num_listed, "the device lines")
        most = implied[1] if implied and (implied[1] or 0) >= num_listed else None
        return _Ranks(num_listed, num_listed, most, "the highest rank of the device lines")
    if implied is None:
        in_process = math.prod(draft.threads_gpus or (1, 1))
        note = f"guess: one process ran all {in_process} ranks (--gpus)"
        return _Ranks(in_process, in_process, None, "nThread x nGpus", note) if in_process > 1 else _Ranks()
    fewest, most = implied
    note = f"{len(listed)} of at least {fewest} device lines are in the log" if num_listed else ""
    if most is None:
        return _Ranks(None, fewest, None, source, note)
    estimate = facts.roundest(fewest, most)
    if fewest < most:
        note = f"guess: {source} fits {fewest} to {most} ranks; without --gpus {estimate} are assumed"
    elif not note and source == "busbw / algbw":
        note = f"guess: {estimate} ranks, from {source} (--gpus)"
    return _Ranks(estimate, fewest, most, source, note)


def _num_hosts(draft: _Draft, counts: _Ranks, ranks: list[tuple[str, str, str]]) -> int | None:
    """Return the number of hosts: from complete device lines, or 1 if one process drives all GPUs."""
    if counts.estimate is None or _shares_gpus(draft):
        return None
    if len(ranks) == counts.estimate:
        return len({host for _, host, _ in ranks})
    threads, gpus = draft.threads_gpus or (1, 1)
    return 1 if threads * gpus == counts.estimate > 1 else None


def _shares_gpus(draft: _Draft) -> bool:
    """Return whether the device lines name a GPU twice: several hosts have one name, or processes share a GPU."""
    return len(set(draft.devices.values())) < len(draft.devices)


def _notes(draft: _Draft, counts: _Ranks, units: RateUnits) -> tuple[str, ...]:
    notes = [f"line {number} is cut: ignored" for number in islice(draft.cut, 5)]
    if len(draft.cut) > 5:
        notes.append(f"{len(draft.cut) - 5} more cut lines ignored")
    if units.note:
        notes.append(units.note)
    if draft.layout is not None and draft.layout.others:
        notes.append(f"columns that trine does not read: {', '.join(draft.layout.others[:8])}")
    surplus, count = draft.surplus.most_common(1)[0] if draft.surplus else (0, 0)
    if surplus and 2 * count > len(draft.rows):
        notes.append(f"the last {surplus} cells of {count} rows have no known column: not read")
    if draft.is_blocking:
        notes.append("calls were blocking (-z), which trine does not model: small sizes take longer than predicted")
    if _shares_gpus(draft):
        notes.append("the device lines name a GPU twice: hosts of one name, or processes that share a GPU (--nodes)")
    if draft.runs > 1:
        notes.append(f"{draft.runs} runs of one size each are compared as one")
    wrong = [row.size_bytes for row, measure in facts.measures_of(draft.rows) if measure.wrong]
    if wrong and _counts_errors(draft.rows):
        notes.append(f"the test found wrong results, first at {wrong[0]} bytes: times of a broken run say little")
    if counts.note:
        notes.append(counts.note)
    return tuple(notes)


def _counts_errors(rows: Sequence[LogRow]) -> bool:
    """Return whether a row has wrong elements: ``#wrong`` counts them; a small ``error`` (older form) is rounding."""
    return any(measure.wrong and measure.wrong >= 1 for _, measure in facts.measures_of(rows))


def _launch(draft: _Draft, ranks: list[tuple[str, str, str]]) -> str | None:
    if draft.graph:
        return "graph"
    if ranks:
        processes = {(host, pid) for pid, host, _ in ranks}
        return "process-per-gpu" if len(processes) == len(ranks) else "single-process"
    if draft.threads_gpus is None:
        return None
    return "process-per-gpu" if draft.threads_gpus == (1, 1) else "single-process"


def _runs_of(runs: Sequence[NcclLog], op: str) -> list[NcclLog]:
    """Return the runs of ``op``; without one, the runs whose collective was guessed, else all, taken as ``op``."""
    matches = [each for each in runs if each.op == op]
    if matches:
        return [replace(each, notes=_without_guess(each.notes)) for each in matches]
    guessed = [each for each in runs if each.op_from != "the name of the program"]
    return [_as_given(each, op) for each in guessed or runs]


def _without_guess(notes: Sequence[str]) -> tuple[str, ...]:
    return tuple(note for note in notes if not note.startswith("guess: the collective"))


def _without_ranks(notes: Sequence[str]) -> tuple[str, ...]:
    """Return notes without guesses of the number of ranks."""
    return tuple(note for note in notes if not (note.startswith("guess: ") and "ranks" in note))


def _as_given(run: NcclLog, op: str) -> NcclLog:
    """Return a run as a run of ``op``; without device lines its ranks follow from busbw / algbw of that collective."""
    notes = _without_guess(run.notes)
    if run.op_from == "the name of the program":
        notes = (*notes, f"the log names {run.op}; --op {op} overrules it")
    if "device lines" in run.ranks_from:
        return replace(run, op=op, op_from=GIVEN, notes=notes)
    counts = _count_ranks(_Draft(rows=list(run.rows), threads_gpus=(1, run.in_process)), op, RateUnits())
    notes = _without_ranks(notes)
    return replace(
        run, op=op, op_from=GIVEN, num_ranks=counts.estimate, fewest_ranks=counts.fewest, most_ranks=counts.most,
        ranks_from=counts.source, notes=(*notes, *([counts.note] if counts.note else [])),
    )  # fmt: skip


def with_ranks(run: NcclLog, num_ranks: int) -> NcclLog:
    """Return a run with a given number of ranks; a note names the log's own number if it differs."""
    if run.num_ranks == num_ranks:
        return run
    is_sure = run.num_ranks is not None and (run.fewest_ranks, run.most_ranks) == (run.num_ranks, run.num_ranks)
    notes = _without_ranks(run.notes)
    if is_sure:
        notes = (*notes, f"the log shows {run.num_ranks} ranks ({run.ranks_from}); --gpus {num_ranks} overrules it")
    return replace(
        run, num_ranks=num_ranks, ranks_from=GIVEN, fewest_ranks=None, most_ranks=None, num_hosts=None, notes=notes
    )


def _ops_of(runs: Sequence[NcclLog]) -> str:
    return ", ".join(dict.fromkeys(run.op or "an unnamed collective" for run in runs))


def _list_runs(runs: Sequence[NcclLog]) -> str:
    """Return the numbered runs in order: collective, ranks and sizes of each, and its line if two look alike."""
    descriptions = [_describe_run(run) for run in runs]
    texts = []
    for i, (run, description) in enumerate(zip(runs[:8], descriptions, strict=False), start=1):
        is_alone = descriptions.count(description) == 1
        texts.append(f"{i}: {description}" if is_alone else f"{i}: {description}, line {run.first_line}")
    return "; ".join([*texts, *([f"{len(runs) - 8} more"] if len(runs) > 8 else [])])


def _describe_run(run: NcclLog) -> str:
    ranks = f" of {run.num_ranks} ranks" if run.num_ranks else ""
    first, last = run.rows[0].size_bytes, run.rows[-1].size_bytes
    return f"{run.op or 'unnamed'}{ranks}, {format_size(first)} to {format_size(last)}"
