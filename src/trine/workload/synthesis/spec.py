"""Shapes of a transformer, an encoder (BERT), an encoder-decoder (T5, FLAN-T5), or a convolutional network.

:mod:`trine.workload.synthesis.model_files` reads them from files.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from trine.common.schema import Field, OrNone

if TYPE_CHECKING:
    from trine.workload.architecture.model import Architecture

# Bounds far above all published models: a typing error must not make gigabytes of operators.
Size = Annotated[int, Field(ge=1, le=10_000_000)]
Count = Annotated[int, Field(ge=1, le=10_000)]
#: A size or count derived from other fields if it is 0.
DerivedSize = Annotated[Size, OrNone()]
DerivedCount = Annotated[Count, OrNone()]
Parameters = Annotated[int | None, Field(ge=1)]


def fill(model: object, **derived: int) -> None:
    """Set the fields of a frozen dataclass that are still 0 or None."""
    for name, value in derived.items():
        object.__setattr__(model, name, getattr(model, name) or value)


@dataclass(frozen=True, kw_only=True, slots=True)
class Bert:
    """BERT in pre-training (Devlin et al., 2019): norms after the additions, learned positions, two losses.

    sequence: default tokens per sample. max_positions, token_types: rows of the position and segment tables.
    next_sentence: whether a head on the pooled first token predicts if two sentences follow each other.
    """

    name: str
    layers: Count
    hidden: Size
    heads: Count
    ffn: Size
    vocab: Size
    sequence: Size
    max_positions: Size
    token_types: Count = 2
    next_sentence: bool = True
    parameters: Parameters = None
    sources: dict[str, str] = field(default_factory=dict)
    file: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if self.hidden % self.heads:
            raise ValueError(f"{self.heads} heads do not divide hidden {self.hidden}")
        if self.sequence > self.max_positions:
            raise ValueError(f"sequence {self.sequence} is above max_positions {self.max_positions}")

    @property
    def num_parameters(self) -> int:
        """Trained parameters, by formula: tables, layers, head of the masked tokens (its table is tied), pooler."""
        hidden, square = self.hidden, self.hidden**2 + self.hidden
        tables = (self.vocab + self.max_positions + self.token_types) * hidden + 2 * hidden
        layer = 4 * square + 2 * hidden * self.ffn + self.ffn + hidden + 4 * hidden
        masked = square + 2 * hidden + self.vocab
        pooled = square + 2 * hidden + 2 if self.next_sentence else 0
        return tables + self.layers * layer + masked + pooled

    @property
    def shapes(self) -> str:
        """The shapes in words."""
        return f"{self.layers} layers, hidden {self.hidden}, {self.heads} heads, encoder"


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderDecoder:
    """T5 (Raffel et al., 2020): an encoder, and a decoder whose layers also attend to the encoder's output.

    layers, decoder_layers: of each; equal by default. head_size: features per head; heads x head_size may differ from
    ``hidden``. sequence, target: default tokens per sample of encoder and decoder; equal by default. activation:
    ``relu``, or ``geglu`` with gate and up in one product. buckets: rows of the relative position table, one table for
    the encoder and one for the decoder. tied_embeddings: the head uses the token table.
    """

    name: str
    layers: Count
    decoder_layers: DerivedCount = 0
    hidden: Size
    heads: Count
    head_size: Count = 64
    ffn: Size
    vocab: Size
    sequence: Size
    target: DerivedSize = 0
    activation: Literal["relu", "geglu"] = "relu"
    buckets: Count = 32
    tied_embeddings: bool = True
    parameters: Parameters = None
    sources: dict[str, str] = field(default_factory=dict)
    file: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        fill(self, decoder_layers=self.layers, target=self.sequence)

    @property
    def attended(self) -> int:
        """Features of all heads together."""
        return self.heads * self.head_size

    @property
    def num_parameters(self) -> int:
        """Trained parameters, by formula; there are no biases."""
        hidden, attention = self.hidden, 4 * self.hidden * self.attended
        mlp = (3 if self.activation == "geglu" else 2) * hidden * self.ffn
        encoder, decoder = attention + mlp + 2 * hidden, 2 * attention + mlp + 3 * hidden
        tables = self.vocab * hidden * (1 if self.tied_embeddings else 2) + 2 * self.buckets * self.heads
        return self.layers * encoder + self.decoder_layers * decoder + tables + 2 * hidden

    @property
    def shapes(self) -> str:
        """The shapes in words."""
        return f"{self.layers} + {self.decoder_layers} layers, hidden {self.hidden}, {self.heads} heads"


@dataclass(frozen=True, kw_only=True, slots=True)
class Experts:
    """The experts of one mixture-of-experts layer: ``count`` feed-forward networks, ``top_k`` of them per token."""

    count: Count
    top_k: Count
    ffn: Size


@dataclass(frozen=True, kw_only=True, slots=True)
class Transformer:
    """A decoder-only transformer.

    sequence: default tokens per sample. max_positions: rows of the table of learned positions; None for rotary
    positions. max_context: tokens of the longest context of the published model, None if unknown. alibi: attention adds
    a bias that grows with the distance (Press et al., 2022) instead; its kernels make it, so it costs nothing more.
    embedding_norm: a norm follows the embedding. biases: linears with biases ('none', 'qkv', 'all'; 'all' includes
    norms). stored: the precision of stored weights, if not 16 bits, as in a quantization_config. file: named in errors.
    """

    name: str
    layers: Count
    hidden: Size
    heads: Count
    kv_heads: DerivedCount = 0
    head_size: DerivedCount = 0
    ffn: DerivedSize = 0
    experts: Experts | None = None
    vocab: Size
    sequence: Size
    norm: Literal["rms", "layer"] = "rms"
    activation: Literal["swiglu", "gelu"] = "swiglu"
    biases: Literal["none", "qkv", "all"] = "none"
    max_positions: Size | None = None
    max_context: Size | None = None
    alibi: bool = False
    embedding_norm: bool = False
    tied_embeddings: bool = False
    qk_norm: bool = False
    stored: str = ""
    parameters: Parameters = None
    sources: dict[str, str] = field(default_factory=dict)
    file: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if (not self.ffn) == (self.experts is None):
            raise ValueError("give either ffn or experts.ffn")
        if not self.head_size and self.hidden % self.heads:
            raise ValueError(f"{self.heads} heads do not divide hidden {self.hidden}: give head_size")
        fill(self, kv_heads=self.heads, head_size=self.hidden // self.heads, ffn=0)

    @property
    def rotates(self) -> bool:
        """Whether queries and keys are rotated by their positions."""
        return self.max_positions is None and not self.alibi

    @property
    def qkv(self) -> int:
        """Output features of the projection to queries, keys and values."""
        return (self.heads + 2 * self.kv_heads) * self.head_size

    @property
    def num_parameters(self) -> int:
        """Trained parameters, by formula."""
        hidden, attended, biased = self.hidden, self.heads * self.head_size, self.biases == "all"
        norm = hidden * (2 if self.norm == "layer" else 1)
        up = 2 if self.activation == "swiglu" else 1
        attention = hidden * self.qkv + attended * hidden + (2 * self.head_size if self.qk_norm else 0)
        qkv = self.qkv if self.biases != "none" else 0
        output = hidden if biased else 0
        attention += qkv + output
        if self.experts is None:
            mlp = (up + 1) * hidden * self.ffn + (up * self.ffn + hidden if biased else 0)
        else:
            mlp = self.experts.count * ((up + 1) * hidden * self.experts.ffn + hidden)
        tables = self.vocab * hidden * (1 if self.tied_embeddings else 2) + (self.max_positions or 0) * hidden
        norms = norm * (2 if self.embedding_norm else 1)
        return self.layers * (attention + mlp + 2 * norm) + tables + norms


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvNet:
    """A convolutional network from torchvision's definition of its family, for images of 3 x ``image`` x ``image``."""

    name: str
    image: Annotated[int, Field(ge=32, le=4096)] = 224
    classes: Size = 1000
    parameters: Parameters = None
    sources: dict[str, str] = field(default_factory=dict)
    file: str = field(default="", compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Vgg(ConvNet):
    """Simonyan and Zisserman's networks, without batch normalisation.

    stages: output channels of the convolutions between two poolings.
    """

    stages: Annotated[tuple[Annotated[tuple[Size, ...], Field(min_length=1)], ...], Field(min_length=1, max_length=5)]

    @property
    def shapes(self) -> str:
        """The shapes in words."""
        return f"{sum(map(len, self.stages))} convolutions"


@dataclass(frozen=True, kw_only=True, slots=True)
class Resnet(ConvNet):
    """He et al.'s networks; the stride of a bottleneck is in its 3x3 convolution, as in torchvision.

    blocks: per stage. A block has two convolutions, or three with ``bottleneck``; then the middle one has ``groups`` of
    ``width`` channels each in the first stage (ResNeXt). squeeze: squeeze-and-excitation divides the channels by this
    number; 0 for networks without it.
    """

    blocks: Annotated[tuple[Count, ...], Field(min_length=4, max_length=4)]
    bottleneck: bool
    groups: Count = 1
    width: Count = 64
    squeeze: Annotated[int, Field(ge=0, le=10_000)] = 0

    def __post_init__(self) -> None:
        if not self.bottleneck and (self.groups, self.width, self.squeeze) != (1, 64, 0):
            raise ValueError("groups, width and squeeze need blocks with a bottleneck")
        if self.squeeze > 256:
            raise ValueError(f"squeeze {self.squeeze} leaves no channel of the first stage's 256")

    @property
    def shapes(self) -> str:
        """The shapes in words."""
        grouped = f", {self.groups} groups of {self.width}" if self.groups > 1 else ""
        squeezed = f", squeeze and excitation 1/{self.squeeze}" if self.squeeze else ""
        return f"blocks {'-'.join(map(str, self.blocks))}{grouped}{squeezed}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Densenet(ConvNet):
    """Huang et al.'s networks. blocks: layers of each dense block."""

    # Each layer reads all earlier layers of its block; a fifth block would shrink an image of 32 pixels to nothing.
    blocks: Annotated[tuple[Annotated[int, Field(ge=1, le=500)], ...], Field(min_length=1, max_length=4)]
    growth: Count
    initial: Count

    @property
    def shapes(self) -> str:
        """The shapes in words."""
        return f"blocks {'-'.join(map(str, self.blocks))}"


Convolutional = Vgg | Resnet | Densenet
#: Models whose layers are stacks of one shape.
Stacked = Transformer | Bert | EncoderDecoder
ModelSpec: TypeAlias = "Stacked | Convolutional | Architecture"


def summary(spec: ModelSpec) -> dict[str, object]:
    """Return a model's entry in the list of models, as plain data."""
    if isinstance(spec, Transformer):
        parts = f"{spec.layers} layers, hidden {spec.hidden}, {spec.heads} heads"
        if spec.kv_heads != spec.heads:
            parts += f" ({spec.kv_heads} of keys and values)"
        if spec.experts is not None:
            parts += f", {spec.experts.top_k} of {spec.experts.count} experts"
    else:
        parts = spec.shapes
    if isinstance(spec, ConvNet):
        return {"name": spec.name, "parameters": spec.parameters, "sequence": None, "shapes": parts}
    return {"name": spec.name, "parameters": spec.num_parameters, "sequence": spec.sequence, "shapes": parts}
