"""Do nodes of Chakra traces run as kernels that share the GPU, with the usual results? Are other nodes refused?"""

from __future__ import annotations

import functools
import json

import numpy as np
import pytest
from chakra_files import (
    ALL_REDUCE,
    BROADCAST,
    COMP,
    DATA,
    LOAD,
    collective,
    node,
    receive,
    send,
    write,
)
from chakra_loadstore_cases import US, cluster, model, run
from click.testing import CliRunner

from trine.cli.main import app
from trine.cluster import load_cluster
from trine.errors import DeadlockError, InputError, PlanError
from trine.formats.chakra import read_chakra
from trine.gpu.chakra import run as loadstore
from trine.gpu.chakra.kernels import KernelChoices
from trine.gpu.chakra.run import simulate_chakra_loadstore
from trine.gpu.model.files import load_gpu_model
from trine.gpu.model.options import ModelOptions
from trine.gpu.run import GpuRunOptions
from trine.graph.taskgraph import COMPUTE, TRANSFER

WORK, TALK = node(1, COMP, micros=20, tensor_size=400_000), collective(2, ALL_REDUCE, 64 * 1024)


def spans(result):
    """Return the compute node's and the collective's time in ps, from the first start to the last end."""
    graph, records = result.graph, result.records
    return {
        kind: int(records.end_ps[graph.kind == kind].max() - records.start_ps[graph.kind == kind].min())
        for kind in set(graph.kind.tolist())
    }


def test_compute_and_communication_slow_each_other_down(tmp_path):
    kernels = KernelChoices(workgroups=8, wavefronts=4, compute_workgroups=4, compute_wavefronts=4)
    work, talk, both = (
        spans(run(tmp_path, [nodes] * 4, kernels, machine=cluster(4, "200 GB/s")))
        for nodes in ([WORK], [TALK], [WORK, TALK])
    )
    assert both[COMPUTE] > 1.02 * work[COMPUTE]
    assert both[TRANSFER] > 1.02 * talk[TRANSFER]


def test_a_kernel_without_free_places_for_workgroups_waits(tmp_path):
    full = KernelChoices(workgroups=2, wavefronts=2, compute_workgroups=64, compute_wavefronts=2)
    result = run(tmp_path, [[WORK, TALK]] * 2, full)
    gpu = result.gpu
    first = gpu.records.workgroup_start_ps[gpu.shown.workgroup_kernel < 2].min()
    assert first > 0.8 * 20 * US
    assert result.end_time_ps > first


def test_the_result_is_that_of_any_run_and_more(tmp_path):
    result = run(tmp_path, [[WORK, TALK]] * 2)
    assert result.compute_s == pytest.approx(20e-6, rel=0.2)
    assert result.communication_s > 0
    assert [(use.kind, use.group_size, use.algorithms) for use in result.collectives] == [
        ("all_reduce", 2, ("oneshot",))
    ]
    assert sum(use.size_bytes for use in result.links) > 2 * 64 * 1024
    assert "inside the GPUs" in result.details()
    assert "not folded" in result.details()
    answer = result.to_json(tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_text())["gpus"] == json.loads(json.dumps(answer["gpus"]))
    result.to_perfetto(tmp_path / "a.pftrace")
    result.gpu.to_perfetto(tmp_path / "b.pftrace")
    assert b"communication group 0" in (tmp_path / "a.pftrace").read_bytes()
    one = result.rank(1)
    one.to_perfetto(tmp_path / "c.pftrace")
    assert one.step_time_ps == result.step_time_ps


def test_host_copies_cpu_operators_and_empty_nodes_are_no_kernels(tmp_path):
    nodes = [
        node(1, COMP, micros=5, is_cpu_op=True),
        node(2, COMP, [1], micros=0),
        node(3, LOAD, [2], tensor_size=10**6),
        node(4, COMP, [3], micros=7),
    ]
    prefix = write(tmp_path, [nodes])
    gpu = ModelOptions(num_cus=4).of(load_gpu_model("h100-sxm"))
    result = simulate_chakra_loadstore(read_chakra(prefix), "dgx-h100", model=gpu)
    assert result.gpu.program.num_kernels == 1
    copy = int(np.flatnonzero(result.graph.kind == TRANSFER)[0])
    assert result.records.end_ps[copy] - result.records.start_ps[copy] > 10**6 / 64e9 * 1e12
    assert result.records.start_ps[copy] == 5 * US


def test_nodes_too_short_for_a_kernel_just_last_and_are_said(tmp_path):
    nodes = [node(1, COMP, micros=1), node(2, COMP, micros=30)]
    result = run(tmp_path, [nodes], gpu=model(cycle_ps=50_000))
    assert result.gpu.program.num_kernels == 1
    assert result.end_time_ps == pytest.approx(31 * US, rel=0.01)
    assert any("1 compute nodes of up to 1 us are too short" in sentence for sentence in result.warnings)


def test_groups_and_messages_that_nics_join_go_through_copy_engines(tmp_path):
    big = load_cluster("dgx-h100", gpus=9)
    ranks = [[collective(1, ALL_REDUCE, 4096)] for _ in range(9)]
    ranks[0].append(send(2, 8, 5000, [1]))
    ranks[8].append(receive(2, 0, 5000, [1]))
    trace = read_chakra(write(tmp_path, ranks))
    gpu = ModelOptions(num_cus=4).of(load_gpu_model("h100-sxm"))
    result = simulate_chakra_loadstore(trace, big, model=gpu, kernels=KernelChoices(wavefronts=2))
    assert result.collectives[0].algorithms == ("ring",)
    assert result.gpu.records.packets[0] >= 2
    with pytest.raises(InputError, match="an algorithm that puts"):
        simulate_chakra_loadstore(
            trace, big, model=gpu, kernels=KernelChoices(algorithms={"all_reduce": "oneshot-get"})
        )


def test_algorithms_and_protocols_are_those_asked_for(tmp_path):
    chosen = KernelChoices(workgroups=2, wavefronts=2, protocol="ll", algorithms={"all_reduce": "ring"})
    result = run(tmp_path, [[TALK]] * 2, chosen)
    assert result.gpu.program.name == "job"
    assert result.collectives[0].algorithms == ("ring",)
    assert "protocol ll" in result.gpu.program.notes[0]


def test_a_run_that_is_stopped_gives_what_there_is(tmp_path, monkeypatch):
    monkeypatch.setattr(loadstore, "GpuRunOptions", functools.partial(GpuRunOptions, until_ps=2 * US))
    result = run(tmp_path, [[collective(i, ALL_REDUCE, 4096) for i in (1, 2, 3)]] * 2)
    assert not result.gpu.finished
    assert result.warnings[0].startswith("PARTIAL")
    assert result.end_time_ps <= 2 * US
    assert (result.records.end_ps >= result.records.start_ps).all()
    assert "PARTIAL" in result.summary()


@pytest.mark.parametrize(
    ("ranks", "error", "message"),
    [
        ([[collective(1, BROADCAST, 8)]] * 2, PlanError, "broadcast has no kernel .* --fidelity operator"),
        ([[collective(1, ALL_REDUCE, 0)]] * 2, PlanError, "0 bytes"),
        ([[node(1, COMP, micros=0)]], PlanError, "nothing in these traces is a kernel"),
        ([[node(1, LOAD, tensor_size=8)]], PlanError, "no host memory"),
        ([[node(1, COMP, micros=10**6, tensor_size=10**14)]], PlanError, "--no-compute-traffic"),
    ],
)
def test_what_has_no_kernel_is_refused(tmp_path, ranks, error, message):
    with pytest.raises(error, match=message):
        run(tmp_path, ranks)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"workgroups": 0}, "workgroups: must be at least 1"),
        ({"algorithms": {"all_reduce": "rings"}}, "did you mean 'ring'"),
        ({"algorithms": {"broadcast": "ring"}}, "no kernel for 'broadcast'"),
        ({"algorithms": {"all_gather": "put"}}, "no trace has a all_gather"),
        ({"compute_wavefronts": 65}, "compute_wavefronts: a compute unit of 'small' has room for 64"),
        ({"protocol": "lll"}, "unknown protocol"),
    ],
)
def test_wrong_choices_are_refused(tmp_path, choices, message):
    with pytest.raises(InputError, match=message):
        run(tmp_path, [[WORK, TALK]] * 2, KernelChoices(**choices))


def test_kernels_that_wait_for_each_other_are_named(tmp_path):
    ranks = [
        [collective(1, ALL_REDUCE, 1024), collective(2, ALL_REDUCE, 1024, [1], pg_name="1")],
        [collective(1, ALL_REDUCE, 1024, [2]), collective(2, ALL_REDUCE, 1024, pg_name="1")],
    ]
    with pytest.raises(DeadlockError, match="semaphore"):
        run(tmp_path, ranks, groups='{"1": [1, 0]}')


@pytest.mark.parametrize("kind", ["all_gather", "all_reduce", "all_to_all", "reduce_scatter"])
def test_the_micro_benchmarks_of_astra_sim_run(kind):
    prefix = DATA / "microbenchmarks" / kind / "4npus_1MB" / kind
    result = simulate_chakra_loadstore(read_chakra(prefix), load_cluster("astra3-generic", gpus=4))
    assert result.collectives[0].kind == kind
    # 1 MiB (all-gather: per rank) over 1 TiB/s, and at least a microsecond of latency
    assert 1 * US < result.end_time_ps < 30 * US


def test_the_custom_collective_of_astra_sim_runs():
    trace = read_chakra(DATA / "custom_ring_allreduce_8npus_1MB" / "custom_allreduce")
    result = simulate_chakra_loadstore(trace, "dgx-h100")
    # 7 + 7 hops, each at least a link latency and a store of 128 KiB, and 7 additions of 7 us
    assert 7 * 7 * US < result.end_time_ps < 180 * US
    assert result.gpu.program.num_kernels == 280


# -- the command -----------------------------------------------------------------------------------------------------


def invoke(*arguments):
    return CliRunner().invoke(app, ["chakra", *(str(argument) for argument in arguments)])


@pytest.fixture
def small_job(tmp_path):
    return write(tmp_path, [[node(1, COMP, micros=5, tensor_size=40_000), collective(2, ALL_REDUCE, 4096)]] * 2)


INSIDE = ("--topology", "full", "--bandwidth", "100 GB/s", "--latency", "1 us", "--gpu-model", "astra3-generic")


def test_the_command_gives_all_outputs(small_job, tmp_path):
    done = invoke(
        "run", small_job, *INSIDE, "--fidelity", "loadstore", "--workgroups", 2, "--unroll", 4, "--arbitration", "fair",
        "--max-outstanding", 64, "--algorithm", "all_reduce=twoshot", "--compute-workgroups", 8,
        "--json", tmp_path / "a.json", "--perfetto", tmp_path / "a.pftrace",
        "--inside-perfetto", tmp_path / "b.pftrace", "--details",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "inside the GPUs" in done.stdout
    answer = json.loads((tmp_path / "a.json").read_text())
    assert answer["plan"]["network"] == "loadstore"
    assert answer["step_time_s"] == pytest.approx(answer["gpus"]["time_s"])
    assert (tmp_path / "a.pftrace").stat().st_size > 0
    assert (tmp_path / "b.pftrace").stat().st_size > 0
    twin = invoke(
        "run", small_job, *INSIDE, "--fidelity", "loadstore", "--workgroups", 2, "--unroll", 4, "--arbitration", "fair",
        "--max-outstanding", 64, "--algorithm", "all_reduce=twoshot", "--compute-workgroups", 8,
        "--engine", "reference", "--json", "-",
    )  # fmt: skip
    assert json.loads(twin.stdout)["step_time_s"] == answer["step_time_s"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--workgroups", 4), "--workgroups is about the inside of GPUs"),
        (("--no-compute-traffic",), "--no-compute-traffic is about the inside of GPUs"),
        (("--fidelity", "loadstores"), "did you mean 'loadstore'"),
        (("--fidelity", "loadstore", "--network", "fair"), "--network is about the operator level"),
        (("--fidelity", "loadstore", "--collective-costs", "auto"), "--collective-costs is about the operator level"),
        (("--fidelity", "loadstore", "--arbitration", "fairly"), "did you mean 'fair'"),
        (("--fidelity", "loadstore", "--protocol", "llx"), "unknown protocol"),
    ],
)
def test_options_that_do_not_go_together_end_in_one_line(small_job, options, message):
    done = invoke("run", small_job, *(INSIDE if "loadstore" in options else INSIDE[:-2]), *options)
    assert done.exit_code == 2
    assert message in done.stderr
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("ranks", "option", "message"),
    [
        ([[node(1, COMP, micros=5)]], ("--workgroups", 2), "no communication"),
        ([[node(1, COMP, micros=5)]], ("--protocol", "ll"), "no collectives"),
        ([[node(1, COMP, micros=5)]], ("--no-compute-traffic",), "no compute node has a tensor_size"),
        ([[collective(1, ALL_REDUCE, 8)]] * 2, ("--compute-workgroups", 2), "no compute nodes"),
    ],
)
def test_options_that_cannot_matter_are_refused(tmp_path, ranks, option, message):
    prefix = write(tmp_path, ranks)
    done = invoke("run", prefix, *INSIDE, "--fidelity", "loadstore", *option)
    assert done.exit_code == 2
    assert message in done.stderr
