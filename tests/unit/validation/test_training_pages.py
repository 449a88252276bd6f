"""Figures on the accuracy pages about training steps come from the stored reports, which ``trine validate`` prints."""

from __future__ import annotations

import re
from pathlib import Path

from validation.layouts import load_stored_layouts
from validation.training import TUNED, load_stored_training
from validation.training_page import PAGE, page

BACKGROUND = Path(__file__).parents[3] / "docs" / "background"


def test_every_table_of_the_page_comes_from_the_stored_reports() -> None:
    steps = load_stored_training()
    written = (BACKGROUND / PAGE).read_text()
    lines = [line for line in page(steps, load_stored_layouts()).splitlines() if line.startswith("| ")]
    assert len(lines) > 25
    is_new = any(step.row.source.set == TUNED for step in steps.steps)
    unknown = ("| a constant MFU", "| group |", "| all groups |")
    missing = [line for line in lines if line not in written and not (line.startswith(unknown) and not is_new)]
    assert missing == []


def test_the_summary_of_all_pages_states_the_totals_of_the_stored_report() -> None:
    steps = load_stored_training()
    errors = steps.errors(steps.counted)
    assert errors is not None
    lines = (BACKGROUND / "accuracy.md").read_text().splitlines()
    row = next(line for line in lines if "(training-accuracy.md)" in line)
    stated = re.search(r"\| (\d+) published steps of (\d+) sources \| mean ([\d.]+) %, 90th percentile ([\d.]+) %, "
                       r"bias ([-+][\d.]+) %", row)  # fmt: skip
    assert stated is not None, row
    sources = {step.row.source.key for step in steps.counted}
    totals = f"{errors.mean:.1%}", f"{errors.p90:.1%}", f"{errors.bias:+.1%}"
    assert stated.groups() == (str(errors.count), str(len(sources)), *(text.removesuffix("%") for text in totals))
