"""Is what a recorded job communicated kept out of compute, listed, and told from the machine that it ran on?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from test_trace_pytorch import LINEAR, Recorder

import trine
from trine.cli.main import app
from trine.graph.workload import RecordedCollective, Workload
from trine.workload import describe, load, save
from trine.workload.pytorch.communication import (
    is_communication_kernel,
    layout_copies,
    message_bytes,
    operation,
    total,
)

NODE = "autograd::engine::evaluate_function: "
US = 1_000_000


class Profile:
    """A profiler file. Times in microseconds; shapes of inputs are float32."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.correlation = 0

    def call(self, name: str, at: float, dur: float, *shapes: list[int], annotation: bool = False, **args: Any) -> None:
        kind = "user_annotation" if annotation else "cpu_op"
        if shapes:
            args |= {"Input Dims": list(shapes), "Input type": ["float"] * len(shapes)}
        self.events.append(
            {"ph": "X", "cat": kind, "name": name, "pid": 1, "tid": 1, "ts": at, "dur": dur, "args": args}
        )

    def kernel(self, name: str, launch: float, start: float, dur: float, cat: str = "kernel", **args: Any) -> None:
        self.correlation += 1
        args |= {"correlation": self.correlation, "device": 0}
        common = {"ph": "X", "pid": 1, "tid": 1, "args": args}
        self.events.append({**common, "cat": "cuda_runtime", "name": "launch", "ts": launch, "dur": 0.1})
        self.events.append({**common, "cat": cat, "name": name, "ts": start, "dur": dur})

    def load(self, folder: Path, **document: Any) -> Workload:
        (folder / "kineto.json").write_text(json.dumps({"traceEvents": self.events, **document}))
        return load(folder)


def ddp() -> Profile:
    """A linear layer; its all-reduce, launched by the reducer inside AccumulateGrad, runs beside the last backward."""
    record = Profile()
    record.call("aten::linear", 0, 5, [8, 4], [6, 4])
    record.kernel("gemm", 1, 100, 10)
    record.call(NODE + "AddmmBackward0", 10, 5)
    record.call("aten::mm", 11, 2, [4, 8], [8, 6])
    record.kernel("gemm", 12, 110, 10)
    record.call(NODE + "torch::autograd::AccumulateGrad", 20, 20)
    record.call("torch::autograd::AccumulateGrad", 20.5, 19)
    record.call("torch::distributed::reducer::mul_out", 21, 2, [6, 4], [])
    record.kernel("scale", 22, 121, 3)
    record.call("c10d::allreduce_", 24, 10, [24])
    record.call("record_param_comms", 25, 8)
    record.call("nccl:all_reduce", 26, 5, [24], annotation=True)
    record.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 27, 125, 1000)
    record.call(NODE + "ReluBackward0", 50, 5)
    record.call("aten::threshold_backward", 51, 2, [8, 4])
    record.kernel("elementwise", 52, 130, 40)
    return record


def test_no_collective_is_compute_and_none_hides_any(tmp_path: Path) -> None:
    workload = ddp().load(tmp_path)
    assert [op.gpu_time_ps for op in workload.operators] == [10 * US, 10 * US, 40 * US]  # 0.9.0: 1,003 us more, less 40
    assert workload.collectives == (
        RecordedCollective(operation="all_reduce", count=1, size_bytes=96, time_ps=1000 * US),
        RecordedCollective(operation="DDP's bucket copies", count=1, size_bytes=None, time_ps=3 * US),
    )


def test_gradients_that_autograd_adds_up_stay_compute(tmp_path: Path) -> None:
    record = Profile()
    record.call(NODE + "torch::autograd::AccumulateGrad", 0, 9)
    record.call("torch::autograd::AccumulateGrad", 0.5, 8)
    record.call("aten::add_", 1, 2, [6, 4], [6, 4])
    record.kernel("elementwise", 2, 10, 7)
    workload = record.load(tmp_path)
    assert [op.gpu_time_ps for op in workload.operators] == [7 * US]
    assert workload.collectives == ()


@pytest.mark.parametrize(
    "name",
    [
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", "void ncclKernel<...>", "rcclGenericKernel",
        "mscclKernel_Sum_float_Simple_false", "mscclpp::allreduce6", "oneccl_allreduce_kernel",
        "void nvshmemi_transfer_rma", "two_shot_all_reduce_kernel<float>",
        "void vllm::cross_device_reduce_1stage<float, 8>",
        "void deep_ep::intranode::dispatch<8, 768>", "userbuffers_fp16_sum_inplace_gpu_rr_rs",
        "void shop::ep::internode::combine<false, 8>(int4*)", "void aiter::cross_device_reduce_1stage_naive<half, 8>",
        "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)",
        "void engine::allreduce_fusion_kernel_oneshot_lamport<__half, 8>(Params)",
    ],
)  # fmt: skip
def test_kernels_of_communication_libraries_are_known_by_name(tmp_path: Path, name: str) -> None:
    record = Profile()
    record.call("aten::linear", 0, 5, [8, 4], [6, 4])
    record.kernel("gemm", 1, 100, 10)
    record.call("horovod::enqueue", 10, 5)
    record.kernel(name, 11, 110, 500)
    workload = record.load(tmp_path)
    assert [op.name for op in workload.operators] == ["aten::linear"]
    assert sum(each.time_ps for each in workload.collectives) == 500 * US


@pytest.mark.parametrize(
    "name",
    [
        "gemm", "void at::native::reduce_kernel<512, 1>", "conv_allowance", "softmax_warp",
        "void softmax<float, WarpAllReduce<SumOp, float>>(float*)", "blockAllReduceSum(float*)",
        "void ep::cuda::get_dispatch_layout<256>(long const*)",
    ],
)  # fmt: skip
def test_kernels_that_compute_are_no_communication(name: str) -> None:
    assert not is_communication_kernel(name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("c10d::_allgather_base_", "all_gather"), ("nccl:_reduce_scatter_base", "reduce_scatter"),
        ("c10d::alltoall_base_", "all_to_all"), ("_c10d_functional::all_reduce", "all_reduce"),
        ("ncclKernel_SendRecv_RING", "send_recv"), ("c10d::send", "send"), ("record_param_comms", "collective"),
        ("void deep_ep::internode::dispatch<8>(int4*)", "all_to_all"), ("c10d::broadcast_", "broadcast"),
        ("nccl:reduce", "reduce"), ("nccl:gather", "gather"),
    ],
)  # fmt: skip
def test_operations_have_one_name(name: str, expected: str) -> None:
    assert operation(name) == expected


@pytest.mark.parametrize("name", ["vllm::all_reduce", "vllm::inplace_all_reduce", "engine::all_gather_into_tensor"])
def test_operators_of_inference_engines_communicate_with_their_copies(tmp_path: Path, name: str) -> None:
    record = Profile()
    record.call("aten::linear", 0, 5, [8, 4], [6, 4])
    record.kernel("gemm", 1, 100, 10)
    record.call(name, 10, 5, [8, 6])
    record.kernel("copy_kernel", 11, 110, 30)
    workload = record.load(tmp_path)
    assert [op.name for op in workload.operators] == ["aten::linear"]
    assert sum(each.time_ps for each in workload.collectives) == 30 * US


def test_what_fsdp_copies_is_the_layouts() -> None:
    for name in (
        "fsdp::all_gather_copy_in",
        "FSDP::all_gather_copy_out",
        "FullyShardedDataParallel._post_backward_hook",
    ):
        assert layout_copies(name) == "FSDP's copies"
    for name in ("FullyShardedDataParallel.forward", "FSDP::pre_forward", "aten::mul"):
        assert layout_copies(name) is None
    assert layout_copies("aten::mul", "torch::autograd::AccumulateGrad") == "DDP's bucket copies"


def test_bytes_come_from_what_the_profiler_notes_of_the_kernel(tmp_path: Path) -> None:
    record = Profile()
    record.call("aten::linear", 0, 5, [8, 4], [6, 4])
    record.kernel("gemm", 1, 100, 10)
    noted = {"Collective name": "_allgather_base", "In msg nelems": 10, "Out msg nelems": 80, "dtype": "BFloat16"}
    record.kernel("ncclDevKernel_Generic", 50, 110, 20, **noted)
    (each,) = record.load(tmp_path).collectives
    assert each == RecordedCollective(operation="all_gather", count=1, size_bytes=160, time_ps=20 * US)


def test_collectives_on_a_cpu_are_no_operators(tmp_path: Path) -> None:
    record = Profile()
    record.call("aten::linear", 0, 5, [8, 4], [6, 4])
    record.call("c10d::allreduce_", 10, 30, [24])
    record.call("gloo:all_reduce", 11, 28, [24], annotation=True)
    record.call("All2All_Pooled_Wait", 50, 9, [8, 4])
    workload = record.load(tmp_path)
    assert [op.name for op in workload.operators] == ["aten::linear"]
    assert workload.collectives == (
        RecordedCollective(operation="all_reduce", count=1, size_bytes=96, time_ps=30 * US),
    )


@pytest.mark.parametrize(
    ("category", "machine"),
    [
        ("mtia_ccp_events", "an MTIA accelerator"), ("hpu_op", "an HPU"), ("xpu_runtime", "an XPU"),
        ("cuda_profiler_range", "CUPTI's range profiler"), ("cuda_runtime", "a GPU whose kernels were not recorded"),
        ("privateuse1_runtime", "PrivateUse1"),
    ],
)  # fmt: skip
def test_other_machines_are_named_for_what_they_are(tmp_path: Path, category: str, machine: str) -> None:
    record = Profile()
    record.call("aten::linear", 0, 5, [8, 4], [6, 4])
    record.events.append({"ph": "X", "cat": category, "name": "run", "pid": 9, "tid": 2, "ts": 1, "dur": 2, "args": {}})
    workload = record.load(tmp_path)
    assert machine in workload.recorded_on
    told = CliRunner().invoke(app, ["trace", "inspect", str(tmp_path)]).stdout
    assert machine in told
    assert "on a CPU" not in told
    with pytest.raises(trine.InputError) as refusal:
        trine.simulate(workload, compute="recorded")
    assert machine in str(refusal.value)


def test_a_gpu_of_which_no_kernel_was_recorded_is_named(tmp_path: Path) -> None:
    record = Profile()
    record.call("aten::linear", 0, 5, [8, 4], [6, 4])
    workload = record.load(tmp_path, deviceProperties=[{"id": 0, "name": "NVIDIA A100-SXM4-40GB"}])
    assert workload.recorded_on == "NVIDIA A100-SXM4-40GB, whose kernels were not recorded"


def test_kernels_of_an_xpu_are_tied_to_their_calls(tmp_path: Path) -> None:
    record = ddp()
    for event in record.events:
        event["cat"] = event["cat"].replace("cuda_runtime", "xpu_runtime")
    workload = record.load(tmp_path, deviceProperties=[{"id": 0, "name": "Intel(R) Data Center GPU Max 1550"}])
    assert workload.recorded_on.startswith("Intel")
    assert [op.gpu_time_ps for op in workload.operators] == [10 * US, 10 * US, 40 * US]


def test_a_trace_without_times_and_shapes_is_refused(tmp_path: Path) -> None:
    record = Profile()
    record.call("aten::linear", 0, 5)
    with pytest.raises(trine.InputError, match="record_shapes=True"):  # 0.9.0: "step time 0 ps"
        trine.simulate(record.load(tmp_path), gpu="h100-sxm")


def test_kernels_of_the_step_before_are_left_out(tmp_path: Path) -> None:
    record = ddp()
    record.events.append({"ph": "X", "cat": "kernel", "name": "adam", "pid": 1, "tid": 7, "ts": 20, "dur": 30,
                          "args": {"correlation": 999, "device": 0}})  # fmt: skip
    workload = record.load(tmp_path)
    assert len(workload.operators) == 3
    assert any("launched before the trace began" in text for text in workload.assumptions)


def test_the_answer_and_its_json_list_what_was_recorded(tmp_path: Path) -> None:
    workload = ddp().load(tmp_path)
    result = trine.simulate(workload)
    (row,) = [row for row in result.evidence if row.what == "recorded collectives"]
    assert "1 x all_reduce in 1 ms (96 B)" in row.detail
    listed = result.plan["recorded_collectives"]
    assert listed[0] == {"operation": "all_reduce", "count": 1, "size_bytes": 96, "time_ps": 1000 * US}
    save(workload, tmp_path / "kept.trine.json")
    assert load(tmp_path / "kept.trine.json").collectives == workload.collectives
    assert describe(workload).collectives == workload.collectives
    told = CliRunner().invoke(app, ["trace", "inspect", str(tmp_path / "kineto.json")]).stdout
    assert "recorded collective, no compute" in told


LOOKUP = "fbgemm::split_embedding_codegen_lookup_adagrad_function(Tensor host, Tensor dev, Tensor indices) -> Tensor"


def dlrm(record: Recorder, *, reduced: int) -> None:
    """A table of FBGEMM, a table and a linear layer of autograd; an exchange, and one all-reduce of ``reduced``."""
    table, rows, x, w, y = (50, (1000, 4)), (51, (200, 4)), (1, (8, 4)), (2, (6, 4)), (3, (8, 6))
    record.call("fbgemm::split_embedding_codegen_lookup_adagrad_function", 0, 1, [table, (52, (8,)), (53, (8,))],
                [(54, (8, 4))], [5.0], LOOKUP)  # fmt: skip
    record.call("aten::embedding", 2, 1, [rows, (55, (8,))], [(56, (8, 4))], [5.0],
                "aten::embedding(Tensor weight, Tensor indices) -> Tensor", seq=38)  # fmt: skip
    record.call("c10d::alltoall_base_", 4, 1, [(57, (8, 4)), (56, (8, 4))], [], [50.0])
    record.call("aten::linear", 6, 1, [x, w], [y], [5.0], LINEAR, seq=40)
    inner = [("aten::mm", 21, 1, [(60, (6, 8)), x], [(61, (6, 4))], {})]
    record.call(NODE + "AddmmBackward0", 20, 4, [], [], [5.0], seq=40, inside=inner)
    inner = [("aten::embedding_backward", 26, 1, [(62, (8, 4)), (55, (8,))], [(63, (200, 4))], {})]
    record.call(NODE + "EmbeddingBackward0", 25, 4, [], [], [5.0], seq=38, inside=inner)
    record.call("c10d::allreduce_", 30, 1, [(64, (reduced,))], [(64, (reduced,))], [50.0])
    step = [("aten::_foreach_add_", 41, 1, [[w, rows], [(61, (6, 4)), (63, (200, 4))]], [], [5.0],
             "aten::_foreach_add_.List(Tensor(a!)[] self, Tensor[] other) -> ()", {})]  # fmt: skip
    record.call("Optimizer.step#SGD.step", 40, 9, annotation=True, inside=step)
    for event in record.events:
        if event["name"].startswith("c10d::"):
            size = reduced if "allreduce" in event["name"] else 32
            event["args"] |= {"Input Dims": [[size]], "Input type": ["float"]}


@pytest.mark.parametrize(("reduced", "sharded"), [(24, True), (824, False)])
def test_sharded_tables_are_neither_broadcast_nor_reduced(tmp_path: Path, reduced: int, sharded: bool) -> None:
    record = Recorder()
    dlrm(record, reduced=reduced)
    workload = record.load(tmp_path)
    roles = {tensor.shape: tensor.role for tensor in reversed(workload.tensors.values())}
    assert roles[1000, 4] == "table"  # 0.9.0: a buffer, which DDP broadcasts
    assert roles[200, 4] == ("table" if sharded else "weight")
    assert [p.size_bytes for p in workload.parameters] == ([96] if sharded else [96, 3200])
    result = trine.simulate(
        workload, trine.Plan(dp=4, inputs="none"), cluster=trine.build_topology("ring", "50 GB/s", "1 us", 4)
    )
    sent = {row.kind: row.size_bytes for row in result.collectives}
    assert sent == {"all_reduce": 96 if sharded else 3296}
    assert any("all-to-alls" in text for text in result.warnings)
    assert result.memory_uses[0].needed_bytes >= 16_000


def test_a_thread_that_waits_for_a_collective_is_not_launching(tmp_path: Path) -> None:
    record = ddp()
    record.call("aten::index", 200, 700, [8, 4])
    record.kernel("nonzero", 201, 1130, 10)
    record.events.append({"ph": "X", "cat": "cuda_runtime", "name": "cudaStreamSynchronize", "pid": 1, "tid": 1,
                          "ts": 210, "dur": 680, "args": {"correlation": 900}})  # fmt: skip
    index = next(op for op in record.load(tmp_path).operators if op.name == "aten::index")
    assert index.launch_duration_ps == 20 * US  # 0.9.0: 700 us, the collective a second time


@pytest.mark.parametrize("value", [-1, 2**70, True, "x", None, [1], 1.5])
def test_odd_sizes_of_collectives_are_not_known(tmp_path: Path, value: object) -> None:
    record = ddp()
    for event in record.events:
        if event["cat"] != "kernel":
            event["args"] = {"In msg nelems": value, "dtype": "Float", "Input Dims": [[value]], "Input type": ["float"]}
        elif "nccl" in event["name"]:
            event["args"] |= {"Out msg nelems": value, "dtype": "Float", "Collective name": "allreduce"}
    for event in record.events:
        if event["cat"] == "cuda_runtime":
            event["args"] = {"correlation": [e for e in record.events if e["cat"] == event["cat"]].index(event) + 1}
    sizes = [each.size_bytes for each in record.load(tmp_path).collectives if each.operation == "all_reduce"]
    assert sizes in ([None], [4])


#: The profiler's arguments of one call -> bytes of its larger side.
ARGUMENTS = [
    ({"dtype": "Float", "In msg nelems": 8, "Out msg nelems": 16}, 64),
    ({"dtype": "BFloat16", "In msg nelems": None, "Out msg nelems": 16}, 32),  # one side is not named
    (
        {"dtype": "Float", "Input Dims": [[3, 4]], "Input type": ["c10::Half"]},
        24,
    ),  # a dtype without numbers of elements
    ({"dtype": None, "In msg nelems": 8, "Input Dims": [[3]], "Input type": ["long int"]}, 24),
    ({"Input Dims": [[2, 3], [], [5]], "Input type": ["float", "Scalar", ""]}, 24),  # a scalar is no message
    ({"Input Dims": [[2], "8", [3, "n"], [-1]], "Input type": ["float", "float", "float", "float"]}, 8),
    ({"Input Dims": [[2], [3]], "Input type": ["float", None]}, 8),
    ({"Input Dims": [[2]]}, None),
    ({"Input type": ["float"]}, None),
    ({"Input Dims": [[]], "Input type": ["float"]}, None),
    ({"Input Dims": [[2**47], [2]], "Input type": ["short int", "float"]}, 8),  # 2^48 bytes are no message
    ({}, None),
]


@pytest.mark.parametrize(("args", "size"), ARGUMENTS)
def test_the_bytes_of_a_message_are_those_of_its_larger_side(args, size):
    assert message_bytes(args) == size


def test_collectives_are_added_up_the_longest_first():
    rows = [("all_reduce", 8, 5), ("all_gather", 4, 30), ("all_reduce", None, 7), ("all_gather", 6, 1)]
    first, second = total(rows)
    assert (first.operation, first.count, first.size_bytes, first.time_ps) == ("all_gather", 2, 10, 31)
    assert (second.operation, second.count, second.size_bytes, second.time_ps) == ("all_reduce", 2, None, 12)
