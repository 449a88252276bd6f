"""ResNet-50, VGG-13, DenseNet-121 and a GPT-2-size transformer in plain torch.nn, as published.

Weights and data are random, so neither torchvision nor a download is needed. ``tiny`` shrinks each model to a second
of CPU time with the same kinds of layers. A step is forward, loss, backward and Adam, as in TrioSim's tracer.

Sources: VGG configuration B (arXiv:1409.1556), ResNet with bottlenecks (arXiv:1512.03385; stride in the 3x3
convolution, as torchvision), DenseNet-BC growth 32 (arXiv:1608.06993), GPT-2 small (12 layers, 12 heads, 768 wide, 1024
tokens; the output layer's weights are not tied).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F


def conv_bn(inputs: int, outputs: int, size: int, stride: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    return [conv, nn.BatchNorm2d(outputs)]


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            *conv_bn(inputs, width, 1), nn.ReLU(inplace=True),
            *conv_bn(width, width, 3, stride), nn.ReLU(inplace=True),
            *conv_bn(width, outputs, 1),
        )  # fmt: skip
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Sequential(*conv_bn(inputs, outputs, 1, stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


def resnet50(tiny: bool = False) -> nn.Module:
    blocks, base = ((1, 1), 8) if tiny else ((3, 4, 6, 3), 64)
    layers = [*conv_bn(3, base, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    channels = base
    for stage, count in enumerate(blocks):
        width = base * 2**stage
        for block in range(count):
            layers.append(Bottleneck(channels, width, 2 if stage and not block else 1))
            channels = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10 if tiny else 1000))


def vgg13(tiny: bool = False) -> nn.Module:
    stages, hidden, classes = ((8, 16), 32, 10) if tiny else ((64, 128, 256, 512, 512), 4096, 1000)
    layers: list[nn.Module] = []
    channels = 3
    for width in stages:
        for _ in range(2):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
        layers.append(nn.MaxPool2d(2, 2))
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(7), nn.Flatten(),
        nn.Linear(channels * 49, hidden), nn.ReLU(inplace=True), nn.Dropout(),
        nn.Linear(hidden, hidden), nn.ReLU(inplace=True), nn.Dropout(),
        nn.Linear(hidden, classes),
    )  # fmt: skip


class DenseLayer(nn.Module):
    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(inputs), nn.ReLU(inplace=True), nn.Conv2d(inputs, 4 * growth, 1, bias=False),
            nn.BatchNorm2d(4 * growth), nn.ReLU(inplace=True), nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, self.body(x)], 1)


def densenet121(tiny: bool = False) -> nn.Module:
    blocks, growth, classes = ((2, 2), 4, 10) if tiny else ((6, 12, 24, 16), 32, 1000)
    channels = 2 * growth
    layers = [*conv_bn(3, channels, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    for stage, count in enumerate(blocks):
        for _ in range(count):
            layers.append(DenseLayer(channels, growth))
            channels += growth
        if stage < len(blocks) - 1:
            halve = nn.Conv2d(channels, channels // 2, 1, bias=False)
            layers += [nn.BatchNorm2d(channels), nn.ReLU(inplace=True), halve, nn.AvgPool2d(2, 2)]
            channels //= 2
    head = [nn.BatchNorm2d(channels), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, *head, nn.Linear(channels, classes))


class TransformerBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        split = (batch, tokens, self.heads, width // self.heads)
        q, k, v = (part.view(split).transpose(1, 2) for part in self.qkv(self.norm1(x)).split(width, dim=2))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.mlp(self.norm2(x))


class Gpt2(nn.Module):
    def __init__(self, layers: int, heads: int, width: int, tokens: int, vocabulary: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(tokens, width)
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.register_buffer("positions", torch.arange(tokens))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.token(x) + self.position(self.positions))))


GPT2_SIZE = {"layers": 12, "heads": 12, "width": 768, "tokens": 1024, "vocabulary": 50257}
GPT2_TINY = {"layers": 2, "heads": 2, "width": 32, "tokens": 16, "vocabulary": 100}


def gpt2(tiny: bool = False) -> nn.Module:
    return Gpt2(**(GPT2_TINY if tiny else GPT2_SIZE))


MODELS: dict[str, Callable[[bool], nn.Module]] = {
    "resnet50": resnet50, "vgg13": vgg13, "densenet121": densenet121, "gpt2": gpt2,
}  # fmt: skip

#: Two batch sizes per model. The CNNs use the sizes of TrioSim's Figure 6, which take about 40 GB.
BATCHES = {"resnet50": (128, 256), "vgg13": (128, 256), "densenet121": (128, 256), "gpt2": (4, 8)}
TINY_BATCHES = (4, 6)


def training_step(name: str, batch: int, *, device: str = "cpu", tiny: bool = False) -> Callable[[], None]:
    """Return a callable that performs one training step of model ``name`` in float32 with Adam."""
    torch.manual_seed(0)
    model = MODELS[name](tiny).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    if name == "gpt2":
        size = GPT2_TINY if tiny else GPT2_SIZE
        data = torch.randint(0, size["vocabulary"], (batch, size["tokens"]), device=device)
        target = data.roll(-1, dims=1).flatten()
    else:
        side, classes = (32, 10) if tiny else (224, 1000)
        data = torch.randn(batch, 3, side, side, device=device)
        target = torch.randint(0, classes, (batch,), device=device)

    def step() -> None:
        optimizer.zero_grad()
        output = model(data)
        F.cross_entropy(output.flatten(0, -2), target).backward()
        optimizer.step()

    return step
