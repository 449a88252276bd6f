"""Metrics of GPUs, from records made by hand (tests/gpu_results.py)."""

from dataclasses import fields, replace

import numpy as np
import pytest
from gpu_results import US, cluster, model, program, records, replayed, result
from hypothesis import given
from hypothesis import strategies as st

from trine.errors import InputError
from trine.gpu.records import OF_GPU, OF_LANE, OF_OPERATION, OF_WORKGROUP, GpuRecords
from trine.gpu.results import run
from trine.gpu.results.run import peers


def test_every_column_of_records_is_compared():
    columns = {each.name for each in fields(GpuRecords) if each.type.startswith(("Int", "Count"))}
    assert columns == {"ranks", "gpu_of", *OF_GPU, *OF_WORKGROUP, *OF_OPERATION, *OF_LANE}


def test_time_and_bandwidths_are_those_of_nccl_tests():
    found = result()
    assert (found.time_ps, found.time_s) == (10 * US, 1e-5)
    assert found.algbw_bytes_per_s == pytest.approx(4096 / 1e-5)
    assert found.busbw_bytes_per_s == pytest.approx(2048 / 1e-5)
    assert result(bus_factor=None).busbw_bytes_per_s is None
    assert result(program=program(payload_bytes=0)).algbw_bytes_per_s is None
    assert result(finished=False).algbw_bytes_per_s is None


def test_one_gpu_is_the_mean_of_its_records():
    use = result().rank(1)
    assert (use.rank, use.stands_for, use.start_ps, use.end_ps, use.workgroups) == (1, 1, 2 * US, 10 * US, 2)
    assert (use.occupied_cus, use.occupied_ps) == (2, 16 * US)
    assert use.mean_load_latency_ps == 2 * US
    assert use.l2_hit_rate is None
    rate = use.loads / (use.end_ps - use.start_ps)
    assert use.mean_loads_under_way == pytest.approx(rate * use.mean_load_latency_ps)


def test_every_rank_of_a_folded_run_is_the_one_that_stands_for_it():
    found = result(ranks=(1,))
    assert found.rank(0) == found.rank(1)
    assert found.rank(0).stands_for == 2
    assert found.rank(0).rank == 1
    for rank in (2, -1, True, "0"):
        with pytest.raises(InputError, match="ranks are 0 to 1"):
            found.rank(rank)


def test_reads_of_flags_are_counted_apart():
    changes = {name: np.full(2, i) for i, name in enumerate(("wakeups", "spurious_wakeups", "monitor_full"), 3)}
    use = result(records_changes={"flagged_loads": np.array([5, 0]), "acquires": np.array([7, 2]), **changes}).rank(0)
    assert (use.flag_reads, use.non_flag_reads) == (7 + 5, 32 - 5)
    assert (use.wakeups, use.spurious_wakeups, use.monitor_full) == (3, 4, 5)


def test_replayed_ranks_have_no_inside():
    found = replayed()
    assert (found.num_replayed, found.left_out) == (1, "1 peer replayed")
    assert found.rank(1).stands_for == 1
    with pytest.raises(InputError, match="rank 0 was replayed, not simulated; rank 1 was"):
        found.rank(0)
    assert (result().num_replayed, result().left_out) == (0, "")
    assert result(ranks=(0,)).num_replayed == 0


def test_records_of_something_else_are_refused():
    with pytest.raises(InputError, match="'toy get': 2 workgroups, not 4"):
        result(records=replace(records(model(), (0,)), ranks=np.array([0, 1], np.int32)))
    with pytest.raises(InputError, match="needs a device a rank: 2, got 3"):
        result(group=(0, 1, 0))
    with pytest.raises(InputError, match="GPUs of 8 CUs, 'toy' has 9"):
        result(model=model(num_cus=9))


def test_only_the_simulated_workgroups_are_shown():
    shown = result(ranks=(1,)).shown
    assert shown.workgroup.tolist() == [2, 3]
    assert shown.workgroup_kernel.tolist() == [1, 1]
    assert shown.workgroup_gpu.tolist() == [0, 0]
    assert shown.op.tolist() == list(range(8, 16))
    assert shown.op_row.tolist() == [0] * 4 + [1] * 4


def test_the_peer_of_an_operation_is_the_first_other_rank():
    ops = np.arange(16)
    assert peers(program(), ops, np.repeat([0, 1], 8)).tolist() == [1, 0, 0, 0] * 2 + [0, 1, 1, 1] * 2


def test_workgroups_beside_each_other_occupy_a_cu_once():
    changes = {
        "workgroup_cu": np.array([3, 3, 0, 1], np.int32),
        "workgroup_start_ps": np.array([2 * US, 4 * US, 2 * US, 6 * US]),
        "workgroup_end_ps": np.array([6 * US, 9 * US, 3 * US, 10 * US]),
    }
    found = result(records_changes=changes)
    assert run.occupied(found)[:, [0, 1, 3]].tolist() == [[0, 0, 7 * US], [US, 4 * US, 0]]
    assert run.workgroups_of_cus(found)[:, 3].tolist() == [2, 0]


def test_of_a_stopped_run_what_had_begun_ends_where_it_was_stopped():
    changes = {
        "workgroup_start_ps": np.array([2 * US, -1, 2 * US, 2 * US]),
        "workgroup_end_ps": np.array([-1, -1, 5 * US, -1]),
        "op_end_ps": np.full(16, -1),
        "end_ps": 8 * US,
    }
    found = result(records_changes=changes, finished=False)
    assert found.window_ps == (2 * US, 8 * US)
    assert [gpu.workgroups for gpu in found.gpus] == [1, 2]
    assert [gpu.occupied_ps for gpu in found.gpus] == [6 * US, 9 * US]
    assert found.operations[0].longest_ps == 6 * US
    for text in (found.summary(), found.details()):
        assert "PARTIAL: stopped; 1 of 4 workgroups had ended" in text


def test_a_run_without_workgroups():
    never = {name: np.full(4, -1) for name in ("workgroup_start_ps", "workgroup_end_ps")}
    never |= {name: np.full(16, -1) for name in ("op_start_ps", "op_end_ps")}
    never["state_ps"] = np.zeros((2, 8, 5), np.int64)
    found = result(records_changes=never)
    assert found.window_ps == (0, 0)
    assert found.operations == ()
    assert found.bottleneck.what == "nothing ran"
    assert found.document()["gpus"][0]["start_s"] is None
    assert "wavefronts" not in found.summary()
    assert "wavefronts" not in found.details()


def test_operations_by_kind_and_label():
    uses = result().operations
    assert [(use.kind, use.label, use.count, use.amount, use.time_ps) for use in uses] == [
        ("copy", "from the peer", 4, 64, 20 * US),
        ("acquire", "peer done", 4, 4, 8 * US),
        ("barrier", "", 4, 0, 8 * US),
        ("waitcnt", "", 4, 0, 0),
    ]


def test_room_is_the_limit_of_the_cu_or_that_of_its_wavefronts():
    assert run.places(result()) == 8.0  # 2 wavefronts with 4 each
    assert run.places(result(model(max_outstanding=6))) == 6.0
    unrolled = replace(program(), op_unroll=np.full(16, 16, np.int32))
    assert run.places(result(program=unrolled)) == 32.0


def test_wavefront_times():
    assert run.state_times(result()) == {
        "compute": 4 * US, "issue": 4 * US, "memory": 40 * US, "semaphore": 12 * US, "barrier": 4 * US,
    }  # fmt: skip


@given(st.lists(st.integers(0, 10**15), min_size=1, max_size=6), st.sampled_from([1000, 10**6]))
def test_shares_sum_exactly_and_are_rounded_by_less_than_one(times, whole):
    parts = run.parts_of(times, whole)
    total = sum(times)
    assert sum(parts) == (whole if total else 0)
    assert all(abs(part * total - time * whole) < total for part, time in zip(parts, times, strict=True) if total)


def test_percentages_sum_to_100():
    assert run.percentages([1, 1, 1]) == ["33.4 %", "33.3 %", "33.3 %"]


def test_devices_may_be_in_any_order():
    assert result(group=(1, 0)).cluster.name == cluster().name
