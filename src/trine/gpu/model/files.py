"""Reading and writing of GPU models: presets (presets/gpu_models/*.yaml), or files, optionally with a base."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from trine.cluster.presets import load_gpu
from trine.common.evidence import ASSUMED, MEASURED, MODELLED
from trine.common.inputs import PRESETS, is_file, preset_names
from trine.common.schema import Bandwidth, BeforeValidator, Duration, Field, Size, Spec, make_spec
from trine.common.spec import check, with_bases
from trine.common.units import PS_PER_S, parse_cycle, parse_time
from trine.errors import PlanError, SpecError, nearest
from trine.gpu.model import (
    BY_GPU,
    FIELDS,
    FIFO,
    GROUPS,
    INTERLEAVED,
    L2,
    OPTIONAL,
    PATHS,
    GpuModel,
    MemorySystem,
    ModelField,
    Monitor,
    Nic,
    Noc,
    Ports,
    values,
)
from trine.gpu.model.options import MAX_COUNT, MAX_SLEEPERS, WORDS, check_model

if TYPE_CHECKING:
    from trine.cluster.cluster import Cluster


_FOLDER = PRESETS / "gpu_models"
_SUFFIXES = (".yaml", ".yml", ".json")


@cache
def known_gpu_models() -> tuple[str, ...]:
    """Return the sorted names of trine's GPU models; they are GPU names (``trine.cluster.known_gpus``)."""
    return preset_names(_FOLDER)


def load_gpu_model(name_or_path: str | os.PathLike[str]) -> GpuModel:
    """Return a GPU model by the GPU's name (or driver name), or from a file (docs/formats/gpu-model.md).

    Anything with a path separator or one of the suffixes .yaml, .yml and .json is a file.

    Raises SpecError for an unknown name (with the nearest one), an unreadable file, or inconsistent numbers.
    """
    name = os.fspath(name_or_path)
    if not isinstance(name_or_path, str) or _is_path(name):
        return _read(Path(name))
    preset = _preset_name(name)
    if preset is None:
        raise SpecError(f"no GPU model {name!r}{_nearest(name)} (or give the path of a file)")
    return _preset(preset)


def gpu_model_of(cluster: Cluster, group: Sequence[int]) -> GpuModel:
    """Return the model of a group's GPUs (device indices), which must be of one kind.

    Raises PlanError for mixed or unnamed GPUs, and SpecError if trine has no model of them.
    """
    names = {cluster.devices[device].gpu for device in group}
    if len(names) != 1 or None in names:
        kinds = ", ".join(sorted(name or "unnamed" for name in names))
        raise PlanError(f"the GPUs of {cluster.name!r} are {kinds}: name the model of their inside (--gpu-model)")
    name = str(names.pop())
    preset = _preset_name(name)
    if preset is None:
        model_names = ", ".join(known_gpu_models())
        raise SpecError(f"no GPU model {name!r}; known: {model_names} (or a file: --gpu-model FILE)")
    return _preset(preset)


def _is_path(name: str) -> bool:
    return os.sep in name or Path(name).suffix in _SUFFIXES or is_file(name)


def _preset_name(name: str) -> str | None:
    """Return the preset of this name or GPU alias, or None."""
    plain = " ".join(name.lower().split())
    if plain in known_gpu_models():
        return plain
    try:
        preset = load_gpu(name).name
    except SpecError:
        return None
    return preset if preset in known_gpu_models() else None


def _nearest(name: str) -> str:
    """Suggest a name like ``nearest``, aliases included; names inside ``name`` come first ("nvidia h100 nvl")."""
    plain, models = name.lower(), known_gpu_models()
    names = (*models, *(alias.lower() for model in models for alias in load_gpu(model).aliases))
    contained = sorted((known for known in names if known in plain), key=len, reverse=True)
    close = (
        get_close_matches(plain, models, n=1, cutoff=0.8) or contained[:1] or get_close_matches(plain, names, n=1)
    )  # fmt: skip
    return f"; did you mean {close[0]!r}?" if close else nearest(name, models, command="trine gpu list")


@cache
def _preset(name: str) -> GpuModel:
    return _read(_FOLDER / f"{name}.yaml")


def _read(path: Path) -> GpuModel:
    data, origins = layered(path, _base)
    spec = check(file_schema(), data, path)
    model = to_model(spec, spec.name or path.stem, {}, {})
    own_fields = {field.path for field, _ in values(model)}  # a field that removes a base's field needs no source
    evidence = {key: word for key, (word, _) in origins.items() if key in own_fields}
    sources = {key: text for key, (_, text) in origins.items() if key in own_fields}
    return check_model(replace(model, evidence=evidence, sources=sources), path)


def _base(base: object, path: Path) -> Path:
    if not isinstance(base, str):
        raise SpecError(f"must be the name of a GPU model or of a file, got {base!r:.80}", file=path, field="base")
    if _is_path(base):
        return path.parent / base
    name = _preset_name(base)
    if name is None:
        hint = nearest(base, known_gpu_models())
        raise SpecError(f"no GPU model {base!r}{hint} (or give the path of a file)", file=path, field="base")
    return _FOLDER / f"{name}.yaml"


#: Evidence and source of each field.
Origins = dict[str, tuple[str, str]]
FindBase = Callable[[object, Path], Path]


def layered(path: Path, find_base: FindBase) -> tuple[object, Origins]:
    """Return a file's data merged over its base, and the origin of each number.

    ``find_base``: resolves the value of ``base:`` in a file to the base's path.

    Raises SpecError for an unreadable file, a cycle of bases, or notes on fields that a file does not set.
    """
    data: dict[str, Any] | None = None
    origins: Origins = {}
    for place, layer in reversed(with_bases(path, find_base)):
        if not isinstance(layer, Mapping):
            if place != path:
                raise SpecError("is not a mapping", file=place)
            return layer, {}
        added = _origins(layer, place)
        if data is None:
            data, origins = {**layer, "sources": {}, "evidence": {}}, added
            continue
        merged = _merged(data, layer)
        removed = _fields(data) - _fields(merged)
        data, origins = merged, {**{key: entry for key, entry in origins.items() if key not in removed}, **added}
    return data, origins


def _merged(base: Mapping[str, Any], layer: Mapping[str, Any]) -> dict[str, Any]:
    """Merge ``layer`` over ``base``, groups field by field. A crossbar over a mesh drops its rows and columns."""
    data = {**base, **layer, "sources": {}, "evidence": {}, "name": layer.get("name")}
    for group in GROUPS:
        below, above = base.get(group), layer.get(group)
        if isinstance(below, Mapping) and isinstance(above, Mapping):
            data[group] = {**below, **above}
    if isinstance(layer.get("noc"), Mapping) and layer["noc"].get("kind") == "crossbar":
        data["noc"] = {
            key: value for key, value in data["noc"].items() if key not in ("rows", "cols") or key in layer["noc"]
        }
    return data


def _fields(data: Mapping[str, Any]) -> set[str]:
    """Return the paths of the fields that a file sets."""
    paths = {path for path in PATHS if "." not in path and path in data}
    for group in GROUPS:
        if isinstance(data.get(group), Mapping):
            paths |= {path for path in PATHS if path.startswith(f"{group}.") and path.split(".")[1] in data[group]}
    return paths


def _origins(layer: Mapping[str, Any], path: Path) -> Origins:
    """Return evidence and source of each field this file sets: the field's entry, else its group's, else assumed."""
    fields = _fields(layer)
    notes = {}
    for key in ("evidence", "sources"):
        entries = layer.get(key) or {}
        if not isinstance(entries, Mapping):
            raise SpecError(f"must be a mapping of fields, got {entries!r:.80}", file=path, field=key)
        notes[key] = {str(name): str(text) for name, text in entries.items()}
        for name in notes[key]:
            _check_key(name, fields, key, path)
    _check_words(notes["evidence"], path)
    return {
        field: (_of(field, notes["evidence"], ASSUMED), _of(field, notes["sources"], f"no source given in {path.name}"))
        for field in fields
    }


def _of(field: str, notes: Mapping[str, str], otherwise: str) -> str:
    return notes.get(field) or notes.get(field.split(".")[0]) or otherwise


def _check_key(name: str, fields: set[str], key: str, path: Path) -> None:
    valid_names = (*PATHS, *GROUPS)
    if name not in valid_names:
        raise SpecError(f"unknown field{nearest(name[:80], valid_names)}", file=path, field=f"{key}.{name[:80]}")
    if name not in fields and not any(field.startswith(f"{name}.") for field in fields):
        raise SpecError(f"this file does not set {name!r}", file=path, field=f"{key}.{name}")


def _check_words(evidence: Mapping[str, str], path: Path) -> None:
    words = (MEASURED, MODELLED, ASSUMED)
    for name, word in evidence.items():
        if word not in words:
            raise SpecError(
                f"unknown word {word!r:.80}{nearest(word[:80], words)}", file=path, field=f"evidence.{name}"
            )


def to_dict(model: GpuModel) -> dict[str, Any]:
    """Return the model as file content (docs/formats/gpu-model.md), without a base."""
    data: dict[str, Any] = {"name": model.name}
    if model.notes:
        data["notes"] = model.notes
    for field, value in values(model):
        group, _, name = field.path.rpartition(".")
        place = data.setdefault(group, {}) if group else data
        place[name] = _exact(field, value)
    for name, notes in (("sources", model.sources), ("evidence", model.evidence)):
        data[name] = {field.path: notes[field.path] for field, _ in values(model) if field.path in notes}
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
    from trine.cluster.serialize import exact_bandwidth, exact_time

    return exact_bandwidth(value) if field.unit == "rate" else exact_time(value)


_Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
_UNITS: dict[str, Any] = {
    "": _Count,
    "time": Duration,
    "bytes": Size,
    "rate": Bandwidth,
    "clock": Annotated[int, BeforeValidator(lambda value: parse_cycle(value))],
}
#: Types of fields that are not plain counts or quantities.
_KINDS: dict[str, Any] = {
    **{path: Literal[words] for path, words in WORDS.items()},
    "noc.rows": _Count | None,  # only for a mesh
    "noc.cols": _Count | None,
    "cus.posted_stores": bool,
    "cus.issue_seed": Annotated[int, Field(ge=0, le=MAX_COUNT)] | None,
    "kernels.poll": Annotated[
        int | None, BeforeValidator(lambda value: None if value in (None, "none") else parse_time(value))
    ],
    "monitor.capacity": Annotated[int, Field(ge=0, le=MAX_SLEEPERS)],
}
_DEFAULTS = {
    "noc.rows": None, "noc.cols": None, "kernels.poll": None, "kernels.fence": 0,
    "kernels.poll_turn": 0, "cus.issue_seed": None, "l2.far": 0,
    "ports.choice": INTERLEAVED, "ports.arbitration": FIFO, "nic.initiator": BY_GPU,
}  # fmt: skip


#: Groups of :class:`GpuModel`'s attributes.
_PARTS: dict[str, Any] = {
    "noc": Noc, "memory": MemorySystem, "ports": Ports, "l2": L2, "monitor": Monitor, "nic": Nic,
}  # fmt: skip


class GpuModelFile(Spec):
    """Top-level entries of a file merged with its base, without the model's fields."""

    name: str | None = None
    base: str | None = None
    notes: str = ""
    sources: dict[str, str] = Field(default_factory=dict)
    evidence: dict[str, Literal["measured", "modelled", "assumed"]] = Field(default_factory=dict)


@cache
def file_schema() -> type[GpuModelFile]:
    """Return :class:`GpuModelFile` with all fields, in their groups."""
    groups: dict[str, dict[str, Any]] = {}
    for field in FIELDS:
        group, _, name = field.path.rpartition(".")
        groups.setdefault(group, {})[name] = (_kind(field), _DEFAULTS.get(field.path, ...))
    entries = groups.pop("")
    for group, fields in groups.items():
        section: Any = make_spec(f"{group.title()}Spec", Spec, fields)
        if group in OPTIONAL:  # ``none`` in a file removes the base's group
            absent = BeforeValidator(lambda value: None if value == "none" else value)
            entries[group] = (Annotated[section | None, absent], None)
        else:
            entries[group] = (section, ...)
    return make_spec("GpuModelFile", GpuModelFile, entries)


def _kind(field: ModelField) -> Any:
    return _KINDS.get(field.path, _UNITS[field.unit])


def to_model(spec: GpuModelFile, name: str, evidence: dict[str, str], sources: dict[str, str]) -> GpuModel:
    """Return the model that a file describes; the caller computes ``evidence`` and ``sources`` by path."""
    groups: dict[str, dict[str, Any]] = {name: {} for name in ("", *_PARTS)}
    for field in FIELDS:
        section, _, key = field.path.rpartition(".")
        holder = getattr(spec, section) if section else spec
        value = None if holder is None else getattr(holder, key)
        if value is not None:
            group, _, attribute = field.attribute.rpartition(".")
            groups[group][attribute] = value
    parts: dict[str, Any] = {}
    for part, kind in _PARTS.items():
        parts[part] = kind(**groups[part]) if groups[part] else None
    return GpuModel(name=name, evidence=evidence, sources=sources, notes=spec.notes, **parts, **groups[""])
