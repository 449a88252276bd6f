"""Times of the grouped GEMMs of a layer's experts, with their routing: measured, or a closed form.

Closed form: the experts that a batch touches are read once, and each token is multiplied with those it chose. Of E
experts with k per token, m tokens touch E (1 - (1 - k / E)^m) on average. Between measured layers, log(measured /
closed form) is averaged over the nearest ones at the same number of tokens.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from trine.cluster import load_gpu
from trine.cluster.presets import GpuSpec
from trine.common.arrays import Float64
from trine.common.evidence import INTERPOLATED, MODELLED, TRANSFERRED
from trine.compute.tables.machine import peak_of, runs
from trine.inference.kernel_tables import kernel_arrays, kernel_source, log_times
from trine.inference.precision import ServedPrecision, served_precisions
from trine.inference.products import TOKENS

#: Kernels around the two grouped GEMMs: routing, sorting, activation, sum of each token's experts; microseconds.
_START_US = 20.0
_BANDWIDTH_SHARE, _PEAK_SHARE = 0.8, 0.55
_NEIGHBOURS = 4
#: Hidden features, features of an expert, experts per token and experts of a layer.
LayerShape = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class ExpertLayer:
    """Experts of one layer: number, experts per token, sizes, ways that cut each expert and ways that divide them."""

    experts: int
    top_k: int
    hidden: int
    ffn: int
    gated: bool
    ways_cut: int
    ways_divided: int

    @property
    def matrices(self) -> int:
        """Matrices of one expert."""
        return 3 if self.gated else 2

    @property
    def elements(self) -> float:
        """Weights of one expert on one GPU."""
        return self.matrices * self.hidden * self.ffn / self.ways_cut

    def touched(self, tokens: Float64) -> Float64:
        """Return the expected number of this GPU's experts that ``tokens`` choose, at uniform loads."""
        chosen = 1 - np.power(1 - self.top_k / self.experts, tokens)
        return np.asarray(self.experts / self.ways_divided * chosen)

    def closed_form_us(self, tokens: Float64, gpu: GpuSpec, precision: ServedPrecision) -> Float64:
        """Return microseconds at each number of ``tokens``."""
        dtype = precision.products if runs(gpu, precision.products) else "bfloat16"
        num_bytes = self.touched(tokens) * self.elements * precision.weight_bytes
        flops = 2 * tokens * self.top_k / self.ways_divided * self.elements
        seconds = np.maximum(
            num_bytes / (gpu.memory_bytes_per_s * _BANDWIDTH_SHARE), flops / (peak_of(gpu, dtype) * _PEAK_SHARE)
        )
        return np.asarray(_START_US + 1e6 * seconds)

    @property
    def place(self) -> Float64:
        """Coordinates among measured layers, in octaves."""
        local = self.experts / self.ways_divided
        values = self.hidden, self.ffn / self.ways_cut, self.top_k, self.experts, local
        return np.asarray(np.log2(np.array(values, dtype=float)))


def experts_us(layer: ExpertLayer, gpu: GpuSpec, engine: str, precision: ServedPrecision) -> Float64:
    """Return microseconds of the experts at each of :data:`TOKENS`, all of them routed among the experts' GPUs."""
    form = layer.closed_form_us(TOKENS, gpu, precision)
    name = _table(gpu, engine, precision)
    if name is None:
        return form
    residual = _residual(*name, layer)
    return np.asarray(form * np.exp(residual))


def experts_evidence(gpu: GpuSpec, engine: str, precision: ServedPrecision, layers: Set[LayerShape]) -> str:
    """Return the evidence of the experts' times. layers: of the model; very few measured ones stand for others."""
    name = _table(gpu, engine, precision)
    if name is None:
        return MODELLED
    measured = measured_layers(*name)
    has_neighbours = len(measured) >= _NEIGHBOURS or layers <= measured
    return INTERPOLATED if name[0] == gpu.name and has_neighbours else TRANSFERRED


@lru_cache(maxsize=32)
def measured_layers(gpu: str, name: str) -> frozenset[LayerShape]:
    """Return the shapes of the layers of one array, however many GPUs cut or divide them."""
    rows = np.asarray(kernel_arrays(gpu)[f"{name}/rows"])[:, :4].tolist()
    return frozenset((hidden, ffn, top_k, experts) for hidden, ffn, top_k, experts in rows)


def _table(gpu: GpuSpec, engine: str, precision: ServedPrecision) -> tuple[str, str] | None:
    """Return the GPU and the array whose measurements are used, or None."""
    for kernels in (precision.kernels, *precision.stand_ins):
        source = kernel_source(gpu.name, "experts", engine, kernels)
        if source is not None:
            return source.gpu.name, source.name
    return None


def _residual(source: str, name: str, layer: ExpertLayer) -> Float64:
    """Return log(measured / closed form) at each of :data:`TOKENS`, of the nearest measured layers."""
    places, residuals = _measured(source, name)
    distances = ((places - layer.place) ** 2).sum(axis=1)
    nearest = np.argsort(distances, kind="stable")[:_NEIGHBOURS]
    if distances[nearest[0]] < 1e-9:
        return np.asarray(residuals[nearest[0]])
    weights = 1 / distances[nearest]
    return np.asarray(weights @ residuals[nearest] / weights.sum())


@lru_cache(maxsize=32)
def _measured(gpu: str, name: str) -> tuple[Float64, Float64]:
    """Return coordinates (layers, 5) and log(measured / closed form) (layers, TOKENS) of one array."""
    kernels = name.rpartition("/")[2]
    precision = next(each for each in served_precisions().values() if each.kernels == kernels)
    arrays = kernel_arrays(gpu)
    rows = np.asarray(arrays[f"{name}/rows"]).tolist()
    tokens = np.asarray(arrays[f"{name}/tokens"], dtype=float)
    places, residuals = [], []
    for (hidden, ffn, top_k, experts, cut, divided), times in zip(rows, log_times(gpu, name), strict=True):
        known = np.flatnonzero(~np.isnan(times))
        if len(known) < 2 or ffn % cut or experts % divided:
            continue
        layer = ExpertLayer(experts, top_k, hidden, ffn, True, cut, divided)
        form = np.log(layer.closed_form_us(tokens[known], load_gpu(gpu), precision))
        places.append(layer.place)
        residuals.append(np.interp(np.log(TOKENS), np.log(tokens[known]), times[known] - form))
    return np.array(places), np.array(residuals)
