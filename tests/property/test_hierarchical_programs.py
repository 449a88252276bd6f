"""Do multi-node programs compute their collective, and does inter-node traffic stay on each rank's own rail?"""

from __future__ import annotations

import numpy as np
import pytest

from trine.errors import InputError
from trine.gpu.kernels import builder
from trine.gpu.kernels.build import ROOTED, build_kernel, known_kernels
from trine.gpu.program import DMA
from trine.gpu.proofs import check_program

OPS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
#: ranks, nodes
SHAPES = ((2, 2), (3, 3), (4, 2), (4, 1), (6, 2), (6, 3), (8, 2))


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch):
    monkeypatch.setattr(builder, "PIECE_BYTES", 512)


def kernel(op, ranks, nodes, size, **how):
    return build_kernel(op, ranks, size, algorithm="hierarchical", num_nodes=nodes, wavefronts=2, **how)


@pytest.mark.parametrize(("ranks", "nodes"), SHAPES)
@pytest.mark.parametrize("op", OPS)
def test_every_rank_ends_with_the_result(op, ranks, nodes):
    for number, (workgroups, size) in enumerate(((1, 100), (3, 2999), (2, 40_000))):
        how = {"waits": ("joint", "single")[number % 2], "sync": ("auto", "both")[number // 2]}
        program = kernel(op, ranks, nodes, size, workgroups=workgroups, **how)
        proof = check_program(program, op, size, seed=number, orders=int(ranks < 6))
        assert proof.open_ends == ()
        assert proof.late_reads == ()


@pytest.mark.parametrize(("ranks", "nodes"), [*SHAPES, (2, 1), (3, 1), (5, 1)])
@pytest.mark.parametrize("op", ROOTED)
def test_the_root_or_all_end_with_the_result(op, ranks, nodes):
    """With every algorithm inside one node, and with ``hierarchical`` across nodes."""
    for algorithm in known_kernels(op) if nodes == 1 else ("hierarchical",):
        for number, (workgroups, size) in enumerate(((1, 100), (3, 2999), (2, 20_000))):
            program = build_kernel(
                op, ranks, size, algorithm=algorithm, num_nodes=nodes, workgroups=workgroups, wavefronts=2
            )
            proof = check_program(program, op, size, seed=number, orders=int(ranks < 6))
            assert proof.open_ends == ()
            assert proof.late_reads == ()


@pytest.mark.parametrize("op", ROOTED)
def test_what_has_a_root_crosses_by_the_own_rail_and_each_byte_once(op):
    ranks, nodes, lines = 6, 3, 36
    each = ranks // nodes
    program = kernel(op, ranks, nodes, ranks * lines * 128, workgroups=3)
    ops = program.operand_op
    own, peer = program.op_rank[ops], program.operand_rank
    crosses = own // each != peer // each
    assert (program.op_kind[ops[crosses]] == DMA).all()
    assert (own[crosses] % each == peer[crosses] % each).all()
    sent = int(program.op_amount[ops[crosses]].sum())
    share = ranks if op in ("broadcast", "reduce") else each  # the whole payload, or one node's part
    assert sent == (nodes - 1) * share * lines * 128


@pytest.mark.parametrize("how", [{"sync": "both"}, {"waits": "single"}, {"protocol": "ll"}])
def test_what_has_a_root_waits_as_it_does(how):
    with pytest.raises(InputError, match=r"programs of gather|simple"):
        build_kernel("gather", 4, 4096, algorithm="put", **how)


@pytest.mark.parametrize(("ranks", "nodes"), SHAPES)
@pytest.mark.parametrize("op", OPS)
def test_nothing_but_puts_to_the_own_rail_leaves_a_node(op, ranks, nodes):
    """Each rank sends the minimum to other nodes: data is reduced before it leaves or forwarded after it arrives."""
    each, lines = ranks // nodes, 36
    program = kernel(op, ranks, nodes, ranks * lines * 128, workgroups=3)
    ops = program.operand_op
    own, peer = program.op_rank[ops], program.operand_rank
    crosses = own // each != peer // each
    assert (program.op_kind[ops[crosses]] == DMA).all()
    assert (own[crosses] % each == peer[crosses] % each).all()
    sent = np.zeros(ranks, np.int64)
    np.add.at(sent, own[crosses], program.op_amount[ops[crosses]])
    parts = {"all_reduce": 2, "all_to_all": each}.get(op, 1)
    assert sent.tolist() == [parts * (nodes - 1) * lines * 128] * ranks


def test_large_slices_go_in_pieces():
    small, large = (kernel("all_reduce", 4, 2, 4 * 128 * lines, workgroups=1) for lines in (4, 400))
    puts = [int(((p.op_kind == DMA) & (p.op_amount > 0)).sum()) for p in (small, large)]
    assert puts == [4 * 2, 4 * 2 * builder.CollectiveBuilder.max_pieces]


def test_nics_set_no_flags_in_lines():
    with pytest.raises(InputError, match=r"NICs.*protocol 'simple'"):
        build_kernel("all_gather", 4, 4096, num_nodes=2, protocol="ll")


def test_nodes_of_unequal_size_are_no_grid():
    with pytest.raises(InputError, match="4 ranks do not divide over 3 nodes"):
        build_kernel("all_gather", 4, 4096, num_nodes=3)
