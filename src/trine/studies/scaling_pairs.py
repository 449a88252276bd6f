"""Data parallelism over the GPUs of one machine, from a step that was measured on one of them.

Rows of NVIDIA/DeepLearningExamples in pairs: one GPU and several, of the same model, machine, software and batch. The
one-GPU row gives the time of all operators together (the shapes divide it among them); trine adds what several GPUs
cost: the all-reduces of the buckets where they are exposed, the SMs and bandwidth that they take from the backward
pass (``overlap="modelled"``), the slowest GPU, Horovod's cycles, and what the processes lose to each other on the
CPUs. The last is fitted on EfficientNet's rows, none of which is judged (:func:`fit_host`):
docs/background/data-parallel.md.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Annotated

import numpy as np

from trine.compute.spread import GPU_SPREAD, slowest_of
from trine.errors import InputError, TrineError, nearest
from trine.graph.workload import Workload
from trine.inputs import PRESETS
from trine.parallel.plan import Plan
from trine.schema import Field, Spec
from trine.studies.unread import ROW_ERRORS, UnreadRow, why_unread

Positive = Annotated[float, Field(gt=0)]


class HorovodFile(Spec):
    """How Horovod reduces: every ``cycle_ms`` milliseconds what is ready, ``fusion_mib`` MiB at once."""

    cycle_ms: Positive
    fusion_mib: Annotated[int, Field(ge=1)]


class HostFile(Spec):
    """Milliseconds a step on the first machine in full precision; factors of machines and of mixed precision.

    rows: how many pairs it is fitted on. left_out_error: mean absolute error of pairs that a fit left out.
    """

    step_ms: Positive
    machines: dict[str, Positive]
    amp: Positive
    evidence: str
    rows: Annotated[int, Field(ge=0)]
    left_out_error: Annotated[float, Field(ge=0)]


class ScalingFile(Spec):
    """What more GPUs cost beside collectives."""

    horovod: HorovodFile
    host: HostFile
    sources: dict[str, str]


ROWS = PRESETS / "measured" / "training" / "data_parallel.csv.gz"
#: Models of the table that trine has the shapes of.
SHAPES = {"ConvNets/resnext101-32x4d": "resnext101-32x4d", "ConvNets/se-resnext101-32x4d": "se-resnext101-32x4d"}
#: Part of a machine's name in the table -> cluster.
MACHINES = {"A100": "dgx-a100", "DGX-1": "dgx1-v100"}
EFFICIENTNET, PYTORCH = "ConvNets/efficientnet", "PyTorch"
#: Rows with a higher efficiency contradict themselves: eight GPUs are not twice as fast each as one.
MOST = 1.02
MIB = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """A row on one GPU and one on ``gpus``: samples a second of both. ``batch``: samples of a GPU and step.

    model: as the table names it, or a model that comes with trine. several: not a number where nobody measured it.
    """

    model: str
    variant: str
    framework: str
    cluster: str
    machine: str
    precision: str
    batch: int
    gpus: int
    one: float
    several: float = math.nan
    source: str = ""

    @property
    def measured(self) -> float:
        """Efficiency: samples a second of a GPU among several over those of one alone."""
        return self.several / self.gpus / self.one

    @property
    def step_s(self) -> float:
        """Seconds of a step on one GPU."""
        return self.batch / self.one

    @property
    def is_judged(self) -> bool:
        """Whether it is one of the twenty pairs of ResNeXt-101 and SE-ResNeXt-101 on 1 and 8 GPUs."""
        return self.model in SHAPES and self.gpus == 8

    @property
    def is_fitted_on(self) -> bool:
        """Whether the host's time is fitted on it: EfficientNet in PyTorch on 1 and 8 GPUs."""
        return self.model == EFFICIENTNET and self.framework == PYTORCH and self.gpus == 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Scaled:
    """A pair and what a step on several GPUs takes longer than on one, in seconds.

    collectives_s: buckets and buffers, exposed or by slowing compute; slowest_s: waiting for the slowest GPU;
    software_s: Horovod's cycles, and what processes lose to each other on the CPUs.
    """

    pair: Pair
    collectives_s: float
    slowest_s: float
    software_s: float

    @property
    def predicted(self) -> float:
        """Efficiency."""
        return self.pair.step_s / (self.pair.step_s + self.collectives_s + self.slowest_s + self.software_s)

    @property
    def error(self) -> float:
        """Predicted / measured - 1: positive where trine is too optimistic."""
        return self.predicted / self.pair.measured - 1

    def to_dict(self) -> dict[str, object]:
        """Plain data: the pair, measured and predicted efficiency, error, and what it is made of."""
        return {
            **asdict(self.pair), "judged": self.pair.is_judged, "measured": self.pair.measured,
            "predicted": self.predicted, "error": self.error, "collectives_s": self.collectives_s,
            "slowest_s": self.slowest_s, "software_s": self.software_s,
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalingErrors:
    """Absolute errors of some pairs, beside those of a constant efficiency (their own mean)."""

    num_pairs: int
    mean: float
    p90: float
    bias: float
    constant_mean: float
    constant_p90: float


# -- rows --------------------------------------------------------------------------------------------------------------


def load_pairs(path: Path = ROWS) -> list[Pair]:
    """All pairs of the table whose batch is known, in its order; those that contradict themselves are left out."""
    return read_pairs(path)[0]


def read_pairs(path: Path = ROWS) -> tuple[list[Pair], list[UnreadRow]]:
    """Return :func:`load_pairs`, and the groups of rows that cannot be read."""
    with gzip.open(path, "rb") as file:
        rows = list(csv.DictReader(io.TextIOWrapper(file, "utf-8", newline="")))
    groups: dict[tuple[str, ...], list[Mapping[str, str]]] = {}
    names = ("model", "variant", "framework", "section", "precision", "batch_per_gpu", "batch_as_printed", "seq_len",
             "unit", "xla", "grad_accumulation")  # fmt: skip
    for row in rows:
        groups.setdefault(tuple(row[name] or "" for name in names), []).append(row)
    pairs: list[Pair] = []
    unread: list[UnreadRow] = []
    for group in groups.values():
        try:
            pairs += _pairs(group)
        except ROW_ERRORS as error:
            name = f"{group[0]['source']}:{group[0]['line']}"
            unread.append(UnreadRow(source=group[0]["model"], name=name, why=why_unread(error)))
    return pairs, unread


def _pairs(group: Sequence[Mapping[str, str]]) -> list[Pair]:
    first, batch = group[0], _batch(group[0])
    counts = {int(row["gpus"]): float(row["throughput"]) for row in reversed(group) if row["gpus"]}
    cluster = next((name for part, name in MACHINES.items() if part in first["section"]), None)
    if 1 not in counts or batch is None or cluster is None:
        return []
    found = [
        Pair(
            model=first["model"], variant=first["variant"].removeprefix("Model="), framework=first["framework"],
            cluster=cluster, machine=first["section"].rpartition(": ")[2], precision=first["precision"], batch=batch,
            gpus=gpus, one=counts[1], several=value, source=f"{first['source']}:{first['line']}",
        )
        for gpus, value in sorted(counts.items()) if gpus > 1
    ]  # fmt: skip
    return [pair for pair in found if pair.measured <= MOST]


def _batch(row: Mapping[str, str]) -> int | None:
    """Samples of a GPU; where the table prints two, of full and of mixed precision, the second is the latter's."""
    if row["batch_per_gpu"]:
        return int(row["batch_per_gpu"])
    printed = [int(number) for number in re.findall(r"(\d+) \(", row["batch_as_printed"])]
    if not printed:
        return None
    return printed[-1] if row["precision"] == "amp" else printed[0]


# -- prediction --------------------------------------------------------------------------------------------------------


@cache
def scaling_numbers() -> ScalingFile:
    """The numbers of presets/scaling.yaml, with their sources."""
    from trine.spec import read_spec

    return read_spec(PRESETS / "scaling.yaml", ScalingFile)


def predict(pair: Pair, numbers: ScalingFile | None = None) -> Scaled:
    """The step of a pair on its ``gpus``.

    Raises InputError for a model that trine has no shapes of, and a machine that nothing was fitted on.
    """
    numbers = numbers or scaling_numbers()
    if pair.cluster not in numbers.host.machines:
        known = ", ".join(numbers.host.machines)
        raise InputError(
            f"what processes lose to each other is known of {known}, not of {pair.cluster}", field="cluster"
        )
    slowest = slowest_of(pair.gpus, GPU_SPREAD)
    workload = measured_workload(pair, pair.step_s * (1 + slowest))
    horovod = None if pair.framework == PYTORCH else numbers.horovod
    bucket = 25 * MIB if horovod is None else horovod.fusion_mib * MIB
    plan = Plan(
        dp=pair.gpus, overlap="modelled", inputs="none", bucket_bytes=bucket,
        first_bucket_bytes=MIB if horovod is None else bucket, buffers="auto" if horovod is None else "none",
    )  # fmt: skip
    step_s, software = _simulated(workload, plan, pair.cluster), _host_s(numbers.host, pair)
    if horovod is not None:
        software += horovod.cycle_ms / 2 / 1e3  # the last gradient waits for half a cycle on average
    return Scaled(
        pair=pair, collectives_s=step_s - pair.step_s * (1 + slowest), slowest_s=pair.step_s * slowest,
        software_s=software,
    )  # fmt: skip


@cache
def _predicted(pair: Pair) -> Scaled:
    return predict(pair)


def _simulated(workload: Workload, plan: Plan, cluster: str) -> float:
    from trine.simulation import simulate

    return simulate(workload, plan, cluster=cluster, compute="recorded", software="none", compare=False).step_time_s


def measured_workload(pair: Pair, step_s: float) -> Workload:
    """The model's step with operators that take ``step_s`` together, in proportion to a roofline of their shapes."""
    from trine.workload.synthesis.model import synthesize
    from trine.workload.synthesis.spec import known_models

    name = SHAPES.get(pair.model, pair.model)
    if name not in known_models():
        raise InputError(f"trine has no shapes of {pair.model}{nearest(name, known_models())}", field="model")
    written = synthesize(
        name, gpu=_gpu(pair), batch=pair.batch, dtype=pair.precision, times="roofline", software="none"
    )
    factor = step_s * 1e12 / sum(op.gpu_time_ps for op in written.operators)
    operators = tuple(replace(op, gpu_time_ps=round(op.gpu_time_ps * factor)) for op in written.operators)
    return replace(written, operators=operators)


def _gpu(pair: Pair) -> str:
    return "a100-80gb" if pair.cluster == "dgx-a100" else "v100"


def _host_s(host: HostFile, pair: Pair) -> float:
    """What processes lose to each other, of any framework; more in amp where PyTorch's GradScaler waits for the GPU."""
    amp = host.amp if pair.precision == "amp" and pair.framework == PYTORCH else 1.0
    return host.step_ms * host.machines[pair.cluster] * amp * 1e-3


# -- the twenty pairs --------------------------------------------------------------------------------------------------


def scaling_rows(pairs: Iterable[Pair] | None = None, unread: list[UnreadRow] | None = None) -> list[Scaled]:
    """Predictions of the judged pairs, and behind them of those that the host's time is fitted on.

    The latter are without collectives (EfficientNet's gradients are 21 and 77 MB): trine does not have its shapes.
    Pairs that cannot be predicted are added to ``unread``; without it they raise InputError.
    """
    chosen = load_pairs() if pairs is None else list(pairs)
    numbers = scaling_numbers()
    judged = []
    for pair in (pair for pair in chosen if pair.is_judged):
        try:
            judged.append(_predicted(pair))
        except TrineError as error:
            if unread is None:
                raise
            unread.append(UnreadRow(source=pair.model, name=pair.source, why=str(error)))
    return judged + [_without_collectives(pair, numbers.host) for pair in chosen if pair.is_fitted_on]


def pairs_not_asked(pairs: Iterable[Pair] | None = None) -> dict[str, list[Pair]]:
    """All other pairs within one machine, by framework and model: measured alone, as trine does not have the shapes."""
    found: dict[str, list[Pair]] = {}
    for pair in load_pairs() if pairs is None else pairs:
        if not pair.is_judged and not pair.is_fitted_on and pair.gpus <= 8:
            found.setdefault(f"{pair.framework}/{pair.model}", []).append(pair)
    return found


def scaling_errors(rows: Sequence[Scaled]) -> ScalingErrors:
    """Statistics of the absolute errors of ``rows``."""
    errors = np.array([row.error for row in rows])
    measured = np.array([row.pair.measured for row in rows])
    constant = np.abs(measured.mean() / measured - 1)
    return ScalingErrors(
        num_pairs=len(rows), mean=float(np.abs(errors).mean()), p90=float(np.quantile(np.abs(errors), 0.9)),
        bias=float(errors.mean()), constant_mean=float(constant.mean()),
        constant_p90=float(np.quantile(constant, 0.9)),
    )  # fmt: skip


# -- what is fitted ----------------------------------------------------------------------------------------------------


def host_rows(pairs: Iterable[Pair] | None = None) -> list[Pair]:
    """The rows that the host's time is fitted on."""
    return [pair for pair in (load_pairs() if pairs is None else pairs) if pair.is_fitted_on]


def _without_collectives(pair: Pair, host: HostFile) -> Scaled:
    return Scaled(
        pair=pair, collectives_s=0.0, slowest_s=pair.step_s * slowest_of(pair.gpus, GPU_SPREAD),
        software_s=_host_s(host, pair),
    )  # fmt: skip


def fit_host(pairs: Sequence[Pair], numbers: ScalingFile | None = None) -> HostFile:
    """The three numbers of the host time with the least mean absolute error on ``pairs``, by a search that narrows."""
    numbers = numbers or scaling_numbers()
    best: tuple[float, ...] = (math.log(10.0), math.log(0.5), math.log(2.0))
    step = 0.8
    while step > 0.005:
        around = product(*((log - step, log, log + step) for log in best))
        nearer = min(around, key=lambda logs: (_error(pairs, _host(numbers.host, logs)), logs != best))
        best, step = nearer, step if nearer != best else step / 2
    return _host(numbers.host, best)


def _host(known: HostFile, logs: tuple[float, ...]) -> HostFile:
    """Numbers from the logarithms of the time on the first machine and of the factors of the second and of amp."""
    first, second = known.machines
    ms, machine, amp = (math.exp(log) for log in logs)
    return known.model_copy(update={"step_ms": ms, "machines": {first: 1.0, second: machine}, "amp": amp})


def _error(pairs: Sequence[Pair], host: HostFile) -> float:
    return sum(abs(_without_collectives(pair, host).error) for pair in pairs)


def left_out_error(pairs: Sequence[Pair], numbers: ScalingFile | None = None) -> float:
    """Mean absolute error of each machine's and model's rows with numbers fitted on all others."""
    numbers = numbers or scaling_numbers()
    errors: list[float] = []
    for key in sorted({(p.machine, p.variant) for p in pairs}):
        mine = [p for p in pairs if (p.machine, p.variant) == key]
        host = fit_host([p for p in pairs if (p.machine, p.variant) != key], numbers)
        errors += [abs(_without_collectives(p, host).error) for p in mine]
    return float(np.mean(errors))
