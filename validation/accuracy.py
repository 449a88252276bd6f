"""Figures of all stored reports, and their comparison with those of the last stored page (``make accuracy``).

A figure is one error of one group of rows. A figure got worse if it grew by more than two points and by more than a
tenth; a figure that is gone, or that covers fewer rows, is told too.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trine.common.outputs import write_text
from trine.results.stored import FOLDER

#: Figures of the last stored page.
STORED = Path(__file__).parent / "stored" / "accuracy.json"
#: Growth of an error that counts: in absolute terms, and as a share of the error before. Both must be exceeded.
MAX_GROWTH, MAX_SHARE = 0.02, 0.1
#: Quantities of served models with groups, and their statistic.
SERVING = ("tpot", "end_to_end", "ttft")

Document = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """An error of a group of rows. kind: its report. name: what it is an error of. rows: how many rows it covers."""

    kind: str
    name: str
    statistic: str
    error: float
    rows: int

    @property
    def key(self) -> str:
        """The figure's name among all."""
        return f"{self.kind}: {self.name} ({self.statistic})"


def read_report(name: str, form: str = "fitted") -> Document:
    """Return the document of a stored report. form: ``fitted`` or ``blind``; the former if there is no blind one."""
    with gzip.open(FOLDER / f"{name}.json.gz") as file:
        stored = json.load(file)
    document: Document = (stored.get(form) or stored["fitted"])["document"]
    return document


def figures() -> list[Figure]:
    """Return the figures of all stored reports."""
    return [*_training(), *_serving(), *_memory(), *_collectives(), *_operators(), *_others()]


def _training() -> Iterator[Figure]:
    for form, errors in (("blind", "errors"), ("fitted", "calibrated_errors")):
        report = read_report("training", form)
        whole = report[errors]
        for statistic in ("mean_error", "p90_error"):
            yield _figure("training steps", f"all, {form}", statistic, whole[statistic], whole["num_rows"])
    for group in read_report("training", "blind")["groups"]:
        if group["by"] != "group":
            name = f"{group['by']} {group['group']}, blind"
            yield _figure("training steps", name, "mean_error", group["mean_error"], group["num_rows"])
    for each in read_report("training")["precisions"]:
        name = f"{each['kind']} in {each['precision']}"
        yield _figure("training steps", name, "mean_error", each["mean_error"], each["rows"])


def _serving() -> Iterator[Figure]:
    report = read_report("serving")
    for each in report["quantities"]:
        for statistic in ("median_error", "p90_error"):
            yield _figure("serving", f"{_words(each['quantity'])}, all", statistic, each[statistic], each["num_rows"])
    for group in report["groups"]:
        if group["quantity"] in SERVING and group["by"] != "stack":
            name = f"{_words(group['quantity'])}, {group['by']} {group['group']}"
            yield _figure("serving", name, "median_error", group["median_error"], group["num_rows"])
    calibrated = report["calibrated"]
    yield _figure(
        "serving", "time per token, calibrated on three points", "median_error", calibrated["median_error"],
        calibrated["num_rows"],
    )  # fmt: skip


def _words(quantity: str) -> str:
    """Return a quantity of a served model in words."""
    named = quantity.replace("tpot", "time per token").replace("ttft", "time to first token")
    return named.replace("end_to_end", "latency").replace("tokens_per_s", "tokens per second").replace("_", " ")


def _memory() -> Iterator[Figure]:
    for each in read_report("memory")["errors"]:
        yield _figure("peak memory", f"source {each['source']}", "mean_error", each["mean_error"], each["num_rows"])


def _collectives() -> Iterator[Figure]:
    report = read_report("collectives")
    for word, totals in (("fitted", report["totals"]), ("machine left out", report["left_out_totals"])):
        for each in totals:
            name = f"{each['machines']}, {each['sizes']}, {word}"
            yield _figure("collectives", name, "median_error", each["median_error"], each["num_points"])


def _operators() -> Iterator[Figure]:
    for each in read_report("operators")["errors"]:
        name = f"{each['what']}, {each['operator']} on {each['gpu']} in {each['dtype']}, {each['source']}"
        yield _figure("operators", name, "median_error", each["median_error"], each["num_points"])


def _others() -> Iterator[Figure]:
    kernels = read_report("loadstore")
    for name, error in kernels["median_errors"].items():
        rows = sum(point["series"] == name for point in kernels["points"])
        yield _figure("kernels load by load", name, "median_error", error, rows)
    scaling = read_report("scaling")["errors"]
    yield _figure("scaling from one GPU to eight", "all", "mean_error", scaling["mean"], scaling["num_pairs"])
    for each in read_report("layouts", "blind")["groups"]:
        name = f"{each['model']} on {each['nodes']} nodes, blind"
        yield _figure("order of layouts", name, "mean_error", each["mean_error"], each["num_rows"])


def _figure(kind: str, name: str, statistic: str, error: float, rows: int) -> Figure:
    return Figure(kind=kind, name=name, statistic=statistic.removesuffix("_error"), error=round(error, 5), rows=rows)


def read_stored(path: Path = STORED) -> list[Figure]:
    """Return the figures of the last stored page."""
    return [Figure(**row) for row in json.loads(path.read_text(encoding="utf-8"))]


def store(found: Iterable[Figure], path: Path = STORED) -> None:
    """Store figures as those of the last page, one a line."""
    rows = ",\n".join(json.dumps(asdict(figure)) for figure in found)
    write_text(path, f"[\n{rows}\n]\n")


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A figure that changed. before, after: None if there is none. is_worse: it fails ``make accuracy``."""

    key: str
    before: Figure | None
    after: Figure | None
    is_worse: bool

    @property
    def sentence(self) -> str:
        """The change in words."""
        if self.after is None:
            return f"{self.key}: gone"
        if self.before is None:
            return f"{self.key}: new, {self.after.error:.1%} of {self.after.rows:,} rows"
        rows = "" if self.before.rows == self.after.rows else f" ({self.before.rows:,} -> {self.after.rows:,} rows)"
        return f"{self.key}: {self.before.error:.1%} -> {self.after.error:.1%}{rows}"


def changes(before: Iterable[Figure], after: Iterable[Figure]) -> list[Change]:
    """Return the figures that differ, worse ones first."""
    old, new = ({figure.key: figure for figure in each} for each in (before, after))
    found = []
    for key in dict.fromkeys((*old, *new)):
        first, second = old.get(key), new.get(key)
        if first != second:
            found.append(Change(key=key, before=first, after=second, is_worse=_is_worse(first, second)))
    return sorted(found, key=lambda change: not change.is_worse)


def _is_worse(before: Figure | None, after: Figure | None) -> bool:
    """Return whether a figure is gone, covers fewer rows, or has a larger error than both limits allow."""
    if before is None:
        return False
    if after is None or after.rows < before.rows:
        return True
    growth = after.error - before.error
    return growth > MAX_GROWTH and growth > MAX_SHARE * before.error
