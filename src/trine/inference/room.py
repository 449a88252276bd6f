"""Layouts and precisions near one that a model cannot have: those with room, and those that divide the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trine.errors import InputError, nearest_numbers
from trine.inference.deployment import check_model, served_model
from trine.inference.job import ServingJob
from trine.inference.limits import NoRoomError, limits_of
from trine.inference.precision import precision_name, served_precisions
from trine.inference.precision_choice import precisions_of
from trine.inference.steps import Deployment

#: Ways of parallelism that are tried, up to the largest scale-up domain in the presets.
_WAYS, _MAX_WAYS = (2, 4, 8, 16, 32, 64), 64


def any_of(names: Sequence[str]) -> str:
    """Return ``a, b or c``."""
    first, last = ", ".join(names[:-1]), names[-1]
    return f"{first} or {last}" if first else last


def nearest_ways(job: ServingJob) -> list[int]:
    """Return the nearest ways of tensor parallelism below and above a job's that divide its model."""
    model = served_model(job.model)
    precision = precision_name(job.precision, model.stored)
    valid = []
    for ways in range(1, _MAX_WAYS + 1):
        try:
            check_model(model, replace(job.layout, tp=ways), precision)
        except InputError:
            continue
        valid.append(ways)
    return nearest_numbers(valid, job.layout.tp)


def changes_with_room(job: ServingJob, deployment: Deployment) -> list[str]:
    """Return changes that each make room on their own, such as ``tp 4`` and ``precision fp8``; empty if none does."""
    found = []
    for field in ("tp", "pp"):
        ways = _fewest_ways(job, deployment, field)
        if ways is not None:
            found.append(f"{field} {ways}")
            break
    precision = _precision_with_room(job, deployment)
    if precision is not None:
        found.append(f"precision {precision}")
    if deployment.kv != "fp8" and _has_room(job, replace(deployment, kv="fp8")):
        found.append("an fp8 KV cache")
    return found


def _fewest_ways(job: ServingJob, deployment: Deployment, field: str) -> int | None:
    """Return the fewest ways of ``tp`` or ``pp`` with room, in powers of two; None if none has."""
    for ways in _WAYS:
        if ways <= getattr(job.layout, field):
            continue
        layout = replace(job.layout, **{field: ways})
        try:
            check_model(deployment.model, layout, deployment.precision_name)
        except InputError:
            continue
        if _has_room(job, replace(deployment, layout=layout)):
            return ways
    return None


def _precision_with_room(job: ServingJob, deployment: Deployment) -> str | None:
    """Return the first precision of most bits with room, of those that the GPU computes in; None if none has."""
    known = served_precisions()
    names = precisions_of(deployment.model, deployment.gpu, "")
    for name in sorted(names, key=lambda each: -round(known[each].weight_bits)):
        other = replace(deployment, precision=known[name].on(deployment.gpu), precision_name=name)
        if known[name].weight_bits < deployment.precision.weight_bits and _has_room(job, other):
            return name
    return None


def _has_room(job: ServingJob, deployment: Deployment) -> bool:
    try:
        limits_of(job, deployment)
    except NoRoomError:
        return False
    return True
