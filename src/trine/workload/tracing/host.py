"""Describes the machine of a capture: device, versions and the settings that change an operator's time.

Neither the machine's name nor the user's: a trace may be passed on.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trine._version import __version__

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
    found = {
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cudnn": torch.backends.cudnn.version(),
        "driver": _nvidia_driver(),
    }
    return {key: str(value) for key, value in found.items() if value is not None}


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
    """One setting; PyTorch >= 2.9 raises where a program used both its old and its new names of the TF32 switches."""
    try:
        return str(read())
    except RuntimeError:
        return "set through both of PyTorch's interfaces"


def _nvidia_driver() -> str | None:
    """Release of NVIDIA's kernel module on Linux, such as 535.129.03."""
    try:
        found = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", _NVIDIA_DRIVER.read_text(errors="replace"))
    except OSError:
        return None
    return found[1] if found else None


def _processor() -> str:
    """The processor's name; Linux keeps it where :mod:`platform` does not look."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", _CPU_INFO.read_text(errors="replace"), re.MULTILINE)
    except OSError:
        found = None
    return (found[1].strip() if found else platform.processor() or platform.machine())[:200]
