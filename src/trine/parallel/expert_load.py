"""How many tokens each expert, and so each rank of the expert-parallel group, gets."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from trine.errors import PlanError
from trine.graph.workload import Operator, Workload
from trine.parallel.forms import BALANCED, exponent
from trine.parallel.plan import Plan
from trine.parallel.portions import is_expert

#: Shares are kept as exact fractions of this resolution, so that all ranks compute the same sizes.
_RESOLUTION = 10**6


@dataclass(frozen=True, slots=True)
class ExpertLoad:
    """shares: part of all tokens that goes to the experts of each rank of the group. dropped: part that nobody takes.

    Expert n of N sits on rank n // (N / ep). All ranks of the group send the same shares (the expected value of a
    routing that does not depend on the rank).
    """

    shares: tuple[Fraction, ...]
    dropped: Fraction

    @property
    def is_even(self) -> bool:
        """Whether all ranks get the same."""
        return len(set(self.shares)) == 1

    def of(self, position: int) -> Fraction:
        """Tokens at a position over those of an even share."""
        return self.shares[position] * len(self.shares)


def expert_load(workload: Workload, plan: Plan) -> ExpertLoad:
    """The load under a plan. Raises PlanError for a capacity that cuts nothing off."""
    if plan.ep == 1:
        return ExpertLoad((Fraction(1),), Fraction(0))
    count = num_experts(workload)
    shares = _shares(plan, count)
    factor = plan.capacity_factor
    if factor is not None:
        most = Fraction(factor).limit_denominator(_RESOLUTION) / count
        if max(shares) <= most:
            raise PlanError(
                f"capacity_factor cannot matter: no expert gets more than {float(max(shares) * count):.3g} times its "
                f"even share of the tokens, and the capacity is {factor:g}"
            )
        shares = [min(share, most) for share in shares]
    each = count // plan.ep
    kept = tuple(sum(shares[p * each : (p + 1) * each], Fraction(0)) for p in range(plan.ep))
    if min(kept) <= 0:
        raise PlanError(f"the experts of rank {kept.index(min(kept))} of the ep group get no tokens at all")
    return ExpertLoad(kept, 1 - sum(kept, Fraction(0)))


def _shares(plan: Plan, count: int) -> list[Fraction]:
    if plan.expert_shares:
        weights = [float(share) for share in plan.expert_shares]
    elif plan.expert_imbalance == BALANCED:
        return [Fraction(1, count)] * count
    else:
        power = exponent(plan.expert_imbalance)
        weights = [(n + 1) ** -power for n in range(count)]
    whole = [Fraction(weight / sum(weights)).limit_denominator(_RESOLUTION) for weight in weights]
    total = sum(whole)
    return [share / total for share in whole]


def num_experts(workload: Workload) -> int:
    """Experts of a layer, as its operators say. Raises PlanError where layers differ."""
    counts = {_count(op) for op in workload.operators if is_expert(op)}
    if len(counts) != 1:
        raise PlanError(f"layers with different numbers of experts: {sorted(counts)}")
    return counts.pop()


def _count(op: Operator) -> int:
    count = op.attributes["num_experts"]
    assert isinstance(count, int)  # checked by Portions
    return count
