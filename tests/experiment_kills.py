"""Random kills of experiments: nothing is lost, and only points in flight are computed again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import experiment_questions

from trine.experiments import Experiment
from trine.experiments.run import answered
from trine.experiments.spec import Shard, stored_spec

ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(Path(experiment_questions.__file__).parent), *(p for p in sys.path if p)]),
}


def start(directory: Path, log: Path, points: int, sleep: float, workers: str) -> subprocess.Popen[bytes]:
    """Start a driver in a process of its own."""
    words = [experiment_questions.__file__, str(directory), str(log), str(points), str(sleep), workers]
    return subprocess.Popen([sys.executable, *words], env=ENVIRONMENT, stderr=subprocess.PIPE)


def children(pid: int) -> list[int]:
    """Return the worker processes of a driver; multiprocessing's resource tracker is none."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            command = (entry / "cmdline").read_bytes()
        except (OSError, ValueError):
            continue
        if parent == pid and b"spawn_main" in command:
            found.append(int(entry.name))
    return sorted(found)


def log_lines(log: Path) -> list[tuple[str, int]]:
    """Return (start or end, n) of every point computed so far."""
    rows = log.read_text().splitlines() if log.exists() else []
    return [(word, int(n)) for word, n in (row.split() for row in rows)]


def wait_for_work(log: Path, driver: subprocess.Popen[bytes]) -> bool:
    """Wait until more points have begun; return False if the driver ended."""
    began = len(log_lines(log))
    while driver.poll() is None:
        if len(log_lines(log)) > began + 1:
            return True
        time.sleep(0.02)
    return False


class Ledger:
    """What was in the journals at each kill; a later start of such a point is a repetition."""

    def __init__(self, directory: Path, log: Path) -> None:
        self._directory, self._log = directory, log
        self._kills: list[tuple[set[int], int]] = []

    def note(self) -> int:
        """Record the journals right after a kill; return the number of answered points."""
        known = set()
        if (self._directory / "experiment.json").exists():
            known = set(answered(self._directory, stored_spec(self._directory), Shard()))
        self._kills.append((known, len(log_lines(self._log))))
        return len(known)

    def repeated(self) -> list[int]:
        """Return points that were computed although a journal had them."""
        rows = log_lines(self._log)
        found: list[int] = []
        for known, position in self._kills:
            found += [n for word, n in rows[position:] if word == "start" and n - 1 in known]
        return sorted(set(found))


def check_complete(directory: Path, points: int) -> None:
    """Check that every point has its answer, once in the table."""
    frame = Experiment(directory).to_frame()
    assert frame["point"].tolist() == list(range(points))
    assert frame["square"].tolist() == [n * n for n in range(1, points + 1)]
    assert set(frame["status"]) == {"done"}


def kill_at_random(folder: Path, *, kills: int, points: int, sleep: float, seed: int, workers: str = "2") -> int:
    """Kill workers and drivers at random moments, start drivers again, and check the result; return restarts."""
    choose = random.Random(seed)
    directory, log = folder / "experiment", folder / "log"
    ledger = Ledger(directory, log)
    driver, restarts, killed = start(directory, log, points, sleep, workers), 0, 0
    while killed < kills:
        if not wait_for_work(log, driver):
            break
        time.sleep(choose.uniform(0.0, 0.4))
        processes = children(driver.pid)
        if processes and choose.random() < 0.6:
            os.kill(choose.choice(processes), signal.SIGKILL)
        else:
            driver.kill()
            driver.communicate()
            driver, restarts = start(directory, log, points, sleep, workers), restarts + 1
        killed += 1
        ledger.note()
    _, errors = driver.communicate(timeout=600)
    assert driver.returncode == 0, errors.decode()[-2000:]
    assert killed == kills, f"finished after {killed} kills: more points are needed"
    check_complete(directory, points)
    assert ledger.repeated() == []
    return restarts
