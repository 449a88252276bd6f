"""Operator times from the data sheet alone: FLOPs and bytes divided by stated shares of the GPU's peaks.

    time = fixed + max(FLOPs / (peak x share of its kind), bytes / (memory bandwidth x share))

(Williams et al., Roofline, CACM 2009, with efficiencies.) One set of shares serves all GPUs and all operators of a
kind, so errors of tens of percent are usual; docs/background/roofline.md lists them case by case. Use a trace if one
exists. Operators that only rename memory take no time.

Also here: the precision of an operator, the data sheet's bound on its time, and classes of operators with equal work.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

from trine.cluster.presets import GpuSpec
from trine.common.kept import keep
from trine.common.precision import ARITHMETIC, BY_NAME, PRECISIONS
from trine.common.units import PS_PER_S, finite_number
from trine.compute.cost import Sizing, Work, work
from trine.compute.kinds import family_of, is_compute_bound, kind_of
from trine.compute.resize import Split
from trine.errors import InputError, nearest
from trine.graph.workload import Operator, Tensor, Workload

if TYPE_CHECKING:
    from trine.compute.law import FitReport


class Alike:
    """Index from each operator of a workload to the first operator with the same work under any split."""

    def __init__(self, workload: Workload) -> None:
        self._tensors = workload.tensors
        self._by_id = {op.id: op for op in workload.operators}
        self._alike: dict[object, int] = {}
        self._first: dict[int, int] = {}
        self._shapes_of: dict[int, tuple[object, ...]] = {}
        self._facts_of: dict[int, int | None] = {}
        self._numbers: dict[object, int] = {}

    def forward_of(self, operator: Operator) -> Operator | None:
        """Return the operator whose gradient ``operator`` computes."""
        return None if operator.forward_id is None else self._by_id.get(operator.forward_id)

    def first(self, operator: Operator) -> int:
        """Return the id of the first operator of the same name on tensors of the same shapes."""
        first = self._first.get(operator.id)
        if first is None:
            forward = self.forward_of(operator)
            key = self._shapes(operator), None if forward is None else self._shapes(forward)
            first = self._first[operator.id] = self._alike.setdefault(key, operator.id)
        return first

    def _shapes(self, operator: Operator) -> tuple[object, ...]:
        """Return everything that an operator's work depends on, including which of its tensors are identical."""
        known = self._shapes_of.get(operator.id)
        if known is not None:
            return known
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
        """Return a number for a tensor's shape, type and role, equal for equal tensors; None for an unknown tensor."""
        if tensor not in self._facts_of:
            t = self._tensors.get(tensor)
            facts = None if t is None else (t.shape, t.dtype, t.size_bytes, t.role, t.batch_dims)
            self._facts_of[tensor] = None if facts is None else self._numbers.setdefault(facts, len(self._numbers))
        return self._facts_of[tensor]


@keep
def alike_in(workload: Workload) -> Alike:
    """Return the index of a workload, which further simulations of it share."""
    return Alike(workload)


#: Precisions that an operator may state.
_STATED = frozenset(precision.name for precision in PRECISIONS if precision.is_stated)


def check_peaks(gpu: GpuSpec) -> None:
    """Raise InputError if a peak of ``gpu`` is not positive."""
    if gpu.memory_bytes_per_s <= 0 or any(rate <= 0 for rate in gpu.flop_per_s.values()):
        raise InputError(f"GPU {gpu.name} has a peak that is not positive", field="gpu")


def dtype_name(tensor: Tensor) -> str:
    """Return the floating-point type of a tensor, or float32 for other types."""
    return ARITHMETIC.get(tensor.dtype.removeprefix("torch.").removeprefix("c10::").lower(), "float32")


def dtype_of(operator: Operator, tensors: Mapping[int, Tensor]) -> str:
    """Return the first floating-point type among ``operator``'s tensors, outputs first; by default float32.

    Inputs come first for a weight gradient: its type may differ from the type of the factors, which determines speed.
    """
    outputs_first = operator.attributes.get("gradient_of") != "weight"
    for i in (*operator.outputs, *operator.inputs) if outputs_first else (*operator.inputs, *operator.outputs):
        tensor = tensors.get(i)
        if tensor is not None:
            dtype = ARITHMETIC.get(tensor.dtype.removeprefix("torch.").removeprefix("c10::").lower())
            if dtype is not None:
                return dtype
    return "float32"


def stated_precision(operator: Operator) -> str:
    """Return the precision in the attribute ``precision``, else ``""``."""
    stated = operator.attributes.get("precision")
    return stated if isinstance(stated, str) and stated in _STATED else ""


def precision_of(operator: Operator, tensors: Mapping[int, Tensor], tf32_products: bool) -> str:
    """Return the precision of an operator's arithmetic; a stated precision takes precedence.

    PyTorch uses TF32 by default for convolutions, but only on request (:func:`has_tf32_products`) for matrix products.
    """
    stated = stated_precision(operator)
    if stated:
        return stated
    dtype, kind = dtype_of(operator, tensors), kind_of(operator)
    uses_tf32 = family_of(kind) == "conv" or (is_compute_bound(kind) and tf32_products)
    return "tfloat32" if dtype == "float32" and uses_tf32 else dtype


@keep
def has_tf32_products(workload: Workload, source: GpuSpec) -> bool:
    """Return whether a float32 matrix product beat the source GPU's float32 peak, and so must have used TF32."""
    flop_per_s = source.flop_per_s.get("float32", 0)
    for op in workload.operators:
        kind = kind_of(op)
        is_product = (
            is_compute_bound(kind) and family_of(kind) != "conv" and dtype_of(op, workload.tensors) == "float32"
        )
        if is_product and work(op, workload).flops * PS_PER_S > flop_per_s * op.gpu_time_ps > 0:
            return True
    return False


def least_time_s(gpu: GpuSpec, amount: Work, precision: str) -> float:
    """Return the roofline of ``gpu``: the least time for ``amount``, in seconds."""
    return max(amount.flops / peak(gpu, precision), amount.bytes / gpu.memory_bytes_per_s)


def derived_peak(gpu: GpuSpec, precision: str) -> int | None:
    """Return the peak FLOP/s that a data sheet does not list but another precision's peak tells; None without one.

    So NVIDIA's tensor cores multiply in FP4 from Blackwell on, at twice their FP8 rate.
    """
    of = BY_NAME.get(precision)
    if of is None or of.peak_from is None or not any(word in gpu.name for word in of.peak_on):
        return None
    name, factor = of.peak_from
    rate = gpu.flop_per_s.get(name)
    return None if rate is None else factor * rate


def peak(gpu: GpuSpec, precision: str) -> int:
    """Return the peak FLOP/s; a GPU without TF32 uses float32. Raises InputError for an unsupported precision."""
    rates: Mapping[str, int] = gpu.flop_per_s
    for name in (precision, "float32") if precision == "tfloat32" else (precision,):
        if name in rates:
            return rates[name]
    derived = derived_peak(gpu, precision)
    if derived is not None:
        return derived
    raise InputError(f"GPU {gpu.name} has no peak for {precision}{nearest(precision, rates)}", field="gpu")


@dataclass(frozen=True, slots=True)
class Duration:
    """GPU time ``ps`` in picoseconds, and its ``evidence``: 'measured', 'interpolated', 'modelled' or 'assumed'."""

    ps: int
    evidence: str


#: Names of this model and of the model of measured tables, also the values of ``Workload.metadata["times"]`` of
#: workloads with their times.
ROOFLINE, TABLES = "roofline", "tables"
_PREFIX = "roofline."
_MAX_FIXED_US = 1e6
_FAMILIES = {"linear": "matmul", "matmul": "matmul", "attention": "attention", "conv": "conv"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Shares:
    """Achieved shares of a data sheet's peaks, and a fixed time per operator.

    matmul, attention, conv: shares of the peak FLOP/s at their precision (float32 convolutions run in TF32). Causal
    attention counts half of its products. memory: share of the memory bandwidth. fixed_us: microseconds per operator.
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
    def of(values: Mapping[str, float]) -> Shares:
        """Return the defaults, overridden by ``values``. Raises InputError for an unknown name."""
        known = [field.name for field in fields(Shares)]
        for name in values:
            if name not in known:
                raise InputError(f"unknown share {name!r}{nearest(name, known)}", field="shares")
        return Shares(**values)

    @property
    def text(self) -> str:
        """Description of the shares."""
        return (
            f"{self.matmul:.0%} of the peak for matrix products, {self.attention:.0%} for attention, {self.conv:.0%} "
            f"for convolutions, {self.memory:.0%} of the memory bandwidth, {self.fixed_us:g} us per operator"
        )

    def to_metadata(self) -> dict[str, str]:
        """Return entries for ``Workload.metadata``, the inverse of :meth:`from_metadata`."""
        return {_PREFIX + name: repr(value) for name, value in asdict(self).items()}

    @staticmethod
    def from_metadata(metadata: Mapping[str, str]) -> Shares:
        """Return a workload's shares, with defaults for missing ones. Raises InputError for invalid values."""
        texts = {key.removeprefix(_PREFIX): text for key, text in metadata.items() if key.startswith(_PREFIX)}
        try:
            return Shares.of({name: _number(text) for name, text in texts.items()})
        except ValueError as error:
            raise InputError(f"the trace's metadata names no shares: {error}", field="roofline") from None


class Roofline:
    """Roofline model of one workload on one GPU. Times are cached by (operator, split)."""

    name = ROOFLINE

    def __init__(self, workload: Workload, gpu: GpuSpec, shares: Shares | None = None) -> None:
        check_peaks(gpu)
        self._gpu = gpu
        self._shares = shares if shares is not None else Shares.from_metadata(workload.metadata)
        self._tensors = workload.tensors
        self._sizing = Sizing(workload)
        self._known: dict[tuple[int, Split], Duration] = {}
        self._alike = alike_in(workload)
        self._rates: dict[tuple[str, str], float] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        return (f"operator times are a roofline of the {self._gpu.name}: {self._shares.text}", *self._sizing.notes)

    def fit_report(self) -> FitReport | None:
        return None

    def duration(self, operator: Operator, split: Split) -> Duration:
        """Return the time in ps, rounded up and 'assumed'. Raises InputError if the GPU has no peak for the dtype."""
        key = self._alike.first(operator), split
        duration = self._known.get(key)
        if duration is None:
            ps = self.time_ps(operator, self._sizing.work(operator, split))
            duration = self._known[key] = Duration(ps, "assumed")
        return duration

    def time_ps(self, operator: Operator, amount: Work) -> int:
        """Return the time of ``operator`` for ``amount`` of work, in picoseconds."""
        if not amount.flops and not amount.bytes:
            return 0
        causal = 0.5 if operator.attributes.get("causal") is True else 1.0
        seconds = max(
            causal * amount.flops / self._rate(operator),
            amount.bytes / (self._gpu.memory_bytes_per_s * self._shares.memory),
        )
        return math.ceil(self._shares.fixed_us * 1e6 + seconds * PS_PER_S)

    def _rate(self, operator: Operator) -> float:
        """Return the achieved FLOP/s for this kind and dtype; infinite for memory-bound kinds."""
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


def _number(text: str) -> float:
    number = finite_number(text)
    if number is None:
        raise InputError(f"{text!r:.80} is no number")
    return number
