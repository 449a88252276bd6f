"""The content of a report: a page of sections, each a question with its answer and blocks that show the numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trine.report.blocks import Block


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """One number of the headline.

    value: the number, or a short text. unit: one of :data:`trine.report.blocks.UNITS`, or "" for none. low, high:
    likely range, None if unknown. note: a few words below the number. tone: "good", "bad", "warn" or "".
    """

    name: str
    value: float | str | None
    unit: str = ""
    low: float | None = None
    high: float | None = None
    note: str = ""
    tone: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class PageSection:
    """A question, its answer in one or two sentences, and the blocks that show why.

    key: the section's name in the address (``#key``): lower-case letters and hyphens, unique in the page.
    """

    key: str
    question: str
    answer: str
    blocks: tuple[Block, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """A report.

    title: the subject, such as the model, the layout and the machine. answer: the headline sentence. version: of the
    trine that computed the result. subject: the command of the result, such as ``train``.
    """

    title: str
    answer: str
    subject: str
    version: str
    facts: tuple[Fact, ...] = ()
    sections: tuple[PageSection, ...] = ()
