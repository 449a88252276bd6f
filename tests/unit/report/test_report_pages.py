"""Does each answer get its page: the answer first, numbers of the JSON, and no failure if values are missing or odd?"""

from __future__ import annotations

import copy
import json

import pytest
from click.testing import CliRunner

from trine.cli.main import app
from trine.errors import InputError
from trine.report.blocks import COLOURS, UNITS, Bars, ChartAxis, Choice, Head, Points, Table
from trine.report.documents import PAGES, page_of, read_answer, schema_of
from trine.report.generic import unit_of
from trine.report.html import render
from trine.report.run_blocks import RunBlocks
from trine.report.slow_run import measured_comparison_page

RUNNER = CliRunner()
#: A command for each page, and the questions of its sections.
LINES = {
    "train vgg13-h100-b128 --gpus 4 --parallel ddp --cluster dgx-h100": ["fit", "slow", "link", "sure"],
    "collective all_reduce --size 1M:64M --cluster dgx-h100": ["fit", "link", "sure"],
    "collective all_reduce --size 4K --cluster dgx-h100 --gpus 2 --fidelity loadstore": [
        "fit",
        "inside",
        "link",
        "sure",
    ],
    "collective all_reduce --size 2K:4K --cluster dgx-h100 --gpus 2 --fidelity loadstore": ["fit", "inside", "sure"],
    "collective all_reduce --cluster dgx-h100 --processes 1 --vary size=1M,64M --vary nodes=1,2": ["layout", "sure"],
    "eidolon run gemv-allreduce --rows 128 --cols 128": ["peers", "inside", "sure"],
    "infer model:llama-3-8b --cluster dgx-h100 --isl 500 --osl 100 --concurrency 4": ["serving", "sure"],
    "cluster show dgx-h100": ["answer", "sure"],
}


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    """Return the JSON of each line."""
    folder, found = tmp_path_factory.mktemp("answers"), {}
    for number, line in enumerate(LINES):
        file = folder / f"{number}.json"
        done = RUNNER.invoke(app, [*line.split(), "--json", str(file)])
        assert done.exit_code == 0, done.output
        found[line] = json.loads(file.read_text())
    return found


def blocks_of(page):
    """Return all blocks of a page, those inside a choice too."""
    found = []
    for section in page.sections:
        for block in section.blocks:
            found.append(block)
            if isinstance(block, Choice):
                found += [inner for _, inner in block.options]
    return found


@pytest.mark.parametrize("line", LINES)
def test_a_page_has_its_questions_and_known_units(documents, line: str):
    page = page_of(documents[line], command=f"trine {line}")
    assert [section.key for section in page.sections] == LINES[line]
    assert page.version == documents[line]["version"]
    assert page.title
    assert page.answer
    assert all(section.question.endswith("?") for section in page.sections)
    for block in blocks_of(page):
        if isinstance(block, Table):
            assert all(len(row) == len(block.columns) for row in block.rows)
            assert all(column.unit in UNITS for column in block.columns)
        if isinstance(block, Bars):
            assert all(colour in COLOURS for bar in block.bars for *_, colour in bar.parts)
        if isinstance(block, Points):
            assert block.x_axis.unit in UNITS
            assert block.y_axis.unit in UNITS
    assert f"trine {line}".encode() in render(page)


def test_the_parts_of_a_step_add_up_to_it(documents):
    line = next(iter(LINES))
    page = page_of(documents[line])
    bars = next(block for block in page.sections[0].blocks if isinstance(block, Bars))
    total = sum(value for bar in bars.bars for _, value, _ in bar.parts)
    assert total == pytest.approx(documents[line]["step_time_s"])
    assert page.facts[0].value == documents[line]["step_time_s"]
    assert (page.facts[0].low, page.facts[0].high) == tuple(
        documents[line][f"step_time_{end}_s"] for end in ("low", "high")
    )


def test_the_collectives_have_the_bus_bandwidth_of_their_time(documents):
    line = next(iter(LINES))
    (table,) = [
        block for block in blocks_of(page_of(documents[line]))
        if isinstance(block, Table) and block.title.startswith("Collectives")
    ]  # fmt: skip
    names = [column.name for column in table.columns]
    row = dict(zip(names, table.rows[0], strict=True))
    factor = 2 * (row["ranks"] - 1) / row["ranks"]
    assert row["bus bandwidth"] == pytest.approx(row["size"] * row["times"] * factor / row["time per rank"])


@pytest.mark.parametrize("line", LINES)
def test_any_missing_or_odd_value_leaves_a_page(documents, line: str):
    """An older version lacks keys, and a foreign file may hold anything below them."""
    whole = documents[line]
    for key in whole:
        for odd in (None, "x", [], {}, -1, [1], [None], {"x": None}, [{}], [{"x": []}], True):
            changed = copy.copy(whole)
            changed[key] = odd
            if schema_of(changed):
                assert render(page_of(changed))
        assert render(page_of({name: value for name, value in whole.items() if name != key}))


def test_an_older_version_is_named(documents):
    page = page_of({**documents[next(iter(LINES))], "version": "0.9.0"})
    assert page.version == "0.9.0"


def test_every_page_is_known():
    for schema, maker in PAGES.items():
        page = maker({"schema": f"trine/{schema}/1", "version": "0.1.0"}, "trine x")
        assert page.sections[-1].key == "sure"
        assert render(page)


def test_a_column_without_a_unit_is_text():
    assert Head(name="x").unit == ""


@pytest.mark.parametrize(
    ("content", "words"),
    [("{}", "is no answer of trine"), ('{"schema": "other/x/1"}', "is no answer of trine"), ("[1]", "is no answer"),
     ("no json", "not valid JSON"), ("[" * 100_000, "nested")],
)  # fmt: skip
def test_foreign_files_are_refused(tmp_path, content: str, words: str):
    file = tmp_path / "other.json"
    file.write_text(content)
    with pytest.raises(InputError, match=words):
        read_answer(file)


def test_sentences_of_a_page_have_the_micro_sign_of_its_numbers(documents):
    line = "collective all_reduce --size 4K --cluster dgx-h100 --gpus 2 --fidelity loadstore"
    assert " µs" in page_of(documents[line]).answer
    page = page_of({"schema": "trine/other/1"}, headline="4.5 us: users wait")
    assert page.answer == page.sections[0].answer == "4.5 µs: users wait"


@pytest.mark.parametrize(
    ("key", "name", "unit"),
    [("gpus_simulated", "GPUs simulated", ""), ("_time_us", "time", "s"), ("gpu_busy_share", "GPU busy", "share")],
)
def test_keys_are_words_with_abbreviations_in_capitals(key, name, unit):
    assert unit_of(key)[:2] == (name, unit)


def test_ends_of_a_link_are_apart_so_that_long_names_wrap(documents):
    page = page_of(documents["collective all_reduce --size 1M:64M --cluster dgx-h100"])
    (limit,) = [fact.value for fact in page.facts if fact.name == "Limited by"]
    assert " → " in limit
    assert "->" not in limit


def test_load_store_sizes_are_headed_by_the_largest(documents):
    line = next(line for line in LINES if "2K:4K" in line)
    page, largest = page_of(documents[line]), documents[line]["rows"][-1]
    assert page.title.startswith("all_reduce of 4 KiB on 2 × h100-sxm")
    facts = {fact.name: fact.value for fact in page.facts}
    assert facts["Time"] == pytest.approx(largest["time_us"] / 1e6)
    assert facts["Bus bandwidth"] == pytest.approx(largest["busbw_GBps"] * 1e9)
    assert f"{largest['time_us']:.4g} µs" in page.answer


def test_a_failed_point_has_its_reason_below_the_table(documents):
    line = next(line for line in LINES if "--vary" in line)
    found = copy.deepcopy(documents[line])
    found["rows"][0] |= {"status": "failed", "reason": "no such layout", "time_us": None}
    *_, table, failed = page_of(found).sections[0].blocks
    assert len(table.rows) == len(found["rows"]) - 1
    words = f"size {found['rows'][0]['size']}, nodes {found['rows'][0]['nodes']}"
    assert [(item.tag, item.text) for item in failed.items] == [(words, "no such layout")]


@pytest.mark.parametrize(("gpus", "answer"), [(1, "One GPU of a is enough."), (8, "8 GPUs of a are enough.")])
def test_the_machines_of_a_training_job(gpus, answer):
    machine = {"cluster": "a", "gpus": gpus, "chosen": True, "cost": {"expected_days": 2.0}}
    page = page_of({"schema": "trine/size/1", "version": "0.20.0", "model": "model:m", "machines": [machine]})
    assert page.answer == answer


def test_an_eidolon_sweep_of_one_kernel_names_no_kernel():
    fit = {"name": "", "break_even_s": 4e-7, "saved": 0.86}
    page = page_of({"schema": "trine/eidolon-sweep/1", "version": "0.20.0", "runs": [], "fits": [fit]})
    assert page.answer.startswith("mwait reads less from a wake-up time of 400 ns on")
    assert page.facts[1].name == "mwait pays from"


def test_the_table_of_a_collective_is_in_the_units_of_its_columns(documents):
    document = documents["collective all_reduce --size 1M:64M --cluster dgx-h100"]
    tables = [block for block in blocks_of(page_of(document)) if isinstance(block, Table)]
    by_names = {tuple(column.name for column in table.columns): table for table in tables}
    (names,) = [names for names in by_names if "bus bandwidth" in names]
    table = by_names[names]
    for row, cells in zip(document["rows"], table.rows, strict=True):
        shown = dict(zip(names, cells, strict=True))
        assert shown["time"] == pytest.approx(row["time_us"] / 1e6)
        assert shown["algorithm bandwidth"] == pytest.approx(row["algbw_GBps"] * 1e9)
        assert shown["bus bandwidth"] == pytest.approx(row["busbw_GBps"] * 1e9)
        assert shown["bus bandwidth"] == pytest.approx(row["size_bytes"] / shown["time"] * 2 * 7 / 8)


def test_a_comparison_of_measured_runs_shows_the_timelines_that_it_has():
    document = {"terms": [{"kind": "late start", "ranks": [1], "effect_s": 0.5}], "aligned": {"kernel": 0.75}}
    picture = Points(title="both", x_axis=ChartAxis(title="t"), y_axis=ChartAxis(title="rank"))
    with_timeline = blocks_of(measured_comparison_page(document, "", RunBlocks(timeline=picture)))
    without = blocks_of(measured_comparison_page(document, "", RunBlocks()))
    assert [block for block in with_timeline if block not in without] == [picture]
    assert None not in without
    (bars,) = [block for block in without if isinstance(block, Bars)]
    assert bars.bars[0].parts == (("kernel", 0.75, "compute"),)
