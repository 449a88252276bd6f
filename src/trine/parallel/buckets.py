"""Gradient buckets of DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bucket:
    """Parameters whose gradients are reduced together; it is ready after operator ``ready_after``."""

    parameters: tuple[int, ...]
    size_bytes: int
    ready_after: int


def fill_buckets(gradients: Sequence[tuple[int, int, int]], first_cap: int, cap: int) -> tuple[Bucket, ...]:
    """Put gradients, given as (parameter, bytes, operator) in the order in which they become ready, into buckets.

    A bucket closes when it has reached its cap in bytes: ``first_cap`` for the first, ``cap`` for the others. A
    gradient is never split. This is the steady state of PyTorch's DDP, which rebuilds its buckets in the order of
    arrival after the first step (Li et al., PyTorch Distributed, VLDB 2020, section 4.2).
    """
    buckets: list[Bucket] = []
    members: list[int] = []
    filled = 0
    for i, (parameter, size_bytes, operator) in enumerate(gradients):
        members.append(parameter)
        filled += size_bytes
        if filled >= (cap if buckets else first_cap) or i == len(gradients) - 1:
            buckets.append(Bucket(tuple(members), filled, operator))
            members, filled = [], 0
    return tuple(buckets)
