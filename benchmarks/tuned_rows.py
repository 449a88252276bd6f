"""Print how far trine is from published steps of tuned software, and whether it says correctly which runs fit.

    python benchmarks/tuned_rows.py [--stored] [--memory-only] [--jobs N]

--stored       Take the steps from the stored report instead of a replay (about 6 CPU minutes, cached).
--memory-only  Print the memory verdicts alone (about a minute).

Steps, blind: each row; each group (one vote) and the groups above 20 %; mean and 90th percentile of all groups; the
share of groups inside the likely range of presets/measured/training/bands.yaml. Memory: dg1 to dg15 and two runs with
public logs did run, so "does not fit" is wrong for them; torchtitan's page says that tt9 goes out of memory.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from trine.common.spec import load_mapping
from trine.compute.origin import known_gpu
from trine.results.headline import BANDS
from trine.results.memory import DOES_NOT_FIT
from trine.results.text import aligned
from validation.bands import coverage
from validation.memory import ALLOCATED, GIB, MemoryRow, ModelledMemory
from validation.replay_rows import user_answers
from validation.training import TUNED, TrainingValidation, load_stored_training, validate_training
from validation.training_rows import TrainingRow, load_rows

LARGE = 0.20
#: Runs with a public log of their peak (NVIDIA/dgxc-benchmarking v25.04.02): name, row with the layout, changes, GiB.
LOGS = (
    ("8B log", "dg1", {"operators": ""}, 65.97),  # NeMo 2, with the whole float32 weights
    ("15B log", "tt-0148", {"gpus": "64", "dp": "32", "global_batch": "256"}, 67.96),
)
#: A run that goes out of memory: name, row with the layout, changes.
OUT_OF_MEMORY = ("tt9", "tt8", {"recompute": "selective"})


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stored", action="store_true")
    parser.add_argument("--memory-only", action="store_true")
    parser.add_argument("--jobs", type=int, default=None)
    given = parser.parse_args()
    if not given.memory_only:
        print_steps(tuned_report(given.stored, given.jobs))
    print_verdicts()


def tuned_report(is_stored: bool, jobs: int | None) -> TrainingValidation:
    """Return the tuned rows with their blind predictions."""
    if not is_stored:
        return validate_training(sources=[TUNED], blind=True, answers=user_answers(), jobs=jobs)
    report = load_stored_training()
    return replace(report, steps=tuple(step for step in report.steps if step.row.source.set == TUNED))


def print_steps(report: TrainingValidation) -> None:
    """Print rows, groups, totals and the coverage of the likely range."""
    rows = [
        (step.row.name, step.row.group, step.row.software, f"{step.row.num_gpus}", f"{step.measured_s:.4g} s",
         f"{step.answer.step_s:.4g} s", f"{step.error:+.1%}")
        for step in report.counted
    ]  # fmt: skip
    print(*aligned([("row", "group", "profile", "GPUs", "measured", "predicted", "error"), *rows], 8), sep="\n")
    for paragraph in report.tuned_paragraphs():
        print("", *paragraph, sep="\n")
    errors = np.array([abs(errors.bias) for _, errors in report.votes()])
    if not len(errors):
        return
    above = [name for name, errors in report.votes() if abs(errors.bias) > LARGE]
    print(f"\n{len(errors)} groups: mean {errors.mean():.1%}, 90th percentile {np.quantile(errors, 0.9):.1%}")
    print(f"groups above {LARGE:.0%}: {', '.join(above) or 'none'}")
    for name, rows_of, groups, share in coverage(report.counted, load_mapping(BANDS)):
        print(f"likely range, {name}: {share:.0%} of {groups} groups ({rows_of} rows) inside")


def memory_runs() -> Iterator[tuple[str, TrainingRow, float | None, bool]]:
    """Yield name, row, measured peak in GiB if known, and whether the run fitted."""
    rows = {row.name: row for row in load_rows() if row.source.set == TUNED}
    for number in range(1, 16):
        yield f"dg{number}", rows[f"dg{number}"], None, True
    for name, like, facts, peak in LOGS:
        yield name, replace(rows[like], facts={**rows[like].facts, **facts}), peak, True
    name, like, facts = OUT_OF_MEMORY
    yield name, replace(rows[like], facts={**rows[like].facts, **facts}), None, False


def print_verdicts() -> None:
    """Print the modelled peak and verdict of each run beside the fact."""
    model, table, right = ModelledMemory(), [], 0
    for name, row, peak, fitted in memory_runs():
        gpu, plan = known_gpu(row.gpu), row.plan()
        assert gpu is not None
        asked = MemoryRow(
            source=TUNED, name=name, counter=ALLOCATED, measured_bytes=None, model=row.transformer(), plan=plan,
            software=row.profile(), stages=tuple(range(plan.pp)), open=(), capacity_bytes=gpu.memory_bytes,
        )  # fmt: skip
        answer = model.compared(asked)
        if answer.use is None:
            table.append((name, row.group, "", "", answer.why_not, "", "wrong"))
            continue
        is_right = (answer.verdict != DOES_NOT_FIT) == fitted
        right += is_right
        allocated, needed = (size / GIB for size in (answer.use.allocated_bytes, answer.use.needed_bytes))
        logged = "" if peak is None else f"{peak:.2f} ({allocated / peak - 1:+.1%})"
        fact = "ran" if fitted else "out of memory"
        table.append((name, row.group, f"{allocated:.1f}", f"{needed:.1f}", answer.verdict, logged, fact,
                      "right" if is_right else "WRONG"))  # fmt: skip
    head = ("run", "group", "allocated", "needed GiB", "verdict", "log", "fact", "")
    print("", *aligned([head, *table], 8), f"{right} of {len(table)} verdicts are right", sep="\n")


if __name__ == "__main__":
    main()
