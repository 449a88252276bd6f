"""Sequences that create their items on access, and the names of a machine's devices and links."""

from __future__ import annotations

import operator
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain
from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt

from trine.common.arrays import Int32, Int64

T = TypeVar("T")


class Lazy(Sequence[T]):
    """A sequence that behaves like a tuple, but creates each item on access and keeps none."""

    __slots__ = ()

    @abstractmethod
    def item(self, index: int) -> T:
        """Return the item at ``index``, which is in range."""

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...
    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        if isinstance(index, slice):
            return tuple(self.item(i) for i in range(*index.indices(len(self))))
        size = len(self)
        place = index.__index__()
        if not -size <= place < size:
            raise IndexError(f"index {place} of {size} items")
        return self.item(place % size)

    def __iter__(self) -> Iterator[T]:
        return map(self.item, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Lazy | tuple):
            return NotImplemented
        return self is other or (len(self) == len(other) and all(map(operator.eq, self, other)))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self)) if len(self) <= 16 else f"<{type(self).__name__} of {len(self)}>"


class CopiedNames(Lazy[str]):
    """Names of ``count`` copies, one copy after the other: the pieces of each pattern around ``prefix`` and a number.

    The pattern ``("", ".gpu0->", ".nic0")`` of copy 3 of ``node`` is ``node3.gpu0->node3.nic0``.
    """

    __slots__ = ("_count", "_first", "_patterns", "_prefix")

    def __init__(self, patterns: Sequence[tuple[str, ...]], prefix: str, first: int, count: int) -> None:
        self._patterns, self._prefix, self._first, self._count = tuple(patterns), prefix, first, count

    def __len__(self) -> int:
        return len(self._patterns) * self._count

    def item(self, index: int) -> str:
        copy, pattern = divmod(index, len(self._patterns))
        return f"{self._prefix}{self._first + copy}".join(self._patterns[pattern])

    def __iter__(self) -> Iterator[str]:
        copies = (f"{self._prefix}{number}" for number in range(self._first, self._first + self._count))
        return chain.from_iterable(map(copy.join, self._patterns) for copy in copies)


class JoinedNames(Lazy[str]):
    """Several sequences of names, one after the other."""

    __slots__ = ("_ends", "_parts")

    def __init__(self, parts: Sequence[Sequence[str]]) -> None:
        self._parts = tuple(part for part in parts if len(part))
        self._ends = list(accumulate(map(len, self._parts), initial=0))

    def __len__(self) -> int:
        return self._ends[-1]

    def item(self, index: int) -> str:
        part = bisect_right(self._ends, index) - 1
        return self._parts[part][index - self._ends[part]]

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self._parts)


class EndNames(Lazy[str]):
    """Links named after their ends; parallel ones get #2, #3, ... ``source``, ``target``: int32[links]."""

    __slots__ = ("_devices", "_ordinals", "_source", "_target")

    def __init__(self, devices: Sequence[str], source: Int32, target: Int32) -> None:
        self._devices, self._source, self._target = devices, source, target
        self._ordinals: Int64 | None = None

    def __len__(self) -> int:
        return len(self._source)

    def are_of(self, devices: Sequence[str], source: Int32, target: Int32) -> bool:
        """Return whether these are the ends, so that every link has its default name."""
        are_equal = np.array_equal(self._source, source) and np.array_equal(self._target, target)
        return are_equal and (self._devices is devices or list(self._devices) == list(devices))

    def item(self, index: int) -> str:
        if self._ordinals is None:
            self._ordinals = ordinals(self._source, self._target)
        name = f"{self._devices[int(self._source[index])]}->{self._devices[int(self._target[index])]}"
        ordinal = int(self._ordinals[index])
        return name if ordinal == 1 else f"{name}#{ordinal}"


class ChosenNames(Lazy[str]):
    """A selection of names. ``chosen``: int64[links], their indices."""

    __slots__ = ("_chosen", "_names")

    def __init__(self, names: Sequence[str], chosen: Int64) -> None:
        self._names, self._chosen = names, chosen

    def __len__(self) -> int:
        return len(self._chosen)

    def item(self, index: int) -> str:
        return self._names[int(self._chosen[index])]


def ordinals(source: npt.NDArray[Any], target: npt.NDArray[Any]) -> Int64:
    """Return the number of each link among those between the same two devices, from 1: int64[links]."""
    if not len(source):
        return np.zeros(0, np.int64)
    key = source.astype(np.int64) * (int(target.max()) + 1) + target
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    place = np.arange(len(key))
    first = np.concatenate(([True], ordered[1:] != ordered[:-1]))
    numbers = np.empty(len(key), np.int64)
    numbers[order] = place - np.maximum.accumulate(np.where(first, place, 0)) + 1
    return numbers
