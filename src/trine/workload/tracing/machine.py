"""Description of the machine of a capture: device, versions and the settings that change an operator's time.

It omits the machine's and the user's names, because a trace may be passed on.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trine.common._version import __version__
from trine.workload.tracing import files as files

_NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
_CPU_INFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineDescription:
    """Names and values, all strings, for people and for choosing a compute model's data type."""

    device_name: str
    versions: dict[str, str]
    host: dict[str, str]
    settings: dict[str, str]


def describe_machine(torch: Any, device: str) -> MachineDescription:
    """Describe this machine; ``torch`` is the imported module, ``device`` ``cuda`` or ``cpu``."""
    processor = _processor()
    on_gpu = device == "cuda"
    versions = {"trine": __version__, "torch": str(torch.__version__), "python": platform.python_version()}
    if on_gpu:
        versions.update(_gpu_versions(torch))
    return MachineDescription(
        device_name=str(torch.cuda.get_device_name()) if on_gpu else processor,
        versions=versions,
        host={
            "system": f"{platform.system()} {platform.release()}",
            "machine": platform.machine(),
            "processor": processor,
            "logical_processors": str(os.cpu_count()),
            "torch_threads": str(torch.get_num_threads()),
        },
        settings=_settings(torch, on_gpu),
    )


def _gpu_versions(torch: Any) -> dict[str, str]:
    versions = {
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cudnn": torch.backends.cudnn.version(),
        "driver": _nvidia_driver(),
    }
    return {key: str(value) for key, value in versions.items() if value is not None}


def _settings(torch: Any, on_gpu: bool) -> dict[str, str]:
    settings = {
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "float32_matmul_precision": _setting(torch.get_float32_matmul_precision),
    }
    if on_gpu:
        settings["cudnn_allow_tf32"] = _setting(lambda: torch.backends.cudnn.allow_tf32)
        settings["cudnn_benchmark"] = str(torch.backends.cudnn.benchmark)
        settings["cudnn_deterministic"] = str(torch.backends.cudnn.deterministic)
    return settings


def _setting(read: Callable[[], object]) -> str:
    """Return one setting; PyTorch >= 2.9 raises if a program used both old and new names of the TF32 switches."""
    try:
        return str(read())
    except RuntimeError:
        return "set through both of PyTorch's interfaces"


def _nvidia_driver() -> str | None:
    """Return the release of NVIDIA's kernel module on Linux, such as 535.129.03."""
    try:
        release = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", _NVIDIA_DRIVER.read_text(errors="replace"))
    except OSError:
        return None
    return release[1] if release else None


def _processor() -> str:
    """Return the processor's name; on Linux from a file that :mod:`platform` does not read."""
    try:
        name_line = re.search(r"^model name\s*:\s*(.+)$", _CPU_INFO.read_text(errors="replace"), re.MULTILINE)
    except OSError:
        name_line = None
    return (name_line[1].strip() if name_line else platform.processor() or platform.machine())[:200]
