"""Does an executor share its calls between its workers and the process that reads the answers?"""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any

import pytest

from trine.common.shared_work import SharedWork


class NoWorkers:
    """A pool whose workers never end a call."""

    def __init__(self) -> None:
        self.begun: list[Future[Any]] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.begun.append(Future())
        return self.begun[-1]

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        for each in self.begun:
            each.cancel()


def test_answers_belong_to_their_calls() -> None:
    with SharedWork(ThreadPoolExecutor(2), 2) as executor:
        answers = [executor.submit(pow, number, 2) for number in range(50)]
        assert [answer.result() for answer in answers] == [number**2 for number in range(50)]


def test_the_reader_runs_calls_that_no_worker_has_begun() -> None:
    pool = NoWorkers()
    executor = SharedWork(pool, 1)  # type: ignore[arg-type]
    first, *others = [executor.submit(threading.get_ident) for _ in range(4)]
    assert [other.result() for other in others] == [threading.get_ident()] * 3
    assert len(pool.begun) == 1
    pool.begun[0].set_result(-1)
    assert first.result() == -1


def test_a_worker_that_ends_a_call_gets_the_oldest_waiting_one() -> None:
    pool = NoWorkers()
    executor = SharedWork(pool, 2)  # type: ignore[arg-type]
    answers = [executor.submit(abs, number) for number in range(3)]
    assert len(pool.begun) == 2
    pool.begun[1].set_result(1)
    assert len(pool.begun) == 3
    for number in (0, 2):
        pool.begun[number].set_result(number)
    assert [answer.result() for answer in answers] == [0, 1, 2]


@pytest.mark.parametrize("workers", [0, 1])
def test_an_exception_of_a_call_reaches_the_reader(workers: int) -> None:
    with SharedWork(ThreadPoolExecutor(1), workers) as executor:
        answer = executor.submit(divmod, 1, 0)
        with pytest.raises(ZeroDivisionError):
            answer.result()


def test_shutdown_cancels_the_calls_that_wait() -> None:
    executor = SharedWork(NoWorkers(), 1)  # type: ignore[arg-type]
    answers = [executor.submit(abs, number) for number in range(3)]
    executor.shutdown(cancel_futures=True)
    for answer in answers:
        assert answer.cancelled()
        with pytest.raises(CancelledError):
            answer.result()


def test_a_cancelled_call_does_not_run_and_the_others_do() -> None:
    pool = NoWorkers()
    executor = SharedWork(pool, 1)  # type: ignore[arg-type]
    first, second, third, fourth = [executor.submit(abs, -number) for number in range(1, 5)]
    assert first.cancel()  # a worker has begun it
    assert second.cancel()
    pool.begun[0].set_result(1)
    assert [len(pool.begun), first.cancelled(), second.cancelled()] == [2, True, True]
    assert fourth.result() == 4
    pool.begun[1].set_result(3)
    assert third.result() == 3


def test_a_shutdown_runs_the_calls_that_wait() -> None:
    executor = SharedWork(NoWorkers(), 0)  # type: ignore[arg-type]
    answers = [executor.submit(abs, -number) for number in range(3)]
    executor.shutdown()
    assert [answer.result() for answer in answers] == [0, 1, 2]
