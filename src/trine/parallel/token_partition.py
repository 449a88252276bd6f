"""The part of the tokens and experts that one rank works on: sequence, context and expert parallelism."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from trine.common.kept import keep
from trine.compute import Split, kind_of
from trine.compute.kinds import family_of
from trine.compute.resize import sequence_dim, sequence_length
from trine.errors import PlanError, nearest_numbers
from trine.graph.workload import FORWARD, OPTIMIZER, Operator, Tensor, Workload
from trine.parallel.plan import BALANCED, Plan, exponent
from trine.parallel.tensor_layout import TensorSplit

#: The share of an undivided operator.
WHOLE = Fraction(1)


class TokenPartition:
    """Parts of a workload under a plan.

    context: fraction of the tokens on one rank of the cp group. sequence: fraction of these per operator where sequence
    parallelism divides them.
    expert_tokens: tokens of a rank's experts after the gather over the etp group, relative to a tp group's tokens.
    expert_weights: tensor ids of the experts' weights, if experts use the ranks differently.
    """

    def __init__(self, workload: Workload, plan: Plan) -> None:
        self.plan = plan
        self.context = Fraction(1, plan.cp)
        self.sequence = Fraction(1, plan.tp) if plan.sequence_parallel else WHOLE
        moves = plan.sequence_parallel or plan.tp == 1
        self.expert_tokens = Fraction(plan.expert_tp, plan.tp) if moves else WHOLE
        self._length = sequence_length(workload)
        if plan.cp > 1 or plan.sequence_parallel:
            _check_tokens(workload, plan, self._length)
        self.expert_weights = frozenset(expert_weights(workload)) if plan.folds_experts else frozenset[int]()
        self._expert_tensors = _expert_tensors(workload) if plan.ep > 1 else frozenset[int]()
        if plan.folds_experts:
            _check_experts(workload, plan)

    def has_tokens(self, tensor: Tensor) -> bool:
        """Return whether a dimension of the tensor counts tokens."""
        return self._length is not None and sequence_dim(tensor, self._length) is not None

    def of_tensor(self, tensor: Tensor, load: Fraction) -> Fraction:
        """Return one rank's fraction of a tensor, before tensor and sequence parallelism divide it.

        load: tokens of the rank's experts relative to an even share.
        """
        part = self.context if self.context != 1 and self.has_tokens(tensor) else WHOLE
        return part * load if tensor.id in self._expert_tensors else part

    def split(self, op: Operator, batch: int, share: Fraction, divided: TensorSplit | None, load: Fraction) -> Split:
        """Return the sizes of ``op`` on a rank whose experts get ``load``; for ring attention, of one block."""
        if op.phase == OPTIMIZER:
            return Split(batch=batch, share=share)
        plan = self.plan
        mode, degree = "", 1
        if divided is not None:
            mode = "column" if divided.mode == "shared" else divided.mode
            degree = plan.expert_tp if is_expert(op) else plan.tp
        tokens, keys = self.context if divided is not None else self.context * self.sequence, None
        if plan.cp > 1 and is_attention(op):
            if plan.cp_style == "ulysses":
                mode, degree, tokens = "column", degree * plan.cp, WHOLE
            elif plan.cp_style == "all-gather":
                keys = WHOLE
        experts = 1
        if plan.folds_experts and is_expert(op):
            tokens = tokens if plan.expert_tp == plan.tp else self.context * self.expert_tokens
            tokens, experts = tokens * load, plan.ep
        groups, vocabulary = None, None
        if divided is not None:
            groups, vocabulary = None if divided.regroups else divided.groups, divided.vocabulary
        return Split(
            batch=batch, ways=degree, mode=mode, tokens=tokens, keys=keys, experts=experts, groups=groups,
            vocabulary=vocabulary,
        )  # fmt: skip

    def repeats(self, op: Operator) -> int:
        """Return how many times the operator runs: for ring attention, once per block of keys."""
        return self.plan.cp if self.plan.cp > 1 and self.plan.cp_style == "ring" and is_attention(op) else 1


def is_attention(op: Operator) -> bool:
    """Return whether the operator is a fused attention, forward or backward."""
    return family_of(kind_of(op)) == "attention"


def is_expert(op: Operator) -> bool:
    """Return whether the operator works for the experts of a mixture, on their tokens."""
    return op.attributes.get("expert") is True


def expert_weights(workload: Workload) -> list[int]:
    """Return the tensor ids of the experts' weights."""
    storages = {
        workload.tensors[t].storage: None
        for op in workload.operators
        if op.phase == FORWARD and is_expert(op)
        for t in op.inputs
        if workload.tensors[t].role == "weight"
    }
    return [p.weight for p in workload.parameters if workload.tensors[p.weight].storage in storages]


def _expert_tensors(workload: Workload) -> frozenset[int]:
    """Return the activations that experts read or compute."""
    tensors = {
        t
        for op in workload.operators
        if is_expert(op)
        for t in (*op.inputs, *op.outputs)
        if workload.tensors[t].batch_dims
    }
    return frozenset(tensors)


def _check_tokens(workload: Workload, plan: Plan, length: int | None) -> None:
    option = "context parallelism" if plan.cp > 1 else "sequence parallelism"
    if length is None:
        raise PlanError(
            f"{option} divides the tokens of each sample, but {workload.name!r} has no number of tokens: "
            "synthesise the model (model:NAME), or give the trace the metadata 'sequence'"
        )
    degree = plan.cp * (plan.tp if plan.sequence_parallel else 1)
    halves = 2 * plan.cp if plan.cp > 1 and plan.cp_style != "ulysses" else 1  # two parts per rank balance causal masks
    for divisor in (degree, halves):
        if length % divisor:
            below = length - length % divisor
            near = f"{below} or {below + divisor}" if below else str(divisor)
            raise PlanError(
                f"{option}: a sequence of {length} tokens does not divide into {divisor} equal parts: the nearest that "
                f"does has {near}"
            )
    problem = _why_not_divided(workload, length, option, plan.cp > 1)
    if problem:
        raise PlanError(problem)


@keep
def _why_not_divided(workload: Workload, length: int, option: str, divides_attention: bool) -> str:
    """Return why ``option`` cannot divide the ``length`` tokens of each sample; "" if it can."""
    tensors = workload.tensors
    for op in workload.operators:
        if op.phase == OPTIMIZER:
            continue
        for tensor_id in (*op.inputs, *op.outputs):
            tensor = tensors[tensor_id]
            is_pooled = tensor.batch_dims == (0,) and len(tensor.shape) in (2, 3) and tensor.shape[1] == 1
            if tensor.batch_dims and tensor.size_bytes and not is_pooled and sequence_dim(tensor, length) is None:
                return (
                    f"{option}: which dimension of the tensor {list(tensor.shape)} of operator {op.id} ({op.name}) "
                    "counts tokens is not known"
                )
        from trine.parallel.heads import multiplies_activations

        if divides_attention and op.phase == FORWARD and multiplies_activations(workload, op):
            return (
                f"context parallelism needs attention in one operator, and operator {op.id} ({op.name}) is a part of it"
            )
    return ""


def _check_experts(workload: Workload, plan: Plan) -> None:
    experts = [op for op in workload.operators if op.phase == FORWARD and is_expert(op)]
    if not experts:
        raise PlanError(
            f"expert parallelism finds no experts in {workload.name!r}: no operator has the attribute 'expert'"
        )
    for op in experts:
        count = op.attributes.get("num_experts")
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise PlanError(f"operator {op.id} ({op.name}) has no number of experts")
        if count % plan.ep:
            valid = [n for n in range(1, count + 1) if count % n == 0]
            near = nearest_numbers(valid, plan.ep)
            raise PlanError(
                f"{count} experts do not divide over ep = {plan.ep} ranks: the nearest valid number is "
                f"{' or '.join(map(str, near))}"
            )
        if plan.expert_shares and len(plan.expert_shares) != count:
            raise PlanError(f"expert_shares has {len(plan.expert_shares)} entries, and there are {count} experts")
    dispatched = {op.attributes.get("moe") for op in workload.operators if op.phase == FORWARD}
    if not {"dispatch", "combine"} <= dispatched:
        raise PlanError(
            f"expert parallelism needs an operator with the attribute moe = 'dispatch' and one with 'combine'; "
            f"{workload.name!r} lacks one"
        )


#: Shares are exact fractions of this resolution, so that all ranks compute the same sizes.
_RESOLUTION = 10**6


@dataclass(frozen=True, slots=True)
class ExpertLoad:
    """shares: fraction of all tokens for the experts of each rank of the group. dropped: fraction of dropped tokens.

    Expert n of N sits on rank n // (N / ep). All ranks of the group send the same shares (the expected value of a
    routing that does not depend on the rank).
    """

    shares: tuple[Fraction, ...]
    dropped: Fraction

    @property
    def is_even(self) -> bool:
        """Whether all ranks have equal shares."""
        return len(set(self.shares)) == 1

    def words(self, num_experts: int) -> str:
        """Return the busiest rank of a group of ``num_experts`` experts, its load, and the part of dropped tokens."""
        busiest = self.shares.index(max(self.shares))
        per_rank = num_experts // len(self.shares)
        first = busiest * per_rank
        experts = f"expert {first}" if per_rank == 1 else f"experts {first} to {first + per_rank - 1}"
        times = float(self.of(busiest))
        text = f"rank {busiest} of each ep group ({experts}) gets {times:.3g} times an even share of tokens"
        return f"{text}; {float(self.dropped):.1%} of all are dropped" if self.dropped else text

    def of(self, position: int) -> Fraction:
        """Return the tokens at a position relative to an even share."""
        return self.shares[position] * len(self.shares)


def expert_load(workload: Workload, plan: Plan) -> ExpertLoad:
    """Return the load under a plan. Raises PlanError for a capacity factor without effect."""
    if plan.ep == 1:
        return ExpertLoad((Fraction(1),), Fraction(0))
    count = num_experts(workload)
    shares = _shares(plan, count)
    factor = plan.capacity_factor
    if factor is not None:
        capacity = Fraction(factor).limit_denominator(_RESOLUTION) / count
        if max(shares) <= capacity:
            raise PlanError(
                f"capacity_factor cannot matter: no expert gets more than {float(max(shares) * count):.3g} times its "
                f"even share of the tokens, and the capacity is {factor:g}"
            )
        shares = [min(share, capacity) for share in shares]
    per_rank = count // plan.ep
    loads = tuple(sum(shares[p * per_rank : (p + 1) * per_rank], Fraction(0)) for p in range(plan.ep))
    if min(loads) <= 0:
        raise PlanError(f"the experts of rank {loads.index(min(loads))} of the ep group get no tokens at all")
    return ExpertLoad(loads, 1 - sum(loads, Fraction(0)))


def _shares(plan: Plan, count: int) -> list[Fraction]:
    if plan.expert_shares:
        weights = [float(share) for share in plan.expert_shares]
    elif plan.expert_imbalance == BALANCED:
        return [Fraction(1, count)] * count
    else:
        power = exponent(plan.expert_imbalance)
        weights = [(n + 1) ** -power for n in range(count)]
    exact = [Fraction(weight / sum(weights)).limit_denominator(_RESOLUTION) for weight in weights]
    total = sum(exact)
    return [share / total for share in exact]


def num_experts(workload: Workload) -> int:
    """Return the number of experts per layer, from its operators. Raises PlanError if layers differ."""
    counts = {_count(op) for op in workload.operators if is_expert(op)}
    if len(counts) != 1:
        raise PlanError(f"layers with different numbers of experts: {sorted(counts)}")
    return counts.pop()


def _count(op: Operator) -> int:
    count = op.attributes["num_experts"]
    assert isinstance(count, int)  # checked by TokenPartition
    return count
