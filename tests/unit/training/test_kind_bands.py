"""Does the likely range of experts, adapters and FP8 come from published steps of their kind?"""

import pytest

import trine
from trine.common.spec import load_mapping
from trine.parallel.plan import Plan
from trine.results.headline import KINDS, kind_band
from trine.results.scales import RUN_TO_RUN

GPT = {"model": "gpt-2", "layers": 2, "sequence": 128, "gpu": "h100-sxm"}
MIXTURE = {"model": "mixtral-8x7b", "layers": 1, "sequence": 128, "gpu": "h100-sxm"}


def result_of(fields, **options):
    workload = trine.synthesize(fields["model"], **{k: v for k, v in fields.items() if k != "model"}, **options)
    return trine.simulate(workload, Plan())


@pytest.mark.parametrize(("fields", "options", "kind"), [
    (MIXTURE, {}, "experts"),
    (MIXTURE, {"precision": "fp8"}, "experts"),
    (GPT, {"trainable": "lora:8"}, "adapters"),
    (GPT, {"precision": "fp8"}, "float8"),
])  # fmt: skip
def test_the_range_is_of_the_kind(fields, options, kind):
    result = result_of(fields, **options)
    own = load_mapping(KINDS)["kinds"][kind]
    assert own["words"] in result.band.words
    assert f"{own['rows']} published steps" in result.band.words
    assert (result.band.low, result.band.high) == (min(own["low"], 1 - RUN_TO_RUN), max(own["high"], 1 + RUN_TO_RUN))
    assert not any("too narrow" in warning for warning in result.warnings)


def test_dense_16_bit_steps_keep_their_rows():
    assert "adapters" not in result_of(GPT).band.words
    assert kind_band("bfloat16") is None


def test_a_precision_without_rows_warns():
    """No published step of a dense model is in NVFP4."""
    workload = trine.synthesize("gpt-2", layers=2, sequence=128, gpu="b200", precision="nvfp4")
    result = trine.simulate(workload, Plan())
    assert any("too narrow" in warning and "float4" in warning for warning in result.warnings)
