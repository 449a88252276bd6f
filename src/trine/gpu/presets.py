"""Insides of GPUs by name, from presets/gpu_models/*.yaml, or from a file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from trine.cluster.gpus import load_gpu
from trine.errors import PlanError, SpecError, nearest
from trine.gpu.check_model import check_model
from trine.gpu.model import GpuModel
from trine.gpu.model_layers import layered
from trine.gpu.model_options import with_options
from trine.inputs import is_file

if TYPE_CHECKING:
    from trine.cluster.cluster import Cluster

__all__ = ["gpu_model_of", "known_gpu_models", "load_gpu_model", "with_options"]

_FOLDER = Path(__file__).parent.parent / "presets" / "gpu_models"
_SUFFIXES = (".yaml", ".yml", ".json")


@cache
def known_gpu_models() -> tuple[str, ...]:
    """Names of the GPU models that come with trine, sorted; they are names of GPUs (``trine.cluster.known_gpus``)."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


def load_gpu_model(name_or_path: str | os.PathLike[str]) -> GpuModel:
    """Return the inside of a GPU by its name (also what drivers call it), or read a file (docs/formats/gpu-model.md).

    Anything with a path separator or one of the suffixes .yaml, .yml and .json is a file.

    Raises
    ------
    SpecError: unknown name (names the nearest), a file that cannot be read, or numbers that do not go together.
    """
    name = os.fspath(name_or_path)
    if not isinstance(name_or_path, str) or _is_path(name):
        return _read(Path(name))
    found = _preset_name(name)
    if found is None:
        raise SpecError(f"no GPU model {name!r}{_nearest(name)} (or give the path of a file)")
    return _preset(found)


def gpu_model_of(cluster: Cluster, group: Sequence[int]) -> GpuModel:
    """The model of the GPUs of a group (device indices), which must be of one kind.

    Raises
    ------
    PlanError: GPUs of several kinds, or without a name. SpecError: trine knows nothing of their inside.
    """
    names = {cluster.devices[device].gpu for device in group}
    if len(names) != 1 or None in names:
        kinds = ", ".join(sorted(name or "unnamed" for name in names))
        raise PlanError(f"the GPUs of {cluster.name!r} are {kinds}: name the model of their inside (--gpu-model)")
    name = str(names.pop())
    found = _preset_name(name)
    if found is None:
        known = ", ".join(known_gpu_models())
        raise SpecError(
            f"nothing is known of the inside of {name!r}; known: {known} (or give a file: --gpu-model FILE)"
        )
    return _preset(found)


def _is_path(name: str) -> bool:
    return os.sep in name or Path(name).suffix in _SUFFIXES or is_file(name)


def _preset_name(name: str) -> str | None:
    """The preset of this name, or of the GPU that has it among its names."""
    plain = " ".join(name.lower().split())
    if plain in known_gpu_models():
        return plain
    try:
        found = load_gpu(name).name
    except SpecError:
        return None
    return found if found in known_gpu_models() else None


def _nearest(name: str) -> str:
    """As ``nearest``, also of what else GPUs are called; what ``name`` contains comes first ("nvidia h100 nvl")."""
    plain, models = name.lower(), known_gpu_models()
    names = (*models, *(alias.lower() for model in models for alias in load_gpu(model).aliases))
    inside = sorted((known for known in names if known in plain), key=len, reverse=True)
    close = (
        get_close_matches(plain, models, n=1, cutoff=0.8) or inside[:1] or get_close_matches(plain, names, n=1)
    )  # fmt: skip
    return f"; did you mean {close[0]!r}?" if close else nearest(name, models)


@cache
def _preset(name: str) -> GpuModel:
    return _read(_FOLDER / f"{name}.yaml")


def _read(path: Path) -> GpuModel:
    from trine.gpu.model_schema import GpuModelFile, to_model
    from trine.spec import check

    data, origins = layered(path, _base)
    spec = check(GpuModelFile, data, path)
    evidence = {key: word for key, (word, _) in origins.items()}
    sources = {key: text for key, (_, text) in origins.items()}
    return check_model(to_model(spec, spec.name or path.stem, evidence, sources), path)


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
