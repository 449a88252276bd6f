"""A host that launches kernels in a loop: bounded by itself, by the GPU, and by the previous phase's backlog."""

from __future__ import annotations

from validation.gpu.host_clock import HostCall, host_times_ps


def test_a_slow_host_sees_itself():
    call = HostCall(host_ps=5_000, launches=1, gpu_ps=3_000)
    assert host_times_ps([call, call], 1_000, depth=16) == (5_000, 5_000)


def test_a_slow_gpu_is_seen_but_for_what_the_queue_holds():
    # Of 1000 calls, 100 still wait for the GPU when the host is done; the first 100 took almost no host time.
    call = HostCall(host_ps=1, launches=1, gpu_ps=1_000)
    (time,) = host_times_ps([call], 1_000, depth=100)
    assert abs(time - 900) <= 2


def test_two_launches_a_call_fill_the_queue_twice_as_fast():
    (one,) = host_times_ps([HostCall(host_ps=1, launches=1, gpu_ps=1_000)], 1_000, depth=200)
    (two,) = host_times_ps([HostCall(host_ps=1, launches=2, gpu_ps=1_000)], 1_000, depth=200)
    assert abs(one - 800) <= 2
    assert abs(two - 900) <= 2


def test_the_next_phase_pays_for_the_one_before():
    slow, quick = HostCall(host_ps=1, launches=1, gpu_ps=1_000), HostCall(host_ps=1, launches=1, gpu_ps=10)
    first, second = host_times_ps([slow, quick], 1_000, depth=100)
    assert abs(first - 900) <= 2
    # 100 calls of 1000 ps remain, then 900 of 10 ps follow: the last 100 wait.
    assert abs(second - (100 * 1_000 + 900 * 10) // 1_000) <= 2
