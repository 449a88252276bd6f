"""trine.plan_serving and trine.size_serving: spaces, limits, refusals, texts, JSON, pictures and launch commands."""

import dataclasses
import json
import re
from types import SimpleNamespace

import pytest

import trine
from trine.cluster import load_cluster, load_gpu
from trine.errors import InputError, PlanError
from trine.inference.deployment import served_model
from trine.inference.job import ServingJob, ServingLayout
from trine.inference.launch_commands import launch_command, launch_rules
from trine.inference.layouts import copies_of, copy_sizes, layouts_of
from trine.inference.plan_answer import spaced
from trine.inference.plan_serving import raise_unmet
from trine.inference.point_search import LatencyLimits, PointSearch, pareto
from trine.inference.precision_choice import precisions_of
from trine.results.text import fitted

DENSE, MIXTURE = "llama-3-8b", "qwen3-30b-a3b"


def ask(model=DENSE, cluster="dgx-h100", gpus=2, **changes):
    usual = {"input_tokens": 512, "output_tokens": 64}
    return trine.plan_serving(model, cluster, gpus, **{**usual, **changes})


@pytest.fixture(scope="module")
def found():
    return ask(gpus=4)


# The space ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "size", "copies"),
    [([8, 8], 2, 8), ([8, 8], 8, 2), ([8, 8], 16, 1), ([8, 8], 3, 4), ([8, 8], 12, 0), ([8, 4], 8, 1), ([8, 4], 4, 3)],
)
def test_copies_stay_in_a_node_or_take_whole_nodes(nodes, size, copies):
    assert copies_of(nodes, size) == copies


def test_copies_fill_the_gpus_first():
    cluster = load_cluster("dgx-h100", gpus=12)
    assert copy_sizes(cluster, leaves_idle=False) == [1, 2, 4]
    assert copy_sizes(cluster, leaves_idle=True) == [3, 5, 6, 7, 8]


def test_copies_that_leave_gpus_idle_count_if_no_other_fits():
    found = ask("llama-3-405b", "dgx-h100", 12, precision="fp8", top=10)
    assert {each.answer.gpus for each in found.ranked} <= {6, 7, 8}
    assert found.best.copies == 1
    assert found.best.per_gpu == pytest.approx(found.best.answer.output_tokens_per_s.value / 12, rel=1e-12)


def test_engines_bound_the_layouts():
    model = served_model(MIXTURE)
    vllm, sglang, trtllm = (set(layouts_of(model, 8, launch_rules(name))) for name in ("vllm", "sglang", "trtllm"))
    assert all(each.ep in (1, each.stage_gpus) for each in vllm)
    assert all(each.attention_dp in (1, each.stage_gpus) for each in trtllm)
    assert vllm | trtllm < sglang
    assert all(each.gpus == 8 for each in sglang)
    assert len(sglang) == 16 + 9 + 4 + 1  # (attention dp) x (ep) of stages of 8, 4, 2 and 1 GPUs
    assert set(layouts_of(served_model(DENSE), 4, launch_rules("sglang"))) == {
        ServingLayout(tp=4), ServingLayout(tp=2, pp=2), ServingLayout(pp=4),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("model", "gpu", "precisions"),
    [
        (DENSE, "a100-80gb", ["bf16"]),
        (DENSE, "h100-sxm", ["bf16", "fp8", "fp8-block"]),
        (DENSE, "b200", ["bf16", "fp8", "fp8-block", "nvfp4"]),
        (MIXTURE, "b200", ["bf16", "fp8", "fp8-block", "nvfp4", "mxfp4", "mxfp8"]),
        ("deepseek-v3", "h200", ["fp8", "fp8-block", "mxfp4"]),
        ("gpt-oss-20b", "h200", ["mxfp4"]),
    ],
)
def test_precisions_are_those_of_the_gpu_and_no_wider_than_stored(model, gpu, precisions):
    assert precisions_of(served_model(model), load_gpu(gpu), "") == precisions


def test_a_given_precision_is_the_only_one():
    assert {each.answer.precision for each in ask(precision="fp8-block").ranked} == {"fp8-block"}


# Answers ------------------------------------------------------------------------------------------------------------


def test_rows_equal_trine_infer(found):
    for point in (*found.ranked, *found.front[::5]):
        job = point.answer.job
        layout = dataclasses.asdict(job.layout)
        alone = trine.infer(
            DENSE, "dgx-h100", input_tokens=512, output_tokens=64, concurrency=job.concurrency,
            precision=point.answer.precision, **layout,
        )  # fmt: skip
        assert alone.tpot_s == point.answer.tpot_s
        assert alone.ttft_s == point.answer.ttft_s
        assert point.per_gpu == pytest.approx(alone.tokens_per_s_per_gpu.value, rel=1e-12)
        assert point.copies * alone.gpus == 4
        assert point.concurrency == point.copies * job.concurrency


def test_the_best_come_first_one_of_each_layout(found):
    rates = [each.per_gpu for each in found.ranked]
    assert rates == sorted(rates, reverse=True)
    layouts = [each.answer.job.layout for each in found.ranked]
    assert len(set(layouts)) == len(layouts)
    assert found.num_tied == sum(rate >= 0.98 * rates[0] for rate in rates)
    assert found.front[0].per_gpu == rates[0]


def test_no_point_of_the_front_beats_another(found):
    for one in found.front:
        for other in found.simulated:
            assert not (other.per_user > one.per_user and other.per_gpu > one.per_gpu)
    assert pareto(found.simulated) == list(found.front)


@pytest.mark.parametrize(("ttft", "tpot"), [("150ms", None), (None, 0.009), (0.3, "12 ms")])
def test_limits_hold_for_every_row(ttft, tpot):
    found = ask(ttft=ttft, tpot=tpot, precision="fp8")
    limits = found.limits
    assert limits.ttft_s in (None, 0.15, 0.3)
    assert limits.tpot_s in (None, 0.009, 0.012)
    for point in (*found.ranked, *found.front, *found.simulated):
        assert limits.ttft_s is None or point.ttft_s <= limits.ttft_s
        assert limits.tpot_s is None or point.tpot_s <= limits.tpot_s


def test_attention_replicas_and_divided_experts_are_searched():
    found = ask(MIXTURE, "hgx-h200", 2, precision="fp8", top=100)
    assert {each.answer.job.layout for each in found.ranked} == {
        ServingLayout(), ServingLayout(tp=2), ServingLayout(tp=2, ep=2), ServingLayout(pp=2),
        ServingLayout(attention_dp=2), ServingLayout(attention_dp=2, ep=2),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpus": 0}, r"gpus: must be a whole number from 1"),
        ({"top": 0}, r"top: must be a whole number from 1 to 1000"),
        ({"output_tokens": 1}, r"output_tokens: must be a whole number from 2"),
        ({"prefix_tokens": 513}, r"prefix_tokens: 513 tokens are more than the prompt's 512"),
        ({"ttft": 0}, r"ttft: must be a time above 0, got 0"),
        ({"tpot": "fast"}, r"tpot: the limit must be a number with a unit such as '500 ms', got 'fast'"),
        ({"ttft": "500"}, r"ttft: the limit needs a unit, such as '500 ms'; got '500'"),
        ({"engine": "vlm"}, r"engine: unknown engine 'vlm'; did you mean 'vllm'"),
        ({"precision": "fp9"}, r"precision: unknown precision 'fp9'; did you mean 'fp8'"),
        ({"precision": "mxfp4"}, r"precision: mxfp4 is a precision of experts"),
        ({"model": "t5-large"}, r"model: t5-large has an encoder"),
        ({"cluster": load_cluster("dgx-h100"), "gpus": 4}, r"gpus: the cluster has 8 GPUs, got 4"),
        ({"ttft": "10ms"}, r"ttft: 10 ms is below the fastest possible prefill: [\d.]+ ms \(tp 2, fp8\)"),
        ({"tpot": "0.1ms"}, r"tpot: 0.1 ms is below the fastest possible decoding: [\d.]+ ms \(tp 2, fp8\)"),
        ({"model": "llama-3-70b", "gpus": 1, "precision": "bf16"},
         r"no room for one request of 576 tokens on 1 GPU: each GPU needs [\d.]+ GiB more with"),
    ],
)  # fmt: skip
def test_wrong_questions_are_refused_in_one_line(changes, message):
    with pytest.raises(InputError, match=message) as refused:
        ask(**changes)
    assert "\n" not in str(refused.value)


def test_few_points_are_simulated():
    found = ask(MIXTURE, "hgx-h200", 16, tpot="20ms", precision="fp8")
    assert found.num_layouts == 65
    assert 5 < found.num_simulated < found.num_points / 8


def test_limits_that_no_layout_meets_together_are_refused():
    def copy(ttft_s, tpot_s):
        job = ServingJob(model=DENSE, cluster="dgx-h100", input_tokens=512, output_tokens=64, concurrency=1)
        times = SimpleNamespace(ttft_us=1e6 * ttft_s, tpot_us=1e6 * tpot_s, end_to_end_us=1e6)
        answer = SimpleNamespace(job=job, precision="fp8")
        point = SimpleNamespace(ttft_s=ttft_s, tpot_s=tpot_s, per_gpu=1.0, per_user=1.0, answer=answer)
        return SimpleNamespace(
            loads=lambda: [1], estimate=lambda _: times, simulate=lambda _: point, rate_per_gpu=lambda *_: 1.0
        )

    search = PointSearch([copy(0.1, 0.02), copy(0.3, 0.01)], LatencyLimits(0.2, 0.015))
    assert search.best(1, lambda _, per_gpu: (-per_gpu,)) == []
    message = "no layout meets both limits: with a TTFT of at most 200 ms, TPOT is at least 20 ms (1 GPU, fp8)"
    with pytest.raises(PlanError, match=re.escape(message)):
        raise_unmet(search)


@pytest.mark.parametrize("columns", [80, 100])
def test_the_answer_is_one_screen(found, columns):
    with fitted(columns):
        lines = found.summary().splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= columns
    text = " ".join(" ".join(lines).split())
    for words in ("tokens/s per GPU", "likely", "front:", "per user", "trine infer llama-3-8b --cluster"):
        assert words in text
    assert "best load and precision of each layout" in text


def test_ties_are_called_ties(found):
    close = dataclasses.replace(found, num_tied=3)
    assert close.tie == "layouts 1 to 3 tie (within 2%)"
    assert "tie" in close.details()
    assert dataclasses.replace(found, num_tied=1).tie == ""


def test_details_have_notes_and_effects_left_out(found):
    text = found.details()
    for words in ("searched: all tp, pp, ep", "limits hold for the means", "without", "quality of answers"):
        assert words in text
    assert found.headline.startswith("llama-3-8b on 4 x H100-SXM: ")


def test_json_has_every_number(found, tmp_path):
    found.to_json(tmp_path / "plan.json")
    content = json.loads((tmp_path / "plan.json").read_text())
    assert content["schema"] == "trine/plan-serve/1"
    assert content["layouts"][0]["tokens_per_s_per_gpu"] == found.best.per_gpu
    assert len(content["front"]) == len(found.front)
    assert found.record()["tp"] == found.best.answer.job.layout.tp
    assert found.evidence == found.best.answer.evidence


def test_the_picture_shows_the_front_and_the_best(found, tmp_path):
    pytest.importorskip("matplotlib")
    figure = found.plot(path=tmp_path / "front.png")
    axes = figure.axes[0]
    line = axes.lines[0]
    assert list(line.get_ydata()) == [each.per_gpu for each in found.front]
    assert axes.get_xlabel() == "tokens per second of one user (1 / TPOT)"
    assert (tmp_path / "front.png").stat().st_size > 10_000


def test_rows_of_a_long_front_are_spaced_evenly():
    assert spaced(range(10), 4) == [0, 3, 6, 9]
    assert spaced(range(3), 4) == [0, 1, 2]


# Launch commands ----------------------------------------------------------------------------------------------------


def launched(engine, **changes):
    point = ask(MIXTURE, "hgx-h200", 4, engine=engine, precision="fp8", **changes).best
    layout = ServingLayout(tp=1 if engine == "trtllm" else 2, attention_dp=4 if engine == "trtllm" else 2, ep=4)
    job = dataclasses.replace(point.answer.job, layout=layout, concurrency=32)
    answer = dataclasses.replace(point.answer, job=job, gpus=4, kv_precision="fp8")
    return launch_command(dataclasses.replace(point, answer=answer, copies=3))


def test_vllm_gets_its_options():
    head, note, *command = launched("vllm").splitlines()
    assert head.startswith("# qwen3-30b-a3b (fp8) with vLLM")
    assert head.endswith("4 GPUs a copy, start 3 copies behind a router")
    assert note == "# MODEL: path or name of the checkpoint"
    assert " ".join(line.strip(" \\") for line in command) == (
        "vllm serve MODEL --tensor-parallel-size 2 --data-parallel-size 2 --enable-expert-parallel --quantization fp8 "
        "--kv-cache-dtype fp8 --max-num-seqs 16 --max-model-len 576"
    )


def test_sglang_gets_its_options():
    *_, command = launched("sglang").replace(" \\\n  ", " ").splitlines()
    assert command == (
        "python -m sglang.launch_server --model-path MODEL --tp-size 4 --dp-size 2 --enable-dp-attention --ep-size 4 "
        "--quantization fp8 --kv-cache-dtype fp8_e4m3 --max-running-requests 32 --context-length 576"
    )


def test_trtllm_gets_a_file_and_asks_for_a_checkpoint():
    lines = launched("trtllm").splitlines()
    assert lines[1].startswith("# MODEL: a checkpoint in fp8 (FP8")
    assert lines[2:] == [
        "cat > serving.yaml <<'END'", "tensor_parallel_size: 4", "moe_expert_parallel_size: 4",
        "enable_attention_dp: true", "kv_cache_config: {dtype: fp8}", "max_batch_size: 8", "max_seq_len: 576", "END",
        "trtllm-serve MODEL --extra_llm_api_options serving.yaml",
    ]  # fmt: skip


def test_a_copy_on_several_nodes_is_named():
    found = ask("llama-3-405b", "dgx-h100", 16, precision="bf16")
    assert {each.copy_nodes for each in found.ranked} == {2}
    text = launch_command(found.best)
    assert "# a copy spans 2 nodes: add rank and address of each node" in text
    assert "--nnodes 2" in text


# Sizing -------------------------------------------------------------------------------------------------------------


def size(clusters="dgx-h100", rate=100.0, **changes):
    return trine.size_serving(
        DENSE, clusters, rate, **{"input_tokens": 512, "output_tokens": 64, "precision": "fp8", **changes}
    )


def test_one_copy_fewer_does_not_suffice():
    found = size(tpot="10ms")
    machine = found.machines[0]
    assert machine.requests_per_s >= 100 / 0.8
    assert machine.requests_per_s * (machine.point.copies - 1) / machine.point.copies < 100 / 0.8
    assert machine.num_gpus == machine.point.copies * machine.point.answer.gpus
    assert machine.point.tpot_s <= 0.010


def test_more_utilisation_takes_no_more_gpus():
    counts = [size(utilisation=share).machines[0].num_gpus for share in (0.2, 0.5, 1.0)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[2]


def test_machines_are_ranked_and_those_without_an_answer_come_last():
    found = size(["a100-nvlink-4", "dgx-h100", "l4-pcie"], tpot="8ms", precision=None)
    answered = [each.num_gpus for each in found.machines if each.point is not None]
    assert answered == sorted(answered)
    assert found.machines[-1].point is None
    assert "is below the fastest possible decoding" in found.machines[-1].problem
    lines = found.summary().splitlines()
    assert len(lines) <= 24
    assert any(line.startswith("no answer") for line in lines)
    assert "waiting of requests that arrive at random" in found.summary()
    assert "rests on" in found.details()
    assert found.record()["num_gpus"] == answered[0]
    assert found.document()["machines"][-1]["point"] is None


def test_prices_order_the_machines_and_cost_a_million_tokens():
    """The price of a million tokens by hand: dollars per hour over output tokens per hour at the stated rate."""
    plain = size(["a100-nvlink-4", "dgx-h100"], precision=None)
    fewest = {each.cluster: each.num_gpus for each in plain.machines}
    assert [each.dollars_per_hour for each in plain.machines] == [None, None]
    prices = {"a100-40gb": 0.01, "a100-80gb": 0.01, "h100-sxm": 30.0}
    found = size(["a100-nvlink-4", "dgx-h100"], precision=None, dollars_per_gpu_hour=prices)
    assert [each.cluster for each in found.machines] == ["a100-nvlink-4", "dgx-h100"]
    for each, price in zip(found.machines, (0.01, 30.0), strict=True):
        assert each.num_gpus == fewest[each.cluster]
        assert each.dollars_per_hour == each.num_gpus * price
        assert each.dollars_per_million_tokens == pytest.approx(each.num_gpus * price / (100 * 64 * 3600) * 1e6)
    assert "the lowest price first" in found.summary()
    assert "$/M tokens" in found.details()
    with pytest.raises(InputError, match="price: no price for h100-sxm"):
        size(dollars_per_gpu_hour={"h200": 2.0})
    with pytest.raises(InputError, match="price: must be a number above 0"):
        size(dollars_per_gpu_hour=0)


def test_a_gpu_without_a_price_is_refused_before_any_search(monkeypatch):
    searched = []
    monkeypatch.setattr("trine.inference.sizing._smallest", lambda *question: searched.append(question))
    with pytest.raises(InputError, match="price: no price for a100-80gb"):
        size(["dgx-h100", "dgx-a100"], dollars_per_gpu_hour={"h100-sxm": 2.0})
    assert not searched


@pytest.mark.parametrize("price", [None, 2.0])
def test_the_picture_of_a_size_names_machines_and_prices(price, tmp_path):
    found = size(["dgx-h100", "l4-pcie"], tpot="8ms", dollars_per_gpu_hour=price)
    figure = found.plot(path=tmp_path / "size.png")
    labels = [axes.get_xlabel() for axes in figure.axes]
    assert labels == ["GPUs", "dollars per million output tokens at the stated rate"][: 1 if price is None else 2]
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["dgx-h100"]
    assert figure.axes[0].patches[0].get_width() == found.machines[0].num_gpus


def test_one_gpu_is_no_number_of_gpus():
    found = trine.size_serving("llama-3-8b", "dgx-h100", 0.5, input_tokens=512, output_tokens=128)
    assert "1 GPU of dgx-h100" in found.headline
    axes = found.plot().axes[0]
    assert axes.texts[0].get_text().startswith("1 GPU: ")
    assert all(tick == int(tick) for tick in axes.get_xticks())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rate": 0}, r"requests_per_second: must be a number above 0 and at most 1e\+09, got 0"),
        ({"utilisation": 1.5}, r"utilisation: must be a number above 0 and at most 1, got 1.5"),
        ({"clusters": []}, r"cluster: sizing needs a machine"),
        ({"max_gpus": 0}, r"max_gpus: must be a whole number from 1"),
        ({"max_gpus": 1, "rate": 1e5}, r"max_gpus: [\d,]+ GPUs are needed, more than 1"),
        ({"ttft": "1ms"}, r"ttft: 1 ms is below the fastest possible prefill"),
    ],
)
def test_wrong_sizes_are_refused_in_one_line(changes, message):
    with pytest.raises(InputError, match=message):
        size(**changes)


def test_a_model_too_large_for_two_nodes_gets_more():
    found = trine.size_serving("kimi-k3", "dgx-h100", 0.1, input_tokens=64, output_tokens=8, precision="fp8")
    assert found.best.answer.gpus > 16
