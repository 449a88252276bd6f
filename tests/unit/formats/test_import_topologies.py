"""Are topologies that clouds, hwloc 3 and virtual machines write read, and unknown texts refused with what is known?

Each input is written here, with the property that matters alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from trine.cluster import Cluster
from trine.collectives.nccl import Collectives
from trine.errors import SpecError
from trine.formats.clusters import read_any
from trine.formats.lstopo import lstopo_cluster
from trine.formats.nccl_xml import nccl_xml_cluster
from trine.formats.nvidia_smi import nvidia_smi_cluster


def kinds(cluster: Cluster) -> Counter[str]:
    return Counter(device.kind for device in cluster.devices)


def peaks(cluster: Cluster, medium: str) -> dict[tuple[str, str], int]:
    """GB/s by the data sheet between two devices, by name, one direction."""
    names = [device.name for device in cluster.devices]
    return {
        (names[k.source], names[k.target]): round(k.peak_bytes_per_s / 1e9)
        for k in cluster.links
        if k.medium == medium and k.source < k.target and k.peak_bytes_per_s
    }


GPU = (
    '<object type="Bridge" gp_index="{0}1" bridge_type="0-1" depth="0" bridge_pci="000{0}:[00-01]">'
    '<object type="PCIDev" gp_index="{0}2" pci_busid="000{0}:01:00.0" pci_type="0302 [{1}] [10de:116b] a1 00" '
    'pci_link_speed="15.753846"><object type="OSDev" gp_index="{0}3" name="{2}{0}" osdev_type="12">'
    '<info name="GPUModel" value="{3}"/></object></object></object>'
)


def lstopo(matrix: str, *, version: str = "3.0", vendor: str = "10de:15f9", name: str = "nvml", model: str = "") -> str:
    """Two processors with a GPU each, and a matrix of bandwidths."""
    packages = [
        f'<object type="Package" gp_index="{i}0"><info name="CPUVendor" value="GenuineIntel"/>'
        f"{GPU.format(i, vendor, name, model)}</object>"
        for i in (1, 2)
    ]
    machine = f'<object type="Machine" gp_index="1">{"".join(packages)}</object>'
    return f'<topology version="{version}">{machine}{matrix}</topology>'


def distances(name: str, objects: str, values: str) -> str:
    return (
        f'<distances2hetero nbobjs="{len(objects.split())}" kind="25" name="{name}"><indexes length="9">{objects} '
        f'</indexes><u64values length="9">{values} </u64values></distances2hetero>'
    )


def test_hwloc_3_with_links_between_gpus_and_to_processors() -> None:
    """40 GB/s by the data sheet are two links of NVLink 1; the processors are joined to their GPU, too."""
    pairs = "1000000 40000 40000 0 40000 1000000 0 40000 40000 0 1000000 0 0 40000 0 1000000"
    matrix = distances("NVLinkBandwidth", "OSDev:13 OSDev:23 Package:10 Package:20", pairs)
    cluster = lstopo_cluster(lstopo(matrix, model="Tesla P100-SXM2-16GB"), "t.xml")
    assert kinds(cluster) == {"host": 2, "gpu": 2}
    links = peaks(cluster, "nvlink1")
    assert {frozenset(pair): rate for pair, rate in links.items()} == {
        frozenset({"gpu0", "gpu1"}): 40, frozenset({"gpu0", "cpu0"}): 40, frozenset({"gpu1", "cpu1"}): 40,
    }  # fmt: skip
    up = next(k for k in cluster.links if k.name == "gpu0->gpu1")
    assert up.bytes_per_s == 2 * 18_000_000_000


def test_hwloc_3_with_nvswitches() -> None:
    """Two switches, three lanes of a GPU to each: one switch with six."""
    values = "0 0 75000 75000 0 0 75000 75000 75000 75000 0 9 75000 75000 9 0"
    matrix = distances("NVLinkBandwidth", "OSDev:13 OSDev:23 PCIDev:91 PCIDev:92", values)
    text = lstopo(matrix, model="Tesla V100-SXM3-32GB")
    cluster = lstopo_cluster(text, "t.xml")
    assert peaks(cluster, "nvlink2") == {("gpu0", "nvswitch"): 150, ("gpu1", "nvswitch"): 150}
    assert peaks(lstopo_cluster(text, "t.xml", links={"nvlink": "nvlink3"}), "nvlink3")["gpu0", "nvswitch"] == 150
    assert Collectives(cluster).predict("all_reduce", 1 << 28).busbw_bytes_per_s > 60e9


def test_hwloc_with_distances_of_one_type() -> None:
    matrix = (
        '<distances2 type="OSDev" nbobjs="2" kind="25" name="NVLinkBandwidth" indexing="gp"><indexes length="6">13 23 '
        '</indexes><u64values length="9">0 100000 </u64values><u64values length="9">100000 0 </u64values></distances2>'
    )
    cluster = lstopo_cluster(lstopo(matrix, version="2.0", model="NVIDIA A100-SXM4-40GB"), "t.xml")
    assert peaks(cluster, "nvlink3") == {("gpu0", "gpu1"): 100}
    by_rate = lstopo_cluster(lstopo(matrix), "t.xml")  # no model: links of 25 GB/s and their multiples are NVLink 2
    assert peaks(by_rate, "nvlink2") == {("gpu0", "gpu1"): 100}


def test_hwloc_with_infinity_fabric() -> None:
    matrix = distances("XGMIBandwidth", "OSDev:13 OSDev:23", "0 100000 100000 0")
    cluster = lstopo_cluster(lstopo(matrix, version="2.0", vendor="1002:740c", name="rsmi"), "t.xml", gpu="mi250x")
    assert (peaks(cluster, "xgmi2"), cluster.library) == ({("gpu0", "gpu1"): 100}, "rccl")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (lstopo("").replace(' version="3.0"', ""), "is of hwloc 1; write it anew with hwloc 2 or 3"),
        (lstopo("", version="4.0"), r"is of hwloc 4\.0"),
        (lstopo(distances("NVLinkBandwidth", "OSDev:13 OSDev:23", "0 1 1")), "has 3 values for 2 objects"),
        (lstopo(distances("NVLinkBandwidth", "OSDev:13 OSDev:23", "0 1 x 0")), "has 4 values for 2 objects"),
        (lstopo("", vendor="1af4:1050").replace("0302", "0100"), "its 2 PCI devices include no GPU"),
    ],
)
def test_hwloc_what_is_wrong_is_named(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        lstopo_cluster(text, "t.xml")


def matrix(size: int, code: Callable[[int, int], str], affinity: Callable[[int], str] = lambda i: "0-63") -> str:
    """What nvidia-smi prints of GPUs."""
    rows = [
        "\t".join([f"GPU{i}", *(" X " if i == j else code(min(i, j), max(i, j)) for j in range(size)), affinity(i)])
        for i in range(size)
    ]
    return "\n".join(["\t" + "\t".join([*(f"GPU{i}" for i in range(size)), "CPU Affinity"]), *rows]) + "\n"


LEGEND = "\nLegend:\n\n  X    = Self\n  SYS  = a\n  NODE = b\n  PHB  = c\n  PXB  = d\n  PIX  = e\n"


def test_smi_without_nvlinks_is_refused_where_they_are_left_out() -> None:
    text = matrix(8, lambda a, b: "NODE" if a // 4 == b // 4 else "SYS", lambda i: "0-31" if i < 4 else "32-63")
    for legend in (LEGEND, "\nLegend:\n\n  X    = Self\n\nNIC Legend:\n\n  NIC0: mlx5_0\n"):
        for gpu in ("h100-sxm", None):
            with pytest.raises(SpecError, match=r"topo -mp`, which leaves NVLinks out.*--link nvlink=ENTRY"):
                nvidia_smi_cluster(text + legend, "t", gpu)
    chosen = nvidia_smi_cluster(text + LEGEND, "t", "h100-sxm", links={"nvlink": "nvlink4"})
    assert peaks(chosen, "nvlink4")["gpu0", "nvswitch"] == 450
    assert chosen.devices[chosen.index("nvswitch")].reduces
    seen = nvidia_smi_cluster(text + LEGEND + "  NV#  = f\n", "t", "h100-sxm")
    assert "a virtual machine or `topo -mp` hides them" in seen.notes


def test_smi_missing_links_on_an_nvswitch() -> None:
    """A pair shows the links of the GPU with fewer: GPU3 has 16 of 18, GPU5 has 17."""
    have = {3: 16, 5: 17}
    text = matrix(8, lambda a, b: f"NV{min(have.get(a, 18), have.get(b, 18))}")
    cluster = nvidia_smi_cluster(text, "t", "h100-sxm")
    links = peaks(cluster, "nvlink4")
    assert [links[f"gpu{i}", "nvswitch"] for i in range(8)] == [450, 450, 450, 400, 450, 425, 450, 450]
    assert "GPU3 shows 16 of 18 NVLinks: 2 down or missing" in cluster.notes
    whole = nvidia_smi_cluster(matrix(8, lambda a, b: "NV18"), "t", "h100-sxm")
    assert Collectives(cluster).predict("all_reduce", 1 << 30).time_ps > Collectives(whole).predict(
        "all_reduce", 1 << 30
    ).time_ps  # fmt: skip
    without = nvidia_smi_cluster(matrix(8, lambda a, b: "SYS" if a == 0 else "NV18", lambda i: f"{i}"), "t", "h100-sxm")
    assert "GPU0 shows no NVLink, other GPUs do" in without.notes
    with pytest.raises(SpecError, match="is the GPU model right"):
        nvidia_smi_cluster(matrix(8, lambda a, b: "SYS" if (a, b) == (0, 4) else "NV18"), "t", "h100-sxm")


def test_smi_notes_pairs_with_fewer_links_than_both_gpus() -> None:
    """A GPU that lost links everywhere explains its pairs; a pair that lost links alone is named."""
    lost_everywhere = nvidia_smi_cluster(matrix(8, lambda a, b: "NV16" if 3 in (a, b) else "NV18"), "t", "h100-sxm")
    assert "GPU3 shows 16 of 18 NVLinks" in lost_everywhere.notes
    assert "fewer NVLinks than both GPUs" not in lost_everywhere.notes

    lost_by_a_pair = nvidia_smi_cluster(matrix(8, lambda a, b: "NV10" if (a, b) == (0, 4) else "NV18"), "t", "h100-sxm")
    assert "fewer NVLinks than both GPUs have to others: GPU0 and GPU4 (10)" in lost_by_a_pair.notes
    assert "down or missing" not in lost_by_a_pair.notes


def test_smi_of_a_virtual_machine_with_one_numa_node() -> None:
    """A ring of four over NVLink; the other pairs are SYS apart, though all have the same CPU affinity."""
    text = matrix(4, lambda a, b: "NV1" if (a + b) % 2 else "SYS")
    cluster = nvidia_smi_cluster(text, "t", "v100")
    assert len(peaks(cluster, "nvlink2")) == 4
    assert "as in a virtual machine" in cluster.notes
    contradictory = matrix(3, lambda a, b: "SYS" if (a, b) == (0, 2) else "PHB")
    with pytest.raises(SpecError, match="SYS apart, but others"):
        nvidia_smi_cluster(contradictory, "t", "v100")


@pytest.mark.parametrize(
    "text",
    [
        "== Link Type between two GPUs ==\n       GPU0  GPU1\nGPU0   0     XGMI\nGPU1   XGMI  0\n",
        "LINK TYPE TABLE:\n             0000:0c:00.0\n0000:0c:00.0 SELF\n",
    ],
)
def test_topologies_of_amds_tools_are_told_what_to_give(tmp_path: Path, text: str) -> None:
    file = tmp_path / "t.txt"
    file.write_text(text)
    with pytest.raises(SpecError, match=r"rocm-smi or amd-smi, which trine does not read: give RCCL's topology"):
        read_any(file)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("GPU 0: NVIDIA A100\n\t Link 0: 25 GB/s\n: x\n", "in no format that trine recognises"),
        ("GPU: 0\n    BDF: 0000:05:00.0\n", "in no format that trine recognises"),
        ("just a text\n", "in no format that trine recognises"),
    ],
)
def test_other_texts_are_told_the_known_formats(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "t.txt"
    file.write_text(text)
    with pytest.raises(SpecError, match=rf"{message}.*known: nvidia-smi topo -m, topology XML of NCCL"):
        read_any(file)
    with pytest.raises(SpecError, match="topo -p2p"):
        nvidia_smi_cluster(matrix(2, lambda a, b: "OK"), "t", "v100")


BARE = """<system version="1"><cpu numaid="0" arch="x86_64" vendor="AuthenticAMD">
<pci busid="ffff:ff:01.0" class="0x060400" link_speed="16 GT/s" link_width="16">
<pci busid="0003:00:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"/>
<pci busid="0103:00:00.0" class="0x020700" link_speed="16 GT/s" link_width="16"/>
<pci busid="0001:00:00.0" class="0x030200" link_speed="" link_width="0"/></pci></cpu></system>"""


def test_nccl_file_of_a_cloud_has_gpus_by_their_class() -> None:
    cluster = nccl_xml_cluster(BARE, "t.xml")
    assert kinds(cluster) == {"host": 1, "switch": 1, "gpu": 2, "nic": 1}
    assert [cluster.devices[i].name for i in cluster.gpus] == ["gpu0", "gpu1"]  # by bus, not by line
    by_name = {link.name: link.medium for link in cluster.links}
    assert by_name["gpu1->pci-ffff:ff:01.0"] == "pcie4"
    assert by_name["gpu0->pci-ffff:ff:01.0"] == "pcie3"  # as NCCL assumes
    assert "generation 3 x 16 assumed, as NCCL does" in cluster.notes
    assert "--link nvlink=ENTRY joins the GPUs" in cluster.notes
    joined = nccl_xml_cluster(BARE, "t.xml", gpu="a100-80gb", links={"nvlink": "nvlink3"})
    assert peaks(joined, "nvlink3") == {("gpu0", "nvswitch"): 300, ("gpu1", "nvswitch"): 300}
    assert {k.medium for k in joined.links if k.name.startswith("gpu0->pci")} == {"pcie4"}


def test_nccl_links_of_a_gpu_to_itself_are_left_out() -> None:
    text = "".join(
        f'<cpu numaid="{i}" vendor="AuthenticAMD"><pci busid="000{i}:00:00.0" class="0x030200" link_speed="" '
        f'link_width="0"><gpu dev="{i}" sm="80" rank="{i}"><nvlink target="000{i}:00:00.0" count="12" '
        'tclass="0x030200"/></gpu></pci></cpu>'
        for i in range(2)
    )
    cluster = nccl_xml_cluster(f'<system version="1">{text}</system>', "t.xml")
    assert {link.medium for link in cluster.links} == {"pcie4", "infinity-fabric"}
    assert "an NVLink of gpu0 to itself left out" in cluster.notes


def rccl(gcn: str, bus: str = "0000:c5:00.0") -> str:
    gpus = "".join(
        f'<pci busid="0000:0{i}:00.0" class="0x038000" link_speed="16.0 GT/s PCIe" link_width="16"><gpu dev="{i}" '
        f'sm="104" gcn="{gcn}" rank="{i}"><xgmi target="0000:0{1 - i}:00.0" count="2" tclass="0x038000"/></gpu></pci>'
        for i in range(2)
    )
    bridges = "".join(
        f'<pci busid="{bus}" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16"><pci busid="0000:e{i}:00.0" '
        'class="0x020700" link_speed="16.0 GT/s PCIe" link_width="16"/></pci>'
        for i in range(2)
    )
    return f'<system version="2"><cpu numaid="0" vendor="AuthenticAMD">{gpus}{bridges}</cpu></system>'


@pytest.mark.parametrize(
    ("gcn", "gpu", "medium"),
    [
        ("910", "mi250x", "xgmi2"),
        ("910", None, "xgmi2"),
        ("908", None, "xgmi1"),
        ("gfx942", None, "xgmi3"),
        ("", "mi100", "xgmi1"),
    ],
)
def test_rccl_models_and_two_devices_on_one_bus(gcn: str, gpu: str | None, medium: str) -> None:
    cluster = nccl_xml_cluster(rccl(gcn), "t.xml", gpu=gpu)
    assert len(peaks(cluster, medium)) == 1
    assert "a second device on bus 0000:c5:00.0" in cluster.notes
    assert kinds(cluster)["switch"] == 2


def test_nccl_graph_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "t.xml").write_text('<graphs version="1"><graph id="0"/></graphs>')
    with pytest.raises(SpecError, match=r"<graphs> \(NCCL's channels"):
        read_any(tmp_path / "t.xml")
