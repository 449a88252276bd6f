"""Published serving runs (presets/measured/serving) as jobs: a row -> model, cluster, layout, engine, load."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from trine.common.inputs import PRESETS
from trine.common.spec import load_mapping
from trine.errors import InputError, nearest
from trine.inference.job import ServingJob, ServingLayout
from trine.validation.harness import read_table

FOLDER = PRESETS / "measured" / "serving"
AGGREGATED, DISAGGREGATED = "aggregated", "disaggregated"
STATIC, FIRST_TOKEN, SATURATED = "static", "first-token", "saturated"
#: Requests in flight of a saturated server, whose queue is never empty.
QUEUED = 16384


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
        return str(_entry("models", self.model)["name"])

    @property
    def gpu_name(self) -> str:
        """Name of the GPU in reports. Raises InputError for a GPU without an entry in ``sources.yaml``."""
        return str(_entry("gpus", self.gpu)["name"])

    @property
    def trine_precision(self) -> str:
        """Precision of weights and products, as :class:`ServingJob` names it."""
        of_model = _entry("models", self.model).get("precisions", {})
        if self.precision in of_model:
            return str(of_model[self.precision])
        precisions = _sources()["precisions"]
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
def _sources() -> dict[str, Any]:
    sources = load_mapping(FOLDER / "sources.yaml")
    assert isinstance(sources, dict)
    return sources


def published_errors() -> list[dict[str, Any]]:
    """Return the errors that other tools publish, as ``sources.yaml`` lists them."""
    return list(_sources()["published"])


def _entry(table: str, name: str) -> dict[str, Any]:
    entries: dict[str, dict[str, Any]] = _sources()[table]
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


# -- jobs --------------------------------------------------------------------------------------------------------------


def job_of(row: ServingRow) -> ServingJob:
    """Return the question to trine.

    A disaggregated row asks for one of its decode workers, with its share of the concurrency. KV precision and limits
    that neither the row nor the launch script states are the engine's defaults.

    Raises InputError for a row that does not state its number of decode workers or its load, and for a model, GPU or
    precision without an entry in ``sources.yaml``.
    """
    model, cluster = _entry("models", row.model)["model"], _entry("gpus", row.gpu)["cluster"]
    load = _load(row)
    settings = _settings(row, load.get("concurrency") or load.get("batch") or 1)
    shortest = settings.pop("shortest", 1.0)
    mean = (1 + shortest) / 2
    return ServingJob(
        model=str(FOLDER / model) if model.endswith(".json") else model, cluster=cluster,
        input_tokens=round(row.isl * mean), output_tokens=round(row.osl * mean),
        length_spread=(1 - shortest) / (1 + shortest), layout=row.layout, precision=row.trine_precision,
        engine=row.engine, **{"engine_version": _version(row), **settings, **load},
    )  # fmt: skip


def _load(row: ServingRow) -> dict[str, Any]:
    """Return the arguments of a job that state its load: requests in flight or a batch, and the phase."""
    if row.kind == DISAGGREGATED:
        return {"concurrency": _decode_concurrency(row), "phase": "decode"}
    if row.kind == SATURATED:
        return {"concurrency": QUEUED}
    if row.kind == FIRST_TOKEN:
        return {"batch": row.batch, "phase": "prefill"}
    if row.kind == STATIC:
        return {"batch": row.batch}
    if row.concurrency is None:
        raise InputError("not stated", field="concurrency")
    return {"concurrency": row.concurrency}


def _settings(row: ServingRow, requests: int) -> dict[str, Any]:
    """Return the arguments of a job that the scripts of the row's source set, by ``sources.yaml``.

    ``shortest`` is the shortest length as a share of isl and osl.
    """
    settings: dict[str, Any] = {}
    for entry in _sources()["settings"]:
        patterns: dict[str, str] = entry["rows"]
        if not all(fnmatchcase(str(getattr(row, column)), pattern) for column, pattern in patterns.items()):
            continue
        settings |= entry.get("job", {})
        if "shortest" in entry:
            settings["shortest"] = entry["shortest"]
        if "least_batched_tokens" in entry:
            fitted = (row.isl + requests + 127) // 64 * 64
            settings["max_batched_tokens"] = max(entry["least_batched_tokens"], fitted)
    return settings


def _decode_concurrency(row: ServingRow) -> int:
    """Return the requests in flight of one decode worker, over its attention replicas."""
    if row.decode_workers is None:
        raise InputError("not stated", field="number of decode workers")
    if row.concurrency is not None:
        return max(1, round(row.concurrency / row.decode_workers))
    if row.batch is not None:
        return row.batch
    raise InputError("not stated", field="concurrency")


def _version(row: ServingRow) -> str:
    """Return the engine's version; versions that are no release of the engine have an entry in ``sources.yaml``."""
    return str(_sources()["versions"].get(row.engine, {}).get(row.version, row.version))
