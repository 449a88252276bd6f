"""What `trine validate training` shows: text for people, and the page docs/background/training-accuracy.md."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from trine.results.text import aligned

if TYPE_CHECKING:
    from trine.studies.validate_training import ComparedStep, Errors, TrainingValidation

NUM_WORST = 12
_HEAD = ("rows", "bias", "mean", "median", "p90", "<=10%")


def summary_text(found: TrainingValidation, worst: int = NUM_WORST) -> str:
    """Errors by source, GPU, software and scale, the worst rows with what their sources leave open, what is apart."""
    blocks = [found.headline]
    for by in ("source", "gpu", "software", "scale"):
        rows = [(f"by {by}", *_HEAD), *((name, *cells(errors)) for name, errors in found.grouped(by))]
        blocks.append("\n".join(aligned(rows, 30)))
    shown = found.worst()[:worst]
    blocks.append("\n".join(["worst rows", *(line for step in shown for line in _worst_lines(step))]))
    apart = Counter((step.row.source.key, step.row.apart) for step in found.compared if step.row.apart)
    blocks += (
        ["\n".join(["apart, counted nowhere", *(f"  {count:4d}  {key}: {why}" for (key, why), count in apart.items())])]
        if apart
        else []
    )
    failed = Counter((s.row.source.key, s.answer.why_not) for s in found.steps if s.answer.why_not)
    blocks += (
        ["\n".join(["not predicted", *(f"  {count:4d}  {key}: {why}" for (key, why), count in failed.items())])]
        if failed
        else []
    )
    return "\n\n".join(blocks)


def cells(errors: Errors) -> tuple[str, ...]:
    """A table's cells of some errors."""
    return (
        f"{errors.count}", f"{errors.bias:+.1%}", f"{errors.mean:.1%}", f"{errors.median:.1%}", f"{errors.p90:.1%}",
        f"{errors.within:.0%}",
    )  # fmt: skip


def _worst_lines(step: ComparedStep) -> list[str]:
    row, plan = step.row, step.row.plan()
    layout = " ".join(f"{name}{getattr(plan, name)}" for name in ("dp", "tp", "pp") if getattr(plan, name) > 1)
    first = (
        f"  {step.error:+7.1%}  {row.name}: {row.model}, {row.num_gpus} x {row.gpu} {layout}, "
        f"{step.measured_s:.4g} s measured, {step.answer.step_s:.4g} s predicted"
    )
    return [first, *([f"           open: {'; '.join(row.open)}"] if row.open else [])]
