"""Published serving runs as jobs: a row -> model, cluster, layout, engine, load, and flags of its launch script."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from trine.errors import InputError
from trine.inference.job import ServingJob
from validation.serving_rows import (
    DISAGGREGATED,
    FIRST_TOKEN,
    FOLDER,
    SATURATED,
    STATIC,
    ServingRow,
    named_entry,
    serving_sources,
)

#: Requests in flight of a saturated server, whose queue is never empty.
QUEUED = 16384


def job_of(row: ServingRow) -> ServingJob:
    """Return the question to trine.

    A disaggregated row asks for one of its decode workers, with its share of the concurrency. KV precision and limits
    that neither the row nor the launch script states are the engine's defaults.

    Raises InputError for a row that does not state its number of decode workers or its load, and for a model, GPU or
    precision without an entry in ``sources.yaml``.
    """
    model, cluster = named_entry("models", row.model)["model"], named_entry("gpus", row.gpu)["cluster"]
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
    for entry in serving_sources()["settings"]:
        patterns: dict[str, str] = entry["rows"]
        if not all(fnmatchcase(str(getattr(row, column)), pattern) for column, pattern in patterns.items()):
            continue
        settings |= entry.get("job", {})
        if "shortest" in entry:
            settings["shortest"] = entry["shortest"]
        if "least_batched_tokens" in entry:
            fitted = (row.isl + requests + 127) // 64 * 64
            settings["max_batched_tokens"] = max(entry["least_batched_tokens"], fitted)
        if "beside_prompt" in entry:
            beside = entry["beside_prompt"]
            settings["max_batched_tokens"] = row.isl + beside["tokens"] + requests * beside["per_request"]
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
    return str(serving_sources()["versions"].get(row.engine, {}).get(row.version, row.version))
