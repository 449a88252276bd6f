"""Compute the reports that ``trine validate`` prints, and store them (``python -m validation`` computes one).

    python benchmarks/store_reports.py [REPORT ...] [--jobs N] [--source NAME ...] [--renew N]

All take an hour of CPU time, and one row 15 GB of memory. An interrupted replay resumes: finished rows of training and
layouts are kept in ``out/stored-reports``, for the same data and code. Reports that are current are skipped.

``src/trine/presets/stored`` gets what is printed, ``validation/stored`` the predictions of training, layouts, memory
and serving, from which their reports follow without a replay.

--source  Replay only this source of the training steps and keep the others, if cheap rows of them are unchanged.
--renew   Replay nothing: compare the N cheapest rows of each source with the stored report. If all are equal, renew its
          version and hash, else list the rows that differ and exit with 1. For changes that move no prediction.
          Reports without stored predictions are computed again and must be equal: operators for one GPU.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from trine.cli.progress import RowsLine
from trine.common._version import __version__
from trine.common.outputs import write_bytes
from trine.results import stored as stored_reports
from trine.results.stored import stored_report
from validation.harness import FOLDER, Validation, grouped, hash_sources, read_stored
from validation.layouts import FITTED_FACTORS, load_stored_layouts, validate_layouts
from validation.memory import ModelledMemory, load_stored_memory, validate_memory
from validation.operators import validate_operators
from validation.replay_rows import Answers, Ask, predict
from validation.scaling import validate_scaling
from validation.serving import load_stored_serving, validate_serving
from validation.serving_predictions import predict as predict_serving
from validation.shown import collective_report, form_of, kernel_report, read_shown, renew_shown, store_shown
from validation.step_factors import ComparedStep, asked_factors
from validation.training import load_stored_training, validate_training

#: A sample excludes rows with more CPU time, in seconds.
MAX_CPU_S = 10.0
#: Largest relative difference of two predictions of the same row that is a rounding error.
ROUNDING = 1e-6
KEPT = Path(__file__).parents[1] / "out" / "stored-reports"
SERVING_PAGE = Path(__file__).parents[1] / "docs" / "background" / "serving-accuracy.md"
REPORT_START, REPORT_END = "<!-- report -->\n", "<!-- end -->\n"
Progress = Callable[[int, int], None]


#: Reports whose predictions are stored, and the functions that put them beside their rows.
LOADED: dict[str, Callable[[], Validation]] = {
    "training": load_stored_training, "layouts": load_stored_layouts, "memory": load_stored_memory,
    "serving": load_stored_serving,
}  # fmt: skip


def store(name: str, content: Mapping[str, Any], cpu_s: float) -> None:
    """Store predictions with the installed version and hash, and the report that follows; cpu_s: of the replay."""
    made = {"version": __version__, "hash": hash_sources(), "cpu_s": round(cpu_s)}
    text = json.dumps({"made": made, **content}, separators=(",", ":"))
    write_bytes(FOLDER / f"{name}.json.gz", gzip.compress(text.encode(), 9, mtime=0))
    store_shown(name, LOADED[name](), cpu_s)


def step_records(steps: Iterable[ComparedStep]) -> list[dict[str, Any]]:
    """Return predictions as plain data."""
    return [{**asdict(step.answer), "calibrated_s": step.calibrated_s} for step in steps]


def training(progress: Progress, jobs: int | None, sources: list[str]) -> list[str]:
    """Replay and store the training steps; return the rows of other sources that differ from the stored report."""
    answers = Answers(KEPT / "training")
    found = validate_training(answers=answers, jobs=jobs, sources=sources or None, progress=progress)
    steps, cpu_s = found.steps, answers.cpu_s
    if sources:
        new, old = {step.row.name: step for step in found.steps}, load_stored_training()
        steps, cpu_s = tuple(new.get(step.row.name, step) for step in old.steps), read_stored("training")[0].cpu_s
        if different := step_differences((step for step in steps if step.row.name not in new), Ask(), 2):
            return different
    store("training", {"rows": step_records(steps)}, cpu_s)
    return []


def layouts(progress: Progress, jobs: int | None, sources: list[str]) -> list[str]:
    """Replay and store the layouts."""
    answers = Answers(KEPT / "layouts")
    found = validate_layouts(answers=answers, jobs=jobs, progress=progress)
    rows, alone = step_records(step for step in found.steps if not step.row.fault), step_records(found.blind)
    content = {"rows": rows, "blind": alone, "factors": found.factors, "num_fitted": found.num_fitted}
    store("layouts", content, answers.cpu_s)
    return []


def memory(progress: Progress, jobs: int | None, sources: list[str]) -> list[str]:
    """Model and store the peaks of memory."""
    answers = validate_memory(progress=progress).answers
    rows = [
        {"row": a.row.name, "use": a.use and asdict(a.use), "verdict": a.verdict, "why_not": a.why_not,
         "cpu_s": a.cpu_s}
        for a in answers
    ]  # fmt: skip
    store("memory", {"rows": rows}, sum(a.cpu_s for a in answers))
    return []


def serving(progress: Progress, jobs: int | None, sources: list[str]) -> list[str]:
    """Predict and store the serving runs."""
    runs = validate_serving(progress=progress).runs
    rows = [run.prediction.record() for run in runs]
    store("serving", {"rows": rows}, sum(run.prediction.cpu_s for run in runs))
    write_serving_page()
    return []


def write_serving_page() -> None:
    """Write the stored report of the serving runs into its page, between the marks."""
    text = SERVING_PAGE.read_text()
    start, rest = text.split(REPORT_START)
    SERVING_PAGE.write_text(start + REPORT_START + serving_block() + REPORT_END + rest.split(REPORT_END)[1])


def serving_block() -> str:
    """Return the details of the stored report without their first line, as a block of code."""
    details = load_stored_serving().details().split("\n\n", 1)[1]
    lines = [f"    {line}".rstrip() for line in details.splitlines()]
    return "\n".join(["", *lines, "", ""])


def collectives(progress: Progress, jobs: int | None, sources: list[str]) -> list[str]:
    """Compute and store the report of the collectives."""
    return store_timed("collectives", collective_report)


def loadstore(progress: Progress, jobs: int | None, sources: list[str]) -> list[str]:
    """Compute and store the report of communication kernels."""
    return store_timed("loadstore", kernel_report)


def operators(progress: Progress, jobs: int | None, sources: list[str]) -> list[str]:
    """Compute and store the report of operator times."""
    return store_timed("operators", validate_operators)


def scaling(progress: Progress, jobs: int | None, sources: list[str]) -> list[str]:
    """Compute and store the report of scaling efficiency."""
    return store_timed("scaling", validate_scaling)


def store_timed(name: str, compute: Callable[[], Validation]) -> list[str]:
    """Compute a report without stored predictions, and store it."""
    began = time.process_time()
    report = compute()
    store_shown(name, report, time.process_time() - began)
    return []


REPORTS = {
    "memory": memory, "layouts": layouts, "training": training, "serving": serving, "collectives": collectives,
    "loadstore": loadstore, "operators": operators, "scaling": scaling,
}  # fmt: skip
#: Reports without stored predictions -> the function that computes them.
COMPUTED: dict[str, Callable[[], Validation]] = {
    "collectives": collective_report, "loadstore": kernel_report, "scaling": validate_scaling,
}  # fmt: skip
#: The operator report of one GPU is compared: all take 4 CPU minutes.
OPERATOR_GPU = "mi210"


def differences(name: str, rows: int) -> list[str]:
    """Predict the ``rows`` cheapest rows of each source again; return those that differ from the stored report."""
    if name in COMPUTED:
        return document_differences(name, COMPUTED[name]())
    if name == "operators":
        return operator_differences()
    if name == "memory":
        return memory_differences(rows)
    if name == "training":
        return step_differences(load_stored_training().steps, Ask(), rows)
    if name == "serving":
        return serving_differences(rows)
    stored = load_stored_layouts()
    fitted = Ask(factors=asked_factors(stored.factors), names=FITTED_FACTORS)
    judged = [step for step in stored.steps if not step.row.fault]
    return [*step_differences(stored.blind, Ask(), rows), *step_differences(judged, fitted, rows)]


def document_differences(name: str, now: Validation) -> list[str]:
    """Return the keys of a report's document that differ from the stored ones."""
    stored = read_shown(name)["fitted"]["document"]
    document = json.loads(json.dumps(form_of(now)["document"]))
    found = []
    for key in dict.fromkeys([*stored, *document]):
        if key != "trine_version" and stored.get(key) != document.get(key):
            found.append(f"{name}: {key} differs from the stored report")
    return found


def operator_differences() -> list[str]:
    """Return the rows of one GPU that the stored report of operators lacks."""
    kept = read_shown("operators")["fitted"]["document"]["errors"]
    rows = json.loads(json.dumps([errors.row() for errors in validate_operators([OPERATOR_GPU]).errors]))
    return [f"{row['what']} {row['operator']} {row['gpu']} from {row['source']}" for row in rows if row not in kept]


def step_differences(steps: Iterable[ComparedStep], ask: Ask, rows: int) -> list[str]:
    """Return the rows, of the ``rows`` cheapest of each source, whose step differs from the stored one."""
    found = []
    cheap = (step for step in steps if not step.answer.why_not and step.answer.cpu_s <= MAX_CPU_S)
    by_source = grouped(sorted(cheap, key=lambda step: step.answer.cpu_s), lambda step: step.row.source.key)
    for step in (step for each in by_source.values() for step in each[:rows]):
        now = predict(step.row, ask).step_s
        if abs(now - step.answer.step_s) > ROUNDING * step.answer.step_s:
            found.append(f"{step.row.name}: {step.answer.step_s:.6g} s stored, {now:.6g} s now")
    return found


def memory_differences(rows: int) -> list[str]:
    """Return the rows, of the ``rows`` cheapest of each source, whose memory differs from the stored one.

    Rows that took no time had the memory of an earlier row.
    """
    modelled, found = ModelledMemory(), []
    once = (answer for answer in load_stored_memory().answers if answer.use is not None and answer.cpu_s > 0.02)
    by_source = grouped(sorted(once, key=lambda answer: answer.cpu_s), lambda answer: answer.row.source)
    for stored in (answer for each in by_source.values() for answer in each[:rows]):
        now = modelled.compared(stored.row)
        if (now.use, now.verdict) != (stored.use, stored.verdict):
            found.append(
                f"{stored.row.name}: {stored.use.needed_bytes} bytes stored, {now.use and now.use.needed_bytes} now"
            )
    return found


def serving_differences(rows: int) -> list[str]:
    """Return the rows, of the ``rows`` cheapest of each stack and kind, whose times differ from the stored ones."""
    found = []
    cheap = (run for run in load_stored_serving().statistics.answered if run.prediction.cpu_s <= MAX_CPU_S)
    ordered = sorted(cheap, key=lambda run: run.prediction.cpu_s)
    for runs in grouped(ordered, lambda run: (run.row.kind, run.row.stack)).values():
        for run in runs[:rows]:
            now = predict_serving(run.row)
            if replace(now, cpu_s=0.0) != replace(run.prediction, cpu_s=0.0):
                found.append(f"{run.row.name}: {run.prediction.end_to_end_s} stored, {now.end_to_end_s} now")
    return found


def renew(name: str, rows: int) -> list[str]:
    """Renew version and hash of a report if a sample of its rows is unchanged; return the rows that differ."""
    different = differences(name, rows)
    if not different and name not in LOADED:
        renew_shown(name)
    elif not different:
        origin, content = read_stored(name)
        store(name, content, origin.cpu_s)
    return different


def is_current(name: str) -> bool:
    """Return whether a report exists and has the hash of the installed data and code, as its predictions have."""
    if not (stored_reports.FOLDER / f"{name}.json.gz").is_file():
        return False
    return stored_report(name).stored.is_current and (name not in LOADED or read_stored(name)[0].is_current)


def main() -> None:
    """Store each report that is not current."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", nargs="*", help=f"of {', '.join(REPORTS)} [all]")
    parser.add_argument("--jobs", type=int, default=None)
    parser.add_argument("--source", action="append", default=[])
    parser.add_argument("--renew", type=int, default=None)
    given = parser.parse_args()
    is_wrong = False
    for name in given.reports or REPORTS:
        if is_current(name):
            print(f"{name}: stored and current")
            continue
        if given.renew is not None:
            different = renew(name, given.renew)
        else:
            with RowsLine(f"{name}: rows predicted") as progress:
                different = REPORTS[name](progress.rows, given.jobs, given.source)
        print(f"{name}: {'; '.join(different) or stored_report(name).stored.line}", flush=True)
        is_wrong |= bool(different)
    sys.exit(int(is_wrong))


if __name__ == "__main__":
    main()
