"""Attributes that a software profile gives each operator, by the family of the operator's name.

``kernels``: launches of the operator. ``passes``: how many times the operator moves its bytes. ``attention_kernel``:
the generation of a fused attention. Attributes equal to 1 are omitted, so the output of ``software="none"`` does not
change.
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
#: Prefix of the names of operators that normalise and rotate the heads of queries and keys.
HEAD_NORMS = "qk_norm"
_BY_WORD = {"rotary": "rotary", "dropout": "dropout", "add": "residual"}
#: Words in the names of operators that copy rows by number -> family.
_OF_ROWS = {"select": "dispatch", "add": "combine"}


@lru_cache(maxsize=4096)
def family_of_operator(name: str) -> tuple[str, bool]:
    """Return the profile's family for an operator name, and whether the operator is part of the backward pass."""
    kind = kind_of_name(name)
    family, words = _BY_KIND.get(family_of(kind)), name.rsplit("::", 1)[-1].lower().split("_")
    if family == "router" and words[0] == "index":
        family = _OF_ROWS.get(words[1], family)
    if family is None:
        family = next((family for word, family in _BY_WORD.items() if word in words), "activation")
        if family == "activation" and any(word.endswith("glu") for word in words):
            family = "gated"
        else:
            family = family
    return family, is_backward(kind) or "backward" in name.lower()


class WrittenStyle:
    """Operator style of one software profile. operators: the style in its file. as_recorded: operators are eager
    PyTorch's, each of which moves its bytes once."""

    def __init__(self, operators: OperatorStyle, as_recorded: bool = False) -> None:
        self.operators = operators
        self._as_recorded = as_recorded
        self._by_operator: dict[tuple[str, bool, bool, bool], dict[str, object]] = {}

    def attributes(self, name: str, is_half: bool, family: str | None = None) -> dict[str, object]:
        """Return an operator's attributes; ``is_half``: it computes one of its forward operator's two gradients."""
        own_family, backward = family_of_operator(name)
        family = family or own_family
        if family == "norm" and "rms_norm" in name and "rms_norm" in self.operators.kernels:
            family = "rms_norm"
        key = family, backward, is_half, name.startswith(HEAD_NORMS)
        if key not in self._by_operator:
            self._by_operator[key] = self._attributes(family, backward, is_half)
            if key[-1]:
                # Add the launches and passes of head norms to the rotation that follows them
                for field, of_family in (("kernels", self.operators.kernels), ("passes", self.operators.passes)):
                    rotary = of_family.get("rotary", [1.0, 1.0])[backward]
                    norms = of_family.get("head_norm", [0.0, 0.0])[backward]
                    if norms and not (field == "passes" and self._as_recorded):
                        self._by_operator[key][field] = rotary + norms
        return self._by_operator[key]

    def _attributes(self, family: str, backward: bool, is_half: bool) -> dict[str, object]:
        attributes: dict[str, object] = {}
        kernels = self.operators.kernels.get(family, [1.0, 2.0 if is_half else 1.0])[backward]
        kernels = kernels / 2 if is_half else kernels
        if kernels != 1:
            attributes["kernels"] = kernels
        passes = self.operators.passes.get(family, [1.0, 1.0])[backward]
        if passes != 1 and not self._as_recorded:
            attributes["passes"] = passes
        if family == "attention":
            attributes["attention_kernel"] = self.operators.attention_kernel
        return attributes
