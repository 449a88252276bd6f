"""Older forms of InfraGraph, brought into the current one; its schema then checks the result.

- Releases before 1.0 call accelerators ``npu`` instead of ``xpu``.
- ``infra.proto`` of Keysight's ``chakra`` repository, from before InfraGraph's first release: ``inventory`` holds maps
  of devices and links, ``device_instances`` (or ``deviceInstances``) a map of instances. Connections are text:
  ``component.0.link.component.0`` in a device, ``instance.0.component.0.link.instance.0.component.0`` between devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trine.common.schema import show
from trine.errors import SpecError

#: Keys of a component that tell its kind -> the current choice.
_CHOICES = {"npu": "xpu", "cpu": "cpu", "nic": "nic", "switch": "switch"}
_UNITS = {"gbps": "gigabits_per_second", "gBs": "gigabytes_per_second", "gts": "gigatransfers_per_second"}


def modernised(data: object, file: str) -> object:
    """Return InfraGraph's data in the current form; data in the current form stay as they are.

    Raises SpecError: a part of the old form of another type; names field and value.
    """
    if isinstance(data, dict) and "inventory" in data:
        return _from_inventory(data, file)
    devices = data.get("devices") if isinstance(data, dict) else None
    for device in devices if isinstance(devices, list) else []:
        components = device.get("components") if isinstance(device, dict) else None
        for component in components if isinstance(components, list) else []:
            if isinstance(component, dict) and component.get("choice") == "npu":
                component["choice"] = "xpu"
                component.pop("npu", None)
    return data


def _from_inventory(data: dict[str, Any], file: str) -> dict[str, Any]:
    old_keys = ("inventory", "device_instances", "deviceInstances", "connections")
    instances = data.get("device_instances", data.get("deviceInstances"))
    inventory = dict(_items({"inventory": data["inventory"]}, "", file))["inventory"]
    devices = _items(inventory.get("devices"), "inventory.devices", file)
    kept = {key: value for key, value in data.items() if key not in old_keys}
    device_list = [_device(name, entry, f"inventory.devices.{name}", file) for name, entry in devices]
    links = _links(inventory.get("links"), "inventory.links", file)
    instance_rows = [{"count": 1, **entry, "name": name} for name, entry in _items(instances, "instances", file)]
    return {
        **kept,
        "devices": device_list,
        "links": links,
        "instances": instance_rows,
        "edges": _edges(data.get("connections"), ("instance", "component"), "connections", file),
    }


def _device(name: str, entry: dict[str, Any], field: str, file: str) -> dict[str, Any]:
    """Return a device; the NICs of one without accelerators are a switch's ports."""
    components = dict(_items(entry.get("components"), f"{field}.components", file))
    has_accelerators = any("npu" in component for component in components.values())
    nic = "nic" if has_accelerators else "port"
    choices = {}
    for key, part in components.items():
        choices[key] = next((_CHOICES[kind] for kind in _CHOICES if kind in part), "custom")
    component_rows = []
    for key, part in components.items():
        component_rows.append(
            {"name": key, "count": part.get("count", 1), "choice": nic if choices[key] == "nic" else choices[key]}
        )
    return {
        "name": name,
        "components": component_rows,
        "links": _links(entry.get("links"), f"{field}.links", file),
        "edges": _edges(entry.get("connections"), ("component",), f"{field}.connections", file),
    }


def _links(links: object, field: str, file: str) -> list[dict[str, Any]]:
    result = []
    for name, entry in _items(links, field, file):
        result.append({"name": name, "description": entry.get("description", "")})
        for _, bandwidth in _items({"bandwidth": entry.get("bandwidth") or {}}, f"{field}.{name}", file):
            rates = {_UNITS.get(unit, unit): value for unit, value in bandwidth.items()}
            if rates:
                result[-1]["physical"] = {"bandwidth": {"choice": next(iter(rates)), **rates}}
    return result


def _edges(texts: object, parts: tuple[str, ...], field: str, file: str) -> list[dict[str, Any]]:
    """Return the edges of connections, whose ends name each of ``parts`` with an index."""
    edges = []
    if isinstance(texts, list):
        listed = texts
    elif texts is None:
        listed = []
    else:
        listed = [texts]
    for number, text in enumerate(listed):
        words = text.split(".") if isinstance(text, str) else []
        if len(words) != 4 * len(parts) + 1:
            form = ".".join(f"{part}.0" for part in parts)
            raise SpecError(f"must be '{form}.link.{form}', got {show(text)}", file=file, field=f"{field}[{number}]")
        half = 2 * len(parts)
        ends = []
        for end in (words[:half], words[half + 1 :]):
            ends.append({part: f"{end[2 * i]}[{end[2 * i + 1]}]" for i, part in enumerate(parts)})
        edges.append({"ep1": ends[0], "ep2": ends[1], "scheme": "one2one", "link": words[half]})
    return edges


def _items(value: object, field: str, file: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and entry of a mapping of mappings. Raises SpecError for other values."""
    if not isinstance(value or {}, dict):
        raise SpecError(f"must be a mapping, got {show(value)}", file=file, field=field)
    for key, entry in (value or {}).items():  # type: ignore[attr-defined]
        if not isinstance(entry, dict):
            raise SpecError(f"must be a mapping, got {show(entry)}", file=file, field=f"{field}.{key}".strip(".")[:80])
        yield str(key), entry
