"""One part of a training step's report, below a cell of a notebook."""

from __future__ import annotations

from trine.errors import InputError
from trine.report.answers import InlineReport
from trine.report.blocks import Block
from trine.report.fit import memory_blocks
from trine.report.links import links_section
from trine.report.page import Page, PageSection
from trine.report.run_blocks import blocks_of_run
from trine.report.slow import slow_section
from trine.report.training import title
from trine.results.report import Report
from trine.results.run import TaskRun

#: The questions of the parts.
_QUESTIONS = {"memory": "What is in memory?", "links": "Which link?", "timeline": "Why so slow?"}


def view(answer: Report, name: str, height_px: int) -> InlineReport:
    """Return a part of the report of a training step. name: ``memory``, ``links`` or ``timeline``.

    Raises InputError for an answer without this part.
    """
    if not isinstance(answer, TaskRun):
        raise InputError(f"{type(answer).__name__} is no training step, which alone has {name}")
    document, run = answer.to_json(), blocks_of_run(answer)
    blocks: tuple[Block, ...]
    sentence = ""
    if name == "memory":
        blocks = memory_blocks(document, run)
    else:
        section = links_section(document, run) if name == "links" else slow_section(document, run)
        blocks, sentence = section.blocks, section.answer
    part = PageSection(key=name, question=_QUESTIONS[name], answer=sentence, blocks=blocks)
    page = Page(
        title=title(document), answer=answer.headline, subject="train", version=str(document["version"]), facts=(),
        sections=(part,),
    )  # fmt: skip
    return InlineReport(page, height_px)
