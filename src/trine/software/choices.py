"""Choices that a training run makes within one software: the loss, and the dtype of gradients.

A profile has a default for each; a profile file changes it with ``choices``, a command with ``--loss`` and
``--gradient-dtype``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from trine.common.schema import Field, Spec

#: Names of a gradient dtype in commands and files -> ``operators.gradient_dtype``.
GRADIENT_DTYPES: Mapping[str, str] = {"bf16": "model", "fp32": "float32"}

_Count = Annotated[float, Field(ge=0, le=1000)]
_Pair = Annotated[list[_Count], Field(min_length=2, max_length=2)]


class LossStyle(Spec):
    """One implementation of the loss that a software offers.

    kernels, passes: launches and memory traffic of the loss, forward and backward, as in ``operators``. logits_bytes:
    live bytes per logit when the loss's backward pass begins; None: from the operators. all_reduces: number of
    all-reduces over a sharded vocabulary.
    """

    kernels: _Pair
    passes: _Pair
    logits_bytes: _Count | None = None
    all_reduces: Annotated[int, Field(ge=1, le=8)] = 1


class ProfileChoices(Spec):
    """Choices of a profile that differ from its base profile's; None: the base's."""

    loss: Literal["native", "te", "unfused"] | None = None
    gradient_dtype: Literal["bf16", "fp32"] | None = None
