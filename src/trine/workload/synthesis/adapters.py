"""Fine-tuning of few weights: low-rank adapters (LoRA, Hu et al., 2021) beside frozen weights, in 16 or 4 bits (QLoRA).

An adapter of rank R beside a product of in x out features multiplies by two matrices, R x in and out x R, and adds the
result. Frozen weights have no gradient and no optimizer state. The frozen weights of a layer's products and experts may
be stored in four bits (NF4; Dettmers et al., 2023) and expanded to 16 bits before each product, forward and backward.
Embedding, head, router and norms stay in 16 bits, as in bitsandbytes.

Tensor parallelism divides an adapter as a ``ParallelLinearAdapter`` on Megatron-core's layers. Beside a column split
``lora_down`` is whole and ``lora_up`` is split by columns. Beside a row split ``lora_down`` is split by rows and
``lora_up`` is whole. The added messages have R features.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from trine.common.units import whole_number
from trine.errors import InputError, nearest

#: Names of targets, and the parts of layers' names that they mean.
TARGETS = {"qkv": ("qkv", "q_up", "q_down", "kv_down", "kv_up", "q"), "out": ("out",),
           "up": ("gate_up", "up"), "down": ("down",)}  # fmt: skip
MAX_RANK = 4096
#: Bases of frozen weights.
BASES = ("bf16", "nf4")
#: dtype of a weight in four bits; its bits include the constants of blocks of 64 weights after double quantisation,
#: 0.127 bits a weight (Dettmers et al., QLoRA, 2023, section 3).
NF4 = "nf4"
_FORM = "lora:RANK, lora:RANK:qkv+out+up+down, or with /nf4 at the end for a base in four bits"


@dataclass(frozen=True, slots=True)
class Adapters:
    """Low-rank adapters.

    targets: of :data:`TARGETS`. is_four_bits: whether frozen weights of layers are stored in NF4. is_default: whether
    the targets are the default, which may include some that a model lacks.
    """

    rank: int
    targets: tuple[str, ...] = tuple(TARGETS)
    is_four_bits: bool = False
    is_default: bool = True

    def check(self, matched: Collection[str]) -> None:
        """Raise InputError for a target without a product. matched: the targets that products of the model have."""
        missing = [target for target in self.targets if target not in matched]
        if not missing or (self.is_default and matched):
            return
        known = "+".join(target for target in TARGETS if target in matched)
        hint = f"give lora:{self.rank}:{known}" if known else "it takes no adapters"
        text = f"no product outside experts matches {' and '.join(missing)} in this model: {hint}"
        raise InputError(text, field="trainable")


def target_of(layer: str) -> str | None:
    """Return the target that the product of a layer belongs to; None for experts and products outside layers."""
    last = layer.rsplit(".", 1)[-1]
    if ".experts." in layer or "layers." not in layer:
        return None
    return next((target for target, names in TARGETS.items() if last in names), None)


def parse_adapters(text: str) -> Adapters:
    """Return the adapters of ``lora:RANK[:TARGET+TARGET][/nf4]``. Raises InputError with the value and the form."""
    body, slash, base = text.partition("/")
    kind, _, rest = body.partition(":")
    if kind != "lora" or (slash and base not in BASES):
        raise InputError(f"takes {_FORM}; got {text[:60]!r}", field="trainable")
    rank_text, colon, targets_text = rest.partition(":")
    rank = whole_number(rank_text, 1, MAX_RANK)
    if rank is None:
        raise InputError(f"a rank is a whole number from 1 to {MAX_RANK}, got {rank_text[:40]!r}", field="trainable")
    targets = tuple(targets_text.split("+")) if colon else tuple(TARGETS)
    for target in targets:
        if target not in TARGETS:
            raise InputError(f"unknown target {target[:40]!r}{nearest(target, TARGETS)}", field="trainable")
    return Adapters(rank, targets, base == NF4, not colon)
