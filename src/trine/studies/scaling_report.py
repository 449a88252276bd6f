"""How far predicted efficiencies on the GPUs of one machine are from published ones (scaling_pairs.py)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import ClassVar

from trine.results.report import Report, Row, Table
from trine.results.text import aligned
from trine.studies.scaling_pairs import Pair, Scaled, pairs_not_asked, read_pairs, scaling_errors, scaling_rows
from trine.studies.unread import UnreadRow

#: What issue 14 asks of the judged pairs: mean and 90th percentile of the efficiency's absolute error.
TARGET = (0.04, 0.08)


@dataclass(frozen=True, kw_only=True, repr=False)
class ScalingValidation(Report):
    """rows: the judged pairs and those that the host's time is fitted on. not_asked: others, by framework and model.

    unread: rows of the table without a prediction.
    """

    SCHEMA: ClassVar[str] = "validate-scaling"

    rows: tuple[Scaled, ...]
    not_asked: dict[str, list[Pair]]
    unread: tuple[UnreadRow, ...] = ()

    @property
    def judged(self) -> list[Scaled]:
        """Judged rows, the worst first."""
        return sorted((row for row in self.rows if row.pair.is_judged), key=lambda row: -abs(row.error))

    @property
    def fitted(self) -> list[Scaled]:
        """Rows that the host's time is fitted on, the worst first."""
        return sorted((row for row in self.rows if not row.pair.is_judged), key=lambda row: -abs(row.error))

    @property
    def headline(self) -> str:
        """How far efficiencies are off."""
        errors = scaling_errors(self.judged)
        return (
            f"{errors.num_pairs} published pairs of 1 and 8 GPUs: the efficiency is off by {errors.mean:.1%} on "
            f"average, nine of ten within {errors.p90:.1%}, bias {errors.bias:+.1%} (a constant: "
            f"{errors.constant_mean:.1%}, {errors.constant_p90:.1%})"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        return (
            f"what processes lose to each other on the CPUs is fitted on {len(self.fitted)} rows of EfficientNet, none "
            "of which is judged",
        )

    def summary(self) -> str:
        """The judged pairs, worst first, what their predictions are made of, the rows that were fitted on, the rest."""
        head = ("", "batch", "measured", "predicted", "error", "collectives", "slowest", "software")
        judged = [("pairs", *head[1:]), *(_cells(row) for row in self.judged)]
        fitted = [("fitted on", *head[1:]), *(_cells(row) for row in self.fitted)]
        rest = [
            f"  {len(pairs):3d}  {name}: efficiency {min(p.measured for p in pairs):.2f} to "
            f"{max(p.measured for p in pairs):.2f}"
            for name, pairs in sorted(self.not_asked.items())
        ]
        blocks = [self.headline, "\n".join(aligned(judged, 30)), "\n".join(aligned(fitted, 30))]
        unread = [f"not predicted: {row.source}, {row.name}: {row.why}" for row in self.unread]
        blocks += ["\n".join(unread)] if unread else []
        return "\n\n".join([*blocks, "\n".join(["not asked, as trine has no shapes of them", *rest])])

    def document(self) -> Row:
        """``errors`` of the judged pairs, ``targets``, ``rows``, ``fitted_on`` and ``not_asked`` (pairs a model)."""
        return {
            "targets": dict(zip(("mean_error_max", "p90_error_max"), TARGET, strict=True)),
            "errors": asdict(scaling_errors(self.judged)),
            **self.tables(),
            "not_predicted": [{"row": row.name, "why": row.why} for row in self.unread],
            "not_asked": {name: len(pairs) for name, pairs in sorted(self.not_asked.items())},
        }

    def tables(self) -> dict[str, Table]:
        """``rows`` and ``fitted_on`` of :meth:`document`, the worst first."""
        return {
            "rows": [row.to_dict() for row in self.judged],
            "fitted_on": [row.to_dict() for row in self.fitted],
        }


def validate_scaling() -> ScalingValidation:
    """Predict the bundled pairs."""
    pairs, unread = read_pairs()
    rows = scaling_rows(pairs, unread)
    return ScalingValidation(rows=tuple(rows), not_asked=pairs_not_asked(pairs), unread=tuple(unread))


def _cells(row: Scaled) -> tuple[str, ...]:
    pair = row.pair
    model = pair.variant or pair.model.rpartition("/")[2]
    parts = (row.collectives_s, row.slowest_s, row.software_s)
    return (
        f"{pair.framework} {model}, {pair.machine.removeprefix('NVIDIA ').partition(' (')[0]}, {pair.precision}",
        str(pair.batch), f"{pair.measured:.3f}", f"{row.predicted:.3f}", f"{row.error:+.1%}",
        *(f"{part * 1e3:.1f} ms" for part in parts),
    )  # fmt: skip
