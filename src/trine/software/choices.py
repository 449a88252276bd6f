"""Choices that a training run makes within one software: the loss, and the dtype of gradients.

A profile has a default for each; a profile file changes it with ``choices``, a command with ``--loss`` and
``--gradient-dtype``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from trine.common.schema import Field, Spec
from trine.errors import InputError, nearest

if TYPE_CHECKING:
    from trine.software.profile import Software

#: Names of a gradient dtype in commands and files -> ``operators.gradient_dtype``.
GRADIENT_DTYPES: Mapping[str, str] = {"bf16": "model", "fp32": "float32"}
LOSSES = ("native", "te", "unfused")

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


class Choices(Spec):
    """Choices of a profile that differ from its base profile's; None: the base's."""

    loss: Literal["native", "te", "unfused"] | None = None
    gradient_dtype: Literal["bf16", "fp32"] | None = None


def with_choices(profile: Software, loss: str | None, gradient_dtype: str | None) -> Software:
    """Return the profile with another loss and another dtype of gradients; None leaves one as it is.

    Raises InputError for a value that does not exist, or a loss that the software does not offer.
    """
    if loss is not None:
        profile = _with_loss(profile, loss)
    if gradient_dtype is not None:
        if gradient_dtype not in GRADIENT_DTYPES:
            raise InputError(
                f"unknown gradient dtype {gradient_dtype[:40]!r}: allowed are {' and '.join(GRADIENT_DTYPES)}"
                f"{nearest(gradient_dtype[:40], GRADIENT_DTYPES)}",
                field="gradient_dtype",
            )
        style = profile.operators.model_copy(update={"gradient_dtype": GRADIENT_DTYPES[gradient_dtype]})
        profile = profile.model_copy(update={"operators": style})
    return profile


def _with_loss(profile: Software, name: str) -> Software:
    if name not in profile.losses:
        offered = ", ".join(profile.losses) or "only its own"
        known = nearest(name[:40], LOSSES) if name not in LOSSES else ""
        raise InputError(f"profile {profile.name} has no loss {name[:40]!r}{known}: allowed are {offered}", field="loss")
    loss = profile.losses[name]
    operators: dict[str, Any] = {
        "loss": name,
        "kernels": profile.operators.kernels | {"loss": loss.kernels},
        "passes": profile.operators.passes | {"loss": loss.passes},
        "loss_all_reduces": loss.all_reduces,
    }
    return profile.model_copy(
        update={
            "operators": profile.operators.model_copy(update=operators),
            "memory": profile.memory.model_copy(update={"logits_bytes": loss.logits_bytes}),
        }
    )
