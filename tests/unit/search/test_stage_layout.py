"""Megatron-core's notation of pipeline layouts, its flags, and published layouts in the space of a search."""

from __future__ import annotations

import pytest

from trine.errors import InputError
from trine.parallel.constraints import LayoutFacts, default_balance, virtual_stage_counts
from trine.parallel.plan import Plan
from trine.search.flags import emit_plan, read_flags
from trine.search.space import Space
from trine.search.stage_layout import layout_text, parse_layout
from trine.software import load_software
from trine.workload.synthesis.model import synthesize

MEGATRON = load_software("megatron-core")
MODEL = synthesize("llama-3-405b", layers=126, sequence=256)
BASE = {"pp": 4, "tp": 2, "sequence_parallel": True, "micro_batch": 1, "batch": 16}


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("Ettt|(tt|)*29,L", (3, *[2] * 29, 0)), ("E|(t|)*126,L", (0, *[1] * 126, 0)), ("Et*3|||t*3L", (3, 0, 0, 3)),
        ("E|t*2|tL", (0, 2, 1)), ("'EttL'", (2,)),
    ],
)  # fmt: skip
def test_layouts_are_read_as_megatron_reads_them(text, counts):
    """The examples of pipeline_parallel_layer_layout.py (without m, multi-token prediction), and empty stages."""
    assert parse_layout(text) == counts
    assert parse_layout(layout_text(counts)) == counts


@pytest.mark.parametrize("text", ["", "t|t", "E|t|m|L", "Et|t", "EtL|t", "E|(t|)*999999L", "EE|L"])
def test_other_layouts_are_refused(text):
    with pytest.raises(InputError, match="a layout has"):
        parse_layout(text)


@pytest.mark.parametrize(
    ("fields", "flags"),
    [
        ({"balance": "blocks+embedding+loss"},
         ("--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split")),
        ({"balance": "blocks+loss"}, ("--account-for-loss-in-pipeline-split",)),
        ({"first_stage_layers": 30, "last_stage_layers": 28},
         ("--decoder-first-pipeline-num-layers 30", "--decoder-last-pipeline-num-layers 28")),
        ({"stage_layers": (31, 32, 32, 31)}, ("--pipeline-model-parallel-layout 'Et*31|t*32|t*32|t*31L'",)),
        ({"defer_head_gradient": 22}, ("--defer-embedding-wgrad-compute", "--wgrad-deferral-limit 22")),
        ({"defer_head_gradient": 0}, ("--defer-embedding-wgrad-compute", "--wgrad-deferral-limit 0")),
    ],
)  # fmt: skip
def test_flags_of_megatron_are_written_and_read_back(tmp_path, fields, flags):
    plan = Plan(**BASE, **fields).filled(MEGATRON.plan_fields())
    text = emit_plan("megatron", "llama-3-405b", plan, 16, LayoutFacts(MODEL))
    lines = [line.removesuffix(" \\") for line in text.splitlines()]
    assert set(flags) <= set(lines)
    (path := tmp_path / "flags").write_text(text)
    values = read_flags(str(path))
    assert {name: values.get(name) for name in fields} == fields
    assert values["pp"] == 4
    assert values["global_batch"] == 16


def test_virtual_stages_follow_from_a_written_layout():
    plan = Plan(**BASE, virtual_stages=2, stage_layers=(15, *[16] * 6, 15)).filled(MEGATRON.plan_fields())
    text = emit_plan("megatron", "m", plan, 16, LayoutFacts(MODEL))
    assert "--num-virtual-stages-per-pipeline-rank" not in text
    assert "Et*15|t*16" in text


@pytest.mark.parametrize(
    ("dialect", "fields", "name"),
    [("torchtitan", {"first_stage_layers": 30}, "first_stage_layers 30"),
     ("nanotron", {"balance": "blocks+loss"}, "accounts_loss True"),
     ("nanotron", {"defer_head_gradient": 0}, "defer_head_gradient 0")],
)  # fmt: skip
def test_other_software_has_no_names_for_them(dialect, fields, name):
    plan = Plan(**BASE, **fields).filled(MEGATRON.plan_fields())
    with pytest.raises(InputError, match=f"{dialect} has no name for {name}"):
        emit_plan(dialect, "m", plan, 16, LayoutFacts(MODEL))


def test_layouts_that_divide_with_embedding_and_loss_are_in_the_space():
    """dg6 and dg11 (pp 8 x vp 8), and 128 chunks; only profiles with the rule have them."""
    assert virtual_stage_counts(MEGATRON, 126, 8) == [2, 4, 8, 16]
    assert virtual_stage_counts(MEGATRON, 126, 16) == [2, 4, 8]
    assert virtual_stage_counts(MEGATRON, 126, 9) == [1, 2, 7, 14]
    assert virtual_stage_counts(load_software("megatron-2021"), 126, 8) == []
    assert default_balance(MEGATRON, 126, 8, 8) == "blocks+embedding+loss"
    assert default_balance(MEGATRON, 126, 9, 7) == "blocks"
    space = Space(512, 256, LayoutFacts(MODEL), MEGATRON, {"tp": 8, "pp": 8, "cp": 2, "micro_batch": 1})
    layouts = [layout for family in space.families() for layout in family.layouts()]
    found = [
        each for each in layouts if each.virtual_stages == 8 and each.sharding == "zero1" and not space.reason(each)
    ]
    assert any(each.recompute == "none" and each.sequence_parallel for each in found)
