"""Fine-tuning of few weights: low-rank adapters (LoRA, Hu et al., 2021) beside frozen weights, in 16 or 4 bits (QLoRA).

An adapter of rank R beside a product of in x out features multiplies by two matrices, R x in and out x R, and adds the
result. Frozen weights have no gradient and no optimizer state. A frozen weight in four bits (NF4; Dettmers et al.,
2023) is expanded to 16 bits before each product, forward and backward.
"""

from __future__ import annotations

from dataclasses import dataclass

from trine.common.units import whole_number
from trine.errors import InputError, nearest

#: Names of targets, and the parts of layers' names that they mean.
TARGETS = {"qkv": ("qkv", "q_up", "q_down", "kv_down", "kv_up", "q"), "out": ("out",),
           "up": ("gate_up", "up"), "down": ("down",)}  # fmt: skip
MAX_RANK = 4096
#: Bases of frozen weights.
BASES = ("bf16", "nf4")
_FORM = "lora:RANK, lora:RANK:qkv+out+up+down, or with /nf4 at the end for a base in four bits"


@dataclass(frozen=True, slots=True)
class Adapters:
    """Low-rank adapters. targets: of :data:`TARGETS`; is_four_bits: whether frozen weights are stored in NF4."""

    rank: int
    targets: tuple[str, ...] = tuple(TARGETS)
    is_four_bits: bool = False

    def adapts(self, layer: str) -> bool:
        """Return whether the product of a layer gets an adapter; experts get none."""
        last = layer.rsplit(".", 1)[-1]
        is_expert = ".experts." in layer or "layers." not in layer
        return not is_expert and any(last in TARGETS[target] for target in self.targets)


def parse_adapters(text: str) -> Adapters:
    """Return the adapters of ``lora:RANK[:TARGET+TARGET][/nf4]``. Raises InputError with the value and the form."""
    body, slash, base = text.partition("/")
    kind, _, rest = body.partition(":")
    if kind != "lora" or (slash and base not in BASES):
        raise InputError(f"takes {_FORM}; got {text[:60]!r}", field="trainable")
    rank_text, _, targets_text = rest.partition(":")
    rank = whole_number(rank_text, 1, MAX_RANK)
    if rank is None:
        raise InputError(f"a rank is a whole number from 1 to {MAX_RANK}, got {rank_text[:40]!r}", field="trainable")
    targets = tuple(targets_text.split("+")) if targets_text else tuple(TARGETS)
    for target in targets:
        if target not in TARGETS:
            raise InputError(f"unknown target {target[:40]!r}{nearest(target, TARGETS)}", field="trainable")
    return Adapters(rank, targets, base == "nf4")
