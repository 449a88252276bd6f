"""Helpers for schedules: lists of sends, and the number of chunks of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from trine.collectives.schedule import Schedule, Sends, SendsOf
from trine.errors import InputError

Row = npt.NDArray[np.integer] | npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64] | Sequence[int] | int

#: Number of chunks: the fastest one at a latency x bandwidth of this many bytes (1.3 us at 50 GB/s). Below it, finer
#: chunks would be faster; above it, the time grows with the payload at every size.
LATENCY_BYTES = 64 * 1024
#: ... with these limits on chunks, and on sends of all ranks, so that a simulation stays bounded.
MAX_PIPELINE_CHUNKS = 1024
MAX_PIPELINE_SENDS = 1 << 20
#: Maximum number of channels, chunks or ranks as a parameter.
MAX_PARAMETER = 1 << 20


def pipeline_chunks(size_bytes: int, num_ranks: int, stages: int, chunks: int | None = None) -> int:
    """Return the number of chunks for a pipeline of ``stages`` stages, or ``chunks`` if it is given.

    m chunks take (stages - 1 + m) rounds of latency + size / (m x bandwidth) each. The minimum is near m = sqrt((stages
    - 1) x size / (latency x bandwidth)). A pipeline of one stage has one chunk.

    Raises InputError: ``chunks`` is not positive.
    """
    if chunks is not None:
        return positive("chunks", chunks)
    optimum = (1 + isqrt(1 + 4 * max(0, stages - 1) * size_bytes // LATENCY_BYTES)) // 2
    limit = min(MAX_PIPELINE_CHUNKS, max(64, MAX_PIPELINE_SENDS // num_ranks))
    return max(1, min(optimum, limit))


def positive(name: str, value: object) -> int:
    """Return ``value`` if it is a whole number from 1 to MAX_PARAMETER, else raise InputError."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_PARAMETER:
        raise InputError(f"must be a whole number from 1 to {MAX_PARAMETER:,}, got {value!r}", field=name)
    return value


def cut(
    kind: str, algorithm: str, num_ranks: int, size_bytes: int, num_chunks: int, sends_of: SendsOf, **fields: Any
) -> Schedule:
    """Build the schedule of a payload in equal chunks, each rounded up to whole bytes; ``fields``: further fields."""
    return Schedule(
        kind=kind, algorithm=algorithm, num_ranks=num_ranks, num_chunks=num_chunks,
        chunk_bytes=-(-size_bytes // num_chunks), size_bytes=size_bytes, sends_of=sends_of, **fields,
    )  # fmt: skip


def log2_ceil(number: int) -> int:
    """Return the least k with 2**k >= number."""
    return (number - 1).bit_length()


class SendList:
    """Builder of the sends of one rank, in order: a :class:`~trine.collectives.schedule.Sends`."""

    def __init__(self) -> None:
        self._blocks: list[tuple[npt.NDArray[np.int64], ...]] = []
        self._messages = 0
        self._is_plain = True

    def add_all(
        self, step: Ints, peer: Ints, chunk: Ints, *, reduce: bool = False, channel: Ints = 0, count: Ints = 1
    ) -> None:
        """Add one transfer for each entry; scalar arguments apply to all."""
        arrays = (np.atleast_1d(np.asarray(c, np.int64)) for c in (step, peer, chunk, channel, count))
        columns = np.broadcast_arrays(*arrays)
        number = len(columns[0])
        self._append(*columns, reduce=reduce, message=self._messages + np.arange(number))
        self._messages += number
        self._is_plain = self._is_plain and bool((columns[4] == 1).all())

    def add_raw(self, step: Row, peer: Row, chunk: Row, *, reduce: Row, channel: Row, count: int, message: Row) -> None:
        """Add entries unchanged; entries with equal ``message``, which never falls, form one transfer."""
        if len(message):
            counts = np.full(len(chunk), count, np.int64)
            columns = [column.astype(np.int64) for column in (step, peer, chunk, channel)]
            self._blocks.append((*columns, counts, reduce.astype(np.int64), message.astype(np.int64) + self._messages))
            self._is_plain = self._is_plain and count == 1 and bool((message[1:] > message[:-1]).all())
            self._messages += int(message[-1]) + 1

    def add(
        self, step: int, peer: int, parts: Sequence[tuple[Ints, bool]], *, channel: int = 0, count: int = 1
    ) -> None:
        """Add one transfer of all ``parts``: (first chunks, is added by the receiver), each of ``count`` chunks."""
        number = 0
        for chunks, reduce in parts:
            chunk = np.atleast_1d(np.asarray(chunks, np.int64))
            columns = (np.full(len(chunk), value, np.int64) for value in (step, peer, channel, count, self._messages))
            steps, peers, channels, counts, messages = columns
            self._append(steps, peers, chunk, channels, counts, reduce=reduce, message=messages)
            number += len(chunk)
        self._messages += number > 0
        self._is_plain = self._is_plain and number <= 1 and count == 1

    def _append(self, *columns: npt.NDArray[np.int64], reduce: bool, message: npt.NDArray[np.int64]) -> None:
        self._blocks.append((*columns, np.full(len(message), reduce, np.int64), message))

    def build(self) -> Sends:
        """Return the collected sends."""
        if self._blocks:
            columns = [np.concatenate(column) for column in zip(*self._blocks, strict=True)]
        else:
            columns = [np.zeros(0, np.int64)] * 7
        step, peer, chunk, channel, count, reduce, message = columns
        count_column = None if self._is_plain else count.astype(np.int32)
        message_column = None if self._is_plain else message.astype(np.int32)
        return Sends(
            step=step.astype(np.int32), peer=peer.astype(np.int32), chunk=chunk.astype(np.int32),
            reduce=reduce.astype(np.bool_), channel=channel.astype(np.int32), count=count_column,
            message=message_column,
        )  # fmt: skip
