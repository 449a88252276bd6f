"""Does a result draw its memory, links and timeline in a notebook, and stay the data that it was?"""

from __future__ import annotations

import dataclasses
import json
import re
from html import unescape

import numpy as np
import pytest

from trine.errors import InputError
from trine.graph.memory import MemoryEvents
from trine.parallel.plan import Plan
from trine.report.memory import memory_over_time
from trine.report.memory_modules import memory_by_module, module_of
from trine.report.notebook import view
from trine.results.link_use import LinkUse
from trine.training import simulate
from trine.training.options import SimulateOptions
from trine.workload.synthesis.model import synthesize

PLANS = {
    "whole": Plan(tp=2, batch=2),
    "folded": Plan(tp=2, dp=2, batch=16, micro_batch=1),
    "pipeline": Plan(pp=2, batch=8, micro_batch=1, schedule="1f1b", recompute="full"),
}


@pytest.fixture(scope="module")
def model():
    return synthesize("gpt-2", layers=4, sequence=128)


@pytest.fixture(scope="module", params=PLANS.values(), ids=list(PLANS))
def result(request, model):
    return simulate(model, request.param, options=SimulateOptions(cluster="dgx-h100", compare=False))


def content(shown) -> dict:
    """Return the data of the page in a notebook's frame."""
    page = unescape(re.search(r'srcdoc="([^"]*)"', shown._repr_html_())[1])
    return json.loads(re.search(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)[1])


def kinds(blocks) -> list[str]:
    return [block["kind"] for block in blocks]


def sections(shown) -> list[dict]:
    found = content(shown)
    return (found.get("page") or found)["sections"]


def test_memory_is_data_and_a_picture(result):
    assert isinstance(result.memory, MemoryEvents)
    (part,) = sections(result.memory())
    assert part["key"] == "memory"
    assert "choice" in kinds(part["blocks"])
    copy = dataclasses.replace(result, warnings=())
    assert type(copy.__dict__["memory"]) is MemoryEvents  # it does not keep the first result alive
    assert np.array_equal(copy.memory.delta_bytes, result.memory.delta_bytes)


def test_links_are_a_tuple_and_a_picture(result):
    assert isinstance(result.links, tuple)
    assert all(isinstance(link, LinkUse) for link in result.links)
    assert result.links == result.link_uses
    (part,) = sections(result.links())
    assert part["key"] == "links"
    assert "table" in kinds(part["blocks"])


def test_a_timeline_is_packets_and_a_picture(result):
    timeline = result.timeline()
    packets, notes = timeline
    assert notes == ()
    assert next(packets)
    (part,) = sections(timeline)
    assert kinds(part["blocks"])[0] == "timeline"


def test_the_report_has_every_part(result):
    keys = [part["key"] for part in sections(result.report())]
    assert keys[:3] == ["fit", "slow", "link"]


def test_a_result_without_memory_has_no_picture_of_it(model):
    result = simulate(model, Plan(batch=2), options=SimulateOptions(cluster="dgx-h100", compare=False))
    assert dataclasses.replace(result, memory=None).memory is None


def test_another_answer_has_no_such_part():
    from trine.collectives.query import collective

    with pytest.raises(InputError, match="no training step"):
        view(collective("all_reduce", "1M", "dgx-h100"), "memory", 300)


def test_modules_hold_what_the_kinds_hold(result):
    by_kind, by_module = memory_over_time(result), memory_by_module(result)
    assert by_kind.x == by_module.x
    totals = [np.sum([series.y for series in block.series], axis=0) for block in (by_kind, by_module)]
    assert np.array_equal(*totals)
    for series in by_module.series:
        assert min(series.y) >= 0
    names = {series.name for series in by_module.series}
    assert {"weights", "optimizer state"} <= names
    assert names & {"layers.*.attention", "layers.*.mlp"}


def test_activations_of_modules_are_those_of_the_kind(model):
    plan = Plan(batch=2)
    result = simulate(model, plan, options=SimulateOptions(cluster="dgx-h100", compare=False, fold="off"))
    kinds_now = {series.name: np.array(series.y) for series in memory_over_time(result).series}
    modules = {series.name: np.array(series.y) for series in memory_by_module(result).series}
    assert np.array_equal(modules["weights"], kinds_now["weights"])
    assert "activations" not in modules or modules["activations"].max() < 0.05 * kinds_now["activations"].max()


@pytest.mark.parametrize(
    ("layer", "module"),
    [("layers.3.mlp.up", "layers.*.mlp"), ("layers.3", "layers.*"), ("head", "head"), ("conv1.bn", "conv1"),
     ("blocks.0.layers.2.fc", "blocks.*.layers"), ("", "")],
)  # fmt: skip
def test_a_layer_belongs_to_a_module(layer, module):
    assert module_of(layer) == module
