"""Names by which the kernels and CPU calls of one rank are found on another: name and position among equal names."""

from __future__ import annotations

from trine.runs.rank_trace import RankTrace

Key = tuple[object, ...]


def kernel_keys(trace: RankTrace) -> list[Key | None]:
    """Return the key of each activity, None for collectives, which have their own."""
    counts: dict[tuple[str, str], int] = {}
    keys: list[Key | None] = []
    for activity in trace.activities:
        if activity.collective is not None:
            keys.append(None)
            continue
        name = (activity.phase, activity.name)
        number = counts.get(name, 0)
        counts[name] = number + 1
        keys.append((*name, number))
    return keys


def call_keys(trace: RankTrace) -> list[Key]:
    """Return the key of each CPU call: of a launch, the name and position of what it launches."""
    launched: dict[int, str] = {}
    for activity in trace.activities:
        if activity.launch >= 0:
            launched.setdefault(activity.launch, activity.name)
    counts: dict[str, int] = {}
    keys: list[Key] = []
    for number, call in enumerate(trace.calls):
        name = launched.get(number, f"wait in {call.operator}")
        count = counts.get(name, 0)
        counts[name] = count + 1
        keys.append((name, count))
    return keys
