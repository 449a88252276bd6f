"""Times of single kernels of serving: measured points come back, and closed forms hold where nothing was measured."""

import numpy as np
import pytest

from trine.cluster import load_cluster, load_gpu
from trine.collectives.nccl import Collectives
from trine.collectives.options import CollectiveOptions
from trine.inference import recurrence_times
from trine.inference.attention_times import AttentionTimes, HeadShapes, LatentTimes
from trine.inference.communication import Communication, exchange_kernel
from trine.inference.engines import load_engine
from trine.inference.expert_times import ExpertLayer, experts_us
from trine.inference.job import ServingLayout
from trine.inference.kernel_tables import kernel_arrays, kernel_source, log_times
from trine.inference.precision import served_precisions
from trine.inference.products import TOKENS, at_tokens, gpu_times
from trine.inference.shards import local_bytes, local_products
from trine.workload.architecture.blocks import Attention, LatentAttention, LinearAttention, Mixture, Mlp

PRECISIONS = served_precisions()


@pytest.mark.parametrize(("name", "bits"), [("float8", 8), ("float4", 4)])
def test_narrow_products_cost_at_least_the_16_bit_product_of_as_many_bytes(name, bits):
    times = gpu_times(load_gpu("b300"), "vllm")
    narrow = times.product_us(8192, 8192, name, bits / 8)
    folded = times.product_us(8192, 8192 * bits // 16, "bfloat16", 2.0)
    assert (narrow >= folded * (1 - 1e-12)).all()
    assert narrow[0] < times.product_us(8192, 8192, "bfloat16", 2.0)[0]


def test_weights_of_few_bits_are_multiplied_in_16_bits_where_the_gpu_has_no_fp8():
    gpu = load_gpu("a100-80gb")
    times = gpu_times(gpu, "vllm").product_us(8192, 8192, "float8", 1.0)
    half = gpu_times(gpu, "vllm").product_us(8192, 8192, "bfloat16", 2.0)
    assert times[-1] == pytest.approx(half[-1] / 0.95, rel=0.1)
    assert times[0] < half[0]


@pytest.mark.parametrize(
    ("gpu", "engine", "precision"), [("h100-sxm", "trtllm", "fp8-block"), ("b300", "vllm", "nvfp4")]
)
def test_measured_layers_of_experts_come_back(gpu, engine, precision):
    name = f"experts/{engine}/{precision}"
    arrays, times = kernel_arrays(gpu), log_times(gpu, name)
    tokens = np.asarray(arrays[f"{name}/tokens"], dtype=float)
    checked = 0
    for row, measured in list(zip(np.asarray(arrays[f"{name}/rows"]).tolist(), times, strict=True))[::20]:
        hidden, ffn, top_k, experts, cut, divided = row
        if np.isnan(measured).any() or ffn % cut or experts % divided:
            continue
        layer = ExpertLayer(experts, top_k, hidden, ffn, True, cut, divided)
        found = experts_us(layer, load_gpu(gpu), engine, PRECISIONS[precision])
        shared = [(int(np.searchsorted(TOKENS, m)), at) for at, m in enumerate(tokens) if m in TOKENS]
        for place, at in shared:
            assert found[place] == pytest.approx(np.exp(measured[at]), rel=1e-9)
        checked += 1
    assert checked > 5


def test_experts_grow_with_what_a_batch_touches():
    layer = ExpertLayer(128, 8, 4096, 1536, True, 8, 1)
    times = experts_us(layer, load_gpu("h200"), "vllm", PRECISIONS["bf16"])
    weights_us = 128 * layer.elements * 2 / load_gpu("h200").memory_bytes_per_s * 1e6
    many = times[int(np.searchsorted(TOKENS, 512))]
    assert many > weights_us  # all experts are read
    assert times[0] < many / 3  # one token reads eight of 128


def test_decode_attention_reads_its_cache_at_most_of_the_bandwidth():
    gpu = load_gpu("h200")
    times = AttentionTimes(gpu, "vllm", "bf16")
    heads = HeadShapes(32, 8, 128, 128)
    num_bytes = 256 * 8192 * 8 * 256 * 2
    us = times.decode_us(heads, 256, 8192.0)
    assert 0.8 < num_bytes / gpu.memory_bytes_per_s * 1e6 / us < 1.0
    assert times.decode_us(heads, 256, 16384.0) == pytest.approx(2 * us, rel=0.05)
    assert times.decode_us(heads, 1, 16.0) < 20


def test_a_prompt_after_cached_tokens_costs_the_rest_of_the_whole():
    times = AttentionTimes(load_gpu("h100-sxm"), "trtllm", "bf16")
    heads = HeadShapes(32, 8, 128, 128)
    whole, first, rest = (times.prefill_us(heads, *chunk) for chunk in ((16384, 0), (8192, 0), (8192, 8192)))
    assert first + rest == pytest.approx(whole, rel=0.1)
    assert times.prefill_us(heads, 16384, 0, window=128) < whole / 10


@pytest.mark.parametrize("engine", ["trtllm", "sglang"])
def test_measured_latent_attention_comes_back(engine):
    source = kernel_source("h200", "latent_generation", engine, "bf16")
    arrays, times = kernel_arrays("h200"), np.exp(log_times("h200", source.name))
    heads, batch, length = (
        np.asarray(arrays[f"{source.name}/{axis}"]).tolist() for axis in ("heads", "batch", "length")
    )
    latent = LatentTimes(load_gpu("h200"), engine, "bf16")
    for h, b, s in ((3, 2, 8), (7, 0, 5), (5, 6, 10)):
        if not np.isnan(times[h, b, s]):
            # Longer contexts take no less time: where measured times scatter, the longest so far holds.
            expected = np.nanmax(times[h, b, : s + 1])
            assert expected == pytest.approx(times[h, b, s], rel=0.02)
            assert latent.decode_us(heads[h], batch[b], length[s], 576) == pytest.approx(expected, rel=1e-9)


def test_states_are_read_and_written_once():
    mixer = LinearAttention(key_heads=16, value_heads=32, key_size=128, value_size=128)
    gpu = load_gpu("h200")
    one, two = (recurrence_times.decode_us(mixer, gpu, 1, count) for count in (100, 200))
    state = mixer.cache().state * 4
    assert two - one == pytest.approx(2 * 100 * state / (0.85 * gpu.memory_bytes_per_s) * 1e6, rel=1e-9)
    halved = recurrence_times.decode_us(mixer, gpu, 2, 200)
    assert halved == pytest.approx(one, rel=1e-9)


@pytest.mark.parametrize("ways", [8, 64])
def test_the_one_sided_exchange_is_as_measured_on_gb200(ways):
    times = Communication(load_cluster("gb200-nvl72"), load_engine("trtllm"))
    for tokens, measured_us in exchange_kernel().times[ways].items():
        assert times.exchange_us(tokens, 2 * 7168, ways) == pytest.approx(measured_us, rel=1e-6)
    between = times.exchange_us(128, 2 * 7168, 16)
    assert 70 < between < 87
    assert times.exchange_us(4096, 2 * 7168, 8) == pytest.approx(635 + 2048 * (635 - 70) / 1920, rel=1e-6)


def test_an_exchange_by_gathers_is_a_gather_and_a_scatter():
    times = Communication(load_cluster("dgx-h100"), load_engine("vllm"))
    num_bytes = 128 * 8 * 2 * 4096
    expected = times.gather_us(num_bytes, 8) + times.scatter_us(num_bytes, 8)
    assert times.exchange_us(128, 2 * 4096, 8) == pytest.approx(expected, rel=1e-12)


def test_all_reduces_follow_the_links():
    small, large = 16 << 10, 4 << 20
    h100, b200, l40s, mi300x = (
        Communication(load_cluster(name), load_engine("vllm"))
        for name in ("dgx-h100", "hgx-b200", "l40s-pcie", "mi300x-node")
    )
    assert h100.all_reduce_us(small, 1) == 0
    assert h100.all_reduce_us(small, 8) == pytest.approx(b200.all_reduce_us(small, 8), rel=0.05)
    assert b200.all_reduce_us(large, 8) < 0.75 * h100.all_reduce_us(large, 8)
    assert mi300x.all_reduce_us(small, 8) < 12
    assert l40s.all_reduce_us(large, 4) > 3 * h100.all_reduce_us(large, 4)  # NCCL over PCIe


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize(
    "block",
    [
        Attention(heads=32, kv_heads=8, head_size=128),
        Mlp(ffn=14336),
        LinearAttention(key_heads=16, value_heads=32, key_size=128, value_size=128),
    ],
    ids=["attention", "mlp", "linear attention"],
)
def test_gpus_share_the_products_of_a_layer(block, tp):
    precision = PRECISIONS["bf16"]
    whole = local_products(block, 4096, ServingLayout(), precision)
    part = local_products(block, 4096, ServingLayout(tp=tp), precision)
    assert len(whole) == len(part)
    assert tp * sum(each.outputs * each.inputs for each in part) == sum(each.outputs * each.inputs for each in whole)


def test_products_with_one_input_are_fused():
    shapes = [
        (each.outputs, each.inputs)
        for each in local_products(
            Attention(heads=32, kv_heads=8, head_size=128), 4096, ServingLayout(tp=2), PRECISIONS["bf16"]
        )
    ]
    assert shapes == [(3072, 4096), (4096, 2048)]
    latent = LatentAttention(heads=128, query_rank=1536, kv_rank=512, plain=128, rotated=64, value=128)
    found = local_products(latent, 7168, ServingLayout(tp=8), PRECISIONS["bf16"])
    assert [(each.outputs, each.inputs) for each in found] == [
        (1536 + 576, 7168), (16 * 192, 1536), (16 * 256, 512), (7168, 16 * 128),
    ]  # fmt: skip


def test_nvfp4_leaves_projections_of_latent_attention_in_16_bits():
    latent = LatentAttention(heads=128, query_rank=1536, kv_rank=512, plain=128, rotated=64, value=128)
    found = local_products(latent, 7168, ServingLayout(), PRECISIONS["nvfp4"])
    assert [each.dtype for each in found] == ["bfloat16", "bfloat16", "bfloat16", "float4"]


@pytest.mark.parametrize(
    ("layout", "share"), [(ServingLayout(tp=8), 8), (ServingLayout(tp=2, attention_dp=4, ep=8), 8)]
)
def test_experts_are_divided_or_cut_among_all_gpus(layout, share):
    mixture = Mixture(experts=128, top_k=8, ffn=1536)
    whole = local_bytes(mixture, 4096, ServingLayout(), PRECISIONS["fp8"])
    router = 128 * 4096 * 2
    assert local_bytes(mixture, 4096, layout, PRECISIONS["fp8"]) - router == pytest.approx((whole - router) / share)


def test_curves_go_on_in_proportion_beyond_their_end():
    curve = np.linspace(1.0, 100.0, len(TOKENS))
    assert at_tokens(TOKENS[-1], curve) == 100.0
    assert at_tokens(2 * TOKENS[-1], curve) == 200.0
    assert at_tokens(1, curve) == 1.0


@pytest.mark.parametrize(("op", "ways"), [("all_reduce", 8), ("all_gather", 4), ("reduce_scatter", 8)])
def test_large_messages_take_the_time_of_the_library(op, ways):
    """1 GiB is far beyond the engine's own kernel: the time of ``trine collective`` with CUDA graphs."""
    cluster = load_cluster("dgx-h100")
    times = Communication(cluster, load_engine("vllm"))
    found = {"all_reduce": times.all_reduce_us, "all_gather": times.gather_us, "reduce_scatter": times.scatter_us}[op]
    library = Collectives(cluster, range(ways), CollectiveOptions(launch="graph")).predict(op, 2**30)
    assert found(2**30, ways) == pytest.approx(library.time_ps / 1e6)
    assert found(2**30, 1) == 0
