"""Slowdowns of steps beyond single kernels and links: crowded fabrics, misaligned GEMMs, sustained clocks."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from trine.cluster import load_cluster, load_gpu
from trine.cluster.parts import SCALE_OUT
from trine.cluster.presets import known_gpus, load_links
from trine.compute.resize import Split
from trine.compute.tables import convolutions
from trine.compute.tables.times import TableTimes
from trine.graph.workload import Workload
from trine.workload.synthesis.model import synthesize
from trine.workload.synthesis.spec import Transformer
from validation.replay_rows import predict
from validation.training_rows import FOLDER, load_rows

CROWDED = [name for name, kind in load_links().items() if kind.crowding is not None]


def _between_nodes(nodes: int, fabric: str) -> set[int]:
    cluster = load_cluster("dgx-a100", nodes=nodes, fabric=fabric)
    return {link.bytes_per_s for link in cluster.link_table.numbers if link.link_class == SCALE_OUT}


@pytest.mark.parametrize("name", CROWDED)
def test_crowded_fabrics_follow_the_formula(name: str) -> None:
    kind = load_links()[name]
    assert [kind.share_on(nodes) for nodes in (1, 4)] == [1.0, 1.0]
    assert kind.share_on(128) == pytest.approx(1 / (1 + 0.12 * math.log2(128 / 4)))
    shares = [kind.share_on(nodes) for nodes in range(1, 300)]
    assert shares == sorted(shares, reverse=True)
    for nodes in (2, 4, 16):
        assert _between_nodes(nodes, f"switch@{name}") == {round(kind.bytes_per_s * kind.share_on(nodes))}


def test_each_factor_names_the_source_that_fitted_it_and_another_that_tested_it() -> None:
    assert CROWDED == ["opa-100", "roce-100"]
    for name in CROWDED:
        crowding = load_links()[name].crowding
        assert crowding is not None
        assert "InternEvo" in crowding.fitted
        assert "BigScience" in crowding.tested
        cluster = load_cluster("dgx-a100", nodes=8, fabric=f"rail@{name}")
        assert crowding.fitted in cluster.notes
        assert crowding.tested in cluster.notes
    slowed = {name for name in known_gpus() if load_gpu(name).step_slowdown > 1}
    assert slowed == {"b200", "gb200", "b300", "gb300"}
    for name in slowed:
        source = load_gpu(name).sources["step_slowdown"]
        assert "fitted on 24 steps of SimuMax" in source
        assert "tested on a step of Qwen3-30B-A3B" in source


def test_infiniband_and_stated_bandwidths_are_not_crowded() -> None:
    assert _between_nodes(64, "switch@ib-edr") == {load_links()["ib-edr"].bytes_per_s}


def _times(gpu: str, size: int, heads: int = 16, software: str = "megatron-2021") -> tuple[Workload, TableTimes]:
    model = Transformer(
        name="small", layers=1, hidden=heads * size, heads=heads, kv_heads=heads, head_size=size, ffn=4 * heads * size,
        vocab=1024, sequence=2048,
    )  # fmt: skip
    workload = synthesize(model, gpu=gpu, software=software)
    return workload, TableTimes(workload, load_gpu(gpu))


def _attention_us(gpu: str, size: int, software: str = "megatron-2021") -> list[float]:
    """Return the times of attention's GEMMs in us: scores and values forward, then backward."""
    workload, times = _times(gpu, size, software=software)
    chosen = [op for op in workload.operators if ".core" in (op.layer or "") and "matmul" in op.name]
    return [times.duration(op, Split(workload.batch)).ps / 1e6 for op in chosen]


def test_misaligned_products_of_attention_run_without_tensor_cores_on_a100() -> None:
    """They take as long as NeuSight's float32 GEMMs. The peaks' ratio is 16; both reach a similar share of theirs."""
    scores, values = _attention_us("a100-80gb", 108)[:2]
    for us, shape in ((scores, (2048, 2048, 108)), (values, (2048, 108, 2048))):
        known = convolutions.product(load_gpu("a100-80gb"), *shape, batch=16)
        assert known is not None
        assert us == pytest.approx(known.us, rel=1e-3)
    for misaligned, aligned in zip(_attention_us("a100-80gb", 108), _attention_us("a100-80gb", 112), strict=True):
        assert 4 < misaligned / aligned < 16


def test_head_sizes_cost_little_where_they_are_aligned_fused_or_on_other_gpus() -> None:
    for gpu, software, sizes in (
        ("a100-80gb", "megatron-2021", (104, 112)), ("h100-sxm", "megatron-2021", (108, 112)),
    ):  # fmt: skip
        for one, other in zip(*(_attention_us(gpu, size, software) for size in sizes), strict=True):
            assert one < 1.3 * other
    assert _attention_us("a100-80gb", 108, "megatron-core") == []


def test_operators_of_blackwell_take_the_clock_that_it_sustains() -> None:
    workload, times = _times("b200", 128)
    plain = TableTimes(workload, replace(load_gpu("b200"), step_slowdown=1.0))
    for op in workload.operators[:40]:
        one, other = (model.duration(op, Split(workload.batch)).ps for model in (times, plain))
        assert one == pytest.approx(1.045 * other, abs=3)
    assert any("x 1.045 for its sustained clock" in note for note in times.notes)
    assert not any("clock" in note for note in _times("h100-sxm", 128)[1].notes)


@pytest.mark.slow
def test_bigscience_shows_the_crowded_fabric_and_the_misaligned_head_size() -> None:
    """Neither effect was fitted on it. Rows 70 and 71 differ only in head size: 144 and 108."""
    rows = {row.name: row for row in load_rows()}
    for name, most in (("bigscience-81", 0.05), ("bigscience-70", 0.05), ("bigscience-71", 0.10)):
        answer = predict(rows[name])
        assert not answer.why_not
        assert abs(answer.step_s / (rows[name].step_s or 0) - 1) < most


def test_jean_zay_has_omni_path() -> None:
    cluster = load_cluster(str(FOLDER / "clusters" / "jean-zay-a100.yaml"), nodes=48)
    media = {link.medium for link in cluster.link_table.numbers if link.link_class == SCALE_OUT}
    assert media == {"opa-100"}
