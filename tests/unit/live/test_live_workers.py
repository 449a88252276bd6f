"""Does the live page show what each worker of a sweep, a plan and an eidolon sweep does?"""

from __future__ import annotations

import os
import threading
import time

import pytest
from chromium import browser, missing_axe, missing_browser, requests, serious_faults

import trine
from trine.common.observer import observing
from trine.common.processes import process_pool
from trine.common.work_reports import MAX_WORDS, doing
from trine.gpu.replay.options import EidolonOptions
from trine.gpu.replay.sweep import sweep
from trine.live.server import LiveServer
from trine.live.state import LiveRun


class Watched(LiveRun):
    """A run that keeps all reports: (worker, what)."""

    def __init__(self, title: str = "test") -> None:
        super().__init__(title)
        self.reports: list[tuple[int, str]] = []
        self.ends = 0

    def work(self, worker: int, what: str) -> None:
        super().work(worker, what)
        self.reports.append((worker, what))

    def end_of_work(self) -> None:
        super().end_of_work()
        self.ends += 1


def piece(number: int) -> int:
    """Do a piece of work in a worker process."""
    with doing(f"piece {number}"):
        time.sleep(0.05)
    return os.getpid()


def until(condition, seconds: float = 30.0) -> None:
    """Wait until a condition of another thread holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_each_worker_reports_each_piece():
    run = Watched()
    with observing(control=run), process_pool(2) as pool:
        processes = set(pool.map(piece, range(6)))
    until(lambda: run.ends == 1)
    words = [what for _, what in run.reports if what]
    assert sorted(words) == [f"piece {number}" for number in range(6)]
    assert {worker for worker, _ in run.reports} == processes
    assert os.getpid() not in processes
    assert [what for _, what in run.reports].count("") == 6
    assert run.status()["workers"] == []


def test_the_status_names_work_time_and_count():
    run = LiveRun("test")
    run.work(7, "point 1")
    run.work(7, "")
    run.work(7, "point 2")
    run.work(9, "point 3")
    first, second = run.status()["workers"]
    assert (first["worker"], first["what"], first["done"]) == (7, "point 2", 1)
    assert (second["worker"], second["what"], second["done"]) == (9, "point 3", 0)
    assert 0 <= second["since_s"] <= first["since_s"] < 5


def test_without_a_page_nothing_is_reported():
    with process_pool(1) as pool:
        assert pool.submit(piece, 1).result() != os.getpid()
    with doing("work"):
        pass


def test_a_long_report_is_shortened():
    run = Watched()
    with observing(control=run), doing("\U0001f600" * 5000):
        pass
    assert run.reports[0] == (os.getpid(), "\U0001f600" * MAX_WORDS)


def answers(command: str, settings) -> dict[str, int]:
    """Answer a point of a test's sweep, slowly enough to be seen."""
    time.sleep(1.5)
    return {"value": settings["batch"]}


def asked(points: int) -> dict[str, object]:
    """Return an experiment of some points."""
    return {"command": "train", "vary": {"batch": list(range(1, points + 1))}}


def test_points_of_a_sweep_are_reported_by_processes(tmp_path):
    run = Watched()
    with observing(control=run):
        trine.sweep(asked(3), tmp_path / "sweep", question=answers, processes=2)
    until(lambda: run.ends == 1)
    assert {what for _, what in run.reports if what} == {f"point {n}: batch {n}" for n in (1, 2, 3)}


def test_layouts_of_a_plan_are_reported():
    run = Watched()
    with observing(control=run):
        trine.plan("model:gpt-2,layers=2,sequence=128", gpus=2, global_batch=2, cluster="dgx-h100", workers=1)
    words = [what for _, what in run.reports if what]
    assert any(each.startswith("layout ") for each in words)


def test_machine_types_of_a_size_are_reported():
    run = Watched()
    with observing(control=run):
        trine.size("model:gpt-2,layers=2,sequence=128", "10M", days=30, clusters=["dgx-h100", "dgx-a100"], max_gpus=2)
    words = {what for _, what in run.reports if what}
    assert {name for name in ("dgx-h100", "dgx-a100") for each in words if name in each} == {"dgx-h100", "dgx-a100"}
    assert any(each.startswith("layouts on ") for each in words)


def test_runs_of_an_eidolon_sweep_are_reported():
    run = Watched()
    base = EidolonOptions(kernel="gemv-allreduce", rows=128, cols=128)
    with observing(control=run):
        sweep(base, {"wakeup": ["1 us", "2 us", "3 us"]}, jobs=1)
    words = [what for _, what in run.reports if what]
    assert [each for each in words if each.startswith("run ")] == [
        f"run {number} of 3: wakeup {number} us" for number in (1, 2, 3)
    ]


@pytest.mark.slow
@pytest.mark.skipif(bool(missing_browser()), reason=missing_browser())
def test_the_page_of_a_sweep_shows_its_workers_and_stops_it(tmp_path):
    run = Watched("trine sweep train")
    server = LiveServer(run)
    seen: dict[str, object] = {}

    def click() -> None:
        from selenium.webdriver.support.ui import WebDriverWait

        with browser(tmp_path / "profile") as driver:
            driver.get(server.address)
            rows = "return document.querySelectorAll('#workers tbody tr').length"
            WebDriverWait(driver, 60, poll_frequency=0.05).until(lambda each: each.execute_script(rows) == 2)
            text = "return document.getElementById('workers').innerText"
            WebDriverWait(driver, 60, poll_frequency=0.05).until(lambda each: "point" in each.execute_script(text))
            seen["workers"] = driver.execute_script(text)
            seen["axe"] = [] if missing_axe() else serious_faults(driver)
            driver.find_element("id", "stop").click()
            ended = "return ['finished', 'the run has ended'].includes(document.getElementById('state').textContent)"
            WebDriverWait(driver, 60, poll_frequency=0.05).until(lambda each: each.execute_script(ended))
            seen["requests"] = requests(driver)

    def told(done: int, failed: int, total: int) -> None:
        run.progress(done + failed, total, 0)

    client = threading.Thread(target=click)
    client.start()
    try:
        with observing(control=run):
            trine.sweep(asked(60), tmp_path / "sweep", question=answers, processes=2, progress=told)
    except KeyboardInterrupt:
        seen["stopped"] = True
    finally:
        run.finish()
        client.join(120)
        server.close()
    assert "point" in str(seen["workers"])
    assert seen["axe"] == []
    assert seen["stopped"]
    assert all(url.startswith("http://127.0.0.1:") for url in seen["requests"])
