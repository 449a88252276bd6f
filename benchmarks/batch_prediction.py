"""How well does one trace predict the same model at another batch size? Per operator kind and in all.

Run: python benchmarks/batch_prediction.py [TRACE_A TRACE_B]
Without arguments: vgg13 on H100 at batch 128 (bundled) and at batch 512 (tests/data), recorded by TrioSim's authors.
Each trace predicts the other alone. "plain" scales every time with the batch, as TrioSim's published code does.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from trine.compute import Split, kind_of, make_compute
from trine.errors import InputError
from trine.graph.workload import Workload
from trine.workload import load

TOTAL = "total"
RAW_VGG13 = Path(__file__).parent.parent / "tests" / "data" / "vgg13-raw-b512"


@dataclass(slots=True)
class Row:
    """Sums over the operators of a kind, in picoseconds; ``off_ps``: sum of the operators' absolute errors."""

    num_operators: int = 0
    recorded_ps: int = 0
    predicted_ps: int = 0
    plain_ps: int = 0
    off_ps: int = 0

    @property
    def error(self) -> float:
        return self.predicted_ps / self.recorded_ps - 1

    @property
    def plain_error(self) -> float:
        return self.plain_ps / self.recorded_ps - 1


def predict(source: Workload, target: Workload) -> dict[str, Row]:
    """Predict ``target`` from ``source`` alone: a row for each kind, and one for all. They must be of one model."""
    names = [[op.name for op in workload.operators] for workload in (source, target)]
    if names[0] != names[1]:
        raise InputError(f"{source.name} and {target.name} do not run the same operators")
    model, split, rows = make_compute("auto", source), Split(target.batch), {TOTAL: Row()}
    for op, other in zip(source.operators, target.operators, strict=True):
        predicted = model.duration(op, split).ps
        for row in (rows[TOTAL], rows.setdefault(kind_of(op), Row())):
            row.num_operators += 1
            row.recorded_ps += other.gpu_time_ps
            row.predicted_ps += predicted
            row.plain_ps += op.gpu_time_ps * target.batch // source.batch
            row.off_ps += abs(predicted - other.gpu_time_ps)
    return rows


def table(rows: dict[str, Row]) -> str:
    """Kinds by recorded time, then the total."""
    lines = [
        f"{'kind':<26}{'ops':>4}{'recorded ms':>13}{'predicted ms':>14}{'error %':>9}{'per op %':>10}{'plain %':>9}"
    ]
    for kind, row in sorted(rows.items(), key=lambda item: (item[0] == TOTAL, -item[1].recorded_ps)):
        lines.append(
            f"{kind:<26}{row.num_operators:>4}{row.recorded_ps / 1e9:>13.3f}{row.predicted_ps / 1e9:>14.3f}"
            f"{100 * row.error:>+9.2f}{100 * row.off_ps / row.recorded_ps:>10.2f}{100 * row.plain_error:>+9.2f}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", default=["vgg13-h100-b128", str(RAW_VGG13)])
    traces = parser.parse_args().traces
    if len(traces) != 2:
        parser.error("give two traces of one model, or none")
    first, second = (load(path) for path in traces)
    for source, target in ((first, second), (second, first)):
        print(f"\n{source.name}, batch {source.batch} -> {target.batch}\n{table(predict(source, target))}")
    for workload in (first, second):
        report = make_compute("auto", workload).fit_report()
        if report is not None:
            print(f"\nLaws fitted on {workload.name}, batch {workload.batch}\n{report.text()}")


if __name__ == "__main__":
    main()
