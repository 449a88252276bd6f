"""trine validate memory: targets on the bundled rows, verdicts, and how rows become jobs."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from trine.results.memory import DOES_NOT_FIT, FITS, TIGHT, MemoryFacts, use_of
from validation.__main__ import app
from validation.memory import (
    GOLDEN,
    PUBLIC,
    SIMUMAX,
    TORCHTITAN,
    ULTRASCALE,
    MemoryValidation,
    load_memory_rows,
    structural,
    validate_memory,
)

GIB = 2**30


def errors(found: MemoryValidation) -> dict[str, object]:
    return dict(found.errors())


def test_largest_ranks_of_megatron_on_b200() -> None:
    """Mean within 0.5 %, as asked; SimuMax's own prediction is within 0.3 %."""
    found = errors(validate_memory(sources=[SIMUMAX]))[SIMUMAX]
    assert found.count == 24
    assert found.mean <= 0.005


def test_torchtitan_is_within_3_percent_each() -> None:
    found = validate_memory(sources=[TORCHTITAN])
    assert len(found.answers) == 4
    assert all(abs(answer.error) <= 0.03 for answer in found.answers)


@pytest.mark.slow
def test_public_reports_are_within_12_percent_but_for_two() -> None:
    """Pipelines of 4 and 8 stages without tensor parallelism measure less than their tensors take."""
    found = validate_memory(sources=[PUBLIC])
    compared = [answer for answer in found.answers if answer.is_compared]
    apart = {answer.row.name for answer in compared if abs(answer.error) > 0.12}
    assert len(compared) == 19
    assert apart <= {"flagperf-llama3-8b-a800-pp4-dp2", "flagperf-llama3-8b-a800-pp8"}
    assert all(a.use.low_bytes <= a.row.measured_bytes <= a.use.high_bytes for a in compared)
    (lost,) = (answer for answer in found.answers if not answer.is_compared)
    assert lost.verdict == DOES_NOT_FIT


def test_a_sample_of_all_sources() -> None:
    found = validate_memory(sample=True, sources=[GOLDEN, ULTRASCALE])
    by_source = errors(found)
    assert by_source[GOLDEN].median <= 0.021
    assert by_source[ULTRASCALE].mean <= 0.09
    assert not any(answer.why_not for answer in found.answers)
    assert found.spread() is None or found.spread().median < 0.05


@pytest.mark.slow
def test_all_rows_meet_their_targets() -> None:
    found = validate_memory()
    by_source = errors(found)
    assert by_source[GOLDEN].median <= 0.021
    assert by_source[GOLDEN].mean <= 0.035
    assert by_source[ULTRASCALE].mean <= 0.07
    under, ran = found.under_capacity
    assert under >= 0.97 * ran
    confusion = found.confusion()
    without = confusion["no result"]
    assert without[DOES_NOT_FIT] + without[TIGHT] >= 0.8 * sum(without.values())
    every = [sum(counts[verdict] for counts in confusion.values()) for verdict in (FITS, TIGHT, DOES_NOT_FIT)]
    assert every[1] <= 0.2 * sum(every)


def test_verdicts_lie_between_low_and_high() -> None:
    facts = MemoryFacts(outside_bytes=GIB, error=0.1)
    verdicts = [use_of(size * GIB, (size + 4) * GIB, facts, 80 * GIB).verdict for size in (60, 70, 90)]
    assert verdicts == [FITS, TIGHT, DOES_NOT_FIT]
    assert use_of(70 * GIB, 74 * GIB, facts, 80 * GIB).margin_bytes == 5 * GIB
    assert use_of(70 * GIB, 74 * GIB, facts).verdict == "capacity unknown"
    assert use_of(70 * GIB, 60 * GIB, MemoryFacts(), 0).reserved_bytes == 70 * GIB


def test_reasons_that_are_no_memory() -> None:
    assert structural("") == ""
    assert structural("page says global batch 256") == ""
    assert structural("empty pipeline stage; page says global batch 256") == "empty pipeline stage"


def test_golden_runs_are_read_as_their_arguments_say() -> None:
    rows = {row.name: row for row in load_memory_rows(GOLDEN)}
    swiglu = next(row for name, row in rows.items() if "swiglu" in name)
    assert swiglu.model.ffn == 1344  # 4 x 512 x 2 / 3 in whole 64, as Megatron-LM's arguments.py
    interleaved = next(row for name, row in rows.items() if "/gpt3_mcore_te_tp1_pp4_vp1/" in name)
    assert interleaved.plan.virtual_stages == 3
    assert interleaved.software.operators.attention == "unfused"
    assert interleaved.stages == (3,)


def test_the_command() -> None:
    done = CliRunner().invoke(app, ["memory", "--source", "torchtitan", "--json", "-"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert {row["source"] for row in found["rows"]} == {"torchtitan"}
    done = CliRunner().invoke(app, ["memory", "--source", "torchtitn"])
    assert done.exit_code == 2
    assert "did you mean 'torchtitan'" in done.output
