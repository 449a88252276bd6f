"""Do dispatch, combine and all-to-all of unequal parts take at least the time of their bytes, and not much more?"""

from __future__ import annotations

import pytest
from line_counts import count_lines

from trine.cluster import load_cluster
from trine.collectives.sizes import shared_matrix
from trine.gpu.collective import LoadStoreOptions, loadstore_collective
from trine.gpu.kernels.build import build_kernel
from trine.gpu.kernels.moe.builder import NodeGrid, draw_routes
from trine.gpu.kernels.moe.options import MOE, MoeOptions

#: NVLink of an H800 each way; bytes of a line with its header, and of its acknowledgement on the way back.
PORT_BYTES_PER_S, LINE_BYTES, ACK_BYTES = 200e9, 144, 16


def port_time_s(written) -> float:
    """Return the time of lines on the busiest GPU's port, with the acknowledgements of lines the other way."""
    out = written.sum(1) - written.diagonal()
    come = written.sum(0) - written.diagonal()
    return max((out * LINE_BYTES + come * ACK_BYTES).max(), (come * LINE_BYTES + out * ACK_BYTES).max()) / (
        PORT_BYTES_PER_S
    )


@pytest.mark.parametrize(("algorithm", "tokens", "most"), [("normal", 256, 1.25), ("low-latency", 128, 1.25)])
@pytest.mark.parametrize("op", MOE)
def test_a_node_is_as_fast_as_its_nvlinks(op, algorithm, tokens, most):
    moe = MoeOptions(tokens=tokens, draws="rotated")
    program = build_kernel(op, 8, 1, algorithm=algorithm, moe=moe)
    least_s = port_time_s(count_lines(program).written)
    found = loadstore_collective(op, None, "hgx-h800", options=LoadStoreOptions(algorithm=algorithm, moe=moe))
    assert least_s < found.times_ps[0] / 1e12 < most * least_s
    assert found.rows[0].simulated == 1


def test_across_nodes_nics_bound_low_latency():
    """It takes at least the puts to the other node over one NIC per GPU; at most these, the node's lines and 25 us."""
    moe = MoeOptions(tokens=32, hidden=2048, experts=32)
    cluster = load_cluster("hgx-h800", nodes=2, gpus=16)
    found = loadstore_collective("moe_combine", None, cluster, options=LoadStoreOptions(moe=moe))
    routes = draw_routes(moe, NodeGrid(2, 8), 2)
    back = [sum(place[0] >= 8 for places in each.tokens for place in places) for each in routes]
    nic_s = max(back) * 4096 / 50e9
    assert nic_s < found.times_ps[0] / 1e12 < nic_s + 32 * 8 * 4096 / 160e9 + 25e-6


def test_equal_parts_take_what_all_to_all_takes():
    for name, sizes in (("hgx-h800", [1000, 8 << 10, 1 << 20]), ("astra3-generic", [256 << 10])):
        cluster = load_cluster(name, gpus=8)
        uneven = loadstore_collective("all_to_all_v", sizes, cluster)
        even = loadstore_collective("all_to_all", sizes, cluster, options=LoadStoreOptions(algorithm="put"))
        assert uneven.times_ps == even.times_ps
        assert [row.simulated for row in uneven.rows] == [row.simulated for row in even.rows]
    assert uneven.rows[0].simulated == 1


@pytest.mark.parametrize("nodes", [1, 2])
def test_unequal_parts_wait_for_the_most_loaded(nodes):
    ranks, size = 8 * nodes, 4 << 20
    shares = [4.0, *(1.0,) * (ranks - 1)]
    matrix = shared_matrix(size, shares)
    cluster = load_cluster("hgx-h800", nodes=nodes, gpus=ranks)
    found = loadstore_collective("all_to_all_v", None, cluster, options=LoadStoreOptions(matrix=matrix))
    from_node = sum(row[0] for row in matrix[1:8]) * LINE_BYTES / 128 / PORT_BYTES_PER_S
    by_nic = sum(row[0] for row in matrix[8:]) / 50e9
    least_s = max(from_node, by_nic)
    assert least_s < found.times_ps[0] / 1e12 < 1.4 * least_s + 30e-6
    assert found.result.fold.why_unfolded
