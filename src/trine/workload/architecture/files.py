"""Model files of layers over blocks (``family: layers``): a new combination of known blocks needs no Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from trine.common.schema import Field
from trine.common.spec import check
from trine.errors import SpecError, nearest
from trine.workload.architecture.blocks import BLOCKS, FeedForward, Mixer, Number
from trine.workload.architecture.model import MAX_LAYERS, Architecture, Layer

#: Keys of a group of layers that name a block, and the blocks that they take.
_BLOCK_KEYS: Mapping[str, Any] = {"mixer": Mixer, "feed_forward": FeedForward, "beside": FeedForward}
Count = Annotated[int, Field(ge=1, le=MAX_LAYERS)]


def read_layers(data: Mapping[str, Any], path: Path) -> Architecture:
    """Return the model of a file's keys.

    ``blocks``: name -> ``kind`` (of :data:`BLOCKS`) and its fields. ``layers``: groups, each with ``count``, the names
    of its blocks (``mixer``, ``feed_forward``, ``beside``) and other fields of a layer; ``repeat`` repeats all groups.
    Raises SpecError with file, field and the nearest valid name.
    """
    fields = {key: value for key, value in data.items() if key not in ("family", "blocks", "layers", "repeat")}
    blocks = {str(name): _block(name, block, path) for name, block in _mapping(data, "blocks", path).items()}
    groups = data.get("layers")
    if not isinstance(groups, list) or not groups:
        raise SpecError("must be a list of groups of layers", file=path, field="layers")
    layers = [layer for number, group in enumerate(groups) for layer in _group(number, group, blocks, path)]
    layers *= _count(data.get("repeat", 1), "repeat", path)
    if len(layers) > MAX_LAYERS:
        raise SpecError(f"are {len(layers):,}; at most {MAX_LAYERS:,} are possible", file=path, field="layers")
    model = check(Architecture, fields, path, {"name": path.stem, "file": str(path), "layers": tuple(layers)})
    if model.parameters is not None and model.parameters != model.num_parameters:
        message = f"says {model.parameters:,}, but the shapes make {model.num_parameters:,}"
        raise SpecError(message, file=path, field="parameters")
    return replace(model, max_positions=model.max_positions or model.sequence)


def read_bundled(data: Mapping[str, Any], path: Path) -> Architecture:
    """Return the model of a file that holds the keys of a config.json (``family: huggingface``).

    ``config``: the keys; ``sequence``, ``parameters``, ``sources``: as in other model files. Raises SpecError.
    """
    from trine.workload.architecture.huggingface import architecture_of

    fields = {key: value for key, value in data.items() if key not in ("family", "config")}
    extra = check(_Bundled, fields, path)
    model = architecture_of(_mapping(data, "config", path), str(path), path.stem)
    model = replace(
        model, name=path.stem, sequence=extra.sequence or model.sequence, parameters=extra.parameters,
        sources=extra.sources,
    )  # fmt: skip
    if model.parameters is not None and model.parameters != model.num_parameters:
        message = f"says {model.parameters:,}, but the shapes make {model.num_parameters:,}"
        raise SpecError(message, file=path, field="parameters")
    return model


@dataclass(frozen=True, kw_only=True, slots=True)
class _Bundled:
    """The keys of a model file beside ``config``."""

    sequence: Number = 0
    parameters: Annotated[int | None, Field(ge=1)] = None
    sources: dict[str, str] = field(default_factory=dict)


def _mapping(data: Mapping[str, Any], key: str, path: Path) -> Mapping[str, Any]:
    value = data.get(key)
    if not isinstance(value, Mapping) or not value:
        raise SpecError("must be a section with at least one key", file=path, field=key)
    return value


def _block(name: str, data: object, path: Path) -> Any:
    field = f"blocks.{name}"
    if not isinstance(data, Mapping):
        raise SpecError(f"must be a block with a kind: {', '.join(BLOCKS)}", file=path, field=field)
    kind, fields = data.get("kind"), {key: value for key, value in data.items() if key != "kind"}
    if not isinstance(kind, str) or kind not in BLOCKS:
        hint = nearest(str(kind)[:60], BLOCKS)
        raise SpecError(f"must be one of {', '.join(BLOCKS)}{hint}", file=path, field=f"{field}.kind")
    return check(BLOCKS[kind], fields, f"{path}: {field}")


def _group(number: int, data: object, blocks: Mapping[str, Any], path: Path) -> list[Layer]:
    field = f"layers[{number}]"
    if not isinstance(data, Mapping):
        raise SpecError("must be a group of layers with mixer or feed_forward", file=path, field=field)
    found: dict[str, Any] = {}
    for key, usable in _BLOCK_KEYS.items():
        if (name := data.get(key)) is not None:
            found[key] = _named_block(name, usable, blocks, path, f"{field}.{key}")
    fields = {key: value for key, value in data.items() if key not in (*_BLOCK_KEYS, "count")}
    layer = check(Layer, fields, f"{path}: {field}", found)
    return [layer] * _count(data.get("count", 1), f"{field}.count", path)


def _named_block(name: object, usable: Any, blocks: Mapping[str, Any], path: Path, field: str) -> Any:
    """Return the block of this name. Raises SpecError if there is none, or if it is not one of the ``usable`` kinds."""
    if not isinstance(name, str) or name not in blocks:
        raise SpecError(f"names no block of this file{nearest(str(name)[:60], blocks)}", file=path, field=field)
    if not isinstance(blocks[name], usable):
        kinds = ", ".join(kind for kind, block in BLOCKS.items() if issubclass(block, usable))
        raise SpecError(f"{name!r} is no block of the kinds {kinds}", file=path, field=field)
    return blocks[name]


def _count(value: object, field: str, path: Path) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_LAYERS:
        raise SpecError(
            f"must be a whole number from 1 to {MAX_LAYERS:,}, got {str(value)[:40]!r}", file=path, field=field
        )
    return value
