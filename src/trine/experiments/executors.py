"""Executors: this process, local processes, a Dask scheduler, or any ``concurrent.futures.Executor``."""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

from trine.errors import InputError, MissingExtraError
from trine.experiments.worker import start_worker

#: Assumed number of workers of an executor that does not give it.
UNKNOWN_WORKERS = 16
#: Seconds to wait for a Dask scheduler's answer to one attempt.
_CONNECT_S = 10.0
#: Seconds to wait for a lost Dask scheduler or its workers.
DASK_PATIENCE_S = 300.0


class SerialExecutor(Executor):
    """An executor that runs each call at once, in this process."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run the call, and return its finished future. Ctrl-C ends the call."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


@dataclass(frozen=True, kw_only=True, slots=True)
class Workers:
    """How to start the workers of an experiment.

    make: returns an executor and a function that says whether its workers can be reached; called again after a loss.
    count: number of workers, None if unknown. is_local: they are children of this process. repeats: the executor
    itself gives the calls of a lost worker to another one. is_owned: trine shuts the executor down. patience_s: time to
    wait for lost workers to come back.
    """

    make: Callable[[], tuple[Executor, Callable[[], bool]]]
    count: int | None = None
    is_local: bool = False
    repeats: bool = False
    is_owned: bool = True
    patience_s: float = 30.0


def make_workers(
    *, executor: Executor | None = None, processes: int | None = None, scheduler: str | None = None, most: int = 1 << 20
) -> Workers:
    """Return the workers of an experiment: an executor, a Dask scheduler, or (by default) one process per CPU.

    executor: any ``concurrent.futures.Executor`` (submitit, executorlib, mpi4py.futures, ...); the caller shuts it
    down. scheduler: address such as ``tcp://10.0.0.1:8786``. most: number of calls, above which workers would idle.

    Raises InputError for more than one kind, MissingExtraError without Dask.
    """
    kinds = {"executor": executor, "processes": processes, "scheduler": scheduler}
    chosen = [name for name, value in kinds.items() if value is not None]
    if len(chosen) > 1:
        raise InputError(f"{chosen[0]} and {chosen[1]} both choose the workers: keep one", field=chosen[1])
    if executor is not None:
        count = getattr(executor, "_max_workers", None)
        return Workers(
            make=_once(executor), count=count if isinstance(count, int) else None,
            repeats=not isinstance(executor, ProcessPoolExecutor | SerialExecutor), is_owned=False,
            patience_s=0.0,
        )  # fmt: skip
    if scheduler is not None:
        return _dask_workers(scheduler)
    if processes is not None and not 1 <= processes <= 4096:
        raise InputError(f"must be 1 to 4096, got {processes}", field="processes")
    count = min(processes or available_cpus(), most)
    if count <= 1:
        return Workers(make=lambda: (SerialExecutor(), _always), count=1, is_local=True)
    return Workers(make=lambda: (_pool(count), _always), count=count, is_local=True)


def available_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _always() -> bool:
    return True


def _once(executor: Executor) -> Callable[[], tuple[Executor, Callable[[], bool]]]:
    """Return a function that gives the executor each time; only its owner could replace it."""
    return lambda: (executor, _always)


def _pool(count: int) -> ProcessPoolExecutor:
    """Return a pool of fresh processes: they share no threads and no open files with this one."""
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(count, mp_context=spawn, initializer=start_worker)


def _dask_workers(address: str) -> Workers:
    try:
        from distributed import Client
    except ImportError:
        raise MissingExtraError("a Dask scheduler", "dask", "dask") from None

    for name in [name for name in logging.root.manager.loggerDict if name.startswith("distributed")]:
        logging.getLogger(name).setLevel(logging.CRITICAL)  # losses are expected, and the driver reports lasting ones

    def make() -> tuple[Executor, Callable[[], bool]]:
        client = Client(address, timeout=_CONNECT_S, set_as_default=False)
        return _DaskExecutor(client), lambda: client.status == "running"

    return Workers(make=make, repeats=True, patience_s=DASK_PATIENCE_S)


class _DaskExecutor(Executor):
    """Dask's executor, which also closes its client."""

    def __init__(self, client: Any) -> None:
        self._client, self._executor = client, client.get_executor(pure=False)

    @property
    def _max_workers(self) -> int:
        return max(1, sum(map(int, self._client.nthreads().values())))

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Send a call to the scheduler."""
        future: Future[Any] = self._executor.submit(fn, *args, **kwargs)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Cancel the calls and close the connection."""
        self._executor.shutdown(wait=False)
        self._client.close(timeout=2)
