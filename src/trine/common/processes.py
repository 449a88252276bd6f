"""Executors: this process, and fresh worker processes, which share no threads and open files with this one."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.context import SpawnContext, SpawnProcess
from threading import Event
from typing import Any

from trine.common.observer import current_observer
from trine.common.work_reports import reporting_pool


def num_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def process_pool(
    count: int, initializer: Callable[[], None] | None = None, *, needs_script: bool = False
) -> ProcessPoolExecutor:
    """Return a pool of ``count`` processes. needs_script: its tasks refer to objects that the caller's script defines.

    Python runs the caller's script again in each new process. Without ``if __name__ == "__main__"`` it would call
    trine there once more, and fail; a script on stdin cannot be run again. So the workers here do not run it, unless
    they need it. If a live page shows the run, the workers report what they do.
    """
    context = multiprocessing.get_context("spawn") if needs_script else _WithoutScript()
    control = current_observer().control
    with _safe_path():  # its locks start a process too: multiprocessing's resource tracker
        if control is not None:
            return reporting_pool(control, context, count, initializer)
        return ProcessPoolExecutor(count, mp_context=context, initializer=initializer)


class SerialExecutor(Executor):
    """An executor that runs each call at once, in this process."""

    _max_workers = 1

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run the call, and return its finished future. Ctrl-C ends the call."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class StoppableThreads(ThreadPoolExecutor):
    """Threads whose calls look at ``stop``: an executor that ends early sets it, and waits for them."""

    def __init__(self, count: int, stop: Event) -> None:
        super().__init__(count)
        self._stop = stop

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads; unless all work is done, stop the calls that run."""
        if not wait:
            self._stop.set()
        super().shutdown(wait=True, cancel_futures=cancel_futures)


class _Process(SpawnProcess):
    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        with _script_hidden():
            return SpawnProcess._Popen(process_obj)


class _WithoutScript(SpawnContext):
    """A context whose processes do not run the caller's script."""

    Process = _Process


@contextmanager
def _script_hidden() -> Iterator[None]:
    """Hide the caller's script from ``multiprocessing.spawn.get_preparation_data``."""
    main = sys.modules["__main__"]
    names: dict[str, Any] = vars(main)
    hidden: dict[str, Any] = {name: names[name] for name in ("__file__", "__spec__") if name in names}
    names.pop("__file__", None)
    names["__spec__"] = None
    try:
        with _safe_path():
            yield
    finally:
        names |= hidden


@contextmanager
def _safe_path() -> Iterator[None]:
    """Let new processes import nothing from the current directory, which may be a received folder.

    They begin as ``python -c``, which looks there first, and take over the path of this process only later.
    """
    former = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        os.environ.pop("PYTHONSAFEPATH")
        if former is not None:
            os.environ["PYTHONSAFEPATH"] = former
