"""Do the reports of measured runs show the answer, and both timelines?"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from run_traces import dump, entry, two_ranks, write

from trine.report.blocks import TimelineBlock
from trine.report.documents import page_of
from trine.report.html import write_page
from trine.results.report import envelope
from trine.runs.comparison import MeasuredComparison, compare_measured
from trine.runs.folder import check_folder
from trine.runs.hang_result import HangCheck
from trine.runs.result import RunCheck


def page(answer: RunCheck | HangCheck | MeasuredComparison):
    document = envelope(answer.document(), answer.SCHEMA, "check")
    return page_of(document, command="trine check traces")


def checked(folder: Path) -> RunCheck:
    answer = check_folder(write(folder, two_ranks()))
    assert isinstance(answer, RunCheck)
    return answer


def test_a_wait_points_to_the_kernel_of_the_late_rank(tmp_path: Path) -> None:
    answer = checked(tmp_path)
    block = answer.run_blocks().timeline
    assert isinstance(block, TimelineBlock)
    assert [group.name for group in block.groups] == ["rank 1", "rank 0"]  # the rank at fault comes first
    for group in block.groups:
        for track in group.tracks:
            assert re.fullmatch(r"(stream \d+|group \w+)( \([2-9]\))?", track.name), track.name
    waits = [number for number, name in enumerate(block.name) if block.names[name] == "wait in all_reduce"]
    assert len(waits) == 3  # of rank 0, for rank 1's kernel of 140 us
    for wait in waits:
        cause = int(block.cause[wait])
        assert block.names[block.name[cause]] == "gemm"
        assert block.duration[cause] == 140_000
        assert block.duration[wait] == 40_000
        assert block.start[wait] + block.duration[wait] == block.start[cause] + block.duration[cause]
    assert int((block.start + block.duration).max()) <= block.length


def test_tracks_cover_all_spans_without_overlap(tmp_path: Path) -> None:
    block = checked(tmp_path).run_blocks().timeline
    assert isinstance(block, TimelineBlock)
    tracks = [track for group in block.groups for track in group.tracks]
    assert sum(track.count for track in tracks) == len(block.start)
    for track in tracks:
        start = block.start[track.first : track.first + track.count].astype(np.int64)
        end = start + block.duration[track.first : track.first + track.count]
        assert (start[1:] >= end[:-1]).all()


def test_pages_say_the_verdict(tmp_path: Path) -> None:
    answer = checked(tmp_path / "traces")
    found = page(answer)
    assert "Straggler: rank 1" in found.answer
    assert [fact.value for fact in found.facts[1:3]] == ["straggler", "1"]
    hang = check_folder(write(tmp_path / "dumps", [dump([entry(1, "started")])] * 3))
    assert isinstance(hang, HangCheck)
    assert "Rank 3 left no dump" in page(hang).answer


def test_a_comparison_has_both_timelines(tmp_path: Path) -> None:
    usual, slow = write(tmp_path / "usual", two_ranks(late_us=0)), write(tmp_path / "slow", two_ranks())
    answer = compare_measured(usual, slow)
    block = answer.run_blocks().timeline
    assert isinstance(block, TimelineBlock)
    assert [group.name for group in block.groups] == ["A: rank 1", "B: rank 1", "A: rank 0", "B: rank 0"]
    assert page(answer).answer.startswith("Slow is 120 µs")


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    contents = two_ranks()
    for content in contents:
        for event in content["traceEvents"]:
            if event["name"] == "gemm":
                event["name"] = "</script><script>alert(1)</script>\u202e\x07" + "x" * 10_000
    answer = check_folder(write(tmp_path / "traces", contents))
    assert isinstance(answer, RunCheck)
    document = envelope(answer.document(), answer.SCHEMA, "check")
    write_page(page_of(document, run=answer.run_blocks()), tmp_path / "page.html")
    assert "<script>alert" not in (tmp_path / "page.html").read_text(encoding="utf-8")
