"""Model files by name, from presets/models/*.yaml, or by path."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from trine.errors import SpecError, nearest
from trine.workload.synthesis.spec import ModelSpec, Transformer, check_family, check_transformer

_FOLDER = Path(__file__).parents[2] / "presets" / "models"
_SUFFIXES = (".yaml", ".yml", ".json")


@cache
def known_models() -> tuple[str, ...]:
    """Names of the models that come with trine, sorted."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


def load_model(name_or_path: str | os.PathLike[str]) -> ModelSpec:
    """Return a model preset by its name, or read a model file (a path ends in .yaml, .yml or .json).

    Raises
    ------
    SpecError: unknown name (names the nearest), or a file with a fault (names file and field).
    """
    text = os.fspath(name_or_path)
    if text.endswith(_SUFFIXES):
        return _read(Path(text))
    if text not in known_models():
        raise SpecError(f"unknown model {text[:80]!r} (a file ends in .yaml){nearest(text.lower(), known_models())}")
    return _preset(text)


@cache
def _preset(name: str) -> ModelSpec:
    return _read(_FOLDER / f"{name}.yaml")


def _read(path: Path) -> ModelSpec:
    from trine.spec import check, load_mapping
    from trine.workload.synthesis.schema import FILES

    data = load_mapping(path)
    family = data.get("family") if isinstance(data, Mapping) else None
    model = check(FILES[check_family(family, str(path))], data, path)
    try:
        spec = model.spec(path.stem)
    except ValueError as error:
        raise SpecError(str(error), file=path) from None
    if isinstance(spec, Transformer):
        check_transformer(spec, str(path))
    return spec


def summary(spec: ModelSpec) -> dict[str, object]:
    """What a list of models shows: plain data."""
    if isinstance(spec, Transformer):
        parts = f"{spec.layers} layers, hidden {spec.hidden}, {spec.heads} heads"
        if spec.kv_heads != spec.heads:
            parts += f" ({spec.kv_heads} of keys and values)"
        if spec.experts is not None:
            parts += f", {spec.experts.top_k} of {spec.experts.count} experts"
        return {"name": spec.name, "parameters": spec.num_parameters, "sequence": spec.sequence, "shapes": parts}
    shapes = (
        f"blocks {'-'.join(map(str, spec.blocks))}" if spec.blocks else f"{sum(map(len, spec.stages))} convolutions"
    )
    return {"name": spec.name, "parameters": spec.parameters, "sequence": None, "shapes": shapes}
