"""How far the tables are off where they were not measured: shapes left out in five folds, and whole GPUs left out.

The fold of a shape is the SHA-256 hash of its text, as a number, modulo 5. Texts are ``m,n,k`` of a product and
``batch,length,heads,kv_heads,head_size,window`` of attention, in decimal digits. All rows of a shape are left out
together, over all frameworks and kernels.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from trine.arrays import Float64, Int64
from trine.cluster.presets import load_gpu
from trine.compute.tables.attention import AttentionTable, load_attention
from trine.compute.tables.gemm import GemmTable, load_gemm
from trine.compute.tables.machine import Machine, sustained_ratio

FOLDS = 5
#: GPU left out -> whose tables predict it; the last word says what stands between the two.
GPUS_LEFT_OUT = (
    ("h200", "h100-sxm", "same generation"), ("h100-sxm", "h200", "same generation"),
    ("gb300", "b300", "same generation"), ("b300", "gb300", "same generation"),
    ("h100-sxm", "a100-80gb", "next generation"), ("h200", "a100-80gb", "next generation"),
    ("b300", "h200", "next generation"), ("gb300", "h200", "next generation"),
    ("l40s", "rtx-pro-6000", "one rate"), ("rtx-pro-6000", "l40s", "one rate"),
)  # fmt: skip
_LARGE = (1024, 1024, 512)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Errors, as shares of the measured time, of shapes that the prediction did not see.

    operator: 'gemm' or 'attention'. source: whose measurements predicted it, the GPU's own where shapes were left out.
    what: 'shapes', or how far the source is from the GPU. bias: mean of the signed error. worst: the largest error.
    """

    operator: str
    gpu: str
    dtype: str
    source: str
    what: str
    median: float
    p90: float
    mean: float
    bias: float
    count: int
    worst: float


def fold_of(text: str) -> int:
    """The fold of a shape, 0 to 4."""
    return int(hashlib.sha256(text.encode()).hexdigest(), 16) % FOLDS


def scored(predicted: Float64, measured: Float64, **about: str) -> LeftOut:
    """Errors of predictions against measurements, both in microseconds."""
    signed = predicted / measured - 1
    off = np.abs(signed)
    numbers = float(np.median(off)), float(np.percentile(off, 90)), float(off.mean()), float(signed.mean())
    return LeftOut(
        **about,
        median=numbers[0],
        p90=numbers[1],
        mean=numbers[2],
        bias=numbers[3],
        count=len(off),
        worst=float(off.max()),
    )


def gemm_shapes_left_out(gpu: str, dtype: str, *, every: int = 1) -> LeftOut:
    """Five folds over the measured products of one GPU and dtype; ``every``: one in so many of a fold."""
    table = _gemm(gpu, dtype)
    at = np.argwhere(~np.isnan(table.times))
    shapes = np.stack([axis[at[:, i]] for i, axis in enumerate(table.axes)], axis=1)
    folds = _folds(shapes)
    predicted, measured = [], []
    for fold in range(FOLDS):
        hidden = np.zeros(table.times.shape, dtype=bool)
        hidden[tuple(at[folds == fold].T)] = True
        asked = at[folds == fold][::every]
        sizes = np.stack([axis[asked[:, i]] for i, axis in enumerate(table.axes)], axis=1)
        predicted.append(table.without(hidden).estimate_us(sizes.astype(float)))
        measured.append(np.exp(table.times[tuple(asked.T)]))
    about = {"operator": "gemm", "gpu": gpu, "dtype": dtype, "source": gpu, "what": "shapes"}
    return scored(np.concatenate(predicted), np.concatenate(measured), **about)


def attention_shapes_left_out(gpu: str, *, every: int = 1) -> LeftOut:
    """Five folds over the measured forward attention of one GPU, as :func:`gemm_shapes_left_out`."""
    table = _attention(gpu)
    folds = _folds(table.shapes[:, [4, 5, 2, 3, 0, 1]])
    predicted, measured = [], []
    for fold in range(FOLDS):
        asked = np.flatnonzero(folds == fold)[::every]
        predicted.append(table.without(folds == fold).estimate_us(table.shapes[asked].astype(float)))
        measured.append(np.exp(table.times[asked]))
    about = {"operator": "attention", "gpu": gpu, "dtype": "bfloat16", "source": gpu, "what": "shapes"}
    return scored(np.concatenate(predicted), np.concatenate(measured), **about)


def gemm_gpu_left_out(gpu: str, source: str, what: str, *, dtype: str = "bfloat16", every: int = 1) -> LeftOut:
    """All of a GPU's large products predicted from another's; with ``what`` 'one rate', knowing its sustained rate."""
    own, other = _gemm(gpu, dtype), _gemm(source, dtype)
    at = np.argwhere(~np.isnan(own.times))
    shapes = np.stack([axis[at[:, i]] for i, axis in enumerate(own.axes)], axis=1)
    large = (shapes >= np.array(_LARGE)).all(axis=1)
    at, shapes = at[large][::every], shapes[large][::every]
    measured = np.exp(own.times[tuple(at.T)])
    spec, donor = load_gpu(gpu), load_gpu(source)
    ratio = sustained_ratio(spec, donor, dtype) if what != "one rate" else _rate(own, other)
    predicted = other.estimate_us(shapes.astype(float), Machine.of(spec, dtype, ratio, source))
    return scored(predicted, measured, operator="gemm", gpu=gpu, dtype=dtype, source=source, what=what)


def _rate(own: GemmTable, other: GemmTable) -> float:
    """Share of the peak in one large product, 8192 cubed, over that of the source: what one measurement tells."""
    shape = (8192, 8192, 8192)
    peaks = own.measured(*shape), other.measured(*shape)
    return (peaks[1] or 1.0) / (peaks[0] or 1.0) * other.flop_per_s / own.flop_per_s


def _folds(shapes: Int64) -> Int64:
    return np.array([fold_of(",".join(map(str, row))) for row in shapes.tolist()])


def _gemm(gpu: str, dtype: str) -> GemmTable:
    found = load_gemm(gpu, dtype, Machine.of(load_gpu(gpu), dtype))
    assert found is not None
    return found


def _attention(gpu: str) -> AttentionTable:
    found = load_attention(gpu, Machine.of(load_gpu(gpu), "bfloat16"))
    assert found is not None
    return found
