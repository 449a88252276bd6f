"""Time from the data sheet alone: FLOPs and bytes of an operator against stated shares of the GPU's peaks.

    time = fixed + max(FLOPs / (peak x share of its kind), bytes / (memory bandwidth x share))

(Williams et al., Roofline, CACM 2009, with efficiencies.) The shares are one set for all GPUs and all operators of a
kind, so errors of tens of percent are usual: docs/background/roofline.md has them, case by case. Where a trace exists,
use it. Operators that only rename memory take no time.

Also here: the precision of an operator, the data sheet's bound on its time, and which operators do the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from trine.cluster.presets import GpuSpec
from trine.compute.cost import Sizing, Work, work
from trine.compute.kinds import family_of, is_compute_bound, kind_of
from trine.compute.law import FitReport
from trine.compute.resize import Split
from trine.errors import InputError, nearest
from trine.graph.workload import Operator, Tensor, Workload
from trine.units import PS_PER_S


class Alike:
    """Names, for each operator of a workload, the first one whose work is the same under any split."""

    def __init__(self, workload: Workload) -> None:
        self._tensors = workload.tensors
        self._by_id = {op.id: op for op in workload.operators}
        self._alike: dict[object, int] = {}
        self._first: dict[int, int] = {}
        self._shapes_of: dict[int, tuple[object, ...]] = {}
        self._facts_of: dict[int, int | None] = {}
        self._numbers: dict[object, int] = {}

    def forward_of(self, operator: Operator) -> Operator | None:
        """The operator whose gradient ``operator`` computes."""
        return None if operator.forward_id is None else self._by_id.get(operator.forward_id)

    def first(self, operator: Operator) -> int:
        """The id of the first operator of the same name on tensors of the same shapes."""
        found = self._first.get(operator.id)
        if found is None:
            forward = self.forward_of(operator)
            key = self._shapes(operator), None if forward is None else self._shapes(forward)
            found = self._first[operator.id] = self._alike.setdefault(key, operator.id)
        return found

    def _shapes(self, operator: Operator) -> tuple[object, ...]:
        """All that the work of an operator depends on, which of its tensors are the same one included."""
        found = self._shapes_of.get(operator.id)
        if found is not None:
            return found
        number: dict[int, int] = {}
        sizes: list[object] = []
        for tensor in (*operator.inputs, *operator.outputs):
            facts = self._facts(tensor)
            if facts is not None:
                sizes += number.setdefault(tensor, len(number)), facts
        attributes = tuple(sorted((name, repr(value)) for name, value in operator.attributes.items()))
        shapes = operator.name, operator.phase, len(operator.inputs), tuple(sizes), attributes
        self._shapes_of[operator.id] = shapes
        return shapes

    def _facts(self, tensor: int) -> int | None:
        """A number for the shape, type and role of a tensor, the same for tensors alike; None for an unknown one."""
        if tensor not in self._facts_of:
            t = self._tensors.get(tensor)
            what = None if t is None else (t.shape, t.dtype, t.size_bytes, t.role, t.batch_dims)
            self._facts_of[tensor] = None if what is None else self._numbers.setdefault(what, len(self._numbers))
        return self._facts_of[tensor]


_DTYPES = {
    "float": "float32", "double": "float64", "half": "float16", "bfloat16": "bfloat16", "float32": "float32",
    "float64": "float64", "float16": "float16", "tfloat32": "tfloat32", "float8_e4m3fn": "float8",
    "float8_e5m2": "float8", "float8": "float8",
}  # fmt: skip


def check_peaks(gpu: GpuSpec) -> None:
    """Raise InputError if a peak of ``gpu`` is not positive."""
    if gpu.memory_bytes_per_s <= 0 or any(rate <= 0 for rate in gpu.flop_per_s.values()):
        raise InputError(f"GPU {gpu.name} has a peak that is not positive", field="gpu")


def dtype_name(tensor: Tensor) -> str:
    """The floating-point type of a tensor; float32 for what is none."""
    return _DTYPES.get(tensor.dtype.removeprefix("torch.").removeprefix("c10::").lower(), "float32")


def dtype_of(operator: Operator, tensors: Mapping[int, Tensor]) -> str:
    """Floating-point type of the first tensor of ``operator`` that has one, outputs first; float32 if none has.

    A product that makes the gradient of a weight may add it up in another type than that of its factors, which counts.
    """
    made = operator.attributes.get("gradient_of") != "weight"
    for i in (*operator.outputs, *operator.inputs) if made else (*operator.inputs, *operator.outputs):
        tensor = tensors.get(i)
        if tensor is not None:
            found = _DTYPES.get(tensor.dtype.removeprefix("torch.").removeprefix("c10::").lower())
            if found is not None:
                return found
    return "float32"


def stated_precision(operator: Operator) -> str:
    """Precision of its arithmetic as the attribute ``precision`` has it (``float32``, ``tfloat32``), else ``""``."""
    stated = operator.attributes.get("precision")
    return stated if isinstance(stated, str) and stated in ("float32", "tfloat32") else ""


def precision_of(operator: Operator, tensors: Mapping[int, Tensor], tf32_products: bool) -> str:
    """Precision of its arithmetic: PyTorch lets convolutions use TF32, and matrix products only if asked.

    tf32_products: whether it was asked (:func:`has_tf32_products`). A stated precision counts before both.
    """
    stated = stated_precision(operator)
    if stated:
        return stated
    dtype, kind = dtype_of(operator, tensors), kind_of(operator)
    uses_tf32 = family_of(kind) == "conv" or (is_compute_bound(kind) and tf32_products)
    return "tfloat32" if dtype == "float32" and uses_tf32 else dtype


def has_tf32_products(workload: Workload, source: GpuSpec) -> bool:
    """Whether some product of float32 matrices ran faster than float32 can on the source, so that it was TF32."""
    most = source.flop_per_s.get("float32", 0)
    for op in workload.operators:
        kind = kind_of(op)
        is_product = (
            is_compute_bound(kind) and family_of(kind) != "conv" and dtype_of(op, workload.tensors) == "float32"
        )
        if is_product and work(op, workload).flops * PS_PER_S > most * op.gpu_time_ps > 0:
            return True
    return False


def least_time_s(gpu: GpuSpec, amount: Work, precision: str) -> float:
    """Roofline of ``gpu``: the least time, in seconds, that ``amount`` can take."""
    return max(amount.flops / peak(gpu, precision), amount.bytes / gpu.memory_bytes_per_s)


def peak(gpu: GpuSpec, precision: str) -> int:
    """Peak FLOP/s; a GPU without TF32 runs it as float32. Raises InputError for a precision that it does not have."""
    rates: Mapping[str, int] = gpu.flop_per_s
    for name in (precision, "float32") if precision == "tfloat32" else (precision,):
        if name in rates:
            return rates[name]
    raise InputError(f"GPU {gpu.name} has no peak for {precision}{nearest(precision, rates)}", field="gpu")


@dataclass(frozen=True, slots=True)
class Duration:
    """``ps``: picoseconds on the GPU. ``evidence``: 'measured', 'interpolated', 'modelled' or 'assumed'."""

    ps: int
    evidence: str


#: Names of this model and of that of measured tables, and values of ``Workload.metadata["times"]`` of a workload whose
#: times are theirs.
ROOFLINE, TABLES = "roofline", "tables"
_PREFIX = "roofline."
_MAX_FIXED_US = 1e6
_FAMILIES = {"linear": "matmul", "matmul": "matmul", "attention": "attention", "conv": "conv"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Shares:
    """Which share of a data sheet's peak operators reach, and what each takes beyond that.

    matmul, attention, conv: of the FLOP/s of their precision (convolutions of float32 run in TF32). Causal attention
    counts half of its products. memory: of the memory bandwidth. fixed_us: microseconds that every operator takes.
    Defaults are round numbers near the medians of public measurements on A100, H100, H200 and L40S
    (docs/background/roofline.md). Raises InputError for a share that is not above 0 and at most 1.
    """

    matmul: float = 0.75
    attention: float = 0.45
    conv: float = 0.25
    memory: float = 0.7
    fixed_us: float = 3.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InputError(f"must be a number, got {value!r}", field=name)
            if name == "fixed_us":
                if not 0 <= value <= _MAX_FIXED_US:
                    raise InputError(f"must be microseconds from 0 to {_MAX_FIXED_US:g}, got {value}", field=name)
            elif not 0 < value <= 1:
                raise InputError(f"must be a share above 0 and at most 1, got {value}", field=name)

    @staticmethod
    def of(given: Mapping[str, float]) -> Shares:
        """The defaults with ``given`` in place of some. Raises InputError for an unknown name."""
        known = [field.name for field in fields(Shares)]
        for name in given:
            if name not in known:
                raise InputError(f"unknown share {name!r}{nearest(name, known)}", field="shares")
        return Shares(**given)

    @property
    def text(self) -> str:
        """The shares in words."""
        return (
            f"{self.matmul:.0%} of the peak for matrix products, {self.attention:.0%} for attention, {self.conv:.0%} "
            f"for convolutions, {self.memory:.0%} of the memory bandwidth, {self.fixed_us:g} us per operator"
        )

    def to_metadata(self) -> dict[str, str]:
        """Entries for ``Workload.metadata`` from which :meth:`from_metadata` reads the same shares."""
        return {_PREFIX + name: repr(value) for name, value in asdict(self).items()}

    @staticmethod
    def from_metadata(metadata: Mapping[str, str]) -> Shares:
        """The shares that a workload names; the defaults where it names none. Raises InputError for other values."""
        given = {key.removeprefix(_PREFIX): text for key, text in metadata.items() if key.startswith(_PREFIX)}
        try:
            return Shares.of({name: float(text) for name, text in given.items()})
        except ValueError as error:
            raise InputError(f"the trace's metadata names no shares: {error}", field="roofline") from None


class Roofline:
    """The model above for one workload on one GPU. Times are kept by (operator, split)."""

    name = ROOFLINE

    def __init__(self, workload: Workload, gpu: GpuSpec, shares: Shares | None = None) -> None:
        check_peaks(gpu)
        self._gpu = gpu
        self._shares = shares if shares is not None else Shares.from_metadata(workload.metadata)
        self._tensors = workload.tensors
        self._sizing = Sizing(workload)
        self._known: dict[tuple[int, Split], Duration] = {}
        self._alike = Alike(workload)
        self._rates: dict[tuple[str, str], float] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        return (f"operator times are a roofline of the {self._gpu.name}: {self._shares.text}", *self._sizing.notes)

    def fit_report(self) -> FitReport | None:
        return None

    def duration(self, operator: Operator, split: Split) -> Duration:
        """Picoseconds, rounded up; 'assumed' always. Raises InputError where the GPU has no peak for the dtype."""
        key = self._alike.first(operator), split
        found = self._known.get(key)
        if found is None:
            ps = self.time_ps(operator, self._sizing.work(operator, split))
            found = self._known[key] = Duration(ps, "assumed")
        return found

    def time_ps(self, operator: Operator, amount: Work) -> int:
        """Picoseconds that ``operator`` takes for ``amount``."""
        if not amount.flops and not amount.bytes:
            return 0
        causal = 0.5 if operator.attributes.get("causal") is True else 1.0
        seconds = max(
            causal * amount.flops / self._rate(operator),
            amount.bytes / (self._gpu.memory_bytes_per_s * self._shares.memory),
        )
        return math.ceil(self._shares.fixed_us * 1e6 + seconds * PS_PER_S)

    def _rate(self, operator: Operator) -> float:
        """FLOP/s that an operator of this kind and dtype reaches; those bound by memory are never bound by it."""
        family = family_of(kind_of(operator))
        share = _FAMILIES.get(family)
        if share is None:
            return math.inf
        dtype = dtype_of(operator, self._tensors)
        precision = stated_precision(operator) or ("tfloat32" if dtype == "float32" and family == "conv" else dtype)
        key = share, precision
        if key not in self._rates:
            self._rates[key] = peak(self._gpu, precision) * float(getattr(self._shares, share))
        return self._rates[key]
