"""Warnings about options without effect, found by running again without each option if a run is cheap."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping


def unused_options(given: Mapping[str, object], same_without: Callable[[str], bool], scope: str) -> Iterator[str]:
    """Yield a sentence for each option that changes no time.

    given: option -> its value, None if not set. same_without: whether a run without this option takes the same time.
    scope: the range that the sentence names, such as ``at these sizes``.
    """
    for name, value in given.items():
        if value is not None and same_without(name):
            yield f"{name} {value} changes no time {scope}: without it the time is the same"
