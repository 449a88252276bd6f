"""Names of GPUs in pasted text: environment dumps of PyTorch and vLLM, ``nvidia-smi``, CUDA's samples."""

from __future__ import annotations

import re

from trine.cluster.presets import known_clusters, library_of_gpu, load_gpu, preset_path
from trine.errors import SpecError

#: ``GPU 0: NVIDIA H100 80GB HBM3 (UUID: ...)``, also after a title; ``Device: 0, NAME, pciBusID``; the one name that
#: PyTorch prints on ROCm; nvidia-smi's table.
_NAMES = re.compile(
    r"^[ \t>#|*]*(?:GPU models and configuration[ \t]*:[ \t]*)?GPU[ \t](?P<a>\d{1,3}):[ \t]*(?P<listed>[^\n(]{3,80})"
    r"|^[ \t>#]*Device:[ \t]*(?P<b>\d{1,3}),[ \t]*(?P<sample>[^\n,]{3,80}),"
    r"|^[ \t>#|*]*GPU models and configuration[ \t]*:[ \t]*(?P<one>(?!GPU[ \t]\d|Could not|No )[A-Za-z][^\n(]{2,80})"
    r"|^\|[ \t]+(?P<c>\d{1,3})[ \t]+(?P<table>(?:NVIDIA|Tesla|Quadro) [^\n|]{2,60}?)[ \t]+(?:On|Off)[ \t]+\|",
    re.MULTILINE,
)
#: First lines and titles of collect_env.py, of PyTorch and of vLLM.
_DUMP = re.compile(
    r"^[ \t>]*Collecting environment information|^[ \t>#*-]*PyTorch version[ \t]*:"
    r"|^[ \t>]*GPU models and configuration[ \t]*:",
    re.MULTILINE,
)
_VLLM = re.compile(r"^[ \t>]*(?:vLLM Version|vLLM Info|Neuron SDK Version)", re.MULTILINE)


#: Number of a GPU whose model a text names without listing all GPUs.
_UNCOUNTED = -1


def named_gpus(text: str) -> dict[int, str]:
    """Return number -> driver's name of each GPU that a text lists; -1 for a model without numbers."""
    names: dict[int, str] = {}
    for match in _NAMES.finditer(text):
        number = match["a"] or match["b"] or match["c"] or _UNCOUNTED
        name = match["listed"] or match["sample"] or match["table"] or match["one"]
        names.setdefault(int(number), " ".join(name.split()).rstrip(" |"))
    return names


def gpu_of_text(text: str) -> str | None:
    """Return the name of the GPU model that all listed GPUs have, None if there is none or trine lacks its data."""
    models = {_model(name) for name in named_gpus(text).values()}
    return models.pop() if len(models) == 1 else None


def _model(name: str) -> str | None:
    try:
        return load_gpu(name).name
    except SpecError:
        return None


def refuse_environment(text: str, file: str) -> None:
    """Raise SpecError, with the GPUs' names, if a text is an environment dump: it has no links of GPUs."""
    if _DUMP.search(text) is None:
        return
    program = "vLLM's" if _VLLM.search(text) else "PyTorch's"
    raise SpecError(f"is {program} environment dump{listed_gpus(text)}, without links: {_remedy(text)}", file=file)


def listed_gpus(text: str) -> str:
    """Return the GPUs of a text in words, such as `` (8 x NVIDIA H200)``, or an empty text."""
    found = named_gpus(text)
    if set(found) == {_UNCOUNTED}:
        return f" ({found[_UNCOUNTED]})"
    names = list(found.values())
    counts = [f"{names.count(name)} x {name}" for name in dict.fromkeys(names)]
    return f" ({', '.join(counts[:3])})" if counts else ""


def _remedy(text: str) -> str:
    """Return what to give instead, with the GPU model and the presets that have it."""
    gpu = gpu_of_text(text)
    if gpu is None:
        return "give `nvidia-smi topo -m` with --gpu MODEL"
    presets = [name for name in known_clusters() if re.search(rf"\bgpu: {re.escape(gpu)}\b", _preset_text(name))]
    preset = f", or take the preset {' or '.join(presets[:3])}" if presets else ""
    is_amd = library_of_gpu(gpu) == "rccl"
    topology = "RCCL's topology (NCCL_TOPO_DUMP_FILE=topo.xml)" if is_amd else "`nvidia-smi topo -m`"
    return f"give {topology} with --gpu {gpu}{preset}"


def _preset_text(name: str) -> str:
    return preset_path(name).read_text(encoding="utf-8")
