"""Do the pages of hop, of eidolon sweeps and of served sizes answer their questions with the numbers of the answer?"""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from trine.cli.main import app
from trine.report.blocks import Bars, Points
from trine.report.documents import page_of


def answer(path, *line):
    result = CliRunner().invoke(app, [*line, "--json", str(path)])
    assert result.exit_code == 0, result.output
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def hop(tmp_path_factory):
    line = ["hop", "vgg13-h100-b128", "--workers", "4", "--iterations", "5", "--slow", "rank=2:2"]
    return answer(tmp_path_factory.mktemp("hop") / "hop.json", *line, "--bandwidth", "25 GB/s")


@pytest.fixture(scope="module")
def eidolon(tmp_path_factory):
    line = ["eidolon", "sweep", "--wakeup", "0:20us:10us", "--peers", "3", "--rows", "256", "--cols", "256"]
    return answer(tmp_path_factory.mktemp("eidolon") / "sweep.json", *line)


def test_bars_of_hop_are_the_times_of_its_workers(hop):
    page = page_of(hop)
    (bars,) = [block for block in page.sections[0].blocks if isinstance(block, Bars)]
    assert len(bars.bars) == 4
    for bar, row in zip(bars.bars, hop["workers"], strict=True):
        times = {name: time for name, time, _ in bar.parts}
        assert times["computing"] == row["computing_s"]
        assert sum(times.values()) <= row["end_s"] * (1 + 1e-9)
    assert page.sections[0].answer.startswith("Worker 2 computes 2.00 times as long")
    assert f"{hop['iterations_per_s']:.3g} iterations per second" in page.answer


def test_hop_without_a_slow_worker_names_none(hop):
    equal = [{**row, "computing_s": 1.0, "trained": 5} for row in hop["workers"]]
    page = page_of({**hop, "workers": equal})
    assert page.sections[0].answer.startswith("All workers compute equally long")


def test_charts_of_an_eidolon_sweep_have_every_run(eidolon):
    page = page_of(eidolon)
    reads, times = (block for block in page.sections[0].blocks if isinstance(block, Points))
    runs = eidolon["runs"]
    assert sorted((p.x, p.y) for p in reads.points) == sorted((r["wakeup_s"], float(r["flag_reads"])) for r in runs)
    assert sorted((p.x, p.y) for p in times.points) == sorted((r["wakeup_s"], r["time_s"]) for r in runs)
    assert {name for name, _ in reads.legend} == {"spin", "mwait"}
    assert f"{100 * eidolon['fits'][0]['saved']:.0f} %" in page.answer


def test_the_machines_of_a_served_model(tmp_path):
    line = ["size", "model:llama-3-8b", "--serve", "--isl", "512", "--osl", "128", "--requests-per-second", "50"]
    found = answer(tmp_path / "size.json", *line, "--cluster", "dgx-h100")
    (machine,) = found["machines"]
    page = page_of(found)
    assert page.answer == f"{machine['num_gpus']} GPU of dgx-h100 answers the requests."
    facts = {fact.name: fact.value for fact in page.facts}
    assert facts["Time to the first token"] == machine["point"]["ttft_s"]
    other = {**machine, "cluster": "tiny", "num_gpus": None, "point": None, "problem": "the weights do not fit"}
    two = page_of({**found, "machines": [machine, {**machine, "cluster": "other", "num_gpus": 4}, other]})
    bars, table = two.sections[0].blocks
    assert [bar.parts[0][1] for bar in bars.bars] == [machine["num_gpus"], 4]
    assert table.dimmed == (2,)
    assert table.rows[2][-1] == "the weights do not fit"


@pytest.mark.parametrize("schema", ["hop", "eidolon-sweep", "size-serve"])
def test_an_answer_of_another_version_without_rows_has_a_page(schema):
    page = page_of({"schema": f"trine/{schema}/1", "version": "0.1.0", "command": schema})
    assert page.sections
