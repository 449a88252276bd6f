"""Does a cluster file with a bandwidth per collective reproduce the measured bus bandwidths of one cluster?

tests/data/ultrascale_collectives.csv: all_reduce, all_gather and reduce_scatter of 1 GiB on 1 to 32 nodes of 8 H100 and
EFA (nanotron's Ultra-Scale Playbook; apache-2.0 / MIT; the sources are in its rows).
"""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from trine import Cluster, InputError, Plan, SpecError, collective, fit_cluster, load_cluster, simulate
from trine.cluster.collective_bandwidth import BANDWIDTH_OPS
from trine.cluster.schema import CollectiveBandwidthSpec
from trine.collectives.nccl.predict import OPS

TABLE = Path(__file__).parents[1] / "data" / "ultrascale_collectives.csv"
ROWS = list(csv.DictReader(TABLE.read_text().splitlines()))
GIB = 2**30


def cluster_file(folder: Path, ops: tuple[str, ...] = ("all_reduce", "all_gather", "reduce_scatter")) -> Path:
    """Write the cluster of the measurements: eight H100, and 32 EFA devices of 100 Gb/s per node."""
    lines = ["base: dgx-h100", "fabric: {link: efa-v2, lanes: 4}", "collective_bandwidth:"]
    for op in ops:
        rates = [(row["nodes"], row["busbw_GBps_line"]) for row in ROWS if row["collective"] == op]
        lines.append(f"  {op}: {{{', '.join(f'{nodes}: {rate} GB/s' for nodes, rate in rates)}}}")
    path = folder / "efa.yaml"
    path.write_text("\n".join([*lines, "  evidence: measured"]))
    return path


def test_the_measured_bus_bandwidths(tmp_path: Path) -> None:
    path = cluster_file(tmp_path)
    worst = 0.0
    for row in ROWS:
        answer = collective(row["collective"], [GIB], load_cluster(path, nodes=int(row["nodes"]))).rows[0]
        error = answer.busbw_bytes_per_s / (float(row["busbw_GBps_line"]) * 1e9) - 1
        worst = max(worst, abs(error))
        assert answer.evidence == "measured"
    print(f"worst error of {len(ROWS)} bus bandwidths: {worst:.2%}")
    assert worst < 0.005


def test_other_collectives_and_numbers_of_nodes(tmp_path: Path) -> None:
    """all_to_all keeps the links' bandwidth; 24 nodes lie between 16 and 32; 64 nodes are no measurement."""
    cluster = load_cluster(cluster_file(tmp_path), nodes=24)
    bare = replace(cluster, collective_bandwidth=None)
    assert collective("all_to_all", [GIB], cluster).times_ps == collective("all_to_all", [GIB], bare).times_ps
    answer = collective("all_gather", [GIB], cluster)
    assert 27.97e9 < answer.rows[0].busbw_bytes_per_s < 54.97e9
    assert answer.rows[0].evidence == "interpolated"
    assert "on 24 nodes of 8 GPUs, from the cluster file (interpolated)" in answer.notes[0]
    assert "has no collective_bandwidth for all_to_all here" in collective("all_to_all", [GIB], cluster).notes[0]
    given = cluster.collective_bandwidth
    assert given is not None
    assert given.at("all_gather", 64) == pytest.approx(27.97e9)
    assert given.evidence_at("all_gather", 64) == "assumed"


def test_one_gpu_per_node_loses_the_same_share(tmp_path: Path) -> None:
    """Groups with one GPU per node use one NIC each, so the bandwidth of whole nodes holds for them only in part."""
    cluster = load_cluster(cluster_file(tmp_path), nodes=8)
    bare = replace(cluster, collective_bandwidth=None)
    group = range(0, 64, 8)
    one, links = (collective("all_gather", [GIB], each, group).rows[0] for each in (cluster, bare))
    whole, whole_links = (collective("all_gather", [GIB], each).rows[0] for each in (cluster, bare))
    assert one.busbw_bytes_per_s < whole.busbw_bytes_per_s / 4
    ratios = one.time_ps / links.time_ps, whole.time_ps / whole_links.time_ps  # software costs are a part of both
    assert ratios[0] == pytest.approx(ratios[1], rel=0.2)
    few = load_cluster(cluster_file(tmp_path), gpus=8, nodes=8)  # the same group on a machine with one GPU per node
    alone = collective("all_gather", [GIB], few).rows[0]
    assert alone.busbw_bytes_per_s == pytest.approx(69.0e9 / 8, rel=0.01)


def test_faults_keep_their_effect(tmp_path: Path) -> None:
    path = cluster_file(tmp_path)
    sound = load_cluster(path, nodes=2)
    slow = load_cluster(path, nodes=2, slow_links=[("node0.nic0->leaf0.rail0", 0.1)])
    times = [collective("all_gather", [GIB], each).times_ps[0] for each in (sound, slow)]
    assert times[1] > 1.5 * times[0]


def test_a_training_step_takes_it(tmp_path: Path) -> None:
    """An FSDP step gathers weights between nodes: slower with the measured all_gather, and the evidence names it."""
    cluster = load_cluster(cluster_file(tmp_path), nodes=8)
    bare = replace(cluster, collective_bandwidth=None)
    plan = Plan(dp=64, sharding="fsdp", batch=1)
    model = "model:llama-3-8b,layers=4"
    with_file, without = (simulate(model, plan, cluster=each, compare=False) for each in (cluster, bare))
    assert with_file.step_time_ps > 1.2 * without.step_time_ps
    gathers = [each for each in with_file.collectives if each.kind == "all_gather"]
    assert gathers
    assert "bandwidth per collective" in with_file.details()
    assert "bandwidth per collective" not in without.details()


def test_the_file_reads_back(tmp_path: Path) -> None:
    cluster = load_cluster(cluster_file(tmp_path))
    path = tmp_path / "again.yaml"
    path.write_text(cluster.to_yaml())
    again = Cluster.from_yaml(path)
    assert again.collective_bandwidth == cluster.collective_bandwidth
    assert again.fingerprint == cluster.fingerprint
    assert cluster.fingerprint != replace(cluster, collective_bandwidth=None).fingerprint


def test_names_are_those_of_the_library() -> None:
    assert set(BANDWIDTH_OPS) <= set(OPS)
    assert set(BANDWIDTH_OPS) <= set(CollectiveBandwidthSpec.model_fields)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{all_reduc: 3 GB/s}", "unknown key 'all_reduc'; did you mean 'all_reduce'?"),
        ("{all_gather: 3}", "collective_bandwidth.all_gather"),
        ("{all_gather: -3 GB/s}", "collective_bandwidth.all_gather"),
        ("{all_gather: {0: 3 GB/s}}", "numbers of nodes are whole numbers from 1 to 262144, got 0"),
        ("{all_gather: {}}", "needs a bandwidth for a number of nodes"),
        ("{size: 1 GiB}", "gives no bandwidth: name one of all_reduce, all_gather"),
        ("{all_gather: 3 GB/s, evidence: mesured}", "should be 'measured'"),
    ],
)
def test_refused_files(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(f"base: dgx-h100\ncollective_bandwidth: {content}\n")
    with pytest.raises(SpecError) as error:
        load_cluster(path)
    assert words in str(error.value)


def test_a_bandwidth_beyond_the_latency(tmp_path: Path) -> None:
    path = tmp_path / "fast.yaml"
    path.write_text("base: dgx-h100\ncollective_bandwidth: {all_gather: 900 GB/s, size: 1 MiB}\n")
    with pytest.raises(InputError, match=r"collective_bandwidth\.all_gather: .* of launches and latency"):
        collective("all_gather", [GIB], load_cluster(path, nodes=8))


def test_a_fit_of_links_refuses_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="collective_bandwidth, which hides its links from a fit"):
        fit_cluster(load_cluster(cluster_file(tmp_path)), [])


def test_bare_links_have_no_library(tmp_path: Path) -> None:
    path = tmp_path / "bare.yaml"
    path.write_text(
        "devices: [a, b]\nlinks: [{from: a, to: b, bandwidth: 1 GB/s, latency: 0, duplex: true}]\n"
        "collective_bandwidth: {all_reduce: 1 GB/s}\n"
    )
    with pytest.raises(SpecError, match="needs 'library: nccl' or 'rccl'"):
        load_cluster(path)
