"""Is a thread's wait for the GPU's queue kept apart from the cost of its launches?"""

from __future__ import annotations

import json

from trine.workload.pytorch.kineto import read_kineto

LAUNCH_US, KERNEL_US, COUNT, FULL = 4, 100, 300, 200
LOADING = 10  # this launch loads a module for 60 us: long, but the queue is nearly empty


def events():
    """Yield one call per kernel; after 200 the queue is full, and each launch waits 96 us more."""
    now, gpu = 1000, 1010
    for i in range(COUNT):
        took = LAUNCH_US + (60 if i == LOADING else 96 if i >= FULL else 0)
        call = {"ph": "X", "tid": 1, "ts": now, "dur": took + 2, "cat": "cpu_op", "name": "aten::relu"}
        launch = {"ph": "X", "tid": 1, "ts": now + 1, "dur": took, "cat": "cuda_runtime", "name": "cudaLaunchKernel"}
        gpu = max(gpu, now + took)
        kernel = {"ph": "X", "tid": 7, "ts": gpu, "dur": KERNEL_US, "cat": "kernel", "name": "relu"}
        yield call
        yield launch | {"args": {"correlation": i + 1}}
        yield kernel | {"args": {"correlation": i + 1, "device": 0}}
        now, gpu = now + took + 2, gpu + KERNEL_US


def test_waits_for_room_in_the_queue(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": list(events())}))
    kineto = read_kineto(path)
    assert len(kineto.waits) == COUNT - FULL
    assert sum(length for _, length in kineto.waits) == (COUNT - FULL) * 96 * 10**6
    lengths = [kineto.awake_ps(op.end_ps) - kineto.awake_ps(op.start_ps) for op in kineto.ops]
    assert lengths == [(LAUNCH_US + 2 + 60 * (i == LOADING)) * 10**6 for i in range(COUNT)]
    starts = [kineto.awake_ps(op.start_ps) for op in kineto.ops]
    assert all(after - before == length for before, after, length in zip(starts, starts[1:], lengths, strict=False))


def test_a_clock_never_runs_backwards(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": list(events())}))
    kineto = read_kineto(path)
    times = [kineto.awake_ps(1000 * 10**6 + step * 7 * 10**6) for step in range(4000)]
    assert times == sorted(times)
    assert times[-1] - times[0] == 3999 * 7 * 10**6 - (COUNT - FULL) * 96 * 10**6


def test_the_profilers_own_record_of_waits_comes_first(tmp_path):
    """CUPTI records waits for room in the command buffer; then no launch has to be guessed, however short its wait."""
    waits = [
        {"ph": "X", "tid": 1, "ts": ts, "dur": dur, "cat": "overhead", "name": name}
        for ts, dur, name in (
            (1002, 1, "Command Buffer Full"),
            (1008.5, 2.5, "Command Buffer Full"),
            (1015, 3, "Other"),
        )
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [*events(), *waits]}))
    assert read_kineto(path).waits == [(1002 * 10**6, 10**6), (1008_500_000, 2_500_000)]


def gaps_of(tmp_path, gap_us, count=100, lead_us=50):
    """Return the file of kernels of 100 us, each ``gap_us`` after the previous one and launched ``lead_us`` earlier."""
    listed = []
    for i in range(count):
        start = 1000 + i * (KERNEL_US + gap_us)
        launch = {"ph": "X", "tid": 1, "ts": start - lead_us - LAUNCH_US, "dur": LAUNCH_US, "cat": "cuda_runtime"}
        kernel = {"ph": "X", "tid": 7, "ts": start, "dur": KERNEL_US, "cat": "kernel", "name": "relu"}
        listed.append(launch | {"name": "cudaLaunchKernel", "args": {"correlation": i}})
        listed.append(kernel | {"args": {"correlation": i, "device": 0}})
    path = tmp_path / f"{gap_us}-{count}-{lead_us}.json"
    path.write_text(json.dumps({"traceEvents": listed}))
    return read_kineto(path)


def test_the_gap_between_kernels_of_the_queue(tmp_path):
    kineto = gaps_of(tmp_path, 1.5)
    assert (kineto.kernel_gap_ps, kineto.launch_call_ps) == (1_500_000, LAUNCH_US * 10**6)


def test_gaps_that_a_launch_or_few_kernels_explain_do_not_count(tmp_path):
    assert gaps_of(tmp_path, 30, lead_us=5).kernel_gap_ps is None
    assert gaps_of(tmp_path, 1.5, count=20).kernel_gap_ps is None
