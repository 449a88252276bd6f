"""How a software profile writes operators: the attributes that it gives each, by the family of the operator's name.

``kernels``: launches of the operator. ``passes``: how many times its own bytes it moves. ``attention_kernel``: the
generation of a fused attention. Nothing is said where a number is 1, so that ``software="none"`` writes what it always
wrote.
"""

from __future__ import annotations

from functools import lru_cache

from trine.compute.kinds import family_of, is_backward, kind_of_name
from trine.software.profile import OperatorStyle

_BY_KIND = {
    "layer_norm": "norm", "group_norm": "norm", "batch_norm": "norm", "linear": "linear", "matmul": "product",
    "attention": "attention", "softmax": "softmax", "loss": "loss", "embedding": "embedding", "optimizer": "optimizer",
    "index": "router", "copy": "copy", "conv": "conv", "adaptive_pool": "pool", "avg_pool": "pool", "max_pool": "pool",
    "reduction": "other",
}  # fmt: skip
_BY_WORD = {"rotary": "rotary", "dropout": "dropout", "add": "residual"}


@lru_cache(maxsize=4096)
def family_of_operator(name: str) -> tuple[str, bool]:
    """Family of a profile that an operator of this name is of, and whether it is of the backward pass."""
    kind = kind_of_name(name)
    family = _BY_KIND.get(family_of(kind))
    if family is None:
        words = name.rsplit("::", 1)[-1].lower().split("_")
        family = next((family for word, family in _BY_WORD.items() if word in words), "activation")
        family = "gated" if family == "activation" and any(word.endswith("glu") for word in words) else family
    return family, is_backward(kind) or "backward" in name.lower()


class WrittenStyle:
    """The style of one profile. operators: what its file says. as_recorded: operators are those that eager PyTorch
    records, each of which moves its own bytes."""

    def __init__(self, operators: OperatorStyle, as_recorded: bool = False) -> None:
        self.operators = operators
        self._as_recorded = as_recorded
        self._known: dict[tuple[str, bool, bool], dict[str, object]] = {}

    def attributes(self, name: str, is_half: bool, family: str | None = None) -> dict[str, object]:
        """What an operator is given; ``is_half``: it computes one of the two gradients of its forward operator."""
        found, backward = family_of_operator(name)
        family = family or found
        key = family, backward, is_half
        if key not in self._known:
            self._known[key] = self._attributes(family, backward, is_half)
        return self._known[key]

    def _attributes(self, family: str, backward: bool, is_half: bool) -> dict[str, object]:
        made: dict[str, object] = {}
        kernels = self.operators.kernels.get(family, [1.0, 2.0 if is_half else 1.0])[backward]
        kernels = kernels / 2 if is_half else kernels
        if kernels != 1:
            made["kernels"] = kernels
        passes = self.operators.passes.get(family, [1.0, 1.0])[backward]
        if passes != 1 and not self._as_recorded:
            made["passes"] = passes
        if family == "attention":
            made["attention_kernel"] = self.operators.attention_kernel
        return made
