"""The space of layouts: degrees, rules, rejection counts, fixed fields."""

import pytest

import trine
from trine.errors import InputError, PlanError
from trine.parallel.constraints import LayoutFacts
from trine.parallel.schedules import SCHEDULES
from trine.search.space import Space, divisors, parse_fixed
from trine.software.profile import load_software

WORKLOAD = trine.synthesize("llama-3.2-1b", layers=4, sequence=4096, tied="no")


def space(gpus=8, batch=8, software="megatron-core", **fixed):
    return Space(gpus, batch, LayoutFacts(WORKLOAD), load_software(software), fixed)


def layouts(space):
    return [each for family in space.families() for each in family.layouts() if not space.reason(each)]


def test_every_layout_uses_all_gpus_and_the_whole_batch():
    for layout in layouts(space()):
        assert layout.dp * layout.tp * layout.pp * layout.cp == 8
        assert 8 % (layout.dp * layout.micro_batch) == 0


def test_counts_equal_the_closed_form_for_one_axis():
    # tp 1, no pipeline, cp 1: dp = 8, one sample each; three shardings x three recomputations
    found = layouts(space(tp=1, pp=1, cp=1))
    assert len(found) == 9
    assert {each.sharding for each in found} == {"none", "zero1", "fsdp"}


def test_the_rules_of_the_software_hold():
    assert {each.schedule for each in layouts(space(tp=1, cp=1)) if each.pp > 1} == {"1f1b", "interleaved"}
    titan = layouts(space(batch=32, tp=1, cp=1, software="torchtitan"))
    assert {each.schedule for each in titan if each.pp > 1} == {"gpipe", "1f1b", "interleaved"}
    assert {each.sharding for each in titan if each.pp > 1 and each.dp > 1} == {"none", "fsdp"}


@pytest.mark.parametrize("software", ["megatron-core", "torchtitan", "nanotron-2024"])
def test_a_schedule_that_the_software_lacks_has_no_valid_layout(software):
    small = space(batch=32, tp=1, cp=1, software=software)
    used = {each.schedule for each in layouts(small) if each.pp > 1}
    assert used
    for name in SCHEDULES.names():
        assert small.has_schedule(name, 2) or name not in used
    assert not small.has_schedule("zb-h1", 2)
    assert small.has_schedule("1f1b", 2)
    assert small.has_schedule(None, 1)


def test_a_rejected_family_is_counted_with_all_of_its_layouts():
    small = space(pp=8, tp=1, cp=1)  # four layers
    with pytest.raises(PlanError, match="pipeline stages outnumber the 4 layers"):
        small.families()
    assert small.rejected.total() > 1


def test_an_empty_space_names_its_constraint():
    with pytest.raises(PlanError, match="tp 3 cannot make 8 GPUs"):
        space(tp=3).families()
    with pytest.raises(PlanError, match="micro-batches do not divide the batch"):
        space(micro_batch=3).families()


def test_offload_variants_follow_their_layout():
    small = space(tp=1, pp=1, cp=1)
    first = layouts(small)[0]
    assert [each.offload for each in small.offloading(first)] == ["optimizer", "activations"]
    assert small.offloading(first._replace(offload="optimizer")) == []
    assert space(offload="none").offloading(first) == []


def test_fixed_fields_are_read_by_their_type():
    assert parse_fixed(("tp=8", "sequence-parallel=on", "schedule=1F1B")) == {
        "tp": 8, "sequence_parallel": True, "schedule": "1f1b",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("texts", "message"),
    [(("tpp=8",), "did you mean 'tp'"), (("tp",), "takes FIELD=VALUE"), (("tp=x",), "a whole number"),
     (("tp=2", "tp=4"), "given twice"), (("sequence_parallel=maybe",), "on or off"), (("batch=8",), "no field")],
)  # fmt: skip
def test_faulty_fixed_fields_are_refused(texts, message):
    with pytest.raises(InputError, match=message):
        parse_fixed(texts)


def test_divisors():
    assert divisors(12) == [1, 2, 3, 4, 6, 12]
