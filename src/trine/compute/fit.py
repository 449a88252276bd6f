"""Laws of time for every kind of operator in a trace.

A kind with enough operators of different sizes has a law of its own. Others borrow what belongs to the GPU rather than
to the kind, the time per byte and the fixed time, from the law of all operators bound by memory, and take their own
rate from the most efficient operator of the kind. What a less efficient one takes longer is its excess (linear.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trine.compute.kinds import family_of, is_compute_bound
from trine.compute.law import Law, Sample, fit_law

#: A law of its own needs this many operators of different work: one more than it has coefficients.
MIN_SIZES_COMPUTE, MIN_SIZES_MEMORY = 4, 3
OWN, POOLED = "own", "pooled"


@dataclass(frozen=True, slots=True)
class Laws:
    """Laws of time by kind with their origin, the samples that they were fitted on, and the law of memory alone."""

    samples: Mapping[str, tuple[Sample, ...]]
    by_kind: Mapping[str, tuple[Law, str]]
    memory: Law
    resolution_ps: int

    def law(self, kind: str) -> Law:
        """Return the law of ``kind``; that of memory if no operator of the kind took any time."""
        return self.by_kind[kind][0] if kind in self.by_kind else self.memory


def fit_laws(samples: Iterable[tuple[str, Sample]], resolution_ps: int) -> Laws:
    """Fit the laws of all kinds. ``samples``: (kind, sample) in a fixed order; those without time are left out."""
    grouped: dict[str, list[Sample]] = {}
    for kind, sample in samples:
        if sample.time_ps > 0:
            grouped.setdefault(kind, []).append(sample)
    groups = {kind: tuple(grouped[kind]) for kind in sorted(grouped)}
    memory = _memory_law(groups, resolution_ps)
    by_kind = {}
    for kind, members in groups.items():
        with_flops = is_compute_bound(kind)
        if num_sizes(members) >= (MIN_SIZES_COMPUTE if with_flops else MIN_SIZES_MEMORY):
            law = fit_law(members, memory if with_flops else None, resolution_ps=resolution_ps)
            if law.ps_per_flop == law.ps_per_byte == 0.0:
                # All too small to show what a byte costs; at larger sizes it costs at least what it does elsewhere.
                law = Law(0.0, memory.ps_per_byte, law.fixed_ps)
            by_kind[kind] = law, OWN
        else:
            by_kind[kind] = _borrowed(members, memory, with_flops), POOLED
    return Laws(groups, by_kind, memory, resolution_ps)


def _memory_law(groups: Mapping[str, tuple[Sample, ...]], resolution_ps: int) -> Law:
    """The law of all known operators bound by memory; where they are too few, memory costs nothing by itself."""
    known = [kind for kind in groups if not is_compute_bound(kind) and family_of(kind) not in ("other", "view")]
    members = [s for kind in known for s in groups[kind] if s.work.bytes]
    if num_sizes(members) < MIN_SIZES_MEMORY:
        return Law(0.0, 0.0, 0.0)
    return fit_law(members, resolution_ps=resolution_ps)


def _borrowed(samples: Sequence[Sample], memory: Law, with_flops: bool) -> Law:
    """The law of memory with the rate of the most efficient sample, per FLOP if ``with_flops``, else per byte."""
    if with_flops:
        rates = [(s.time_ps - memory.time_ps(s.work)) / s.work.flops for s in samples if s.work.flops]
        return Law(min((rate for rate in rates if rate > 0.0), default=0.0), memory.ps_per_byte, memory.fixed_ps)
    rates = [(s.time_ps - memory.fixed_ps) / s.work.bytes for s in samples if s.work.bytes]
    return Law(0.0, max(min(rates, default=0.0), memory.ps_per_byte), memory.fixed_ps)


def num_sizes(samples: Sequence[Sample]) -> int:
    """How many samples do different work."""
    return len({sample.work for sample in samples})
