"""Are ASTRA-sim's network files read as the topologies that they describe?"""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from trine.cli.main import app
from trine.cluster import build_topology, load_cluster
from trine.cluster.cluster import Cluster
from trine.collectives.query import collective
from trine.errors import SpecError
from trine.formats.clusters import read_any

FORM = "# comment\ntopology: [ {kinds} ]  # Ring, Switch, FullyConnected\nnpus_count: [ {counts} ]\n"
NUMBERS = "bandwidth: [ {bandwidth} ]  # GB/s\nlatency: [ {latency} ]  # ns\n"


def network(folder: Path, kinds: str, counts: str, bandwidth: str = "50.0", latency: str = "500.0") -> Cluster:
    path = folder / "net.yml"
    path.write_text(FORM.format(kinds=kinds, counts=counts) + NUMBERS.format(bandwidth=bandwidth, latency=latency))
    assert load_cluster(str(path)) == read_any(path)
    return read_any(path)


def rates(cluster: Cluster) -> dict[tuple[str, str], tuple[int, int]]:
    names = [device.name.replace("switch0", "switch") for device in cluster.devices]
    return {(names[k.source], names[k.target]): (k.bytes_per_s, k.latency_ps) for k in cluster.links}


@pytest.mark.parametrize(("kind", "name"), [("Ring", "ring"), ("Switch", "switch"), ("FullyConnected", "full")])
@pytest.mark.parametrize("count", [2, 5, 8])
def test_one_dimension_is_the_topology_of_that_name(kind: str, name: str, count: int, tmp_path: Path) -> None:
    cluster = network(tmp_path, kind, str(count), "400.0", "936.25")
    twin = build_topology(name, "400 GB/s", "936.25 ns", count)
    assert rates(cluster) == rates(twin)
    times = [collective("all_reduce", [1 << 26], each).rows[0].time_ps for each in (cluster, twin)]
    assert times[0] == times[1]


def test_dimensions_multiply_the_first_one_fastest(tmp_path: Path) -> None:
    cluster = network(tmp_path, "Switch, Ring", "4, 3", "400, 50", "900, 1000")
    names = {link.name for link in cluster.links}
    assert len(cluster.gpus) == 12
    assert len(names) == 2 * 12 + 2 * 12
    assert {"gpu0->switch0", "gpu4->switch1", "gpu0->gpu4", "gpu8->gpu0", "gpu3->gpu7"} <= names
    assert not {"gpu0->gpu1", "gpu3->gpu4", "gpu0->switch1"} & names
    by_class = {link.link_class: (link.bytes_per_s, link.latency_ps) for link in cluster.links}
    assert by_class == {"scale-up": (400 * 10**9, 900_000), "scale-out": (50 * 10**9, 1_000_000)}
    assert [cluster.devices[gpu].node for gpu in cluster.gpus] == [f"node{i // 4}" for i in range(12)]


def test_rings_in_all_dimensions_are_a_torus(tmp_path: Path) -> None:
    cluster = network(tmp_path, "Ring, Ring", "4, 3", "50, 50", "500, 500")
    assert cluster.grid == (3, 4)
    assert rates(cluster) == rates(build_topology("torus:3x4", "50 GB/s", "500 ns", 12))


def test_the_unit_is_noted_and_the_gpu_chosen(tmp_path: Path) -> None:
    network(tmp_path, "Switch", "8", "400.0", "936.25")
    out = tmp_path / "out.yaml"
    answer = CliRunner().invoke(
        app, ["cluster", "import", str(tmp_path / "net.yml"), "--gpu", "h100-sxm", "--yaml", str(out)]
    )
    assert "16 x scale-up  -                   400 GB/s   936.2 ns" in answer.output
    assert "ASTRA-sim reads its GB/s as GiB/s, and so simulates links of 429.5 GB/s" in answer.output
    assert {device.gpu for device in load_cluster(str(out)).devices if device.kind == "gpu"} == {"h100-sxm"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (FORM.format(kinds="Ring", counts="4"), "bandwidth: is missing"),
        (FORM.format(kinds="Rng", counts="4"), "topology: unknown topology 'Rng'; did you mean 'Ring'?"),
        (FORM.format(kinds="Ring", counts="4, 2") + NUMBERS, "npus_count: has 2 entries, but there are 1 dimensions"),
        (FORM.format(kinds="Ring", counts="4.5") + NUMBERS, "npus_count: must be a whole number from 1 to 1048576"),
        (FORM.format(kinds="Ring", counts="true") + NUMBERS, "npus_count: must be a whole number from 1"),
        (FORM.format(kinds="Ring", counts="9999999") + NUMBERS, "npus_count: must be a whole number from 1"),
        (FORM.format(kinds="Ring, Ring", counts="2048, 2048") + NUMBERS, "npus_count: has 4194304 NPUs"),
        (FORM.format(kinds="FullyConnected", counts="9000") + NUMBERS, "a full mesh of 9000 has more than 2097152"),
        (FORM.format(kinds="Ring", counts="4") + NUMBERS.replace("{bandwidth}", "tbd"), "bandwidth: must be a number"),
        (FORM.format(kinds="Ring", counts="4") + NUMBERS.replace("{bandwidth}", "0"), "from 1e-06 to 1e+06, got 0"),
        (FORM.format(kinds="Ring", counts="4") + NUMBERS.replace("{latency}", ".inf"), ".inf is no finite number"),
        (FORM.format(kinds="Ring", counts="4") + NUMBERS.replace("{latency}", "-1"), "from 0 to 1e+09, got -1"),
        (FORM.format(kinds="Ring", counts="4") + NUMBERS + "speed: 4\n", "unknown key 'speed'"),
        (FORM.format(kinds=", ".join(["Ring"] * 9), counts="2"), "topology: must have 1 to 8 entries, got 9"),
    ],
)
def test_faults_name_field_and_value(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "net.yml"
    path.write_text(
        text.replace("{bandwidth}", "50, 50" if "2048" in text else "50").replace(
            "{latency}", "500, 500" if "2048" in text else "500"
        )
    )
    with pytest.raises(SpecError) as found:
        read_any(path)
    assert words in str(found.value)
    assert str(path) in str(found.value)


def test_numbers_of_the_file_leave_nothing_to_choose(tmp_path: Path) -> None:
    network(tmp_path, "Ring", "4")
    with pytest.raises(SpecError, match="leave --link out"):
        read_any(tmp_path / "net.yml", links={"ring": "nvlink4"})
