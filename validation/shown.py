"""Reports as ``trine validate`` prints them: headline, paragraphs and document, stored in trine's presets."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from trine.collectives.sizes import parse_size
from trine.common._version import __version__
from trine.common.outputs import write_bytes
from trine.results import stored
from trine.results.stored import hash_inputs
from trine.results.text import WIDE, fitted
from validation.collectives import CollectiveValidation, left_out, validate_collectives
from validation.gpu.measured import KernelValidation, chosen, compared_or_unread, read_fine_grained
from validation.harness import UnreadRow, Validation
from validation.layouts import LayoutValidation
from validation.measured import Series
from validation.report import summary_text
from validation.training import TrainingValidation

#: Largest size of the kernels in the stored report.
LARGEST = "1M"
_ONE_NODE = "layouts on one node; python -m validation layouts --blind replays all"


def collective_report(series: Sequence[Series] | None = None) -> CollectiveValidation:
    """Predict all measured collectives, or some, also by parameters fitted without their machines."""
    validation = validate_collectives(series)
    without_own_fit, note = left_out(validation)
    return replace(validation, left_out=without_own_fit, notes=(note,) if note else ())


def kernel_report() -> KernelValidation:
    """Predict the measured kernels up to :data:`LARGEST`."""
    rows = [compared_or_unread(point) for point in chosen(None, parse_size(LARGEST, "size"))]
    faults = read_fine_grained()[1]
    compared = tuple(row for row in rows if not isinstance(row, UnreadRow))
    unread = (*faults, *(row for row in rows if isinstance(row, UnreadRow)))
    return KernelValidation(compared=compared, unread=unread)


def blind_report(report: Validation) -> Validation | None:
    """Return the report without fitted factors; None if it fits none."""
    if isinstance(report, TrainingValidation):
        return replace(report, steps=tuple(replace(step, calibrated_s=None) for step in report.steps))
    if isinstance(report, LayoutValidation):
        return LayoutValidation(steps=report.blind)
    return None


def form_of(report: Validation) -> dict[str, Any]:
    """Return a report as plain data: its headline, paragraphs at full width, and document without its origin."""
    with fitted(WIDE):
        document = {name: value for name, value in report.document().items() if name != "stored"}
        return {"headline": report.headline, "paragraphs": _paragraphs(report), "document": document}


def _paragraphs(report: Validation) -> list[str | list[str]]:
    if isinstance(report, CollectiveValidation):
        parts = summary_text(report).split("\n\n")[1:]
        return [part.splitlines() for part in parts]
    if isinstance(report, KernelValidation):
        return [report.details().splitlines()]
    paragraphs: list[str | list[str]] = []
    for part in report.paragraphs():
        if part:
            paragraphs.append(part if isinstance(part, str) else list(part))
    return paragraphs


def store_shown(name: str, report: Validation, cpu_s: float) -> None:
    """Store what ``trine validate NAME`` prints; cpu_s: CPU time of the report."""
    content: dict[str, Any] = {"fitted": form_of(report)}
    blind = blind_report(report)
    if blind is not None:
        content["blind"] = form_of(blind)
    if isinstance(report, LayoutValidation):
        content["blind"]["paragraphs"].insert(0, _ONE_NODE)
    _write(name, {"version": __version__, "hash": hash_inputs(), "cpu_s": round(cpu_s)}, content)


def renew_shown(name: str) -> None:
    """Write a stored report again with the installed version and hash."""
    content = read_shown(name)
    made = content.pop("made")
    _write(name, {**made, "version": __version__, "hash": hash_inputs()}, content)


def read_shown(name: str) -> dict[str, Any]:
    """Return the file of a stored report."""
    content: dict[str, Any] = json.loads(gzip.decompress((stored.FOLDER / f"{name}.json.gz").read_bytes()))
    return content


def _write(name: str, made: Mapping[str, Any], content: Mapping[str, Any]) -> None:
    text = json.dumps({"made": made, **content}, separators=(",", ":"), allow_nan=False)
    write_bytes(stored.FOLDER / f"{name}.json.gz", gzip.compress(text.encode(), 9, mtime=0))
