"""Errors of published steps by kind and precision: FP8, FP4, mixtures of experts, adapters.

Stored by ``benchmarks/precision_rows.py --write``, which predicts the rows of ``benchmarks/precision_rows.csv``.
Nothing was fitted on them. Each group of rows has one vote.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Literal

from trine.common.inputs import PRESETS
from trine.common.schema import Field, Spec
from trine.common.spec import read_spec
from trine.results.text import aligned

TABLE = PRESETS / "measured" / "training" / "precision_errors.yaml"
#: Kinds of rows in words.
KINDS = {"dense": "dense", "moe": "mixtures of experts", "lora": "adapters"}
Count = Annotated[int, Field(ge=1, le=100_000)]
Error = Annotated[float, Field(ge=-1, le=100)]


class PrecisionErrors(Spec):
    """Errors of one kind of steps in one precision: predicted over measured time, less 1.

    mean_error, bias: mean of the groups' absolute and signed errors. worst: the group's error that is furthest from 0.
    """

    kind: Literal["dense", "moe", "lora"]
    precision: str
    rows: Count
    groups: Count
    mean_error: Error
    bias: Error
    worst: Error


class _Table(Spec):
    errors: list[PrecisionErrors]


@cache
def precision_errors() -> tuple[PrecisionErrors, ...]:
    """Return the stored errors, by kind and precision."""
    return tuple(read_spec(TABLE, _Table).errors)


def precision_lines() -> list[str]:
    """Return the stored errors as lines of a report."""
    head = ("by precision, one vote a group (blind)", "rows", "groups", "bias", "mean", "worst")
    lines = [
        (
            f"{KINDS[each.kind]}, {each.precision}", f"{each.rows}", f"{each.groups}", f"{each.bias:+.1%}",
            f"{each.mean_error:.1%}", f"{each.worst:+.1%}",
        )
        for each in precision_errors()
    ]  # fmt: skip
    return aligned([head, *lines], 32)
