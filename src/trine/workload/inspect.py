"""Contents of a trace as data: for ``trine trace inspect``, reports and tests. Nothing here prints."""

from __future__ import annotations

from dataclasses import dataclass

from trine.graph.workload import PHASES, ROLES, SHARD, Operator, RecordedCollective, Tensor, Workload


@dataclass(frozen=True, kw_only=True, slots=True)
class Total:
    """Operators of one phase or one name: their count, GPU time, and share of all GPU time (0 to 1)."""

    name: str
    phase: str
    count: int
    gpu_time_ps: int
    share: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RoleTotal:
    """Tensors of one role. ``size_bytes`` counts each storage once; ``scaling`` counts tensors with the batch."""

    role: str
    tensors: int
    storages: int
    size_bytes: int
    scaling: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceDescription:
    """A summary of a workload. Times in picoseconds; ``operators`` are sorted by time, longest first.

    ``launches`` counts operators with a CPU launch time; ``unlinked`` backward operators without a forward operator.
    ``recorded_on`` names the machine that recorded the times. ``collectives`` are the recorded job's. ``scaling`` lists
    each pattern of batch dimensions, such as "[B, 3, 224, 224]", with its number of tensors. ``shard``: the part of a
    model that the trace holds, None for a whole model.
    """

    name: str
    source: str
    format: str
    gpu: str | None
    batch: int
    is_training: bool
    num_operators: int
    gpu_time_ps: int
    unprofiled_step_ps: int | None
    phases: tuple[Total, ...]
    operators: tuple[Total, ...]
    roles: tuple[RoleTotal, ...]
    num_parameters: int
    parameter_bytes: int
    gradient_bytes: int
    without_gradient: int
    launches: int
    kernels: int
    unlinked: int
    scaling: tuple[tuple[str, int], ...]
    missing: tuple[str, ...]
    assumptions: tuple[str, ...]
    recorded_on: str
    collectives: tuple[RecordedCollective, ...]
    shard: str | None = None


def describe(workload: Workload) -> TraceDescription:
    """Summarise ``workload``."""
    total = sum(op.gpu_time_ps for op in workload.operators)
    trained = [p for p in workload.parameters if p.gradient_operator is not None]
    patterns: dict[str, int] = {}
    for tensor in workload.tensors.values():
        if tensor.batch_dims:
            text = scaled_shape(tensor, workload.batch)
            patterns[text] = patterns.get(text, 0) + 1
    return TraceDescription(
        name=workload.name, source=workload.source, format=workload.format, gpu=workload.gpu, batch=workload.batch,
        is_training=workload.is_training, num_operators=len(workload.operators), gpu_time_ps=total,
        unprofiled_step_ps=workload.unprofiled_step_ps,
        phases=tuple(t for phase in PHASES if (t := _total(phase, phase, workload.operators, total)).count),
        operators=_by_name(workload, total),
        roles=tuple(row for role in ROLES if (row := _role(workload, role)).tensors or role != "table"),
        num_parameters=len(workload.parameters), parameter_bytes=sum(p.size_bytes for p in workload.parameters),
        gradient_bytes=sum(p.size_bytes for p in trained), without_gradient=len(workload.parameters) - len(trained),
        launches=sum(op.launch_start_ps is not None for op in workload.operators),
        kernels=sum(len(op.kernel_times_ps) for op in workload.operators),
        unlinked=sum(op.phase == "backward" and op.forward_id is None for op in workload.operators),
        scaling=tuple(sorted(patterns.items(), key=lambda item: (-item[1], item[0]))),
        missing=workload.missing, assumptions=workload.assumptions, recorded_on=workload.recorded_on,
        collectives=workload.collectives, shard=workload.metadata.get(SHARD),
    )  # fmt: skip


def scaled_shape(tensor: Tensor, batch: int) -> str:
    """Return the shape with B in place of the batch: ``[B, 64, 112, 112]``, ``[32*B, 768]``."""
    sizes = []
    for dim, size in enumerate(tensor.shape):
        if dim not in tensor.batch_dims:
            sizes.append(str(size))
        elif size == batch:
            sizes.append("B")
        else:
            sizes.append(f"{size // batch}*B" if size % batch == 0 else f"{size}~B")
    return f"[{', '.join(sizes)}]"


def _total(name: str, phase: str, operators: tuple[Operator, ...] | list[Operator], total: int) -> Total:
    members = [op for op in operators if op.phase == phase]
    time = sum(op.gpu_time_ps for op in members)
    return Total(name=name, phase=phase, count=len(members), gpu_time_ps=time, share=time / total if total else 0.0)


def _by_name(workload: Workload, total: int) -> tuple[Total, ...]:
    groups: dict[tuple[str, str], list[Operator]] = {}
    for op in workload.operators:
        groups.setdefault((op.name, op.phase), []).append(op)
    totals = [_total(name, phase, ops, total) for (name, phase), ops in groups.items()]
    return tuple(sorted(totals, key=lambda t: (-t.gpu_time_ps, -t.count, t.name, t.phase)))


def _role(workload: Workload, role: str) -> RoleTotal:
    tensors = [tensor for tensor in workload.tensors.values() if tensor.role == role and tensor.size_bytes]
    sizes: dict[int, int] = {}
    for tensor in tensors:
        sizes[tensor.storage] = max(sizes.get(tensor.storage, 0), tensor.size_bytes)
    return RoleTotal(role=role, tensors=len(tensors), storages=len(sizes), size_bytes=sum(sizes.values()),
                     scaling=sum(bool(tensor.batch_dims) for tensor in tensors))  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """A difference between two traces: ``operator`` is its place in the sequence (from 0), None for the whole trace."""

    operator: int | None
    name: str
    what: str
    first: str
    second: str


def compare(first: Workload, second: Workload) -> tuple[Difference, ...]:
    """List the differences of two traces of one model, whatever their batch sizes.

    Compared: the sequence of operators, phases, forward links, layers; roles, batch dimensions and shapes (with B for
    the batch) of inputs and outputs, absent tensors left out; parameters. Times are not compared.
    """
    differences: list[Difference] = []
    if len(first.operators) != len(second.operators):
        differences.append(_difference(None, "operators", "count", len(first.operators), len(second.operators)))
    places = []
    for w in (first, second):
        places.append({op.id: i for i, op in enumerate(w.operators)})
    for index, (a, b) in enumerate(zip(first.operators, second.operators, strict=False)):
        pair = zip((a, b), places, strict=True)
        forward = []
        for op, place in pair:
            forward.append(None if op.forward_id is None else place[op.forward_id])
        pairs: list[tuple[str, object, object]] = [
            ("name", a.name, b.name),
            ("phase", a.phase, b.phase),
            ("layer", a.layer, b.layer),
            ("forward", forward[0], forward[1]),
            ("inputs", _scaled_shapes(first, a.inputs), _scaled_shapes(second, b.inputs)),
            ("outputs", _scaled_shapes(first, a.outputs), _scaled_shapes(second, b.outputs)),
        ]
        differences += [_difference(index, a.name, field, x, y) for field, x, y in pairs if x != y]
    lists = []
    for w, place in zip((first, second), places, strict=True):
        lists.append([_parameter(w, i, place) for i in range(len(w.parameters))])
    if len(lists[0]) != len(lists[1]):
        differences.append(_difference(None, "parameters", "count", len(lists[0]), len(lists[1])))
    differences += [_difference(None, f"parameter {i}", "shape, bytes, operator of the gradient", x, y)
              for i, (x, y) in enumerate(zip(*lists, strict=False)) if x != y]  # fmt: skip
    return tuple(differences)


def _difference(operator: int | None, name: str, field: str, first: object, second: object) -> Difference:
    return Difference(operator=operator, name=name, what=field, first=str(first), second=str(second))


def _scaled_shapes(workload: Workload, tensors: tuple[int, ...]) -> list[str]:
    present = [workload.tensors[i] for i in tensors if workload.tensors[i].size_bytes]
    return [f"{tensor.role}{scaled_shape(tensor, workload.batch)}" for tensor in present]


def _parameter(workload: Workload, index: int, place: dict[int, int]) -> tuple[tuple[int, ...], int, int | None]:
    parameter = workload.parameters[index]
    shape, operator = workload.tensors[parameter.weight].shape, parameter.gradient_operator
    return shape, parameter.size_bytes, None if operator is None else place[operator]
