"""Data parallelism over the GPUs of one machine, predicted from a step measured on one GPU.

The rows of NVIDIA/DeepLearningExamples form pairs: one GPU and several, with the same model, machine, software and
batch. The one-GPU row gives the total time of all operators, divided among them by their shapes. trine adds the costs
of several GPUs: the exposed all-reduces of the buckets, the SMs and bandwidth that they take from the backward pass
(``overlap="modelled"``), the slowest GPU, Horovod's cycles, and CPU contention between processes. The last is fitted
on EfficientNet's rows, which are not judged (benchmarks/fit_host.py): docs/background/data-parallel.md.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np

from trine.common.inputs import PRESETS
from trine.common.schema import Field, Spec
from trine.compute.spread import GPU_SPREAD, slowest_of
from trine.errors import InputError, TrineError, nearest
from trine.graph.workload import Workload
from trine.parallel.plan import Plan
from trine.results.report import Row, Table
from trine.results.text import aligned
from validation.harness import Errors, Target, UnreadRow, Validation, grouped, read_each, read_table

Positive = Annotated[float, Field(gt=0)]


class HorovodFile(Spec):
    """Horovod's schedule: it reduces the ready gradients every ``cycle_ms`` ms, ``fusion_mib`` MiB at once."""

    cycle_ms: Positive
    fusion_mib: Annotated[int, Field(ge=1)]


class HostFile(Spec):
    """CPU contention: ms per step on the first machine in full precision; factors for machines and mixed precision.

    rows: number of pairs in the fit. left_out_error: mean absolute error of pairs left out of a fit.
    """

    step_ms: Positive
    machines: dict[str, Positive]
    amp: Positive
    evidence: str
    rows: Annotated[int, Field(ge=0)]
    left_out_error: Annotated[float, Field(ge=0)]


class ScalingFile(Spec):
    """Costs of more GPUs besides collectives."""

    horovod: HorovodFile
    host: HostFile
    sources: dict[str, str]


ROWS = PRESETS / "measured" / "training" / "data_parallel.csv.gz"
#: Models of the table whose shapes trine has.
SHAPES = {"ConvNets/resnext101-32x4d": "resnext101-32x4d", "ConvNets/se-resnext101-32x4d": "se-resnext101-32x4d"}
#: Part of a machine's name in the table -> cluster.
MACHINES = {"A100": "dgx-a100", "DGX-1": "dgx1-v100"}
EFFICIENTNET, PYTORCH = "ConvNets/efficientnet", "PyTorch"
#: Rows with a higher efficiency are inconsistent: eight GPUs cannot each be much faster than one alone.
MOST = 1.02
MIB = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """A row on one GPU and one on ``gpus``, each in samples per second. ``batch``: samples per GPU and step.

    model: its name in the table, or a model that comes with trine. several: NaN if nobody measured it.
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
        """Efficiency: samples per second and GPU on several GPUs, over samples per second on one."""
        return self.several / self.gpus / self.one

    @property
    def step_s(self) -> float:
        """Seconds of a step on one GPU."""
        return self.batch / self.one

    @property
    def is_judged(self) -> bool:
        """Whether the pair is one of the twenty of ResNeXt-101 and SE-ResNeXt-101 on 1 and 8 GPUs."""
        return self.model in SHAPES and self.gpus == 8

    @property
    def is_fitted_on(self) -> bool:
        """Whether the host's time is fitted on the pair: EfficientNet in PyTorch on 1 and 8 GPUs."""
        return self.model == EFFICIENTNET and self.framework == PYTORCH and self.gpus == 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Scaled:
    """A pair and the extra time of a step on several GPUs compared with one, in seconds.

    collectives_s: buckets and buffers, exposed or by slowing compute; slowest_s: waiting for the slowest GPU;
    software_s: Horovod's cycles, and CPU contention between processes.
    """

    pair: Pair
    collectives_s: float
    slowest_s: float
    software_s: float

    @property
    def predicted(self) -> float:
        """Predicted efficiency."""
        return self.pair.step_s / (self.pair.step_s + self.collectives_s + self.slowest_s + self.software_s)

    @property
    def error(self) -> float:
        """Predicted / measured - 1: positive if trine is too optimistic."""
        return self.predicted / self.pair.measured - 1

    def to_dict(self) -> dict[str, object]:
        """Return plain data: the pair, measured and predicted efficiency, the error and the predicted parts."""
        return {
            **asdict(self.pair), "judged": self.pair.is_judged, "measured": self.pair.measured,
            "predicted": self.predicted, "error": self.error, "collectives_s": self.collectives_s,
            "slowest_s": self.slowest_s, "software_s": self.software_s,
        }  # fmt: skip


# -- rows --------------------------------------------------------------------------------------------------------------


def load_pairs(path: Path = ROWS) -> list[Pair]:
    """Return all pairs of the table whose batch is known, in its order, without inconsistent ones."""
    return read_pairs(path)[0]


def read_pairs(path: Path = ROWS) -> tuple[list[Pair], list[UnreadRow]]:
    """Return :func:`load_pairs`, and the groups of rows that cannot be read."""
    names = ("model", "variant", "framework", "section", "precision", "batch_per_gpu", "batch_as_printed", "seq_len",
             "unit", "xla", "grad_accumulation")  # fmt: skip
    groups = grouped(read_table(path), lambda row: tuple(row[name] for name in names)).values()
    pair_lists, unread = read_each(groups, _pairs, lambda group: (group[0]["model"], _place(group[0])))
    return [pair for pairs in pair_lists for pair in pairs], list(unread)


def _place(row: Mapping[str, str]) -> str:
    return f"{row['source']}:{row['line']}"


def _pairs(group: Sequence[Mapping[str, str]]) -> list[Pair]:
    first, batch = group[0], _batch(group[0])
    counts = {int(row["gpus"]): float(row["throughput"]) for row in reversed(group) if row["gpus"]}
    cluster = next((name for part, name in MACHINES.items() if part in first["section"]), None)
    if 1 not in counts or batch is None or cluster is None:
        return []
    pairs = [
        Pair(
            model=first["model"], variant=first["variant"].removeprefix("Model="), framework=first["framework"],
            cluster=cluster, machine=first["section"].rpartition(": ")[2], precision=first["precision"], batch=batch,
            gpus=gpus, one=counts[1], several=value, source=_place(first),
        )
        for gpus, value in sorted(counts.items()) if gpus > 1
    ]  # fmt: skip
    return [pair for pair in pairs if pair.measured <= MOST]


def _batch(row: Mapping[str, str]) -> int | None:
    """Return the samples per GPU; if the table prints two, the first is full and the second mixed precision."""
    if row["batch_per_gpu"]:
        return int(row["batch_per_gpu"])
    printed = [int(number) for number in re.findall(r"(\d+) \(", row["batch_as_printed"])]
    if printed:
        return printed[-1 if row["precision"] == "amp" else 0]
    return None


# -- prediction --------------------------------------------------------------------------------------------------------


@cache
def scaling_numbers() -> ScalingFile:
    """Return the numbers of presets/scaling.yaml, with their sources."""
    from trine.common.spec import read_spec

    return read_spec(PRESETS / "scaling.yaml", ScalingFile)


def predict(pair: Pair, numbers: ScalingFile | None = None) -> Scaled:
    """Predict the step of a pair on its ``gpus``.

    Raises InputError for a model whose shapes trine lacks, and for a machine without a fit.
    """
    numbers = numbers or scaling_numbers()
    if pair.cluster not in numbers.host.machines:
        machines = ", ".join(numbers.host.machines)
        raise InputError(
            f"what processes lose to each other is known of {machines}, not of {pair.cluster}", field="cluster"
        )
    slowest = slowest_of(pair.gpus, GPU_SPREAD)
    workload = measured_workload(pair, pair.step_s * (1 + slowest))
    horovod = None if pair.framework == PYTORCH else numbers.horovod
    bucket = 25 * MIB if horovod is None else horovod.fusion_mib * MIB
    first_bucket = MIB if horovod is None else bucket
    buffers = "auto" if horovod is None else "none"
    plan = Plan(
        dp=pair.gpus, overlap="modelled", inputs="none", bucket_bytes=bucket, first_bucket_bytes=first_bucket,
        buffers=buffers,
    )  # fmt: skip
    step_s, software = _simulated(workload, plan, pair.cluster), _host_s(numbers.host, pair)
    if horovod is not None:
        software += horovod.cycle_ms / 2 / 1e3  # the last gradient waits for half a cycle on average
    return Scaled(
        pair=pair, collectives_s=step_s - pair.step_s * (1 + slowest), slowest_s=pair.step_s * slowest,
        software_s=software,
    )  # fmt: skip


@cache
def _predict_cached(pair: Pair) -> Scaled:
    return predict(pair)


def _simulated(workload: Workload, plan: Plan, cluster: str) -> float:
    from trine.training import simulate

    return simulate(workload, plan, cluster=cluster, compute="recorded", software="none", compare=False).step_time_s


def measured_workload(pair: Pair, step_s: float) -> Workload:
    """Return the model's step, its operators scaled to take ``step_s`` in proportion to a roofline of their shapes."""
    from trine.workload.synthesis.model import synthesize
    from trine.workload.synthesis.model_names import known_models

    name = SHAPES.get(pair.model, pair.model)
    if name not in known_models():
        raise InputError(f"trine has no shapes of {pair.model}{nearest(name, known_models())}", field="model")
    workload = synthesize(
        name, gpu=_gpu(pair), batch=pair.batch, dtype=pair.precision, times="roofline", software="none"
    )
    factor = step_s * 1e12 / sum(op.gpu_time_ps for op in workload.operators)
    operators = tuple(replace(op, gpu_time_ps=round(op.gpu_time_ps * factor)) for op in workload.operators)
    return replace(workload, operators=operators)


def _gpu(pair: Pair) -> str:
    return "a100-80gb" if pair.cluster == "dgx-a100" else "v100"


def _host_s(host: HostFile, pair: Pair) -> float:
    """Return the CPU contention of any framework; more in amp with PyTorch, whose GradScaler waits for the GPU."""
    amp = host.amp if pair.precision == "amp" and pair.framework == PYTORCH else 1.0
    return host.step_ms * host.machines[pair.cluster] * amp * 1e-3


# -- the twenty pairs --------------------------------------------------------------------------------------------------


def scaling_rows(pairs: Iterable[Pair] | None = None, unread: list[UnreadRow] | None = None) -> list[Scaled]:
    """Predict the judged pairs, then the pairs that the host's time is fitted on.

    The latter have no collectives (EfficientNet's gradients are 21 and 77 MB), because trine lacks their shapes.
    Pairs that cannot be predicted are added to ``unread``; without ``unread`` they raise InputError.
    """
    bundled = load_pairs() if pairs is None else list(pairs)
    numbers = scaling_numbers()
    judged = []
    for pair in (pair for pair in bundled if pair.is_judged):
        try:
            judged.append(_predict_cached(pair))
        except TrineError as error:
            if unread is None:
                raise
            unread.append(UnreadRow(source=pair.model, name=pair.source, why=str(error)))
    return judged + [without_collectives(pair, numbers.host) for pair in bundled if pair.is_fitted_on]


def without_collectives(pair: Pair, host: HostFile) -> Scaled:
    """Return the costs of slower GPUs and CPU contention only, because trine lacks EfficientNet's shapes."""
    return Scaled(
        pair=pair, collectives_s=0.0, slowest_s=pair.step_s * slowest_of(pair.gpus, GPU_SPREAD),
        software_s=_host_s(host, pair),
    )  # fmt: skip


def pairs_not_asked(pairs: Iterable[Pair] | None = None) -> dict[str, list[Pair]]:
    """Return all other pairs within one machine, by framework and model: not predicted, as trine lacks their shapes."""
    candidates = load_pairs() if pairs is None else pairs
    unasked = (pair for pair in candidates if not pair.is_judged and not pair.is_fitted_on and pair.gpus <= 8)
    return grouped(unasked, lambda pair: f"{pair.framework}/{pair.model}")


def scaling_errors(rows: Sequence[Scaled]) -> tuple[Errors, Errors]:
    """Return the errors of ``rows``, and the errors of a constant efficiency, the mean of ``rows``."""
    measured = np.array([row.pair.measured for row in rows])
    return Errors.interpolated([row.error for row in rows]), Errors.interpolated(measured.mean() / measured - 1)


# -- the answer --------------------------------------------------------------------------------------------------------

#: Targets of issue 14 for the judged pairs: mean and 90th percentile of the efficiency's absolute error.
TARGET = Target(mean=0.04, p90=0.08)


@dataclass(frozen=True, kw_only=True, repr=False)
class ScalingValidation(Validation):
    """rows: judged pairs, and pairs that the host's time is fitted on. not_asked: others, by framework and model."""

    SCHEMA: ClassVar[str] = "validate-scaling"

    rows: tuple[Scaled, ...]
    not_asked: dict[str, list[Pair]]

    @property
    def judged(self) -> list[Scaled]:
        """Judged rows, the worst first."""
        return self._worst_first(is_judged=True)

    @property
    def fitted(self) -> list[Scaled]:
        """Rows that the host's time is fitted on, the worst first."""
        return self._worst_first(is_judged=False)

    def _worst_first(self, is_judged: bool) -> list[Scaled]:
        chosen = [row for row in self.rows if row.pair.is_judged == is_judged]
        return sorted(chosen, key=lambda row: -abs(row.error))

    @property
    def headline(self) -> str:
        """Error of the predicted efficiencies, in one sentence."""
        errors, constant = scaling_errors(self.judged)
        return (
            f"{errors.count} published pairs of 1 and 8 GPUs: the efficiency is off by {errors.mean:.1%} on "
            f"average, nine of ten within {errors.p90:.1%}, bias {errors.bias:+.1%} (a constant: "
            f"{constant.mean:.1%}, {constant.p90:.1%})"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        return (
            f"what processes lose to each other on the CPUs is fitted on {len(self.fitted)} rows of EfficientNet, none "
            "of which is judged",
        )

    def paragraphs(self) -> Iterable[Sequence[str]]:
        """Return the judged pairs, worst first, with the parts of their predictions, the fitted rows, then the rest."""
        for title, rows in (("pairs", self.judged), ("fitted on", self.fitted)):
            head = (title, "batch", "measured", "trine", "error", "NCCL", "slowest", "software")
            yield aligned([head, *map(_cells, rows)], 30)
        yield self.not_predicted_lines()
        lines = []
        for name, pairs in sorted(self.not_asked.items()):
            least = min(p.measured for p in pairs)
            most = max(p.measured for p in pairs)
            lines.append(f"  {len(pairs):3d}  {name}: efficiency {least:.2f} to {most:.2f}")
        yield ["not asked, as trine has no shapes of them", *lines]

    def document(self) -> Row:
        """Return ``errors`` of judged pairs, ``targets``, ``rows``, ``fitted_on``, ``not_asked`` (pairs per model)."""
        errors, constant = scaling_errors(self.judged)
        return {
            "targets": TARGET.limits("{}_error_max"),
            "errors": {
                "num_pairs": errors.count, "mean": errors.mean, "p90": errors.p90, "bias": errors.bias,
                "constant_mean": constant.mean, "constant_p90": constant.p90,
            },
            **self.tables(),
            "not_predicted": self.not_predicted(),
            "not_asked": {name: len(pairs) for name, pairs in sorted(self.not_asked.items())},
        }  # fmt: skip

    def tables(self) -> dict[str, Table]:
        """Return ``rows`` and ``fitted_on`` of :meth:`document`, the worst first."""
        judged = [row.to_dict() for row in self.judged]
        fitted = [row.to_dict() for row in self.fitted]
        return {"rows": judged, "fitted_on": fitted}


def validate_scaling() -> ScalingValidation:
    """Predict the bundled pairs."""
    pairs, unread = read_pairs()
    rows = scaling_rows(pairs, unread)
    return ScalingValidation(rows=tuple(rows), not_asked=pairs_not_asked(pairs), unread=tuple(unread))


def _cells(row: Scaled) -> tuple[str, ...]:
    pair = row.pair
    model = (pair.variant or pair.model.rpartition("/")[2]).removesuffix("-32x4d")
    parts = (row.collectives_s, row.slowest_s, row.software_s)
    return (
        f"{pair.framework} {model} {pair.machine.removeprefix('NVIDIA ').partition(' (')[0]} {pair.precision}",
        str(pair.batch), f"{pair.measured:.3f}", f"{row.predicted:.3f}", f"{row.error:+.1%}",
        *(f"{part * 1e3:.1f} ms" for part in parts),
    )  # fmt: skip
