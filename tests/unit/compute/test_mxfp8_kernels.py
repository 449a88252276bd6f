"""Are grouped GEMMs and attention in MXFP8 as fast as published kernels on Blackwell, and does a profile use them?"""

import pytest

from trine.cluster import load_gpu
from trine.compute.tables.attention_kernels import mxfp8_speedup
from trine.compute.tables.operators import AttentionShape, OperatorTables
from trine.software import load_software
from trine.workload import synthesize

#: pytorch/ao at 0b1bb11, torchao/prototype/moe_training/README.md, "MXFP8 Kernel Breakdown by Pass": B200, experts of
#: DeepSeek-V3, 8 x 16,384 tokens. Product, (m, n, k) of an expert, microseconds of all.
GROUPED = (
    (0, (16_384, 2_048, 7_168), 1838.1),
    (1, (16_384, 7_168, 2_048), 1838.1),
    (2, (2_048, 7_168, 16_384), 2412.4),
)
#: NVIDIA/cudnn-frontend at 3929da2, benchmark/sdpa_benchmark_training/results: cuDNN 9.22, batch 2, 4,096 tokens.
#: GPU, heads, heads of keys, mean size of queries and values, milliseconds in bf16 and MXFP8, forward then backward.
ATTENTION = (
    ("gb200", 128, 128, 160, (0.977, 0.714), (3.383, 2.620)),
    ("gb300", 128, 128, 160, (0.864, 0.546), (3.127, 2.348)),
    ("gb200", 64, 8, 128, (0.391, 0.326), (1.198, 1.305)),
    ("gb300", 64, 8, 128, (0.323, 0.242), (1.101, 1.203)),
)


@pytest.mark.parametrize(("product", "shape", "us"), GROUPED)
def test_one_kernel_for_all_experts_takes_the_published_time(
    product: int, shape: tuple[int, int, int], us: float
) -> None:
    time = OperatorTables(load_gpu("b200")).gemm_in_step(*shape, "float8", product, 8, one_kernel=True)
    assert time is not None
    assert time.us == pytest.approx(us, rel=0.01)


def test_other_shapes_of_grouped_products_are_within_a_quarter() -> None:
    """pytorch/pytorch pull request 174699: 8 experts, 131,072 tokens; the kernels in C++ and CuTeDSL differ by 4 %."""
    tables = OperatorTables(load_gpu("b200"))
    for (n, k), us in {(8_192, 5_120): 4050.8, (2_048, 7_168): 1894.1, (1_408, 2_048): 459.4}.items():
        time = tables.gemm_in_step(16_384, n, k, "float8", 0, 8, one_kernel=True)
        assert time is not None
        assert time.us == pytest.approx(us, rel=0.25), (n, k)


@pytest.mark.parametrize(("gpu", "heads", "kv_heads", "size", "forward", "backward"), ATTENTION)
def test_attention_in_mxfp8_is_faster_by_the_published_ratio(
    gpu: str, heads: int, kv_heads: int, size: int, forward: tuple[float, float], backward: tuple[float, float]
) -> None:
    shape = AttentionShape(batch=2, heads=heads, kv_heads=kv_heads, length=4_096, size=size)
    for is_backward, (sixteen_ms, eight_ms) in ((False, forward), (True, backward)):
        assert mxfp8_speedup(gpu, size, backward=is_backward) == pytest.approx(sixteen_ms / eight_ms, rel=0.05)
        time = OperatorTables(load_gpu(gpu)).attention_in_step(
            shape, backward=is_backward, kernel="cudnn", is_mxfp8=True
        )
        assert time is not None
        assert time.us == pytest.approx(1e3 * eight_ms, rel=0.2)


def test_the_backward_kernel_in_mxfp8_does_not_skip_what_a_window_hides() -> None:
    """GPT-OSS, ibid.: a window of 128 of 4,096 tokens saves time in bf16 (0.465 ms), not in MXFP8 (2.08 ms)."""
    tables = OperatorTables(load_gpu("gb200"))
    whole = AttentionShape(batch=2, heads=128, kv_heads=128, length=4_096, size=64)
    window = AttentionShape(batch=2, heads=128, kv_heads=128, length=4_096, size=64, window=128)
    backward = [tables.attention_in_step(s, backward=True, kernel="cudnn", is_mxfp8=True) for s in (whole, window)]
    forward = [tables.attention_in_step(s, backward=False, kernel="cudnn", is_mxfp8=True) for s in (whole, window)]
    assert backward[0] == backward[1]
    assert backward[1] is not None
    assert backward[1].us == pytest.approx(2_080, rel=0.25)
    assert forward[0] is not None
    assert forward[1] is not None
    assert forward[1].us == pytest.approx(210, rel=0.15)
    assert forward[1].us < 0.6 * forward[0].us


def test_a_profile_casts_attention_and_the_head() -> None:
    software = load_software("megatron-bridge-26.06")
    style = software.operators.model_copy(update={"head_casts": ["mxfp8"]})
    for profile, head in ((software, None), (software.model_copy(update={"operators": style}), "float8")):
        work = synthesize("qwen3-30b-a3b", gpu="gb200", layers=1, sequence=256, precision="mxfp8", software=profile)
        by_layer = {op.layer: op.attributes for op in work.operators if op.forward_id is None}
        assert by_layer["head"].get("precision") == head
        assert by_layer["layers.0.attention.core"]["attention_precision"] == "mxfp8"
        assert by_layer["layers.0.moe.experts.up"]["grouped_kernel"] == "one"
        kept = "head, router, embedding and norms" if head is None else "router, embedding and norms"
        assert any(f"; {kept} stay in 16 bits" in sentence for sentence in work.assumptions)
    plain = synthesize(
        "qwen3-30b-a3b", gpu="gb200", layers=1, sequence=256, precision="mxfp8", software="megatron-bridge"
    )
    assert not any({"attention_precision", "grouped_kernel"} & set(op.attributes) for op in plain.operators)
