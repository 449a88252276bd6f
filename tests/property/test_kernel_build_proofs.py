"""Does every built GPU program compute its collective without races, in any order of wavefronts?"""

from __future__ import annotations

import pytest

from trine.gpu.kernels.build import DETAILED, READING, ROOTED, UNFLAGGED, build_kernel, known_kernels, known_ops
from trine.gpu.proofs import check_program

RANKS = (2, 3, 4, 5, 8)
WORKGROUPS = (1, 3, 8)
#: one line, an odd size, many lines
SIZES = (100, 2999, 16 * 1024)
BUILT = [
    (op, algorithm, protocol)
    for op in known_ops()
    if op not in (*ROOTED, *DETAILED)
    for algorithm in known_kernels(op)
    for protocol in ("simple", "ll", "ll128")
    if protocol == "simple" or f"{op}/{algorithm}" not in UNFLAGGED
]


@pytest.mark.parametrize(("op", "algorithm", "protocol"), BUILT)
def test_every_rank_ends_with_the_result(op, algorithm, protocol):
    # Every number of ranks with every number of workgroups; the sizes rotate over these pairs.
    start = BUILT.index((op, algorithm, protocol))
    for i, ranks in enumerate(RANKS):
        for j, workgroups in enumerate(WORKGROUPS):
            size = SIZES[(start + i + j) % len(SIZES)] // (1 if protocol == "simple" else 4)
            program = build_kernel(
                op,
                ranks,
                size,
                algorithm=algorithm,
                protocol=protocol,
                workgroups=workgroups,
                wavefronts=2,
                waits=("joint", "single")[(i + j) % 2],
            )
            check = check_program(program, op, size, seed=start, orders=int(ranks < 5))
            assert check.open_ends == ()
            assert check.late_reads == ()


@pytest.mark.parametrize(("op", "algorithm", "protocol"), BUILT)
def test_other_synchronisation_is_right_where_inputs_are_there(op, algorithm, protocol):
    for sync in ("none", "start", "end", "both"):
        program = build_kernel(
            op, 4, 3000, algorithm=algorithm, protocol=protocol, workgroups=3, wavefronts=3, sync=sync
        )
        check = check_program(program, op, 3000, orders=1, inputs="all" if sync in ("none", "end") else "own")
        reads = (
            f"{op}/{algorithm}" in READING | {"reduce_scatter/nvls", "reduce_scatter/hierarchical"}
            and algorithm != "twoshot"
        )
        assert bool(check.late_reads) == (reads and sync in ("none", "start"))
        assert check.open_ends == ()
