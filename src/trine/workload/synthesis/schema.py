"""What a model file holds. Imports pydantic, so it is itself imported only when a file is read."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from trine.spec import Spec
from trine.workload.synthesis.spec import ConvNet, Experts, Transformer

# Bounds that no published model comes near: a slip of the pen must not make gigabytes of operators.
Size = Annotated[int, Field(ge=1, le=10_000_000)]
Count = Annotated[int, Field(ge=1, le=10_000)]
Parameters = Annotated[int | None, Field(ge=1)]


class ExpertsFile(Spec):
    """Experts of a mixture-of-experts layer."""

    count: Count
    top_k: Count
    ffn: Size


class TransformerFile(Spec):
    """A decoder-only transformer."""

    family: Literal["transformer"]
    layers: Count
    hidden: Size
    heads: Count
    kv_heads: Count | None = None
    head_size: Count | None = None
    ffn: Size | None = None
    experts: ExpertsFile | None = None
    vocab: Size
    sequence: Size
    norm: Literal["rms", "layer"] = "rms"
    activation: Literal["swiglu", "gelu"] = "swiglu"
    biases: Literal["none", "qkv", "all"] = "none"
    max_positions: Size | None = None
    tied_embeddings: bool = False
    qk_norm: bool = False
    parameters: Parameters = None
    sources: dict[str, str] = Field(default_factory=dict)

    def spec(self, name: str) -> Transformer:
        """The frozen form, with what follows from other fields filled in. Raises ValueError where nothing follows."""
        if (self.ffn is None) == (self.experts is None):
            raise ValueError("give either ffn, or experts with an ffn of their own")
        if self.head_size is None and self.hidden % self.heads:
            raise ValueError(f"{self.heads} heads do not divide hidden {self.hidden}: give head_size")
        fields = self.model_dump(exclude={"family", "experts", "kv_heads", "head_size", "ffn"})
        experts = None if self.experts is None else Experts(**self.experts.model_dump())
        return Transformer(
            name=name,
            kv_heads=self.kv_heads or self.heads,
            head_size=self.head_size or self.hidden // self.heads,
            ffn=self.ffn or 0,
            experts=experts,
            **fields,
        )


class _ConvNetFile(Spec):
    image: Annotated[int, Field(ge=32, le=4096)] = 224
    classes: Size = 1000
    parameters: Parameters = None
    sources: dict[str, str] = Field(default_factory=dict)

    def spec(self, name: str) -> ConvNet:
        """The frozen form."""
        fields: dict[str, Any] = {key: _frozen(value) for key, value in self.model_dump().items()}
        return ConvNet(name=name, **fields)


class VggFile(_ConvNetFile):
    """Simonyan and Zisserman's networks, without batch normalisation."""

    family: Literal["vgg"]
    stages: Annotated[list[Annotated[list[Size], Field(min_length=1)]], Field(min_length=1, max_length=5)]


class ResnetFile(_ConvNetFile):
    """He et al.'s networks; the stride of a bottleneck is in its 3x3 convolution, as in torchvision."""

    family: Literal["resnet"]
    blocks: Annotated[list[Count], Field(min_length=4, max_length=4)]
    bottleneck: bool


class DensenetFile(_ConvNetFile):
    """Huang et al.'s networks."""

    family: Literal["densenet"]
    # Each layer reads all before it in its block; more than four blocks leave nothing of an image of 32 pixels.
    blocks: Annotated[list[Annotated[int, Field(ge=1, le=500)]], Field(min_length=1, max_length=4)]
    growth: Count
    initial: Count


FILES: dict[str, type[TransformerFile | VggFile | ResnetFile | DensenetFile]] = {
    "transformer": TransformerFile,
    "vgg": VggFile,
    "resnet": ResnetFile,
    "densenet": DensenetFile,
}


def _frozen(value: object) -> object:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value
