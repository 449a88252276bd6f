"""Capture your own GPT-2 XL without a GPU and without its 25 GB, and predict its step on eight H100s.

Usage: python examples/capture_on_meta.py     (needs trine[capture]; prints capture_on_meta.out)
"""

import torch
from torch import nn
from torch.nn import functional as F

import trine

LAYERS, HIDDEN, HEADS, VOCABULARY, TOKENS, BATCH = 48, 1600, 25, 50257, 1024, 4


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(HIDDEN) for _ in range(2))
        self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, _ = x.shape
        parts = self.qkv(self.norms[0](x)).split(HIDDEN, dim=2)
        q, k, v = (part.view(batch, tokens, HEADS, -1).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, HIDDEN))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Gpt2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, HIDDEN), nn.Embedding(TOKENS, HIDDEN)
        self.layers, self.norm = nn.ModuleList(Layer() for _ in range(LAYERS)), nn.LayerNorm(HIDDEN)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            x = layer(x)
        return F.linear(self.norm(x), self.tokens.weight)


def main() -> None:
    with trine.capture(name="my-gpt2-xl") as c:  # inside the block every tensor has a shape and no memory
        model = Gpt2().to("cuda", torch.bfloat16)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        ids = torch.randint(0, VOCABULARY, (BATCH, TOKENS), device="cuda")
        for _ in c:
            optimizer.zero_grad()
            F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
            optimizer.step()

    workload = c.workload
    parameters = sum(workload.tensors[p.weight].size_bytes for p in workload.parameters) // 2
    print(f"{workload.name}: {parameters:,} parameters, {len(workload.operators):,} operators")
    for name, plan in {
        "ddp": trine.Plan(dp=8),
        "fsdp": trine.Plan(dp=8, sharding="fsdp"),
        "pp 4 x dp 2": trine.Plan(dp=2, pp=4, micro_batch=1),
    }.items():
        step = trine.simulate(workload, plan, cluster="dgx-h100")
        print(f"{name:11} step {step.step_time_s * 1000:6.1f} ms, memory {step.memory_peak_bytes / 2**30:5.1f} GiB")


if __name__ == "__main__":
    main()
