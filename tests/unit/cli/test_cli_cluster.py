"""Does ``trine cluster`` show the whole machine, and does every machine option change the answer or get refused?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from trine.cli.machine import MachineOptions, described_machine, group_machine, job_machine, slow_link
from trine.cli.main import app
from trine.cluster import Cluster, known_clusters, known_links, load_cluster
from trine.errors import InputError, SpecError

RUNNER = CliRunner()
RING = {"topology": "ring", "bandwidth": "65 GB/s"}


def run(*args: str) -> tuple[int, str]:
    result = RUNNER.invoke(app, ["cluster", *args])
    return result.exit_code, result.output


def answer(*args: str) -> dict[str, object]:
    code, text = run(*args, "--json", "-")
    assert code == 0, text
    data = json.loads(text[text.index("\n{") if not text.startswith("{") else 0 :])
    assert isinstance(data, dict)
    return data


def test_lists() -> None:
    code, text = run("list")
    assert code == 0
    assert [line.split()[0] for line in text.splitlines()] == list(known_clusters())
    code, text = run("links")
    assert [line.split()[0] for line in text.splitlines()[1:]] == list(known_links())
    code, text = run("topologies")
    assert "dragonfly:AxPxH" in text.splitlines()


def test_show_says_what_matters() -> None:
    code, text = run("show", "dgx-h100", "--nodes", "2")
    assert code == 0
    assert "2 x dgx-h100: 16 GPUs on 2 nodes" in text
    assert "ib-ndr            scale-out  nic - switch" in text
    assert "first half of the GPUs to the second: 388 GB/s" in text  # 8 NICs
    assert "48.5/2.8" in text
    assert "source of fabric" in text
    assert "gpu0->" not in text
    assert "node0.gpu0->node0.nvswitch" in run("show", "dgx-h100", "--nodes", "2", "--links")[1]


def test_json_has_everything() -> None:
    cluster = load_cluster("dgx-h100")
    data = answer("show", "dgx-h100")
    assert data["fingerprint"] == cluster.fingerprint
    assert len(data["devices"]) == len(cluster.devices)  # type: ignore[arg-type]
    first = data["links"][0]  # type: ignore[index]
    assert first["medium"] == "nvlink4"
    assert first["bytes_per_s"] == cluster.links[0].bytes_per_s
    assert sum(kind["count"] for kind in data["kinds_of_links"]) == len(cluster.links)  # type: ignore[attr-defined]


def test_yaml_is_read_back(tmp_path: Path) -> None:
    target = tmp_path / "two.yaml"
    code, text = run("show", "dgx-h100", "--nodes", "2", "--yaml", str(target))
    assert code == 0, text
    assert Cluster.from_yaml(target) == load_cluster("dgx-h100", nodes=2)


BASE = {"cluster": "dgx-h100", "nodes": 2}
CHANGES = [
    {"nodes": 3},
    {"gpus": 12},
    {"gpus": 8},
    {"fabric": "switch"},
    {"fabric": "clos"},
    {"fabric": "rail:2"},
    {"fabric": "rail@ib-xdr"},
    {"slow_link": ("node0.gpu0->node0.nvswitch:0.5",)},
    {"slow_link": ("node0.gpu0-node0.nvswitch:10 GB/s",)},
    {"link_down": ("leaf0.rail0-spine0",)},
    {"routing": "shortest"},
    {"routing": "ecmp-hash:3"},
]


@pytest.mark.parametrize("change", CHANGES)
def test_every_option_moves_the_machine(change: dict[str, object]) -> None:
    one, _ = group_machine(MachineOptions(**BASE))  # type: ignore[arg-type]
    two, _ = group_machine(MachineOptions(**{**BASE, **change}))  # type: ignore[arg-type]
    assert one.fingerprint != two.fingerprint


@pytest.mark.parametrize("change", [{"bandwidth": "1 GB/s"}, {"latency": "2 us"}, {"gpus": 6}, {"gpu": "a40"},
                                    {"routing": "ecmp-hash"}, {"slow_link": ("gpu0->gpu1:0.5",)},
                                    {"link_down": ("gpu0-gpu1",)}, {"topology": "full"}])  # fmt: skip
def test_every_option_moves_an_inline_machine(change: dict[str, object]) -> None:
    one, _ = group_machine(MachineOptions(**RING, gpus=4))  # type: ignore[arg-type]
    two, _ = group_machine(MachineOptions(**{**RING, "gpus": 4, **change}))  # type: ignore[arg-type]
    assert one.fingerprint != two.fingerprint


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "add a machine: "),
        ({"bandwidth": "1 GB/s"}, "--bandwidth describes the links of --topology"),
        ({"cluster": "dgx-h100", "latency": "1 us"}, "--latency describes the links of --topology"),
        ({"cluster": "dgx-h100", **RING}, "both describe the machine"),
        ({**RING, "gpus": 4, "nodes": 2}, "--nodes is about the machine, and --topology describes all of it"),
        ({**RING, "gpus": 4, "fabric": "rail"}, "--fabric is about the machine"),
        ({"topology": "ring", "gpus": 4}, "needs --bandwidth"),
        (RING, "--topology ring needs --gpus"),
        ({"nodes": 2}, "--nodes is about the machine, and none was described"),
        ({"routing": "rail"}, "--routing is about the machine, and none was described"),
        ({"slow_link": ("a:0.5",)}, "--slow-link is about the machine, and none was described"),
        ({"link_down": ("a",)}, "--link-down is about the machine, and none was described"),
        ({"cluster": "dgx-h100", "slow_link": ("gpu0->nvswitch",)}, "--slow-link takes LINK:FACTOR"),
        ({"cluster": "dgx-h100", "fabric": "rail"}, "joins nodes, but there is one: add --nodes N"),
    ],
)
def test_what_contradicts_itself_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        group_machine(MachineOptions(**options))  # type: ignore[arg-type]


def test_slow_links_are_split_at_the_last_colon() -> None:
    assert slow_link("gpu0->nvswitch:0.5") == ("gpu0->nvswitch", "0.5")
    assert slow_link("a:b->c:10 GB/s") == ("a:b->c", "10 GB/s")


def test_sizes_of_a_topology_say_how_many_gpus() -> None:
    machine, warnings = group_machine(MachineOptions(topology="torus:2x3", bandwidth="1 GB/s"))
    assert len(machine.gpus) == 6
    assert warnings == ["links have no latency: --latency sets it"]


def test_a_job_takes_the_machine_as_it_is_or_its_nodes() -> None:
    alone, _ = job_machine(4, MachineOptions(cluster="dgx-h100"))
    assert alone == load_cluster("dgx-h100")
    two, _ = job_machine(12, MachineOptions(cluster="dgx-h100", nodes=2))
    assert two == load_cluster("dgx-h100", nodes=2, gpus=12)
    ring, _ = job_machine(4, MachineOptions(**RING))
    assert ring is not None
    assert len(ring.gpus) == 4
    assert job_machine(1, MachineOptions()) == (None, [])
    assert described_machine(MachineOptions()) == (None, [])


def test_a_training_job_on_two_nodes_waits_for_the_slowest_link() -> None:
    def step(*more: str) -> float:
        job = ["train", "vgg13-h100-b128", "--gpus", "4", "--parallel", "ddp", "--cluster", "dgx-h100", "--nodes", "2"]
        result = RUNNER.invoke(app, [*job, *more, "--json", "-"])
        assert result.exit_code == 0, result.output
        return float(json.loads(result.stdout)["step_time_s"])

    usual = step()
    assert step("--slow-link", "node0.nic0->leaf0.rail0:0.1") > usual
    assert step("--link-down", "node0.nic0-leaf0.rail0") != usual
    assert step("--fabric", "switch@ib-edr") > usual


def test_wrong_names_end_with_two() -> None:
    code, text = run("show", "dgx-h10")
    assert code == 2
    assert "did you mean 'dgx-h100'" in text
    with pytest.raises(SpecError):
        load_cluster("dgx-h10")


@pytest.mark.parametrize(
    ("name", "gpus", "fabric", "nodes"),
    [("dgx-h100", 16, None, 2), ("dgx-h100", 128, "clos:2", 16), ("gb200-nvl72", 300, None, 5)],
)
def test_a_job_of_more_gpus_than_a_node_has_joins_nodes(name, gpus, fabric, nodes) -> None:
    machine, _ = job_machine(gpus, MachineOptions(cluster=name, fabric=fabric))
    asked, _ = job_machine(gpus, MachineOptions(cluster=name, fabric=fabric, nodes=nodes))
    assert machine is not None
    assert machine == asked
    assert len(machine.gpus) == gpus


def test_a_named_node_of_python_joins_too() -> None:
    from trine.cluster.load import as_cluster

    assert as_cluster("dgx-h100", 16) == as_cluster(load_cluster("dgx-h100", nodes=2))
    assert as_cluster(load_cluster("dgx-h100"), 16) == as_cluster("dgx-h100")  # a Cluster is taken as it is
