"""Does a node alone on the GPU take the time in its trace, or the time of its kernel run alone?"""

from __future__ import annotations

import numpy as np
import pytest
from chakra_files import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, COMP, REDUCE_SCATTER, collective, node, receive, send
from chakra_loadstore_cases import SMALL, US, cluster, model, run

from trine.gpu.chakra.kernels import KernelChoices
from trine.gpu.kernels.build import build_kernel
from trine.gpu.run import run_gpus

KINDS = {"all_reduce": ALL_REDUCE, "all_gather": ALL_GATHER, "reduce_scatter": REDUCE_SCATTER, "all_to_all": ALL_TO_ALL}


@pytest.mark.parametrize("tensor_size", [0, 10_000, 200_000, 10**8])
@pytest.mark.parametrize("micros", [1, 7, 40])
@pytest.mark.parametrize("shape", [(1, 1), (4, 2), (24, 4), (100, 8)])
def test_a_compute_node_alone_takes_its_duration_to_1_percent(tmp_path, micros, tensor_size, shape):
    kernels = KernelChoices(compute_workgroups=shape[0], compute_wavefronts=shape[1])
    result = run(tmp_path, [[node(1, COMP, micros=micros, tensor_size=tensor_size)]], kernels)
    assert result.gpu.program.num_kernels == 1
    assert abs(result.end_time_ps - micros * US) <= micros * US / 100


def test_compute_nodes_one_after_the_other_take_the_sum(tmp_path):
    nodes = [node(i, COMP, micros=3 + i, tensor_size=20_000 * i) for i in range(1, 5)]
    result = run(tmp_path, [nodes])
    assert result.end_time_ps == pytest.approx(sum(3 + i for i in range(1, 5)) * US, rel=0.01)


def test_bytes_are_moved_as_the_tensor_has_them(tmp_path):
    result = run(tmp_path, [[node(1, COMP, micros=40, tensor_size=384 * 1000)]])
    gpu = result.gpu.rank(0)
    assert (gpu.loads, gpu.stores) == (2000, 1000)


def test_more_bytes_than_memory_moves_become_fewer_and_are_said(tmp_path):
    result = run(tmp_path, [[node(1, COMP, micros=10, tensor_size=10**9)]])
    moved = 128 * (result.gpu.rank(0).loads + result.gpu.rank(0).stores)
    assert 100_000 < moved < 10**9
    assert result.end_time_ps == pytest.approx(10 * US, rel=0.01)
    assert any("more bytes than a GPU moves" in sentence for sentence in result.warnings)


@pytest.mark.parametrize("kind", KINDS)
def test_a_collective_alone_is_its_kernel_alone(tmp_path, kind):
    size = 4096 // (4 if kind == "all_gather" else 1)
    result = run(tmp_path, [[collective(1, KINDS[kind], size)]] * 4)
    program = build_kernel(kind, 4, 4096, workgroups=2, wavefronts=2)
    alone = run_gpus(program, cluster(4), cluster(4).gpus, model())
    assert result.end_time_ps == alone.end_ps
    assert result.collectives[0].time_ps == alone.end_ps
    assert result.gpu.rank(0).loads == alone.gpu.loads[0]


def test_collectives_one_after_the_other_take_about_the_sum(tmp_path):
    """Only about: the second starts on other compute units than the first, and ranks end at different times."""
    nodes = [collective(i, ALL_REDUCE, 4096) for i in (1, 2, 3)]
    once = run(tmp_path, [nodes[:1]] * 4).end_time_ps
    assert run(tmp_path, [nodes] * 4).end_time_ps == pytest.approx(3 * once, rel=0.03)


def test_collectives_of_two_groups_do_not_touch(tmp_path):
    ranks = [[collective(1, ALL_REDUCE, 4096, pg_name=str(1 + rank // 2))] for rank in range(4)]
    both = run(tmp_path, ranks, groups='{"1": [0, 1], "2": [2, 3]}')
    program = build_kernel("all_reduce", 2, 4096, workgroups=2, wavefronts=2)
    for group in ((0, 1), (2, 3)):
        alone = run_gpus(program, cluster(4), [cluster(4).gpus[rank] for rank in group], model())
        ends = [both.records.end_ps[both.graph.rank == rank].max() for rank in group]
        assert max(ends) == alone.end_ps


def test_a_message_moves_its_lines_and_its_receiver_waits_for_them(tmp_path):
    size = 128 * 40
    result = run(tmp_path, [[send(1, 1, size)], [receive(1, 0, size)]])
    sender, receiver = result.gpu.rank(0), result.gpu.rank(1)
    assert (sender.loads, sender.stores, sender.releases) == (40, 40, 2)
    assert receiver.acquires == 1
    ends = [result.records.end_ps[result.graph.rank == rank].max() for rank in (0, 1)]
    # The last release is an outgoing message; the sender ends when its answer comes back.
    assert 0 < ends[0] - ends[1] < 2 * 200_000 + 200_000


def test_launches_are_paid_by_communication_and_not_by_compute(tmp_path):
    nodes = [node(1, COMP, micros=5), collective(2, ALL_REDUCE, 1024, [1])]
    times = []
    for launch_ps in (0, 5 * US):
        result = run(tmp_path, [nodes] * 2, gpu=model(launch_ps=launch_ps))
        times.append(result.end_time_ps)
    assert times[1] - times[0] == 5 * US


def test_kernels_without_traffic_differ_in_traffic_alone(tmp_path):
    from dataclasses import replace

    nodes = [[node(1, COMP, micros=10, tensor_size=100_000)]]
    result = run(tmp_path, nodes, replace(SMALL, compute_traffic=False))
    assert result.gpu.rank(0).requests == 0
    assert result.end_time_ps == pytest.approx(10 * US, rel=0.01)
    assert np.count_nonzero(run(tmp_path, nodes).gpu.records.loads) == 1
