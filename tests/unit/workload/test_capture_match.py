"""Do the observed and the profiled step make the same calls? Old and new forms of the execution trace."""

import pytest

from trine.errors import InputError
from trine.workload.tracing.files import check_same_work


def kineto(*threads):
    """Events in reverse order, to be sorted by time; each call lasts until the end, so it holds the next one."""
    events = [{"ph": "M", "name": "process_name"}, {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 0, "dur": 1}]
    for tid, names in enumerate(threads):
        calls = [{"ph": "X", "cat": "cpu_op", "name": n, "tid": 900 + tid, "ts": i, "dur": 99 - i} for i, n in names]
        events += reversed(calls)
    events.append({"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "tid": 900, "ts": 0, "dur": 100})
    return {"traceEvents": events}


def observed(*threads, old=False):
    nodes = []
    for tid, names in enumerate(threads):
        for i, name in [(-1, "[pytorch|profiler|execution_trace|thread]"), *names]:
            values = {"rf_id": 0 if i < 0 else 1000 * tid + i + 1, "tid": tid + 1}
            node = {"id": 1000 * tid + i + 2, "name": name}
            attributes = [{"name": key, "value": value} for key, value in values.items()]
            nodes.append(node | values if old else node | {"attrs": attributes})
    return {"nodes": nodes[::-1]}


def names(*calls):
    return list(enumerate(calls))


MAIN, ENGINE = names("aten::mm", "aten::add", "aten::relu"), names("ReluBackward0")


@pytest.mark.parametrize("old", [False, True])
def test_the_same_calls_pass_whatever_the_threads_are_called(old):
    check_same_work(kineto(MAIN, ENGINE), observed(ENGINE, MAIN, old=old))


def test_a_thread_that_only_the_observer_saw_does_not_matter():
    check_same_work(kineto(MAIN), observed(names("aten::pin_memory"), MAIN))


@pytest.mark.parametrize(
    ("before", "now", "says"),
    [
        (MAIN, names("aten::mm", "aten::mul"), "call 2 was 'aten::add', then 'aten::mul'"),
        (MAIN, MAIN[:2], "call 3 was 'aten::relu', then 'nothing'"),
        (MAIN[:2], MAIN, "call 3 was 'nothing', then 'aten::relu'"),
        ((), MAIN, "call 1 was 'nothing', then 'aten::mm'"),
    ],
)
def test_the_first_call_that_differs_is_named(before, now, says):
    with pytest.raises(InputError, match=says):
        check_same_work(kineto(now), observed(before))


def test_two_equal_threads_need_two():
    with pytest.raises(InputError, match="different work"):
        check_same_work(kineto(MAIN, MAIN), observed(MAIN))
