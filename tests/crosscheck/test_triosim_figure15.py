"""Which assumption gives the 92 % communication of TrioSim's figure 15?

The published trace player fetches operands from one remote memory: 10.57 GB a GPU and step of VGG-13, against 94.0 ms
of computing on an H100 (docs/background/photonic.md). Here that memory lies at the short edge of the wafer.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

import trine
from trine.cluster import Cluster
from trine.cluster.parts import HOST, Device

OPERANDS, COMPUTE_PS = 10_570_000_000, 94_000_000_000
EDGE, MESH_LINK = 7, 121_000_000_000


def wafer_with_memory() -> Cluster:
    """Return the mesh with a memory that has a link to each GPU of the first row."""
    wafer = trine.load_cluster("wafer-a100-mesh")
    memory, wire = len(wafer.devices), wafer.links[0]
    new = tuple(wire.between(memory, wafer.gpus[gpu], f"memory->gpu{gpu}") for gpu in range(EDGE))
    return replace(wafer, devices=(*wafer.devices, Device(name="memory", kind=HOST)), links=(*wafer.links, *new))


def test_operands_over_the_edge_of_the_mesh_make_the_papers_share() -> None:
    wafer = wafer_with_memory()
    memory = len(wafer.devices) - 1
    graph = trine.TaskGraphBuilder(wafer.link_bytes_per_s, wafer.link_latency_ps)
    for rank, gpu in enumerate(wafer.gpus):
        fetched = graph.transfer(rank, rank, wafer.route(memory, gpu), OPERANDS, name=f"operands of {rank}")
        graph.compute(rank, "compute", COMPUTE_PS, after=[fetched], name=f"step of {rank}")
    end_ps = int(trine.run(graph.build()).end_ps.max())
    by_hand_s = 84 * OPERANDS / (EDGE * MESH_LINK)
    assert (end_ps - COMPUTE_PS) / 1e12 == pytest.approx(by_hand_s, rel=1e-4)
    assert 1 - COMPUTE_PS / end_ps == pytest.approx(0.9221, abs=0.01)  # 91.8 %
