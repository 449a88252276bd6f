"""Plans are read strictly: nothing unknown passes, and errors say where."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from plan_cases import DATA, PLANS

from trine.errors import InputError, SpecError
from trine.gpu.plans import describe_plan, load_plan, plan_schedule
from trine.gpu.plans.cells import message_layout
from trine.gpu.plans.plan import KernelPlan

V1 = json.loads((DATA / "v1_v0.7.0_allreduce_ring_4gpu.json").read_text())
V2 = json.loads((DATA / "v2_HEAD_allreduce_2node_8gpu_LL_default_algo.json").read_text())
NVLS = json.loads((DATA / "v2_HEAD_allreduce_nvls_zero_copy_4gpu.json").read_text())
PIPE = json.loads((DATA / "v2_HEAD_allreduce_pipeline_nvls_repo_testfile.json").read_text())
XML = (DATA / "allreduce_a100_ring_4_1_1.xml").read_text()


@pytest.mark.parametrize("name", PLANS)
def test_every_plan_loads(name: str) -> None:
    plan = load_plan(DATA / name)
    summary = describe_plan(plan)
    assert summary.num_ranks == len(plan.gpus)
    assert all(line.strip() for line in summary.lines())


def test_nothing_that_issue_5_needs_is_lost() -> None:
    plan = load_plan(DATA / "v2_HEAD_allreduce_2node_8gpu_LL_default_algo.json")
    assert (plan.protocol, plan.threads_per_block, plan.double_scratch, plan.reuse_scratch) == ("LL", 1024, True, True)
    assert (plan.min_bytes, plan.max_bytes, plan.alignment) == (1024, 2**21, 16)
    block = plan.gpus[0].blocks[1]
    put, add = block.operations[:2]
    assert (put.targets[0].rank, put.targets[0].buffer, put.targets[0].via, put.targets[0].packet) == (
        1, "scratch", "memory", True,
    )  # fmt: skip
    assert (add.part, add.num_parts, add.reduce_op) == (0, 3, "sum")
    assert [source.polls for source in add.sources] == [False, True, True, True]
    port = plan.gpus[5].connections[-1]
    assert (port.kind, port.peer, port.pair) == ("port", 1, 0)


def test_parallel_channels_are_told_apart() -> None:
    plan = load_plan(DATA / "v2_HEAD_allreduce_nvls_zero_copy_4gpu.json")
    pairs = [(c.peer, c.pair) for c in plan.gpus[0].connections]
    assert pairs == [(peer, pair) for peer in (1, 2, 3) for pair in range(8)]
    assert len(plan.groups) == 8


Edit = Callable[[Any], None]


def put(path: str, value: object) -> Edit:
    """Set the value at a path such as ``gpus.0.id``; Ellipsis takes it away."""

    def edit(data: Any) -> None:
        *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
        for part in parents:
            data = data[part]
        if value is ...:
            del data[last]
        else:
            data[last] = value

    return edit


CASES = [
    (V2, put("gpus.0.threadblocks.1.ops.0.name", "ppktt"), r"ops\[0\]\.name: unknown 'ppktt'; did you mean 'ppkt'"),
    (V2, put("gpus.0.threadblocks.1.ops.0.chanel", 1), r"threadblocks\[1\]\.ops\[0\]: unknown key 'chanel'"),
    (V2, put("gpus.2.threadblocks.1.ops.0.dst_buff.0.buffer_id", 3), r"gpus\[2\].*there is no memory buffer 3 here"),
    (V2, put("gpus.0.threadblocks.1.ops.0.src_buff.0.type", "x"), r"unknown 'x'"),
    (V2, put("gpus.0.threadblocks.1.ops.0.src_buff.0.index", 7), r"chunks 7 to 8 of the input of rank 0, which has 8"),
    (V2, put("gpus.0.threadblocks.1.ops.0.src_buff.0.size", 1), "a source and its target differ in size"),
    (V2, put("gpus.0.threadblocks.1.ops.0.tbg_info.tb_id", 1), r"tbg_info\.tb_id: should be from 0 to 0, got 1"),
    (V2, put("gpus.0.threadblocks.0.ops.1.channel_ids", [1]), "there is no port channel 1 here, there are 1"),
    (V2, put("gpus.0.threadblocks.0.channels.0.channel_ids", [4]), r"there is no port channel 4 here"),
    (V2, put("gpus.0.threadblocks.0.ops.0.num_threadblocks", 5), "waits for 5 thread blocks, GPU 0 has 4"),
    (V2, put("gpus.0.channels.0.connected_to", [1, 2, 8]), r"connected_to\[2\]: should be from 0 to 7, got 8"),
    (V2, put("gpus.0.channels.0.connected_to", [0, 2, 3]), "GPU 0 is connected to itself"),
    (V2, put("gpus.0.remote_buffers.0.type", "i"), "packets lie in scratch, not in the input"),
    (V2, put("gpus.3.id", 4), "GPUs must come in the order of their ids, this is number 3"),
    (V2, put("gpus.3.input_chunks", ...), r"gpus\[3\]\.input_chunks: is missing"),
    (V2, put("gpus.3.input_chunks", True), "should be a valid integer, got True"),
    (V2, put("collective", "allreduse"), "collective: unknown 'allreduse'; did you mean 'allreduce'"),
    (V2, put("protocol", "LL129"), "unknown 'LL129'"),
    (V2, put("gpus.0", {}), "neither 'inputChunks'"),
    (V2, put("gpus.0.threadblocks.1.ops.1.src_buff", []), "has 0 buffers"),
    (NVLS, put("gpus.1.channels.1", ...), "which does not list that group|there is no switch channel 7"),
    (NVLS, put("gpus.1.channels.1.rank_groups.0.ranks", [0, 2, 3]), "size must be the number of ranks"),
    (PIPE, put("gpus.0.threadblocks.0.ops.0.ops.0.semaphore_ids", [3]), "there is no semaphore 3 here, there are 3"),
    (PIPE, put("gpus.0.threadblocks.0.ops.0.iter_context.unit_size", 0), "should be from 1 to"),
    (PIPE, put("gpus.0.threadblocks.0.ops.0.ops.0", PIPE["gpus"][0]["threadblocks"][0]["ops"][0]), "a pipeline inside"),
    (V1, put("gpus.0.threadblocks.0.ops.3.name", "rrd"), r"gpus\[0\].*ops\[3\]\.name: unknown 'rrd'"),
    (V1, put("gpus.0.threadblocks.0.ops.3.i_cids.0.id", 2), "there is no memory channel from input to input 2 here"),
    (V1, put("gpus.0.threadblocks.0.ops.3.i_buff.src", "o"), "there are 0"),
    (V1, put("gpus.0.threadblocks.0.ops.3.src", 1), "must be 0, the GPU that runs it"),
    (V1, put("gpus.0.threadblocks.0.ops.2.deps.0.tb", 1), "there is no thread block 1 on GPU 0"),
    (V1, put("gpus.0.channels.0.type", "nvlink"), "unknown 'nvlink'"),
    (V1, put("gpus.0.outputChunks", -1), "should be from 0"),
    (V1, put("max_message_size", 2**64), "max_message_size: should be from 0"),
    (V1, put("gpus", {}), "gpus: is not a plan: must be a list with each GPU's program, got {}"),
    (V1, put("name", "x" * 1001), "name: string should have at most 1000 characters"),
]  # fmt: skip


@pytest.mark.parametrize(("base", "edit", "message"), CASES, ids=[case[2][:40] for case in CASES])
def test_faults_are_named(tmp_path: Path, base: dict[str, Any], edit: Edit, message: str) -> None:
    data = copy.deepcopy(base)
    edit(data)
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(data))
    with pytest.raises(SpecError, match=message) as caught:
        load_plan(file)
    assert str(file) in str(caught.value)


XML_CASES = [
    ("<algo ", '<!DOCTYPE algo [<!ENTITY a "b">]><algo ', "document types and entities are refused"),
    ('type="rrs"', 'type="rrz"', "step.type: unknown 'rrz'"),
    ('cnt="1"', 'count="1"', "<step>: unknown attribute 'count'; did you mean 'cnt'"),
    ('send="1"', 'send="9"', "must be a whole number from -1 to 3, got '9'"),
    ('send="1"', 'send="-1"', "'s' in a thread block without send peer"),
    ("<gpu ", "<cpu ", "unknown element <cpu> inside <algo>; did you mean 'gpu'"),
    ('ngpus="4"', 'ngpus="5"', "says 5 GPUs, there are 4"),
    ('srcoff="3"', 'srcoff="4"', "chunks 4 to 4 of the input of rank 0, which has 4"),
    ('depid="-1"', 'depid="0"', "depid and deps must be given together"),
    ('nchunksperloop="4"', 'nchunksperloop="8"', "is 8, but the buffers have 4 chunks"),
    ('chan="0"', 'chan="1"', "must be a whole number from 0 to 0, got '1'"),
    ("</algo>", "", "not valid XML: no element found"),
    ("</algo>", "hello</algo>", "text between elements"),
]


@pytest.mark.parametrize(("old", "new", "message"), XML_CASES, ids=[case[2][:40] for case in XML_CASES])
def test_faults_of_xml_are_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in XML
    file = tmp_path / "plan.xml"
    file.write_text(XML.replace(old, new, 1))
    with pytest.raises(SpecError, match=message.replace("(", r"\(")) as caught:
        load_plan(file)
    assert str(file) in str(caught.value)


def sample(name: str) -> KernelPlan:
    return load_plan(DATA / name)


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        ("v2_HEAD_allreduce_2node_8gpu_LL_default_algo.json", 512, "is for messages of 1024 bytes to 2097152 bytes"),
        ("v2_HEAD_allreduce_2node_8gpu_LL_default_algo.json", 2**22, "got 4194304"),
        ("v2_HEAD_allreduce_allpairs_4gpu.json", 1000, "needs a multiple of 512 bytes, not 1000; the next is 1024"),
        ("v1_v0.7.0_allreduce_ring_4gpu.json", 100, "needs a multiple of 64 bytes"),
        ("allreduce_a100_ring_4_1_1.xml", 0, "a message must have a size"),
    ],
)
def test_sizes_that_the_plan_is_not_for_are_refused(name: str, size: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        plan_schedule(sample(name), size)


def test_the_parts_of_a_thread_block_group_cover_the_range() -> None:
    """1024 bytes in 8 chunks: two chunks are 16 units of 16 bytes, which three blocks share as 6, 5 and 5."""
    plan = sample("v2_HEAD_allreduce_2node_8gpu_LL_default_algo.json")
    layout = message_layout(plan, 1024)
    spans = [
        layout.span(op, op.sources[0])
        for block in plan.gpus[0].blocks[1:]
        for op in block.operations
        if op.name == "recpkt"
    ]
    assert spans[::2] == [(0, 96), (96, 80), (176, 80)]
    assert spans[1::2] == spans[::2]
