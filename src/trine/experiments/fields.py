"""Fields inside the files of a question: ``cluster.links.nvlink.bandwidth`` changes a copy of the cluster's file.

The first part of the name is the option that names the file: ``cluster``, ``gpu_model`` or ``software``; ``workload``
extends ``model:NAME``. The other parts are keys of the file. An entry of a list is named by its ``name`` or ``link``,
or by its beginning (``nvlink`` for ``nvlink4``); the change applies to all entries that match.
"""

from __future__ import annotations

import copy
import json
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from trine.common.inputs import PRESETS, is_file, read_bytes
from trine.common.outputs import write_text
from trine.common.plugins import load_target
from trine.common.spec import load_mapping
from trine.common.units import whole_number
from trine.errors import InputError, StorageError, nearest
from trine.experiments.places import make_folder
from trine.experiments.spec import Settings, canonical, digest
from trine.experiments.values import Value

#: Option -> folder of its presets, and function that reads and checks its file.
FILES = {
    "cluster": ("clusters", "trine.cluster:load_cluster"),
    "gpu_model": ("gpu_models", "trine.gpu.model.files:load_gpu_model"),
    "software": ("software", "trine.software.profile:load_software"),
}
_SOURCE = "set by the experiment"


def with_changed_files(settings: Settings, directory: Path) -> tuple[Settings, Settings]:
    """Return the settings with options for dotted fields, which name changed files in ``files``, and their identity.

    The identity has a digest of each changed file in place of its path.

    Raises InputError: a field without the option that it changes, or one that the file does not have. StorageError: a
    file cannot be written.
    """
    plain = {name: value for name, value in settings.items() if not is_inside(name)}
    identity = dict(plain)
    changes: dict[str, Settings] = {}
    for name in filter(is_inside, settings):
        option, _, place = name.partition(".")
        changes.setdefault(option, {})[place] = settings[name]
    for option, changed in changes.items():
        base, field = plain.get(option), f"{option}.{next(iter(changed))}"
        if not isinstance(base, str):
            raise InputError(f"changes a file: set {option} too", field=field)
        if option == "workload":
            if not base.startswith("model:"):
                raise InputError(f"changes a model: {base!r:.80} is a trace", field=field)
            plain[option] = identity[option] = ",".join([base, *(f"{key}={changed[key]}" for key in changed)])
            continue
        name, text = changed_file(option, base, canonical(changed))
        path = make_folder(directory, "files", digest(text)) / f"{name}.json"
        if not path.is_file() or path.is_symlink() or read_bytes(path) != text.encode():
            write_text(path, text, error=StorageError, follow=False)
        plain[option], identity[option] = os.fspath(path), digest(text)
    return plain, identity


def is_inside(name: str) -> bool:
    """Return whether a field lies inside a file or a model."""
    return name.partition(".")[0] in (*FILES, "workload") and "." in name


@lru_cache(maxsize=1024)
def changed_file(option: str, base: str, changes: str) -> tuple[str, str]:
    """Return the name of a base file and its text with changes, which are JSON of path -> value.

    Raises InputError: an unknown base or path.
    """
    preset = PRESETS / FILES[option][0] / f"{base.lower()}.yaml"
    path = preset if os.sep not in base and is_file(preset) else Path(base)
    if not is_file(path):
        raise InputError(f"{base!r:.80} is neither a preset nor a file, so no field of it can change", field=option)
    data = copy.deepcopy(load_mapping(path))
    if not isinstance(data, dict):
        raise InputError("must be a mapping", file=path)
    for entry, key in [(data, "base"), *((node, "file") for node in [data.get("node"), *(data.get("nodes") or [])])]:
        if isinstance(entry, dict) and isinstance(entry.get(key), str) and is_file(path.parent / entry[key]):
            entry[key] = os.path.abspath(path.parent / entry[key])  # the copy lies elsewhere
    if option == "cluster":
        data.setdefault("name", path.stem)
    for place, value in json.loads(changes).items():
        _set(data, place.split("."), value, f"{option}.{place}")
        data.setdefault("sources", {})[place] = _SOURCE
        if option == "software" and place.startswith("factors.") and place.endswith(".value"):
            _set(data, [*place.split(".")[:-1], "fitted_on"], _SOURCE, f"{option}.{place}")
    return path.stem, json.dumps(data, indent=1)


def _set(data: dict[str, Any], parts: list[str], value: Value, field: str) -> None:
    """Set a value in nested mappings and lists; in a list, in all entries that match."""
    nodes: list[Any] = [data]
    for part in parts[:-1]:
        nodes = [below for node in nodes for below in _below(node, part, field)]
    for node in nodes:
        if not isinstance(node, dict):
            raise InputError(f"has no {parts[-1]!r:.80} below {'.'.join(parts[:-1])!r:.80}", field=field)
        node[parts[-1]] = value
        if parts[-1] == "bandwidth":
            node.pop("lanes", None)  # a bandwidth of all lanes replaces their number


def _below(node: Any, part: str, field: str) -> list[Any]:
    """Return the entry of a mapping, or the entries of a list with this name, link, position or beginning of a name."""
    if isinstance(node, dict):
        return [node.setdefault(part, {})]
    if not isinstance(node, list):
        raise InputError(f"has nothing called {part!r:.80}", field=field)
    if (number := whole_number(part, 0, len(node) - 1)) is not None:
        return [node[number]]
    names = []
    for item in node:
        names.append(str(item.get("name", item.get("link", ""))) if isinstance(item, dict) else "")
    if part in names:
        wanted = {part}
    else:
        wanted = {name for name in names if name.startswith(part)}
    if not wanted:
        raise InputError(f"no entry {part!r:.80}{nearest(part, set(names) - {''})}", field=field)
    return [item for item, name in zip(node, names, strict=True) if name in wanted]


def check_files(settings: Settings, directory: Path) -> None:
    """Read the changed files of a point. Raises InputError for a field that a file does not have, or a wrong value."""
    plain, _ = with_changed_files(settings, directory)
    for option, (_, reader) in FILES.items():
        if any(name.startswith(f"{option}.") for name in settings):
            try:
                load_target(reader)(plain[option])
            except InputError as error:
                problem = str(error).replace(f"{plain[option]}: ", "")
                raise InputError(problem, field=f"{option} (changed)") from None
