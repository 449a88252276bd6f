"""Model files of encoders (family ``bert``) and encoder-decoders (family ``t5``: T5 and FLAN-T5)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from trine.common.schema import Field, OrNone

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
