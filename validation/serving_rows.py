"""Published serving runs (presets/measured/serving): configuration, load and measured values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from trine.common.inputs import PRESETS
from trine.common.spec import load_mapping
from trine.errors import InputError, nearest
from trine.inference.job import ServingLayout
from validation.harness import read_table

FOLDER = PRESETS / "measured" / "serving"
AGGREGATED, DISAGGREGATED = "aggregated", "disaggregated"
STATIC, FIRST_TOKEN, SATURATED = "static", "first-token", "saturated"


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingRow:
    """One published run, as its source names things.

    kind: ``aggregated`` (every GPU does both phases, closed loop), ``disaggregated``, ``static`` (one batch),
    ``first-token`` (one prompt), or ``saturated`` (all requests queued at once). file, measured: file of the source and
    date of the run, empty if unknown. gemm: type of the GEMMs' operands. concurrency: requests in flight over all
    workers and replicas. batch: requests of a static batch, or of a decode worker over its attention replicas. tp, pp,
    attention_dp, ep: of one copy of the model; of a decode worker in disaggregated rows. decode_workers: None if not
    stated. Unstated measured values are None: ttft_ms is the time of all prompts in static rows; tokens_per_s
    counts output tokens, of one GPU if ``is_per_gpu``.
    """

    name: str
    source: str
    kind: str
    file: str
    measured: str
    engine: str
    version: str
    model: str
    gpu: str
    precision: str
    gemm: str
    isl: int
    osl: int
    concurrency: int | None
    batch: int | None
    tp: int
    pp: int
    attention_dp: int
    ep: int
    decode_workers: int | None
    ttft_ms: float | None
    tpot_ms: float | None
    tokens_per_s: float | None
    is_per_gpu: bool

    @property
    def layout(self) -> ServingLayout:
        """The layout of one copy of the model, or of one decode worker."""
        return ServingLayout(tp=self.tp, pp=self.pp, ep=self.ep, attention_dp=self.attention_dp)

    @property
    def end_to_end_s(self) -> float | None:
        """Time of a request: TTFT, and TPOT for each token after the first."""
        if self.ttft_ms is None or self.tpot_ms is None:
            return None
        return (self.ttft_ms + (self.osl - 1) * self.tpot_ms) / 1e3

    def tokens_per_s_per_gpu(self, end_to_end_s: float) -> float:
        """Return output tokens per second and GPU of a closed loop: concurrency x OSL / end-to-end latency / GPUs."""
        return (self.concurrency or 0) * self.osl / end_to_end_s / self.layout.gpus

    @property
    def model_name(self) -> str:
        """Name of the model in reports. Raises InputError for a model without an entry in ``sources.yaml``."""
        return str(named_entry("models", self.model)["name"])

    @property
    def gpu_name(self) -> str:
        """Name of the GPU in reports. Raises InputError for a GPU without an entry in ``sources.yaml``."""
        return str(named_entry("gpus", self.gpu)["name"])

    @property
    def trine_precision(self) -> str:
        """Precision of weights and products, as :class:`ServingJob` names it."""
        of_model = named_entry("models", self.model).get("precisions", {})
        if self.precision in of_model:
            return str(of_model[self.precision])
        precisions = serving_sources()["precisions"]
        stated = self.gemm if self.gemm and self.gemm in precisions else self.precision
        if stated not in precisions:
            raise InputError(f"unknown precision {stated[:40]!r}{nearest(stated, precisions)}", field="precision")
        return str(precisions[stated])

    @property
    def stack(self) -> str:
        """Model, GPU, engine and precision: rows with one vote."""
        return f"{self.model_name}, {self.gpu_name}, {self.engine}, {self.trine_precision}"

    @property
    def configuration(self) -> tuple[object, ...]:
        """Everything but the load and the measured values."""
        layout = (self.tp, self.pp, self.attention_dp, self.ep)
        return (self.kind, self.model, self.gpu, self.engine, self.version, self.precision, self.isl, self.osl, *layout)

    def group(self, by: str) -> str:
        """Return the row's value of ``engine``, ``model``, ``gpu``, ``precision`` or ``stack``."""
        names = {"model": "model_name", "gpu": "gpu_name", "precision": "trine_precision"}
        return str(getattr(self, names.get(by, by)))


@cache
def serving_sources() -> dict[str, Any]:
    """Return the content of ``sources.yaml``, which documents its tables."""
    sources = load_mapping(FOLDER / "sources.yaml")
    assert isinstance(sources, dict)
    return sources


def published_errors() -> list[dict[str, Any]]:
    """Return the errors that other tools publish, as ``sources.yaml`` lists them."""
    return list(serving_sources()["published"])


def named_entry(table: str, name: str) -> dict[str, Any]:
    """Return the entry of a model or GPU. Raises InputError with the nearest name for an unknown one."""
    entries: dict[str, dict[str, Any]] = serving_sources()[table]
    if name not in entries:
        raise InputError(f"unknown {table[:-1]} {name[:60]!r}{nearest(name, entries)}", field=table[:-1])
    return entries[name]


def read_rows(records: Iterable[Mapping[str, str]]) -> tuple[ServingRow, ...]:
    """Return the rows of a table with the columns of ``rows.csv.gz``.

    Raises KeyError for a missing column and ValueError for a number that cannot be read.
    """
    return tuple(_read_row(record) for record in records)


@cache
def load_rows() -> tuple[ServingRow, ...]:
    """Return all bundled rows."""
    return read_rows(read_table(FOLDER / "rows.csv"))


def _read_row(record: Mapping[str, str]) -> ServingRow:
    texts = ("source", "kind", "file", "measured", "engine", "version", "model", "gpu", "precision", "gemm")
    numbers = ("isl", "osl", "tp", "pp", "attention_dp", "ep")
    counts = ("concurrency", "batch", "decode_workers")
    measured = ("ttft_ms", "tpot_ms", "tokens_per_s")
    values: dict[str, Any] = {name: record[name] for name in texts}
    values |= {name: int(record[name]) for name in numbers}
    values |= {name: int(record[name]) if record[name] else None for name in counts}
    values |= {name: float(record[name]) if record[name] else None for name in measured}
    return ServingRow(name=record["row"], is_per_gpu=record["per_gpu"] == "1", **values)
