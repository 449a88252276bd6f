"""trine as a predictor of SGLang Simulator: its batches, its scheduler configuration, its replay table.

The stand-ins below have the attributes of sgl-project/sglang, tools/sglang-simulator at 2f070b1: ScheduleBatch.reqs,
ScheduleRequest.extend_length and past_kv_length; SchedulerConfig at 1a3b0de, which has cp_size.
"""

import json
from enum import Enum
from types import SimpleNamespace

import pytest

import trine
from trine.errors import InputError
from trine.formats.sglang_simulator import SglangPredictor, layout_of, write_replay_table


class DataType(Enum):
    FP8_TENSOR = "FP8_TENSOR"
    BF16 = "BF16"
    INT4 = "INT4"


def batch(*pairs: tuple[int, int]) -> SimpleNamespace:
    return SimpleNamespace(reqs=[SimpleNamespace(extend_length=new, past_kv_length=past) for new, past in pairs])


def config(**changes: object) -> SimpleNamespace:
    usual = {"tp_size": 1, "ep_size": 1, "dp_size": 1, "pp_size": 1, "data_type": None, "kv_cache_data_type": None,
             "backend_name": "sglang", "backend_version": None}  # fmt: skip
    return SimpleNamespace(**{**usual, **changes})


def predictor(**changes: object) -> SglangPredictor:
    hardware = SimpleNamespace(name="h100_sxm")
    return SglangPredictor(None, hardware, config(**changes), trine_model="llama-3-8b", cluster="dgx-h100")


def step(prefill=(), decode=(), **layout) -> float:
    return trine.step_time("llama-3-8b", "dgx-h100", {"engine": "sglang", **layout}, prefill, decode).value


def test_decode_prefill_and_mixed_batches():
    found = predictor()
    assert found.predict_infer_time(batch((1, 99), (1, 200))) == step(decode=[99, 200])
    assert found.predict_infer_time(batch((512, 0), (100, 300))) == step([(512, 0), (100, 300)])
    assert found.predict_infer_time(batch((1, 100), (8, 0))) == step([(8, 0)], [100])
    assert found.predict_infer_time(batch((1, 0))) == step([(1, 0)])
    assert found.get_metrics()["trine_steps"] == 4


def test_empty_batches_take_no_time_and_impossible_ones_are_negative():
    found = predictor()
    assert found.predict_infer_time(batch()) == 0.0
    assert found.predict_infer_time(batch((100_000, 0))) == -1.0
    assert found.get_metrics() == {
        "trine_steps": 0, "trine_refused_steps": 1,
        "trine_refusal": "prefill: new tokens from 1 to 65,536, got 100,000",
    }  # fmt: skip
    found.reset_metrics()
    assert found.get_metrics()["trine_refused_steps"] == 0


def test_scheduler_configuration_becomes_a_layout():
    made = layout_of(
        config(tp_size=8, dp_size=4, ep_size=8, data_type=DataType.FP8_TENSOR, kv_cache_data_type=DataType.BF16,
               backend_version="0.5.9")
    )  # fmt: skip
    assert made == trine.StepLayout(
        tp=2, ep=8, attention_dp=4, precision="fp8", kv_precision="bf16", engine="sglang:0.5.9"
    )
    assert layout_of(config(data_type=DataType.INT4), "nvfp4").precision == "nvfp4"


def test_bad_configurations_are_one_line():
    with pytest.raises(InputError, match="data_type: INT4 is not one of FP16, BF16, FP8, FP4"):
        layout_of(config(data_type=DataType.INT4))
    with pytest.raises(InputError, match="dp_size: 3 replicas do not divide tp_size 4"):
        layout_of(config(tp_size=4, dp_size=3))
    with pytest.raises(InputError, match="cp_size: trine serves without context parallelism, got 2"):
        layout_of(config(tp_size=4, cp_size=2))
    with pytest.raises(InputError, match="tp: 3 ways do not divide the 32 heads"):
        predictor(tp_size=3)


def test_replay_table_has_sorted_pairs_as_keys(tmp_path):
    path = tmp_path / "replay_table.json"
    layout = trine.StepLayout(engine="sglang")
    write_replay_table(path, "llama-3-8b", "dgx-h100", layout, [[(4, 0)], [(1, 200), (1, 99)]])
    table = json.loads(path.read_text())
    assert list(table) == ["[[4, 0]]", "[[1, 99], [1, 200]]"]
    assert table["[[1, 99], [1, 200]]"] == step(decode=[99, 200])
