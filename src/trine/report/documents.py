"""Pages from answers: which page belongs to which schema of JSON."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace

from trine.common.inputs import read_text
from trine.common.spec import parse_json
from trine.errors import InputError
from trine.report.collective import collective_page
from trine.report.eidolon import eidolon_page
from trine.report.eidolon_sweep import eidolon_sweep_page
from trine.report.generic import generic_page
from trine.report.hop import hop_page
from trine.report.inside_gpu import inside_gpu_page
from trine.report.layouts import plan_page
from trine.report.page import Page
from trine.report.reading import Document, text
from trine.report.run_blocks import NO_RUN, RunBlocks
from trine.report.serving import infer_page, serving_plan_page
from trine.report.serving_size import serving_size_page
from trine.report.sizing import size_page
from trine.report.slow_run import check_hang_page, check_trace_page, comparison_page, measured_comparison_page
from trine.report.sweeps import sweep_page
from trine.report.training import training_page
from trine.results.axes import with_micro_sign

#: The largest answer that is read.
MAX_ANSWER_BYTES = 256 * 2**20

PageMaker = Callable[[Document, str], Page]
RunPageMaker = Callable[[Document, str, RunBlocks], Page]

#: The page of each schema (``trine/NAME/1``) besides RUN_PAGES; other answers have the generic page.
PAGES: dict[str, PageMaker] = {
    "collective": collective_page,
    "loadstore-collective": inside_gpu_page,
    "loadstore": inside_gpu_page,
    "eidolon": eidolon_page,
    "eidolon-sweep": eidolon_sweep_page,
    "hop": hop_page,
    "plan": plan_page,
    "size": size_page,
    "size-serve": serving_size_page,
    "plan-serve": serving_plan_page,
    "experiment": sweep_page,
}
#: Pages that also show blocks of the run itself.
RUN_PAGES: dict[str, RunPageMaker] = {
    "result": training_page,
    "infer": infer_page,
    "check-trace": check_trace_page,
    "check-hang": check_hang_page,
    "compare": comparison_page,
    "compare-trace": measured_comparison_page,
}


def page_of(document: Document, *, headline: str = "", command: str = "", run: RunBlocks = NO_RUN) -> Page:
    """Return the page of an answer.

    document: its JSON, with the envelope. headline: its first line, for answers without a page of their own. command:
    the command line that repeats it. run: blocks that are not in the JSON.
    """
    schema = schema_of(document)
    if schema in RUN_PAGES:
        page = RUN_PAGES[schema](document, command, run)
    elif schema in PAGES:
        page = PAGES[schema](document, command)
    else:
        page = generic_page(document, headline, command)
    return _with_micro_signs(page)


def _with_micro_signs(page: Page) -> Page:
    """Return the page with ``µs`` in its sentences, as in its numbers; terminals show ``us``."""
    sections = [replace(section, answer=with_micro_sign(section.answer)) for section in page.sections]
    return replace(page, answer=with_micro_sign(page.answer), sections=tuple(sections))


def schema_of(document: Document) -> str:
    """Return the name of an answer's schema; "" if it is no answer of trine."""
    parts = text(document, "schema").split("/")
    return parts[1] if len(parts) == 3 and parts[0] == "trine" else ""


def read_answer(path: str | os.PathLike[str]) -> Document:
    """Read an answer written with ``--json``. Raises InputError for any other file."""
    content = parse_json(read_text(path, MAX_ANSWER_BYTES, InputError), os.fspath(path))
    if not isinstance(content, Mapping) or not schema_of(content):
        raise InputError("is no answer of trine: write one with --json FILE", file=path)
    return content
