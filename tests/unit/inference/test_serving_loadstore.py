"""The all-reduce of a decode step at the load-store level: against its table, a run by itself, and refusals."""

import pytest

import trine
from trine.errors import InputError
from trine.inference.answer import ServingAnswer
from trine.inference.answer_steps import simulated_steps
from trine.inference.communication import all_reduce_kernels
from trine.inference.job import Speculation

LAYERS, HIDDEN = 32, 4096  # llama-3-8b
TP = 8


def ask(fidelity="loadstore", **changes) -> ServingAnswer:
    usual = {"input_tokens": 512, "output_tokens": 64, "tp": TP}
    if "batch" not in changes:
        usual["concurrency"] = 16
    return trine.infer("llama-3-8b", "dgx-h100", **{**usual, **changes}, fidelity=fidelity)


@pytest.mark.parametrize("requests", [2, 16])
def test_each_level_lies_in_the_likely_range_of_the_other(requests):
    simulated, by_table = ask(concurrency=requests), ask("operator", concurrency=requests)
    assert by_table.tpot_s.low <= simulated.tpot_s.value <= by_table.tpot_s.high
    assert simulated.tpot_s.low <= by_table.tpot_s.value <= simulated.tpot_s.high
    assert simulated.all_reduce.operator_tpot_s == by_table.tpot_s.value
    assert simulated.all_reduce.num_bytes == requests * HIDDEN * 2


@pytest.mark.parametrize("num_bytes", [16 << 10, 128 << 10])
def test_the_programs_take_most_of_the_time_that_kernels_were_measured_at(num_bytes):
    levels = ask(concurrency=num_bytes // (2 * HIDDEN)).all_reduce
    measured_us = all_reduce_kernels().kernels["trtllm"].times[TP][num_bytes]
    assert 0.7 < levels.loadstore_s * 1e6 / measured_us < 1.0


def test_the_time_is_that_of_the_program_run_alone():
    levels = ask(concurrency=16).all_reduce
    row = trine.loadstore_collective("all_reduce", [levels.num_bytes], "dgx-h100").rows[0]
    assert levels.loadstore_s == row.time.time_ps * 1e-12
    assert levels.program == row.time.algorithm


def test_a_decode_step_changes_by_its_all_reduces_alone():
    simulated, by_table = ask(batch=16), ask("operator", batch=16)
    levels = simulated.all_reduce
    saved_s = 2 * LAYERS * (levels.operator_s - levels.loadstore_s)
    assert saved_s > 0
    assert by_table.decode_step_s - simulated.decode_step_s == pytest.approx(saved_s, rel=1e-9)
    assert by_table.tpot_s.value - simulated.tpot_s.value == pytest.approx(saved_s, rel=1e-6)
    for ours, theirs in zip(simulated.decode_parts, by_table.decode_parts, strict=True):
        assert (ours.seconds == theirs.seconds) is (ours.name != "communication")


def test_prompts_and_memory_are_those_of_the_operator_level():
    simulated, by_table = ask(), ask("operator")
    assert simulated.prefill_parts == by_table.prefill_parts
    assert simulated.kv_bytes == by_table.kv_bytes
    assert by_table.all_reduce is None


def test_both_times_and_both_tpots_are_printed():
    answer = ask()
    text = " ".join(answer.summary().split())
    assert f"all-reduce {answer.all_reduce.loadstore_s * 1e6:.4g} us 128 KiB on 8 GPUs" in text
    assert f"operator level: {answer.all_reduce.operator_s * 1e6:.4g} us (TPOT " in text
    assert {each.what: each.kind for each in answer.evidence}["all-reduce"] == "modelled"


@pytest.mark.parametrize("fidelity", ["operator", "loadstore"])
def test_the_timeline_has_the_decode_step_of_the_answer(fidelity):
    answer = ask(fidelity)
    steps = simulated_steps(answer.job, answer.running)
    decode = steps.records.end_ps[steps.graph.rank == 0].max()
    assert decode == pytest.approx(answer.decode_step_s * 1e12, rel=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tp": 1}, r"fidelity: loadstore changes nothing: tp 1 has no all-reduce"),
        ({"tp": 16}, r"fidelity: loadstore changes nothing: vLLM sums tensors of 16 GPUs here with the library"),
        ({"phase": "prefill"}, r"fidelity: loadstore changes nothing: no step decodes"),
        ({"output_tokens": 1}, r"fidelity: loadstore changes nothing: no step decodes"),
        (
            {
                "batch": 1024,
                "input_tokens": 64,
                "engine": "vllm:0.24",
                "speculation": Speculation(drafts=3, acceptance=0.5),
            },
            r"a decode step sums 32 MiB, and vLLM's own kernel at most 8 MiB",
        ),
        ({"stack": "stack.yaml"}, r"fidelity: a stack corrects the operator level"),
        ({"fidelity": "kernel"}, r"fidelity: must be one of operator, loadstore; got 'kernel'"),
    ],
)
def test_questions_that_the_level_cannot_change_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        ask(**changes)
