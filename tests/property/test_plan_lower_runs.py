"""Do lowered plans end with the right data, in any order, and with all semaphores as they began?"""

from __future__ import annotations

from pathlib import Path

import pytest
from lowered import prove
from plan_lower_cases import DATA, LOWERED, ROUND_BYTES, bundled, pipeline_plan, smallest

from trine.gpu.kernels.lower import msccl
from trine.gpu.kernels.lower.plan import lower_plan
from trine.gpu.plans import check_plan, load_plan

SIZES = (1, 3, 129)


@pytest.mark.parametrize("name", LOWERED)
def test_bundled_plans_give_every_rank_its_result(name: str) -> None:
    plan = bundled(name)
    for seed, times in enumerate(SIZES):
        prove(plan, smallest(plan) * times, seed)


@pytest.mark.parametrize("line_bytes", [32, 256])
@pytest.mark.parametrize("name", ["allreduce_a100_ring_4_1_1.xml", "v1_v0.6.0_allreduce_packet_2gpu_LL.json"])
def test_lines_of_other_sizes(name: str, line_bytes: int) -> None:
    plan = bundled(name)
    prove(plan, smallest(plan) * 100, line_bytes=line_bytes)


@pytest.mark.parametrize("rounds_ahead", [1, 3])
@pytest.mark.parametrize("size_bytes", [32, 2 * ROUND_BYTES, 13 * ROUND_BYTES + 64])
def test_pipelines_are_unrolled(tmp_path: Path, size_bytes: int, rounds_ahead: int) -> None:
    plan = pipeline_plan(tmp_path / "rounds.json", rounds_ahead)
    assert check_plan(plan).complete
    for seed in range(3):
        prove(plan, size_bytes, seed)


@pytest.mark.parametrize(("protocol", "buffer_bytes"), [("Simple", 64), ("LL", 512), ("LL128", 512)])
def test_messages_in_pieces_through_slots_that_are_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str, buffer_bytes: int
) -> None:
    """A ring of 100 KiB chunks: four or more pieces of each, in every order that the credits allow."""
    monkeypatch.setitem(msccl.BUFFER_BYTES, protocol, buffer_bytes * 2**10)
    path = tmp_path / "ring.xml"
    text = (DATA / "allreduce_a100_ring_4_1_1.xml").read_text()
    path.write_text(text.replace('proto="LL128"', f'proto="{protocol}"'))
    plan = load_plan(path)
    pieces = lower_plan(plan, 4 * 100 * 1024).num_ops // lower_plan(plan, 4).num_ops
    assert pieces >= (4 if protocol != "LL128" else 1)
    prove(plan, 4 * 100 * 1024)
