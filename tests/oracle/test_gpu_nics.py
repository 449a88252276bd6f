"""Does the compiled GPU model equal its twin when puts cross NICs, and do puts take the right time?"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from gpu_cases import NS, Case, Programmer, assert_same, small_model
from gpu_random import REMOTE, RandomCase

from trine.cluster import load_cluster
from trine.common.units import transfer_ps
from trine.gpu.fabric import GpuFabric
from trine.gpu.kernels import builder
from trine.gpu.kernels.build import ROOTED, build_kernel
from trine.gpu.model import BY_GPU, BY_PROXY, Nic

NIC = Nic(latency_ps=900 * NS, interval_ps=40 * NS, proxy_ps=1700 * NS, proxy_interval_ps=333 * NS)


@cache
def machine():
    return load_cluster("dgx-h100", nodes=3)


def nic_of(seed):
    choose = np.random.default_rng([seed, 11])
    times = [
        int(choose.choice(values)) for values in ((0, 1000, 900_000), (0, 1, 40_000), (0, 1_700_000), (1, 333_000))
    ]
    names = ("latency_ps", "interval_ps", "proxy_ps", "proxy_interval_ps")
    return Nic(initiator=str(choose.choice([BY_GPU, BY_PROXY])), **dict(zip(names, times, strict=True)))


class NodeCase(RandomCase):
    """Dmas between GPUs of two or three nodes, and inside the nodes."""

    def _model(self):
        return replace(super()._model(), nic=nic_of(self.seed) if self.seed % 5 else None)

    def _cluster(self):
        return machine()

    def _group(self, cluster):
        return [int(gpu) for gpu in self.rng.permutation([0, 1, 8, 9, 16, 17])[: self.num_ranks]]


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_random_programs(first):
    for seed in range(first, first + 20):
        case = NodeCase(seed, without=(*REMOTE, "transfers")).case()
        assert_same(case.simulate("compiled"), case.simulate())


@pytest.mark.parametrize("first", range(3))
@pytest.mark.parametrize("op", ["all_gather", "reduce_scatter", "all_reduce", "all_to_all", *ROOTED])
def test_hierarchical_programs(op, first, monkeypatch):
    """Programs load and store inside nodes and put between nodes, on random GPUs."""
    monkeypatch.setattr(builder, "PIECE_BYTES", 512)
    for seed in (first, first + 3):
        nodes, each = [(2, 2), (2, 1), (3, 2)][seed % 3]
        model = replace(RandomCase(seed).model, nic=nic_of(seed), poll_ps=[None, 37_000][seed % 2])
        program = build_kernel(
            op, nodes * each, 24_000, algorithm="hierarchical", num_nodes=nodes, workgroups=2,
            wavefronts=min(2, model.wavefronts_per_cu), line_bytes=model.line_bytes,
        )  # fmt: skip
        group = [machine().gpus[8 * node + local] for node in range(nodes) for local in range(each)]
        case = Case(program, model, machine(), group)
        assert_same(case.simulate("compiled"), case.simulate())


def puts(model, *peers):
    """Put 1000 B from rank 0 to each of ``peers``; return the time when it knows that they arrived, and the fabric."""
    programmer = Programmer(len(peers) + 1)
    programmer.kernel(0, workgroups=1)
    for peer in peers:
        programmer.dma(1000, peer)
    group = [machine().gpus[i] for i in (0, 8, 16)[: len(peers) + 1]]
    case = Case(programmer.build(), model, machine(), group)
    slow = case.simulate()
    assert_same(case.simulate("compiled"), slow)
    return slow.gpu.end_ps, GpuFabric(machine(), group, model)


@pytest.mark.parametrize("initiator", [BY_GPU, BY_PROXY])
def test_a_put_takes_initiation_links_and_word_back(initiator):
    model = small_model(nic=replace(NIC, initiator=initiator))
    end_ps, fabric = puts(model, 1)
    (path,) = fabric.dma_paths(0, 1)
    there_ps = sum(transfer_ps(1064, hop.bytes_per_s) + hop.after_ps for hop in path.hops)
    back_ps = fabric.latency_ps(1, 0)
    begins_ps = NIC.latency_ps if initiator == BY_GPU else NIC.proxy_ps
    assert end_ps == model.launch_ps + begins_ps + there_ps + back_ps


@pytest.mark.parametrize("initiator", [BY_GPU, BY_PROXY])
def test_puts_of_one_gpu_come_to_the_nic_one_after_the_other(initiator):
    """Puts to different nodes, too, follow each other: the second is an interval later, or a link's time if longer."""
    model = small_model(nic=replace(NIC, initiator=initiator))
    one_ps, fabric = puts(model, 1)
    two_ps, _ = puts(model, 1, 2)
    interval_ps = NIC.interval_ps if initiator == BY_GPU else NIC.proxy_interval_ps
    link_ps = transfer_ps(1064, min(hop.bytes_per_s for hop in fabric.dma_paths(0, 1)[0].hops))
    assert two_ps - one_ps == max(interval_ps, link_ps)


def test_without_nics_in_the_model_a_copy_engine_puts():
    model = small_model()
    bare_ps, _ = puts(model, 1)
    nic_ps, _ = puts(replace(model, nic=NIC), 1)
    assert nic_ps - bare_ps == NIC.latency_ps - model.dma_ps


def test_ranks_of_a_node_share_a_domain():
    group = [machine().gpus[i] for i in (8, 0, 1, 9, 16)]
    assert GpuFabric(machine(), group, small_model()).domains == (0, 1, 1, 0, 2)
