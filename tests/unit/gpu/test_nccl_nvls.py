"""NCCL's NVLS kernels as GPU programs: do they reduce, stay in their staging buffers, and take as long as NCCL?"""

from __future__ import annotations

import numpy as np
import pytest
from gpu_cases import counting_words

from trine.collectives.options import CollectiveOptions
from trine.errors import InputError
from trine.gpu.collective import compare_fidelity
from trine.gpu.collective.options import LoadStoreOptions
from trine.gpu.kernels import nccl_nvls
from trine.gpu.kernels.build import build_kernel
from trine.gpu.kernels.nccl_nvls import CHANNELS, STEPS, chunk_bytes
from trine.gpu.kernels.options import FETCH_CYCLES
from trine.gpu.program import ACQUIRE, DELAY, FENCE, READ_SUM, WRITE_ALL
from trine.gpu.proofs import check_program

OPS = ("all_reduce", "all_gather", "reduce_scatter")


def built(op, ranks=4, size=5_000, workgroups=2, wavefronts=2):
    return build_kernel(
        op, ranks, size, algorithm="nvls", workgroups=workgroups, wavefronts=wavefronts, bookkeeping=True
    )


@pytest.fixture
def small_chunks(monkeypatch):
    """Use chunks of one line, so that a few KiB take more steps than a staging buffer holds."""
    monkeypatch.setattr(nccl_nvls, "_CHUNKS", ((128, 0),))
    # The checker would report that no operation writes the others' steps, which remain from the previous kernel.
    monkeypatch.setattr(nccl_nvls._Kernel, "_step", lambda self, group, name: self._load_word(group, "step"))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(("ranks", "size", "workgroups"), [(2, 5_000, 2), (4, 20_000, 1), (3, 100, 3)])
def test_they_reduce_and_gather_without_races(op, ranks, size, workgroups, small_chunks):
    program = built(op, ranks, size, workgroups)
    if size == 20_000:
        waits = (program.op_kind == ACQUIRE).sum() / ranks
        assert waits > 4 * STEPS  # also for credits
    check_program(counting_words(program), op, size)


@pytest.mark.parametrize(
    ("size", "chunk"),
    [(1 << 10, 16), ((8 << 20) - 1, 16), (8 << 20, 32), (64 << 20, 64), ((1 << 30) - 1, 64), (1 << 30, 128)],
)
def test_chunks_of_eight_ranks(size, chunk):
    """calcCollChunking: chunks grow at 2, 8 and 64 times one chunk on each of 16 channels of 8 ranks."""
    assert chunk_bytes(size, CHANNELS, 8) == chunk << 10


@pytest.mark.parametrize(("op", "summed", "multicast"), [("all_reduce", 1, 1), ("all_gather", 0, 1)])
def test_each_line_goes_through_the_switch_once(op, summed, multicast):
    program = built(op, 4, 4 * 2 * 128 * 3)
    of_op = np.repeat(np.arange(program.num_ops), np.diff(program.operand_ptr))
    for role, times in ((READ_SUM, summed), (WRITE_ALL, multicast)):
        labels = program.op_label[of_op[program.operand_role == role]]
        copies = labels == program.labels.index("copy")
        lines = program.op_amount[of_op[program.operand_role == role]][copies].sum()
        assert lines == times * 4 * 2 * 3


@pytest.mark.parametrize("steps", [1, 4])
def test_code_is_fetched_the_first_time_only(steps, small_chunks):
    """The copies' code for each of 3 ranks by scatter and by gather, and reduce's code, for any number of steps."""
    program = built("all_reduce", 3, 3 * 128 * steps, 1, 1)
    costs = (nccl_nvls._SCATTERED, nccl_nvls._GATHERED, nccl_nvls._REDUCED)
    for cost, copies in zip(costs, (3, 3, 1), strict=True):
        amounts = program.op_amount[program.op_kind == DELAY]
        assert (amounts == cost.small[0] + FETCH_CYCLES).sum() == 3 * copies
        assert (amounts == cost.small[0]).sum() == 3 * copies * (steps - 1)


def test_what_is_stored_is_fenced_before_it_is_signalled():
    program = built("all_reduce")
    assert (program.op_kind == FENCE).sum() == 4 * 2 * 2  # scatter and reduce, each step, channel and rank


def test_how_ranks_wait_is_refused():
    with pytest.raises(InputError, match="waits as it needs to"):
        build_kernel("all_reduce", 4, 4096, algorithm="nvls", bookkeeping=True, sync="both")


@pytest.mark.parametrize("size", [64 << 10, 1 << 20])
def test_both_levels_agree_within_the_band(size):
    """Issue 15, item 1; for 16 MiB and more see docs/background/gpu-kernels.md."""
    found = compare_fidelity(
        "all_reduce",
        [size],
        "dgx-h100",
        options=LoadStoreOptions(algorithm="nvls"),
        operator=CollectiveOptions(algorithm="nvls"),
    )
    (row,) = found.rows
    assert row.operator.low_ps <= row.loadstore.time_ps <= row.operator.high_ps
