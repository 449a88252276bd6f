"""First parts of a long message: ranks use equal addresses, so that one GPU stands for all, at nearly equal times."""

from __future__ import annotations

import numpy as np
import pytest

from trine.cluster.load import load_cluster
from trine.gpu.collective.options import LoadStoreOptions
from trine.gpu.collective.runs import LoadStoreRuns

CLUSTER = load_cluster("dgx-h100", gpus=8)
SIZE_BYTES = 1 << 20
#: Largest change of the time by the other addresses: other channels and halves of the L2.
MAX_CHANGE = 0.02


@pytest.mark.parametrize("algorithm", ["ring", "twoshot", "nvls"])
def test_a_part_folds_and_takes_the_time_of_the_whole(algorithm: str):
    runs = LoadStoreRuns("all_reduce", CLUSTER, None, LoadStoreOptions(algorithm=algorithm))
    name = runs.programs.names(SIZE_BYTES)[0]
    whole, part = (runs.programs.program(name, SIZE_BYTES, part_of) for part_of in (None, SIZE_BYTES))
    for column in ("op_kind", "op_amount", "operand_rank", "operand_role", "operand_semaphore"):
        assert np.array_equal(getattr(whole, column), getattr(part, column))
    times = [runs.run(program, runs.model) for program in (whole, part)]
    assert [run.fold.classes for run in times] == [8, 1]
    assert times[1].end_ps == pytest.approx(times[0].end_ps, rel=MAX_CHANGE)


def test_each_rank_begins_with_its_own_chunk():
    """In two-shot, rank r adds up chunk r of all ranks: in the memory of rank r + d that is its chunk -d."""
    runs = LoadStoreRuns("all_reduce", CLUSTER, None, LoadStoreOptions(algorithm="twoshot"))
    part = runs.programs.program("twoshot", SIZE_BYTES, 64 << 20)
    addresses = part.operand_address.reshape(8, -1)
    assert (addresses == addresses[0]).all()
    reads = part.operand_address[part.operand_ptr[:-1]][: part.num_ops // 8]
    assert len(np.unique(reads)) > 8
