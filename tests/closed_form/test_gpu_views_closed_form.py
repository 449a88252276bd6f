"""Do views of engine runs match counts by hand: messages, bytes, and time of wavefronts?"""

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from trine.cluster import load_cluster
from trine.collectives.bus_bandwidth import bus_factor
from trine.gpu.kernels.build import build_kernel
from trine.gpu.model.files import load_gpu_model
from trine.gpu.reference import simulate
from trine.gpu.results.resources import port_busy
from trine.gpu.results.result import GpuResult
from trine.gpu.run import GpuRunOptions, run_gpus
from trine.gpu.system import kernel_tasks, unfolded

RANKS, LINES = 4, 12
SIZE = RANKS * LINES * 128


@cache
def ran(op, algorithm, until_ps=None, gpu="h100-sxm", lines=LINES):
    program = build_kernel(op, RANKS, RANKS * lines * 128, algorithm=algorithm, workgroups=3)
    cluster = load_cluster("dgx-h100", gpus=RANKS)
    group = list(cluster.gpus)
    model = load_gpu_model(gpu)
    tasks = kernel_tasks(program)
    system = unfolded(program, cluster, group, model, tasks)
    outcome = simulate(system, until_ps)
    return GpuResult(
        program=program,
        model=model,
        cluster=cluster,
        group=group,
        records=outcome.gpu,
        bus_factor=bus_factor(op, RANKS),
        finished=outcome.finished,
    )


@pytest.mark.parametrize(("op", "algorithm"), [("all_gather", "get"), ("all_gather", "put"), ("reduce_scatter", "get")])
def test_data_on_links_is_each_line_once(op, algorithm):
    found = ran(op, algorithm)
    traffic = found.document()["traffic"]["fabric"]
    lines = RANKS * (RANKS - 1) * LINES
    assert traffic["data_messages"] == lines
    assert traffic["data_bytes"] == lines * (128 + found.model.header_bytes)
    releases = sum(gpu.releases for gpu in found.gpus)
    # each line has one message without data in the other direction, each release a request and an acknowledgement
    assert traffic["control_messages"] == lines + 2 * releases


def test_busy_time_of_links_is_their_bytes_at_their_rate():
    for link in ran("all_gather", "get").links:
        rate = link.bytes_per_s // link.lanes
        wanted = (link.data_bytes + link.control_bytes) * 10**12 / rate
        messages = link.data + link.control
        assert wanted <= link.busy_ps <= wanted + messages  # each rounded up to a picosecond


def test_memory_serves_each_line_once_where_there_is_no_l2():
    found = ran("all_gather", "get", gpu="astra3-generic")
    memory = next(use for use in found.kinds if use.kind == "memory")
    assert memory.data == sum(gpu.loads + gpu.stores for gpu in found.gpus)
    assert memory.control == sum(gpu.acquires + gpu.releases for gpu in found.gpus)


@pytest.mark.parametrize("until_ps", [None, 2_000_000])
def test_wavefront_time_adds_up(until_ps):
    found = ran("all_gather", "get", until_ps)
    records, wavefronts = found.records, found.program.kernel_wavefronts[found.shown.workgroup_kernel]
    end = np.where(records.workgroup_end_ps < 0, records.end_ps, records.workgroup_end_ps)
    began = records.workgroup_start_ps >= 0
    there = int(((end - records.workgroup_start_ps) * wavefronts)[began].sum())
    assert found.finished == (until_ps is None)
    assert 0 < sum(map(sum, (gpu.state_ps for gpu in found.gpus))) <= there
    content = found.document()
    for states in (content["wavefronts"], *(gpu["wavefronts"] for gpu in content["gpus"])):
        assert sum(state["share_ppm"] for state in states.values()) == 10**6


def test_bandwidths_follow_from_time():
    found = ran("reduce_scatter", "get")
    assert found.algbw_bytes_per_s == pytest.approx(SIZE / found.time_s)
    assert found.busbw_bytes_per_s == pytest.approx(0.75 * SIZE / found.time_s)
    assert found.window_ps == (found.model.launch_ps, found.time_ps)


def test_latency_decides_small_messages_and_is_longer_than_the_wires():
    found = ran("all_gather", "get", gpu="astra3-generic")
    assert found.bottleneck.what in ("latency", "semaphore", "barrier")
    latency = sum(gpu.load_latency_ps for gpu in found.gpus) / sum(gpu.loads for gpu in found.gpus)
    assert latency > found.model.memory.latency_ps


@pytest.mark.parametrize("until_ps", [None, 2_000_000])
def test_all_views_work(until_ps, tmp_path):
    found = ran("all_gather", "put", until_ps)
    json.dumps(found.document())
    for text in (found.summary(), found.details()):
        assert ("PARTIAL" in text) == (until_ps is not None)
    assert found.to_perfetto(tmp_path / "out.pftrace") == (
        () if until_ps is None else ("the run was stopped: unfinished operations are drawn up to then",)
    )


def test_a_folded_run_shows_every_rank_what_it_shows_unfolded():
    # 32 lines per rank: the number of channels and a multiple of the lanes, so all ranks' lines are laid out alike
    whole = ran("reduce_scatter", "get", gpu="astra3-generic", lines=32)
    run = run_gpus(whole.program, whole.cluster, whole.group, whole.model, options=GpuRunOptions(engine="reference"))
    assert run.fold.why_unfolded is None
    folded = GpuResult(
        program=run.program, model=run.model, cluster=run.cluster, group=run.group, records=run.gpu, fold=run.fold
    )
    assert len(folded.gpus) == 1
    for rank in range(RANKS):
        assert replace(folded.rank(rank), rank=rank, stands_for=1) == whole.rank(rank)
        assert port_busy(folded, folded.gpu_of(rank)) == port_busy(whole, rank)
    assert folded.document()["wavefronts"]["memory"]["share_ppm"] == pytest.approx(
        whole.document()["wavefronts"]["memory"]["share_ppm"], abs=1
    )
    assert "folded: all 4 ranks are identical: simulated one of them" in folded.details()


@pytest.mark.parametrize("alike", [range(8), range(0, 8, 2)])
def test_ports_of_a_folded_run_are_those_of_the_whole_one_where_gpus_are_joined_directly(alike):
    """One link stands for all identical ones, and it is not always attached to the simulated GPU."""
    cluster, model = load_cluster("mi300x-node"), load_gpu_model("mi300x")
    group = [cluster.gpus[rank] for rank in alike]
    program = build_kernel("all_reduce", len(group), 1 << 12, algorithm="oneshot", workgroups=2)
    whole, folded = (
        GpuResult(program=run.program, model=model, cluster=cluster, group=group, records=run.gpu)
        for run in (
            run_gpus(program, cluster, group, model, options=GpuRunOptions(fold=fold)) for fold in ("off", "auto")
        )
    )
    assert (len(whole.gpus), len(folded.gpus)) == (len(group), 1)
    busy = port_busy(folded, 0)
    assert sum(out is not None and into is not None for out, into in busy) == len(group) - 1
    for rank in range(len(group)):
        assert port_busy(whole, rank) == busy
