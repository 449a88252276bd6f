"""Switches of experts: the software offers them, a search tries them, and their bounds are no higher than the step."""

import pytest

import trine
import trine.search.search as search_module
from trine.cluster import load_gpu
from trine.search.flags import emit_flags, read_flags
from trine.search.switches import MAX_EP_RATIO, NUM_BASES, NUM_LATER, has_switches, switch_settings
from trine.software import load_software
from trine.workload.synthesis.model import synthesize
from trine.workload.synthesis.model_files import load_model

#: One layout with experts on two nodes; the rest of the space is fixed, so that the search is short.
FIXED = {
    "tp": 1, "pp": 1, "cp": 1, "ep": 16, "micro_batch": 1, "sharding": "zero1", "recompute": "none", "offload": "none",
}  # fmt: skip
MODEL = "model:qwen3-30b-a3b,layers=8"
PLAIN = {"expert_overlap": False, "shared_expert_overlap": False, "dispatch": None}


def settings(software, model="mixtral-8x7b", fixed=(), gpu="h100-sxm"):
    profile = load_software(software)
    workload = synthesize(load_model(model), gpu=gpu, dtype="bf16", software=profile)
    return switch_settings(profile, workload, dict(fixed), load_gpu(gpu))


def test_a_dense_model_has_no_switches():
    assert settings("megatron-core", "llama-3-8b") == []


def test_overlaps_exclude_each_other_and_combine_with_the_dispatch():
    assert settings("megatron-core") == [
        {"dispatch": "deepep"}, {"shared_expert_overlap": True},
        {"shared_expert_overlap": True, "dispatch": "deepep"}, {"expert_overlap": True},
        {"expert_overlap": True, "dispatch": "deepep"},
    ]  # fmt: skip


def test_a_fixed_switch_is_not_varied():
    assert all("dispatch" not in each for each in settings("megatron-core", fixed={"dispatch": "all-to-all"}))


def test_software_before_combined_1f1b_offers_neither_it_nor_deepep():
    assert settings("nemo-25") == [{"shared_expert_overlap": True}]
    assert settings("pytorch-eager") == []


def test_deepep_needs_nvlink():
    assert all("dispatch" not in each for each in settings("megatron-core", gpu="l4"))


@pytest.fixture(scope="module")
def answer():
    return trine.plan(MODEL, gpus=16, cluster="dgx-h100", global_batch=64, software="megatron-core", fix=FIXED,
                      workers=1)  # fmt: skip


def test_a_search_finds_switches_that_hide_exchanges_between_nodes(answer):
    plain = [each.outcome.step_ps for each in answer.simulated if not has_switches(each.layout)]
    assert has_switches(answer.best.layout)
    assert answer.best.outcome.step_ps < 0.98 * min(plain)


def test_no_bound_of_a_layout_with_switches_exceeds_its_step(answer):
    switched = [each for each in answer.simulated if has_switches(each.layout)]
    assert len(switched) >= 3
    assert all(0 < each.bound_ps <= each.outcome.step_ps for each in switched)


@pytest.mark.parametrize("large", [False, True], ids=["bounds", "screen"])
def test_few_further_layouts_are_simulated_for_switches(large, monkeypatch):
    """One layout gets all combinations; a search with a screen or bounds looks for more with the best one alone."""
    if large:
        monkeypatch.setattr(search_module, "SMALL", 1)
    fix = {name: value for name, value in FIXED.items() if name not in ("ep", "micro_batch")}
    found = trine.plan(MODEL, gpus=16, cluster="dgx-h100", global_batch=64, software="megatron-core", fix=fix,
                       workers=1)  # fmt: skip
    switched = [each.layout for each in found.simulated if has_switches(each.layout)]
    bases = {each._replace(**PLAIN) for each in switched}
    combinations = len(settings("megatron-core", "qwen3-30b-a3b"))
    assert (found.num_screened > 0) == large
    assert has_switches(found.best.layout)
    assert 2 <= len(switched) <= combinations + NUM_BASES - 1 + NUM_LATER
    assert len(bases) <= NUM_BASES + NUM_LATER
    assert max(base.ep for base in bases) <= MAX_EP_RATIO * found.best.layout.ep


def test_all_layouts_are_counted_once(answer):
    assert answer.num_layouts == len(answer.simulated) + sum(answer.rejected.values())


def test_the_command_of_the_best_layout_simulates_the_same_step(answer):
    layout = answer.best.layout
    chosen = trine.Plan(batch=64 // layout.dp, **layout._asdict())
    result = trine.simulate(MODEL, chosen, cluster=trine.load_cluster("dgx-h100", gpus=16), software="megatron-core",
                            compare=False)  # fmt: skip
    assert result.step_time_ps == answer.best.outcome.step_ps
    assert ("--shared-expert-overlap" in answer.command) == layout.shared_expert_overlap
    assert ("--dispatch deepep" in answer.command) == (layout.dispatch == "deepep")


def test_megatron_flags_name_the_switches(answer, tmp_path):
    path = tmp_path / "flags.sh"
    path.write_text(emit_flags("megatron", answer))
    values = read_flags(str(path))
    layout = answer.best.layout
    assert values.get("shared_expert_overlap", False) == layout.shared_expert_overlap
    assert values.get("expert_overlap", False) == layout.expert_overlap
    assert values["dispatch"] == (layout.dispatch or "all-to-all")
