"""Every bundled plan passes its proof, and a plan with anything removed or changed does not."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
from plan_cases import DATA, PLANS

from trine.errors import DeadlockError, InputError, TrineError
from trine.gpu.plans import check_plan, load_plan
from trine.gpu.plans.plan import SYNC, KernelOp, KernelPlan


def with_operations(plan: KernelPlan, rank: int, block: int, operations: tuple[KernelOp, ...]) -> KernelPlan:
    gpu = plan.gpus[rank]
    blocks = list(gpu.blocks)
    blocks[block] = dataclasses.replace(blocks[block], operations=operations)
    gpus = list(plan.gpus)
    gpus[rank] = dataclasses.replace(gpu, blocks=tuple(blocks))
    return dataclasses.replace(plan, gpus=tuple(gpus))


def without_one(plan: KernelPlan, ranks: range) -> Iterator[tuple[KernelOp, KernelPlan]]:
    """Yield the plan without each of its operations in turn, including operations inside pipelines."""
    for rank in ranks:
        for number, block in enumerate(plan.gpus[rank].blocks):
            ops = block.operations
            for i, op in enumerate(ops):
                if not op.operations:
                    yield op, with_operations(plan, rank, number, ops[:i] + ops[i + 1 :])
                for j, body in enumerate(op.operations):
                    rest = dataclasses.replace(op, operations=op.operations[:j] + op.operations[j + 1 :])
                    yield body, with_operations(plan, rank, number, (*ops[:i], rest, *ops[i + 1 :]))


@pytest.mark.parametrize("name", PLANS)
def test_every_bundled_plan_is_proven(name: str) -> None:
    proof = check_plan(load_plan(DATA / name))
    # The DSL's NVLS example of v0.6.0 ends with the multicast store: no rank learns that the sums have arrived.
    assert proof.complete == (name != "v1_v0.6.0_allreduce_nvls_8gpu.json")
    assert proof.num_runs == 4


def test_what_proofs_rest_on_is_said() -> None:
    notes = {name: check_plan(load_plan(DATA / name)).notes for name in PLANS}
    said = {name for name, lines in notes.items() if lines}
    assert said == {
        "v2_HEAD_allreduce_nvls_zero_copy_4gpu.json",
        "v2_HEAD_allreduce_pipeline_nvls_repo_testfile.json",
    }
    assert "relaxed signals" in notes["v2_HEAD_allreduce_nvls_zero_copy_4gpu.json"][0]
    assert "'buffer_type'" in notes["v2_HEAD_allreduce_pipeline_nvls_repo_testfile.json"][0]


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_without_one_operation_is_refused(name: str) -> None:
    plan = load_plan(DATA / name)
    for op, broken in without_one(plan, range(1)):
        if op.action != SYNC:
            with pytest.raises(TrineError):
                check_plan(broken, orders=0)


@pytest.mark.parametrize(
    ("name", "refused"),
    [("v1_v0.7.0_allreduce_ring_4gpu", 9), ("v2_HEAD_allreduce_pipeline_nvls_repo_testfile", 8),
     ("v1_v0.6.0_sendrecv_proxy_2gpu", 1), ("v2_HEAD_allreduce_repo_testfile", 8)],
)  # fmt: skip
def test_a_needed_syncthreads_is_missed(name: str, refused: int) -> None:
    """Its removal is a race, or an open end if only another rank's end depends on it."""
    plan = load_plan(DATA / f"{name}.json")
    caught = opened = 0
    for op, broken in without_one(plan, range(1)):
        if op.action == SYNC:
            try:
                opened += not check_plan(broken, orders=0).complete
            except InputError:
                caught += 1
    assert caught == refused
    assert caught + opened == sum(op.action == SYNC for op, _ in without_one(plan, range(1)))


def change(plan: KernelPlan, rank: int, block: int, index: int, **fields: object) -> KernelPlan:
    ops = list(plan.gpus[rank].blocks[block].operations)
    ops[index] = dataclasses.replace(ops[index], **fields)  # type: ignore[arg-type]
    return with_operations(plan, rank, block, tuple(ops))


def test_another_chunk_is_another_result() -> None:
    plan = load_plan(DATA / "v1_v0.7.0_allreduce_ring_4gpu.json")
    op = plan.gpus[0].blocks[0].operations[18]
    assert op.name == "put"
    source = dataclasses.replace(op.sources[0], index=2)
    with pytest.raises(InputError, match=r"rank \d ends with the input of ranks|race"):
        check_plan(change(plan, 0, 0, 18, sources=(source,)))


def test_adding_twice_is_seen() -> None:
    plan = load_plan(DATA / "allreduce_a100_ring_4_1_1.xml")
    op = plan.gpus[0].blocks[0].operations[4]
    assert op.name == "rcs"
    local = dataclasses.replace(op.targets[0])
    with pytest.raises(InputError, match=r"\d x 2"):
        check_plan(change(plan, 0, 0, 4, sources=(*op.sources, local), reduce_op="sum"))


def test_a_slot_too_many_overwrites_scratch_that_is_in_use() -> None:
    """The 33rd round would meet the first round's data: MSCCL++ has 32 slots of 512 KiB in 64 MiB / 4 chunks."""
    plan = load_plan(DATA / "v2_HEAD_allreduce_pipeline_nvls_repo_testfile.json")
    gpus = tuple(dataclasses.replace(gpu, semaphores=(0, 0, 33)) for gpu in plan.gpus)
    with pytest.raises(InputError, match="race"):
        check_plan(dataclasses.replace(plan, gpus=gpus))


def test_a_deadlock_names_who_waits_for_whom() -> None:
    plan = load_plan(DATA / "v2_HEAD_allgather_2gpu.json")
    broken = with_operations(plan, 1, 0, ())
    with pytest.raises(
        DeadlockError, match=r"GPU 0 thread block 0 op 3 'rlxwait' waits for a signal of rank 1 \(memory 0\)"
    ):
        check_plan(broken)


def test_a_packet_nobody_sends_is_named() -> None:
    plan = load_plan(DATA / "v2_HEAD_allreduce_packet_repo_testfile.json")
    broken = with_operations(plan, 0, 0, plan.gpus[0].blocks[0].operations[1:])
    with pytest.raises(DeadlockError, match="'respkt' waits for packet 0 of rank 1, which nobody writes"):
        check_plan(broken)


def test_a_custom_collective_cannot_be_proven() -> None:
    plan = dataclasses.replace(load_plan(DATA / "v2_HEAD_allgather_2gpu.json"), collective="custom")
    with pytest.raises(InputError, match="no proof for 'custom': its result is not defined"):
        check_plan(plan)


def test_a_wrong_claim_is_refuted() -> None:
    """An all-gather declared as an all-reduce."""
    plan = dataclasses.replace(load_plan(DATA / "allgather_ring_4_1_1.xml"), collective="all_reduce")
    with pytest.raises(InputError):
        check_plan(plan)
