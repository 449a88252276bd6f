"""Is the load-store level close to published times of communication kernels? Presets have sources, without any fit.

All series, including misses: ``trine validate loadstore``, docs/background/gpu-models.md.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from gpu_cases import counting_words

from trine.cluster import load_cluster
from trine.errors import InputError
from trine.gpu.cases.published import PROGRAMS, round_times_ps
from trine.gpu.kernels import published as gpu_kernels
from trine.gpu.kernels.published import (
    COPIES,
    copy_kernel,
    nvls_between_meetings,
    nvls_packets,
    oneshot_copied,
    oneshot_packets,
    reads_between_meetings,
    reads_in_two_stages,
    twoshot_between_meetings,
    twoshot_copied,
    twoshot_packets,
    twoshot_zero_copy,
)
from trine.gpu.model.files import load_gpu_model
from trine.gpu.program import DELAY
from trine.gpu.proofs import check_program
from trine.gpu.run import run_gpus
from validation.gpu import measured as gpu_measured
from validation.gpu.measured import (
    EXPERT_PROGRAMS,
    ONE_AND_TWO_SHOT,
    STANDS,
    TARGET,
    chosen,
    compare,
    median_error,
    read_fine_grained,
    small_all_reduces,
)
from validation.gpu.nccl_primitives import PRIMITIVE_PROGRAMS

#: DeepEP's rows that take seconds to simulate -> allowed errors. With few tokens on 8 GPUs both are about 20 us too
#: fast (target 25 %).
EXPERTS = {
    ("deepep-low-latency-8gpu", "dispatch"): (-0.25, 0.25),
    ("deepep-low-latency-8gpu", "combine"): (-0.25, 0.25),
    ("deepep-normal-8gpu", "dispatch"): (-0.17, 0.25),  # a bandwidth within 20 %
    ("deepep-normal-8gpu", "combine"): (-0.17, 0.25),
}
KERNELS = {
    "one-shot packets": oneshot_packets,
    "NVLS packets": nvls_packets,
    "two-shot packets": twoshot_packets,
    "two-shot between meetings": twoshot_between_meetings,
    "two-shot zero copy": twoshot_zero_copy,
}


def test_small_all_reduce_of_mscclpp_on_eight_h100():
    compared = compare(chosen(["mscclpp-dsl-h100"]))
    assert [each.point.size_bytes for each in compared] == [1 << power for power in range(10, 21)]
    assert median_error(compared) <= TARGET
    assert max(abs(each.error) for each in compared) <= 0.15  # 12 %, at 1 MiB
    times = [each.time_ps for each in compared]
    # Polls a little too early or too late make up 0.3 % between 16 and 32 KiB.
    assert all(larger >= 0.99 * smaller for smaller, larger in pairwise(times))


def test_the_plan_of_mscclpp_with_nvls_on_eight_h100():
    """The time per byte is right up to 256 KiB; the kernel's fixed part is 0.2 to 0.4 us too long."""
    check_program(counting_words(nvls_between_meetings(5_000, 4)), "all_reduce", 5_000)
    compared = compare([each for each in chosen(["mscclpp-dsl-h100"]) if each.size_bytes <= 256 << 10])
    longer = [each.time_ps - each.point.time_ps for each in compared]
    assert min(longer) >= 0
    assert max(longer) <= 400_000
    assert max(longer) - min(longer) <= 200_000


def test_a_plan_whose_code_is_fetched_takes_seven_fetches_longer():
    # Four before the first signal, two before its wait, one before the sum; the second meeting finds its code.
    plain, meeting = gpu_kernels._EXECUTOR, gpu_kernels._EXECUTOR_FETCHED
    assert meeting[0] - plain[0] == 4 * gpu_kernels.FETCH_CYCLES
    delays = [
        int(amount)
        for kind, amount in zip(*(lambda p: (p.op_kind, p.op_amount))(twoshot_between_meetings(4096, 2)), strict=True)
        if kind == DELAY
    ]
    assert delays.count(meeting[0]) == delays.count(plain[0]) > 0


def test_the_best_of_mscclpps_kernels_of_one_and_two_steps_on_eight_h100():
    points = chosen(["mscclpp-dsl-h100"])
    small = compare([each for each in points if each.size_bytes <= 32 << 10], ONE_AND_TWO_SHOT)
    large = compare([each for each in points if each.size_bytes > 32 << 10], ONE_AND_TWO_SHOT)
    # One step, which was not measured, is faster up to 32 KiB; beyond, it moves four times as much as two.
    assert {each.program for each in small} == {"one-shot packets"}
    assert median_error([*small, *large]) <= TARGET  # 23 %
    assert max(abs(each.error) for each in small) <= 0.38  # 37 %
    assert max(abs(each.error) for each in large) <= 0.18
    assert large[-1].program == "two-shot between meetings"


@pytest.mark.parametrize(
    ("series", "most"), [("tutorial-get", 0.12), ("tutorial-packets", 0.10), ("tutorial-put", 0.10)]
)
def test_two_gpus_put_get_and_send_packets(series, most):
    compared = compare(chosen([series], 1 << 20))
    assert len(compared) == 2
    assert all(abs(each.error) <= most for each in compared)


@pytest.mark.parametrize("series", ["mscclpp-kernel6-a100", "mscclpp-kernel6-h100"])
def test_packets_in_two_steps_on_eight_a100_and_h100(series):
    compared = compare(chosen([series]))
    assert len(compared) == 3
    assert all(abs(each.error) <= 0.20 for each in compared)


@pytest.mark.slow
def test_all_small_all_reduces_on_h100_and_h200():
    """Issue 15 asks for a median of 15 %, a 90th percentile of 30 %, a bias within 5 %."""
    points = [each for each in chosen(largest_bytes=1 << 20) if "H100" in each.machine or "H200" in each.machine]
    compared = compare(points)
    for traced, rows in ((True, 48), (False, 38)):
        spread = small_all_reduces(compared, traced=traced)
        assert spread.count == rows
        assert spread.median <= 0.10  # 6.6, 7.0 %
        assert spread.p90 <= 0.25  # 19.6, 20.6 %
        assert -0.05 <= spread.bias <= 0.05  # -4.6, -4.0 %


def test_what_sglangs_benchmark_adds_is_read_off_nccls_rows():
    """It judges MSCCL++'s rows: up to 32 KiB, one step of multicast packets explains them within 5 %."""
    assert STANDS["sglang-mscclpp-h200"].start_ps == pytest.approx(1.955e6)
    compared = compare([each for each in chosen(["sglang-mscclpp-h200"]) if each.size_bytes <= 32 << 10])
    assert {each.program for each in compared} == {"NVLS packets, 8 blocks"}
    assert max(abs(each.error) for each in compared) <= 0.05  # 3 %, at 32 KiB


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(("ranks", "blocks", "threads"), [(2, 2, 256), (4, 6, 128), (8, 7, 64)])
def test_the_kernels_reduce_without_races(name, ranks, blocks, threads):
    program = KERNELS[name](5_000, ranks, blocks=blocks, threads=threads)
    check_program(counting_words(program), "all_reduce", 5_000)


@pytest.mark.parametrize("kernel", [oneshot_copied, twoshot_copied, reads_between_meetings, reads_in_two_stages])
@pytest.mark.parametrize(("ranks", "size"), [(2, 5_000), (4, 5_000), (4, 70_000)])
def test_tensorrt_llms_and_vllms_kernels_reduce_without_races(kernel, ranks, size):
    check_program(counting_words(kernel(size, ranks)), "all_reduce", size)


@pytest.mark.parametrize("kind", COPIES)
def test_the_copies_move_without_races(kind):
    check_program(counting_words(copy_kernel(kind, 10_000, blocks=4, threads=128)))


def test_rounds_follow_each_other_on_every_gpu():
    cluster, model = load_cluster("dgx-h100"), load_gpu_model("h100-sxm")
    program = twoshot_between_meetings(4096, 4)
    rounds = round_times_ps(program, cluster, range(4), model, 3)
    assert rounds[0] == run_gpus(program, cluster, range(4), model).end_ps
    assert rounds[1] == pytest.approx(rounds[2], rel=1e-3)  # but for the half of the L2 that a block is in
    assert rounds[1] < rounds[0]  # the L2 is warm from the second on
    assert rounds[1] > model.launch_ps


def test_every_measured_row_says_what_stands_for_it():
    points, unread = read_fine_grained()
    assert not unread
    assert {point.series for point in points} == set(STANDS)
    assert all(point.source and point.time_ps > 0 for point in points)
    known = {*PROGRAMS, *EXPERT_PROGRAMS, *PRIMITIVE_PROGRAMS}
    assert {name for stand in STANDS.values() for name in stand.programs} <= known
    assert [name for name, stand in STANDS.items() if stand.judged] == ["mscclpp-dsl-h100", "npkit-ll", "npkit-simple"]


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(InputError, match="tutorial-put"):
        chosen(["tutorial-pu"])
    with pytest.raises(InputError, match="packets"):
        copy_kernel("packet", 1024)
    with pytest.raises(InputError, match="multiple of the 7 peers"):
        twoshot_packets(1024, 8, blocks=20)


def test_many_tokens_across_nodes_lie_on_the_line_through_two_runs(monkeypatch):
    asked = []

    def straight(op, algorithm, cluster, gpus, moe):
        asked.append((gpus, moe.tokens, moe.draws))
        return 50_000_000 + 266_000 * moe.tokens

    monkeypatch.setattr(gpu_measured, "_time_ps", straight)
    for gpus in (16, 32):
        assert (
            gpu_measured.expert_time_ps.__wrapped__("normal combine", "hgx-h800", gpus) == 50_000_000 + 266_000 * 4096
        )
    assert asked == [(16, 512, "random"), (16, 1024, "random"), (32, 256, "random"), (32, 512, "random")]


@pytest.mark.slow
@pytest.mark.parametrize(("series", "op"), EXPERTS)
def test_experts_take_what_deepep_measured(series, op):
    (point,) = (each for each in chosen([series]) if each.kernel.endswith(op))
    (compared,) = compare([point])
    least, most = EXPERTS[series, op]
    assert least < compared.error < most
