"""Do a large machine's columns read as tuples of devices and links, by number and by name, and quickly?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cpu_time import SLACK, fastest

from trine.cluster import Cluster, Device, Link, load_cluster
from trine.cluster.lookup import likely_names
from trine.cluster.names import ordinals
from trine.cluster.tables import DeviceTable, LinkTable
from trine.errors import InputError, SpecError

Asked = dict[str, object]


def machine(**asked: object) -> Cluster:
    return load_cluster("dgx-h100", **{"nodes": 3, **asked})  # type: ignore[arg-type]


def as_tuples(cluster: Cluster) -> Cluster:
    return replace(cluster, devices=tuple(cluster.devices), links=tuple(cluster.links))


def test_columns_read_as_tuples() -> None:
    cluster = machine()
    devices, links = cluster.devices, cluster.links
    assert isinstance(devices, DeviceTable)
    assert isinstance(links, LinkTable)
    assert all(isinstance(device, Device) for device in devices)
    assert all(isinstance(link, Link) for link in links)
    plain = tuple(links)
    assert links == plain
    assert plain == links
    assert hash(links) == hash(plain)
    assert links[5:9] == plain[5:9]
    assert links[-1] == plain[-1]
    assert links[:0] == ()
    assert len(links) == len(plain)
    assert links != plain[1:]
    assert plain[3] in links
    with pytest.raises(IndexError):
        links[len(links)]
    with pytest.raises(IndexError):
        devices[-len(devices) - 1]


def test_columns_of_tuples_are_those_of_the_machine() -> None:
    cluster = machine(gpus=20)
    table, again = cluster.link_table, LinkTable.of(tuple(cluster.links))
    assert table.names == again.names
    for column in ("source", "target", "bytes_per_s", "latency_ps"):
        assert np.array_equal(getattr(table, column), getattr(again, column))
    devices, known = cluster.device_table, DeviceTable.of(tuple(cluster.devices))
    names = [None if node < 0 else devices.node_names[node] for node in devices.node]
    assert names == [None if node < 0 else known.node_names[node] for node in known.node]
    assert [device.node for device in cluster.devices] == names
    assert (cluster.node_of[devices.layout.fabric_device :] == -1).all()  # type: ignore[union-attr]


def test_names_are_found_both_ways() -> None:
    cluster = machine()
    for i in range(len(cluster.devices)):
        assert cluster.index(cluster.device_name(i)) == i
    assert cluster.link_names[7] == cluster.link_name(7) == cluster.links[7].name
    for name in ("node3.gpu0", "node0.gpu8", "rack0.gpu0", "gpu0", "node00.gpu0", "node-1.gpu0", ""):
        with pytest.raises(SpecError, match="has no device"):
            cluster.index(name)


@pytest.mark.parametrize("name", ["node1.gpu2->node1.nvswitch", "node1.gpu2-node1.nvswitch", "leaf3.rail3-spine0"])
def test_slow_and_lost_links_are_those_of_the_tuples(name: str) -> None:
    whole = machine()
    links = tuple(whole.links)
    chosen = {i for i, link in enumerate(links) if link.name == name or _pair(whole, link) & {name}}
    chosen = {i for i in chosen if links[i].name == name} or chosen
    slow = machine(slow_links=[(name, 0.5)])
    assert slow.links == tuple(
        replace(link, bytes_per_s=round(link.bytes_per_s * 0.5)) if i in chosen else link
        for i, link in enumerate(links)
    )
    down = machine(links_down=[name])
    assert down.links == tuple(link for i, link in enumerate(links) if i not in chosen)
    assert down.devices == whole.devices
    assert len({whole.fingerprint, slow.fingerprint, down.fingerprint}) == 3


def _pair(cluster: Cluster, link: Link) -> set[str]:
    a, b = cluster.devices[link.source].name, cluster.devices[link.target].name
    return {f"{a}-{b}", f"{b}-{a}"}


@pytest.mark.parametrize("name", ["node1.gpu2-node1.nvswich", "node9.gpu0-node9.nvswitch", "leaf0.rail0", "->", "a->b"])
def test_unknown_links_get_the_nearest_name(name: str) -> None:
    with pytest.raises(SpecError, match="has no link"):
        machine(slow_links=[(name, 0.5)])


def test_links_of_a_slow_machine_get_no_faster() -> None:
    with pytest.raises(SpecError, match="the factor is above 0"):
        machine(slow_links=[("node0.gpu0->node0.nvswitch", 2.0)])
    with pytest.raises(SpecError, match="more than the link's own"):
        machine(slow_links=[("node0.gpu0->node0.nvswitch", "9 TB/s")])
    with pytest.raises(SpecError, match="nothing leads from"):
        machine(links_down=["node0.gpu0-node0.nvswitch", "node0.gpu0-node0.pcie0"])


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"gpus": 20},
        {"slow_links": [("node0.nic0-leaf0.rail0", 0.3)]},
        {"links_down": ["node1.gpu0-node1.nvswitch", "node1.nic2-leaf2.rail2"]},
        {"fabric": "dragonfly", "nodes": 5},
    ],
    ids=str,
)
def test_fingerprints_see_the_same_machine_in_columns_and_tuples(asked: Asked) -> None:
    cluster = machine(**asked)
    plain = as_tuples(cluster)
    assert cluster == plain
    assert cluster.fingerprint == plain.fingerprint
    changed = replace(plain.links[3], name="other")
    links = (*plain.links[:3], changed, *plain.links[4:])
    assert replace(plain, links=links).fingerprint != cluster.fingerprint
    device = replace(plain.devices[9], node="elsewhere")
    devices = (*plain.devices[:9], device, *plain.devices[10:])
    assert replace(plain, devices=devices).fingerprint != cluster.fingerprint


def test_islands_and_links_from_are_those_of_the_tuples() -> None:
    for asked in ({}, {"links_down": ["node1.gpu0-node1.nvswitch"]}):
        cluster = machine(**asked)
        plain = as_tuples(cluster)
        for device in range(len(cluster.devices)):
            assert cluster.links_from(device) == plain.links_from(device)
        together = cluster.scale_up_components[:, None] == cluster.scale_up_components
        assert np.array_equal(together, plain.scale_up_components[:, None] == plain.scale_up_components)


def test_devices_that_are_not_there_are_refused() -> None:
    cluster = machine()
    with pytest.raises(InputError, match="no device 10000"):
        cluster.routes(np.array([0]), np.array([10000]))
    with pytest.raises(InputError, match="no device -1"):
        cluster.routes(np.array([-1]), np.array([0]))
    with pytest.raises(InputError, match="sources and targets must have one shape"):
        cluster.routes(np.array([0, 1]), np.array([0]))
    ptr, links = cluster.routes(np.zeros(0, np.int64), np.zeros(0, np.int64))
    assert (ptr.tolist(), links.tolist()) == ([0], [])


def test_small_helpers() -> None:
    assert ordinals(np.array([0, 0, 1, 0]), np.array([1, 1, 0, 1])).tolist() == [1, 2, 1, 3]
    assert len(likely_names(tuple(map(str, range(100_000))))) == 20_000


def test_a_hundred_thousand_gpus_are_there_at_once() -> None:
    """With one object for each GPU and link these take about fifty times as long."""
    slow = [("node777.nic3-leaf195.rail3", 0.5)]
    assert fastest(lambda: load_cluster("dgx-h100", nodes=16384)) < 1.5 * SLACK
    assert fastest(lambda: load_cluster("dgx-h100", nodes=16384, slow_links=slow)) < 2.5 * SLACK
    cluster = load_cluster("dgx-h100", nodes=16384)
    rng = np.random.default_rng(1)
    sources, targets = rng.integers(0, 131072, (2, 300_000))
    assert fastest(lambda: cluster.routes(sources, targets)) < 1.5 * SLACK
    assert len(cluster.links) > 1_900_000
    assert cluster.device_name(131071) == "node16383.gpu7"
    assert fastest(lambda: cluster.fingerprint) < 1.5 * SLACK
