"""Calibrated stacks: the fit's limits, the file, answers that use it, and errors in one line."""

import json
import math

import pytest
import yaml

import trine
from trine.errors import InputError
from trine.inference.stack import Stack, StackScale, StackSpread, fit_scale, spreads

HEADER = "model,cluster,engine,tp,isl,osl,concurrency,tpot_ms,ttft_ms"
SPREAD = StackSpread(between=0.1, within=0.1)


def ask(concurrency=8, **changes):
    usual = {"input_tokens": 512, "output_tokens": 128, "concurrency": concurrency}
    return trine.infer("llama-3-8b", "dgx-h100", **{**usual, **changes})


def rows_file(tmp_path, *lines, header=HEADER):
    path = tmp_path / "rows.csv"
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def measured(tmp_path, tpot_factor=1.2, ttft_factor=0.8, loads=(1, 8, 32)):
    """Return a file whose points are trine's answers times two factors."""
    lines = []
    for load in loads:
        blind = ask(load)
        tpot_ms, ttft_ms = blind.tpot_s.value * 1e3 * tpot_factor, blind.ttft_s.value * 1e3 * ttft_factor
        lines.append(f"llama-3-8b,dgx-h100,vllm,1,512,128,{load},{tpot_ms},{ttft_ms}")
    return rows_file(tmp_path, *lines)


# The fit ------------------------------------------------------------------------------------------------------------


def test_one_point_at_equal_spreads_moves_the_factor_halfway():
    """Posterior mean of one point with b = s: half of its logarithm; variance s^2 + s^2 / 2."""
    scale = fit_scale([math.exp(0.05)], SPREAD)
    assert math.log(scale.factor) == pytest.approx(0.025, rel=1e-3)
    assert math.log(scale.high) == pytest.approx(1.2816 * 0.1 * math.sqrt(1.5), rel=1e-4)
    assert scale.low == pytest.approx(1 / scale.high, rel=1e-4)


def test_many_agreeing_points_set_the_factor():
    assert fit_scale([1.05] * 500, SPREAD).factor == pytest.approx(1.05, rel=1e-4)


def test_range_narrows_with_agreeing_points_and_widens_with_scatter():
    widths = [fit_scale([1.1] * count, SPREAD).high for count in (1, 2, 3, 5, 10)]
    assert widths == sorted(widths, reverse=True)
    assert fit_scale([0.7, 1.0, 1.4], SPREAD).high > fit_scale([0.99, 1.0, 1.01], SPREAD).high


def test_a_factor_far_from_published_stacks_is_taken_as_measured():
    assert fit_scale([2.0, 2.0, 2.0], SPREAD).factor == pytest.approx(2.0, rel=0.01)


def test_ratio_one_changes_nothing_and_inverse_ratios_mirror():
    assert fit_scale([1.0, 1.0], SPREAD).factor == 1.0
    up, down = fit_scale([1.3, 1.2], SPREAD), fit_scale([1 / 1.3, 1 / 1.2], SPREAD)
    assert up.factor * down.factor == pytest.approx(1.0, rel=1e-5)


def test_three_agreeing_points_narrow_the_blind_range():
    blind = ask().tpot_s
    assert fit_scale([1.0] * 3, spreads().tpot).high < blind.high / blind.value


# Answers ------------------------------------------------------------------------------------------------------------


def test_a_calibrated_answer_states_its_points_and_keeps_the_identities(tmp_path):
    fit = trine.calibrate_serving(measured(tmp_path))
    path = tmp_path / "stack.yaml"
    fit.save(path)
    blind, answer = ask(16), ask(16, stack=path)
    assert answer.tpot_s.value / blind.tpot_s.value == pytest.approx(1.2, rel=0.04)
    assert answer.ttft_s.value / blind.ttft_s.value == pytest.approx(0.8, rel=0.08)
    assert answer.output_tokens_per_s.value == pytest.approx(16 * 128 / answer.end_to_end_s.value)
    expected = answer.ttft_s.value + 127 * answer.tpot_s.value
    assert answer.end_to_end_s.value == pytest.approx(expected, rel=1e-6)
    assert sum(part.seconds for part in answer.decode_parts) == pytest.approx(answer.decode_step_s)
    assert "calibrated on 3 points of this stack" in answer.summary()
    assert "calibrated on 3 points of rows.csv: TPOT x 1.1" in answer.details()
    assert answer.document()["stack"]["points"] == 3
    assert "calibrated" not in blind.summary()
    assert blind.document()["stack"] is None


def test_points_themselves_come_nearer(tmp_path):
    fit = trine.calibrate_serving(measured(tmp_path, 1.3, 1.7))
    for point in fit.to_json()["points"]:
        before, after = (abs(math.log(point[key] / point["measured"])) for key in ("before", "after"))
        assert after < 0.2 * before
    lines = fit.text().splitlines()
    assert lines[0].startswith("calibrated on 3 points of rows.csv")
    for name, scale in (("TPOT", fit.stack.tpot), ("TTFT", fit.stack.ttft)):
        likely = f"likely {scale.low:.2f} to {scale.high:.2f} x"
        assert f"{name}: factor {scale.factor:.3g}, {likely}" in lines


def test_throughput_stands_in_for_a_missing_tpot(tmp_path):
    blind = ask(8)
    header = "model,cluster,engine,isl,osl,concurrency,tokens_per_s"
    rate = blind.output_tokens_per_s.value / 1.25
    fit = trine.calibrate_serving(rows_file(tmp_path, f"llama-3-8b,dgx-h100,vllm,512,128,8,{rate}", header=header))
    assert 1.1 < fit.stack.tpot.factor < 1.25
    assert fit.stack.ttft is None
    assert [line.split(":")[0] for line in fit.text().splitlines() if ": factor " in line] == ["TPOT"]
    assert ask(8, stack=fit.stack).ttft_s == blind.ttft_s


def test_queueing_and_decode_answers_scale_whole_and_prefill_by_ttft_alone():
    stack = Stack(
        model="llama-3-8b", gpu=ask().gpu, engine="vllm", precision="bf16", points=2,
        tpot=StackScale(factor=2.0, low=0.9, high=1.1, points=2),
    )  # fmt: skip
    for changes, factor in (({"max_sequences": 4}, 2.0), ({"phase": "decode"}, 2.0), ({"phase": "prefill"}, 1.0)):
        blind, answer = ask(8, **changes), ask(8, stack=stack, **changes)
        assert answer.end_to_end_s.value == pytest.approx(factor * blind.end_to_end_s.value)
        ratio = answer.output_tokens_per_s.value / blind.output_tokens_per_s.value
        assert ratio == pytest.approx(blind.end_to_end_s.value / answer.end_to_end_s.value)


def test_step_times_use_the_stack(tmp_path):
    fit = trine.calibrate_serving(measured(tmp_path))
    path = tmp_path / "stack.yaml"
    fit.save(path)
    blind = trine.step_time("llama-3-8b", "dgx-h100", None, decode=[500] * 8)
    for stack in (str(path), path, fit.stack):
        scaled = trine.step_time("llama-3-8b", "dgx-h100", None, decode=[500] * 8, stack=stack)
        assert scaled.value == pytest.approx(blind.value * fit.stack.tpot.factor)
        assert scaled.high / scaled.value == pytest.approx(fit.stack.tpot.high)
    with pytest.raises(InputError, match="stack: was calibrated for engine vllm, and the question has sglang"):
        trine.step_time("llama-3-8b", "dgx-h100", {"engine": "sglang"}, decode=[500], stack=fit.stack)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engine": "sglang"}, "stack: was calibrated for engine vllm, and the question has sglang"),
        ({"precision": "fp8"}, "stack: was calibrated for precision bf16, and the question has fp8"),
    ],
)
def test_another_stack_is_refused(tmp_path, changes, message):
    stack = trine.calibrate_serving(measured(tmp_path)).stack
    with pytest.raises(InputError, match=message):
        ask(stack=stack, **changes)


def test_gpus_without_measured_kernels_have_wider_ranges(tmp_path):
    rows = "llama-3-8b,{},vllm,1,512,128,8,{},50"
    scales = []
    for cluster in ("dgx-h100", "mi300x-node"):
        blind = trine.infer("llama-3-8b", cluster, input_tokens=512, output_tokens=128, concurrency=8)
        path = rows_file(tmp_path, rows.format(cluster, blind.tpot_s.value * 1e3))
        scales.append(trine.calibrate_serving(path).stack.tpot)
    assert scales[1].high > 1.5 * scales[0].high - 0.5
    assert scales[1].factor == scales[0].factor == 1.0


# Files --------------------------------------------------------------------------------------------------------------


ROW = "llama-3-8b,dgx-h100,vllm,1,512,128,8,7,50"


@pytest.mark.parametrize(
    ("header", "row", "message"),
    [
        (HEADER.replace("isl,", ""), "", "rows.csv: column 'isl' is missing"),
        (HEADER.replace("concurrency,", ""), "", "rows.csv: column 'concurrency' or 'batch' is missing"),
        ("model,cluster,engine,isl,osl,batch", "", "column 'tpot_ms' or 'ttft_ms' or 'tokens_per_s' is missing"),
        (HEADER.replace("tpot_ms", "tpot_mss"), "", "unknown column 'tpot_mss'; did you mean 'tpot_ms'"),
        (HEADER, "", "has 0 rows, and a stack takes 1 to 1,000"),
        (HEADER, ROW.replace("512", "many"), "row 2, isl: takes a number, got 'many'"),
        (HEADER, ROW.replace(",7,50", ",-7,50"), "row 2, tpot_ms: takes a number above 0, got '-7'"),
        (HEADER, ROW.replace(",7,50", ",,"), "row 2: needs one of tpot_ms, ttft_ms, tokens_per_s"),
        (HEADER, ROW.replace("llama-3-8b", "lama-3-8b"), "row 2: unknown model 'lama-3-8b'"),
        (HEADER, ROW.replace("dgx-h100", ""), "row 2, cluster: is empty"),
        (HEADER, ROW + ",9", "row 2: has more cells than columns"),
        (HEADER, f"{ROW}\n{ROW.replace('vllm', 'sglang')}", "row 3, engine: sglang differs from vllm"),
        (HEADER, '"' + ROW, "is no CSV file"),
        (HEADER, ROW.replace(",7,50", ",0.007,50"), "row 2, tpot_ms: 0.007 is more than 100 times from the predicted"),
        (HEADER, ROW.replace(",7,50", ",7,1e13"), "row 2, ttft_ms: 1e+13 is more than 100 times from the predicted"),
    ],
)
def test_bad_files_are_one_line(tmp_path, header, row, message):
    path = rows_file(tmp_path, *([row] if row else []), header=header)
    with pytest.raises(InputError) as raised:
        trine.calibrate_serving(path)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_row_whose_answer_lacks_the_measured_value_is_refused(tmp_path):
    row = "llama-3-8b,dgx-h100,vllm,1,512,1,8,7,"
    with pytest.raises(InputError, match="no row has a measured value that its answer predicts"):
        trine.calibrate_serving(rows_file(tmp_path, row))


def test_files_that_are_no_stack_are_refused(tmp_path):
    path = tmp_path / "stack.yaml"
    path.write_text(yaml.safe_dump({"model": "llama-3-8b", "gpu": "h100", "engine": "vllm", "points": 1}))
    with pytest.raises(InputError, match=r"stack\.yaml: precision"):
        ask(stack=path)


def test_command_writes_a_stack_that_infer_reads(tmp_path):
    from click.testing import CliRunner

    from trine.cli.main import app

    rows, stack, report = measured(tmp_path), tmp_path / "stack.yaml", tmp_path / "fit.json"
    made = CliRunner().invoke(app, ["calibrate", "--serving", str(rows), "-o", str(stack), "--json", str(report)])
    assert made.exit_code == 0, made.output
    assert json.loads(report.read_text())["stack"]["tpot"]["points"] == 3
    line = ["infer", "llama-3-8b", "--cluster", "dgx-h100", "--isl", "512", "--osl", "128", "--concurrency", "8"]
    answered = CliRunner().invoke(app, [*line, "--stack", str(stack)])
    assert answered.exit_code == 0, answered.output
    assert "calibrated on 3 points of this stack" in answered.output
    alone = CliRunner().invoke(app, ["calibrate", "vgg13-h100-b128", "--serving", str(rows)])
    assert alone.exit_code == 2
    assert "points of a server are fitted alone" in alone.output
