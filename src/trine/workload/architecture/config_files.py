"""Recognition of a Hugging Face config.json."""

from __future__ import annotations

from pathlib import Path

from trine.errors import SpecError


def is_config(path: Path) -> bool:
    """Return whether a path is a config.json, or a folder with one."""
    if path.is_dir():
        return True
    if path.suffix != ".json":
        return False
    from trine.workload.architecture.config_keys import read_config

    try:
        content = read_config(path)
    except SpecError:
        return path.name == "config.json"
    return "model_type" in content or path.name == "config.json"
