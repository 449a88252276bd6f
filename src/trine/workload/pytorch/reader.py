"""Reader of PyTorch's profiler trace (Kineto) and execution trace, joined into operators at the level of layers.

An operator is an outermost call that launched kernels: ``aten::conv2d``, a backward node of autograd, one foreach call
of the optimizer. Its time is the time of its kernels; overlapping kernels count once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TypedDict

from trine.common.inputs import head
from trine.errors import TraceError
from trine.graph.workload import (
    FORWARD,
    GPU_KERNELS,
    KERNEL_GAP,
    LAUNCH_CALL,
    RECORDED_ON,
    SHARD,
    Operator,
    RecordedCollective,
    Workload,
)
from trine.workload.analysis.analyse import analyse
from trine.workload.pytorch.calls import Operands, TensorTable, TopCall, TreeCall, operands, resolve_tree
from trine.workload.pytorch.communication import is_layout
from trine.workload.pytorch.execution_trace import CallNode, read_execution_trace
from trine.workload.pytorch.kineto import META, CpuOp, Kineto, read_kineto
from trine.workload.pytorch.kineto_alone import ASSUMED, MISSING, Guesses
from trine.workload.pytorch.meta_storages import separate
from trine.workload.pytorch.shard import as_metadata
from trine.workload.pytorch.steps import OperatorRow, TracedStep, find_rows, find_step, outermost, recorded_collectives
from trine.workload.pytorch.traffic import with_traffic
from trine.workload.raw_trace import AUTOGRAD, RawCall, RawTrace, call_kind
from trine.workload.readers import TraceReader
from trine.workload.tracing.files import with_meta_beside

# Match nodes of an execution trace to calls of the profiler.
#
# The two files may cover different parts of one run: an observer for one iteration, a profiler for forty. "Record
# function id" names the same call in both. If the profiler did not write it, autograd's sequence numbers (or external
# ids) tie calls of one name together, and the calls between two ties are matched in order.

#: Minimum share of matching calls; calls in a row that must agree after a difference; calls searched ahead.
_MIN_SHARE, _RUN, _LOOKAHEAD = 0.9, 3, 48
#: Limits of the search for the shift between numbers: names, nodes per name, calls per name.
_RARE, _MAX_PER_NAME, _VOTES = 50, 20, 5000


def join(kineto: Kineto, nodes: list[CallNode], path: Path) -> tuple[dict[int, int], str]:
    """Return node id -> index of its profiler call, and the method of matching; ``path``: the execution trace.

    Raises TraceError if the names of the calls disagree, or if the two files have no part of the run in common.
    """
    by_record = {}
    for i, op in enumerate(kineto.ops):
        if number := op.number("Record function id"):
            by_record[number] = i
    calls = [node for node in nodes if node.rf_id and not node.name.startswith("[pytorch|profiler|")]
    matches, method = (_by_record(kineto, nodes, by_record, path), "record function ids") if by_record else ({}, "")
    if not matches:
        ties = _ties(kineto, calls, "Sequence number", lambda node: node.seq_id)
        method = "autograd's sequence numbers"
        if not ties:
            ties, method = _ties(kineto, calls, "External id", lambda node: node.rf_id), "external ids"
        matches = _by_thread(kineto, calls, ties)
        if len(matches) < _MIN_SHARE * min(len(kineto.ops), len(calls)):
            by_order = _by_thread(kineto, calls, {})
            matches, method = (by_order, "") if len(by_order) > len(matches) else (matches, method)
        method = method if ties and method else "the order of calls on each thread"
    _check(kineto, calls, matches, path)
    return matches, method


def _by_record(kineto: Kineto, nodes: list[CallNode], by_record: dict[int, int], path: Path) -> dict[int, int]:
    matches: dict[int, int] = {}
    node_of: dict[int, int] = {}
    for node in nodes:
        index = by_record.get(node.rf_id)
        if not node.rf_id or index is None:
            continue
        if node_of.setdefault(index, node.id) != node.id:
            raise TraceError(f"has the record function id of node {node_of[index]}", file=path, field=f"node {node.id}")
        if kineto.ops[index].name != node.name:
            raise TraceError(
                f"is {kineto.ops[index].name[:100]!r}, but node {node.id} of the execution trace, {node.name[:100]!r}, "
                "has its record function id: the files are of different runs",
                file=kineto.path,
                field=f"traceEvents[{kineto.ops[index].event}]",
            )
        matches[node.id] = index
    return matches


def _ties(kineto: Kineto, nodes: list[CallNode], field: str, number_of: Callable[[CallNode], int]) -> dict[int, int]:
    """Return node id -> call for calls of one name whose numbers in ``field`` differ by one constant.

    The constant is 0 if the files cover the same steps, and another number if they cover different ones.
    """
    calls: dict[tuple[str, int], list[int]] = {}
    by_name: dict[str, list[int]] = {}
    for index, op in enumerate(kineto.ops):
        number = op.number(field)
        if number is not None:
            calls.setdefault((op.name, number), []).append(index)
            by_name.setdefault(op.name, []).append(number)
    numbered: dict[tuple[str, int], list[int]] = {}
    for node in nodes:
        if number_of(node) >= 0:
            numbered.setdefault((node.name, number_of(node)), []).append(node.id)
    votes, num_asked = Counter[int](), Counter[str]()
    rare = set(sorted(by_name, key=lambda name: (len(by_name[name]), name))[:_RARE])
    for (name, number), ids in numbered.items():
        if len(ids) == 1 and name in rare and num_asked[name] < _MAX_PER_NAME:
            num_asked[name] += 1
            votes.update({other - number for other in by_name[name][:_VOTES]})
    if not votes:
        return {}
    shift = max(votes, key=lambda each: (votes[each], each == 0, each))
    shift = 0 if votes[0] >= _MIN_SHARE * votes[shift] else shift
    ties: dict[int, int] = {}
    for (name, number), ids in numbered.items():
        calls_of_number = calls.get((name, number + shift), [])
        if len(calls_of_number) == len(ids):
            ties.update(zip(ids, calls_of_number, strict=True))
    return ties


def _by_thread(kineto: Kineto, nodes: list[CallNode], ties: dict[int, int]) -> dict[int, int]:
    """Match the calls of each thread of the execution trace with the calls of one profiler thread, in order."""
    threads: dict[str, list[int]] = {}
    for index, op in enumerate(kineto.ops):
        threads.setdefault(str(op.tid), []).append(index)
    sequences: dict[int, list[CallNode]] = {}
    for node in nodes:
        sequences.setdefault(node.tid, []).append(node)
    calls_of_nodes: dict[int, int] = {}
    for _, sequence in sorted(sequences.items(), key=lambda item: (-len(item[1]), item[0])):
        tied = Counter(str(kineto.ops[ties[node.id]].tid) for node in sequence if node.id in ties)
        names = [thread for thread in threads if thread in tied] or list(threads)
        matches = {thread: _match(kineto, threads[thread], sequence, ties) for thread in names}
        if matches:
            thread = max(matches, key=lambda name: len(matches[name]))
            calls_of_nodes.update(matches[thread])
            del threads[thread]
    return calls_of_nodes


def _match(kineto: Kineto, calls: list[int], sequence: list[CallNode], ties: dict[int, int]) -> dict[int, int]:
    """Match calls from tie to tie, backwards before the first tie and forwards after the last."""
    place_of = {index: place for place, index in enumerate(calls)}
    names = [kineto.ops[index].name for index in calls]
    expected = [node.name for node in sequence]
    marks: list[tuple[int, int]] = []
    for place, node in enumerate(sequence):
        match = place_of.get(ties.get(node.id, -1))
        if match is not None and (not marks or match > marks[-1][1]):
            marks.append((place, match))
    pairs: list[tuple[int, int]] = []
    if marks:
        first, first_match = marks[0]
        before = _align(expected[:first][::-1], names[max(0, first_match - 4 * first - _LOOKAHEAD) : first_match][::-1])
        pairs += [(first - 1 - a, first_match - 1 - b) for a, b in before]
    else:
        marks.append((-1, -1))
    for (place, match), (next_place, next_other) in zip(marks, [*marks[1:], (len(expected), len(names))], strict=True):
        pairs += [(place, match)] if place >= 0 else []
        part = _align(expected[place + 1 : next_place], names[match + 1 : next_other])
        pairs += [(place + 1 + a, match + 1 + b) for a, b in part]
    return {sequence[a].id: calls[b] for a, b in pairs}


def _align(expected: Sequence[str], names: Sequence[str]) -> list[tuple[int, int]]:
    """Return places of equal names in both sequences, in order; calls missing from one sequence are skipped.

    After a difference, matching resumes at the nearest pair of places with a few agreeing calls in a row. It stops
    after too many differences: such sequences come from different runs.
    """
    pairs: list[tuple[int, int]] = []
    a = b = 0
    patience = 8 + len(expected) // 10
    while a < len(expected) and b < len(names) and patience:
        if expected[a] == names[b]:
            pairs.append((a, b))
            a, b = a + 1, b + 1
            continue
        patience -= 1
        for distance in range(1, 2 * _LOOKAHEAD):
            steps = range(max(0, distance - _LOOKAHEAD), min(distance, _LOOKAHEAD) + 1)
            ahead = next((i for i in steps if _agree(expected, a + i, names, b + distance - i)), None)
            if ahead is not None:
                a, b = a + ahead, b + distance - ahead
                break
        else:
            a, b = a + 1, b + 1
    return pairs


def _agree(expected: Sequence[str], a: int, names: Sequence[str], b: int) -> bool:
    if a >= len(expected) or b >= len(names) or expected[a] != names[b]:
        return False
    run = min(_RUN, len(expected) - a, len(names) - b)
    return expected[a : a + run] == names[b : b + run]


def _check(kineto: Kineto, nodes: list[CallNode], matches: dict[int, int], path: Path) -> None:
    """Raise TraceError unless nearly all calls of the shorter file are in the other one."""
    if matches and len(matches) >= _MIN_SHARE * min(len(kineto.ops), len(nodes)):
        return
    names = {op.name for op in kineto.ops}
    unknown = next((node for node in nodes if node.name not in names), None)
    summary = f"{path.name}: only {len(matches)} of {len(nodes)} calls of the execution trace are in the profiler trace"
    if unknown is None and matches:
        common = [node for node in nodes if min(matches) <= node.id <= max(matches)]
        if len(matches) >= _MIN_SHARE * len(common):
            return  # the profiler started or stopped within the observer's part: the common part agrees
    missed = unknown or next(node for node in nodes if node.id not in matches)
    raise TraceError(
        f"{summary}; the first that is not: node {missed.id}, {missed.name[:100]!r}: the files are of different runs "
        "(move the profiler trace to another folder to read it alone)",
        file=kineto.path,
    )


KINETO, EXECUTION_TRACE = "kineto", "execution_trace"
_SUFFIXES = (".json", ".json.gz")
_SNIFFED = 65536


def kind_of_file(path: Path) -> str | None:
    """Return ``kineto``, ``execution_trace`` or None, from the first 64 KiB (and the last, if uncompressed)."""
    start = head(path, _SNIFFED) if path.name.endswith(_SUFFIXES) else b""
    if b'"traceEvents"' in start:
        return KINETO
    if b'"nodes"' in start and (b"execution_trace" in start or b'"rf_id"' in start or b'"schema"' in start):
        return EXECUTION_TRACE
    return None


def find_pair(path: Path) -> dict[str, Path] | None:
    """Return the pair at ``path``: a folder with both halves, or one half, whose other half trine finds.

    The other half is in the same folder or, as TrioSim's tracer writes them, in sibling folders ``profiler/`` and
    ``graph/``. If there are several candidates, trine picks the name that shares most words with the first half.
    """
    if path.is_dir():
        halves = {}
        for each in (KINETO, EXECUTION_TRACE):
            if files := _candidates(path, each):
                halves[each] = files
        if not halves.get(KINETO):
            return None
        if len(halves[KINETO]) > 1:
            names = ", ".join(file.name for file in halves[KINETO][:3])
            raise TraceError(f"holds {len(halves[KINETO])} profiler traces ({names}, ...): name one", file=path)
        kineto = halves[KINETO][0]
        pair = {KINETO: kineto}
        if other_half := _closest(kineto, halves.get(EXECUTION_TRACE, [])):
            pair[EXECUTION_TRACE] = other_half
        return pair
    kind = kind_of_file(path)
    if kind is None:
        return None
    other_kind = EXECUTION_TRACE if kind == KINETO else KINETO
    candidates = _candidates(path.parent, other_kind)
    if not candidates and path.parent.name in ("profiler", "graph"):
        candidates = _candidates(path.parent.parent, other_kind)
    pair = {kind: path}
    if other_half := _closest(path, candidates):
        pair[other_kind] = other_half
    return pair


def _candidates(folder: Path, kind: str) -> list[Path]:
    places = [folder, folder / "profiler", folder / "graph"]
    files = [file for place in places if place.is_dir() for file in sorted(place.iterdir())]
    return [file for file in files if kind_of_file(file) == kind]


def _closest(path: Path, candidates: list[Path]) -> Path | None:
    """Return the candidate whose name shares most words with ``path``; ties go to the first by name."""

    def words(file: Path) -> set[str]:
        return set(file.name.removesuffix(".gz").removesuffix(".json").replace("-", "_").split("_"))

    return max(candidates, key=lambda file: len(words(file) & words(path)), default=None)


_ACCUMULATE = "torch::autograd::AccumulateGrad"
_RENAMED = {"is_causal": "causal"}
#: Arguments without effect on any operator's time.
_IDLE = frozenset({
    "pin_memory", "memory_format", "device", "layout", "dtype", "non_blocking", "copy", "generator", "implicit",
})  # fmt: skip

_NO_OPERANDS = Operands((), (), {})


def read_pytorch(kineto_file: Path, trace_file: Path | None) -> RawTrace:
    """Read a profiler trace and its execution trace, if given. Raises TraceError for files that do not fit."""
    kineto = read_kineto(kineto_file)
    if not kineto.ops:
        raise TraceError("holds no call on the CPU: was it recorded with ProfilerActivity.CPU?", file=kineto_file)
    return _without_tree(kineto) if trace_file is None else _pair(kineto, read_execution_trace(trace_file), trace_file)


def _pair(kineto: Kineto, nodes: list[CallNode], trace_file: Path) -> RawTrace:
    separate(nodes)
    calls_of_nodes, method = join(kineto, nodes, trace_file)
    _adopt_tree(kineto, nodes, calls_of_nodes)
    return _of_tree(kineto, nodes, calls_of_nodes, (f"the two files were joined by {method}",))


def _of_tree(
    kineto: Kineto, nodes: list[CallNode], calls_of_nodes: Mapping[int, int], assumptions: tuple[str, ...]
) -> RawTrace:
    """Return the trace of a step from its tree of calls, and the profiler's calls for its nodes."""
    step = find_step(kineto, set(calls_of_nodes.values()))
    rows, notes = find_rows(kineto, step)
    table = TensorTable()
    tops = {calls_of_nodes[top.node.id]: top for top in resolve_tree(nodes, table) if top.node.id in calls_of_nodes}
    numbers = {}
    for i, top in tops.items():
        numbers[i] = [call.node.seq_id for call in top.calls]
    place = {row.call: index for index, row in enumerate(rows) if row.call is not None}
    tops_in_order = [i for i in step.tops if i in tops]
    resolved = {i: operands(tops[i], table) for i in tops_in_order if i in place}
    calls = tuple(_call(call, step.phases[i], place.get(i)) for i in tops_in_order for call in tops[i].calls)
    pairs = []
    for i in tops_in_order:
        if (pair := _accumulated(tops[i])) is not None:
            pairs.append(pair)
    accumulated = tuple(pairs)
    links = _forward_of(kineto, step, numbers, place)
    return RawTrace(
        **_common(kineto, step), operators=_operators(kineto, step, rows, resolved, links),
        calls=calls, tensors=table.tensors, accumulated=accumulated, missing=_missing(kineto),
        assumptions=(*step.notes, *notes, *assumptions),
    )  # fmt: skip


def read_calls(nodes: list[CallNode], name: str) -> RawTrace:
    """Return the step that a tree of calls on meta tensors records; operators take no time.

    nodes: numbered from 1, parents before children, each meta tensor with the storage that it has in PyTorch.
    """
    ops = [
        CpuOp(
            node.id, node.name, node.id, node.id, node.tid, node.annotation, {"Sequence number": node.seq_id},
            None if node.parent == node.id else node.parent - 1, module=node.module,
        )
        for node in nodes
    ]  # fmt: skip
    calls_of_nodes = {node.id: index for index, node in enumerate(nodes)}
    kineto = Kineto(Path(name), ops, [], None, 0, {}, machine=META)
    return with_traffic(_of_tree(kineto, nodes, calls_of_nodes, ()))


def _accumulated(top: TopCall) -> tuple[int, int] | None:
    """Return the input of an AccumulateGrad node and its resulting gradient: in place, detached, or the same."""
    incoming = next((slot for call in top.calls if call.node.name == _ACCUMULATE for slot in call.inputs if slot), None)
    if incoming is None:
        return None
    computing = [call for call in top.calls if call.outputs and not is_layout(call.node.name)]
    in_place = [call.outputs[0] for call in computing if call.node.name.endswith("_")]
    copies = [call.outputs[0] for call in computing if call_kind(call.node.name) in ("detach", "clone")]
    return incoming, next((slot for slot in (*in_place, *copies) if slot), incoming)


def _without_tree(kineto: Kineto) -> RawTrace:
    step = find_step(kineto)
    rows, notes = find_rows(kineto, step)
    place = {row.call: index for index, row in enumerate(rows) if row.call is not None}
    links = _forward_of(kineto, step, _sequence_numbers(kineto), place)
    guesses = Guesses(kineto, list(place), step.phases, links)
    resolved = {i: Operands(*guesses.operands(i), {}) for i in place}
    return RawTrace(
        **_common(kineto, step), operators=_operators(kineto, step, rows, resolved, links), calls=tuple(guesses.calls),
        tensors=guesses.tensors, missing=(*_missing(kineto), *MISSING), assumptions=(*step.notes, *notes, *ASSUMED),
    )  # fmt: skip


def _sequence_numbers(kineto: Kineto) -> dict[int, list[int]]:
    """Return outermost call -> autograd's sequence numbers of all calls in it, in the order of their start."""
    numbers: dict[int, list[int]] = {}
    for op, top in zip(kineto.ops, outermost(kineto.ops), strict=True):
        number = op.number("Sequence number")
        if top is not None and number is not None:
            numbers.setdefault(top, []).append(number)
    return numbers


class _Common(TypedDict):
    name: str
    source: str
    format: str
    gpu: str | None
    metadata: Mapping[str, str]
    collectives: tuple[RecordedCollective, ...]


def _common(kineto: Kineto, step: TracedStep) -> _Common:
    name = kineto.path.name.removesuffix(".gz").removesuffix(".json")
    metadata = dict(kineto.metadata)
    if kineto.machine is not None:
        metadata[RECORDED_ON] = kineto.machine
    if kineto.kernel_gap_ps is not None:
        metadata[KERNEL_GAP] = str(kineto.kernel_gap_ps)
    if kineto.launch_call_ps is not None:
        metadata[LAUNCH_CALL] = str(kineto.launch_call_ps)
    metadata |= as_metadata(kineto, step, SHARD)
    return _Common(name=name, source=str(kineto.path), format="pytorch", gpu=kineto.gpu, metadata=metadata,
                   collectives=recorded_collectives(kineto, step))  # fmt: skip


def _missing(kineto: Kineto) -> tuple[str, ...]:
    return () if kineto.kernels or kineto.communication else (GPU_KERNELS, "CPU launch times")


def _adopt_tree(kineto: Kineto, nodes: list[CallNode], calls_of_nodes: Mapping[int, int]) -> None:
    """Copy parents from the execution trace, because times in whole microseconds do not reveal them."""
    nearest: dict[int, int | None] = {}  # node -> the closest call at or above it that is joined
    for node in nodes:  # parents come before their children
        above = nearest.get(node.parent)
        if node.id in calls_of_nodes:
            kineto.ops[calls_of_nodes[node.id]].parent = above
        nearest[node.id] = calls_of_nodes.get(node.id, above)


def _call(call: TreeCall, phase: str, operator: int | None) -> RawCall:
    """Convert a call; tensor 0 means an absent one. A collective's in-place output does not count as a gradient."""
    inputs, outputs = (tuple(slot or None for slot in slots) for slots in (call.inputs, call.outputs))
    in_place = call.node.name.endswith("_") and not is_layout(call.node.name)
    return RawCall(call_kind(call.node.name), inputs, outputs, phase, operator, call.inner, in_place, call.values)


def _forward_of(
    kineto: Kineto, step: TracedStep, numbers: Mapping[int, list[int]], place: Mapping[int, int]
) -> dict[int, int]:
    """Return outermost backward call -> index of the operator that it differentiates, by autograd's sequence numbers.

    A number belongs to the last forward call that shows it; earlier calls without gradients show the same number.
    """
    maker: dict[int, int] = {}
    result: dict[int, int] = {}
    for i in step.tops:
        mine = [number for number in numbers.get(i, []) if number >= 0]
        if kineto.ops[i].name.startswith(AUTOGRAD):
            link = next((maker[number] for number in mine if number in maker), None)
            if link is not None and link in place:
                result[i] = place[link]
        elif step.phases[i] == FORWARD:
            maker.update(dict.fromkeys(mine, i))
    return result


def _operators(
    kineto: Kineto, step: TracedStep, rows: list[OperatorRow], known: Mapping[int, Operands], forward: Mapping[int, int]
) -> tuple[Operator, ...]:
    operators = []
    for number, row in enumerate(rows, 1):
        operators.append(
            _kernel_operator(kineto, row, number)
            if row.call is None
            else _operator(
                kineto, step, row, row.call, number, known.get(row.call, _NO_OPERANDS), forward.get(row.call)
            )
        )
    return tuple(operators)


def _kernel_operator(kineto: Kineto, row: OperatorRow, number: int) -> Operator:
    kernel = kineto.kernels[row.kernels[0]]
    return Operator(id=number, name=f"kernel: {kernel.name[:200]}", phase=row.phase, inputs=(), outputs=(),
                    gpu_time_ps=kernel.busy_ps, kernel_times_ps=(kernel.end_ps - kernel.start_ps,))  # fmt: skip


def _operator(
    kineto: Kineto, step: TracedStep, row: OperatorRow, call: int, number: int, operands: Operands, forward: int | None
) -> Operator:
    op = kineto.ops[call]
    launched = bool(kineto.kernels)
    begin, end = kineto.awake_ps(op.start_ps), kineto.awake_ps(op.end_ps)
    if launched:
        gpu_time_ps = sum(kineto.kernels[k].busy_ps for k in row.kernels)
    else:
        gpu_time_ps = op.end_ps - op.start_ps
    forward_id = None if forward is None else forward + 1
    launch_start_ps = begin - kineto.awake_ps(step.start_ps) if launched else None
    launch_duration_ps = end - begin if launched else None
    kernel_times_ps = tuple(kineto.kernels[k].end_ps - kineto.kernels[k].start_ps for k in row.kernels)
    return Operator(
        id=number, name=op.name, phase=row.phase, inputs=operands.inputs, outputs=operands.outputs, layer=op.module,
        gpu_time_ps=gpu_time_ps, forward_id=forward_id, launch_start_ps=launch_start_ps,
        launch_duration_ps=launch_duration_ps, kernel_times_ps=kernel_times_ps,
        attributes=_attributes(operands.values) if row.launches is None else
        {**_attributes(operands.values), "kernels": row.launches},
    )  # fmt: skip


def _attributes(values: Mapping[str, object]) -> dict[str, object]:
    """Return the arguments of a call that describe its work beyond the shapes."""
    renamed = {_RENAMED.get(name, name): _plain(value) for name, value in values.items() if name not in _IDLE}
    return {name: value for name, value in renamed.items() if value is not None}


def _plain(value: object) -> object:
    """Return a JSON value as an immutable one, or None if it cannot be an attribute."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bool | int | str):
        return value if not isinstance(value, str) or len(value) <= 200 else None
    if isinstance(value, Decimal):
        return float(value) if value.is_finite() else None
    if isinstance(value, list) and len(value) <= 64:
        items = tuple(_plain(item) for item in value)
        return items if None not in items else None
    return None


def _read(files: dict[str, Path], batch: int | None) -> Workload:
    if "kineto" not in files:
        raise TraceError("is an execution trace without times, and no profiler trace lies beside it",
                         file=files["execution_trace"])  # fmt: skip
    workload = analyse(read_pytorch(files["kineto"], files.get("execution_trace")), batch=batch)
    return with_meta_beside(workload, files["kineto"])


READER = TraceReader("pytorch", "a profiler (Kineto) and an execution trace, .json or .json.gz", find_pair, _read)
