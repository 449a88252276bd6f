"""Gradient buckets of DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gradient:
    """A gradient of ``size_bytes`` that is ready after backward operator ``ready_after``."""

    weight: int
    size_bytes: int
    dtype: str
    ready_after: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """Weights whose gradients are reduced together; it is ready after operator ``ready_after``.

    ``is_expert``: they are an expert's, which fewer ranks share.
    """

    weights: tuple[int, ...]
    size_bytes: int
    ready_after: int
    is_expert: bool = False


def fill_buckets(
    gradients: Sequence[Gradient], first_cap: int, cap: int, is_expert: bool = False
) -> tuple[Bucket, ...]:
    """Put gradients, in the order in which they become ready, into buckets of one dtype each.

    A bucket closes when it has reached its cap in bytes: ``first_cap`` for the first of a dtype, ``cap`` for the
    others. A gradient is never split. This is the steady state of PyTorch's DDP, which rebuilds its buckets in the
    order of arrival after the first step (Li et al., PyTorch Distributed, VLDB 2020, section 4.2). Buckets are returned
    in the order in which they become ready.
    """
    order = {gradient.weight: i for i, gradient in enumerate(gradients)}
    closed: list[tuple[int, Bucket]] = []
    for dtype in dict.fromkeys(gradient.dtype for gradient in gradients):
        members: list[Gradient] = []
        size, current = 0, first_cap
        for gradient in gradients:
            if gradient.dtype != dtype:
                continue
            members.append(gradient)
            size += gradient.size_bytes
            if size >= current:
                closed.append(_close(members, order, is_expert))
                members, size, current = [], 0, cap
        if members:
            closed.append(_close(members, order, is_expert))
    return tuple(bucket for _, bucket in sorted(closed, key=lambda item: item[0]))


def _close(members: Sequence[Gradient], order: dict[int, int], is_expert: bool) -> tuple[int, Bucket]:
    size = sum(member.size_bytes for member in members)
    weights = tuple(member.weight for member in members)
    return order[members[-1].weight], Bucket(weights, size, members[-1].ready_after, is_expert)
