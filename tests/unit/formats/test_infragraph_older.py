"""Is InfraGraph's form from before its first release read as the same machine in the current form?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trine.errors import SpecError
from trine.formats.clusters import read_any

LINKS = {"up": "200 GB/s, 1 us", "pcie": "pcie4", "fast": "12.5 GB/s, 1 us", "mii": "12.5 GB/s, 100 ns"}


def older(**changes: Any) -> dict[str, Any]:
    """Two hosts of two accelerators and two NICs, on one leaf switch."""
    host = {
        "name": "HOST",
        "components": {
            "nic": {"name": "nic", "count": 2, "nic": {"ethernet": {}}},
            "npu": {"name": "npu", "count": 2, "npu": {"memory": "MEM_HBM"}},
            "sw": {"name": "sw", "count": 1, "switch": {"custom": {}}},
        },
        "connections": ["npu.0.pcie.nic.0", "npu.1.pcie.nic.1", "npu.0.up.sw.0", "npu.1.up.sw.0"],
        "links": {"up": {"name": "up", "bandwidth": {"gBs": 200}}, "pcie": {"name": "pcie", "type": "LINK_PCIE"}},
    }
    leaf = {
        "name": "LEAF",
        "components": {
            "asic": {"name": "asic", "count": 1, "cpu": {"memory": "MEM_RAM"}},
            "port": {"name": "port", "count": 4, "nic": {"ethernet": {}}},
        },
        "connections": [f"port.{i}.mii.asic.0" for i in range(4)],
        "links": {"mii": {"name": "mii"}},
    }
    cables = [f"host.{h}.nic.{n}.fast.leaf.0.port.{2 * h + n}" for h in range(2) for n in range(2)]
    return {
        "inventory": {"devices": {"HOST": host, "LEAF": leaf}, "links": {"fast": {"bandwidth": {"gbps": 100}}}},
        "device_instances": {"host": {"count": 2, "device": "HOST"}, "leaf": {"count": 1, "device": "LEAF"}},
        "connections": cables,
        **changes,
    }


def current() -> dict[str, Any]:
    """The same machine in the form of InfraGraph 3."""

    def edge(a: str, b: str, link: str) -> dict[str, Any]:
        return {"ep1": {"component": a}, "ep2": {"component": b}, "scheme": "one2one", "link": link}

    host = {
        "name": "HOST",
        "components": [
            {"name": "nic", "count": 2, "choice": "nic"},
            {"name": "npu", "count": 2, "choice": "xpu"},
            {"name": "sw", "count": 1, "choice": "switch"},
        ],
        "links": [{"name": "up"}, {"name": "pcie"}],
        "edges": [
            edge("npu[0]", "nic[0]", "pcie"), edge("npu[1]", "nic[1]", "pcie"), edge("npu[0]", "sw[0]", "up"),
            edge("npu[1]", "sw[0]", "up"),
        ],
    }  # fmt: skip
    leaf = {
        "name": "LEAF",
        "components": [{"name": "asic", "count": 1, "choice": "cpu"}, {"name": "port", "count": 4, "choice": "port"}],
        "links": [{"name": "mii"}],
        "edges": [edge(f"port[{i}]", "asic[0]", "mii") for i in range(4)],
    }
    cables = [
        {
            "ep1": {"instance": f"host[{h}]", "component": f"nic[{n}]"},
            "ep2": {"instance": "leaf[0]", "component": f"port[{2 * h + n}]"}, "scheme": "one2one", "link": "fast",
        }
        for h in range(2)
        for n in range(2)
    ]  # fmt: skip
    return {
        "devices": [host, leaf],
        "links": [{"name": "fast"}],
        "instances": [{"name": "host", "device": "HOST", "count": 2}, {"name": "leaf", "device": "LEAF", "count": 1}],
        "edges": cables,
    }


def read(data: dict[str, Any], folder: Path, name: str = "m.json") -> Any:
    (folder / name).write_text(json.dumps(data))
    return read_any(folder / name, links=LINKS)


@pytest.mark.parametrize("instances", ["device_instances", "deviceInstances"])
def test_the_older_form_is_the_same_machine(instances: str, tmp_path: Path) -> None:
    data = older()
    data[instances] = data.pop("device_instances")
    old, new = read(data, tmp_path), read(current(), tmp_path)
    assert (old.devices, old.links) == (new.devices, new.links)
    assert len(old.gpus) == 4


def test_accelerators_named_npu_are_gpus(tmp_path: Path) -> None:
    data = current()
    data["devices"][0]["components"][1] = {"name": "npu", "count": 2, "choice": "npu", "npu": {}}
    assert read(data, tmp_path).devices == read(current(), tmp_path).devices


def test_bandwidths_of_the_file_are_read(tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text(json.dumps(older()))
    with pytest.raises(SpecError, match=r"HOST\.up lacks latency"):
        read_any(tmp_path / "m.json")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"connections": ["host.0.nic.0.fast.leaf.0"]}, "connections[0]: must be 'instance.0.component.0.link"),
        ({"connections": ["host.x.nic.0.fast.leaf.0.port.0"]}, "edges[0].ep1"),
        ({"connections": [4]}, "connections[0]: must be 'instance.0.component.0.link"),
        ({"connections": "host"}, "connections[0]: must be 'instance.0.component.0.link"),
        ({"device_instances": 7}, "instances: must be a mapping, got 7"),
        ({"device_instances": {}}, "instances"),
        ({"inventory": [1]}, "inventory: must be a mapping"),
        ({"inventory": {"devices": {"A": 5}}}, "inventory.devices.A: must be a mapping, got 5"),
        ({"inventory": {"devices": {"A": {"components": {"c": 1}}}}}, "components.c: must be a mapping, got 1"),
        ({"more": 1}, "unknown key 'more'"),
        ({"inventory": {**older()["inventory"], "links": {"fast": {"bandwidth": {"tbps": 1}}}}}, "tbps"),
        ({"inventory": {"devices": {"A": {"connections": ["a.0.b"]}}}}, "must be 'component.0.link.component.0'"),
    ],
)
def test_faults_name_field_and_value(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError) as found:
        read(older(**changes), tmp_path)
    assert words in str(found.value)
