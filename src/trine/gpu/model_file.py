"""A GPU model as the plain data of its file, in the full form, which reads back equal."""

from __future__ import annotations

from typing import Any

from trine.cluster.written import exact_bandwidth, exact_time
from trine.gpu.model import GpuModel
from trine.gpu.model_fields import ModelField, values
from trine.units import PS_PER_S


def to_mapping(model: GpuModel) -> dict[str, Any]:
    """The model as a file holds it (docs/formats/gpu-model.md), without a base."""
    data: dict[str, Any] = {"name": model.name}
    if model.notes:
        data["notes"] = model.notes
    for field, value in values(model):
        group, _, name = field.path.rpartition(".")
        place = data.setdefault(group, {}) if group else data
        place[name] = _exact(field, value)
    data["sources"] = {
        field.path: model.sources[field.path] for field, _ in values(model) if field.path in model.sources
    }
    data["evidence"] = {
        field.path: model.evidence[field.path] for field, _ in values(model) if field.path in model.evidence
    }
    return data


def _exact(field: ModelField, value: int | str | bool | None) -> int | str | bool:
    if value is None:
        return "none"
    if not field.unit or isinstance(value, str | bool):
        return value
    if field.unit == "clock":
        return f"{round(PS_PER_S / value)} Hz"
    if field.unit == "bytes":
        return f"{value} B"
    return exact_bandwidth(value) if field.unit == "rate" else exact_time(value)
