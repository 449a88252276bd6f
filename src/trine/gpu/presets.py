"""Insides of GPUs by name, from presets/gpu_models/*.yaml, or from a file; and the options that change them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trine.cluster.gpus import load_gpu
from trine.errors import InputError, PlanError, SpecError, nearest
from trine.gpu.check_model import MAX_COUNT, check_model
from trine.gpu.model_fields import ASSUMED
from trine.gpu.model_layers import layered
from trine.model.gpumodel import FAIR, FIFO, HASHED, INTERLEAVED, GpuModel, Ports
from trine.units import parse_time

if TYPE_CHECKING:
    from trine.cluster.cluster import Cluster

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
        raise SpecError(f"no GPU model {name!r}{nearest(name, known_gpu_models())} (or give the path of a file)")
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
    return os.sep in name or Path(name).suffix in _SUFFIXES or Path(name).is_file()


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


def with_options(
    model: GpuModel,
    *,
    unroll: int | None = None,
    max_outstanding: int | None = None,
    arbitration: str | None = None,
    port_choice: str | None = None,
    num_cus: int | None = None,
    workgroups_per_cu: int | None = None,
    posted_stores: bool | None = None,
    poll: str | int | None = None,
    launch: str | int | None = None,
) -> GpuModel:
    """The model with some numbers replaced; None leaves one as it is.

    ``poll`` and ``launch``: text with a unit (``"100 ns"``), or picoseconds; ``poll="none"``: the memory answers.

    Raises
    ------
    InputError: a value that cannot be, or cannot matter; names the option.
    """
    changes: dict[str, tuple[str, Any]] = {}
    counts = {
        "unroll": ("cus.unroll", "unroll", unroll),
        "max-outstanding": ("cus.max_outstanding", "max_outstanding", max_outstanding),
        "num-cus": ("cus.count", "num_cus", num_cus),
        "workgroups-per-cu": ("cus.workgroups", "workgroups_per_cu", workgroups_per_cu),
    }
    for option, (path, attribute, value) in counts.items():
        if value is not None:
            changes[attribute] = path, _count(option, value)
    if posted_stores is not None:
        changes["posted_stores"] = "cus.posted_stores", posted_stores
    if launch is not None:
        changes["launch_ps"] = "kernels.launch", _time("launch", launch)
    if poll is not None:
        changes["poll_ps"] = "kernels.poll", None if poll == "none" else _time("poll", poll)
    ports, port_paths = _port_options(model, arbitration, port_choice)
    changed = replace(model, ports=ports, **{name: value for name, (_, value) in changes.items()})
    if unroll is not None and unroll > changed.max_outstanding:
        raise InputError(
            f"--unroll {unroll} cannot matter: a compute unit has {changed.max_outstanding} requests in flight"
        )
    return check_model(_said(changed, [path for path, _ in changes.values()] + port_paths))


def _count(option: str, value: int) -> int:
    if isinstance(value, bool) or not 1 <= value <= MAX_COUNT:
        raise InputError(f"--{option} is a number from 1 to {MAX_COUNT}, got {value}")
    return int(value)


def _time(option: str, value: str | int) -> int:
    """Text with a unit, or picoseconds."""
    if isinstance(value, str):
        return parse_time(value, f"--{option}")
    if value < 0:
        raise InputError(f"--{option} is not negative, got {value} ps")
    return value


def _port_options(model: GpuModel, arbitration: str | None, choice: str | None) -> tuple[Ports, list[str]]:
    """The ports as asked for, and the paths of what was given."""
    ports, paths = model.ports, []
    if arbitration is not None:
        ports = replace(ports, arbitration=_word("arbitration", arbitration, (FIFO, FAIR)))
        paths.append("ports.arbitration")
    if choice is not None:
        ports = replace(ports, choice=_word("port-choice", choice, (INTERLEAVED, HASHED)))
        paths.append("ports.choice")
        if ports.count == 1:
            raise InputError(f"--port-choice cannot matter: {model.name!r} has one port")
    return ports, paths


def _word(option: str, value: str, known: Sequence[str]) -> str:
    if value not in known:
        raise InputError(f"unknown --{option} {value!r:.80}{nearest(value[:80], known)}")
    return value


def _said(model: GpuModel, paths: Sequence[str]) -> GpuModel:
    """The model with these fields marked as what the user said."""
    return replace(
        model,
        evidence={**model.evidence, **dict.fromkeys(paths, ASSUMED)},
        sources={**model.sources, **dict.fromkeys(paths, "given as an option")},
    )
