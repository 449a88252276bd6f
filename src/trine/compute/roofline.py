"""Time from the data sheet alone: FLOPs and bytes of an operator against stated shares of the GPU's peaks.

    time = fixed + max(FLOPs / (peak x share of its kind), bytes / (memory bandwidth x share))

(Williams et al., Roofline, CACM 2009, with efficiencies.) The shares are one set for all GPUs and all operators of a
kind, so errors of tens of percent are usual: docs/background/roofline.md has them, case by case. Where a trace exists,
use it. Operators that only rename memory take no time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from trine.cluster.presets import GpuSpec
from trine.compute.alike import Alike
from trine.compute.cost import Sizing, Work
from trine.compute.data_sheet import check_peaks, dtype_of, peak, stated_precision
from trine.compute.kinds import family_of, kind_of
from trine.compute.law import FitReport
from trine.compute.resize import Split
from trine.errors import InputError, nearest
from trine.graph.workload import Operator, Workload
from trine.units import PS_PER_S


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
