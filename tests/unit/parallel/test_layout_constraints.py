"""Do profiles accept the layouts that their software runs, and refuse the others with an alternative?"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from forms_of_parallelism import model

import trine
from trine.errors import PlanError, SpecError
from trine.parallel.constraints import LayoutFacts, ignored_options, resolve_layout, why_not
from trine.parallel.plan import Plan
from trine.software import known_software, load_software
from trine.software.conditions import NAMES, PLAN_NAMES, WORKLOAD_NAMES, evaluate, parse
from trine.software.profile import usual_software
from trine.workload.synthesis.model import Synthesis, written
from validation.training_rows import load_layouts


def facts(name: str = "llama-3-8b", **sizes: Any) -> LayoutFacts:
    return LayoutFacts(model(name, **sizes))


def reasons(software: str, of: LayoutFacts, **fields: Any) -> list[str]:
    profile = load_software(software)
    plan, _ = resolve_layout(Plan(**fields), profile, of)
    return [violation.rule.require for violation in why_not(plan, profile, of)]


ACCEPTED: list[tuple[str, str, dict[str, Any]]] = [
    ("megatron-core", "mixtral-8x7b", {"tp": 4, "dp": 2, "ep": 8, "etp": 1}),  # ep over tp x dp
    ("megatron-core", "mixtral-8x7b", {"cp": 2, "dp": 2, "ep": 4}),  # over cp x dp
    ("torchtitan", "mixtral-8x7b", {"tp": 4, "dp": 2, "ep": 8}),
    ("megatron-core", "llama-3-8b", {"sharding": "zero1"}),
    ("megatron-core", "llama-3-8b", {"sequence_parallel": True}),
    ("megatron-core", "llama-3-8b", {"tp": 16}),  # a multiple of the 8 KV heads
    ("megatron-core", "llama-3-8b", {"pp": 2, "virtual_stages": 1, "schedule": "1f1b"}),
    ("nanotron-2024", "llama-3-8b", {"pp": 2, "schedule": "gpipe", "batch": 2, "micro_batch": 1}),
    ("torchtitan", "llama-3-8b", {"pp": 2, "schedule": "gpipe"}),
    ("pytorch-eager", "llama-3-8b", {"pp": 2, "schedule": "dualpipe"}),
]
REFUSED: list[tuple[str, str, dict[str, Any], str]] = [
    ("megatron-core", "mixtral-8x7b", {"tp": 2, "sequence_parallel": False}, "sequence_parallel"),
    ("torchtitan", "llama-3-8b", {"tp": 16}, "heads % tp == 0 and kv_heads % tp == 0"),
    ("nanotron-2024", "llama-3-8b", {"tp": 16}, "kv_heads % tp == 0"),
    ("nanotron-2024", "llama-3-8b", {"pp": 2, "schedule": "dualpipe"}, "schedule in ('gpipe', '1f1b')"),
    ("nanotron-2024", "llama-3-8b", {"pp": 4, "schedule": "1f1b", "batch": 2, "micro_batch": 1},
     "micro_batches >= pp - 1"),
    ("nanotron-2024", "mixtral-8x7b", {"dp": 2, "ep": 2}, "ep == 1"),
    ("megatron-core", "llama-3-8b", {"pp": 2, "schedule": "zb-h1"}, "schedule in ('1f1b', 'interleaved')"),
    ("megatron-core", "llama-3-8b", {"pp": 2, "schedule": "gpipe"}, "schedule in ('1f1b', 'interleaved')"),
    ("torchtitan", "llama-3-8b", {"pp": 2, "schedule": "zb-h1"}, "schedule in ('gpipe', '1f1b', 'interleaved')"),
    ("torchtitan", "llama-3-8b", {"pp": 2, "schedule": "1f1b", "batch": 1}, "micro_batches >= pp"),
    ("torchtitan", "llama-3-8b", {"dp": 2, "sharding": "zero1"}, "sharding in ('none', 'fsdp', 'zero3')"),
    ("torchtitan", "llama-3.2-1b", {"pp": 2, "batch": 2, "micro_batch": 1}, "not tied"),
    ("torchtitan", "mixtral-8x7b", {"tp": 4, "dp": 2, "ep": 2, "etp": 2}, "etp in (1, tp)"),
    ("megatron-core", "llama-3-8b", {"pp": 2, "virtual_stages": 2, "batch": 3, "micro_batch": 1},
     "micro_batches % pp == 0"),
    ("megatron-core", "llama-3-8b", {"dp": 2, "batch": 5, "micro_batch": 2}, "batch % micro_batch == 0"),
    ("torchtitan", "llama-3-8b", {"dp": 2, "batch": 5, "micro_batch": 2}, "batch % micro_batch == 0"),
    ("nanotron-2024", "llama-3-8b", {"dp": 2, "batch": 5, "micro_batch": 2}, "batch % micro_batch == 0"),
    ("megatron-deepspeed", "llama-3-8b", {"pp": 2, "dp": 2, "sharding": "zero2"}, "sharding in ('none', 'zero1')"),
    ("megatron-deepspeed", "mixtral-8x7b", {"tp": 2, "dp": 2, "ep": 4, "etp": 1}, "dp % ep == 0"),
    ("megatron-deepspeed", "bloom-176b", {"tp": 4, "pp": 2, "recompute": "selective"}, "recompute in ('none', 'full')"),
    ("megatron-deepspeed", "bloom-176b", {"tp": 4, "pp": 2, "sequence_parallel": True}, "not sequence_parallel"),
    ("fsdp-2023", "llama-3-8b", {"tp": 2}, "tp == 1 and pp == 1 and cp == 1 and ep == 1"),
    ("megatron-core", "llama-3-8b", {"dp": 2, "data": "dp"}, "data == 'ddp'"),
    ("megatron-core", "llama-3-8b", {"offload": "activations", "recompute": "full"}, "pp == 1 and recompute == 'none'"),
]  # fmt: skip


@pytest.mark.parametrize(("software", "name", "fields"), ACCEPTED, ids=str)
def test_layouts_that_run_are_accepted(software: str, name: str, fields: dict[str, Any]) -> None:
    assert reasons(software, facts(name), **fields) == []


@pytest.mark.parametrize(("software", "name", "fields", "rule"), REFUSED, ids=str)
def test_layouts_that_fail_are_refused(software: str, name: str, fields: dict[str, Any], rule: str) -> None:
    assert rule in reasons(software, facts(name), **fields)


def test_experts_with_tensor_parallelism_have_sequence_parallelism_by_default() -> None:
    megatron = load_software("megatron-core")
    plan, notes = resolve_layout(Plan(tp=2), megatron, facts("mixtral-8x7b"))
    assert plan.sequence_parallel is True
    assert any("sequence parallel on, the default of megatron-core" in note for note in notes)
    plan, notes = resolve_layout(Plan(tp=2), megatron, facts())
    assert (plan.sequence_parallel, notes) == (False, ())


def test_torchtitan_spreads_whole_experts() -> None:
    plan, _ = resolve_layout(Plan(tp=2, dp=4, ep=8), load_software("torchtitan"), facts("mixtral-8x7b"))
    assert (plan.etp, plan.sequence_parallel) == (1, True)


def test_defaults_leave_models_without_tokens_and_other_styles_alone() -> None:
    torchtitan = load_software("torchtitan")
    for plan, of in (
        (Plan(tp=2), LayoutFacts(trine.load("vgg13-h100-b128"))),
        (Plan(tp=2, tp_style="column"), facts()),
    ):
        assert resolve_layout(plan, torchtitan, of)[0].sequence_parallel is False


def test_options_without_effect_are_named() -> None:
    asked = Plan(sequence_parallel=True, sharding="zero1")
    plan, _ = resolve_layout(asked, load_software("megatron-core"), facts())
    assert (plan.sequence_parallel, plan.sharding) == (False, "none")
    assert [text.split(" is ignored")[0] for text in ignored_options(asked, plan)] == [
        "sequence parallelism", "sharding zero1",
    ]  # fmt: skip
    assert ignored_options(Plan(tp=2), Plan(tp=2)) == ()


def test_rules_hold_for_workloads_without_heads_too() -> None:
    of = LayoutFacts(trine.load("vgg13-h100-b128"))
    assert of.attention.heads == ()
    assert reasons("torchtitan", of, dp=2, sharding="zero1") == ["sharding in ('none', 'fsdp', 'zero3')"]


def test_experts_are_counted_in_the_forward_pass() -> None:
    assert (facts("mixtral-8x7b").experts, facts().experts) == (8, 0)


def test_experts_keep_their_shards_with_one_dense_replica() -> None:
    """tp 4 with etp 1, ep 2: two ranks hold the same experts although there is one replica."""
    plan, _ = resolve_layout(Plan(tp=4, ep=2, etp=1, sharding="zero1"), None, facts("mixtral-8x7b"))
    assert plan.sharding == "zero1"


def test_a_refusal_names_rule_source_nearest_degree_and_another_profile() -> None:
    with pytest.raises(PlanError) as caught:
        trine.simulate(
            "model:llama-3-8b,layers=2,sequence=512", Plan(tp=16), cluster=trine.load_cluster("dgx-h100", nodes=2),
            software="torchtitan",
        )  # fmt: skip
    text = str(caught.value)
    for part in ("torchtitan cannot run", "tp = 16", "kv_heads = 8", "decoder.py:188-199", "the nearest valid tp is 8",
                 "--software megatron-core"):  # fmt: skip
        assert part in text


def test_the_command_line_refuses_with_the_default_profile_named() -> None:
    for arguments, part in (
        (["--pp", "2", "--schedule", "dualpipe", "--batch", "4", "--micro-batch", "1"], "--software pytorch-eager can"),
        (["--gpus", "2", "--parallel", "dp"], "--software pytorch-eager can"),
    ):
        command = [sys.executable, "-m", "trine", "train", "model:gpt-2,layers=2,sequence=128", *arguments]
        done = subprocess.run([*command, "--cluster", "dgx-h100"], capture_output=True, text=True, timeout=120)
        assert done.returncode == 2
        assert done.stderr.startswith("error: megatron-core cannot run this layout: ")
        assert part in done.stderr
        assert done.stderr.strip().count("\n") == 0


@pytest.mark.slow
def test_published_layouts_with_a_result_are_accepted_and_those_with_too_few_micro_batches_are_not() -> None:
    """Ultra-Scale Playbook, nanotron: 142 layouts stopped at 1F1B's assertion."""
    profile, known = load_software("nanotron-2024"), dict[str, LayoutFacts]()
    refused = 0
    for row in load_layouts():
        spec = row.transformer()
        of = known.setdefault(repr(spec), LayoutFacts(written(spec, Synthesis(), profile)))
        plan, _ = resolve_layout(row.plan(), profile, of)
        violations = why_not(plan, profile, of)
        assert not (violations and row.facts["step_s"]), (row.name, violations)
        refused += any(violation.rule.require == "micro_batches >= pp - 1" for violation in violations)
    assert refused == 142


# -- the default profile -----------------------------------------------------------------------------------------------


def test_sharding_costs_what_it_costs_and_not_another_profile() -> None:
    """All layouts have one profile: ZeRO-1 saves the optimizer's share and no more than some percent of the step."""
    times = {}
    for sharding in ("none", "zero1", "zero3"):
        plan = Plan(dp=8, sharding=sharding, batch=4, micro_batch=1)
        result = trine.simulate("model:llama-3-8b,layers=4", plan, cluster="dgx-h100", compare=False)
        assert result.plan["software"] == "megatron-core"
        assert "with megatron-core" in result.headline
        assert result.details().splitlines()[0].endswith("with megatron-core")
        times[sharding] = result.step_time_ps
    named = trine.simulate(
        "model:llama-3-8b,layers=4", Plan(dp=8, batch=4, micro_batch=1), cluster="dgx-h100", software="megatron-core",
        compare=False,
    )  # fmt: skip
    assert times["none"] == named.step_time_ps


@pytest.mark.parametrize(
    ("workload", "cluster", "name"),
    [
        ("model:gpt-2,layers=2,sequence=128", "dgx-h100", "megatron-core"),
        ("model:gpt-2,layers=2,sequence=128", "mi300x-node", "megatron-core"),
        ("model:bert-base,layers=2,sequence=128", "dgx-h100", "megatron-core"),
        ("model:resnet18,batch=8", "dgx-h100", "pytorch-eager"),
        ("vgg13-h100-b128", "dgx-h100", "pytorch-eager"),
    ],
)
def test_the_default_is_one_for_each_kind_of_workload(workload: str, cluster: str, name: str) -> None:
    for plan in (Plan(), Plan(dp=2), Plan(dp=2, sharding="zero1")):
        assert trine.simulate(workload, plan, cluster=cluster, compare=False).plan["software"] == name


def test_rules_of_defaults_name_profiles_and_cover_all_kinds() -> None:
    found = usual_software()
    assert {rule.software for rule in found.rules} | set(found.proposals) <= set(known_software())
    kinds = {(rule.workload, rule.vendor) for rule in found.rules}
    assert kinds == {(kind, vendor) for kind in ("transformer", "other") for vendor in ("nvidia", "amd")}


# -- the language of conditions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "values", "wanted"),
    [
        ("heads % tp == 0", {"heads": 32, "tp": 4}, True),
        ("heads % tp == 0", {"heads": None, "tp": 4}, None),
        ("tp == 1 or heads % tp == 0", {"heads": None, "tp": 1}, True),
        ("tp == 2 and heads % tp == 0", {"heads": None, "tp": 1}, False),
        ("schedule in ('1f1b', 'gpipe')", {"schedule": "1f1b"}, True),
        ("not training", {"training": True}, False),
        ("layers % (pp * virtual_stages) == 0", {"layers": 32, "pp": 4, "virtual_stages": 2}, True),
        ("heads // tp", {"heads": 3, "tp": 0}, None),
        ("1 < tp <= 4", {"tp": 4}, True),
        ("schedule * tp == 3", {"schedule": "x", "tp": 10**9}, None),
    ],
)
def test_conditions(text: str, values: dict[str, Any], wanted: object) -> None:
    assert evaluate(text, values) is wanted


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("head % tp == 0", "unknown name, 'head'; did you mean 'heads'"),
        ("tp ** 2 == 4", "holds BinOp|holds Pow"),
        ("open('x')", "unknown name, 'open'|holds Call"),
        ("tp.real == 1", "holds Attribute"),
        ("tp ==", "is no condition"),
        ("(" * 150 + "tp", "is no condition"),
        ("tp == 1" * 100, "at most 200 characters"),
        ("tp == 1.5", "holds Constant"),
        ("[tp for tp in (1, 2)]", "holds ListComp"),
    ],
)
def test_conditions_that_cannot_be_are_refused(text: str, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        parse(text)


def test_a_profile_with_a_faulty_rule_names_file_and_field(tmp_path: Path) -> None:
    file = tmp_path / "ours.yaml"
    file.write_text(
        "name: ours\ndescription: ours\nconstraints:\n  rules: [{require: 'head % tp == 0', reason: r, source: s}]\n"
    )
    with pytest.raises(SpecError, match=r"ours.yaml: constraints.rules\[0\]: .*unknown name, 'head'"):
        load_software(file)


def test_all_names_of_conditions_have_values() -> None:
    plan, of = Plan(tp=2, dp=2), facts()
    assert set(NAMES) == {*PLAN_NAMES, *WORKLOAD_NAMES}
    assert all(hasattr(plan, name) for name in PLAN_NAMES)
    own = {"batch", "micro_batch", "micro_batches", "heads", "kv_heads", "cut", "local_sgd"}
    assert all(hasattr(of, name) for name in set(WORKLOAD_NAMES) - own)
    assert (of.experts, of.layers, of.sequence, of.training, of.tied) == (0, 2, 512, True, False)
    assert (facts("mixtral-8x7b").experts, facts("llama-3.2-1b").tied) == (8, True)
