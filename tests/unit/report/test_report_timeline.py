"""Does the timeline of a report show what the run did: the same times, causes and critical path, also when folded?"""

from __future__ import annotations

import numpy as np
import pytest

import trine
from trine.graph.taskgraph import COMPUTE, JOIN
from trine.report.memory import memory_over_time
from trine.report.timeline import timeline
from trine.report.traffic import BINS, traffic_over_time

MODEL = "model:llama-3-8b,layers=4,sequence=1024"


@pytest.fixture(scope="module")
def whole():
    """Return a pipeline whose ranks and micro-batches are all simulated."""
    plan = trine.Plan(dp=2, tp=2, pp=2, batch=4, micro_batch=1)
    return trine.simulate(MODEL, plan, cluster="dgx-h100", fold="off")


@pytest.fixture(scope="module")
def folded():
    """Return a pipeline with folded ranks and micro-batches."""
    plan = trine.Plan(dp=2, tp=2, pp=2, batch=24, micro_batch=1)
    return trine.simulate(MODEL, plan, cluster="dgx-h100")


def spans_of(block):
    """Return (rank, track, start, end) of each span in ps, in order."""
    found = []
    for group in block.groups:
        for track in group.tracks:
            part = slice(track.first, track.first + track.count)
            starts = block.start[part].astype(np.int64) * block.unit_ps
            ends = starts + block.duration[part].astype(np.int64) * block.unit_ps
            found += [(group.name, track.name, *pair) for pair in zip(starts.tolist(), ends.tolist(), strict=True)]
    return found


def test_compute_spans_are_the_compute_tasks(whole):
    block = timeline(whole)
    graph, records, unit = whole.graph, whole.records, block.unit_ps
    shown = {rank: f"rank {rank}" for rank in range(8)}
    streams = dict(enumerate(graph.stream_names))
    expected = sorted(
        (shown[int(graph.rank[task])], streams[int(graph.stream[task])], int(records.start_ps[task]) // unit * unit)
        for task in np.flatnonzero((graph.kind == COMPUTE) & (records.end_ps > records.start_ps)).tolist()
        if not streams[int(graph.stream[task])].startswith("cpu")
    )
    found = sorted((rank, track, start) for rank, track, start, _ in spans_of(block) if track in streams.values())
    assert found == expected


def test_spans_of_a_track_are_sorted_and_do_not_overlap(whole, folded):
    for run in (whole, folded):
        block = timeline(run)
        assert sum(track.count for group in block.groups for track in group.tracks) == len(block.start)
        for group in block.groups:
            for track in group.tracks:
                part = slice(track.first, track.first + track.count)
                start = block.start[part].astype(np.int64)
                assert (start[1:] >= start[:-1] + block.duration[part].astype(np.int64)[:-1]).all()


def test_a_cause_ends_when_its_span_becomes_ready(whole):
    """The twin: follow predecessors task by task in plain Python, through joins, to the first compute or transfer."""
    block = timeline(whole)
    graph, records = whole.graph, whole.records
    end_of_span = (block.start.astype(np.int64) + block.duration) * block.unit_ps
    compute = [
        span
        for group in block.groups
        for track in group.tracks
        if track.is_compute
        for span in range(track.first, track.first + track.count)
    ]
    released = 0
    by_start = {}
    for task in np.flatnonzero(graph.kind == COMPUTE).tolist():
        key = (int(graph.rank[task]), int(records.start_ps[task]) // block.unit_ps)
        if (
            not graph.stream_names[graph.stream[task]].startswith("cpu")
            and records.end_ps[task] > records.start_ps[task]
        ):
            by_start[key] = task
    rank_of = np.zeros(len(block.start), np.int64)
    for group in block.groups:
        for track in group.tracks:
            rank_of[track.first : track.first + track.count] = int(group.name.removeprefix("rank "))
    for span in compute:
        cause = int(block.cause[span])
        task = by_start[int(rank_of[span]), int(block.start[span])]
        if records.start_ps[task] > records.ready_ps[task] or cause < 0:
            continue
        until = [task]
        while until:
            before = until.pop()
            ready = records.ready_ps[before]
            ends = [p for p in graph.predecessors(before).tolist() if records.end_ps[p] == ready]
            if ends and graph.kind[ends[0]] == JOIN:
                until.append(ends[0])
                continue
            if ends:
                assert abs(end_of_span[cause] - int(records.end_ps[ends[0]])) <= 2 * block.unit_ps
                released += 1
    assert released > 100


def test_the_critical_path_is_marked(whole):
    block = timeline(whole)
    path = [task for task in whole.critical_path if whole.graph.kind[task] == COMPUTE]
    path = [task for task in path if whole.records.end_ps[task] > whole.records.start_ps[task]]
    marked = int(block.critical.sum())
    assert marked >= len(path) > 50


def test_folded_periods_stand_at_their_times(folded):
    block = timeline(folded)
    assert folded.repeats is not None
    (window,) = folded.repeats.windows
    (repeat,) = block.repeats
    assert repeat.count == folded.repeats.count
    assert abs((repeat.end - repeat.start) * block.unit_ps - (window.end_ps - window.start_ps)) <= 2 * block.unit_ps
    ends = max(end for _, _, _, end in spans_of(block))
    assert abs(ends - folded.step_time_ps) <= 2 * block.unit_ps
    inside = [start for *_, start, _ in spans_of(block) if start > repeat.end * block.unit_ps]
    assert min(inside) >= (repeat.end + repeat.count * (repeat.end - repeat.start) - 2) * block.unit_ps


def test_one_rank_stands_for_each_class(folded):
    block = timeline(folded)
    assert len(block.groups) == len({folded.scope.class_of(rank) for rank in range(8)})
    alike = sum(folded.scope.class_size(int(group.name.removeprefix("rank "))) for group in block.groups)
    assert alike == 8


def test_few_spans_keep_the_slowest_rank(whole):
    block = timeline(whole, max_spans=1)
    assert [group.name for group in block.groups] == [f"rank {whole.slowest_rank}"]


def test_memory_over_time_reaches_the_peak_and_starts_with_what_stays(whole):
    areas = memory_over_time(whole)
    totals = [sum(series.y[place] for series in areas.series) for place in range(len(areas.x))]
    assert max(totals) == whole.memory_peaks[whole.fullest_row].total_bytes
    assert totals[0] >= whole.memory_timeline.resident_bytes[whole.fullest_row].sum()
    assert list(areas.x) == sorted(areas.x)
    assert areas.x[-1] == pytest.approx(whole.end_time_ps / 1e12)


def test_the_heat_map_holds_the_bytes_of_the_busiest_links(whole):
    heat = traffic_over_time(whole)
    of_tier = {}
    for use in whole.links:
        of_tier[use.tier] = max(of_tier.get(use.tier, 0.0), use.utilisation)
    assert heat.values.shape == (len(heat.names), BINS)
    for name, row in zip(heat.names, heat.values, strict=True):
        if row.max() < 1:  # a full bin is cut at 1
            assert row.mean() == pytest.approx(of_tier[name], rel=0.02)
