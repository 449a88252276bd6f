"""Tables of one attention layer's time: decode over sequences and mean reach, prefill over pairs or tokens.

The *reach* of a decode is the number of keys that its query reads: its context, or less behind a window or an indexer.
A table holds logarithms of times over octaves of both axes, and interpolates between them.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import replace

import numpy as np

from trine.common.arrays import Float64
from trine.inference.steps import PromptChunk, StepTimer
from trine.workload.architecture.blocks import Attention, CompressedAttention, LatentAttention, Mixer

#: Largest context and number of sequences of a table.
MAX_CONTEXT, MAX_SEQUENCES = 1 << 22, 8_192
#: Grid points per octave. Up to this number of sequences, every number is a grid point.
_PER_OCTAVE, _EACH_SEQUENCE = 8, 16
#: Pairs of query and key of the longest chunk after the longest context: 65,536 tokens after 4,194,304.
_PAIR_OCTAVES = 39
#: A window that no context leaves.
_NO_WINDOW = 1 << 40
Softmax = Attention | LatentAttention | CompressedAttention


class MixerTable:
    """Times of one attention layer in microseconds, interpolated."""

    def __init__(self, timer: StepTimer, mixer: Mixer) -> None:
        self._timer, self._mixer = timer, mixer
        self._plain = without_limits(mixer)
        self._has_pairs = isinstance(mixer, Softmax)
        self._sequences = _sequence_grid()
        self._decode = self._decode_grid()
        self._chunk_axis, self._chunk_logs = self._prefill_curve()
        self._key_axis, self._key_logs = self._indexer_curve()

    def decode_us(self, contexts: Float64) -> float:
        """Return the time for one token of each sequence, over ``contexts`` (sequences,) cached tokens."""
        count = len(contexts)
        reach = 1.0
        if self._has_pairs:
            reach = max(1.0, float(decode_reach(self._mixer, contexts).sum()) / count)
        time_us = math.exp(self._interpolated(math.log2(count), math.log2(reach)))
        if len(self._key_axis):
            keys = math.log2(max(1.0, float(contexts.sum())))
            time_us += math.exp(float(np.interp(keys, self._key_axis, self._key_logs)))
        return time_us

    def prefill_us(self, new: Float64, cached: Float64) -> float:
        """Return the time of chunks of ``new`` (chunks,) tokens after ``cached`` (chunks,) ones."""
        amounts = prefill_pairs(self._mixer, new, cached) if self._has_pairs else new
        logs = np.interp(np.log2(np.maximum(amounts, 0.5)), self._chunk_axis, self._chunk_logs)
        return float(np.exp(logs).sum())

    def _interpolated(self, sequences: float, reach: float) -> float:
        """Return the log of a decode's time at log2 of sequences and reach."""
        axis = self._sequences
        row = min(bisect_right(axis, sequences) - 1, len(axis) - 2)
        a = (sequences - axis[row]) / (axis[row + 1] - axis[row])
        place = reach * _PER_OCTAVE
        column = min(int(place), len(self._decode[0]) - 2) if self._has_pairs else 0
        b = place - column
        low, high = self._decode[row], self._decode[row + 1]
        return (1 - a) * ((1 - b) * low[column] + b * low[column + 1]) + a * (
            (1 - b) * high[column] + b * high[column + 1]
        )

    # Computation of the tables --------------------------------------------------------------------------------------

    def _decode_grid(self) -> list[list[float]]:
        """Return logs of decode times, by sequences and by reach; a recurrence has two equal columns."""
        octaves = math.log2(MAX_CONTEXT) if self._has_pairs else 1 / _PER_OCTAVE
        reaches = 2.0 ** (np.arange(octaves * _PER_OCTAVE + 1) / _PER_OCTAVE)
        return [
            [math.log(self._timer.decode_us(self._plain, round(2**count), float(reach))) for reach in reaches]
            for count in self._sequences
        ]

    def _prefill_curve(self) -> tuple[Float64, Float64]:
        """Return log2 of pairs (tokens of a recurrence), and logs of the time of a chunk without cached tokens."""
        octaves = _PAIR_OCTAVES if self._has_pairs else 16
        axis = np.arange(-_PER_OCTAVE, octaves * _PER_OCTAVE + 1) / _PER_OCTAVE
        amounts = 2.0**axis
        tokens = np.sqrt(2 * amounts) if self._has_pairs else amounts
        # Fractions of a token give the grid points between whole ones.
        times = [self._timer.prefill_us(self._plain, PromptChunk(new, 0)) for new in tokens.tolist()]
        return axis, np.log(times)

    def _indexer_curve(self) -> tuple[Float64, Float64]:
        """Return log2 of the cached tokens of all sequences, and logs of the indexer's time; empty without one."""
        mixer = self._mixer
        if not isinstance(mixer, Softmax) or not self._timer.indexer_us(mixer, 1, 1.0):
            return np.array([]), np.array([])
        octaves = math.log2(MAX_CONTEXT * MAX_SEQUENCES)
        axis = np.arange(octaves * _PER_OCTAVE + 1) / _PER_OCTAVE
        return axis, np.log([self._timer.indexer_us(mixer, 1, float(keys)) for keys in 2.0**axis])


def _sequence_grid() -> list[float]:
    """Return log2 of the numbers of sequences of a table: whole numbers, sparser as they grow."""
    counts = set(range(1, _EACH_SEQUENCE + 1))
    octaves = int(math.log2(MAX_SEQUENCES))
    counts |= {round(2 ** (step / _PER_OCTAVE)) for step in range(4 * _PER_OCTAVE, octaves * _PER_OCTAVE + 1)}
    return [math.log2(count) for count in sorted(counts)]


def without_limits(mixer: Mixer) -> Mixer:
    """Return an attention whose decodes reach their whole context: without window, compression and indexer."""
    if isinstance(mixer, Attention):
        return replace(mixer, window=0, indexer=None)
    if isinstance(mixer, LatentAttention):
        return replace(mixer, indexer=None)
    if isinstance(mixer, CompressedAttention):
        return replace(mixer, window=_NO_WINDOW, ratio=0, indexer=None)
    return mixer


def decode_reach(mixer: Mixer, contexts: Float64) -> Float64:
    """Return the keys that each decode reads, as :meth:`StepTimer.decode_us` counts them."""
    if isinstance(mixer, Attention | LatentAttention):
        window = 0 if isinstance(mixer, LatentAttention) else mixer.window
        limit = window if mixer.indexer is None else mixer.indexer.top_k
        return np.minimum(contexts, limit) if limit else contexts
    if isinstance(mixer, CompressedAttention):
        return np.asarray(np.minimum(contexts, mixer.window) + compressed_keys(mixer, contexts))
    return np.zeros(len(contexts))


def prefill_pairs(mixer: Mixer, new: Float64, cached: Float64) -> Float64:
    """Return the pairs of query and key of each chunk, as :meth:`StepTimer.prefill_us` counts them."""
    if isinstance(mixer, LatentAttention):
        reach = cached if mixer.indexer is None else np.minimum(cached, mixer.indexer.top_k)
        return np.asarray(new * reach + new * new / 2)
    pairs = new * cached + new * new / 2
    if isinstance(mixer, CompressedAttention):
        return np.asarray(np.minimum(pairs, new * (mixer.window + np.floor(compressed_keys(mixer, new + cached)))))
    if not isinstance(mixer, Attention):
        return new
    window = mixer.window if mixer.indexer is None else mixer.indexer.top_k
    return np.minimum(pairs, new * window) if window else pairs


def compressed_keys(mixer: CompressedAttention, contexts: Float64) -> Float64:
    """Return the compressed keys that a query reads after ``contexts`` tokens."""
    if not mixer.ratio:
        return np.zeros(len(contexts))
    keys = contexts / mixer.ratio
    return keys if mixer.indexer is None else np.minimum(keys, mixer.indexer.top_k)
