"""How well the laws of time fit: in the trace, and on operators that they were not fitted on."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from trine.compute.fit import OWN, Laws, num_sizes
from trine.compute.kinds import is_compute_bound
from trine.compute.law import Law, Sample, fit_law, median


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
    """One row a kind, in alphabetical order, and the time step of the trace (of several: the coarsest)."""

    kinds: tuple[KindFit, ...]
    resolution_ps: int

    def text(self) -> str:
        """A table for people: coefficients as rates, errors in percent of the recorded time, median and largest."""
        lines = [
            f"{'kind':<28}{'ops':>5}{'sizes':>6}  {'law':<7}{'TFLOP/s':>9}{'GB/s':>9}{'fixed us':>9}"
            f"{'error %: med':>14}{'max':>7}{'left out: med':>15}{'max':>7}"
        ]
        for row in self.kinds:
            law = row.law
            lines.append(
                f"{row.kind:<28}{row.num_operators:>5}{row.num_sizes:>6}  {row.origin:<7}"
                f"{_rate(law.ps_per_flop, 1.0):>9}{_rate(law.ps_per_byte, 1e3):>9}{law.fixed_ps / 1e6:>9.1f}"
                f"{_percent(row.median_error):>14}{_percent(row.max_error):>7}"
                f"{_percent(row.left_out_median_error):>15}{_percent(row.left_out_max_error):>7}"
            )
        return "\n".join(lines)

    def to_json(self) -> dict[str, object]:
        """The same as plain data: ps per FLOP, ps per byte, ps; errors as fractions of the recorded time."""
        return {"resolution_ps": self.resolution_ps, "kinds": [asdict(row) for row in self.kinds]}


def _rate(ps_per_unit: float, factor: float) -> str:
    """Units per picosecond times ``factor``: 1 / (ps per FLOP) is TFLOP/s, 1000 / (ps per byte) is GB/s."""
    return f"{factor / ps_per_unit:,.1f}" if ps_per_unit > 0.0 else "-"


def _percent(error: float | None) -> str:
    return "-" if error is None else f"{100 * error:.1f}"


def report(laws: Laws) -> FitReport:
    """Measure each law on its own samples, and with the laws fitted anew without each sample in turn."""
    rows = []
    for kind, samples in laws.samples.items():
        law, origin = laws.by_kind[kind]
        errors = [_error(law, sample) for sample in samples]
        left_out = _left_out(laws, kind) if origin == OWN else None
        rows.append(
            KindFit(
                kind, len(samples), num_sizes(samples), origin, law, median(errors), max(errors),
                median(left_out) if left_out else None, max(left_out) if left_out else None,
            )
        )  # fmt: skip
    return FitReport(tuple(rows), laws.resolution_ps)


def _error(law: Law, sample: Sample) -> float:
    return abs(law.time_ps(sample.work) / sample.time_ps - 1)


def _left_out(laws: Laws, kind: str) -> list[float]:
    """Errors of a law on each sample when fitted on the others of the kind."""
    samples, memory = laws.samples[kind], laws.memory if is_compute_bound(kind) else None
    errors = []
    for i, sample in enumerate(samples):
        others = samples[:i] + samples[i + 1 :]
        law = fit_law(others, memory, resolution_ps=laws.resolution_ps)
        errors.append(_error(law, sample))
    return errors
