"""The vocabulary of a model, padded as training software pads it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from trine.software.profile import Software

if TYPE_CHECKING:
    from trine.workload.architecture.model import Architecture
    from trine.workload.synthesis.spec import Stacked

AnyModel = TypeVar("AnyModel", bound="Stacked | Architecture")


def with_padded_vocabulary(model: AnyModel, software: Software | None) -> AnyModel:
    """Return the model with as many rows of vocabulary as the software allocates; the stated parameters grow alike.

    Megatron-LM pads tables and logits (megatron/training/tokenizer/tokenizer.py, _vocab_size_with_padding), because
    products with odd rows are slow. Tensor parallelism pads further (:mod:`trine.parallel.splits`).
    """
    multiple = 1 if software is None else software.operators.vocabulary_multiple
    rows = -(-model.vocab // multiple) * multiple
    if rows == model.vocab:
        return model
    padded = replace(model, vocab=rows, parameters=None)
    if model.parameters is None:
        return padded
    return replace(padded, parameters=model.parameters + padded.num_parameters - model.num_parameters)


def padding_words(model: Stacked | Architecture, software: Software | None) -> tuple[str, ...]:
    """Return the assumption about padded rows, or none. model: as published, without padding."""
    padded = with_padded_vocabulary(model, software)
    if padded.vocab == model.vocab:
        return ()
    assert software is not None
    text = f"the vocabulary of {model.vocab:,} is padded to {padded.vocab:,}, a multiple of "
    return (f"{text}{software.operators.vocabulary_multiple}, as {software.name} does",)
