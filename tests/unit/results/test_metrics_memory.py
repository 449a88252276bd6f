import numpy as np
from results_graphs import full_result, memory, records

from trine.results.memory import memory_peak, memory_timeline


def test_peak_and_what_it_consists_of():
    found = full_result()
    peak = found.memory_peaks[0]
    assert (peak.time_ps, peak.total_bytes) == (40, 2000)
    assert peak.by_category == {
        "weights": 1000, "gradients": 300, "optimizer_state": 200, "buckets": 0, "activations": 500, "inputs": 0,
    }  # fmt: skip
    assert found.memory_peaks[1].total_bytes == 1050
    assert found.memory_peak_bytes == 2000
    assert [found.verdict_of_row(rank) for rank in (0, 1)] == ["does not fit", "fits"]


def test_timeline_holds_one_entry_an_instant():
    times, totals = full_result().memory_timeline.of_rank(0)
    assert times.tolist() == [0, 10, 40, 70, 90]
    assert totals.tolist() == [1200, 1700, 2000, 1500, 1600]


def test_what_a_task_frees_is_free_for_one_that_starts_when_it_ends():
    events = memory([(1, 0, 0, 70, "buckets"), (0, 0, 0, 100, "buckets"), (0, 1, 0, -100, "buckets")], [[0] * 6])
    one_after_the_other = memory_timeline(events, records((0, 0, 10), (10, 10, 20)))
    assert memory_peak(one_after_the_other, 0).total_bytes == 100
    overlapping = memory_timeline(events, records((0, 0, 10), (9, 9, 20)))
    assert memory_peak(overlapping, 0).total_bytes == 170


def test_a_task_without_duration_still_takes_its_memory():
    events = memory([(0, 1, 0, -100, "buckets"), (0, 0, 0, 100, "buckets")], [[7] + [0] * 5])
    assert memory_peak(memory_timeline(events, records((5, 5, 5))), 0)[:2] == (5, 107)


def test_without_changes_the_peak_is_what_is_held_throughout():
    timeline = memory_timeline(memory([], [[1, 2, 3, 0, 0, 0], [4, 0, 0, 0, 0, 0]]), records())
    assert [memory_peak(timeline, rank)[:2] for rank in (0, 1)] == [(0, 6), (0, 4)]
    assert np.array_equal(timeline.of_rank(1)[1], [4])


def test_a_total_that_is_only_reached_again_is_no_new_peak():
    events = memory([(0, 0, 0, -50, "weights"), (1, 0, 0, 50, "buckets")], [[100] + [0] * 5])
    peak = memory_peak(memory_timeline(events, records((0, 0, 10), (10, 10, 20))), 0)
    assert (peak.time_ps, peak.total_bytes, peak.by_category["weights"]) == (0, 100, 100)
