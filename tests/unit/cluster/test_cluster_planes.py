"""Are parallel switches used in proportion to their bandwidth, at every level and from every kind of file?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import trine
from trine.cluster import Cluster, load_cluster
from trine.cluster.planes import idle_planes, spread_over_planes
from trine.collectives.nccl import Collectives
from trine.collectives.options import CollectiveOptions
from trine.formats.clusters import read_any
from trine.gpu.collective import loadstore_collective

#: GB/s from each of six GPUs to each of three switches.
RATES = (90, 60, 150)
GPUS, TOTAL = 6, sum(RATES)
RING = CollectiveOptions(algorithm="ring")


def text(rates: Sequence[int], *, extra: str = "", end: str = "", latencies: Sequence[int] = (30, 30, 30)) -> str:
    """Return the text of a cluster file."""
    rows = [
        f"- {{from: gpu0..{GPUS - 1}, to: sw{i}, bandwidth: {rate} GB/s, latency: {latency} ns, duplex: true{end}}}"
        for i, (rate, latency) in enumerate(zip(rates, latencies, strict=False))
    ]
    devices = f"- {{name: gpu, count: {GPUS}, gpu: h100-sxm}}\n"
    devices += "".join(f"- {{name: sw{i}, kind: switch}}\n" for i in range(len(rates)))
    return f"devices:\n{devices}links:\n" + "\n".join(rows) + f"\n{extra}"


def read(folder: Path, content: str, name: str = "planes.yaml") -> Cluster:
    path = folder / name
    path.write_text(content)
    return load_cluster(path)


def ring_GBps(cluster: Cluster, size: str = "512M") -> float:
    return trine.collective("all_reduce", size, cluster, options=RING).rows[0].busbw_bytes_per_s / 1e9


@pytest.fixture
def planes(tmp_path: Path) -> Cluster:
    return read(tmp_path, text(RATES))


@pytest.fixture
def control(tmp_path: Path) -> Cluster:
    return read(tmp_path, text([TOTAL]), "control.yaml")


def test_a_ring_uses_all_planes(planes: Cluster, control: Cluster) -> None:
    assert ring_GBps(planes) == ring_GBps(control)
    assert ring_GBps(planes) == pytest.approx(TOTAL, rel=0.01)


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "broadcast", "all_to_all"])
@pytest.mark.parametrize("options", [CollectiveOptions(), CollectiveOptions(protocol="simple")], ids=["bare", "costs"])
def test_every_collective_takes_as_long_as_with_one_switch(
    planes: Cluster, control: Cluster, op: str, options: CollectiveOptions
) -> None:
    answers = [trine.collective(op, "64K,16M", each, options=options).times_ps for each in (planes, control)]
    assert answers[0] == answers[1]


def test_folding_is_exact(planes: Cluster) -> None:
    verified = trine.collective("all_reduce", "1M", planes, options=RING, fold="verify")
    assert verified.times_ps == trine.collective("all_reduce", "1M", planes, options=RING, fold="off").times_ps


def test_loads_and_stores_use_all_planes(planes: Cluster, control: Cluster) -> None:
    first, second = (loadstore_collective("all_gather", "32K", each).rows[0] for each in (planes, control))
    assert first.time.time_ps == second.time.time_ps


def test_the_library_sees_the_lanes_of_all_planes(tmp_path: Path) -> None:
    """The same number of NVLink lanes, to several switches or to one, forms the same domain."""
    lanes = (5, 4, 4, 5)
    rows = "".join(
        f"- {{from: gpu0..7, to: sw{i}, link: nvlink4, lanes: {count}, duplex: true}}\n"
        for i, count in enumerate(lanes)
    )
    devices = "devices:\n- {name: gpu, count: 8, gpu: h100-sxm}\n"
    switches = "- {name: sw, count: 4, kind: switch, reduces: true}\n"
    planes = read(tmp_path, f"library: nccl\n{devices}{switches}links:\n{rows}")
    one = load_cluster("dgx-h100")
    for op in ("all_reduce", "all_to_all", "send_recv"):
        for size in (1 << 13, 1 << 20, 1 << 30):
            first, second = (Collectives(each).predict(op, size) for each in (planes, one))
            assert (first.time_ps, first.algorithm) == (second.time_ps, second.algorithm)


def as_csv(folder: Path) -> Cluster:
    path = folder / "planes.csv"
    rows = [f"gpu{g},sw{i},{rate} GB/s,30 ns,yes" for g in range(GPUS) for i, rate in enumerate(RATES)]
    path.write_text("\n".join(["source,target,bandwidth,latency,duplex", *rows]) + "\n")
    return read_any(path)


def as_networkx(folder: Path) -> Cluster:
    networkx = pytest.importorskip("networkx")
    from trine.formats.networkx_graph import from_networkx

    graph = networkx.DiGraph()
    for gpu in range(GPUS):
        graph.add_node(f"gpu{gpu}", kind="gpu", gpu="h100-sxm")
    for i, rate in enumerate(RATES):
        graph.add_node(f"sw{i}", kind="switch")
        for gpu in range(GPUS):
            for ends in ((f"gpu{gpu}", f"sw{i}"), (f"sw{i}", f"gpu{gpu}")):
                graph.add_edge(*ends, bandwidth=rate * 10**9, latency="30 ns")
    return from_networkx(graph)


def as_infragraph(folder: Path) -> Cluster:
    from trine.formats.clusters import write_cluster

    path = folder / "planes.json"
    write_cluster(read(folder, text(RATES)), path, "infragraph", lossy=True)
    return read_any(path)


@pytest.mark.parametrize("read_as", [as_csv, as_networkx, as_infragraph])
def test_whatever_file_it_comes_from(read_as: Callable[[Path], Cluster], tmp_path: Path) -> None:
    assert ring_GBps(read_as(tmp_path)) == pytest.approx(TOTAL, rel=0.01)


def test_ports_of_switches_as_devices(tmp_path: Path) -> None:
    """InfraGraph models ports as devices; a dead port disables its plane."""
    devices, links = [], []
    for i, rate in enumerate(RATES):
        devices.append(f"- {{name: sw{i}, kind: switch}}\n- {{name: sw{i}.port, count: {GPUS}, kind: switch}}\n")
        wire = f"bandwidth: {rate} GB/s, latency: 15 ns, duplex: true"
        ports = f"sw{i}.port0..{GPUS - 1}"
        links.append(f"- {{from: gpu0..{GPUS - 1}, to: {ports}, pairs: true, {wire}}}\n")
        links.append(f"- {{from: {ports}, to: sw{i}, {wire}}}\n")
    gpus = f"- {{name: gpu, count: {GPUS}, gpu: h100-sxm}}\n"
    cluster = read(tmp_path, f"devices:\n{gpus}{''.join(devices)}links:\n{''.join(links)}")
    assert ring_GBps(cluster) == pytest.approx(TOTAL, rel=0.01)
    dead = load_cluster(tmp_path / "planes.yaml", links_down=["gpu0-sw1.port0"])
    assert ring_GBps(dead) == pytest.approx(TOTAL - RATES[1], rel=0.01)


def test_parallel_links_between_two_gpus(tmp_path: Path) -> None:
    path = tmp_path / "pair.csv"
    path.write_text("source,target,bandwidth,latency,duplex\n" + "gpu0,gpu1,25 GB/s,30 ns,yes\n" * 4)
    assert ring_GBps(read_any(path)) == pytest.approx(100, rel=0.01)


def test_planes_inside_nodes_that_a_fabric_joins(tmp_path: Path) -> None:
    """Between nodes the fabric's routing stays; inside nodes all planes are used."""
    nics = "".join(f"- {{from: gpu{g}, to: nic{g}, link: pcie5, duplex: true}}\n" for g in range(GPUS))
    content = text(RATES, end=", class: scale-up").replace(
        "links:", f"- {{name: nic, count: {GPUS}, kind: nic, node: node0, rail: 0}}\nlinks:"
    )
    content = content.replace("gpu: h100-sxm}", "gpu: h100-sxm, node: node0}")
    content += nics + "fabric: {kind: rail, link: ib-ndr}\n"
    for i in range(len(RATES)):
        content = content.replace(f"{{name: sw{i}, kind: switch}}", f"{{name: sw{i}, kind: switch, node: node0}}")
    path = tmp_path / "node.yaml"
    path.write_text(content)
    joined = load_cluster(path, nodes=3)
    assert joined.routing == "rail"
    names = [device.name for device in spread_over_planes(joined).devices if device.kind == "switch"]
    assert sum("sw0" in name for name in names) == 3
    inside = Collectives(joined, range(GPUS)).topology.inside
    assert inside is not None
    assert inside.ring_bytes_per_s == TOTAL * 1e9


@pytest.mark.parametrize(("policy", "reached"), [("shortest", 90), ("ecmp-split", 180)])
def test_a_policy_that_is_asked_for_is_obeyed_and_warned_of(planes: Cluster, policy: str, reached: float) -> None:
    answer = trine.collective("all_reduce", "512M", planes.routed(policy, "asked for"), options=RING)
    assert answer.rows[0].busbw_bytes_per_s / 1e9 == pytest.approx(reached, rel=0.01)
    assert any("parallel switches" in note and "300 GB/s together" in note for note in answer.notes)
    assert not any("parallel switches" in note for note in trine.collective("all_reduce", "1M", planes).notes)


def test_a_policy_that_was_asked_for_is_written_to_the_file(planes: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "again.yaml"
    path.write_text(planes.routed("shortest", "asked for").to_yaml())
    assert ring_GBps(load_cluster(path)) == pytest.approx(RATES[0], rel=0.01)
    path.write_text(planes.to_yaml())
    assert ring_GBps(load_cluster(path)) == pytest.approx(TOTAL, rel=0.01)


def test_the_slowest_plane_gives_the_latency(tmp_path: Path) -> None:
    late = read(tmp_path, text(RATES, latencies=(30, 5000, 30)))
    soon = read(tmp_path, text([TOTAL], latencies=(5000,)), "late.yaml")
    assert trine.collective("all_reduce", "1K", late, options=RING).times_ps == (
        trine.collective("all_reduce", "1K", soon, options=RING).times_ps
    )


def test_a_dead_or_slow_link_of_a_plane_takes_its_part(tmp_path: Path, planes: Cluster) -> None:
    path = tmp_path / "planes.yaml"
    dead = load_cluster(path, links_down=["gpu0->sw1"])
    slow = load_cluster(path, slow_links=[("gpu0-sw2", 0.5)])
    crossed = load_cluster(path, links_down=["gpu0->sw1", "sw2->gpu1"])
    assert ring_GBps(dead) == pytest.approx(TOTAL - RATES[1], rel=0.01)
    assert ring_GBps(slow) == pytest.approx(TOTAL - RATES[2] / 2, rel=0.01)
    assert ring_GBps(crossed) == pytest.approx(RATES[0], rel=0.01)  # gpu0 reaches gpu1 over the first plane alone


def test_what_is_no_plane_stays(tmp_path: Path) -> None:
    """Spines, switches that share one GPU, and presets stay unchanged."""
    for name in ("dgx-h100", "mi300x-node", "gb200-nvl72"):
        cluster = load_cluster(name)
        assert spread_over_planes(cluster) is cluster
    fat_tree = trine.build_topology("fat-tree:4", "50 GB/s", "1 us", 16)
    assert spread_over_planes(fat_tree) is fat_tree
    rows = ["gpu0,a", "gpu1,a", "gpu1,b", "gpu2,b", "gpu2,c", "gpu0,c"]
    path = tmp_path / "triangle.csv"
    path.write_text("source,target,bandwidth,latency,duplex\n" + "".join(f"{row},9 GB/s,1 us,yes\n" for row in rows))
    triangle = read_any(path)
    assert spread_over_planes(triangle) is triangle
    assert idle_planes(triangle) == ""


@pytest.mark.parametrize(("reducing", "is_multicast"), [((), False), ((0,), False), ((0, 1, 2), True)])
def test_switches_used_together_reduce_only_if_each_of_them_does(
    tmp_path: Path, reducing: tuple[int, ...], is_multicast: bool
) -> None:
    content = text(RATES)
    for i in reducing:
        content = content.replace(f"{{name: sw{i}, kind: switch}}", f"{{name: sw{i}, kind: switch, reduces: true}}")
    joint = spread_over_planes(read(tmp_path, content))
    assert [device.reduces for device in joint.devices if device.kind == "switch"] == [is_multicast]
    assert Collectives(read(tmp_path, content)).topology.multicast is is_multicast


def test_the_sources_name_what_is_used_together(planes: Cluster, tmp_path: Path) -> None:
    words = "each message uses all of them at once, in proportion to their bandwidth"
    assert [name for name, why in spread_over_planes(planes).sources.items() if why == words] == ["sw0..2"]
    doubled = "devices: [{name: gpu, count: 2, gpu: h100-sxm}]\nlinks:\n" + 2 * (
        "- {from: gpu0, to: gpu1, bandwidth: 25 GB/s, latency: 1 us, class: scale-up, duplex: true}\n"
    )
    found = spread_over_planes(read(tmp_path, doubled, "doubled.yaml")).sources
    assert [name for name, why in found.items() if why == words] == ["parallel links"]


@pytest.mark.parametrize(
    ("names", "joint"),
    [
        (("sw0", "sw1", "sw2"), "sw0..2"),
        (("sw0", "sw7", "sw9"), "sw0+sw7+sw9"),
        (("swa", "swb", "swc"), "swa+swb+swc"),
        (("sw0", "sw1", "swb"), "sw0+sw1+swb"),
        (("sw0", "sw1", "sw7"), "sw0+sw1+sw7"),
    ],
)
def test_switches_used_together_are_named_by_all_or_by_their_range(
    tmp_path: Path, names: tuple[str, ...], joint: str
) -> None:
    content = text(RATES)
    for i, name in enumerate(names):
        content = content.replace(f"sw{i}:", f"{name}:").replace(f"sw{i},", f"{name},")
    assert [d.name for d in spread_over_planes(read(tmp_path, content)).devices if d.kind == "switch"] == [joint]


def test_a_gpu_sends_at_most_what_another_one_receives_and_its_peak_goes_with_it(tmp_path: Path) -> None:
    """gpu0 and gpu1 each lack a plane; gpu2 has all planes, but its peers do not: it sends 60 + 150 GB/s to gpu1."""
    rates, peaks = (90, 60, 150), (100, 80, 200)
    header = "source,target,bandwidth,latency,class,duplex,source_kind,target_kind\n"
    rows = [
        f"gpu{gpu},sw{i},{rates[i]} GB/s,30 ns,scale-up,true,gpu,switch\n"
        for gpu, planes in ((0, (0, 1)), (1, (1, 2)), (2, (0, 1, 2)))
        for i in planes
    ]
    path = tmp_path / "planes.csv"
    path.write_text(header + "".join(rows))
    cluster = read_any(path)
    peak_of = dict(zip((rate * 10**9 for rate in rates), (peak * 10**9 for peak in peaks), strict=True))
    links = tuple(replace(link, peak_bytes_per_s=peak_of[link.bytes_per_s]) for link in cluster.links)
    joint = spread_over_planes(replace(cluster, links=links))
    (link,) = [each for each in joint.links if joint.devices[each.source].name == "gpu2"]
    assert (link.bytes_per_s, link.peak_bytes_per_s) == (210 * 10**9, 380 * 210 * 10**9 // 300)
