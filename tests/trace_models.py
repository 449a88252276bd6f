"""Records small models at two batch sizes with PyTorch on the CPU: python trace_models.py FOLDER. Needs torch."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile

Step = Callable[[], None]
BATCHES = (4, 6)


def training(model: nn.Module, data: torch.Tensor, target: torch.Tensor, loss: Callable, **options: object) -> Step:
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True, **options)

    def step() -> None:
        optimizer.zero_grad()
        loss(model(data), target).backward()
        optimizer.step()

    return step


class Encoder(nn.Module):
    """Four heads, 12 tokens, dropout; data (B, S) or (S, B)."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.embed = nn.Embedding(50, 32)
        self.position = nn.Parameter(torch.randn((1, 12, 32) if batch_first else (12, 1, 32)))
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=batch_first, dropout=0.1)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embed(x) + self.position).mean(1 if self.batch_first else 0))


class Vit(nn.Module):
    """A class token that is expanded to the batch, one tensor for query, key and value, plain products."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 32, 8, 8)
        self.token = nn.Parameter(torch.randn(1, 1, 32))
        self.norm, self.qkv, self.head = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)
        samples, tokens, width = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(samples, tokens, 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = (q @ k.transpose(-2, -1) * 0.3).softmax(-1) @ v
        return self.head((x + mixed.transpose(1, 2).reshape(samples, tokens, width))[:, 0])


class Gpt(nn.Module):
    """Tied embedding, learned positions, a causal mask as a buffer; 6 x 16 tokens are as many as 3 x 32 features."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(50, 32), nn.Embedding(16, 32)
        self.qkv, self.norm, self.head = nn.Linear(32, 96), nn.LayerNorm(32), nn.Linear(32, 50, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("mask", torch.tril(torch.ones(16, 16)).view(1, 1, 16, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        samples, tokens = x.shape
        h = self.embed(x) + self.position(torch.arange(tokens))
        q, k, v = (t.view(samples, tokens, 4, 8).transpose(1, 2) for t in self.qkv(self.norm(h)).split(32, 2))
        scores = (q @ k.transpose(-2, -1) / 2.0).masked_fill(self.mask == 0, -1e9)
        mixed = F.dropout(F.softmax(scores, -1), 0.1) @ v
        return self.head(h + mixed.transpose(1, 2).contiguous().view(samples, tokens, 32))


class Dense(nn.Module):
    """Concatenated channels, batch and group norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.batch_norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.second, self.third = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(16, 8, 1)
        self.group_norm, self.head = nn.GroupNorm(2, 8), nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.batch_norm(self.first(x)))
        x = self.group_norm(self.third(torch.cat([x, self.second(x)], 1)))
        return self.head(torch.flatten(F.avg_pool2d(x, 2), 1))


def classes(batch: int) -> torch.Tensor:
    return torch.randint(0, 10, (batch,))


def gpt(batch: int) -> Step:
    tokens = torch.randint(0, 50, (batch, 16))
    return training(Gpt(), tokens, tokens, lambda out, y: F.cross_entropy(out.view(-1, 50), y.view(-1)))


def summed(batch: int) -> Step:
    """A loss whose gradient is an expanded scalar, gradients that are kept and zeroed, clipping."""
    model, data = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)), torch.randn(batch, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        model(data).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def inference(batch: int) -> Step:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 5)).eval()
    data = torch.randn(batch, 3, 8, 8)

    def step() -> None:
        with torch.no_grad():
            model(data).softmax(-1)

    return step


MODELS: dict[str, Callable[[int], Step]] = {
    "encoder": lambda b: training(Encoder(True), torch.randint(0, 50, (b, 12)), classes(b), F.cross_entropy),
    "encoder_sequence_first": lambda b: training(
        Encoder(False), torch.randint(0, 50, (12, b)), classes(b), F.cross_entropy
    ),
    "vit": lambda b: training(Vit(), torch.randn(b, 3, 32, 32), classes(b), F.cross_entropy),
    "gpt": gpt,
    "dense": lambda b: training(Dense(), torch.randn(b, 3, 8, 8), torch.randn(b, 10), F.mse_loss),
    "summed": summed,
    "inference": inference,
}


def record(folder: Path) -> None:
    for name, make in MODELS.items():
        for batch in BATCHES:
            torch.manual_seed(0)
            step = make(batch)
            step()
            place = folder / f"{name}-{batch}"
            place.mkdir(parents=True)
            observer = ExecutionTraceObserver()
            observer.register_callback(str(place / "execution_trace.json"))
            with profile(
                activities=[ProfilerActivity.CPU], record_shapes=True, execution_trace_observer=observer
            ) as run:
                step()
            run.export_chrome_trace(str(place / "kineto.json"))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    record(Path(sys.argv[1]))
