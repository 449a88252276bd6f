"""The weights of a block, and what it keeps for each token that it has read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import NamedTuple

#: Each token is multiplied by the matrix; only added, scaled or looked up; or goes through a part of the experts.
ALL_TOKENS, NO_PRODUCT = Fraction(1), Fraction(0)


class Weight(NamedTuple):
    """A trained tensor.

    uses: products of each token with the whole tensor (a fraction for experts; 0 for norms, biases and tables).
    active: the part of the tensor that a token uses.
    """

    name: str
    shape: tuple[int, ...]
    uses: Fraction = ALL_TOKENS
    active: Fraction = ALL_TOKENS

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)


def matrix(name: str, features_out: int, features_in: int) -> Weight:
    """Return a weight that multiplies each token."""
    return Weight(name, (features_out, features_in))


def vector(name: str, *shape: int) -> Weight:
    """Return a weight that multiplies no token: of a norm, a bias, a table or a scale."""
    return Weight(name, shape, NO_PRODUCT)


def with_bias(weight: Weight, has_bias: bool) -> list[Weight]:
    """Return a matrix and its bias."""
    return [weight, vector(f"{weight.name}.bias", weight.shape[0])] if has_bias else [weight]


def num_elements(weights: Iterable[Weight]) -> int:
    """Return the number of elements."""
    return sum(weight.size for weight in weights)


def num_active_elements(weights: Iterable[Weight]) -> int:
    """Return the elements that one token uses."""
    return int(sum(weight.size * weight.active for weight in weights))


def product_flops(weights: Iterable[Weight]) -> Fraction:
    """Return the FLOPs of one token's products with the weights, forward."""
    return Fraction(sum(2 * weight.size * weight.uses for weight in weights))


@dataclass(frozen=True, slots=True)
class Cache:
    """What a block keeps of earlier tokens for one sample, in elements.

    per_token: of each token; window: at most of this many tokens (0: of all). state: independent of the tokens.
    """

    per_token: Fraction = NO_PRODUCT
    window: int = 0
    state: int = 0

    def elements(self, tokens: int) -> int:
        """Return the elements after ``tokens`` tokens, rounded up."""
        kept = min(tokens, self.window) if self.window else tokens
        return self.state - int(-self.per_token * kept // 1)
