import numpy as np

from trine.results.intervals import first_at, gaps, lengths, merge


def ints(*values):
    return np.array(values, np.int64)


def rows(intervals):
    return list(zip(*(column.tolist() for column in intervals), strict=True))


def test_overlapping_and_touching_intervals_merge_within_their_group_only():
    merged = merge(ints(1, 0, 1, 0, 1), ints(5, 0, 0, 10, 20), ints(9, 10, 6, 12, 30))
    assert rows(merged) == [(0, 0, 12), (1, 0, 9), (1, 20, 30)]
    assert lengths(merged, 3).tolist() == [12, 19, 0]


def test_empty_intervals_vanish():
    assert rows(merge(ints(0, 0), ints(5, 7), ints(5, 7))) == []


def test_times_that_leave_no_room_for_the_group_are_still_exact():
    late = 2**61
    merged = merge(ints(3, 3, 2), ints(late, late + 5, 1), ints(late + 5, late + 9, late))
    assert rows(merged) == [(2, 1, late), (3, late, late + 9)]


def test_gaps_are_what_is_left_of_the_window_also_of_groups_without_intervals():
    merged = merge(ints(1, 1), ints(10, 40), ints(20, 100))
    assert rows(gaps(merged, 3, 0, 100)) == [(0, 0, 100), (1, 0, 10), (1, 20, 40), (2, 0, 100)]


def test_the_lowest_item_that_starts_where_an_interval_ends_is_found():
    merged = merge(ints(0, 1, 1), ints(0, 0, 20), ints(10, 10, 30))
    found = first_at(merged, ints(1, 1, 0, 1), ints(10, 10, 30, 9), ints(4, 5, 6, 7))
    assert found.tolist() == [-1, 4, -1]
