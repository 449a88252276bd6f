"""Recipes for training in FP8 and FP4 (presets/precisions.yaml): which products are cast, and what the casts cost."""

from __future__ import annotations

from functools import cache
from typing import Annotated

from trine.common.inputs import PRESETS
from trine.common.precision import BY_WORD, CASTS
from trine.common.schema import BeforeValidator, Field, Spec, one_of
from trine.common.spec import read_spec
from trine.errors import InputError, nearest

Passes = Annotated[float, Field(gt=0, le=16)]
#: The dtypes of cast tensors.
CAST_DTYPES = frozenset(precision.tensor_type for precision in CASTS.values())


class CastRecipe(Spec):
    """A recipe; ``presets/precisions.yaml`` describes each field."""

    title: str
    products: Annotated[str, BeforeValidator(one_of(tuple(CASTS)))]
    multiple: Annotated[int, Field(ge=1, le=1024)]
    cast_passes: Passes
    weight_copies: Annotated[float, Field(ge=0, le=4)]
    weight_passes: Passes
    kernels: Annotated[int, Field(ge=1, le=16)]
    product_kernels: Annotated[int, Field(ge=1, le=16)] = 1
    generations: Annotated[list[str], Field(min_length=1)]
    source: str

    @property
    def dtype(self) -> str:
        """The dtype of a cast tensor."""
        return CASTS[self.products].tensor_type

    def takes(self, rows: int, columns: int) -> bool:
        """Return whether a product with these sizes of its weight is cast."""
        return rows % self.multiple == 0 and columns % self.multiple == 0


class _Precisions(Spec):
    precisions: dict[str, CastRecipe]


@cache
def known_precisions() -> dict[str, CastRecipe]:
    """Return all recipes by name."""
    return read_spec(PRESETS / "precisions.yaml", _Precisions).precisions


#: Precisions without casts: a model's own dtype, which ``dtype=`` of a model sets.
PLAIN = tuple(word for word, precision in BY_WORD.items() if precision.name not in CASTS)


def load_precision(name: str) -> CastRecipe:
    """Return a recipe by its name. Raises InputError with the nearest name."""
    known = known_precisions()
    if name in known:
        return known[name]
    if name in PLAIN:
        raise InputError(f"{name} casts nothing: give model:NAME,dtype={name}", field="precision")
    raise InputError(f"unknown precision {name[:40]!r}{nearest(name, known)}", field="precision")
