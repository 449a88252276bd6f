"""Does one more layer of a mixture need the bytes that Megatron-core's source keeps?

Hand formulas, one line for each tensor, of Megatron-core at 23e00ed0 (October 2025) and Transformer Engine 2.11; they
read no number of trine. The peak lies at the loss, when each layer holds the tensors for its backward pass. So the
peak of a model with one more layer is higher by these tensors and by the layer's states.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

import trine
from trine.parallel.plan import Plan
from trine.software.profile import load_software
from trine.training.memory import rank_memory

MIB = 2**20
TOKENS = 4096
#: PyTorch rounds a block up to 512 bytes; a layer has fewer than 100.
ROUNDING = 100 * 512
CORE = load_software("megatron-core")


@dataclass(frozen=True)
class Mixture:
    """Shapes of one layer, from the published configs. latent: MLA; else grouped attention."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    experts: int
    top_k: int
    ffn: int
    shared: int = 0
    latent: bool = False
    query_rank: int = 0

    def attention(self, tokens: int, part: int, tp: int) -> int:
        """Return the elements that attention keeps; part: tokens of a rank between tensor-parallel blocks."""
        if not self.latent:
            qkv = (self.heads + 2 * self.kv_heads) * self.head_size // tp
            out = self.heads * self.head_size // tp
            # Before the norms of the heads, which keep it, and rotated; float32 logarithmic sums
            return part * self.hidden + tokens * (2 * qkv + out + 2 * self.heads // tp)
        rank, rotated, plain, value = 512, 64, 128, 128
        heads = self.heads // tp
        kept = part * self.hidden  # norm: the input of the projections down
        kept += part * 2 * self.query_rank  # the latent queries, and their norm
        kept += part * (rank + rotated + rank)  # the latent keys with the rotated part, and their norm
        kept += tokens * heads * 2 * (plain + rotated)  # queries and keys, rotated: the unrotated ones are not kept
        kept += tokens * heads * value  # values
        kept += tokens * heads * value  # the result, input of the projection out
        return kept + tokens * heads * 2  # float32 logarithmic sums

    def feed_forward(self, tokens: int, part: int, tp: int, etp: int) -> int:
        """Return the bytes that the mixture keeps."""
        routed = part * etp * self.top_k
        kept = 2 * part * self.hidden  # norm: the input of router, experts and shared experts
        kept += part * self.experts * (2 + 15)  # router: logits, and router_bytes of the profile
        kept += part * self.top_k * (2 + 8)  # the shares of a token's experts, and their numbers
        kept += 2 * routed * self.hidden  # sorted tokens, input of the first GEMM
        kept += 2 * routed * 2 * self.ffn // etp  # its result, input of the activation
        kept += 2 * routed * self.ffn // etp  # the activation, times the shares; the second GEMM's result is not kept
        kept += 2 * tokens * 3 * self.shared // tp  # the same of shared experts
        return kept

    def activations(self, tp: int, etp: int) -> int:
        """Return the bytes that one layer keeps for one micro-batch of one sample."""
        part = TOKENS // tp
        residuals = 2 * 2 * part * self.hidden + 2 * 4 * part  # two, and their norms' statistics
        latents = 4 * part * (2 if self.query_rank else 1) if self.latent else 0  # statistics of their norms
        attention = 2 * self.attention(TOKENS, part, tp)
        return residuals + latents + attention + self.feed_forward(TOKENS, part, tp, etp)

    def weights(self, tp: int) -> tuple[int, int]:
        """Return the parameters of a rank outside the experts, and of all experts."""
        hidden, heads = self.hidden, self.heads
        if self.latent:
            up = heads * 256 // tp
            queries = heads * 192 // tp
            attention = hidden * 576 + 512 + 512 * up + heads * 128 * hidden // tp
            if self.query_rank:
                attention += hidden * self.query_rank + self.query_rank + self.query_rank * queries
            else:
                attention += hidden * queries
        else:
            qkv = (heads + 2 * self.kv_heads) * self.head_size
            attention = (qkv + heads * self.head_size) * hidden // tp + 2 * self.head_size
        dense = attention + 2 * hidden + hidden * self.experts + 3 * hidden * self.shared // tp
        return dense, self.experts * 3 * hidden * self.ffn


DEEPSEEK = Mixture(
    "deepseek-v3", 4, 7168, 128, 128, 192, experts=256, top_k=8, ffn=2048, shared=2048, latent=True, query_rank=1536
)
LITE = Mixture("deepseek-v2-lite", 2, 2048, 16, 16, 192, experts=64, top_k=6, ffn=1408, shared=2816, latent=True)
QWEN = Mixture("qwen3-30b-a3b", 2, 2048, 32, 4, 128, experts=128, top_k=8, ffn=768)


def peak(model: Mixture, layers: int, plan: Plan) -> int:
    work = trine.synthesize(model.name, layers=layers, sequence=TOKENS, software=CORE, times="roofline", gpu="b200")
    (stage,) = rank_memory(work, plan, CORE)
    return sum(stage.by_category.values())


@pytest.mark.parametrize("model", [DEEPSEEK, LITE, QWEN], ids=lambda model: model.name)
@pytest.mark.parametrize(("tp", "etp", "ep"), [(1, 1, 8), (2, 1, 8), (2, 2, 4), (4, 1, 8), (1, 1, 2)])
def test_one_more_layer_keeps_the_tensors_of_the_source(model: Mixture, tp: int, etp: int, ep: int) -> None:
    dp = 8 // tp
    plan = Plan(
        dp=dp, tp=tp, ep=ep, etp=etp, batch=2, micro_batch=1, sharding="zero1", sequence_parallel=tp > 1
    )  # fmt: skip
    grown = peak(model, model.layers + 1, plan) - peak(model, model.layers, plan)
    dense, experts = model.weights(tp)
    own, replicas = experts // (ep * etp), 8 // (ep * etp)
    # Two bytes of weight, four of gradient, twelve of optimizer state that the replicas share
    states = dense * (6 + 12 / dp) + own * (6 + 12 / replicas)
    activations = model.activations(tp, etp)
    assert activations > 100 * MIB
    assert grown == pytest.approx(states + activations, abs=ROUNDING), (grown - states - activations) / MIB


def test_older_megatron_core_keeps_the_results_of_experts() -> None:
    """Closed form: scaled in the unpermutation, the results of all experts stay: top_k tokens of 2 bytes a layer."""
    style = CORE.operators.model_copy(update={"expert_shares": "results"})
    older = CORE.model_copy(update={"operators": style})
    plan = Plan(dp=8, ep=8, etp=1, batch=2, micro_batch=1, sharding="zero1")
    sizes = []
    for software in (CORE, older):
        work = trine.synthesize(LITE.name, layers=4, sequence=TOKENS, software=software, times="roofline", gpu="b200")
        (stage,) = rank_memory(work, plan, software)
        sizes.append(stage.by_category["activations"])
    assert sizes[1] - sizes[0] == 3 * 2 * TOKENS * LITE.top_k * LITE.hidden  # the first of four layers is dense


def test_experts_have_workspaces_of_their_own() -> None:
    """Closed form: four streams of Transformer Engine's grouped GEMM, 32 MiB and 1 KiB each; none in a dense model."""
    plan = Plan(dp=8, batch=2, micro_batch=1, sharding="zero1")
    found = {}
    for name in ("qwen3-30b-a3b", "llama-3-8b"):
        work = trine.synthesize(name, layers=1, sequence=256, software=CORE, times="roofline", gpu="b200")
        for size in (CORE.memory.expert_workspace_bytes, 0):
            memory = CORE.memory.model_copy(update={"expert_workspace_bytes": size})
            (stage,) = rank_memory(work, plan, CORE.model_copy(update={"memory": memory}))
            found[name, size] = stage.by_category["workspaces"]
    own = CORE.memory.expert_workspace_bytes
    assert own == 4 * (32 * MIB + 1024)
    assert found["qwen3-30b-a3b", own] - found["qwen3-30b-a3b", 0] == own
    assert found["llama-3-8b", own] == found["llama-3-8b", 0]
