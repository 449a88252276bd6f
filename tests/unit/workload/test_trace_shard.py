"""Is a trace of one rank of a split model announced as a part, and is any other trace left alone?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from test_trace_distributed import NODE, Profile

import trine
from trine.cli.main import app
from trine.graph.workload import SHARD, Workload
from trine.workload import describe

EIGHT = {"distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8}}
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def layers(sums: int, call: str = "c10d::allreduce_", elements: int = 4096, **args: Any) -> Profile:
    """Three linear layers; the first ``sums`` of them are followed by a collective in the forward pass."""
    record = Profile()
    for i in range(3):
        record.call("aten::linear", 100 * i, 5, [8, 64], [64, 64])
        record.kernel("gemm", 100 * i + 1, 1000 + 100 * i, 10)
        if i < sums:
            record.call(call, 100 * i + 10, 5, [elements], **args)
            record.kernel(NCCL, 100 * i + 11, 1020 + 100 * i, 30, **args)
    return record


def shard(record: Profile, folder: Path, **document: Any) -> str | None:
    return record.load(folder, **document).metadata.get(SHARD)


def test_sums_inside_the_forward_pass_are_of_a_split_layer(tmp_path: Path) -> None:
    text = shard(layers(2), tmp_path, **EIGHT)
    assert text == "rank 3 of 8, with 2 x all_reduce inside the forward pass: a shard of a tensor-parallel job"
    assert describe(trine.load(tmp_path)).shard == text


@pytest.mark.parametrize(
    ("record", "document"),
    [
        pytest.param(layers(2), {"distributedInfo": {"rank": 0, "world_size": 1}}, id="a job of one rank"),
        pytest.param(layers(1), EIGHT, id="one sum, as of a metric"),
        pytest.param(layers(3, elements=8), EIGHT, id="sums of 32 bytes, as of losses"),
        pytest.param(layers(3, "c10d::_allgather_base_"), EIGHT, id="gathers, as of FSDP"),
        pytest.param(layers(0), EIGHT, id="no collective"),
    ],
)
def test_other_traces_hold_the_whole_model(record: Profile, document: dict[str, Any], tmp_path: Path) -> None:
    assert shard(record, tmp_path, **document) is None


def test_sums_of_gradients_are_of_whole_models(tmp_path: Path) -> None:
    record = layers(0)
    for i in range(3):
        record.call(NODE + "AddmmBackward0", 500 + 100 * i, 5)
        record.call("aten::mm", 501 + 100 * i, 2, [64, 8], [8, 64])
        record.kernel("gemm", 502 + 100 * i, 2000 + 100 * i, 10)
        record.call("c10d::allreduce_", 510 + 100 * i, 5, [4096])
        record.kernel(NCCL, 511 + 100 * i, 2020 + 100 * i, 30)
    record.call(NODE + "torch::autograd::AccumulateGrad", 900, 5)
    assert shard(record, tmp_path, **EIGHT) is None


def test_the_group_of_a_collective_tells_the_size_of_the_job(tmp_path: Path) -> None:
    assert str(shard(layers(2, **{"Group size": 4}), tmp_path)).startswith("one rank of 4, ")
    assert shard(layers(2, **{"Group size": 1}), tmp_path) is None


@pytest.mark.parametrize("world", [None, "8", True, -1, 2**40, [8]])
def test_odd_facts_about_the_job_are_ignored(world: object, tmp_path: Path) -> None:
    text = shard(layers(2), tmp_path, distributedInfo={"rank": {}, "world_size": world})
    assert str(text).startswith("one rank, with 2 x all_reduce")
    assert shard(layers(2), tmp_path, distributedInfo="none") == text


def test_messages_to_one_rank_are_of_a_stage(tmp_path: Path) -> None:
    text = str(shard(layers(1, "c10d::send"), tmp_path, **EIGHT))
    assert text.startswith("rank 3 of 8, with 1 x send: a stage of a pipeline")


@pytest.mark.parametrize(
    ("options", "effect"),
    [
        (["--tp", "8"], "--tp 8 splits its operators once more"),
        (["--gpus", "1"], "--gpus 1 leaves its collectives out"),
        (["--dp", "2"], "each rank simulates this part without the recorded collectives"),
    ],
)
def test_layouts_of_a_part_warn_first(options: list[str], effect: str, tmp_path: Path) -> None:
    document = {**EIGHT, "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]}
    layers(2).load(tmp_path, **document)
    answer = CliRunner().invoke(app, ["train", str(tmp_path), "--cluster", "dgx-h100", *options])
    words = " ".join(answer.output.split())
    assert answer.exit_code == 0, answer.output
    assert words.index("warning the trace is rank 3 of 8") == words.index("warning")
    assert effect in words


ROCM = [{"id": 0, "name": "AMD Instinct MI300X VF"}, {"id": 1, "name": "AMD Instinct MI300X VF"}]


def gpu(record: Profile, folder: Path, devices: object, number: int) -> str | None:
    for event in record.events:
        if event["cat"] == "kernel":
            event["args"]["device"] = number
    workload: Workload = record.load(folder, deviceProperties=devices)
    return workload.gpu


def test_rocm_numbers_its_gpus_from_the_processors_on(tmp_path: Path) -> None:
    assert gpu(layers(0), tmp_path, ROCM, 2) == "AMD Instinct MI300X VF"
    assert trine.cluster.load_gpu("AMD Instinct MI300X VF").name == "mi300x"
    mixed = [{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}, {"id": 1, "name": "Tesla T4"}]
    assert gpu(layers(0), tmp_path, mixed, 1) == "Tesla T4"
    assert gpu(layers(0), tmp_path, mixed, 2) is None
    assert gpu(layers(0), tmp_path, [{"id": 0, "name": 7}, 4, {"id": 1}], 2) is None
