"""A level of detail below messages on links, as ``trine collective`` asks it through a hook."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple


class CollectiveLevel(NamedTuple):
    """Options of a level, and what answers.

    choice: the dataclass of options that choose the level. options, names: the dataclass of its own options, and those
    that the command has. experts: the dataclass of the options of ``kinds``, collectives that only this level knows.
    weights: shares of experts for a keyword and a number of experts. question: a request, with a method ``answer``.
    refuse: refuses options of the operator level.
    """

    choice: type
    options: type
    names: tuple[str, ...]
    experts: type
    kinds: Sequence[str]
    weights: Callable[..., Sequence[float]]
    question: Callable[..., object]
    refuse: Callable[..., None]
