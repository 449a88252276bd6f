"""Do grouped GEMMs take the published time, and does the CPU launch one of them for each expert of a rank?"""

import pytest

from trine.cluster import load_cluster
from trine.compute.launch import software_launches
from trine.compute.resize import is_expert_product
from trine.compute.tables.operators import OperatorTables, load_gpu
from trine.parallel.plan import Plan
from trine.software import load_software
from trine.training.run import simulate
from trine.workload import synthesize
from trine.workload.synthesis.model import Synthesis, written
from trine.workload.synthesis.spec import Experts, Transformer

#: NVIDIA/TransformerEngine, pull request 2045: general_grouped_gemm of Transformer Engine 2.7 on H100, bfloat16.
#: (experts, tokens of each, outputs, inputs) -> TFLOP/s
PUBLISHED = {(8, 4096, 768, 2048): 627.903, (16, 2048, 768, 2048): 553.945}


@pytest.mark.parametrize("shape", PUBLISHED, ids=str)
def test_the_published_rate_of_grouped_gemms(shape):
    experts, tokens, outputs, inputs = shape
    time = OperatorTables(load_gpu("h100-sxm")).gemm_in_step(tokens, outputs, inputs, "bfloat16", 0, experts)
    rate = 2e-6 * experts * tokens * outputs * inputs / time.us
    print(f"{shape}: {rate:.0f} TFLOP/s predicted, {PUBLISHED[shape]:.0f} measured")
    assert rate == pytest.approx(PUBLISHED[shape], rel=0.05)


@pytest.mark.parametrize("software", ["megatron-bridge", "torchtitan"])
def test_each_expert_is_launched_by_libraries_without_a_grouped_kernel(software):
    """Transformer Engine calls cuBLAS for each expert; torchtitan's _grouped_mm is one kernel."""
    workload = synthesize("mixtral-8x7b", gpu="h100-sxm", software=software, layers=2, sequence=256)
    profile = load_software(software)
    launches = software_launches(workload, profile).launches()
    products = [each for op, each in zip(workload.operators, launches, strict=True) if is_expert_product(op)]
    assert len(products) == 2 * 2 * 3  # layers, up and down, forward with both gradients
    expected = 8 if software == "megatron-bridge" else 0
    assert {each.experts for each in products} == {expected}
    others = [each for op, each in zip(workload.operators, launches, strict=True) if not is_expert_product(op)]
    assert not any(each.experts for each in others)


def thread_ms(software, **model):
    """Return the CPU time that launches one layer, both passes, of a model of 12 layers x 512."""
    spec = Transformer(
        name="gpt", layers=2, hidden=512, heads=8, kv_heads=8, head_size=64, vocab=1024, sequence=1024,
        norm="layer", activation="gelu", **model,
    )  # fmt: skip
    workload = written(spec, Synthesis(batch=1), software)
    launches = software_launches(workload, software).launches()
    of_layer = [each for op, each in zip(workload.operators, launches, strict=True) if op.layer.startswith("layers.1.")]
    return sum(each.time_ps + each.experts / 8 * each.expert_ps for each in of_layer) * 1e-9


def test_layers_of_mixtures_take_the_cpu_longer_by_the_published_time():
    """Golden values of Megatron-LM (d98e8a64, tests/functional_tests, dev_dgx_h100), which launches bound.

    12 layers of 512 features on 8 H100, one micro-batch: 0.049 s for gpt3_mcore_te_tp1_pp1_resume_torch_dist (dense),
    0.102 s for gpt3_moe_mcore_te_ep8_resume_torch_dist_dist_optimizer (8 experts, one on each GPU), least steps of the
    resumed runs. Their mixtures launch the router's and the permutation's operators one by one.
    """
    software = load_software("megatron-core")
    more = thread_ms(software, experts=Experts(count=8, top_k=2, ffn=1024)) - thread_ms(software, ffn=2048)
    measured = (102 - 49) / 12
    print(f"{more:.2f} ms more a layer, {measured:.2f} measured")
    assert more == pytest.approx(measured, rel=0.15)


def test_the_launching_thread_takes_longer_by_its_local_experts():
    """Closed form: launches bound a layer with few tokens, and each GEMM of a rank's experts adds expert_us."""
    profile = load_software("megatron-core")
    times = {}
    for expert_us in (3000.0, 5000.0):
        launch = profile.launch.model_copy(update={"expert_us": expert_us})
        style = profile.model_copy(update={"launch": launch})
        workload = synthesize("mixtral-8x7b", gpu="h100-sxm", software=style, layers=1, sequence=64)
        for ep in (2, 4):
            plan = Plan(dp=4, ep=ep, batch=1, inputs="none")
            result = simulate(workload, plan, cluster=load_cluster("dgx-h100", gpus=4), software=style)
            times[expert_us, ep] = result.step_time_s
    for ep in (2, 4):
        gemms = 2 * 3 * 8 // ep
        assert times[5000.0, ep] - times[3000.0, ep] == pytest.approx(gemms * 2e-3, rel=1e-6)
