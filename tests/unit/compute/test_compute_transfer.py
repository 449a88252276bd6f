"""Are times scaled to another GPU by the limit of each operator: memory bandwidth, peak FLOP/s or fixed time?"""

from __future__ import annotations

from dataclasses import replace

import pytest
from compute_cases import BATCH, US, conv, linear, relus

from trine.cluster.presets import GpuSpec
from trine.compute import Split, make_compute
from trine.errors import InputError


def gpu(name: str, bandwidth: int, **peaks: int) -> GpuSpec:
    return GpuSpec(name=name, memory_bytes=1, memory_bytes_per_s=bandwidth, flop_per_s=peaks, num_compute_units=1)


OLD = gpu("old", 10**12, float32=10**13, tfloat32=10**14)
NEW = gpu("new", 3 * 10**12, float32=2 * 10**13, tfloat32=5 * 10**14)


def on(made, operator, source=OLD, target=NEW, split=None):  # type: ignore[no-untyped-def]
    model = make_compute("auto", made.workload(), source=source, target=target)
    return model.duration(operator, split or Split(made.batch)).ps


def test_memory_bound_operators_scale_with_bandwidth() -> None:
    made = relus([(1000, 300 * US)])
    assert on(made, made.operators[0]) == 100 * US
    assert (
        make_compute("auto", made.workload(), source=OLD, target=NEW).duration(made.operators[0], Split(BATCH)).evidence
        == "assumed"
    )


def test_products_scale_with_float32_and_convolutions_with_tf32() -> None:
    made, forward, _ = linear(4096, (4096, 4096))
    slow = replace(forward, gpu_time_ps=10**11)
    made.operators[:] = [slow]
    assert on(made, slow) == 5 * 10**10
    made, forward, _ = conv((64, 512, 32, 32), (512, 512, 3, 3), (64, 512, 30, 30))
    assert on(made, forward) == pytest.approx(forward.gpu_time_ps / 5, abs=1)


def test_products_faster_than_float32_can_be_were_tf32() -> None:
    made, forward, _ = linear(4096, (4096, 4096))  # 137 GFLOP: 13.7 ms at the float32 peak
    fast = replace(forward, gpu_time_ps=5 * 10**9)
    made.operators[:] = [fast]
    model = make_compute("auto", made.workload(), source=OLD, target=NEW)
    assert any("in TF32" in note for note in model.notes)
    assert model.duration(fast, Split(4096)).ps == pytest.approx(10**9, rel=0.01)


def test_fixed_time_does_not_scale() -> None:
    made = relus([(1000 * n, 30 * US * n + 20 * US) for n in (1, 2, 4, 8, 16, 32, 64)])
    for op in made.operators:
        assert on(made, op) == pytest.approx((op.gpu_time_ps - 20 * US) / 3 + 20 * US, rel=0.03)


def test_half_precision_uses_its_own_peak() -> None:
    made, forward, _ = linear(4096, (4096, 4096))
    for number, tensor in made.tensors.items():
        made.tensors[number] = replace(tensor, dtype="float16", size_bytes=tensor.size_bytes // 2)
    with pytest.raises(InputError, match="old has no peak for float16"):
        on(made, forward)
    old, new = replace(OLD, flop_per_s={"float16": 10**14}), replace(NEW, flop_per_s={"float16": 4 * 10**14})
    forward = replace(forward, gpu_time_ps=4 * 10**9)
    made.operators[:] = [forward]
    assert on(made, forward, old, new) == pytest.approx(10**9, rel=0.01)


def test_same_gpu_changes_nothing_and_unknown_source_is_refused() -> None:
    made = relus([(1000, 300 * US)])
    assert on(made, made.operators[0], target=OLD) == 300 * US
    with pytest.raises(InputError, match="recorded on"):
        make_compute("auto", made.workload(), target=NEW)


def test_recorded_times_can_be_moved_too() -> None:
    made = relus([(1000, 300 * US)])
    model = make_compute("recorded", made.workload(), source=OLD, target=NEW)
    assert (model.duration(made.operators[0], Split(BATCH)).ps, model.notes[0][:12]) == (100 * US, "times scaled")
