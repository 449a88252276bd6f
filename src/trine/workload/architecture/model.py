"""A model as layers over blocks: its parameters by module, its FLOPs, and what it keeps for each token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, Literal

from trine.common.schema import Field
from trine.workload.architecture.blocks import Attention, FeedForward, Mixer, Number, Size
from trine.workload.architecture.weights import Weight, matrix, num_active_elements, num_elements, product_flops, vector

#: Layers of a model; more are probably a mistake.
MAX_LAYERS = 10_000
#: Norms of a network beside another one: one before it, and one after each of the two.
BESIDE_NORMS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """One layer: a mixer of tokens, a feed-forward network, or both, each with norms and a residual.

    cross: attention to the output of an encoder. norms: of the hidden features: none, one before each block, or one
    before and one after it; :data:`BESIDE_NORMS` more with ``beside``; 1 or 2 if parallel. parallel: both blocks read
    the same input, through one norm or one each. streams: residual streams of hyper-connections (Zhu et al., 2024;
    DeepSeek-V4): each block reads a mixture of them and writes to all; 1: a plain residual. reads_earlier: attention
    over the outputs of earlier layers replaces the residual (Kimi K3). beside: a network beside the feed-forward
    network, with norms of its own (Gemma 4). scales: two learned scales of the branches (vision towers).
    """

    mixer: Mixer | None = None
    cross: Mixer | None = None
    feed_forward: FeedForward | None = None
    beside: FeedForward | None = None
    norms: Annotated[int, Field(ge=0, le=16)] = 2
    norm: Literal["rms", "layer", "plain"] = "rms"
    parallel: bool = False
    streams: Annotated[int, Field(ge=1, le=16)] = 1
    reads_earlier: bool = False
    scales: bool = False

    def __post_init__(self) -> None:
        if not self.num_blocks:
            raise ValueError("a layer needs a block: give mixer or feed_forward")
        if self.beside is not None and self.feed_forward is None:
            raise ValueError("beside needs a network to stand beside: give feed_forward")
        if self.parallel and (self.mixer is None or self.feed_forward is None):
            raise ValueError("parallel needs both mixer and feed_forward")
        if self.parallel and (self.cross is not None or self.beside is not None or self.streams > 1):
            raise ValueError("parallel excludes cross, beside and more than one of streams")
        further = 0 if self.beside is None else BESIDE_NORMS
        allowed = [each * self.num_blocks + further for each in range(3)]
        if self.parallel:
            allowed = [1, 2]
        if self.norms not in allowed:
            raise ValueError(f"norms must be one of {', '.join(map(str, allowed))} for these blocks; got {self.norms}")

    @property
    def num_blocks(self) -> int:
        """Blocks with a residual."""
        return sum(block is not None for block in (self.mixer, self.cross, self.feed_forward))

    @property
    def norms_each(self) -> int:
        """Norms of each block of a layer that is not parallel: 0, 1 (before it) or 2 (before and after it)."""
        return (self.norms - (0 if self.beside is None else BESIDE_NORMS)) // self.num_blocks

    def weights(self, hidden: int) -> dict[str, list[Weight]]:
        """Return the weights by module: ``attention`` (or another mixer), ``mlp`` or ``experts``, ``norms``."""
        found: dict[str, list[Weight]] = {}
        if self.mixer is not None:
            found[module_of(self.mixer)] = self.mixer.weights(hidden)
        if self.cross is not None:
            found["cross attention"] = self.cross.weights(hidden)
        for network in (self.feed_forward, self.beside):
            if network is not None:
                found.setdefault(module_of(network), []).extend(network.weights(hidden))
        found["norms"] = [weight for _ in range(self.norms) for weight in norm_weights("norm", self.norm, hidden)]
        branches = (self.mixer is not None) + (self.feed_forward is not None)
        if self.streams > 1:
            found["residual"] = [w for _ in range(branches) for w in stream_weights(self.streams, hidden)]
        if self.reads_earlier:
            found["residual"] = [vector("query", hidden), vector("norm", hidden)] * branches
        if self.scales:
            found["residual"] = [vector("scale", hidden), vector("scale", hidden)]
        return found


def module_of(block: Mixer | FeedForward) -> str:
    """Return the name of a block's module: ``attention``, ``linear attention``, ``mamba``, ``mlp`` or ``experts``."""
    return _MODULES[type(block).__name__]


_MODULES = {
    "Attention": "attention", "LatentAttention": "attention", "CompressedAttention": "attention",
    "LinearAttention": "linear attention", "KimiDelta": "linear attention", "Mamba2": "mamba", "Mamba": "mamba",
    "Mlp": "mlp", "Mixture": "experts",
}  # fmt: skip


def norm_weights(name: str, kind: str, features: int) -> list[Weight]:
    """Return the weights of a norm: one vector, two with a bias (``layer``), or none (``plain``)."""
    vectors = {"rms": 1, "layer": 2, "plain": 0}[kind]
    return [vector(name, features)] * vectors


def stream_weights(streams: int, hidden: int) -> list[Weight]:
    """Return the weights of a hyper-connection of one block: shares to read, to write, and among the streams."""
    shares = streams * streams + 2 * streams
    return [matrix("shares", shares, streams * hidden), vector("base", shares), vector("scale", 3)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Tower:
    """An encoder beside the language model, such as a vision tower.

    further: other trained tensors by name, such as patch embedding, positions and projector.
    tokens: of one image, for the time of its products; 0: unknown.
    """

    hidden: Size
    layers: tuple[Layer, ...]
    further: dict[str, tuple[int, ...]] = field(default_factory=dict)
    tokens: Number = 0

    def weights(self) -> list[Weight]:
        """Return all weights."""
        found = [weight for layer in self.layers for part in layer.weights(self.hidden).values() for weight in part]
        return found + [vector(name, *shape) for name, shape in self.further.items()]


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """A model of tokens: embedding, layers, a final norm and a head.

    positions: rows of a table of learned positions. token_types: rows of a table of segments. tied_embeddings: the head
    uses the embedding. head: whether there is one. embedding_norm: a norm follows the embedding. sequence: default
    tokens per sample; max_positions: of the published model. max_context: its longest context in tokens, 0 if unknown.
    further: other trained tensors by name. towers: encoders
    beside the model. predicted: layers that predict further tokens (multi-token prediction), which the published count
    of parameters leaves out. stored: the precision of stored weights, if not 16 bits. notes: facts left out.
    """

    name: str
    hidden: Size
    vocab: Size
    layers: tuple[Layer, ...]
    sequence: Size
    max_positions: Number = 0
    max_context: Number = 0
    norm: Literal["rms", "layer", "plain"] = "rms"
    final_norm: bool = True
    positions: Number = 0
    token_types: Number = 0
    embedding_norm: bool = False
    tied_embeddings: bool = False
    head: bool = True
    streams: Annotated[int, Field(ge=1, le=16)] = 1
    predicted: tuple[Layer, ...] = ()
    further: dict[str, tuple[int, ...]] = field(default_factory=dict)
    towers: dict[str, Tower] = field(default_factory=dict)
    stored: str = ""
    parameters: Annotated[int | None, Field(ge=1)] = None
    sources: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    file: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not 1 <= len(self.layers) <= MAX_LAYERS:
            raise ValueError(f"a model has 1 to {MAX_LAYERS:,} layers; got {len(self.layers):,}")
        for number, layer in enumerate(self.layers):
            if layer.streams != self.streams:
                raise ValueError(f"streams of layers[{number}] are {layer.streams}, and {self.streams} of the model")

    def modules(self) -> dict[str, list[Weight]]:
        """Return all weights of the model by module, without the layers for multi-token prediction."""
        found: dict[str, list[Weight]] = {"embedding": [vector("table", self.vocab, self.hidden)]}
        if self.positions:
            found["embedding"].append(vector("positions", self.positions, self.hidden))
        if self.token_types:
            found["embedding"].append(vector("token_types", self.token_types, self.hidden))
        if self.embedding_norm:
            found["embedding"] += norm_weights("norm", self.norm, self.hidden)
        for layer in self.layers:
            for module, weights in layer.weights(self.hidden).items():
                found.setdefault(module, []).extend(weights)
        if self.final_norm:
            found["norms"] += norm_weights("final_norm", self.norm, self.hidden)
        if self.streams > 1:
            mixed = [matrix("shares", self.streams, self.streams * self.hidden), vector("base", self.streams)]
            found.setdefault("residual", []).extend([*mixed, vector("scale", 1)])
        if self.head and not self.tied_embeddings:
            found["head"] = [matrix("head", self.vocab, self.hidden)]
        if self.further:
            found["other"] = [vector(name, *shape) for name, shape in self.further.items()]
        for name, tower in self.towers.items():
            found[name] = tower.weights()
        return {module: weights for module, weights in found.items() if weights}

    @property
    def num_parameters(self) -> int:
        """Trained parameters; tied tensors count once, and layers for multi-token prediction do not."""
        return sum(map(num_elements, self.modules().values()))

    @property
    def num_active(self) -> int:
        """Parameters that one token uses: without the experts that the router does not choose."""
        return sum(map(num_active_elements, self.modules().values()))

    def forward_flops(self, tokens: int, *, is_eager: bool = False) -> int:
        """Return the FLOPs of the forward pass of one sample of ``tokens`` tokens, with the head on each token.

        is_eager: attention of all pairs of tokens, as unfused code computes it; else of those that a query sees.
        """
        text = [weights for module, weights in self.modules().items() if module not in self.towers]
        flops = sum((product_flops(weights) for weights in text), Fraction(0))
        if self.head and self.tied_embeddings:
            flops += 2 * self.vocab * self.hidden
        context = sum(mixer.context_flops(tokens, is_eager=is_eager) for mixer in self.mixers())
        return int(flops * tokens) + context

    def mixers(self) -> Iterator[Mixer]:
        """Yield the mixer of each layer that has one."""
        return (layer.mixer for layer in self.layers if layer.mixer is not None)

    def cache_elements(self, tokens: int) -> int:
        """Return the elements that all layers keep of one sample of ``tokens`` tokens."""
        return sum(mixer.cache().elements(tokens) for mixer in self.mixers())

    @property
    def cache_per_token(self) -> Fraction:
        """Elements that one more token adds beyond all windows."""
        unbounded = [c.per_token for m in self.mixers() if not (c := m.cache()).window]
        return sum(unbounded, Fraction(0))

    @property
    def shapes(self) -> str:
        """The shapes in words."""
        kinds = ", ".join(f"{count} {name}" for name, count in self._kinds().items())
        return f"{len(self.layers)} layers ({kinds}), hidden {self.hidden}"

    def _kinds(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for layer in self.layers:
            for block in (layer.mixer, layer.feed_forward):
                if block is not None:
                    name = _kind_words(block)
                    counts[name] = counts.get(name, 0) + 1
        return counts


def _kind_words(block: Mixer | FeedForward) -> str:
    if isinstance(block, Attention) and block.window:
        return f"attention in a window of {block.window}"
    return {
        "LatentAttention": "latent attention", "CompressedAttention": "compressed attention", "KimiDelta": "Kimi delta",
        "Mixture": "mixtures of experts",
    }.get(type(block).__name__, module_of(block))  # fmt: skip
