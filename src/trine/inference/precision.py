"""Precisions of served weights (presets/serving/precisions.yaml): bits of a weight, arithmetic, and casts."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Literal

from trine.cluster.presets import GpuSpec
from trine.common.inputs import PRESETS
from trine.common.precision import BY_WORD, CASTS
from trine.common.schema import BeforeValidator, Field, Spec, one_of
from trine.common.spec import read_spec
from trine.compute.tables.machine import generation_of, runs
from trine.errors import InputError, nearest

#: Folder of everything that only serving needs.
SERVING = PRESETS / "serving"
#: Bytes of an element of the KV cache by its precision.
KV_BYTES = {word: int(BY_WORD[word].bytes) for word in ("bf16", "fp8")}
DEFAULT = "bf16"
_HALF_BITS = 16


class ServedPrecision(Spec):
    """One precision; ``presets/serving/precisions.yaml`` describes each field."""

    title: str
    weight_bits: Annotated[float, Field(gt=0, le=32)]
    products: Annotated[str, BeforeValidator(one_of((BY_WORD[DEFAULT].name, *CASTS)))]
    dense: bool = True
    experts: bool = True
    latent: bool = True
    casts: Annotated[int, Field(ge=0, le=4)] = 0
    kernels: str = "bf16"
    stand_ins: list[str] = Field(default_factory=list)
    kv: Literal["bf16", "fp8"] = "bf16"
    stored: list[str] = Field(default_factory=list)
    generations: list[str] = Field(default_factory=list)
    on_request: bool = False
    widened: Annotated[list[str], Field(min_length=1)] = Field(default_factory=lambda: ["int4", "mxfp4"])
    source: str

    @property
    def weight_bytes(self) -> float:
        """Bytes of a weight with its scales."""
        return self.weight_bits / 8

    @property
    def is_weight_only(self) -> bool:
        """Whether dense weights have fewer bits than their arithmetic, 16."""
        return self.dense and self.weight_bits < _HALF_BITS and self.products == BY_WORD[DEFAULT].name

    def is_computed_by(self, gpu: GpuSpec) -> bool:
        """Return whether the tensor cores of a GPU multiply in the precision."""
        if self.generations:
            return generation_of(gpu.name) in self.generations
        return runs(gpu, self.products)

    def on(self, gpu: GpuSpec) -> ServedPrecision:
        """Return the precision as a GPU runs it: widened to 16 bits, without casts, if its tensor cores lack it."""
        if self.products == BY_WORD[DEFAULT].name or self.is_computed_by(gpu):
            return self
        widened = {"products": BY_WORD[DEFAULT].name, "casts": 0, "kernels": self.widened[0]}
        return self.model_copy(update={**widened, "stand_ins": self.widened[1:]})


class _ServedPrecisions(Spec):
    precisions: dict[str, ServedPrecision]


@cache
def served_precisions() -> dict[str, ServedPrecision]:
    """Return all precisions by name."""
    return read_spec(SERVING / "precisions.yaml", _ServedPrecisions).precisions


def precision_name(name: str, stored: str) -> str:
    """Return the name of a precision; by default that of the stored weights (``quant_method`` in a config).

    Raises InputError with the nearest name for an unknown one.
    """
    known = served_precisions()
    if not name:
        return next((each for each, precision in known.items() if stored and stored in precision.stored), DEFAULT)
    if name not in known:
        raise InputError(f"unknown precision {name[:40]!r}{nearest(name, known)}", field="precision")
    return name


def has_precision(stored: str) -> bool:
    """Return whether weights of this ``quant_method`` have a precision; weights without one are in 16 bits."""
    return not stored or any(stored in precision.stored for precision in served_precisions().values())


def kv_name(name: str, default: Literal["model", "checkpoint"], precision: str) -> str:
    """Return the precision of the KV cache; without a name, the engine's default for these weights.

    Raises InputError with the nearest name for an unknown one.
    """
    if not name:
        return served_precisions()[precision].kv if default == "checkpoint" else DEFAULT
    if name not in KV_BYTES:
        raise InputError(f"unknown precision {name[:40]!r}{nearest(name, KV_BYTES)}", field="kv_precision")
    return name
