"""Laws of time for every kind of operator in a trace, and how well they fit.

A kind with enough operators of different sizes has a law of its own. Others borrow what belongs to the GPU rather than to
the kind, the time per byte and the fixed time, from the law of all operators bound by memory, and take their own rate from
the most efficient operator of the kind. What a less efficient one takes longer is its excess (see linear.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trine.compute.kinds import is_compute_bound
from trine.compute.law import Law, Sample, fit_law, median

#: A law of its own needs this many operators of different work: one more than it has coefficients.
MIN_SIZES_COMPUTE, MIN_SIZES_MEMORY = 4, 3
OWN, POOLED = "own", "pooled"


@dataclass(frozen=True, slots=True)
class KindFit:
    """The law of one kind, and its relative errors |law / recorded - 1| (None where there is no other to leave out).

    ``origin``: 'own' or 'pooled'. ``num_sizes``: operators of different work among ``num_operators``.
    """

    kind: str
    num_operators: int
    num_sizes: int
    origin: str
    law: Law
    median_error: float
    max_error: float
    left_out_median_error: float | None
    left_out_max_error: float | None


@dataclass(frozen=True, slots=True)
class FitReport:
    """One row a kind, in alphabetical order, and the smallest time step of the trace(s)."""

    kinds: tuple[KindFit, ...]
    resolution_ps: int


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
        if _num_sizes(members) >= (MIN_SIZES_COMPUTE if with_flops else MIN_SIZES_MEMORY):
            by_kind[kind] = fit_law(members, with_flops=with_flops, resolution_ps=resolution_ps), OWN
        else:
            by_kind[kind] = _borrowed(members, memory, with_flops), POOLED
    return Laws(groups, by_kind, memory, resolution_ps)


def _memory_law(groups: Mapping[str, tuple[Sample, ...]], resolution_ps: int) -> Law:
    """The law of all operators bound by memory; where they are too few, memory is taken to cost nothing by itself."""
    members = [s for kind, samples in groups.items() if not is_compute_bound(kind) for s in samples if s.work.bytes]
    if _num_sizes(members) < MIN_SIZES_MEMORY:
        return Law(0.0, 0.0, 0.0)
    return fit_law(members, with_flops=False, resolution_ps=resolution_ps)


def _borrowed(samples: Sequence[Sample], memory: Law, with_flops: bool) -> Law:
    """The law of memory with the rate of the most efficient of ``samples``, per FLOP if ``with_flops``, else per byte."""
    if with_flops:
        rates = [(s.time_ps - memory.time_ps(s.work)) / s.work.flops for s in samples if s.work.flops]
        return Law(min((rate for rate in rates if rate > 0.0), default=0.0), memory.ps_per_byte, memory.fixed_ps)
    rates = [(s.time_ps - memory.fixed_ps) / s.work.bytes for s in samples if s.work.bytes]
    return Law(0.0, max(min(rates, default=0.0), memory.ps_per_byte), memory.fixed_ps)


def _num_sizes(samples: Sequence[Sample]) -> int:
    return len({sample.work for sample in samples})


def report(laws: Laws) -> FitReport:
    """Measure each law on its own samples, and with the laws fitted anew without each sample in turn."""
    rows = []
    for kind, samples in laws.samples.items():
        law, origin = laws.by_kind[kind]
        errors = [_error(law, sample) for sample in samples]
        left_out = _left_out(laws, kind) if origin == OWN else None
        rows.append(
            KindFit(
                kind, len(samples), _num_sizes(samples), origin, law, median(errors), max(errors),
                median(left_out) if left_out else None, max(left_out) if left_out else None,
            )
        )  # fmt: skip
    return FitReport(tuple(rows), laws.resolution_ps)


def _error(law: Law, sample: Sample) -> float:
    return abs(law.time_ps(sample.work) / sample.time_ps - 1)


def _left_out(laws: Laws, kind: str) -> list[float]:
    """Errors of a law on each sample when fitted on the others of the kind."""
    samples, with_flops = laws.samples[kind], is_compute_bound(kind)
    errors = []
    for i, sample in enumerate(samples):
        others = samples[:i] + samples[i + 1 :]
        law = fit_law(others, with_flops=with_flops, resolution_ps=laws.resolution_ps)
        errors.append(_error(law, sample))
    return errors
