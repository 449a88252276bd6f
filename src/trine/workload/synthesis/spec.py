"""What a model file says: shapes of a transformer, or of a convolutional network of three families."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trine.errors import SpecError, nearest

TRANSFORMER, VGG, RESNET, DENSENET = "transformer", "vgg", "resnet", "densenet"
FAMILIES = (TRANSFORMER, VGG, RESNET, DENSENET)


@dataclass(frozen=True, kw_only=True, slots=True)
class Experts:
    """The experts of one mixture-of-experts layer: ``count`` feed-forward networks, ``top_k`` of them for a token."""

    count: int
    top_k: int
    ffn: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Transformer:
    """A decoder-only transformer.

    sequence: tokens of a sample unless asked otherwise. max_positions: rows of the table of learned positions; None
    with rotary ones. biases: of which linears ('none', 'qkv', 'all'; 'all' holds for norms too).
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    ffn: int
    vocab: int
    sequence: int
    norm: str = "rms"
    activation: str = "swiglu"
    biases: str = "none"
    max_positions: int | None = None
    tied_embeddings: bool = False
    qk_norm: bool = False
    experts: Experts | None = None
    parameters: int | None = None
    sources: Mapping[str, str] = field(default_factory=dict)

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
        attention += (self.qkv if self.biases != "none" else 0) + (hidden if biased else 0)
        if self.experts is None:
            mlp = (up + 1) * hidden * self.ffn + (up * self.ffn + hidden if biased else 0)
        else:
            mlp = self.experts.count * ((up + 1) * hidden * self.experts.ffn + hidden)
        tables = self.vocab * hidden * (1 if self.tied_embeddings else 2) + (self.max_positions or 0) * hidden
        return self.layers * (attention + mlp + 2 * norm) + tables + norm


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvNet:
    """A convolutional network as torchvision defines its family, for images of 3 x ``image`` x ``image``.

    vgg: ``stages`` are output channels of the convolutions between poolings. resnet: ``blocks`` a stage, of two
    convolutions or (``bottleneck``) three. densenet: layers a dense block in ``blocks``, ``growth``, ``initial``.
    """

    name: str
    family: str
    image: int = 224
    classes: int = 1000
    stages: tuple[tuple[int, ...], ...] = ()
    blocks: tuple[int, ...] = ()
    bottleneck: bool = False
    growth: int = 0
    initial: int = 64
    parameters: int | None = None
    sources: Mapping[str, str] = field(default_factory=dict)


ModelSpec = Transformer | ConvNet


def check_transformer(spec: Transformer, file: str) -> None:
    """Raise SpecError, naming the field, for shapes that no transformer can have."""
    checks = (
        ("kv_heads", spec.heads % spec.kv_heads == 0, f"must divide the {spec.heads} heads"),
        ("experts", spec.experts is None or spec.experts.top_k <= spec.experts.count, "top_k must be at most count"),
        ("experts", spec.experts is None or spec.activation == "swiglu", "experts must have the activation swiglu"),
        ("experts", spec.experts is None or spec.biases != "all", "experts have no biases: biases cannot be all"),
        ("qk_norm", not spec.qk_norm or spec.max_positions is None, "needs rotary positions"),
    )
    for name, holds, message in checks:
        if not holds:
            raise SpecError(message, file=file, field=name)
    if spec.parameters is not None and spec.parameters != spec.num_parameters:
        raise SpecError(
            f"says {spec.parameters:,}, but the shapes make {spec.num_parameters:,}", file=file, field="parameters"
        )


def check_family(family: object, file: str) -> str:
    """Return ``family`` if trine knows it; raises SpecError with the nearest name."""
    if family not in FAMILIES:
        raise SpecError(f"must be one of {', '.join(FAMILIES)}; got {str(family)[:40]!r}"
                        f"{nearest(str(family)[:80], FAMILIES)}", file=file, field="family")  # fmt: skip
    return str(family)
