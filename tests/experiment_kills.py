"""Random kills of experiments: nothing is lost, and only points in flight are computed again."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import experiment_questions

from trine.experiments import Experiment
from trine.experiments.journal import read_lines
from trine.experiments.spec import stored_spec

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
            known = {line.point for line in read_lines(self._directory, stored_spec(self._directory))}
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


class Dask:
    """A local Dask cluster of separate processes that tests may kill: a scheduler and two workers of one thread."""

    def __init__(self, folder: Path, *, nannies: bool = False) -> None:
        self._folder, self._nannies = folder, nannies
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{self._port}"

    def __enter__(self) -> Dask:
        self.start_scheduler()
        self.workers = [self.worker(), self.worker()]
        return self

    def __exit__(self, *error: object) -> None:
        for process in [*self.workers, self.scheduler]:
            process.terminate() if self._nannies else process.kill()
            process.wait()

    def start_scheduler(self) -> None:
        """Start a scheduler at the address of the first one."""
        self.scheduler = self._run("dask_scheduler", "--host", "127.0.0.1", "--port", str(self._port), "--no-show")

    def worker(self) -> subprocess.Popen[bytes]:
        """Start a worker."""
        nanny = ["--nanny" if self._nannies else "--no-nanny"]
        return self._run("dask_worker", self.address, "--nthreads", "1", "--local-directory", str(self._folder), *nanny)

    def _run(self, module: str, *words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"distributed.cli.{module}", *words, "--no-dashboard"]
        return subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.DEVNULL)


def kill_dask_at_random(folder: Path, *, kills: int, points: int, sleep: float, seed: int) -> list[str]:
    """Kill workers (mostly), drivers and the scheduler, replace each, and check the result; return who was killed."""
    choose = random.Random(seed)
    directory, log = folder / "experiment", folder / "log"
    ledger, killed = Ledger(directory, log), []
    with Dask(folder) as dask:
        driver = start(directory, log, points, sleep, dask.address)
        while len(killed) < kills and wait_for_work(log, driver):
            time.sleep(choose.uniform(0.0, 0.3))
            who = choose.choices(["worker", "driver", "scheduler"], [8, 1, 1])[0]
            killed.append(who)
            if who == "driver":
                driver.kill()
                driver.communicate()
                driver = start(directory, log, points, sleep, dask.address)
            elif who == "scheduler":
                for process in [dask.scheduler, *dask.workers]:  # workers end with their scheduler, some seconds later
                    process.kill()
                    process.wait()
                dask.start_scheduler()
                dask.workers = [dask.worker(), dask.worker()]
            else:
                dask.workers[0].kill()
                dask.workers[0].wait()
                dask.workers = [dask.workers[1], dask.worker()]
            ledger.note()
        _, errors = driver.communicate(timeout=600)
    assert driver.returncode == 0, errors.decode()[-2000:]
    assert len(killed) == kills, f"finished after {len(killed)} kills: more points are needed"
    check_complete(directory, points)
    assert ledger.repeated() == []
    return killed
