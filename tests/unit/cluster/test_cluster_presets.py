"""Are the presets complete, with a source for each number?"""

from __future__ import annotations

import pytest

from trine.cluster import build_topology, known_clusters, known_gpus, known_links, load_cluster, load_gpu
from trine.errors import SpecError


def test_the_promised_presets_are_there() -> None:
    assert set(known_clusters()) >= {
        "a40-pcie", "a100-nvlink-4", "dgx1-v100", "dgx-a100", "dgx-h100", "hgx-h200", "hgx-b200", "gb200-nvl72",
        "mi250x-node", "mi300x-node", "mi350x-node", "l40s-pcie", "rtx4090-pcie",
    }  # fmt: skip
    assert {"a40", "a100-40gb", "a100-80gb", "h100-sxm", "h100-pcie", "h200", "v100"} <= set(known_gpus())
    assert {"b200", "mi250x", "mi300x", "l40s", "rtx4090", "t4"} <= set(known_gpus())
    assert {"b300", "gb200", "gb300", "gh200", "gb10", "h20", "mi325x", "mi350x", "mi355x"} <= set(known_gpus())
    assert {"a100-pcie-40gb", "a100-pcie-80gb", "a800-sxm", "h800-sxm", "p100", "p100-pcie"} <= set(known_gpus())
    assert {"v100-pcie", "rtx3090", "rtx-pro-6000", "mi100", "mi210"} <= set(known_gpus())
    assert {"rtx5090", "a10", "a10g", "a6000", "l4"} <= set(known_gpus())


@pytest.mark.parametrize("name", known_gpus())
def test_gpus_have_sane_numbers_with_sources(name: str) -> None:
    gpu = load_gpu(name)
    assert gpu.name == name
    optional = {field for field in ("nvlink", "pcie") if getattr(gpu, field) is not None}
    optional |= {"step_slowdown"} if gpu.step_slowdown != 1 else set()
    assert (gpu.l2_bytes is None) == (gpu.l2_bytes_per_s is None)
    optional |= {"l2", "l2_bandwidth"} if gpu.l2_bytes else set()
    assert set(gpu.sources) == {"memory", "memory_bandwidth", "compute_units", "compute", "power"} | optional
    assert {gpu.nvlink, gpu.pcie} - {None} <= set(known_links())
    assert 16 * 2**30 <= gpu.memory_bytes < 10**12
    assert 10**11 < gpu.memory_bytes_per_s < 10**13
    assert {"float64", "float32", "float16"} <= set(gpu.flop_per_s)
    assert gpu.flop_per_s["float64"] <= gpu.flop_per_s["float32"] < gpu.flop_per_s["float16"] < 10**16
    for alias in gpu.aliases:
        assert load_gpu(alias) == gpu


def test_gpus_are_found_by_what_drivers_call_them() -> None:
    assert load_gpu("NVIDIA H100 80GB HBM3").name == "h100-sxm"
    assert load_gpu("nvidia a100-sxm4-80gb").name == "a100-80gb"
    assert load_gpu("NVIDIA A100-PCIE-40GB").name == "a100-pcie-40gb"
    assert load_gpu("NVIDIA A100 80GB PCIe").name == "a100-pcie-80gb"
    assert load_gpu("NVIDIA RTX A6000").name == "a6000"
    assert [load_gpu(f"NVIDIA {name}").name for name in ("A10", "A10G", "L4")] == ["a10", "a10g", "l4"]
    with pytest.raises(SpecError, match="unknown GPU 'h100-sxn'; did you mean 'h100-sxm'"):
        load_gpu("h100-sxn")


#: name, GPUs, GPU model, GB/s and links of the route between the first two and between the first and the last GPU
MACHINES = [
    ("a40-pcie", 2, "a40", (24.5, 2), (24.5, 2)),
    ("a100-nvlink-4", 4, "a100-80gb", (240, 2), (240, 2)),
    ("dgx1-v100", 8, "v100", (22.5, 1), (8, 5)),
    ("dgx-a100", 8, "a100-80gb", (240, 2), (240, 2)),
    ("dgx-h100", 8, "h100-sxm", (370.8, 2), (370.8, 2)),
    ("hgx-h200", 8, "h200", (370.8, 2), (370.8, 2)),
    ("hgx-h800", 8, "h800-sxm", (164.8, 2), (164.8, 2)),
    ("hgx-b200", 8, "b200", (721.8, 2), (721.8, 2)),
    ("hgx-b300", 8, "b300", (721.8, 2), (721.8, 2)),
    ("h20-node", 8, "h20", (370.8, 2), (370.8, 2)),
    ("gb200-nvl72", 72, "gb200", (721.8, 2), (721.8, 2)),
    ("gb300-nvl72", 72, "gb300", (721.8, 2), (721.8, 2)),
    ("mi250x-node", 8, "mi250x", (4 * 38, 1), (2 * 38, 2)),
    ("mi300x-node", 8, "mi300x", (48, 1), (48, 1)),
    ("mi325x-node", 8, "mi325x", (48, 1), (48, 1)),
    ("mi350x-node", 8, "mi350x", (58, 1), (58, 1)),
    ("mi355x-node", 8, "mi355x", (58, 1), (58, 1)),
    ("l40s-pcie", 8, "l40s", (24.5, 2), (24.5, 5)),
    ("rtx3090-pcie", 4, "rtx3090", (24.5, 2), (24.5, 2)),
    ("rtx4090-pcie", 8, "rtx4090", (24.5, 2), (24.5, 3)),
    ("rtx5090-pcie", 8, "rtx5090", (53, 2), (53, 3)),
    ("rtx-pro-6000-pcie", 8, "rtx-pro-6000", (53, 2), (53, 5)),
    ("a10-pcie", 8, "a10", (24.5, 2), (24.5, 3)),
    ("a10g-pcie", 8, "a10g", (24.5, 2), (24.5, 3)),
    ("l4-pcie", 8, "l4", (24.5, 2), (24.5, 3)),
    ("a6000-pairs", 8, "a6000", (48, 1), (24.5, 3)),
    ("gh200-node", 4, "gh200", (123.6, 1), (123.6, 1)),
    ("dgx-spark", 1, "gb10", None, None),
]
#: Presets from case studies, not vendors: engine/test_circuit_network.py, gpu/test_gpu_presets.py.
WAFERS = ("wafer-a100-mesh", "wafer-a100-photonic")
OF_PAPERS = (*WAFERS, "astra3-generic", "eidola")
Way = tuple[float, int] | None


def test_every_preset_is_tested() -> None:
    assert sorted([*OF_PAPERS, *(name for name, *_ in MACHINES)]) == sorted(known_clusters())


@pytest.mark.parametrize(("name", "num_gpus", "gpu", "near", "far"), MACHINES)
def test_clusters_have_their_gpus_hosts_and_routes(name: str, num_gpus: int, gpu: str, near: Way, far: Way) -> None:
    cluster = load_cluster(name)
    assert cluster.gpus == tuple(range(num_gpus))  # first, so that rank number and device index agree
    assert {cluster.devices[i].gpu for i in cluster.gpus} == {gpu}
    assert cluster.library == ("rccl" if gpu.startswith("mi") else "nccl")
    for other, expected in ((1, near), (num_gpus - 1, far)):
        if expected is not None:
            route = [cluster.links[link] for link in cluster.route(0, other)]
            assert (min(link.bytes_per_s for link in route) / 1e9, len(route)) == expected
    for i in cluster.gpus:
        host = cluster.host_of(i)
        assert host is not None
        assert cluster.devices[host].kind == "host"
        assert cluster.devices[host].node == cluster.devices[i].node
        assert all(cluster.links[link].link_class == "host" for link in cluster.route(host, i))
        for other in cluster.gpus:
            assert other == i or cluster.route(i, other)


@pytest.mark.parametrize("name", known_clusters())
def test_clusters_say_where_their_numbers_come_from(name: str) -> None:
    cluster = load_cluster(name)
    assert len(cluster.sources) >= 3
    assert len(cluster.notes) > 80
    if name not in ("mi250x-node", "dgx-spark", *OF_PAPERS):  # their sources describe host and NIC links
        assert all(link.medium is not None for link in cluster.links)
    for link in cluster.links:
        assert link.peak_bytes_per_s is not None
        assert link.bytes_per_s <= link.peak_bytes_per_s
        opposite = [back for back in cluster.links_from(link.target) if back.target == link.source]
        assert [back.bytes_per_s for back in opposite] == [link.bytes_per_s]
    assert ("NVSwitches that reduce" in cluster.notes) == any(device.reduces for device in cluster.devices)


#: Machines with a NIC on the first CPU only, or under every second switch: most links from a GPU to it.
FAR_NICS = {
    "rtx-pro-6000-pcie": 4,
    **dict.fromkeys(("rtx4090-pcie", "rtx5090-pcie", "a10-pcie", "a10g-pcie", "l4-pcie", "a6000-pairs"), 3),
}


@pytest.mark.parametrize("name", [name for name in known_clusters() if load_cluster(name).fabric is not None])
def test_every_gpu_has_a_nic_near_it(name: str) -> None:
    """One NIC per GPU if there are enough NICs; otherwise GPUs share them evenly."""
    cluster = load_cluster(name)
    nics = [cluster.nic_of(gpu) for gpu in cluster.gpus]
    number = sum(device.kind == "nic" for device in cluster.devices)
    assert None not in nics
    assert {nics.count(nic) for nic in nics} == {len(nics) // number}
    for gpu, nic in zip(cluster.gpus, nics, strict=True):
        assert nic is not None
        assert cluster.devices[nic].node == cluster.devices[gpu].node
        assert len(cluster.route(gpu, nic)) <= FAR_NICS.get(name, 2)


def test_only_hopper_and_later_nvswitches_reduce() -> None:
    reducing = {name for name in known_clusters() if any(device.reduces for device in load_cluster(name).devices)}
    nvl72 = {"gb200-nvl72", "gb300-nvl72"}
    assert reducing == {"dgx-h100", "hgx-h200", "hgx-h800", "hgx-b200", "hgx-b300", "h20-node", *nvl72}


def test_dgx1_is_the_hybrid_cube_mesh() -> None:
    """Six lanes per GPU; the same pairs as the ``hypercube-mesh`` topology."""
    cluster, plain = load_cluster("dgx1-v100"), build_topology("hypercube-mesh", "22.5 GB/s", "1 us", 8)
    lanes: dict[tuple[int, int], int] = {}
    for link in plain.links:
        lanes[link.source, link.target] = lanes.get((link.source, link.target), 0) + 1
    direct = {(a.source, a.target): a.bytes_per_s for a in cluster.links if a.link_class == "scale-up"}
    assert direct == {ends: count * 22_500_000_000 for ends, count in lanes.items()}


def test_two_gpus_of_a_dgx_share_a_link_to_the_host() -> None:
    cluster = load_cluster("dgx-h100")
    ways = [[cluster.links[link].name for link in cluster.route(cluster.host_of(i) or 0, i)] for i in cluster.gpus]
    memory = [[f"dram{i // 4}->host{i // 4}", f"host{i // 4}->pcie{i // 2}"] for i in cluster.gpus]
    assert [way[:2] for way in ways] == memory


def test_copies_offload_and_nics_meet_on_the_same_links() -> None:
    """Host memory and NIC traffic share one PCIe link into a GPU and one out of it."""
    cluster = load_cluster("dgx-h100", nodes=2)
    node1 = len(cluster.gpus) // 2
    for gpu in range(8):
        host = cluster.host_of(gpu)
        assert host is not None
        copies, offload = cluster.route(host, gpu), cluster.route(gpu, host)
        received, sent = cluster.route(node1 + gpu, gpu), cluster.route(gpu, node1 + gpu)
        assert copies[-1] == received[-1]
        assert offload[0] == sent[0]
        assert offload[1:-1] == cluster.route(gpu ^ 1, host)[1:-1]  # the PCIe switch's one link to its CPU
        assert offload[-1] == cluster.route(gpu ^ 3, host)[-1]  # and the CPU's memory


@pytest.mark.parametrize("name", [name for name in known_clusters() if "dram" in str(load_cluster(name).device_names)])
def test_host_memory_changes_no_route_between_gpus(name: str) -> None:
    cluster = load_cluster(name)
    kept = [i for i, device in enumerate(cluster.devices) if not device.name.startswith("dram")]
    assert kept == [i for i in kept if cluster.host_of(cluster.gpus[0]) != i]
    without = {link for link, name in enumerate(cluster.link_names) if "dram" in name}
    for a in cluster.gpus:
        for b in cluster.gpus:
            assert not without & set(cluster.route(a, b))
    hosts = {cluster.host_of(gpu) for gpu in cluster.gpus}
    for host in hosts:
        assert host is not None
        (link,) = cluster.links_from(host)
        assert link.medium is not None
        assert link.bytes_per_s > max(
            each.bytes_per_s
            for each in cluster.links_from(link.target)
            if each.target != host and each.link_class == "host"
        )
