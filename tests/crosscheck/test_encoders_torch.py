"""Do encoders and encoder-decoders have the weights and FLOPs of the same models built of torch's own layers?"""

from __future__ import annotations

from math import prod

import pytest

import trine
from trine.compute import kind_of, work

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

LAYERS, HIDDEN, HEADS, SIZE, FFN, VOCAB, SEQUENCE, TARGET, BATCH = 2, 64, 4, 8, 96, 100, 32, 16, 3
BERT = (
    f"family: bert\nlayers: {LAYERS}\nhidden: {HIDDEN}\nheads: {HEADS}\nffn: {FFN}\nvocab: {VOCAB}\n"
    f"sequence: {SEQUENCE}\nmax_positions: 40\n"
)
T5 = (
    f"family: t5\nlayers: {LAYERS}\ndecoder_layers: 3\nhidden: {HIDDEN}\nheads: {HEADS}\nhead_size: {SIZE}\n"
    f"ffn: {FFN}\nvocab: {VOCAB}\nsequence: {SEQUENCE}\ntarget: {TARGET}\n"
)


class Bert(nn.Module):
    """Layers of torch's encoder (norm behind the addition), the head on the table of the tokens, a pooler."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCAB, HIDDEN), nn.Embedding(40, HIDDEN)
        self.segments, self.norm = nn.Embedding(2, HIDDEN), nn.LayerNorm(HIDDEN)
        layer = nn.TransformerEncoderLayer(HIDDEN, HEADS, FFN, 0.0, "gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.pooler, self.next = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, 2)
        self.transform, self.head_norm = nn.Linear(HIDDEN, HIDDEN), nn.LayerNorm(HIDDEN)
        self.bias = nn.Parameter(torch.zeros(VOCAB))

    def forward(self, tokens):  # type: ignore[no-untyped-def]
        places, kinds = torch.arange(tokens.shape[1]), torch.zeros_like(tokens)
        x = self.norm(self.tokens(tokens) + self.positions(places) + self.segments(kinds))
        x = self.layers(x)
        follows = self.next(torch.tanh(self.pooler(x[:, 0])))
        h = self.head_norm(F.gelu(self.transform(x)))
        logits = F.linear(h, self.tokens.weight, self.bias)
        return F.cross_entropy(logits.flatten(0, 1), tokens.flatten()) + F.cross_entropy(follows, tokens[:, 0] % 2)


class Attention(nn.Module):
    def __init__(self, biased: bool) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(HIDDEN, HEADS * SIZE, bias=False) for _ in range(3))
        self.o = nn.Linear(HEADS * SIZE, HIDDEN, bias=False)
        self.bias = nn.Embedding(32, HEADS) if biased else None

    def forward(self, x, memory, bias):  # type: ignore[no-untyped-def]
        def heads(y):  # type: ignore[no-untyped-def]
            return y.view(*y.shape[:2], HEADS, SIZE).transpose(1, 2)

        q, k, v = heads(self.q(x)), heads(self.k(memory)), heads(self.v(memory))
        scores = q @ k.transpose(-2, -1)
        if self.bias is not None:
            bias = self.bias(torch.zeros(scores.shape[-2:], dtype=torch.long)).permute(2, 0, 1)[None]
        mixed = (scores if bias is None else scores + bias).softmax(-1) @ v
        return self.o(mixed.transpose(1, 2).flatten(2)), bias


class Layer(nn.Module):
    def __init__(self, first: bool, decodes: bool, gated: bool) -> None:
        super().__init__()
        self.own, self.cross = Attention(first), Attention(False) if decodes else None
        self.norms = nn.ModuleList(nn.RMSNorm(HIDDEN) for _ in range(3 if decodes else 2))
        self.up, self.gate = nn.Linear(HIDDEN, FFN, bias=False), nn.Linear(HIDDEN, FFN, bias=False) if gated else None
        self.down = nn.Linear(FFN, HIDDEN, bias=False)

    def forward(self, x, memory, bias):  # type: ignore[no-untyped-def]
        h = self.norms[0](x)
        made, bias = self.own(h, h, bias)
        x = x + made
        if self.cross is not None:
            x = x + self.cross(self.norms[2](x), memory, None)[0]
        h = self.norms[1](x)
        inner = F.relu(self.up(h)) if self.gate is None else F.gelu(self.gate(h)) * self.up(h)
        return x + self.down(inner), bias


class T5Model(nn.Module):
    def __init__(self, gated: bool, tied: bool) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, HIDDEN)
        self.encoder = nn.ModuleList(Layer(not i, False, gated) for i in range(LAYERS))
        self.decoder = nn.ModuleList(Layer(not i, True, gated) for i in range(3))
        self.norms = nn.ModuleList(nn.RMSNorm(HIDDEN) for _ in range(2))
        self.head = None if tied else nn.Linear(HIDDEN, VOCAB, bias=False)

    def forward(self, tokens):  # type: ignore[no-untyped-def]
        memory, bias = self.tokens(tokens), None
        for layer in self.encoder:
            memory, bias = layer(memory, None, bias)
        memory, x, bias = self.norms[0](memory), self.tokens(tokens[:, :TARGET]), None
        for layer in self.decoder:
            x, bias = layer(x, memory, bias)
        weight = self.tokens.weight if self.head is None else self.head.weight
        logits = F.linear(self.norms[1](x) * HIDDEN**-0.5, weight)
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, :TARGET].flatten())


MODELS = {
    "bert": (BERT, Bert),
    "t5": (T5, lambda: T5Model(gated=False, tied=True)),
    "flan-t5": (T5 + "activation: geglu\ntied_embeddings: false\n", lambda: T5Model(gated=True, tied=False)),
}


@pytest.mark.parametrize("name", sorted(MODELS))
def test_weights_and_flops_are_those_of_torch(name, tmp_path):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    text, make = MODELS[name]
    (tmp_path / f"{name}.yaml").write_text(text)
    workload, model = trine.synthesize(tmp_path / f"{name}.yaml", batch=BATCH, dtype="fp32"), make()
    assert sum(prod(workload.tensors[p.weight].shape) for p in workload.parameters) == sum(
        p.numel() for p in model.parameters()
    )
    tokens = torch.randint(0, VOCAB, (BATCH, SEQUENCE))
    with sdpa_kernel(SDPBackend.MATH):  # torch counts attention in parts, not in its fused operator for CPUs
        with FlopCounterMode(display=False) as forward:
            loss = model(tokens)
        with FlopCounterMode(display=False) as backward:
            loss.backward()
    again = sum(work(op, workload).flops for op in workload.operators if kind_of(op) == "attention") // 2
    assert _flops(workload, "forward") == forward.get_total_flops()
    # A fused backward computes the scores again; torch's parts keep them.
    assert _flops(workload, "backward") - again == backward.get_total_flops()


def _flops(workload, phase):  # type: ignore[no-untyped-def]
    kinds = ("linear", "attention")
    ops = (op for op in workload.operators if op.phase == phase and kind_of(op).removesuffix(" backward") in kinds)
    return sum(work(op, workload).flops for op in ops)
