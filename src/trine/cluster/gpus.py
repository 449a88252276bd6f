"""GPU models by name, from presets/gpus/*.yaml."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from trine.cluster.device import GpuSpec
from trine.errors import SpecError, nearest

_FOLDER = Path(__file__).parent.parent / "presets" / "gpus"


def known_gpus() -> tuple[str, ...]:
    """Names of the GPU models that come with trine, sorted."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


def load_gpu(name: str) -> GpuSpec:
    """Return a GPU model by its name, or by what drivers call it (``"NVIDIA H100 80GB HBM3"``); case does not matter.

    Raises
    ------
    SpecError: unknown name; names the nearest.
    """
    if not isinstance(name, str):
        raise SpecError(f"must be the name of a GPU, got {name!r:.80}", field="gpu")
    wanted = _plain(name)
    if wanted in known_gpus():
        return _read(wanted)
    for preset in known_gpus():  # only the file that has the name in it needs to be parsed
        if wanted in _text(preset) and wanted in map(_plain, _read(preset).aliases):
            return _read(preset)
    by_alias = [_plain(alias) for preset in known_gpus() for alias in _read(preset).aliases]
    raise SpecError(f"unknown GPU {name!r}{nearest(wanted, (*known_gpus(), *by_alias))}")


def _plain(name: str) -> str:
    return " ".join(name.lower().split())


@cache
def _text(name: str) -> str:
    return _plain((_FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))


@cache
def _read(name: str) -> GpuSpec:
    from trine.cluster.gpu_schema import GpuFile
    from trine.spec import read_spec

    spec = read_spec(_FOLDER / f"{name}.yaml", GpuFile)
    return GpuSpec(
        name=name,
        memory_bytes=spec.memory,
        memory_bytes_per_s=spec.memory_bandwidth,
        flop_per_s={str(dtype): rate for dtype, rate in spec.compute.items()},
        num_compute_units=spec.compute_units,
        power_w=spec.power,
        sources=dict(spec.sources),
        aliases=tuple(spec.aliases),
    )
