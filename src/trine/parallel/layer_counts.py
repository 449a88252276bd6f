"""Blocks of each pipeline chunk, by number: Megatron-core's rules for splits that are not equal.

Source of the rules: megatron/core/transformer/transformer_block.py, ``get_num_layers_to_build``. A chunk may have no
blocks. The first chunk also holds the embedding, the last one the head and the loss.
"""

from __future__ import annotations

from collections.abc import Sequence

from trine.errors import PlanError, nearest_numbers

#: Rules in which the embedding, the loss or both take the place of one block.
ACCOUNTED = ("blocks+embedding", "blocks+loss", "blocks+embedding+loss")


def accounted_counts(layers: int, num_chunks: int, rule: str) -> list[int]:
    """Return the blocks of each chunk under a rule of ACCOUNTED. Raises PlanError if the sum does not divide."""
    has_embedding, has_loss = "embedding" in rule, "loss" in rule
    total = layers + has_embedding + has_loss
    if total % num_chunks:
        near = _nearest_divisors(total, num_chunks)
        raise PlanError(
            f"balance {rule}: {layers} layers + {has_embedding + has_loss} = {total} do not divide over pp x "
            f"virtual_stages = {num_chunks} chunks: the nearest numbers of chunks are {near}"
        )
    counts = [total // num_chunks] * num_chunks
    counts[0] -= has_embedding
    counts[-1] -= has_loss
    return counts


def uneven_counts(layers: int, pp: int, virtual_stages: int, first: int | None, last: int | None) -> list[int]:
    """Return the blocks of each chunk if the first or last rank has a given number, over all its chunks.

    The other ranks have equal parts of the remainder, and each rank divides its part equally over its chunks. Raises
    PlanError if a part does not divide.
    """
    middle, rest = pp - (first is not None) - (last is not None), layers - (first or 0) - (last or 0)
    if rest < 0 or (not middle and rest):
        raise PlanError(
            f"first_stage_layers and last_stage_layers take {(first or 0) + (last or 0)} of {layers} layers, and pp = "
            f"{pp} leaves {middle} other ranks for the remainder"
        )
    if middle and rest % middle:
        raise PlanError(
            f"{rest} layers remain for {middle} pipeline ranks beside first_stage_layers and last_stage_layers, and do "
            f"not divide: {rest - rest % middle} or {rest - rest % middle + middle} would"
        )
    each = rest // middle if middle else 0
    first_count = each if first is None else first
    last_count = each if last is None else last
    ranks = [first_count, *([each] * (pp - 2)), last_count]
    for rank, count in enumerate(ranks):
        if count % virtual_stages:
            raise PlanError(
                f"the {count} layers of pipeline rank {rank} do not divide over its {virtual_stages} virtual stages: "
                f"{count - count % virtual_stages} or {count - count % virtual_stages + virtual_stages} would"
            )
    return [ranks[chunk % pp] // virtual_stages for chunk in range(pp * virtual_stages)]


def check_sum(counts: Sequence[int], layers: int) -> None:
    """Raise PlanError unless the chunks hold all layers."""
    if sum(counts) != layers:
        raise PlanError(f"stage_layers add up to {sum(counts)} layers, and the model has {layers}")


def _nearest_divisors(total: int, number: int) -> str:
    divisors = [n for n in range(1, total + 1) if total % n == 0]
    return " or ".join(map(str, nearest_numbers(divisors, number)))
