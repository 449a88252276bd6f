"""Questions of test experiments: they log their start and end, so that tests see what was computed when."""

from __future__ import annotations

import os
import time
from typing import Any

Settings = dict[str, Any]


def _log(settings: Settings, word: str) -> None:
    if "log" in settings:
        handle = os.open(settings["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(handle, f"{word} {settings['n']}\n".encode())
        os.close(handle)


def square(command: str, settings: Settings) -> Settings:
    """Square ``n`` after ``sleep`` seconds."""
    _log(settings, "start")
    time.sleep(settings.get("sleep", 0.0))
    _log(settings, "end")
    return {"square": settings["n"] ** 2}


def picky(command: str, settings: Settings) -> Settings:
    """Fail for odd ``n``, by an error of the input and by one of the program."""
    from trine.errors import PlanError

    if settings["n"] % 4 == 1:
        raise PlanError("n is odd")
    if settings["n"] % 4 == 3:
        raise ZeroDivisionError("three")
    return {"half": settings["n"] // 2}


def fatal(command: str, settings: Settings) -> Settings:
    """End the process at ``n`` = 3, as a lack of memory does."""
    if settings["n"] == 3:
        os._exit(9)
    return {"square": settings["n"] ** 2}


def late(command: str, settings: Settings) -> Settings:
    """Return a column, and types, that only later points have."""
    n = settings["n"]
    return {"mixed": n if n < 35 else str(n), "number": n if n < 35 else n / 2, **({"late": True} if n > 30 else {})}


def bowl(command: str, settings: Settings) -> Settings:
    """Return a bowl with its lowest point at x = 0.3, y = 8."""
    return {"cost": (settings["x"] - 0.3) ** 2 + (settings["y"] - 8) ** 2 / 100}


def sweep(experiment: Any, directory: Any = None, **options: Any) -> Any:
    """Run an experiment with the function of this module that its question names."""
    import sys
    from pathlib import Path

    import trine
    from trine.experiments.spec import ExperimentSpec, stored_spec

    spec = experiment if isinstance(experiment, ExperimentSpec) else stored_spec(Path(experiment))
    function = getattr(sys.modules[__name__], spec.question.partition(":")[2])
    return trine.sweep(experiment, directory, question=function, **options)


def drive(directory: str, log: str, points: int, sleep: float, processes: int | None, scheduler: str | None) -> None:
    """Run the experiment of the kill tests; a test starts it again after each kill."""
    import trine
    from trine.experiments import ExperimentSpec

    spec = ExperimentSpec(
        command="square", settings={"log": log, "sleep": sleep}, vary={"n": f"1..{points}"},
    )  # fmt: skip
    trine.sweep(spec, directory, processes=processes, scheduler=scheduler, question=square)


if __name__ == "__main__":
    import sys

    sys.path.insert(0, os.path.dirname(__file__))
    from experiment_questions import drive as run

    where, log, count, seconds, workers = sys.argv[1:]
    is_address = "://" in workers
    run(where, log, int(count), float(seconds), None if is_address else int(workers), workers if is_address else None)
