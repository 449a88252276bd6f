"""Steps of one deployment by tables: any mix of prompt chunks and decodes in less than 0.1 ms.

Times that depend on the tokens alone are the timer's own curves, with the same points. Attention is interpolated
(:mod:`trine.inference.attention_tables`). :meth:`StepTable.direct_us` is the same step without tables.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from trine.common.arrays import Float64
from trine.errors import InputError
from trine.inference.attention_tables import (
    MAX_CONTEXT,
    MAX_SEQUENCES,
    MixerTable,
    Softmax,
    decode_reach,
    without_limits,
)
from trine.inference.products import TOKENS
from trine.inference.steps import PromptChunk, StepTimer

#: Largest tokens of a step.
MAX_STEP_TOKENS = int(TOKENS[-1])
#: Largest deviation of a table from the direct computation, as a share of the step's time.
TABLE_ERROR = 0.005


@dataclass(frozen=True, slots=True)
class StepBatch:
    """Work of one step: ``new`` tokens after ``cached`` ones of each prompt chunk, and the ``contexts`` of decodes."""

    new: Float64
    cached: Float64
    contexts: Float64

    @property
    def tokens(self) -> float:
        """Tokens that the layers process."""
        return float(self.new.sum()) + len(self.contexts)

    @property
    def longest(self) -> float:
        """Tokens of the longest sequence, the new ones included."""
        longest = 0.0
        if len(self.new):
            longest = float((self.new + self.cached).max())
        if len(self.contexts):
            longest = max(longest, float(self.contexts.max()) + 1)
        return longest

    @property
    def rows(self) -> int:
        """Tokens that the head processes."""
        return len(self.new) + len(self.contexts)


class StepTable:
    """Times of the steps of one deployment, from tables that are computed once."""

    def __init__(self, timer: StepTimer) -> None:
        self.timer = timer
        self._points: list[float] = TOKENS.tolist()
        self._tokens_us: list[float] = timer.tokens_us().tolist()
        self._experts_us: list[float] = timer.all_experts_us().tolist()
        self._head_us: list[float] = timer.head_us().tolist()
        self._attention = [(MixerTable(timer, mixer), count) for mixer, count in timer.mixers.items()]

    def us(self, batch: StepBatch) -> float:
        """Return microseconds of a step, within :data:`TABLE_ERROR` of :meth:`direct_us`."""
        tokens = self._layer_tokens(batch)
        gpu_us = self._at(self._tokens_us, tokens) + self._at(self._head_us, batch.rows)
        gpu_us += self._at(self._experts_us, min(tokens, batch.tokens + 1))
        for table, count in self._attention:
            if len(batch.contexts):
                gpu_us += count * table.decode_us(batch.contexts)
            if len(batch.new):
                gpu_us += count * table.prefill_us(batch.new, batch.cached)
        return gpu_us + self.timer.host_us(len(batch.contexts), len(batch.new), gpu_us)

    def _layer_tokens(self, batch: StepBatch) -> float:
        """Return the tokens that the layers process; decodes alone are padded to the size of a CUDA graph."""
        if len(batch.new):
            return batch.tokens
        return self.timer.deployment.engine.padded(len(batch.contexts))

    def direct_us(self, batch: StepBatch) -> float:
        """Return microseconds of a step without tables.

        Decodes of different contexts take the time of equal ones with the mean reach.
        """
        timer = self.timer
        tokens = self._layer_tokens(batch)
        gpu_us = float(np.interp(tokens, TOKENS, timer.tokens_us()))
        gpu_us += float(np.interp(min(tokens, batch.tokens + 1), TOKENS, timer.all_experts_us()))
        gpu_us += float(np.interp(batch.rows, TOKENS, timer.head_us()))
        for mixer, count in timer.mixers.items():
            decodes = len(batch.contexts)
            each = 0.0
            if decodes:
                reach = float(decode_reach(mixer, batch.contexts).mean())
                each += timer.decode_us(without_limits(mixer), decodes, reach)
                if isinstance(mixer, Softmax):
                    each += timer.indexer_us(mixer, decodes, float(batch.contexts.mean()))
            for new, cached in zip(batch.new.tolist(), batch.cached.tolist(), strict=True):
                each += timer.prefill_us(mixer, PromptChunk(int(new), int(cached)))
            gpu_us += count * each
        return gpu_us + timer.host_us(len(batch.contexts), len(batch.new), gpu_us)

    def _at(self, times: list[float], tokens: float) -> float:
        """Return a curve over :data:`TOKENS` at ``tokens``."""
        points = self._points
        low = min(bisect_right(points, tokens) - 1, len(points) - 2)
        share = (tokens - points[low]) / (points[low + 1] - points[low])
        return times[low] + share * (times[low + 1] - times[low])


def read_batch(prefill: object, decode: object) -> StepBatch:
    """Return the batch of ``prefill`` pairs (new, cached) and ``decode`` contexts.

    Raises InputError for other types, an empty step, and sizes beyond the tables.
    """
    chunks, contexts = _numbers(prefill, "prefill"), _numbers(decode, "decode")
    if chunks.size and (chunks.ndim != 2 or chunks.shape[1] != 2):
        raise InputError("takes pairs of new and cached tokens, such as [(512, 0)]", field="prefill")
    if contexts.ndim != 1:
        raise InputError("takes the cached tokens of each sequence, such as [1000, 2000]", field="decode")
    new, cached = (chunks[:, 0], chunks[:, 1]) if chunks.size else (chunks.ravel(), chunks.ravel())
    batch = StepBatch(new, cached, contexts)
    if not batch.rows:
        raise InputError("a step needs a prompt chunk or a decode", field="decode")
    if len(new):
        _check(float(new.min()), float(new.max()), 1, MAX_STEP_TOKENS, "prefill", "new tokens")
        _check(float(cached.min()), float(cached.max()), 0, MAX_CONTEXT, "prefill", "cached tokens")
    if len(contexts):
        _check(float(contexts.min()), float(contexts.max()), 0, MAX_CONTEXT, "decode", "cached tokens")
        _check(len(contexts), len(contexts), 1, MAX_SEQUENCES, "decode", "sequences")
    if batch.tokens > MAX_STEP_TOKENS:
        raise InputError(f"{batch.tokens:,.0f} tokens are more than {MAX_STEP_TOKENS:,} of a step", field="prefill")
    return batch


def _numbers(values: object, field: str) -> Float64:
    """Return numbers as an array. Raises InputError for texts, truth values and ragged lists."""
    try:
        array = np.asarray(values)
    except (ValueError, TypeError):
        array = np.asarray("")
    if array.size and array.dtype.kind not in "iuf":
        raise InputError("takes numbers of tokens", field=field)
    return array.astype(np.float64)


def _check(low: float, high: float, least: int, most: int, field: str, what: str) -> None:
    """Raise InputError unless ``low`` and ``high`` lie from ``least`` to ``most``; NaN does not."""
    if not (low >= least and high <= most):
        value = low if not low >= least else high
        raise InputError(f"{what} from {least:,} to {most:,}, got {value:,g}", field=field)
