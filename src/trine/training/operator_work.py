"""FLOPs, bytes and times of the operators of a step, from the job that its programs are written from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from trine.compute.cost import Sizing
from trine.compute.origin import known_gpu
from trine.compute.roofline import alike_in, has_tf32_products, peak, precision_of
from trine.errors import InputError
from trine.graph.workload import FORWARD, OPTIMIZER, SYNTHESISED, Operator
from trine.parallel.job import JobContext
from trine.parallel.token_partition import WHOLE
from trine.results.operator_work import OperatorUse, OperatorWork
from trine.training.setup import Setup

#: The phase of forward operators that run again before their gradients.
RECOMPUTE = "recompute"
#: A causal mask leaves half of the products of queries and keys.
_CAUSAL = 0.5


@dataclass(frozen=True, slots=True)
class _Run:
    """One operator of the step. phase: its name. times: runs in a step."""

    operator: Operator
    phase: str
    times: int


def operator_work(setup: Setup) -> OperatorWork | None:
    """Return the work of the operators of one step on one rank per stage; None for a GPU without a data sheet.

    Times are those of the rank programs: without delays by communication that runs beside them. The job is described
    anew here: a result that kept it would hold up to 5 % more memory.
    """
    gpu = known_gpu(setup.gpu_names[0])
    if gpu is None:
        return None
    context = setup.job_context(None)
    workload = context.workload
    source = known_gpu(workload.gpu) if workload.has_gpu_times and workload.format != SYNTHESISED else None
    tf32_products = source is not None and has_tf32_products(workload, source)
    sizing, alike = Sizing(workload), alike_in(workload)
    by_id = {operator.id: operator for operator in workload.operators}
    uses: dict[tuple[str, str, str, str], OperatorUse] = {}
    for run in _runs(context):
        precision = precision_of(run.operator, workload.tensors, tf32_products)
        model = by_id[alike.first(run.operator)]  # equal shapes are sized once
        use = _use(context, sizing, run, model, precision)
        if use.time_ps == 0:
            continue
        key = (use.name, use.phase, use.layer, precision)
        uses[key] = use if key not in uses else _together(uses[key], use)
    peaks = {}
    for precision in sorted({use.precision for use in uses.values()}):
        try:
            peaks[precision] = peak(gpu, precision)
        except InputError:
            continue  # the GPU's data sheet has no peak for it, so that it has no roof
    operators = tuple(sorted(uses.values(), key=lambda use: -use.time_ps))
    return OperatorWork(gpu=gpu.name, memory_bytes_per_s=gpu.memory_bytes_per_s, peaks=peaks, operators=operators)


def _runs(context: JobContext) -> Iterator[_Run]:
    """Yield the operators of a step of one rank per stage."""
    passes = len(context.all_micro_batches)
    for operator in context.workload.operators:
        if operator.phase == OPTIMIZER:
            yield _Run(operator, OPTIMIZER, 1)
            continue
        yield _Run(operator, operator.phase, passes)
        if operator.phase == FORWARD and operator.id in context.runs_again:
            yield _Run(operator, RECOMPUTE, passes)


def _use(context: JobContext, sizing: Sizing, run: _Run, model: Operator, precision: str) -> OperatorUse:
    """Return the use of a run. model: an operator whose tensors have the same shapes."""
    operator, batch = run.operator, context.all_micro_batches[0]
    share = optimizer_share(context) if operator.phase == OPTIMIZER else WHOLE
    work = sizing.work(model, context.work.split(operator, batch, share))
    repeats = run.times * context.token_partition.repeats(operator)
    mask = _CAUSAL if operator.attributes.get("causal") is True else 1.0
    time_ps, _ = context.work.duration(operator, batch, share)
    return OperatorUse(
        name=operator.name,
        phase=run.phase,
        layer=place_of(operator.layer),
        precision=precision,
        count=run.times,
        flops=mask * work.flops * repeats,
        size_bytes=work.bytes * repeats,
        time_ps=time_ps * run.times,
    )


def optimizer_share(context: JobContext) -> Fraction:
    """Return the part of the optimizer's work on one rank of each stage together, without sharded states."""
    shares = [context.optimizer_share(stage) for stage in range(context.plan.pp)]
    return min(sum(shares, Fraction(0)), Fraction(1))


def place_of(layer: str) -> str:
    """Return a module's name with ``*`` for the numbers in it."""
    return ".".join("*" if part.isdigit() else part for part in layer.split("."))


def _together(first: OperatorUse, second: OperatorUse) -> OperatorUse:
    return replace(
        first,
        count=first.count + second.count,
        flops=first.flops + second.flops,
        size_bytes=first.size_bytes + second.size_bytes,
        time_ps=first.time_ps + second.time_ps,
    )
