"""Answers about immutable objects, kept for as long as the object lives."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

#: Answers of one function kept with one object; all are forgotten when there are more.
MAX_KEPT = 4096


def keep(function: F) -> F:
    """Keep a function's answers about its first argument, an object with a ``__dict__`` that never changes.

    The other arguments must be hashable, or plain data. An answer must not be changed by its receivers.
    """
    name = f"_kept {function.__module__}.{function.__qualname__}"

    @functools.wraps(function)
    def kept(subject: Any, *rest: Any) -> Any:
        answers, key = subject.__dict__.setdefault(name, {}), tuple(map(_hashable, rest))
        if key not in answers:
            if len(answers) >= MAX_KEPT:
                answers.clear()
            answers[key] = function(subject, *rest)
        return answers[key]

    return cast(F, kept)


def _hashable(argument: Any) -> Hashable:
    try:
        hash(argument)
    except TypeError:
        return pickle.dumps(argument)
    return cast(Hashable, argument)
