"""An executor of worker processes in which the process that waits for an answer works too.

Each process loads the modules, tables and kernels that its calls need. A process that only waits for others loads them
as well, if it prepares their calls, so it may as well run some of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from threading import Lock
from typing import Any, NamedTuple


class _Answer(Future[Any]):
    """The answer of a call; whoever reads it runs waiting calls until the answer is known."""

    def __init__(self, executor: SharedWork) -> None:
        super().__init__()
        self._executor = executor

    def result(self, timeout: float | None = None) -> Any:
        """Return the answer, or raise the exception of the call. With a time limit, wait only."""
        if timeout is None:
            self._executor.work_until(self)
        return super().result(timeout)


class _Call(NamedTuple):
    """A call that no process has begun."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    answer: _Answer


class SharedWork(Executor):
    """An executor of the ``count`` processes of ``pool`` and the process that reads the answers.

    It owns the pool: :meth:`shutdown` ends both.
    """

    def __init__(self, pool: Executor, count: int) -> None:
        self._pool, self._num_free = pool, count
        self._waiting: deque[_Call] = deque()
        self._lock = Lock()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Queue a call, and return its answer."""
        answer = _Answer(self)
        with self._lock:
            self._waiting.append(_Call(fn, args, kwargs, answer))
        self._start_workers()
        return answer

    def work_until(self, answer: Future[Any]) -> None:
        """Run waiting calls in this process, the oldest first, until ``answer`` is known or no call waits."""
        while not answer.done():
            with self._lock:
                if not self._waiting:
                    return
                call = self._waiting.popleft()
            if not call.answer.set_running_or_notify_cancel():
                continue
            try:
                call.answer.set_result(call.function(*call.arguments, **call.keywords))
            except Exception as error:
                call.answer.set_exception(error)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes; calls that none has begun are cancelled with ``cancel_futures``, else run here first."""
        while cancel_futures and self._waiting:
            with self._lock:
                call = self._waiting.popleft()
            call.answer.cancel()
        self.work_until(Future())
        self._pool.shutdown(wait=wait, cancel_futures=cancel_futures)

    def _start_workers(self) -> None:
        """Give the oldest waiting calls to the free processes."""
        while True:
            with self._lock:
                if not (self._waiting and self._num_free):
                    return
                call = self._waiting.popleft()
                if call.answer.cancelled():
                    continue
                self._num_free -= 1
            begun = self._pool.submit(call.function, *call.arguments, **call.keywords)
            begun.add_done_callback(lambda ended, answer=call.answer: self._take(ended, answer))  # type: ignore[misc]

    def _take(self, ended: Future[Any], answer: _Answer) -> None:
        """Take the answer of a worker, and give it the next call."""
        if ended.cancelled():
            answer.cancel()
        elif answer.set_running_or_notify_cancel():
            error = ended.exception()
            if error is None:
                answer.set_result(ended.result())
            else:
                answer.set_exception(error)
        with self._lock:
            self._num_free += 1
        if not ended.cancelled():  # the pool ends
            self._start_workers()
