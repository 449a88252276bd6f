"""Options that change nothing in an answer: found by running again without each of them, where a run is cheap."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping


def unused_options(given: Mapping[str, object], same_without: Callable[[str], bool], scope: str) -> Iterator[str]:
    """A sentence for each option that changes no time.

    given: option -> its value, None where it was left out. same_without: whether a run without this option takes the
    same time. scope: what the time is of, such as ``at these sizes``.
    """
    for name, value in given.items():
        if value is not None and same_without(name):
            yield f"{name} {value} changes no time {scope}: without it the time is the same"
