"""A layout in words, for the live page."""

from __future__ import annotations

from trine.parallel.plan import Plan

_AXES = ("dp", "tp", "cp", "ep", "pp")


def plan_words(plan: Plan) -> str:
    """Return the degrees above 1 of a layout, and its micro-batch."""
    degrees = []
    for axis in _AXES:
        if getattr(plan, axis) > 1:
            degrees.append(f"{axis} {getattr(plan, axis)}")
    words = " × ".join(degrees) or "one GPU"
    return words if plan.micro_batch is None else f"{words}, micro-batch {plan.micro_batch}"
