"""Bytes of each host under offload against hand formulas, and the verdict of a host that is too small."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

import trine
from trine.cli.main import app
from trine.cluster import known_clusters
from trine.errors import InputError, PlanError, SpecError
from trine.results.host_memory import OTHER_USES, HostMemory
from trine.workload.synthesis.model_files import load_model

MODEL, LAYERS = "model:llama-3-8b,layers=4", 4
LLAMA = replace(load_model("llama-3-8b"), layers=LAYERS, parameters=None)
RING = """
name: ring
topology: {kind: ring, gpus: 4, bandwidth: 100 GB/s, latency: 1 us, gpu: h100-sxm}
host: {bandwidth: 30 GB/s, latency: 1 us%s}
"""


def host_of(plan, cluster="dgx-h100", **options):
    return trine.simulate(MODEL, plan, cluster=cluster, **options).host_memory


@pytest.mark.parametrize(
    ("fields", "software", "each"),
    [
        ({"dp": 4}, "megatron-core", 4 * (12 + 4)),  # every replica has all states and float32 gradients
        ({"dp": 4, "sharding": "zero1"}, "megatron-core", 12 + 4),  # each its part
        ({"dp": 4, "sharding": "zero1"}, "nemo-25", 12 + 2),  # bf16 gradients
        ({"tp": 2, "dp": 2, "sharding": "zero1"}, "megatron-core", 12 + 4),
        ({"pp": 2, "dp": 2, "sharding": "zero1"}, "megatron-core", 12 + 4),
    ],
)
def test_optimizer_states_and_gradients_on_the_host(fields, software, each) -> None:
    """12 bytes of state a parameter, and its gradient in the dtype of the reduction; all ranks are on one node."""
    plan = trine.Plan(**fields, micro_batch=1, batch=2, offload="optimizer")
    host = host_of(plan, software=software)
    assert host.bytes_per_host == pytest.approx(each * LLAMA.num_parameters, rel=2e-3)
    assert (host.ranks, host.hosts, host.capacity_bytes) == (4, 1, 2 * 2**40)


def test_ranks_on_two_nodes_fill_two_hosts() -> None:
    plan = trine.Plan(dp=16, sharding="zero1", micro_batch=1, batch=1, offload="optimizer")
    host = host_of(plan, trine.load_cluster("dgx-h100", nodes=2))
    assert host.bytes_per_host == pytest.approx(16 * LLAMA.num_parameters / 2, rel=2e-3)
    assert (host.ranks, host.hosts) == (8, 2)


def test_activations_on_the_host() -> None:
    """All layers but the last leave; without a pipeline one micro-batch at a time, whatever their number."""
    run = [
        trine.simulate(MODEL, trine.Plan(batch=batch, micro_batch=1, offload="activations"), cluster="dgx-h100")
        for batch in (1, 4)
    ]
    out = [r.host_memory.bytes_per_host for r in run]
    assert out[0] == out[1]
    graph = run[0].graph
    to_host = int(graph.size_bytes[(graph.labels.phase == 5)].sum()) // 2  # out and back
    assert out[0] == to_host
    with_pipeline = [
        host_of(trine.Plan(pp=2, schedule=schedule, batch=8, micro_batch=1, offload="activations"), software="none")
        for schedule in ("1f1b", "gpipe")
    ]
    assert with_pipeline[1].bytes_per_host > 3 * with_pipeline[0].bytes_per_host  # 8 micro-batches in flight, not 2


def test_no_offload_has_no_host() -> None:
    assert host_of(trine.Plan(dp=2, batch=1)) is None


def test_a_host_that_is_too_small(tmp_path) -> None:
    """The verdict, the warning, and the JSON of the command, which ends as it does for GPU memory."""
    path = tmp_path / "ring.yaml"
    needed = 16 * LLAMA.num_parameters
    words = ["train", MODEL, "--dp", "4", "--sharding", "zero1", "--batch", "1", "--offload", "optimizer"]
    for size, verdict in ((0.9, "does not fit"), (1.05, "tight"), (1.3, "fits")):
        path.write_text(RING % f", memory: {int(size * needed)} B")
        host = host_of(trine.Plan(dp=4, sharding="zero1", batch=1, offload="optimizer"), str(path))
        assert host.verdict == verdict
        done = CliRunner().invoke(app, [*words, "--cluster", str(path), "--json", "-"])
        content = json.loads(done.stdout)
        assert (content["memory_verdict"], content["host_memory"]["verdict"]) == (verdict, verdict)
        assert content["host_memory"]["bytes_per_host"] == host.bytes_per_host
        assert done.exit_code == 0
        assert ("DOES NOT FIT" in done.stderr) == (verdict == "does not fit")
        assert any("host memory" in text for text in content["warnings"]) == (verdict == "does not fit")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "host 'host' of cluster 'ring' has none.*1 GiB to 1 PiB"),
        (", memory: -2 TB", "'-2 TB'"),
        (", memory: 100 MB", "1 GiB to 1 PiB of memory, got 100000000 B"),
    ],
)
def test_hosts_without_a_possible_figure_are_refused(tmp_path, text, words) -> None:
    path = tmp_path / "ring.yaml"
    path.write_text(RING % text)
    with pytest.raises((PlanError, SpecError), match=words) as caught:
        host_of(trine.Plan(dp=4, batch=1, offload="optimizer"), str(path))
    assert "\n" not in str(caught.value)


def test_only_hosts_have_a_memory_figure(tmp_path) -> None:
    path = tmp_path / "one.yaml"
    path.write_text("devices: [{name: gpu, gpu: h100-sxm, memory: 80 GB}]\nlinks: []\n")
    with pytest.raises(InputError, match="a gpu has no memory figure"):
        trine.load_cluster(str(path))


def test_presets_state_the_memory_of_every_host() -> None:
    """A server's hosts have a figure with a source; unified memory (DGX Spark) has none. Files keep it."""
    for name in known_clusters():
        cluster = trine.load_cluster(name)
        hosts = {int(h) for h in cluster.hosts_of(cluster.gpus) if h >= 0}
        figures = [cluster.devices[host].memory_bytes for host in hosts]
        assert all(figures) == (name != "dgx-spark" or not hosts), name
        assert not hosts or name == "dgx-spark" or "host memory capacity" in cluster.sources, name
    dgx = trine.load_cluster("dgx-h100")
    assert sum(device.memory_bytes or 0 for device in dgx.devices) == 2 * 2**40
    assert "memory" in dgx.to_yaml()


def test_a_base_changes_the_figure(tmp_path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text("base: dgx-h100\ndevices: [{name: [dram0, dram1], memory: 256 GiB}]\n")
    cluster = trine.load_cluster(str(path))
    again = tmp_path / "again.yaml"
    again.write_text(cluster.to_yaml())
    for each in (cluster, trine.load_cluster(str(again))):
        assert sum(device.memory_bytes or 0 for device in each.devices) == 512 * 2**30


def test_room_for_other_uses() -> None:
    host = HostMemory(host="a", bytes_per_host=95, capacity_bytes=100, ranks=1, hosts=1)
    assert (host.verdict, host.margin_bytes) == ("tight", 5)
    assert replace(host, bytes_per_host=round(100 * (1 - OTHER_USES))).verdict == "fits"
    assert replace(host, bytes_per_host=101).verdict == "does not fit"
