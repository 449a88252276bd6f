"""Observers of runs: callbacks that engines call, set once for all runs inside a ``with``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

#: Called a few times per second with (finished work, total work, simulated time in ps).
Progress: TypeAlias = Callable[[int, int, int], None]
#: Called before kernels are compiled, which happens only on the first run of an installation.
OnCompile: TypeAlias = Callable[[], None]
#: Called with a sentence before each stage of a run.
OnStage: TypeAlias = Callable[[str], None]

#: Seconds between two progress calls.
PROGRESS_S = 0.25


#: State of a running simulation as plain data, computed when somebody asks; the argument is the rank asked for, or -1.
View: TypeAlias = Callable[[int], dict[str, Any]]


class Control(Protocol):
    """What steers a run from outside: the live page."""

    def chunk(self, most: int, view: View) -> int:
        """Return how many events may run next, at most ``most``; wait while the run is paused.

        Raises KeyboardInterrupt if the run is to stop.
        """

    def progress(self, done: int, total: int, now_ps: int) -> None:
        """Take the progress of the run; wait while it is paused. Raises KeyboardInterrupt if it is to stop."""

    def stage(self, sentence: str) -> None:
        """Take the name of the stage that begins."""

    def work(self, worker: int, what: str) -> None:
        """Take what a worker (a process or a thread, by its number) does from now on; "": it waits for work."""

    def end_of_work(self) -> None:
        """Forget all workers: they have ended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Observer:
    """Callbacks of the runs in a context. on_job: called with the rank programs of a job before they run."""

    progress: Progress | None = None
    on_compile: OnCompile | None = None
    on_stage: OnStage | None = None
    on_job: Callable[[Any], None] | None = None
    control: Control | None = None


_NOBODY = Observer()
_OBSERVER: ContextVar[Observer] = ContextVar("observer", default=_NOBODY)


def current_observer() -> Observer:
    """Return the observer of this context."""
    return _OBSERVER.get()


def observing(
    *,
    progress: Progress | None = None,
    on_compile: OnCompile | None = None,
    on_stage: OnStage | None = None,
    on_job: Callable[[Any], None] | None = None,
    control: Control | None = None,
) -> AbstractContextManager[None]:
    """Call these callbacks during the runs in this context; the outer context's callbacks remain in place of None."""
    outer = _OBSERVER.get()
    progress_now = outer.progress if progress is None else progress
    compile_now = outer.on_compile if on_compile is None else on_compile
    stage_now = outer.on_stage if on_stage is None else on_stage
    job_now = outer.on_job if on_job is None else on_job
    control_now = outer.control if control is None else control
    inner = Observer(
        progress=progress_now, on_compile=compile_now, on_stage=stage_now, on_job=job_now, control=control_now
    )
    return _reporting_to(inner)


def unobserved() -> AbstractContextManager[None]:
    """Call no callbacks during the runs in this context."""
    return _reporting_to(_NOBODY)


@contextmanager
def _reporting_to(observer: Observer) -> Iterator[None]:
    token = _OBSERVER.set(observer)
    try:
        yield
    finally:
        _OBSERVER.reset(token)


def ignore(*_: object) -> None:
    """Do nothing: the callback that silences one kind of report inside a context."""


def announce_stage(sentence: str) -> None:
    """Tell the observer which stage of a run begins."""
    on_stage = current_observer().on_stage
    if on_stage is not None:
        on_stage(sentence)


def announce_job(job: object) -> None:
    """Give the observer the rank programs that run next."""
    on_job = current_observer().on_job
    if on_job is not None:
        on_job(job)


def announce_compiling(*kernels: Callable[..., Any]) -> None:
    """Tell the observer if one of ``kernels`` must be compiled before its next call."""
    on_compile = current_observer().on_compile
    if on_compile is None:
        return
    from trine.common._jit import is_cold

    if any(map(is_cold, kernels)):
        on_compile()
