"""Do jobs of one workload share its facts, and are these the facts of each?"""

from __future__ import annotations

from itertools import chain

import pytest

import trine
from trine.errors import PlanError
from trine.graph.workload import FORWARD
from trine.parallel import workload_facts
from trine.parallel.token_partition import TokenPartition

FACTS = (
    workload_facts.operators_by_id, workload_facts.layer_names, workload_facts.name_indices,
    workload_facts.storage_of_tensors, workload_facts.made_storages, workload_facts.tensors_of_role,
    workload_facts.gradient_of_weights, workload_facts.cast_copies, workload_facts.readers_of_storages,
)  # fmt: skip


def test_facts_are_kept_with_their_workload_and_stay_as_they_are() -> None:
    workload, same = (trine.synthesize("mixtral-8x7b", layers=2, gpu="h100-sxm") for _ in range(2))
    first = [fact(workload) for fact in FACTS]
    for plan in (trine.Plan(tp=2, pp=2, batch=4, micro_batch=1), trine.Plan(dp=2, ep=2, batch=2, recompute="full")):
        trine.simulate(workload, plan, cluster="dgx-h100")
    assert all(fact(workload) is before for fact, before in zip(FACTS, first, strict=True))
    assert [fact(same) for fact in FACTS] == first


def test_facts_agree_with_the_operators_and_tensors() -> None:
    workload = trine.synthesize("gpt-2", layers=2, gpu="h100-sxm")
    names, indices = workload_facts.layer_names(workload), workload_facts.name_indices(workload)
    readers = workload_facts.readers_of_storages(workload)
    for number, op in enumerate(workload.operators):
        assert workload_facts.operators_by_id(workload)[op.id] is op
        assert indices[op.id][0] == number
        assert names[indices[op.id][1]] == op.layer
        for tensor in op.inputs:
            assert (op.id in readers.get(workload.tensors[tensor].storage, {})) >= (op.phase == FORWARD)
    by_role = workload_facts.tensors_of_role(workload)
    assert sorted(t.id for t in chain(*by_role.values())) == sorted(workload.tensors)
    assert all(tensor.role == role for role, tensors in by_role.items() for tensor in tensors)


def test_the_reason_against_a_division_names_the_option_of_each_plan() -> None:
    workload = trine.synthesize("bert-large", layers=2, gpu="h100-sxm")
    TokenPartition(workload, trine.Plan(tp=2, sequence_parallel=True))
    resnet = trine.synthesize("resnet50", gpu="h100-sxm")
    for _ in range(2):
        with pytest.raises(PlanError, match="sequence parallelism"):
            TokenPartition(resnet, trine.Plan(tp=2, sequence_parallel=True))
        with pytest.raises(PlanError, match="context parallelism"):
            TokenPartition(resnet, trine.Plan(cp=2))
