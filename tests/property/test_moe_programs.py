"""Do MoE dispatch, MoE combine and uneven all-to-all put every row in its place, in any execution order?"""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from exchange_goals import moe_goal, uneven_goal
from line_counts import count_lines

from trine.cluster import load_cluster
from trine.errors import InputError
from trine.gpu.kernels.build import build_kernel
from trine.gpu.kernels.moe.builder import NodeGrid, draw_routes
from trine.gpu.kernels.moe.low_latency import part_lines
from trine.gpu.kernels.moe.options import MOE, MoeOptions
from trine.gpu.model.files import gpu_model_of
from trine.gpu.program import BARRIER, DMA, NOP, WAITCNT
from trine.gpu.proofs import check_program
from trine.gpu.run import GpuRunOptions, run_gpus
from trine.gpu.validate import validate_program

#: algorithm, ranks, nodes
SHAPES = [
    *(("low-latency", ranks, nodes) for ranks, nodes in ((2, 1), (4, 1), (4, 2), (3, 3), (6, 3))),
    *(("normal", ranks, nodes) for ranks, nodes in ((2, 1), (3, 1), (4, 1), (8, 1), (2, 2), (4, 2), (6, 3))),
]
#: options for drawing the experts
DRAWS = (
    {"draws": "random"},
    {"draws": "rotated", "seed": 3},
    {"expert_imbalance": "zipf:1", "dispatch_type": "bf16"},
    {"tokens": 1, "top_k": 1},
)


def small(ranks, algorithm, **how):
    usual = {"tokens": 7, "hidden": 256, "experts": 2 * ranks, "top_k": 3, "sms": 4 if algorithm == "normal" else None}
    return MoeOptions(**usual | how)


@pytest.mark.parametrize(("algorithm", "ranks", "nodes"), SHAPES)
@pytest.mark.parametrize("op", MOE)
def test_every_token_finds_its_experts_and_its_sum(op, algorithm, ranks, nodes):
    for number, how in enumerate(DRAWS):
        moe = small(ranks, algorithm, **how)
        program = build_kernel(op, ranks, 1, algorithm=algorithm, num_nodes=nodes, moe=moe)
        validate_program(program)
        proof = check_program(program, goal=moe_goal(program, moe, nodes), seed=number, orders=int(ranks < 5))
        assert proof.open_ends == ()
        assert proof.late_reads == ()


def test_more_tokens_than_sms_across_nodes():
    """Blocks have several tokens: other warp groups put and write the tokens that one group casts."""
    moe = small(4, "low-latency", tokens=13, experts=4, top_k=2)
    for op in MOE:
        program = build_kernel(op, 4, 1, algorithm="low-latency", num_nodes=2, moe=moe)
        check_program(program, goal=moe_goal(program, moe, 2))


@pytest.mark.parametrize(
    ("op", "algorithm", "kind", "labels"),
    [
        ("moe_dispatch", "low-latency", WAITCNT, ("cast slot", "send")),
        ("moe_combine", "low-latency", WAITCNT, ("send clean",)),
        ("moe_dispatch", "normal", WAITCNT, ("tail",)),
        ("moe_combine", "normal", WAITCNT, ("tail",)),
        ("moe_dispatch", "low-latency", BARRIER, ("place number",)),
        ("moe_combine", "low-latency", BARRIER, ("grid weights",)),
        ("moe_dispatch", "normal", BARRIER, ("wait",)),
        ("moe_combine", "normal", BARRIER, ("wait",)),
    ],
)
def test_the_proof_sees_what_is_not_waited_for(op, algorithm, kind, labels):
    """Removing all waits or barriers with a label (or two consecutive labels) on all ranks causes a race."""
    moe = small(4, algorithm)
    program = build_kernel(op, 4, 1, algorithm=algorithm, moe=moe)
    for label in labels:
        numbers = [program.labels.index(name) for name in label.split()]
        chosen = (program.op_kind == kind) & np.isin(program.op_label, numbers)
        assert chosen.any()
        broken = replace(program, op_kind=np.where(chosen, NOP, program.op_kind).astype(np.int8))
        with pytest.raises(InputError, match=r"reads|writes|overwrites"):
            check_program(broken, goal=moe_goal(program, moe))


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_unequal_parts_arrive_in_the_order_of_ranks(ranks):
    drawn = random.Random(ranks)
    for workgroups in (1, 3):
        matrix = [[drawn.choice((0, 1, 100, 1000, 5000)) for _ in range(ranks)] for _ in range(ranks)]
        matrix[0][1] = 10
        program = build_kernel("all_to_all_v", ranks, 1, workgroups=workgroups, wavefronts=2, matrix=matrix)
        validate_program(program)
        proof = check_program(program, goal=uneven_goal(program, matrix), orders=int(ranks < 5))
        assert proof.open_ends == ()
        sent = count_lines(program).written
        assert (sent == [[-(-size // 128) for size in row] for row in matrix]).all()


def test_a_goal_that_is_not_met_is_said():
    matrix = [[0, 300], [500, 0]]
    program = build_kernel("all_to_all_v", 2, 1, workgroups=1, wavefronts=1, matrix=matrix)
    with pytest.raises(InputError, match="all_to_all_v ends with"):
        check_program(program, goal=uneven_goal(program, [[0, 300], [200, 0]]))


@pytest.mark.parametrize("algorithm", ["low-latency", "normal"])
def test_tokens_are_conserved(algorithm):
    """The lines between ranks are the lines of the messages: one message per expert or per rank.

    Low-latency kernels add partial lines for messages that start inside a line.
    """
    ranks = 4
    moe = small(ranks, algorithm, tokens=20, hidden=1024)
    routes = draw_routes(moe, NodeGrid(1, ranks), 1)
    program = build_kernel("moe_dispatch", ranks, 1, algorithm=algorithm, moe=moe)
    lines = {"low-latency": -(-(1024 + 32 + 16) // 128), "normal": -(-(1024 + 32 + 4 + 3 * 12) // 128)}[algorithm]
    written = count_lines(program).written
    for rank in range(ranks):
        for distance in range(1, ranks):
            places = [place for places in routes[rank].tokens for place in places if place[0] == distance]
            copies = len(places) if algorithm == "low-latency" else len(routes[rank].by_rank().get(distance, []))
            more = 1  # the line with the number of tokens
            if algorithm == "low-latency":
                slots = [slot for place in set(places) for slot in range(places.count(place))]
                more = sum(part_lines(1024 + 32 + 16, slot, 128) for slot in slots)
                assert more > 0
            assert written[rank, (rank + distance) % ranks] == copies * lines + more


def test_the_payload_is_what_an_average_rank_receives():
    """DeepEP's bandwidth counts the tokens a rank receives, once each, without their metadata."""
    moe = small(4, "normal", tokens=20, hidden=1024)
    routes = draw_routes(moe, NodeGrid(1, 4), 1)
    received = [
        sum(len(routes[(rank - distance) % 4].by_rank().get(distance, [])) for distance in range(4))
        for rank in range(4)
    ]
    assert len(set(received)) > 1
    dispatch = build_kernel("moe_dispatch", 4, 1, algorithm="normal", moe=moe)
    assert dispatch.payload_bytes == sum(received) // 4 * (1024 + 1024 // 128 * 4)
    combine = build_kernel("moe_combine", 4, 1, algorithm="normal", moe=moe)
    assert combine.payload_bytes == sum(received) // 4 * 1024 * 2


@pytest.mark.parametrize(("top_k", "experts"), [(3, 8), (32, 64)])
def test_across_nodes_the_payload_counts_a_token_once_for_each_of_its_nodes(top_k, experts):
    """DeepEP's RDMA bandwidth includes the rank's own node; lines also hold each token's metadata."""
    moe = small(4, "normal", tokens=20, hidden=1024, top_k=top_k, experts=experts)
    routes = draw_routes(moe, NodeGrid(2, 2), 2)
    crossing = sum(len({place[0] // 2 for place in places}) for each in routes for places in each.tokens)
    dispatch, combine = (build_kernel(op, 4, 1, algorithm="normal", num_nodes=2, moe=moe) for op in MOE)
    assert dispatch.payload_bytes == crossing // 4 * (1024 + 1024 // 128 * 4)
    assert combine.payload_bytes == crossing // 4 * 1024 * 2
    for program, size in ((dispatch, 1024 + 32 + 4 + top_k * (8 + 4)), (combine, 2048 + 4 + top_k * 4)):
        lines = -(-size // 128)
        puts = program.op_amount[(program.op_kind == DMA) & (program.op_amount > 128)] // 128
        assert puts.sum() % lines == 0
        away = sum(any(p[0] // 2 == 1 for p in places) for each in routes for places in each.tokens)
        assert puts.sum() == away * lines


@pytest.mark.parametrize(("ranks", "warps"), [(2, 12), (3, 8), (4, 6), (8, 3)])
def test_the_warps_of_an_sm_are_shared_out_among_ranks(ranks, warps):
    program = build_kernel("moe_dispatch", ranks, 1, algorithm="normal", moe=small(ranks, "normal"))
    assert set(program.kernel_wavefronts.tolist()) == {warps}


def test_a_token_takes_the_nodes_of_its_best_experts():
    """Nodes are ranked by their best expert, not their average: the best expert overall is always chosen."""
    grid, moe = NodeGrid(4, 1), MoeOptions(tokens=200, experts=32, top_k=2, top_nodes=1, seed=5)
    draws = np.random.default_rng((moe.seed, 0)).random((moe.tokens, moe.experts))
    best = np.log(-np.log(draws)).argmin(axis=1)
    chosen = [[d * 8 + e for d, e in places] for places in draw_routes(moe, grid, 1)[0].tokens]
    assert all(expert in experts for expert, experts in zip(best.tolist(), chosen, strict=True))


@pytest.mark.parametrize(("nodes", "locals"), [(1, 4), (2, 4), (3, 2)])
def test_distances_lead_from_rank_to_rank(nodes, locals):
    grid = NodeGrid(nodes, locals)
    for here in range(nodes * locals):
        distances = [grid.distance(here, there) for there in range(nodes * locals)]
        assert sorted(distances) == list(range(nodes * locals))
        for there, distance in enumerate(distances):
            assert grid.at(here, distance) == there
            assert grid.at(there, distance, -1) == here


def test_a_token_may_take_all_experts_of_its_nodes():
    routes = draw_routes(MoeOptions(tokens=3, hidden=256, experts=16, top_k=8, top_nodes=1), NodeGrid(2, 4), 1)
    assert routes
    assert draw_routes(MoeOptions(tokens=3, hidden=256, experts=8, top_k=8), NodeGrid(2, 4), 2)


def test_parts_of_lines_are_what_nvlink_carries_besides():
    """7408 bytes are 15 accesses: each has a header, an acknowledgement, a sector and two byte-enable flits."""
    assert part_lines(7408, 1, 128) == 9 == -(-15 * (16 + 16 + 32 + 2 * 16) // (128 + 16 + 16))
    assert [part_lines(7408, slot, 128) for slot in (0, 8, 16)] == [0, 0, 0]
    assert part_lines(14336, 5, 128) == 0


def test_draws_are_of_different_experts_by_their_shares():
    grid = NodeGrid(4, 2)
    moe = MoeOptions(tokens=2000, experts=64, top_k=4, expert_imbalance="zipf:1", top_nodes=2)
    for rank, routes in enumerate(draw_routes(moe, grid, 2)):
        tokens = [[grid.at(rank, d) * 8 + e for d, e in places] for places in routes.tokens]
        assert all(len(set(experts)) == 4 for experts in tokens)
        assert all(len({expert // 16 for expert in experts}) <= 2 for experts in tokens)
        counts = np.bincount(np.ravel(tokens), minlength=64)
        assert counts[0] > 1.5 * counts[3] > 3 * counts[40]
    even = draw_routes(MoeOptions(tokens=2000, experts=64, top_k=4), grid, 4)
    counts = np.bincount(np.ravel([[d * 8 + e for d, e in places] for places in even[0].tokens]), minlength=64)
    assert abs(counts - 125).max() < 6 * 125**0.5


def test_rotated_draws_fold_exactly_and_others_say_why_not():
    cluster = load_cluster("hgx-h800", gpus=4)
    model = gpu_model_of(cluster, cluster.gpus)
    for op in MOE:
        for algorithm in ("low-latency", "normal"):
            moe = small(4, algorithm, draws="rotated", hidden=1024)
            program = build_kernel(op, 4, 1, algorithm=algorithm, moe=moe)
            done = run_gpus(program, cluster, cluster.gpus, model, options=GpuRunOptions(verify=True))
            assert (done.fold.classes, done.fold.verified) == (1, True)
    program = build_kernel("moe_dispatch", 4, 1, algorithm="low-latency", moe=small(4, "low-latency"))
    assert "rank 1 has" in run_gpus(program, cluster, cluster.gpus, model).fold.why_unfolded


@pytest.mark.parametrize(
    ("algorithm", "nodes", "how", "field"),
    [
        ("low-latency", 1, {"experts": 6}, "experts"),
        ("low-latency", 1, {"top_nodes": 1}, "top_nodes"),
        ("low-latency", 2, {"top_nodes": 3}, "top_nodes"),
        ("low-latency", 4, {"top_nodes": 1, "top_k": 4}, "top_k"),
    ],
)
def test_what_cannot_be_is_refused(algorithm, nodes, how, field):
    moe = small(4, algorithm, **how)
    with pytest.raises(InputError) as error:
        build_kernel("moe_dispatch", 4, 1, algorithm=algorithm, num_nodes=nodes, moe=moe)
    assert error.value.field == field


def test_normal_kernels_are_for_so_many_ranks():
    for ranks, nodes in ((9, 1), (18, 2), (18, 9)):
        with pytest.raises(InputError, match=r"at most 8.*take 'low-latency'"):
            build_kernel("moe_combine", ranks, 1, algorithm="normal", num_nodes=nodes, moe=small(ranks, "normal"))


@pytest.mark.parametrize(
    "how",
    [{"tokens": 0}, {"hidden": 100}, {"top_k": 300}, {"sms": 3}, {"draws": "randm"}, {"dispatch_type": "fp4"},
     {"expert_imbalance": "zipf:0"}, {"expert_imbalance": "zipf:1", "draws": "rotated"}, {"expert_shares": (1.0,)},
     {"expert_shares": (0.0,) * 256}],
)  # fmt: skip
def test_options_that_cannot_be_are_refused_by_name(how):
    with pytest.raises(InputError) as error:
        MoeOptions(**how)
    assert error.value.field in how
