"""Packed documents: samples that hold several documents, in which attention sees only its own document.

Each sample starts with a new document and is filled in order; its last document is cut at the sample's end, so that no
token is padding. A list of lengths starts again at its end, until its last sample is full. For a distribution, the
expected number of documents of each length is exact (a renewal process from the sample's start), so nothing is drawn.
All samples get the average mix, so that all micro-batches take equally long.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from trine.common.inputs import exists, read_text
from trine.common.units import whole_number
from trine.compute import kind_of
from trine.compute.documents import DOCUMENTS, PACKED_TOKENS, pairs_within
from trine.compute.kinds import family_of
from trine.errors import InputError
from trine.graph.workload import Workload

MAX_FILE_BYTES = 64 * 2**20
#: Longest document; the sequence limits it further.
MAX_LENGTH = 2**24
#: Numbers of tokens in samples of a distribution are fractions of this resolution.
_RESOLUTION = 10**6
#: More different lengths than this are joined, so many to a doubling; tokens and pairs of tokens stay the same.
MAX_LENGTHS, _PER_OCTAVE = 64, 8
_UNIFORM = "uniform:"
_FIELD = "documents"


@dataclass(frozen=True, slots=True)
class Documents:
    """Lengths of documents, in order. text: as requested; bounds: of a uniform distribution, in place of lengths."""

    text: str
    lengths: tuple[int, ...] = ()
    bounds: tuple[int, int] | None = None

    def tokens_by_length(self, sequence: int) -> dict[int, int]:
        """Return length -> tokens in pieces of this length, up to a common factor, in samples of ``sequence`` tokens.

        Raises InputError for a document that is longer than a sample.
        """
        longest = max(self.lengths) if self.bounds is None else self.bounds[1]
        if longest > sequence:
            raise InputError(
                f"{self.text[:60]}: a document of {longest} tokens does not fit a sequence of {sequence}: lengths are "
                f"1 to {sequence}", field=_FIELD,
            )  # fmt: skip
        tokens = _filled(self.lengths, sequence) if self.bounds is None else _expected(self.bounds, sequence)
        return tokens if len(tokens) <= MAX_LENGTHS else _joined(tokens)


def parse_documents(text: str) -> Documents:
    """Return the documents of ``LENGTH``, ``uniform:A:B`` or a file with one length per line (``#`` for comments).

    Raises InputError with the value and the allowed range.
    """
    if text.lower().startswith(_UNIFORM):
        ends = [_length(part, text) for part in text[len(_UNIFORM) :].split(":")]
        if len(ends) != 2 or ends[0] > ends[1]:
            raise InputError(f"uniform:A:B takes two lengths, A at most B; got {text[:60]!r}", field=_FIELD)
        return Documents(text, bounds=(ends[0], ends[1]))
    if whole_number(text) is not None or not exists(text):
        return Documents(text, (_length(text, text),))
    lines = read_text(text, MAX_FILE_BYTES, InputError).splitlines()
    lengths = []
    for number, line in enumerate(lines, start=1):
        if line.startswith("#"):
            continue
        length = whole_number(line.strip(), 1, MAX_LENGTH)
        if length is None:
            value = repr(line.strip()[:40]) if line.strip() else "an empty line"
            raise InputError(
                f"line {number}: a length is a whole number of 1 to the sequence, got {value}", file=text, field=_FIELD
            )
        lengths.append(length)
    if not lengths:
        raise InputError("holds no lengths: one whole number a line", file=text, field=_FIELD)
    return Documents(text, tuple(lengths))


def _length(text: str, whole: str) -> int:
    length = whole_number(text, 1, MAX_LENGTH)
    if length is None:
        raise InputError(
            f"takes a length from 1 to the sequence, uniform:A:B or a file of lengths; got {whole[:60]!r}", field=_FIELD
        )
    return length


def _filled(lengths: tuple[int, ...], sequence: int) -> dict[int, int]:
    """Return the tokens by length if samples are filled with ``lengths`` in order, until all have had their turn."""
    tokens: Counter[int] = Counter()
    place = number = 0
    while number < len(lengths) or place:
        piece = min(lengths[number % len(lengths)], sequence - place)
        tokens[piece] += piece
        place = (place + piece) % sequence
        number += 1
    return dict(sorted(tokens.items()))


def _expected(bounds: tuple[int, int], sequence: int) -> dict[int, int]:
    """Return the expected tokens by length for lengths that are uniform between ``bounds``.

    starts[x]: chance that a document starts at token x, the mean of starts[x - l] over all lengths l.
    """
    low, high = bounds
    chances, before = high - low + 1, [0.0, 1.0]  # before[x]: sum of starts up to x, exclusive
    for x in range(1, sequence):
        start = (before[max(x - low + 1, 0)] - before[max(x - high, 0)]) / chances
        before.append(before[-1] + start)
    tokens: dict[int, int] = {}
    for length in range(1, high + 1):
        whole = before[sequence - length + 1] / chances if length >= low else 0.0
        start = before[sequence - length + 1] - before[sequence - length]
        cut = start * (high - max(length, low - 1)) / chances
        if number := round(length * (whole + cut) * _RESOLUTION):
            tokens[length] = number
    return tokens


def _joined(tokens: Mapping[int, int]) -> dict[int, int]:
    """Return the tokens with similar lengths joined to their mean over tokens, which keeps the pairs of tokens."""
    groups: dict[int, list[int]] = {}
    for length, number in tokens.items():
        group = groups.setdefault(int(_PER_OCTAVE * math.log2(length)), [0, 0])
        group[0] += number
        group[1] += number * length
    joined: Counter[int] = Counter()
    for number, squares in groups.values():
        joined[round(squares / number)] += number
    return dict(joined)


def pack_documents(workload: Workload, documents: Documents, sequence: int) -> Workload:
    """Return the workload with attention within documents; unchanged if each sample is one document.

    Raises InputError without fused attention.
    """
    tokens = documents.tokens_by_length(sequence)
    if list(tokens) == [sequence]:
        return workload
    attributes = {DOCUMENTS: tuple(tokens.items()), PACKED_TOKENS: sequence}
    count, operators = 0, []
    for op in workload.operators:
        if family_of(kind_of(op)) == "attention":
            count += 1
            op = replace(op, attributes={**op.attributes, **attributes})
        operators.append(op)
    if not count:
        raise InputError(
            f"{workload.name} has no fused attention here: unfused attention computes the scores of whole samples, "
            "whatever their documents", field=_FIELD,
        )  # fmt: skip
    mean = sum(length * number for length, number in tokens.items()) / sum(tokens.values())
    share = float(pairs_within(attributes))
    text = (
        f"attention within packed documents ({documents.text}): a token's document has {mean:,.0f} of {sequence:,} "
        f"tokens on average, so attention has {share:.1%} of the FLOPs of one document (model FLOPs and MFU count all "
        "pairs of tokens within documents, without the causal mask); every sample has the average mix"
    )
    return replace(
        workload, operators=tuple(operators), assumptions=(*workload.assumptions, text),
        metadata={**workload.metadata, "documents": documents.text},
    )  # fmt: skip
