"""Does a folded run equal the unfolded one if puts cross NICs, and are cases that would differ refused?"""

from __future__ import annotations

import os

import numpy as np
import pytest
from gpu_cases import GB, NS, Case, Programmer, small_model
from gpu_nics import relative_nic_case
from gpu_relative import perturbed
from test_gpu_folding import assert_exact, system_of

from trine.cluster import load_cluster
from trine.cluster.cluster import Cluster
from trine.cluster.parts import NIC, SWITCH, Device, Link
from trine.cluster.tables import LinkTable
from trine.errors import InputError
from trine.gpu.fabric import GpuFabric
from trine.gpu.folding import fold_system
from trine.gpu.kernels.build import build_kernel
from trine.gpu.model import Nic
from trine.gpu.program import DMA, WRITE

MODEL = small_model(nic=Nic(latency_ps=900 * NS, interval_ps=40 * NS, proxy_ps=1700 * NS, proxy_interval_ps=333 * NS))


def ring(*kinds):
    """Return a one-way ring of GPUs, each joined to the next by a device of one of ``kinds``."""
    ranks = len(kinds)
    devices = [Device(name=f"g{i}", forwards=True) for i in range(ranks)]
    devices += [Device(name=f"d{i}", kind=kind, forwards=True) for i, kind in enumerate(kinds)]
    wires = []
    for i in range(ranks):
        link = Link(bytes_per_s=100 * GB, latency_ps=500 * NS)
        wires += [(i, ranks + i, link), (ranks + i, (i + 1) % ranks, link)]
    names = [device.name for device in devices]
    cluster = Cluster(name="ring", devices=tuple(devices), links=LinkTable.joined(names, wires))
    programmer = Programmer(ranks)
    for rank in range(ranks):
        programmer.kernel(rank, workgroups=1)
        programmer.dma(9000, (rank + 1) % ranks, 0).dma(100, (rank + 1) % ranks, 0).acquire(rank, 0, 2)
    return Case(programmer.build(), MODEL, cluster, list(range(ranks)))


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_nics_between_all_gpus(ranks):
    why, folded = assert_exact(ring(*[NIC] * ranks), ("compiled", "reference"))
    assert why is None
    assert folded.num_gpus == 1


def test_a_switch_in_place_of_a_nic_keeps_gpus_apart():
    """The switch has the same links as the NICs, but copy engines start there instead of NICs."""
    why, folded = assert_exact(ring(NIC, SWITCH))
    assert folded is None
    assert "NIC" in why
    why, folded = assert_exact(ring(NIC, SWITCH, NIC, SWITCH))
    assert folded.num_gpus == 2


@pytest.mark.parametrize("op", ["all_gather", "reduce_scatter", "all_reduce", "all_to_all"])
def test_nodes_on_a_fabric_do_not_fold(op):
    cluster = load_cluster("dgx-h100", nodes=2)
    program = build_kernel(op, 16, 16 * 4096, algorithm="hierarchical", num_nodes=2, workgroups=1, wavefronts=1)
    why, folded = assert_exact(Case(program, MODEL, cluster, list(cluster.gpus)))
    assert folded is None
    assert "absolute rank" in why or "neither begins nor ends" in why


@pytest.mark.parametrize("seed", range(int(os.environ.get("TRINE_GPU_FOLD_EXAMPLES", "40"))))
def test_random_relative_programs_across_nics(seed):
    """Islands of directly joined GPUs with NIC DMAs between them; also with one change in one rank or link."""
    turned = relative_nic_case(seed)
    assert_exact(turned, ("compiled", "reference") if seed < 8 else ("compiled",))
    made, what = perturbed(turned, seed)
    try:
        assert_exact(made)
    except InputError as error:  # moved ranks: an access inside an island may now leave it
        if what not in ("peer", "group", "swap") or "which loads and stores cannot cross" not in str(error):
            raise


def test_most_of_them_fold_and_cross_nics():
    made = [relative_nic_case(seed, step=1) for seed in range(40)]
    found = [fold_system(system_of(case))[0] for case in made]
    assert sum(folded is not None and folded.num_gpus == 1 for folded in found) >= 34
    assert sum(_crosses(case) for case in made) >= 30


def _crosses(made):
    """Return whether a DMA of rank 0 leaves its island."""
    program = made.program
    fabric = GpuFabric(made.cluster, made.group, made.model)
    kind = np.repeat(program.op_kind, np.diff(program.operand_ptr))
    targets = program.operand_rank[(kind == DMA) & (program.operand_role == WRITE)]
    return any(fabric.crosses_nic(0, int(target)) for target in targets)
