"""Do the presets give the latencies and bandwidths that others measured? Computed by hand, without the engine.

Sources are in src/trine/presets/gpu_models. No collective is used.
"""

from __future__ import annotations

import pytest

from trine.cluster import load_cluster
from trine.common.units import transfer_ps
from trine.gpu.fabric import FabricPath, GpuFabric
from trine.gpu.layout import CHANNEL, CU, PORT, layout_of
from trine.gpu.model import GpuModel
from trine.gpu.model.derived import local_load_ps
from trine.gpu.model.files import known_gpu_models, load_gpu_model

#: model, hits the cache, cycles, relative tolerance: small for the presets' own sources, wider for others
LOADS = [
    ("h100-sxm", True, 263.0, 0.01),  # arXiv 2402.13499, H800
    ("h100-sxm", True, 260.0, 0.02),  # CUDA Performance Study, H100 SXM5
    ("h100-sxm", True, (258 + 414) / 2, 0.25),  # arXiv 2501.12084: mean of near and far half
    ("h100-sxm", False, 571.0, 0.12),  # CUDA Performance Study, H100 SXM5
    ("h100-sxm", False, 219.345 + 399.945, 0.02),  # mt4g, H100 80GB HBM3
    ("h100-sxm", False, 690.0, 0.10),  # AI_kernels, GH200
    ("h100-sxm", True, 276.4, 0.06),  # ours, 4 MiB (tests/data/h100/latencies.csv)
    ("h100-sxm", False, 620.6, 0.02),  # ours, 256 MiB; 673 from 1 GiB on, with misses of the TLB
    ("a100-80gb", True, 261.5, 0.01),
    ("a100-80gb", False, 466.3, 0.025),
    ("mi300x", True, 287.545 + 208.878, 0.01),
    ("mi300x", False, 899.658, 0.01),
    ("b200", True, 295.0, 0.01),  # AI_kernels
    ("b200", False, 860.0, 0.01),
    ("l40s", True, 276.5, 0.01),  # gpu-benches, L40
    ("l40s", True, 279.0, 0.02),  # arXiv 2606.22588, L40, mean of all SMs
    ("l40s", False, 561.5, 0.01),  # gpu-benches, L40
    ("rtx3090", True, 187.0 + 39.0, 0.01),  # Accel-sim's microbenchmarks, RTX 3070
    ("rtx3090", False, 187.0 + 39.0 + 254.0, 0.01),
]


@pytest.mark.parametrize(("name", "hit", "cycles", "tolerance"), LOADS)
def test_loads_of_the_own_memory_take_what_was_measured(name: str, hit: bool, cycles: float, tolerance: float) -> None:
    model = load_gpu_model(name)
    assert local_load_ps(model, hit=hit) / model.cycle_ps == pytest.approx(cycles, rel=tolerance)


#: cluster, GPU, nanoseconds there and back through the switches: mean of all pairs, 2 MiB in the other GPU's L2
REMOTE = [
    ("dgx-h100", "h100-sxm", 826.6),  # nvbandwidth 0.10, device_to_device_latency_sm, 8 x H100 80GB HBM3, 56 pairs
    ("gb200-nvl72", "gb200", 1727.1),  # the same of 4 GPUs of a GB200 NVL72, 12 pairs (oci-gpu-quickstarts)
    ("gb200-nvl72", "gb200", 1710.5),  # the same of a GB300 NVL72: not the preset's source
]


def noc_ps(model: GpuModel) -> float:
    """Return the time of a remote load in the NoCs of both GPUs, there and back, mean over CUs, ports and channels."""
    layout = layout_of(model)

    def way_ps(ends: tuple[tuple[str, int], tuple[str, int]], num_bytes: int) -> int:
        path = layout.path(*ends[0], *ends[1])
        return sum(transfer_ps(num_bytes, int(layout.bytes_per_s[hop.resource])) + hop.after_ps for hop in path)

    def both_ways_ps(first: tuple[str, int], count: int, second: str) -> float:
        ends = [(first, (second, number)) for number in range(count)]
        request, answer = model.header_bytes, model.header_bytes + model.line_bytes
        return sum(way_ps(each, request) + way_ps(each[::-1], answer) for each in ends) / count

    cus, ports = range(0, model.num_cus, max(1, model.num_cus // 64)), range(model.ports.count)
    near = sum(both_ways_ps((CU, cu), model.ports.count, PORT) for cu in cus) / len(cus)
    return near + sum(both_ways_ps((PORT, port), model.memory.num_channels, CHANNEL) for port in ports) / len(ports)


@pytest.mark.parametrize(("cluster", "gpu", "ns"), REMOTE)
def test_a_remote_load_takes_what_was_measured(cluster: str, gpu: str, ns: float) -> None:
    model = load_gpu_model(gpu)
    fabric = GpuFabric(load_cluster(cluster), (0, 3), model)

    def fabric_ps(way: FabricPath, num_bytes: int) -> int:
        return sum(transfer_ps(num_bytes, hop.bytes_per_s) + hop.after_ps for hop in way.hops)

    request, answer = model.header_bytes, model.header_bytes + model.line_bytes
    there, back = fabric.paths(0, 1)[0], fabric.paths(1, 0)[0]
    assert len({hop.bytes_per_s for hop in there.hops}) == 1
    assert model.l2 is not None
    hit_ps = transfer_ps(model.line_bytes, model.l2.bytes_per_s) + model.l2.latency_ps
    took = noc_ps(model) + hit_ps + fabric_ps(there, request) + fabric_ps(back, answer)
    assert took == pytest.approx(ns * 1000, rel=0.005 if cluster == "dgx-h100" else 0.012)


def test_headers_leave_of_the_links_what_copies_reach() -> None:
    """One way, copies reach 395 to 397 GB/s of an H100's links (nvbandwidth). Both ways, with acknowledgements in the
    way of the data, p2pBandwidthLatencyTest has 370 to 387, NCCL's rings 367. MI300X: 48.5 per link (TransferBench)."""
    h100, mi300x = load_gpu_model("h100-sxm"), load_gpu_model("mi300x")
    one_way = 450 * h100.line_bytes / (h100.line_bytes + h100.header_bytes)
    both_ways = 450 * h100.line_bytes / (h100.line_bytes + 2 * h100.header_bytes)
    assert one_way == pytest.approx(396, rel=0.02)
    assert 0.95 * 367 < both_ways < 387
    l40s = load_gpu_model("l40s")  # 24 to 26 GB/s of PCIe 4.0 x16 (link catalogue)
    assert 24 < 31.5 * l40s.line_bytes / (l40s.line_bytes + l40s.header_bytes) < 26.5
    assert 64 * mi300x.line_bytes / (mi300x.line_bytes + mi300x.header_bytes) == pytest.approx(48.5, rel=0.06)


@pytest.mark.parametrize("name", [name for name in known_gpu_models() if name not in ("astra3-generic", "eidola")])
def test_what_is_in_flight_can_saturate_the_memory(name: str) -> None:
    """Little's law: outstanding = rate x latency."""
    model = load_gpu_model(name)
    needed = model.memory.num_channels * model.memory.bytes_per_s * local_load_ps(model, hit=False) // 10**12
    assert model.num_cus * model.max_outstanding * model.line_bytes > 1.3 * needed  # B200: 1.4; the others 2 and more
