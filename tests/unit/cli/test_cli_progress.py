"""Progress on stderr: when it appears, and its estimate of the remaining time."""

from __future__ import annotations

import io

import pytest

from trine.cli.progress import ProgressLine, RowsLine


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("trine.cli.progress.time.monotonic", lambda: now[0])
    return now


def said(capsys) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_nothing_is_said_in_the_first_two_seconds(clock, capsys):
    progress = ProgressLine()
    progress.stage("first")
    clock[0] += 1
    progress(10, 100, 0)
    assert said(capsys) == []
    clock[0] += 2
    progress(50, 100, 10**9)
    assert said(capsys) == ["first", "simulated 50.0 % of 100 tasks, up to 1 ms; about 2 s left"]
    progress.stage("second")
    assert said(capsys) == ["second"]


def test_the_estimate_is_of_the_last_seconds_and_not_of_a_slow_beginning(clock, capsys):
    progress = ProgressLine("requests")
    clock[0] += 60  # compiling
    progress(1, 10_000, 0)
    assert said(capsys) == ["simulated 0.0 % of 10,000 requests, up to 0 ps"], "no speed is known yet"
    for _ in range(12):
        clock[0] += 1
        progress(2, 10_000, 5)  # 2 requests in 72 s
    said(capsys)
    for second in range(1, 21):
        clock[0] += 1
        progress(2 + 100 * second, 10_000, 5)
    assert said(capsys)[-1].endswith("18.0 % of 10,000 requests, up to 5 ps; about 82 s left"), "100 a second"


def test_a_new_run_has_an_estimate_of_its_own(clock, capsys):
    progress = ProgressLine()
    for done in (10, 50, 90):
        clock[0] += 10
        progress(done, 100, 0)
    said(capsys)
    clock[0] += 10
    progress(20, 1000, 0)  # fewer than before: a new run
    assert said(capsys) == ["simulated 2.0 % of 1,000 tasks, up to 0 ps"]
    clock[0] += 10
    progress(120, 1000, 0)
    assert said(capsys)[0].endswith("about 88 s left")


def test_work_without_a_unit_is_not_counted(clock, capsys):
    progress = ProgressLine(None)
    clock[0] += 10
    progress(25, 100, 10**6)
    assert said(capsys) == ["simulated 25.0 % of the work, up to 1 us"]


def test_a_line_on_a_terminal_leaves_nothing_of_the_one_before(clock, monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stderr", terminal)
    with ProgressLine() as progress:
        clock[0] += 3
        progress(1, 1000, 123_456_789)
        clock[0] += 3
        progress(1000, 1000, 10**6)
    first, second = terminal.getvalue().rstrip("\n").split("\r")[1:]
    assert len(second) == len(first) or len(second) > len(first)
    assert second.rstrip() == "simulated 100.0 % of 1,000 tasks, up to 1 us; about 0 s left"


def test_what_has_been_done_is_told_when_it_is_stopped(clock, capsys):
    progress = ProgressLine()
    progress.queue("one: 5 us")
    clock[0] += 1
    assert said(capsys) == []
    progress.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert said(capsys) == ["one: 5 us"]
    with ProgressLine() as progress:
        progress.queue("two: 6 us")
    assert said(capsys) == [], "quick ones are only in the answer"


def test_rows_that_are_known_already_do_not_count_in_the_estimate(clock, capsys):
    progress = RowsLine()
    for second in range(5):
        clock[0] += 0.1
        progress.rows(100 * second, 1000)  # from a cache
    for done in (410, 420, 430, 440, 450, 460):
        clock[0] += 2
        progress.rows(done, 1000)
    assert said(capsys)[-1] == "rows predicted: 44%; about 112 s left", "5 a second"
