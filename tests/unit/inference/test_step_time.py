"""trine.step_time: identities, monotony, range, layouts, and errors in one line."""

import numpy as np
import pytest

import trine
from trine.errors import InputError


def seconds(prefill=(), decode=(), model="llama-3-8b", cluster="dgx-h100", **layout) -> float:
    return trine.step_time(model, cluster, layout, prefill, decode).value


def test_a_step_equals_the_decode_step_of_infer():
    served = trine.infer("llama-3-8b", "dgx-h100", input_tokens=1000, output_tokens=200, batch=16)
    assert seconds(decode=[1100] * 16) == pytest.approx(served.decode_step_s, rel=0.005)
    assert seconds(prefill=[(1000, 0)]) == pytest.approx(served.prefill_s, rel=0.005)


def test_more_work_takes_more_time():
    assert seconds(decode=[1000] * 8) < seconds(decode=[4000] * 8) < seconds(decode=[4000] * 32)
    assert seconds([(512, 0)]) < seconds([(512, 4096)]) < seconds([(512, 4096)], [1000] * 8)


def test_order_of_the_sequences_does_not_matter():
    assert seconds([(10, 0), (200, 5)], [10, 2000, 300]) == seconds([(200, 5), (10, 0)], [2000, 300, 10])


def test_range_is_that_of_tpot_and_wider_without_measured_kernels():
    near = trine.step_time("llama-3-8b", "dgx-h100", None, decode=[1000])
    far = trine.step_time("llama-3-8b", "mi300x-node", None, decode=[1000])
    assert near.low < near.value < near.high
    assert far.high / far.value > near.high / near.value


def test_layout_is_a_record_or_a_dict_and_a_model_may_be_loaded():
    layout = trine.StepLayout(tp=2, precision="fp8", kv_precision="fp8", engine="sglang:0.5")
    expected = trine.step_time("llama-3-8b", "dgx-h100", layout, decode=[1000]).value
    settings = {"tp": 2, "precision": "fp8", "kv_precision": "fp8", "engine": "sglang:0.5"}
    assert seconds(decode=np.array([1000]), **settings) == expected
    assert expected < seconds(decode=[1000], tp=2)
    cluster = trine.load_cluster("dgx-h100")
    assert trine.step_time("llama-3-8b", cluster, layout, decode=[1000]).value == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "decode: a step needs a prompt chunk or a decode"),
        ({"decode": [-1]}, "decode: cached tokens from 0 to 4,194,304, got -1"),
        ({"decode": [float("nan")]}, "decode: cached tokens from 0"),
        ({"decode": [1 << 23]}, "decode: cached tokens from 0 to 4,194,304"),
        ({"decode": ["12"]}, "decode: takes numbers of tokens"),
        ({"decode": [[1], [1, 2]]}, "decode: takes numbers of tokens"),
        ({"decode": [[1, 2]]}, "decode: takes the cached tokens of each sequence"),
        ({"decode": [1] * 8193}, "decode: sequences from 1 to 8,192, got 8,193"),
        ({"prefill": [(0, 5)]}, "prefill: new tokens from 1 to 65,536, got 0"),
        ({"prefill": [(5, -5)]}, "prefill: cached tokens from 0"),
        ({"prefill": [5]}, "prefill: takes pairs of new and cached tokens"),
        ({"prefill": [(40_000, 0), (40_000, 0)]}, "prefill: 80,000 tokens are more than 65,536 of a step"),
        ({"decode": [1], "tpp": 2}, "layout: unknown key 'tpp'; did you mean 'tp'"),
        ({"decode": [1], "tp": 0}, "tp: must be a whole number from 1"),
        ({"decode": [1], "tp": [2]}, "tp: takes a whole number, got [2]"),
        ({"decode": [1], "engine": 5}, "engine: takes a text, got 5"),
        ({"decode": [1], "engine": "vlm"}, "engine: unknown engine 'vlm'; did you mean 'vllm'"),
    ],
)
def test_bad_input_is_one_line(arguments, message):
    with pytest.raises(InputError) as raised:
        seconds(**arguments)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_layout_of_another_type_is_refused():
    with pytest.raises(InputError, match="layout: takes a StepLayout or a dict, got 4"):
        trine.step_time("llama-3-8b", "dgx-h100", 4, decode=[1])
