"""Throughput, FLOP/s and MFU match figures by hand; likely ranges come from the nearest level or from collectives."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
import yaml

import trine
from trine.cluster import load_cluster
from trine.cluster.presets import known_gpus
from trine.compute.spread import GPU_SPREAD, slowest_of
from trine.parallel.stragglers import Jitter, Stragglers
from trine.results import headline
from trine.results.headline import StepBand, nearest_band
from trine.results.scales import RUN_TO_RUN, SCALES, scale_of
from trine.software.profile import known_software
from trine.training.ensemble import step_ensemble
from trine.training.headline import MOVED_BY_SHEETS, MOVED_BY_TABLES
from trine.training.options import SimulateOptions
from trine.workload.synthesis.model_files import load_model
from trine.workload.synthesis.spec import Transformer
from validation.left_out import from_another_us, left_out_us
from validation.operators import _INSTEAD, MOVED, SAMPLED, TABLES, _has

TRACE = Path(trine.__file__).parent / "presets" / "traces" / "resnet50-h100-b128"


def _step(plan: trine.Plan, model: str = "llama-3-8b", layers: int = 4) -> trine.Result:
    workload = trine.synthesize(model, gpu="h100-sxm", layers=layers)
    cluster = "dgx-h100" if plan.num_ranks > 1 else None
    return trine.simulate(workload, plan, cluster=cluster, compare=False)


def _flops_per_token(spec: Transformer, layers: int) -> float:
    """Return FLOPs by hand: 6 per GEMM weight, and 12 x sequence x features for attention over all scores."""
    attention = spec.hidden * (spec.heads + 2 * spec.kv_heads) * spec.head_size + spec.hidden**2
    weights = layers * (attention + 3 * spec.hidden * spec.ffn) + spec.vocab * spec.hidden
    return 6 * weights + 12 * layers * spec.sequence * spec.heads * spec.head_size


def test_model_flops_are_those_of_the_shapes() -> None:
    spec = load_model("llama-3-8b")
    assert isinstance(spec, Transformer)
    found = headline.numbers(_step(trine.Plan(dp=2, batch=3, micro_batch=1)))
    assert found["tokens_per_s"] == pytest.approx(float(str(found["samples_per_s"])) * spec.sequence)
    per_token = float(str(found["model_flops_per_s_per_gpu"])) / float(str(found["tokens_per_s_per_gpu"]))
    assert per_token == pytest.approx(_flops_per_token(spec, 4), rel=1e-6)
    assert found["mfu"] == pytest.approx(float(str(found["model_flops_per_s_per_gpu"])) / 989.4e12)
    assert found["hardware_flops_per_s_per_gpu"] == found["model_flops_per_s_per_gpu"]


def test_recomputed_layers_are_hardware_flops() -> None:
    spec = load_model("llama-3-8b")
    assert isinstance(spec, Transformer)
    head = 2 * spec.vocab * spec.hidden
    forward = _flops_per_token(spec, 4) / 3
    for layers, share in ((None, 1.0), (1, 0.25)):
        found = _step(trine.Plan(recompute="full", recompute_layers=layers)).work
        assert found is not None
        assert found.tokens is not None
        again = (found.hardware_flops - found.model_flops) / found.tokens
        assert again == pytest.approx(share * (forward - head), rel=1e-6)


@pytest.mark.parametrize("plan", [trine.Plan(tp=4, sequence_parallel=True), trine.Plan(pp=2, batch=4, micro_batch=1)])
def test_a_layout_does_not_change_what_the_model_computes(plan: trine.Plan) -> None:
    one, other = _step(trine.Plan(batch=plan.batch)).work, _step(plan).work
    assert one is not None
    assert other is not None
    assert other.model_flops == pytest.approx(one.model_flops)


def test_a_band_stands_beside_every_number() -> None:
    result = replace(_step(trine.Plan()), band=StepBand(low=0.9, high=1.2, level="a level", num_rows=9))
    found = headline.numbers(result)
    assert found["step_time_low_s"] == pytest.approx(0.9 * result.step_time_s)
    assert found["step_time_high_s"] == pytest.approx(1.2 * result.step_time_s)
    assert found["mfu_low"] == pytest.approx(float(str(found["mfu"])) / 1.2)
    assert "a level" in result.summary()
    assert {row["number"] for row in result.tables()["headline"]} >= {"step_time_s", "mfu", "tokens_per_s"}  # type: ignore[union-attr]


def test_the_nearest_level_with_enough_rows_counts(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    def level(of: dict[str, str], rows: int, low: float) -> dict[str, object]:
        scales = dict.fromkeys([name for _, name in SCALES], rows)
        return {"of": of, "rows": rows, "votes": rows, "scales": scales, "shared_scales": {}, "low": low, "high": 2.0}

    exact = {"gpu": "h100-sxm", "software": "megatron-core", "scale": "1 node"}
    content = {
        "generations": {"h100-sxm": "hopper"},
        "scales": {},
        "levels": [
            level(exact, 14, 0.1),
            level({"generation": "hopper", "software": "megatron-core"}, 8, 0.2),
            level({"generation": "hopper"}, 30, 0.3),
            level({}, 300, 0.4),
        ],
    }
    path = tmp_path / "bands.yaml"
    path.write_text(yaml.safe_dump(content))
    monkeypatch.setattr(headline, "BANDS", path)
    headline._bands.cache_clear()
    try:
        found = [nearest_band("h100-sxm", "megatron-core", 1), nearest_band("h100-sxm", "other", 1)]
        assert [band.low for band in found if band] == [0.2, 0.3]
        other = nearest_band("rtx4090", "other", 9)
        assert other is not None
        assert (other.low, other.num_rows) == (0.4, 300)
    finally:
        headline._bands.cache_clear()


def test_scales_cover_all_numbers_of_nodes() -> None:
    assert [scale_of(nodes) for nodes in (1, 2, 4, 32, 33)] == [SCALES[i][1] for i in (0, 1, 2, 2, 3)]


def test_a_recorded_step_has_the_band_of_its_gpus_and_collectives() -> None:
    alone = trine.simulate(TRACE, trine.Plan(), trace_gpu="h100-sxm", compare=False)
    around = headline.ends_ps(alone)
    assert around is not None
    assert around[0] == pytest.approx(alone.step_time_ps * (1 - RUN_TO_RUN), abs=1)
    assert around[1] == pytest.approx(alone.step_time_ps * (1 + RUN_TO_RUN), abs=1)
    plan = trine.Plan(dp=8, dp_overlap=False)
    several = trine.simulate(TRACE, plan, cluster="dgx-h100", trace_gpu="h100-sxm", compare=False)
    ends = headline.ends_ps(several)
    assert ends is not None
    exposed, step_ps = int(several.rank_times.exposed[several.slowest_row]), several.step_time_ps
    spread, slowest = step_ps * RUN_TO_RUN, step_ps * slowest_of(8, GPU_SPREAD)
    assert step_ps - spread - exposed < ends[0] < step_ps - spread
    assert step_ps + spread + slowest < ends[1] < step_ps + spread + slowest + exposed


def test_no_band_is_narrower_than_the_spread_of_gpus() -> None:
    """``RUN_TO_RUN`` is the 90th percentile of normal GPUs, and every level of the file is at least as wide."""
    assert pytest.approx(NormalDist(0, GPU_SPREAD).inv_cdf(0.9), rel=1e-3) == RUN_TO_RUN
    for gpu in known_gpus():
        for software in known_software():
            for nodes in (1, 2, 8, 64):
                band = nearest_band(gpu, software, nodes)
                assert band is not None
                assert band.low <= 1 - RUN_TO_RUN
                assert band.high >= 1 + RUN_TO_RUN


def test_repeated_runs_lie_in_the_range_that_is_shown() -> None:
    options = SimulateOptions(
        cluster="dgx-h100", stragglers=Stragglers(jitter=Jitter(distribution="normal", spread=0.2)), compare=False
    )
    found = step_ensemble("vgg13-h100-b128", trine.Plan(dp=2), repeats=10, options=options)
    ends = headline.ends_ps(found.result)
    assert ends is not None
    assert ends[0] <= found.runs.percentile_ps(10)
    assert found.runs.percentile_ps(90) <= ends[1]
    assert "80 % of these 10 runs" in str(headline.numbers(found.result)["step_time_band"])


def test_a_shared_fabric_decides_beyond_32_nodes() -> None:
    """At the 5th measured percentile, an all-reduce over 64 nodes takes 2 x 511/512 x bytes / (0.031 x ports)."""
    workload = trine.synthesize("llama-3-8b", gpu="h100-sxm", layers=1)
    ends = {}
    for nodes, fabric in ((32, "rail@efa-v2"), (64, "rail@efa-v2"), (64, "rail@ib-ndr")):
        plan = trine.Plan(dp=nodes * 8, bucket_bytes=64 << 30, dp_overlap=False)
        cluster = load_cluster("dgx-h100", nodes=nodes, fabric=fabric)
        found = trine.simulate(workload, plan, cluster=cluster, compare=False)
        is_shared = nodes > 32 and "efa" in fabric
        assert ("the fabric decides" in str(headline.numbers(found)["step_time_band"])) == is_shared
        ends[nodes, fabric] = headline.ends_ps(found), found
    both, found = ends[64, "rail@efa-v2"]
    assert both is not None
    use = next(use for use in found.collectives if use.kind == "all_reduce")
    slow_ps = use.count * use.size_bytes * 2 * 511 / 512 / (0.031 * 8 * 12.5e9) * 1e12
    assert both[1] >= found.step_time_ps + slow_ps - use.time_ps - 1


def test_convolutions_of_float32_count_against_the_peak_of_tf32() -> None:
    """VGG-13 recorded on an H100 exceeds the float32 peak: its convolutions ran in TF32, PyTorch's default."""
    step = trine.simulate("vgg13-h100-b128", trine.Plan(), compare=False)
    assert step.work is not None
    assert (step.work.dtype, step.work.peak_flops) == ("tfloat32", pytest.approx(494.7e12))
    assert float(str(headline.numbers(step)["model_flops_per_s_per_gpu"])) > 66.9e12
    assert 0.1 < float(str(headline.numbers(step)["mfu"])) < 0.3
    older = trine.simulate("vgg13-h100-b128", trine.Plan(), gpu="v100", compare=False).work
    assert older is not None
    assert (older.dtype, older.peak_flops) == ("float32", pytest.approx(15.7e12))


def _moved_factors(every: int = SAMPLED) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the 10th and 90th percentile of measured over moved time: moved by tables, and by the data sheets alone.

    'trine validate operators' makes the same comparisons for another GPU and for left-out GPUs.
    """
    by_tables, by_sheets = [], []
    for table in TABLES:
        known = {gpu: left_out_us(gpu, table, every) for gpu in MOVED}
        for there, here in permutations(known.values(), 2):
            by_tables.append(here[1] / (there[1] * here[0] / there[0]))
    for gpu, source in _INSTEAD.items():
        for table in set(_has(gpu)) & set(_has(source)):
            predicted, actual = from_another_us(gpu, source, table, every)
            by_sheets.append(actual / predicted)
    low, high = (
        [float(np.nanquantile(np.concatenate(x), part)) for x in (by_tables, by_sheets)] for part in (0.1, 0.9)
    )
    return (low[0], high[0]), (low[1], high[1])


@pytest.mark.slow
def test_factors_of_moved_times_are_those_of_operators_that_were_left_out() -> None:
    by_tables, by_sheets = _moved_factors()
    assert by_tables == pytest.approx(MOVED_BY_TABLES, abs=0.01)
    assert by_sheets == pytest.approx(MOVED_BY_SHEETS, abs=0.02)


def test_moved_times_have_the_range_of_operators_that_were_left_out() -> None:
    least, most = MOVED_BY_TABLES, MOVED_BY_SHEETS
    for gpu in ("v100", "a100-80gb"):
        moved = trine.simulate("vgg13-h100-b128", trine.Plan(), gpu=gpu, compare=False)
        ends = headline.ends_ps(moved)
        assert ends is not None
        assert most[0] - 1e-6 <= ends[0] / moved.step_time_ps <= least[0] + 1e-6
        assert least[1] - 1e-6 <= ends[1] / moved.step_time_ps <= most[1] + 1e-6
        assert "held-out operators fall this close" in str(headline.numbers(moved)["step_time_band"])


def test_times_that_were_predicted_have_no_band() -> None:
    """Times from a data sheet or tables are not recorded ones: the collectives' range is not the step's."""
    asked: tuple[dict[str, object], ...] = (
        {"cluster": "dgx-h100", "compute": "roofline"},
        {"cluster": "dgx-h100", "compute": "tables"},
    )
    for options in asked:
        moved = trine.simulate("vgg13-h100-b128", trine.Plan(dp=8), compare=False, **options)  # type: ignore[arg-type]
        found = headline.numbers(moved)
        assert (found["step_time_low_s"], found["step_time_band"], found["mfu_low"]) == (None, None, None)
    smaller = trine.simulate("vgg13-h100-b128", trine.Plan(dp=8, batch=64), cluster="dgx-h100", compare=False)
    assert "scaled from the recording, without a range" in str(headline.numbers(smaller)["step_time_band"])


@pytest.mark.parametrize(
    ("model", "gpu", "said"),
    [
        ("resnet18", "h100-sxm", ()),
        ("llama-3.2-1b", "mi300x", ("the mi300x or its generation",)),
        ("llama-3.2-1b", "h100-sxm", ()),
        ("mixtral-8x7b", "h100-sxm", ()),
        ("llama-3.2-1b,trainable=lora:8", "h100-sxm", ()),
    ],
)
def test_a_band_of_other_models_or_gpus_says_so(model: str, gpu: str, said: tuple[str, ...]) -> None:
    kept = "" if model.startswith("resnet") else ",layers=1,sequence=512"
    step = trine.simulate(f"model:{model}{kept},gpu={gpu}", trine.Plan(), compare=False)
    warned = [text for text in step.warnings if "likely range may be too narrow" in text]
    assert len(warned) == bool(said)
    assert all(word in warned[0] for word in said)


def test_one_line_says_throughput_and_whether_it_fits() -> None:
    """``--brief`` must not show the step's time without saying that the job runs out of memory."""
    step = _step(trine.Plan(dp=8, batch=4), layers=16)
    assert step.verdict_of_row(0) == "does not fit"
    needed = step.memory_uses[0].needed_bytes / 2**30
    assert f"memory needed {needed:.4g} GiB of 80 GiB (rank 0): DOES NOT FIT" in step.headline
    assert f"memory needed  {needed:.4g} GiB of 80 GiB (rank 0): DOES NOT FIT" in step.details()
    row = next(line for line in step.summary().splitlines() if line.startswith("memory "))
    assert f" {needed:.4g} GiB of 80 GiB   DOES NOT FIT: {needed - 80:.4g} GiB over on rank 0; " in row
    tokens = float(str(headline.numbers(step)["tokens_per_s"]))
    assert tokens > 1e5
    for text in (step.headline, step.summary(), step.details()):
        assert f"{tokens:,.0f} tokens/s" in text
