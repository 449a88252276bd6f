"""Does the checker of GPU programs find lowered plans free of races, and right in any order?"""

from __future__ import annotations

from pathlib import Path

import pytest
from plan_lower_cases import LOWERED, ROUND_BYTES, bundled, pipeline_plan, smallest

from trine.errors import InputError
from trine.gpu.kernels.lower.plan import lower_plan, padded_bytes
from trine.gpu.proofs import check_program

#: half of each packet is empty, which the checker reports as an error if packets are copied whole
WHOLE_PACKETS = "v2_HEAD_allreduce_2node_8gpu_LL_default_algo.json"
#: one thread block overwrites data that another has read, ordered only by the data that went around
ORDERED_BY_DATA = "v2_HEAD_allreduce_packet_repo_testfile.json"
#: ranks may end before others have written the last of their result: the file has no wait behind those writes
ENDS_EARLY = "v1_v0.6.0_allreduce_nvls_8gpu.json"


@pytest.mark.parametrize("name", [name for name in LOWERED if name not in (WHOLE_PACKETS, ORDERED_BY_DATA)])
def test_bundled_plans_are_proven(name: str) -> None:
    plan = bundled(name)
    for size in (smallest(plan), 5 * smallest(plan), 16 * 1024):
        program = lower_plan(plan, size, wavefronts=3)
        check = check_program(
            program, plan.collective, padded_bytes(plan, size), orders=2, open_ends=name == ENDS_EARLY
        )
        assert bool(check.open_ends) == (name == ENDS_EARLY)


@pytest.mark.parametrize("size_bytes", [32, 13 * ROUND_BYTES + 64])
def test_pipelines_are_proven(tmp_path: Path, size_bytes: int) -> None:
    plan = pipeline_plan(tmp_path / "rounds.json")
    check_program(lower_plan(plan, size_bytes), plan.collective, padded_bytes(plan, size_bytes))


def test_packets_that_are_copied_whole_have_no_race() -> None:
    for size in (1024, 5 * 1024):
        check_program(lower_plan(bundled(WHOLE_PACKETS), size, wavefronts=3), orders=1)


def test_order_by_data_alone_is_beyond_the_checker() -> None:
    with pytest.raises(InputError, match=r"but rank 0 workgroup 0 .* may not have read it yet"):
        check_program(lower_plan(bundled(ORDERED_BY_DATA), 64, wavefronts=3))
