"""Do fabrics listed link by link in a file spread traffic, and does the answer name the routing and who chose it?"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import trine
from trine.cli.main import app
from trine.cluster import Cluster, build_topology, known_clusters, load_cluster
from trine.common.spec import dump_yaml
from trine.formats.clusters import read_any

NODES, NICS, SPINES = 4, 4, 4
SIZE = 1 << 28


def wires(ports: bool) -> list[tuple[str, str, str, str]]:
    """Return (end, other end, class, bandwidth): nodes of 4 GPUs on a switch, a NIC each, a leaf per node, 4 spines.

    With ``ports``, the leaves' ports are separate devices, as in InfraGraph.
    """
    found = []
    for node in range(NODES):
        for i in range(NICS):
            gpu, nic = f"n{node}.gpu{i}", f"n{node}.nic{i}"
            found.append((gpu, f"n{node}.switch0", "scale-up", "300 GB/s"))
            found.append((gpu, nic, "host", "50 GB/s"))
            below, above = f"leaf{node}.port{i}", f"leaf{node}.port{NICS + i}"
            if ports:
                found += [(nic, below, "scale-out", "25 GB/s"), (below, f"leaf{node}", "scale-out", "25 GB/s")]
                found += [(f"leaf{node}", above, "scale-out", "25 GB/s")]
                found += [(above, f"spine{i}", "scale-out", "25 GB/s")]
            else:
                found.append((nic, f"leaf{node}", "scale-out", "25 GB/s"))
                found.append((f"leaf{node}", f"spine{i}", "scale-out", "25 GB/s"))
    return found


def kind(name: str) -> str:
    last = name.split(".")[-1].rstrip("0123456789")
    return last if last in ("gpu", "nic") else "switch"


def node(name: str) -> str | None:
    return name.split(".")[0] if name.startswith("n") else None


def names(ports: bool) -> list[str]:
    """Return all devices, GPUs first."""
    found = dict.fromkeys(end for wire in wires(ports) for end in wire[:2])
    return sorted(found, key=lambda name: (kind(name) != "gpu", name))


def as_csv(folder: Path, ports: bool) -> Path:
    rows = ["source,target,bandwidth,latency,class,source_kind,target_kind,source_node,target_node"]
    for a, b, link_class, rate in wires(ports):
        rows.append(f"{a},{b},{rate},500 ns,{link_class},{kind(a)},{kind(b)},{node(a) or ''},{node(b) or ''}")
    return written(folder / "clos.csv", "\n".join(rows))


def as_networkx(folder: Path, ports: bool) -> Path:
    nodes = [{"id": name, "kind": kind(name), "node": node(name)} for name in names(ports)]
    edges = [
        {"source": a, "target": b, "bandwidth": rate, "latency": "500 ns", "class": link_class}
        for a, b, link_class, rate in wires(ports)
    ]
    graph = {"directed": False, "multigraph": False, "graph": {}, "nodes": nodes, "edges": edges}
    return written(folder / "clos.json", json.dumps(graph))


def as_yaml(folder: Path, ports: bool, **more: object) -> Path:
    rails: dict[str, object] = {} if "rails" not in more else {"rail": True}
    more.pop("rails", None)
    devices = []
    for name in names(ports):
        entry: dict[str, object] = {"name": name, "kind": kind(name)}
        if (of := node(name)) is not None:
            entry["node"] = of
        if rails and kind(name) == "nic":
            entry["rail"] = int(name[-1])
        devices.append(entry)
    links = [
        {"from": a, "to": b, "class": link_class, "bandwidth": rate, "latency": "500 ns", "duplex": True}
        for a, b, link_class, rate in wires(ports)
    ]
    return written(folder / "clos.yaml", dump_yaml({"library": "nccl", **more, "devices": devices, "links": links}))


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def up_from_leaves(cluster: Cluster) -> list[int]:
    """Return the messages on each uplink of a leaf, if every GPU sends one to the same GPU of the next node."""
    load = dict.fromkeys((link.name for link in cluster.links if _rises(cluster, link.name)), 0)
    for a in range(NODES * NICS):
        for link in cluster.route(cluster.gpus[a], cluster.gpus[(a + NICS) % (NODES * NICS)]):
            if cluster.links[link].name in load:
                load[cluster.links[link].name] += 1
    return sorted(load.values())


def _rises(cluster: Cluster, name: str) -> bool:
    source, target = name.split("->")
    return source.startswith("leaf") and target.startswith("spine")


READERS = {"csv": as_csv, "networkx": as_networkx, "yaml": as_yaml}


@pytest.mark.parametrize("ports", [False, True], ids=["plain", "ports"])
@pytest.mark.parametrize("write", READERS.values(), ids=READERS)
def test_a_listed_clos_uses_all_its_uplinks(write: Callable[[Path, bool], Path], ports: bool, tmp_path: Path) -> None:
    cluster = load_cluster(write(tmp_path, ports))
    assert cluster.routing == "d-mod-k"
    assert "names none" in cluster.routing_why
    assert up_from_leaves(cluster) == [1] * (NODES * SPINES)
    lowest = cluster.routed("shortest", "asked for")
    assert max(up_from_leaves(lowest)) == NICS
    times = [trine.collective("all_to_all", [SIZE], each).times_ps[0] for each in (cluster, lowest)]
    assert times[1] > 3 * times[0]


def test_nics_on_rails_get_rails(tmp_path: Path) -> None:
    cluster = load_cluster(as_yaml(tmp_path, False, rails=True))
    assert (cluster.routing, "rails" in cluster.routing_why) == ("rail", True)


def test_infragraph_with_several_nvswitches_deals_the_gpus_out_over_them() -> None:
    path = Path(__file__).parents[2] / "data" / "infragraph" / "fabric_single_tier_2x_dgx_h100.yaml"
    cluster = read_any(path, links_from="catalogue")
    assert cluster.routing == "d-mod-k"
    first = {cluster.link_name(cluster.route(cluster.gpus[0], gpu)[0]) for gpu in cluster.gpus[1:8]}
    assert len(first) == 4  # NVSwitches
    assert read_any(path, links_from="catalogue", merge_switches=True).routing == "shortest"


def test_what_names_or_implies_a_policy_keeps_it(tmp_path: Path) -> None:
    for name in known_clusters():
        assert load_cluster(name).routing == "shortest", name
    assert load_cluster("dgx-h100", nodes=4, fabric="switch").routing == "shortest"
    assert load_cluster("dgx-h100", nodes=4, fabric="clos").routing_why == "usual for a clos fabric"
    assert build_topology("fat-tree:4", "10 GB/s", 0, 16).routing_why == "usual for fat-tree"
    assert build_topology("torus:4x4", "10 GB/s", 0, 16).routing == "shortest"
    for policy in ("shortest", "ecmp-hash:7"):
        cluster = load_cluster(as_yaml(tmp_path, False, routing=policy))
        assert (cluster.routing, cluster.routing_why) == (policy, "set in its file")
    assert load_cluster(tmp_path / "clos.yaml", routing="rail").routing_why == "asked for"


def test_one_uplink_leaves_nothing_to_choose(tmp_path: Path) -> None:
    kept = [
        line for line in as_csv(tmp_path, False).read_text().splitlines() if "spine" not in line or "spine0" in line
    ]
    cluster = load_cluster(written(tmp_path / "one.csv", "\n".join(kept)))
    assert cluster.routing == "shortest"
    assert "no two uplinks" in cluster.routing_why


@pytest.mark.parametrize("policy", ["shortest", None])
def test_a_file_written_reads_back_with_its_policy(policy: str | None, tmp_path: Path) -> None:
    cluster = load_cluster(as_csv(tmp_path, True), routing=policy)
    again = load_cluster(written(tmp_path / "again.yaml", cluster.to_yaml()))
    assert (again.routing, again.fingerprint) == (cluster.routing, cluster.fingerprint)


def cli(*args: str) -> str:
    result = CliRunner().invoke(app, list(args))
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_a_crowded_uplink_is_named_with_its_share_and_the_remedy(tmp_path: Path) -> None:
    asked = ("collective", "all_to_all", "--size", "64M", "--cluster", str(as_yaml(tmp_path, False)))
    for option in ((), ("--details",)):
        said = cli(*asked, "--routing", "shortest", *option)
        crowded = "leaf0->spine0 carries 4.0 times its even share: 100 % of the traffic of 4 equal uplinks"
        assert crowded in " ".join(said.split())
        assert "--routing d-mod-k" in " ".join(said.split())
        assert "even share" not in cli(*asked, *option)
    assert "# routing shortest: asked for" in said
    said = cli(*asked, "--details")
    assert "# routing d-mod-k: the file names none" in said
    data = json.loads(cli(*asked, "--json", "-"))
    assert (data["routing"], "uplinks" in data["routing_reason"]) == ("d-mod-k", True)
    by_tier = {row["tier"]: row for row in data["tiers"]}
    assert by_tier["leaf-spine"]["links"] == 2 * NODES * SPINES
    assert by_tier["nic-leaf"]["bytes"] == by_tier["leaf-spine"]["bytes"]


@pytest.mark.parametrize("routing", [None, "shortest"])
def test_training_says_so_too_and_folds_exactly(routing: str | None, tmp_path: Path) -> None:
    cluster = load_cluster(as_networkx(tmp_path, True), routing=routing)
    workload = trine.load("vgg13-h100-b128")
    result = trine.simulate(workload, trine.Plan(dp=4, tp=4), cluster=cluster, fold="verify")
    assert result.plan["routing"] == (routing or "d-mod-k")
    assert f"routing: {routing or 'd-mod-k'} (" in result.details()
    crowded = [warning for warning in result.warnings if "even share" in warning]
    assert bool(crowded) == (routing == "shortest")
    used = {use.tier: use for use in result.links if use.size_bytes}
    assert "nic-leaf.port" in used
    if routing is None:
        lowest = trine.simulate(workload, trine.Plan(dp=4, tp=4), cluster=cluster.routed("shortest", ""))
        assert result.step_time_ps < lowest.step_time_ps


def test_one_message_in_one_place_is_no_crowd() -> None:
    """A ring crosses each leaf in only one place, and its message must take some link."""
    cluster = load_cluster("dgx-h100", nodes=40, fabric="clos")
    answer = trine.collective("all_reduce", [SIZE], cluster)
    assert not [note for note in answer.notes if "even share" in note]
    assert sum(np.array(list(answer.load.values())) > 0) == len(answer.load)
