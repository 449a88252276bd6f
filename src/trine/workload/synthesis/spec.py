"""Model files (presets/models/*.yaml, or by path): shapes of a transformer, or of a convolutional network.

Those of encoders and encoder-decoders are in :mod:`trine.workload.synthesis.encoder_spec`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from trine.errors import SpecError, nearest
from trine.inputs import PRESETS, preset_names
from trine.schema import Field, Spec
from trine.workload.synthesis.encoder_spec import (
    BERT,
    T5,
    Bert,
    BertFile,
    Count,
    EncoderDecoder,
    Parameters,
    Size,
    T5File,
)

TRANSFORMER, VGG, RESNET, DENSENET = "transformer", "vgg", "resnet", "densenet"
FAMILIES = (TRANSFORMER, BERT, T5, VGG, RESNET, DENSENET)


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
    with rotary ones. biases: of which linears ('none', 'qkv', 'all'; 'all' holds for norms too). file: for errors.
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
    file: str = field(default="", compare=False)

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
    convolutions or (``bottleneck``) three, of which the middle one has ``groups`` of ``width`` channels each in the
    first stage (ResNeXt); ``squeeze``: by how much squeeze-and-excitation narrows the channels, 0 without. densenet:
    layers a dense block in ``blocks``, ``growth``, ``initial``.
    """

    name: str
    family: str
    image: int = 224
    classes: int = 1000
    stages: tuple[tuple[int, ...], ...] = ()
    blocks: tuple[int, ...] = ()
    bottleneck: bool = False
    groups: int = 1
    width: int = 64
    squeeze: int = 0
    growth: int = 0
    initial: int = 64
    parameters: int | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    file: str = field(default="", compare=False)


ModelSpec = Transformer | Bert | EncoderDecoder | ConvNet


def check_transformer(spec: Transformer, file: str) -> None:
    """Raise SpecError, naming the field, for shapes that no transformer can have."""
    checks = (
        ("kv_heads", spec.heads % spec.kv_heads == 0, f"must divide the {spec.heads} heads"),
        ("experts", spec.experts is None or spec.experts.top_k <= spec.experts.count, "top_k must be at most count"),
        ("experts", spec.experts is None or spec.activation == "swiglu", "experts must have the activation swiglu"),
        ("experts", spec.experts is None or spec.biases != "all", "experts have no biases: biases cannot be all"),
        ("qk_norm", not spec.qk_norm or spec.max_positions is None, "needs rotary positions"),
        ("sequence", spec.sequence <= (spec.max_positions or spec.sequence), "must be at most max_positions"),
    )
    for name, holds, message in checks:
        if not holds:
            raise SpecError(message, file=file, field=name)


def check_parameters(spec: Transformer | Bert | EncoderDecoder, file: str) -> None:
    """Raise SpecError where the file says another number of parameters than its shapes make."""
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
    groups: Count = 1
    width: Count = 64
    squeeze: Annotated[int, Field(ge=0, le=10_000)] = 0

    def spec(self, name: str) -> ConvNet:
        """The frozen form. Raises ValueError for groups without bottlenecks, and a squeeze that leaves no channel."""
        if not self.bottleneck and (self.groups, self.width, self.squeeze) != (1, 64, 0):
            raise ValueError("groups, width and squeeze need blocks with a bottleneck")
        if self.squeeze > 256:
            raise ValueError(f"squeeze {self.squeeze} leaves nothing of the 256 channels of the first stage")
        return _ConvNetFile.spec(self, name)


class DensenetFile(_ConvNetFile):
    """Huang et al.'s networks."""

    family: Literal["densenet"]
    # Each layer reads all before it in its block; more than four blocks leave nothing of an image of 32 pixels.
    blocks: Annotated[list[Annotated[int, Field(ge=1, le=500)]], Field(min_length=1, max_length=4)]
    growth: Count
    initial: Count


FILES: dict[str, type[TransformerFile | BertFile | T5File | VggFile | ResnetFile | DensenetFile]] = {
    "transformer": TransformerFile,
    "bert": BertFile,
    "t5": T5File,
    "vgg": VggFile,
    "resnet": ResnetFile,
    "densenet": DensenetFile,
}


def _frozen(value: object) -> object:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value


_FOLDER = PRESETS / "models"
_SUFFIXES = (".yaml", ".yml", ".json")


@cache
def known_models() -> tuple[str, ...]:
    """Names of the models that come with trine, sorted."""
    return preset_names(_FOLDER)


def load_model(name_or_path: str | os.PathLike[str]) -> ModelSpec:
    """Return a model preset by its name, or read a model file (a path ends in .yaml, .yml or .json).

    Raises
    ------
    SpecError: unknown name (names the nearest), or a file with a fault (names file and field).
    """
    text = os.fspath(name_or_path)
    if text.endswith(_SUFFIXES):
        return _read(Path(text))
    if text not in known_models():
        raise SpecError(f"unknown model {text[:80]!r} (a file ends in .yaml){nearest(text.lower(), known_models())}")
    return _preset(text)


@cache
def _preset(name: str) -> ModelSpec:
    return _read(_FOLDER / f"{name}.yaml")


def _read(path: Path) -> ModelSpec:
    from trine.spec import check, load_mapping

    data = load_mapping(path)
    family = data.get("family") if isinstance(data, Mapping) else None
    model = check(FILES[check_family(family, str(path))], data, path)
    try:
        spec = replace(model.spec(path.stem), file=str(path))
    except ValueError as error:
        raise SpecError(str(error), file=path) from None
    if isinstance(spec, Transformer):
        check_transformer(spec, str(path))
    if not isinstance(spec, ConvNet):
        check_parameters(spec, str(path))
    return spec


def summary(spec: ModelSpec) -> dict[str, object]:
    """What a list of models shows: plain data."""
    if isinstance(spec, Transformer):
        parts = f"{spec.layers} layers, hidden {spec.hidden}, {spec.heads} heads"
        if spec.kv_heads != spec.heads:
            parts += f" ({spec.kv_heads} of keys and values)"
        if spec.experts is not None:
            parts += f", {spec.experts.top_k} of {spec.experts.count} experts"
        return {"name": spec.name, "parameters": spec.num_parameters, "sequence": spec.sequence, "shapes": parts}
    if isinstance(spec, Bert | EncoderDecoder):
        return {
            "name": spec.name, "parameters": spec.num_parameters, "sequence": spec.sequence, "shapes": spec.shapes,
        }  # fmt: skip
    shapes = (
        f"blocks {'-'.join(map(str, spec.blocks))}" if spec.blocks else f"{sum(map(len, spec.stages))} convolutions"
    )
    if spec.groups > 1:
        shapes += f", {spec.groups} groups of {spec.width}"
    if spec.squeeze:
        shapes += f", squeeze and excitation 1/{spec.squeeze}"
    return {"name": spec.name, "parameters": spec.parameters, "sequence": None, "shapes": shapes}
