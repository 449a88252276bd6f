"""Whether the two recorded steps of a capture did the same work, call by call.

The execution trace observer writes each call's tensors while the call runs: some 70 us a call, ten times a small
operator's own launch (PyTorch 2.13). Beside the profiler it would be timed with it, so each records a step of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trine.errors import InputError

_CALLS = ("cpu_op", "user_annotation")
_STEP_MARK = "ProfilerStep#"  # set by the profiler itself


def check_same_work(kineto: Mapping[str, Any], execution_trace: Mapping[str, Any]) -> None:
    """Refuse two steps whose threads made different calls: the readers join the two files by the order of calls.

    Each thread of the profiler's step needs one of the observer's with the same sequence of names. The observer may
    have seen more threads (a data loader's). Raises InputError with the first call that differs.
    """
    observed = _observed_threads(execution_trace)
    for names in _profiled_threads(kineto):
        if names in observed:
            observed.remove(names)
            continue
        closest = max(observed, key=lambda other: _common_start(names, other), default=[])
        place = _common_start(names, closest)
        first, second = (sequence[place] if place < len(sequence) else "nothing" for sequence in (closest, names))
        raise InputError(
            f"two steps in a row did different work: call {place + 1} was {first[:80]!r}, then {second[:80]!r}. A "
            "trace stands for all steps: each must make the same calls (no evaluation or logging now and then)"
        )


def _profiled_threads(kineto: Mapping[str, Any]) -> list[list[str]]:
    """Names of the calls of each thread in the order of their start, the longest thread first."""
    threads: dict[str, list[tuple[float, float, int, str]]] = {}
    for index, event in enumerate(kineto["traceEvents"]):
        if event.get("cat") in _CALLS and event.get("ph") == "X" and not event["name"].startswith(_STEP_MARK):
            call = (float(event["ts"]), -float(event["dur"]), index, str(event["name"]))
            threads.setdefault(str(event.get("tid")), []).append(call)
    sequences = [[name for *_, name in sorted(calls)] for calls in threads.values()]
    return sorted(sequences, key=lambda names: -len(names))


def _observed_threads(execution_trace: Mapping[str, Any]) -> list[list[str]]:
    """The same of the execution trace, whose node ids count up from call to call; roots of threads are no calls."""
    threads: dict[int, list[tuple[int, str]]] = {}
    for node in execution_trace["nodes"]:
        values = node
        if "attrs" in node:  # since PyTorch 2.3; before, a node's own fields
            values = {attribute["name"]: attribute["value"] for attribute in node["attrs"]}
        if values["rf_id"]:
            threads.setdefault(values["tid"], []).append((node["id"], node["name"]))
    return [[name for _, name in sorted(calls)] for calls in threads.values()]


def _common_start(first: list[str], second: list[str]) -> int:
    """How many names the two sequences share from their start on."""
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
