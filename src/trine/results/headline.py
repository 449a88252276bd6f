"""Headline numbers of a step: throughput, FLOP/s and MFU, each with a likely range (its band).

MFU: model FLOP/s of a GPU over its data-sheet dense peak for the dtype of most GEMMs. Model FLOPs are the GEMMs,
convolutions and attention of the forward pass, times three in training. Attention counts the full score matrix (a
causal mask halves nothing), and embedding lookups count as 0. Hardware FLOPs add the work that activation
recomputation repeats.

The band of a synthesised step covers 80 % of held-out published steps, from the nearest level with enough of them
(presets/measured/training/bands.yaml). The band of a recorded step covers the spread among GPUs of one model and the
range of its collectives. Times moved to another GPU get a band from operators with held-out measurements. No band is
narrower than the spread among GPUs of one model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from trine.cluster.measured_gpu import is_gpu_file
from trine.common.inputs import PRESETS
from trine.common.shown import OneLine
from trine.common.units import PS_PER_S
from trine.compute.spread import GPU_SPREAD, slowest_of
from trine.results.report import Row, seconds
from trine.results.scales import RUN_TO_RUN, scale_of, stand_in_factors

if TYPE_CHECKING:
    from trine.results.metrics import RankTimes
    from trine.results.traffic import CollectiveUse

BANDS = PRESETS / "measured" / "training" / "bands.yaml"
#: The bands of kinds of steps that have rows of their own: experts, adapters, precisions below 16 bits.
KINDS = PRESETS / "measured" / "training" / "kinds.yaml"
#: Minimum votes (groups of rows) of a level; with fewer, the next wider level applies.
MIN_VOTES = 8
#: Minimum votes of a level of one scale: the ends of fewer are their extremes, which hold all of them.
MIN_VOTES_OF_SCALE = 15
#: Name of the level with every published step.
ALL_STEPS = "all that there are"
#: Name of the level of convolutional networks.
CNN_STEPS = "convolutional networks on one A100 or V100"
#: Sizes (log2 of bytes) between which a library's small-message band is interpolated to its large-message band.
_SMALL, _LARGE = 18.0, 22.0


class TimedStep(Protocol):
    """The part of a result that the headline numbers need."""

    @property
    def step_time_ps(self) -> int: ...
    @property
    def step_time_s(self) -> float: ...
    @property
    def collectives(self) -> tuple[CollectiveUse, ...]: ...
    @property
    def rank_times(self) -> RankTimes: ...
    @property
    def slowest_row(self) -> int: ...
    @property
    def work(self) -> StepWork | None: ...
    @property
    def band(self) -> Band | None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class StepWork(OneLine):
    """Work of one step of the whole job. tokens: None if samples have no tokens; peak_flops: FLOP/s of one GPU."""

    samples: int
    tokens: int | None
    num_gpus: int
    model_flops: float
    hardware_flops: float
    gpu: str | None
    dtype: str
    peak_flops: float | None

    @property
    def mfu_definition(self) -> str:
        """Attention scores that the model FLOPs count: all of them, or none in models without tokens."""
        return "full attention" if self.tokens is not None else "no attention"


@dataclass(frozen=True, kw_only=True, slots=True)
class StepBand(OneLine):
    """80 % prediction interval of a step's time, as factors, and the published steps it comes from.

    fit_error: error of a fitted profile, if it sets the width of the band. reason: replaces the usual description.
    widened_for: scale of the job if the steps are of other scales. gpu_file: the user's file of measured kernels.
    """

    low: float
    high: float
    level: str
    num_rows: int
    fit_error: float | None = None
    reason: str = ""
    widened_for: str = ""
    gpu_file: str = ""

    def ends_ps(self, result: TimedStep) -> tuple[int, int]:
        """Return the shortest and longest likely time of the step."""
        return round(result.step_time_ps * self.low), round(result.step_time_ps * self.high)

    @property
    def words(self) -> str:
        """Description of the band for reports."""
        if self.reason:
            return self.reason
        if self.fit_error is not None:
            return f"error of this software's fit on held-out steps ({self.fit_error:.1%})"
        text = f"80 % of {self.num_rows} published steps ({self.level}) fall this close to their held-out prediction"
        if self.widened_for:
            text += f"; too few are on {self.widened_for} of such a fabric: widened as layouts on several nodes scatter"
        if self.gpu_file:
            text += f"; kernel times of this step come from {self.gpu_file}"
        return text

    def at_least(self, error: float) -> StepBand:
        """Return the band, widened to at least ``error``, a fitted profile's error on held-out steps."""
        low, high = min(self.low, 1 / (1 + error)), max(self.high, 1 + error)
        if (low, high) == (self.low, self.high):
            return self
        return replace(self, low=low, high=high, fit_error=error)

    @property
    def is_of_all(self) -> bool:
        """True if the band comes from all published steps, whatever their GPU."""
        return self.level == ALL_STEPS


@dataclass(frozen=True, kw_only=True, slots=True)
class CommunicationBand(OneLine):
    """Spread among GPUs of one model, and range factors of a library's small and large collectives.

    library: None without one. is_recorded: True if all operators keep their recorded times; resized operators are
    modelled, without a band. gpus: number of synchronised GPUs.
    """

    library: str | None
    small: tuple[float, float]
    large: tuple[float, float]
    is_recorded: bool = True
    gpus: int = 1

    def ends_ps(self, result: TimedStep) -> tuple[int, int]:
        """Return the step's times on fast and slow GPUs of the model, with exposed communication scaled by its band."""
        uses, exposed = result.collectives, int(result.rank_times.exposed[result.slowest_row])
        total = sum(use.time_ps for use in uses)
        low, high = (
            sum(use.time_ps * self._factor(use.size_bytes)[end] for use in uses) / total if total else 1.0
            for end in (0, 1)
        )
        slower = RUN_TO_RUN + (slowest_of(self.gpus, GPU_SPREAD) if self.gpus > 1 else 0.0)
        step_ps = result.step_time_ps
        return (
            step_ps - round(step_ps * RUN_TO_RUN + exposed * (1 - low)),
            step_ps + round(step_ps * slower + exposed * (high - 1)),
        )

    def _factor(self, size_bytes: int) -> tuple[float, float]:
        share = min(1.0, max(0.0, (math.log2(max(size_bytes, 1)) - _SMALL) / (_LARGE - _SMALL)))
        low, high = (a + share * (b - a) for a, b in zip(self.small, self.large, strict=True))
        return low, high

    @property
    def words(self) -> str:
        """Description of the band for reports."""
        compute = "recorded" if self.is_recorded else "scaled from the recording, without a range"
        spread = f"80 % of GPUs of one model run within {RUN_TO_RUN:.1%} of the mean (Sinha et al., SC 2022)"
        slowest = ", and the slowest GPU decides" if self.gpus > 1 else ""
        collectives = "" if self.library is None else f"; collectives: range of the {self.library} model"
        return f"compute: {compute}; {spread}{slowest}{collectives}"


@dataclass(frozen=True, kw_only=True, slots=True)
class WidenedBand(OneLine):
    """A band widened to hold further times of the step: from repeated runs, or with other traffic on the fabric."""

    inner: StepBand | CommunicationBand | WidenedBand | None
    low_ps: int
    high_ps: int
    reason: str

    def ends_ps(self, result: TimedStep) -> tuple[int, int]:
        """Return the shortest and longest likely time of the step."""
        low, high = (result.step_time_ps,) * 2 if self.inner is None else self.inner.ends_ps(result)
        return min(low, self.low_ps), max(high, self.high_ps)

    @property
    def words(self) -> str:
        """Description of the band for reports."""
        return self.reason if self.inner is None else f"{self.inner.words}; {self.reason}"


Band = StepBand | CommunicationBand | WidenedBand


def nearest_band(
    gpu: str | None, software: str, nodes: int, is_fitted: bool = False, is_shared: bool = False
) -> StepBand | None:
    """Return the band of the nearest level with enough rows, or None without such a level.

    is_fitted: use the levels for predictions with factors fitted on steps of the same software and GPU. is_shared: the
    fabric between the nodes carries other jobs too, so that only steps on such a fabric are of the job's scale.
    """
    return nearest_in(_bands(), gpu, software, nodes, is_fitted, is_shared)


def nearest_in(
    bands: Mapping[str, Any],
    gpu: str | None,
    software: str,
    nodes: int,
    is_fitted: bool = False,
    is_shared: bool = False,
) -> StepBand | None:
    """Return :func:`nearest_band` of the parsed contents of a bands file."""
    gpu, generation = _level_of(gpu, bands["generations"])
    levels: Sequence[Mapping[str, Any]] = (
        {"gpu": gpu, "software": software, "scale": scale_of(nodes)},
        {"gpu": gpu, "software": software},
        {"generation": generation, "software": software},
        {"generation": generation},
        {},
    )
    entries = bands["fitted_levels" if is_fitted else "levels"]
    for level in levels:
        entry = next((entry for entry in entries if entry["of"] == level), None)
        if entry is not None and entry["votes"] >= (MIN_VOTES_OF_SCALE if "scale" in level else MIN_VOTES):
            words = ", ".join(str(value) for value in level.values()) or ALL_STEPS
            votes = entry["shared_scales"] if is_shared and nodes > 1 else entry["scales"]
            return _band_for(scale_of(nodes), entry, words, bands["scales"], votes)
    return None


def _level_of(gpu: str | None, generations: Mapping[str, str]) -> tuple[str | None, str | None]:
    """Return the GPU and the generation whose steps apply to ``gpu``; a GPU file has those of its model."""
    if gpu is None or not is_gpu_file(gpu):
        return gpu, generations.get(gpu or "")
    from trine.compute.origin import model_name
    from trine.compute.tables.machine import GENERATIONS, generation_of

    alike = GENERATIONS.get(generation_of(gpu), ())
    return model_name(gpu), next((generations[name] for name in alike if name in generations), None)


def cnn_band(nodes: int) -> StepBand | None:
    """Return the band of convolutional networks from their own published steps, all of them on one GPU."""
    entry, scales = _bands().get("cnn"), _bands().get("scales", {})
    return None if entry is None else _band_for(scale_of(nodes), entry, CNN_STEPS, scales, entry["scales"])


def kind_band(kind: str) -> StepBand | None:
    """Return the band of a kind of steps with published rows of its own, or None.

    kind: ``experts`` (in any precision), ``adapters``, or the precision of most products of a dense model.
    """
    entry = _kinds().get(kind)
    if entry is None:
        return None
    low, high = min(entry["low"], 1 - RUN_TO_RUN), max(entry["high"], 1 + RUN_TO_RUN)
    return StepBand(low=low, high=high, level=entry["words"], num_rows=entry["rows"])


@cache
def _kinds() -> Mapping[str, Any]:
    from trine.common.spec import load_mapping

    if not KINDS.is_file():
        return {}
    document = load_mapping(KINDS)
    assert isinstance(document, dict)
    kinds: dict[str, Any] = document["kinds"]
    return kinds


def _band_for(
    scale: str, entry: Mapping[str, Any], level: str, widening: Mapping[str, Mapping[str, float]],
    votes: Mapping[str, int],
) -> StepBand:  # fmt: skip
    """Return the band of a level for a job of ``scale``, wider if the level has too few votes of that scale."""
    low, high = min(entry["low"], 1 - RUN_TO_RUN), max(entry["high"], 1 + RUN_TO_RUN)
    factors = stand_in_factors(votes, scale, widening)
    if factors is None:
        return StepBand(low=low, high=high, level=level, num_rows=entry["rows"])
    low, high = low * factors[0], high * factors[1]
    return StepBand(low=low, high=high, level=level, num_rows=entry["rows"], widened_for=scale)


@cache
def _bands() -> Mapping[str, Any]:
    from trine.common.spec import load_mapping

    if not BANDS.is_file():
        return {"levels": [], "fitted_levels": [], "scales": {}, "generations": {}}
    bands = load_mapping(BANDS)
    assert isinstance(bands, dict)
    return bands


def ends_ps(result: TimedStep) -> tuple[int, int] | None:
    """Return the shortest and longest likely time of the step, or None without a band."""
    return None if result.band is None else result.band.ends_ps(result)


#: JSON keys of a rate, of its low and of its high end; field of StepWork; whether per GPU, and over the GPU's peak.
RATES = (
    ("samples_per_s", "samples_low_per_s", "samples_high_per_s", "samples", False, False),
    ("samples_per_s_per_gpu", "samples_low_per_s_per_gpu", "samples_high_per_s_per_gpu", "samples", True, False),
    ("tokens_per_s", "tokens_low_per_s", "tokens_high_per_s", "tokens", False, False),
    ("tokens_per_s_per_gpu", "tokens_low_per_s_per_gpu", "tokens_high_per_s_per_gpu", "tokens", True, False),
    ("model_flops_per_s_per_gpu", "model_flops_low_per_s_per_gpu", "model_flops_high_per_s_per_gpu",
     "model_flops", True, False),
    ("hardware_flops_per_s_per_gpu", "hardware_flops_low_per_s_per_gpu", "hardware_flops_high_per_s_per_gpu",
     "hardware_flops", True, False),
    ("mfu", "mfu_low", "mfu_high", "model_flops", True, True),
    ("hfu", "hfu_low", "hfu_high", "hardware_flops", True, True),
)  # fmt: skip


def numbers(result: TimedStep) -> Row:
    """Return all headline numbers by JSON key; None for a number with unknown inputs."""
    ends, work = ends_ps(result), result.work
    shortest_ps, longest_ps = ends or (0, 0)
    shortest = None if ends is None else seconds(shortest_ps)
    longest = None if ends is None else seconds(longest_ps)
    band = None if result.band is None else result.band.words
    mfu_definition = None if work is None else work.mfu_definition
    values: Row = {
        "step_time_low_s": shortest,
        "step_time_high_s": longest,
        "step_time_band": band,
        "mfu_definition": mfu_definition,
    }
    for value, low, high, amount, is_per_gpu, is_of_peak in RATES:
        for key, step_ps in ((value, result.step_time_ps), (low, longest_ps), (high, shortest_ps)):
            values[key] = _rate(work, step_ps, amount, is_per_gpu, is_of_peak)
    return values


def per_second(amount: float, step_ps: int) -> float:
    """Return the rate per second of ``amount`` per step."""
    return amount * PS_PER_S / step_ps


def _rate(work: StepWork | None, step_ps: int, field: str, is_per_gpu: bool, is_of_peak: bool) -> float | None:
    amount = None if work is None else getattr(work, field)
    peak = work.peak_flops if work is not None and is_of_peak else 1.0
    if work is None or not amount or not peak or not step_ps:
        return None
    return per_second(float(amount), step_ps) / (work.num_gpus if is_per_gpu else 1) / peak


def rate(result: TimedStep, key: str) -> float | None:
    """Return the rate with this JSON key of RATES, or None if an input is unknown."""
    amount, is_per_gpu, is_of_peak = next(row[3:] for row in RATES if row[0] == key)
    return _rate(result.work, result.step_time_ps, amount, is_per_gpu, is_of_peak)


def mfu(result: TimedStep) -> float | None:
    """Return model FLOP/s of a GPU over its dense peak, or None if either is unknown."""
    return rate(result, "mfu")


def mfu_words(share: float, likely: str = "", definition: str = "full attention") -> str:
    """Return an MFU with its definition and likely range, such as ``MFU 53.6% (full attention; 50.1% to 56.0%)``."""
    remarks = "; ".join(filter(None, (definition if definition != "no attention" else "", likely)))
    return f"MFU {share:.1%}" + (f" ({remarks})" if remarks else "")


def rows(result: TimedStep) -> list[Row]:
    """Return a table of the headline numbers: one row each with value, low and high."""
    values = {"step_time_s": result.step_time_s, **numbers(result)}
    keys = [("step_time_s", "step_time_low_s", "step_time_high_s"), *(rate[:3] for rate in RATES)]
    return [
        {"number": key, "value": values[key], "low": values[low], "high": values[high]}
        for key, low, high in keys
        if values[key] is not None
    ]
