"""Older forms of InfraGraph, brought into the current one.

- Releases before 1.0 call accelerators ``npu`` instead of ``xpu``.
- ``infra.proto`` of Keysight's ``chakra`` repository, from before InfraGraph's first release: ``inventory`` holds maps
  of devices and links, ``device_instances`` (or ``deviceInstances``) a map of instances. Connections are text:
  ``component.0.link.component.0`` in a device, ``instance.0.component.0.link.instance.0.component.0`` between devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trine.common.schema import show
from trine.common.units import whole_number
from trine.errors import SpecError, nearest

#: Keys of a component that tell its kind -> the current choice; ``custom`` comes last.
_CHOICES = {"npu": "xpu", "cpu": "cpu", "nic": "nic", "switch": "switch", "custom": "custom"}
_UNITS = {"gbps": "gigabits_per_second", "gBs": "gigabytes_per_second", "gts": "gigatransfers_per_second"}
_MAX_INDEX = 10**7
_Entry = Mapping[str, Any]


def modernised(data: object, file: str) -> object:
    """Return InfraGraph's data in the current form; data in the current form stay as they are.

    Raises SpecError: a connection or a link that does not fit the old form; names field and value.
    """
    if isinstance(data, dict) and "inventory" in data:
        return _from_inventory(data, file)
    if isinstance(data, dict):
        for device in [data, *(data["devices"] if isinstance(data.get("devices"), list) else [])]:
            _rename_npus(device)
    return data


def _rename_npus(device: object) -> None:
    components = device.get("components") if isinstance(device, dict) else None
    for component in components if isinstance(components, list) else []:
        if isinstance(component, dict) and component.get("choice") == "npu":
            component["choice"] = "xpu"
            component["xpu"] = component.pop("npu", None)


def _from_inventory(data: _Entry, file: str) -> dict[str, Any]:
    instances = "deviceInstances" if "deviceInstances" in data else "device_instances"
    keys = ("inventory", instances, "connections", "name", "description")
    for key in data:
        if key not in keys:
            raise SpecError(f"unknown key {show(key)}{nearest(str(key), keys)}", file=file)
    inventory = _mapping(data["inventory"], file, "inventory")
    return {
        "name": str(data.get("name", "")),
        "devices": [
            _device(name, entry, file) for name, entry in _items(inventory.get("devices"), file, "inventory.devices")
        ],
        "links": [_link(name, entry, file) for name, entry in _items(inventory.get("links"), file, "inventory.links")],
        "instances": [
            {"name": name, "device": entry.get("device"), "count": entry.get("count", 1)}
            for name, entry in _items(data.get(instances), file, instances)
        ],
        "edges": [
            _instance_edge(text, file, f"connections[{number}]")
            for number, text in enumerate(_texts(data.get("connections"), file, "connections"))
        ],
    }


def _device(name: str, entry: _Entry, file: str) -> dict[str, Any]:
    field = f"inventory.devices.{name}"
    components = dict(_items(entry.get("components"), file, f"{field}.components"))
    has_npu = any("npu" in component for component in components.values())
    return {
        "name": name,
        "components": [_component(key, component, has_npu) for key, component in components.items()],
        "links": [_link(key, link, file) for key, link in _items(entry.get("links"), file, f"{field}.links")],
        "edges": [
            _device_edge(text, file, f"{field}.connections[{number}]")
            for number, text in enumerate(_texts(entry.get("connections"), file, f"{field}.connections"))
        ],
    }


def _component(name: str, entry: _Entry, has_npu: bool) -> dict[str, Any]:
    """Return a component; the NICs of a device without accelerators but with an ASIC are a switch's ports."""
    choice = next((choice for key, choice in _CHOICES.items() if key in entry), "custom")
    if choice == "nic" and not has_npu:
        choice = "port"
    return {"name": name, "count": entry.get("count", 1), "choice": choice}


def _link(name: str, entry: _Entry, file: str) -> dict[str, Any]:
    link: dict[str, Any] = {"name": name, "description": str(entry.get("description", ""))}
    bandwidth = _mapping(entry.get("bandwidth") or {}, file, f"links.{name}.bandwidth")
    for key, value in bandwidth.items():
        if key not in _UNITS:
            hint = nearest(str(key), _UNITS)
            raise SpecError(f"unknown unit {show(key)}{hint}", file=file, field=f"links.{name}.bandwidth")
        link["physical"] = {"bandwidth": {"choice": _UNITS[key], _UNITS[key]: value}}
    return link


def _device_edge(text: str, file: str, field: str) -> dict[str, Any]:
    parts = text.split(".")
    if len(parts) != 5:
        raise SpecError(f"must be 'component.0.link.component.0', got {show(text)}", file=file, field=field)
    a, b = _indexed(parts[0], parts[1], file, field), _indexed(parts[3], parts[4], file, field)
    return {"ep1": {"component": a}, "ep2": {"component": b}, "scheme": "one2one", "link": parts[2]}


def _instance_edge(text: str, file: str, field: str) -> dict[str, Any]:
    parts = text.split(".")
    if len(parts) != 9:
        form = "instance.0.component.0.link.instance.0.component.0"
        raise SpecError(f"must be '{form}', got {show(text)}", file=file, field=field)
    ends = [
        {"instance": _indexed(*part[:2], file, field), "component": _indexed(*part[2:], file, field)}
        for part in (parts[:4], parts[5:])
    ]
    return {"ep1": ends[0], "ep2": ends[1], "scheme": "one2one", "link": parts[4]}


def _indexed(name: str, index: str, file: str, field: str) -> str:
    if whole_number(index, most=_MAX_INDEX) is None:
        raise SpecError(f"the index of {name[:40]!r} must be a whole number, got {show(index)}", file=file, field=field)
    return f"{name}[{index}]"


def _mapping(value: object, file: str, field: str) -> _Entry:
    if not isinstance(value, dict):
        raise SpecError(f"must be a mapping, got {show(value)}", file=file, field=field)
    return value


def _items(value: object, file: str, field: str) -> Iterator[tuple[str, _Entry]]:
    for key, entry in _mapping(value or {}, file, field).items():
        yield str(key), _mapping(entry, file, f"{field}.{str(key)[:40]}")


def _texts(value: object, file: str, field: str) -> list[str]:
    entries = value or []
    if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        raise SpecError(f"must be a list of text, got {show(value)}", file=file, field=field)
    return entries
