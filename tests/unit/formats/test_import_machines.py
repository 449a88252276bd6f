"""Are machines imported correctly from nvidia-smi's matrix, NCCL's XML and lstopo's XML?

We wrote the samples, see tests/data/topologies/README.md.
"""

import re
from collections import Counter
from pathlib import Path

import pytest

from trine.errors import SpecError
from trine.formats.clusters import read_any
from trine.formats.nvidia_smi import nvidia_smi_cluster, parse_matrix
from trine.formats.reader import MAX_DEPTH, parse_xml

DATA = Path(__file__).parents[2] / "data" / "topologies"


def lanes(cluster, medium):
    """Return the lanes between two devices, by name, in one direction."""
    names = [device.name for device in cluster.devices]
    links = [link for link in cluster.links if link.medium == medium]
    least = min(link.bytes_per_s for link in links)
    return {
        (names[k.source], names[k.target]): k.bytes_per_s // least for k in links if names[k.source] < names[k.target]
    }


def kinds(cluster):
    return Counter(device.kind for device in cluster.devices)


def hops(cluster, a, b):
    """Return the devices that a message crosses."""
    route = cluster.route(cluster.index(a), cluster.index(b))
    return [cluster.devices[cluster.links[link].target].name for link in route[:-1]]


def test_smi_nvswitch():
    cluster = read_any(DATA / "h100-8.smi.txt", gpu="h100-sxm")
    assert kinds(cluster) == {"gpu": 8, "nic": 4, "host": 2, "switch": 8}
    assert hops(cluster, "gpu0", "gpu7") == ["nvswitch"]
    switch = cluster.devices[cluster.index("nvswitch")]
    assert switch.reduces
    assert "assumed to be an NVSwitch" in cluster.notes
    up = next(link for link in cluster.links if link.name == "gpu3->nvswitch")
    assert (up.bytes_per_s, up.peak_bytes_per_s, up.medium) == (20_600_000_000 * 18, 450_000_000_000, "nvlink4")
    assert hops(cluster, "gpu0", "mlx5_0") == ["pcie0"]  # PIX
    assert len(hops(cluster, "gpu4", "mlx5_2")) == 3  # PXB: its switch, the one above, the other's
    assert hops(cluster, "gpu1", "mlx5_0") == ["cpu0", "pcie0"]  # NODE
    assert hops(cluster, "mlx5_0", "mlx5_2")[1:3] == ["cpu0", "cpu1"]  # SYS
    assert cluster.library == "nccl"
    assert "assumed" in cluster.sources["link socket"]


def test_smi_direct_mesh_with_named_nics_and_spaces():
    cluster = read_any(DATA / "dgx1-v100.smi.txt", gpu="v100")
    mesh = lanes(cluster, "nvlink2")
    assert mesh["gpu0", "gpu3"] == 2
    assert mesh["gpu0", "gpu1"] == 1
    assert ("gpu0", "gpu5") not in mesh
    assert Counter(mesh.values()) == {1: 8, 2: 8}
    of_gpu = Counter(gpu for pair, count in mesh.items() for gpu in pair for _ in range(count))
    assert set(of_gpu.values()) == {6}
    assert hops(cluster, "gpu0", "mlx5_0") == hops(cluster, "gpu1", "mlx5_0")
    assert kinds(cluster) == {"gpu": 8, "nic": 4, "host": 2, "switch": 4}


def test_smi_wrapped_and_coloured_text_is_the_same():
    text = (DATA / "h100-8.smi.txt").read_text()
    lines = text.splitlines()
    wrapped = []
    for line in lines:
        cells = line.split("\t")
        wrapped += ["\t".join(cells[:7]), "\t".join(cells[7:])] if line.startswith(("GPU", "NIC", "\t")) else [line]
    coloured = "\n".join(f"\x1b[1m{line}\x1b[0m" for line in wrapped)
    assert parse_matrix(coloured, "t") == parse_matrix(text, "t")
    assert nvidia_smi_cluster(coloured, "h100-8.smi.txt", "h100-sxm") == nvidia_smi_cluster(
        text, "h100-8.smi.txt", "h100-sxm"
    )


@pytest.mark.parametrize("label", ["# ", "job.sh:# ", "worker-0: ", "[1,0]<stdout>:"])
def test_smi_labels_before_each_line(tmp_path, label):
    text = (DATA / "h100-8.smi.txt").read_text()
    file = tmp_path / "topo.txt"
    file.write_text("".join(f"{label}{line}\n" for line in text.splitlines()))
    assert read_any(file, gpu="h100-sxm").links == read_any(DATA / "h100-8.smi.txt", gpu="h100-sxm").links


def test_smi_in_a_markdown_table_and_with_glued_names(tmp_path):
    cells = [["GPU0", "X", "NV4", "SYS", "PIX"], ["GPU1", "NV4", "X", "PIX", "SYS"],
             ["NIC0", "SYS", "PIX", "X", "SYS"], ["NIC1", "PIX", "SYS", "SYS", "X"]]  # fmt: skip
    table = "".join(f"| 0-15 | {' | '.join(row)} |\n" for row in cells)
    glued = "\tGPU0\tGPU1\tNIC0NIC1CPU Affinity\n" + "".join("\t".join([*row, "0-15"]) + "\n" for row in cells)
    for text in ("| CPU Affinity | | GPU0 | GPU1 | NIC0 | NIC1 |\n|---|---|---|---|---|---|\n" + table, glued):
        file = tmp_path / "topo.md"
        file.write_text(text)
        cluster = read_any(file, gpu="a100-40gb")
        assert [device.name for device in cluster.devices][:4] == ["gpu0", "gpu1", "nic0", "nic1"]
        assert hops(cluster, "gpu1", "nic0") != hops(cluster, "gpu0", "nic0")


def test_a_matrix_of_xpu_smi_is_named(tmp_path):
    file = tmp_path / "topo.txt"
    file.write_text("         GPU 0/0  GPU 1/0  CPU Affinity\nGPU 0/0  S        XL8      0-23\nGPU 1/0  XL8      S\n")
    with pytest.raises(SpecError, match="xpu-smi, which trine does not read; known"):
        read_any(file)


def test_smi_old_code_and_no_legend():
    text = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tSOC\t0-7\nGPU1\tSOC\t X \t8-15\n"
    cluster = nvidia_smi_cluster(text, "t", "v100")
    assert hops(cluster, "gpu0", "gpu1") == ["cpu0", "cpu1"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("GPU3\tNV18", "GPU3\tPHB", "GPU3 and GPU0 have two entries: PHB and NV18"),
        ("GPU1\tNV18", "GPU1\tNVX", "GPU1, GPU0: unknown code 'NVX'"),
        ("GPU5\tNV18", "GPUX\tNV18", "GPU4 has|GPU5 is missing|row of GPU5"),
        ("NIC3\tSYS\tSYS", "NIC3\tSYS", "row of NIC3 has 11 cells, there are 12"),
        ("GPU0\t X ", "GPU0\tPIX", "X is for a device and itself"),
    ],
)
def test_smi_what_is_wrong_is_named(old, new, message):
    text = (DATA / "h100-8.smi.txt").read_text()
    assert old in text
    with pytest.raises(SpecError, match=message):
        nvidia_smi_cluster(text.replace(old, new, 1), "t", "h100-sxm")


def test_smi_needs_the_gpu_and_the_right_one():
    with pytest.raises(SpecError, match=r"nvlink.*add the GPU model.*pcie"):
        read_any(DATA / "h100-8.smi.txt")
    with pytest.raises(SpecError, match="shows 6 NVLinks, but a GPU has 4 of nvlink1"):
        read_any(DATA / "dgx1-v100.smi.txt", links={"nvlink": "nvlink1", "pcie": "pcie3"})
    chosen = read_any(DATA / "h100-8.smi.txt", links={"nvlink": "nvlink4", "pcie": "pcie5", "socket": "50 GB/s, 1 us"})
    assert next(k for k in chosen.links if k.name == "cpu0->cpu1").latency_ps == 10**6
    with pytest.raises(SpecError, match="no link 'xgmi'"):
        read_any(DATA / "h100-8.smi.txt", gpu="h100-sxm", links={"xgmi": "xgmi3"})


def test_nccl_switch_nics_and_ranks():
    cluster = read_any(DATA / "h100-2.nccl.xml", gpu="h100-sxm")
    assert [cluster.devices[i].name for i in cluster.gpus] == ["gpu1", "gpu0"]  # by rank
    assert lanes(cluster, "nvlink4") == {("gpu0", "nvswitch"): 1, ("gpu1", "nvswitch"): 1}
    assert next(k for k in cluster.links if k.medium == "nvlink4").bytes_per_s == 20_600_000_000 * 18
    assert hops(cluster, "gpu0", "mlx5_0") == ["pci-0000:15:00.0"]
    slow = next(k for k in cluster.links if k.name == "cpu1->eth0")
    assert slow.bytes_per_s == 1_250_000_000  # no PCI device, so its port's speed counts
    assert "mlx5_0: 400 Gb/s" in cluster.notes
    assert (cluster.library, cluster.devices[cluster.index("nvswitch")].reduces) == ("nccl", True)


def test_nccl_direct_links_are_counted_once():
    cluster = read_any(DATA / "v100-3.nccl.xml")
    assert lanes(cluster, "nvlink2") == {("gpu0", "gpu1"): 1, ("gpu0", "gpu2"): 2, ("gpu1", "gpu2"): 1}


def test_rccl():
    cluster = read_any(DATA / "mi300x-4.rccl.xml")
    assert cluster.library == "rccl"
    assert len(lanes(cluster, "xgmi3")) == 6


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("<nic>", "<nik>", "not valid XML|unknown element.*'nic'"),
        ('count="18"', 'count="many"', r":\d+: <nvlink>: 'count' must be a whole number"),
        ('tclass="0x068000"', 'tclass="0x0c0000"', "unknown target"),
        ('link_speed="32.0 GT/s PCIe"', 'link_speed="Unknown"', "no numbers for: pcie"),
        ('sm="90"', 'sm="20"', r"no numbers for: nvlink \(sm 20\)"),
        ('numaid="1"', 'numaid="x"', "numaid"),
        ("<system ", "<systen ", "XML with <systen>|not valid"),
    ],
)
def test_nccl_what_is_wrong_is_named(tmp_path, old, new, message):
    text = (DATA / "h100-2.nccl.xml").read_text()
    assert old in text
    file = tmp_path / "t.xml"
    file.write_text(text.replace(old, new))
    with pytest.raises(SpecError, match=message):
        read_any(file)


def test_lstopo():
    cluster = read_any(DATA / "a100-2.lstopo.xml", gpu="a100-80gb")
    assert kinds(cluster) == {"gpu": 2, "nic": 2, "host": 2, "switch": 1}  # without the board's display and bare ports
    assert hops(cluster, "gpu0", "mlx5_0") == ["pci-0000:01:00.0"]
    assert hops(cluster, "gpu0", "gpu1") == ["pci-0000:01:00.0", "cpu0", "cpu1"]
    by_name = {link.name: link for link in cluster.links}
    assert (by_name["cpu1->gpu1"].medium, by_name["cpu1->gpu1"].bytes_per_s) == ("pcie4", 24_500_000_000)
    assert by_name["cpu1->eth0"].medium == "pcie3"
    assert by_name["cpu0->cpu1"].medium == "infinity-fabric"
    assert "does not show NVLinks" in cluster.notes
    assert "does not show" not in read_any(DATA / "a100-2.lstopo.xml").notes
    joined = read_any(DATA / "a100-2.lstopo.xml", gpu="a100-80gb", links={"nvlink": "nvlink3*4", "pcie": "pcie3"})
    assert hops(joined, "gpu0", "gpu1") == ["nvswitch"]
    assert next(k for k in joined.links if k.medium == "nvlink3").bytes_per_s == 80_000_000_000
    assert {k.medium for k in joined.links if k.name.startswith("cpu1->")} == {"pcie3", "infinity-fabric"}


@pytest.mark.parametrize(
    ("model", "note"),
    [("Tesla V100-SXM2-16GB", "show NVLinks"), ("AMD Instinct MI250X", "show XGMI"), ("Tesla P100-PCIE-16GB", None)],
)
def test_lstopo_without_the_links_that_its_gpus_have(tmp_path, model, note):
    text = (DATA / "a100-2.lstopo.xml").read_text()
    assert text.count('subtype="CUDA"') == 2
    info = f'<info name="GPUModel" value="{model}"/>'
    file = tmp_path / "a.xml"
    file.write_text(
        re.sub(r'(<object type="OSDev"[^>]*subtype="CUDA"[^>]*?)/?>(</object>)?', rf"\1>{info}</object>", text)
    )
    assert (note or "does not show") in read_any(file).notes or note is None
    assert note is not None or "does not show" not in read_any(file).notes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('<!DOCTYPE a [<!ENTITY b "c">]><system/>', "DTD inside"),
        ('<!DOCTYPE a [<!ENTITY % b SYSTEM "file:///etc/passwd"> %b;]><system/>', "DTD inside"),
        ("<system>&b;</system>", "not valid XML"),
        ("<system>", ":1: not valid XML"),
        ("", "not valid XML"),
        ("<a>" * (MAX_DEPTH + 1), "nested deeper"),
        ("<system a='1' a='2'/>", "not valid XML"),
    ],
)
def test_hostile_xml(text, message):
    with pytest.raises(SpecError, match=message):
        parse_xml(text, "t.xml")


def test_an_external_dtd_is_never_read():
    assert parse_xml('<!DOCTYPE topology SYSTEM "/etc/passwd"><topology a="b">c</topology>', "t.xml").get("a") == "b"
