"""Attention within packed documents (THD, ``cu_seqlens``): the shares of lengths that an operator's attributes name.

A packed attention operator has the attributes ``documents``, pairs of a document's length and the tokens in documents
of this length, and ``packed_tokens``, the length of a whole sample. One kernel runs all documents, so the time of a
document is its share of a kernel that has only documents of its length and as many tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple

DOCUMENTS, PACKED_TOKENS = "documents", "packed_tokens"


class DocumentShare(NamedTuple):
    """Documents of one length. length: relative to the sample; tokens: their part of all tokens."""

    length: Fraction
    tokens: Fraction


def document_shares(attributes: Mapping[str, object]) -> tuple[DocumentShare, ...]:
    """Return the documents of an attention operator by length; empty for one document per sample."""
    pairs, whole = attributes.get(DOCUMENTS), attributes.get(PACKED_TOKENS)
    if not isinstance(pairs, tuple | list) or not isinstance(whole, int) or not pairs:
        return ()
    total = sum(tokens for _, tokens in pairs)
    return tuple(DocumentShare(Fraction(length, whole), Fraction(tokens, total)) for length, tokens in pairs)


def pairs_within(attributes: Mapping[str, object]) -> Fraction:
    """Return the pairs of tokens within documents, relative to all pairs of a sample."""
    shares = document_shares(attributes)
    if shares:
        return sum((share.length * share.tokens for share in shares), Fraction(0))
    return Fraction(1)
