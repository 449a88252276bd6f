"""Data of a result that also draw themselves in a notebook: ``memory()``, ``links()`` and ``timeline()`` of a result.

``result.memory`` and ``result.links`` are data, and their names are those of the pictures. So each is data that can be
called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from typing import Any

from trine.common.plugins import load_target
from trine.graph.memory import MemoryEvents
from trine.results.link_use import LinkUse
from trine.results.report import Report, Timeline

_VIEW = "trine.report.notebook:view"


def view(answer: Report, name: str, height_px: int) -> Any:
    """Return a part of a result's report as an object that a notebook shows. name: memory, links or timeline."""
    return load_target(_VIEW)(answer, name, height_px)


class DrawnMemory(MemoryEvents):
    """The memory changes of a result; a call draws its memory over time."""

    __slots__ = ("_answer",)

    @classmethod
    def of(cls, memory: MemoryEvents, answer: Report) -> DrawnMemory:
        """Return the changes of ``answer``."""
        drawn = cls(**{each.name: getattr(memory, each.name) for each in fields(MemoryEvents)})
        object.__setattr__(drawn, "_answer", answer)
        return drawn

    def plain(self) -> MemoryEvents:
        """Return the data alone, which does not keep its result alive."""
        return MemoryEvents(**{each.name: getattr(self, each.name) for each in fields(MemoryEvents)})

    def __call__(self, height_px: int = 640) -> Any:
        """Return the memory of the fullest rank, by kind and by module, for a notebook. height_px: of its frame."""
        return view(self._answer, "memory", height_px)  # type: ignore[attr-defined]


class MemoryField:
    """The field ``memory`` of a result: kept as plain data, read as :class:`DrawnMemory`."""

    def __get__(self, result: Any, owner: type) -> Any:
        if result is None:
            raise AttributeError("memory")  # the field of the class has no default
        memory = result.__dict__["memory"]
        return None if memory is None else DrawnMemory.of(memory, result)

    def __set__(self, result: Any, memory: MemoryEvents | None) -> None:
        result.__dict__["memory"] = memory.plain() if isinstance(memory, DrawnMemory) else memory


class DrawnLinks(tuple[LinkUse, ...]):
    """The links of a result; a call draws them. draw: returns the picture, given the height of its frame."""

    _draw: Callable[[int], Any]

    @classmethod
    def of(cls, links: Iterable[LinkUse], draw: Callable[[int], Any]) -> DrawnLinks:
        """Return the links with their picture."""
        drawn = cls(links)
        drawn._draw = draw
        return drawn

    def __call__(self, height_px: int = 640) -> Any:
        """Return the links by tier, their utilisation and the collectives, for a notebook."""
        return self._draw(height_px)

    def __reduce__(self) -> tuple[type, tuple[list[LinkUse]]]:
        return tuple, (list(self),)


class DrawnTimeline(Timeline):
    """The timeline of a result: a Perfetto trace, which a notebook shows as the report's timeline."""

    _answer: Report

    @classmethod
    def of(cls, packets: Iterator[bytes], notes: tuple[str, ...], answer: Report) -> DrawnTimeline:
        """Return the timeline of ``answer``."""
        drawn = cls(packets, notes)
        drawn._answer = answer
        return drawn

    def _repr_html_(self) -> str:
        shown = view(self._answer, "timeline", 640)
        html: str = shown._repr_html_()
        return html
