"""Are the presets complete, and do they say where each number comes from?"""

from __future__ import annotations

import pytest

from trine.cluster import known_clusters, known_gpus, load_cluster, load_gpu
from trine.errors import SpecError


def test_the_promised_presets_are_there() -> None:
    assert {"a40-pcie", "a100-nvlink-4", "dgx-h100"} <= set(known_clusters())
    assert {"a40", "a100-40gb", "a100-80gb", "h100-sxm", "h100-pcie", "h200", "v100"} <= set(known_gpus())
    assert {"b200", "mi250x", "mi300x", "l40s", "rtx4090", "t4"} <= set(known_gpus())


@pytest.mark.parametrize("name", known_gpus())
def test_gpus_have_sane_numbers_with_sources(name: str) -> None:
    gpu = load_gpu(name)
    assert gpu.name == name
    assert set(gpu.sources) == {"memory", "memory_bandwidth", "compute_units", "compute"}
    assert 16 * 2**30 <= gpu.memory_bytes < 10**12
    assert 10**11 < gpu.memory_bytes_per_s < 10**13
    assert {"float64", "float32", "float16"} <= set(gpu.flop_per_s)
    assert gpu.flop_per_s["float64"] <= gpu.flop_per_s["float32"] < gpu.flop_per_s["float16"] < 10**16
    for alias in gpu.aliases:
        assert load_gpu(alias) == gpu


def test_gpus_are_found_by_what_drivers_call_them() -> None:
    assert load_gpu("NVIDIA H100 80GB HBM3").name == "h100-sxm"
    assert load_gpu("nvidia a100-sxm4-80gb").name == "a100-80gb"
    with pytest.raises(SpecError, match="unknown GPU 'h100-sxn'; did you mean 'h100-sxm'"):
        load_gpu("h100-sxn")


@pytest.mark.parametrize(
    ("name", "num_gpus", "gpu"),
    [("a40-pcie", 2, "a40"), ("a100-nvlink-4", 4, "a100-80gb"), ("dgx-h100", 8, "h100-sxm")],
)
def test_clusters_have_their_gpus_hosts_and_sources(name: str, num_gpus: int, gpu: str) -> None:
    cluster = load_cluster(name)
    assert cluster.gpus == tuple(range(num_gpus))  # first, so that rank number and device index agree
    assert {cluster.devices[i].gpu for i in cluster.gpus} == {gpu}
    assert len(cluster.sources) >= 4
    for i in cluster.gpus:
        host = cluster.host_of(i)
        assert host is not None
        assert cluster.devices[host].kind == "host"
        assert len(cluster.route(host, i)) == 2
        for other in cluster.gpus:
            if other != i:
                kinds = [cluster.devices[cluster.links[link].target].name for link in cluster.route(i, other)]
                assert kinds[0] == ("root" if name == "a40-pcie" else "nvswitch")  # and not over PCIe


def test_two_gpus_of_a_dgx_share_a_link_to_the_host() -> None:
    cluster = load_cluster("dgx-h100")
    first = [cluster.links[cluster.route(cluster.host_of(i) or 0, i)[0]].name for i in cluster.gpus]
    assert first == [f"host{i // 4}->pcie{i // 2}" for i in cluster.gpus]
