"""Which values of a plan's forms of parallelism can be, and which contradict each other or cannot matter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trine.errors import PlanError, nearest
from trine.parallel.axes import DEFAULT_ORDER, check_order

if TYPE_CHECKING:
    from trine.parallel.plan import Plan

SHARDINGS = ("none", "zero1", "zero2", "zero3", "fsdp")
#: Shardings that spread the parameters themselves, and those that keep no more than a part of the gradients.
PARAMETERS_SHARDED = ("zero3", "fsdp")
GRADIENTS_SHARDED = ("zero2", *PARAMETERS_SHARDED)
CP_STYLES = ("ring", "all-gather", "ulysses")
BUFFERS = ("auto", "broadcast", "none")
BALANCED, ZIPF = "balanced", "zipf:"
MAX_EXPERTS = 65_536
#: Bytes at which DDP's first and other buckets close, as in PyTorch.
DEFAULT_BUCKETS = (1 * 2**20, 25 * 2**20)


def check_forms(plan: Plan) -> None:
    """Raise PlanError, with the reason, for a plan that cannot be, or holds an option that cannot matter."""
    for check in (_ways, _data, _sharding, _gathers, _tensor, _context, _experts, _local):
        check(plan)


def _ways(plan: Plan) -> None:
    check_order(plan.order)
    if plan.ep > 1 and plan.dp % plan.ep:
        raise PlanError(
            f"experts are spread over data-parallel ranks, so ep divides dp: dp = {plan.dp} does not divide by ep = "
            f"{plan.ep}"
        )
    if plan.order != DEFAULT_ORDER and sum(ways > 1 for ways in (plan.tp, plan.cp, plan.dp, plan.pp)) < 2:
        _only_if(plan.ep not in (1, plan.dp), "order", "there are not two axes to order")
    if plan.data == "dp" and plan.cp * plan.ep > 1:
        raise PlanError(
            "DataParallel (dp) keeps whole replicas in one process: context and expert parallelism need ddp"
        )


def _data(plan: Plan) -> None:
    _one_of("buffers", plan.buffers, BUFFERS)
    replicas = plan.dp * plan.cp
    if plan.buffers != "auto":
        _only_if(replicas > 1 and plan.data == "ddp", "buffers", "only DDP's replicas exchange them")
        _only_if(plan.sharding == "none", "buffers", f"they are DDP's, and sharding is {plan.sharding!r}")
    if not plan.dp_overlap:
        _only_if(replicas > 1 and plan.data == "ddp", "dp_overlap", "there are no replicas that reduce gradients")


def _sharding(plan: Plan) -> None:
    _one_of("sharding", plan.sharding, SHARDINGS)
    if plan.sharding == "none":
        _only_if(plan.shard_ways is None, "shard_ways", "nothing is sharded: set sharding")
        return
    if plan.data != "ddp":
        raise PlanError(f"DataParallel (dp) keeps whole replicas: sharding {plan.sharding!r} needs ddp")
    if plan.dp * plan.cp == 1:
        raise PlanError(f"sharding {plan.sharding!r} spreads data over replicas, and dp x cp = 1 has none")
    ways = plan.shard_ways
    if ways is None:
        return
    if plan.dp % ways or not 1 < ways < plan.dp:
        raise PlanError(
            f"hybrid sharding cuts the replicas into equal groups: shard_ways divides dp = {plan.dp} and lies between "
            f"1 and it; got {ways}"
        )
    if ways % plan.ep:
        raise PlanError(f"hybrid sharding with experts: shard_ways = {ways} is no multiple of ep = {plan.ep}")


def _gathers(plan: Plan) -> None:
    if not plan.reshard:
        _only_if(plan.sharding == "fsdp", "reshard", "only fsdp may keep gathered parameters until the backward pass")
    if plan.shard_unit_bytes is not None:
        _only_if(plan.sharding in PARAMETERS_SHARDED, "shard_unit_bytes", "no parameters are gathered unit by unit")
    if plan.sharding in PARAMETERS_SHARDED:
        name, is_default = _default_buckets(plan)
        _only_if(is_default, name, f"{plan.sharding} reduces gradients by the units of its parameters")
    if plan.prefetch is not None:
        _only_if(plan.sharding != "none", "prefetch", "no parameters are gathered: set sharding")
        if plan.sharding in ("zero1", "zero2") and plan.prefetch > 1:
            raise PlanError(
                f"with {plan.sharding} all parameters are gathered behind the optimizer, beside the next forward pass "
                f"(prefetch 1) or before it (0); got {plan.prefetch}"
            )
    if plan.sharding in GRADIENTS_SHARDED and plan.sync == "each":
        raise PlanError(f"{plan.sharding} reduces gradients after each micro-batch anyway: leave sync out")


def _tensor(plan: Plan) -> None:
    if plan.sequence_parallel:
        _only_if(plan.tp > 1, "sequence_parallel", "it divides the sequence over the tensor-parallel ranks: tp = 1")
        if plan.tp_style == "column":
            raise PlanError("sequence parallelism is a part of Megatron's tensor parallelism: set tp_style megatron")
    if plan.tp_overlap > 1 and not plan.sequence_parallel:
        raise PlanError(
            "tp_overlap cuts the all-gathers and reduce-scatters of sequence parallelism into pieces: set "
            "sequence_parallel"
        )


def _context(plan: Plan) -> None:
    _one_of("cp_style", plan.cp_style, CP_STYLES)
    if plan.cp == 1 and plan.cp_style != "ring":
        _only_if(False, "cp_style", "cp = 1 leaves the sequence whole")


def _experts(plan: Plan) -> None:
    spread = plan.expert_shares
    if plan.expert_imbalance != BALANCED:
        exponent(plan.expert_imbalance)
        if spread:
            raise PlanError("expert_imbalance and expert_shares contradict each other: give one")
    uneven = plan.expert_imbalance != BALANCED or bool(spread)
    if plan.ep == 1:
        _only_if(not uneven, "expert_imbalance", "ep = 1 has all experts on every rank")
        _only_if(plan.capacity_factor is None, "capacity_factor", "ep = 1 has all experts on every rank")
    if spread and (len(spread) > MAX_EXPERTS or any(not _is_number(share) or share < 0 for share in spread)):
        raise PlanError("expert_shares are the parts of the tokens that go to each expert: numbers not below 0")
    if spread and not sum(spread) > 0:
        raise PlanError("expert_shares add up to nothing")
    factor = plan.capacity_factor
    if factor is not None and not (_is_number(factor) and 0 < factor <= MAX_EXPERTS):
        raise PlanError(f"capacity_factor must be a number above 0, got {factor!r}")


def _local(plan: Plan) -> None:
    if plan.sync_every is None:
        return
    if plan.dp == 1 or plan.data != "ddp":
        raise PlanError("sync_every is about DDP replicas that average their parameters, and there are none")
    if plan.sharding != "none" or plan.cp * plan.ep > 1:
        raise PlanError("local SGD keeps whole replicas: sync_every does not combine with sharding, cp or ep")
    for name, is_default in (
        ("dp_overlap", plan.dp_overlap),
        ("sync", plan.sync == "last"),
        _default_buckets(plan),
    ):
        _only_if(is_default or plan.offload == "optimizer", name, "local SGD reduces no gradients")
    if plan.steps % plan.sync_every:
        raise PlanError(
            f"{plan.steps} steps are no whole number of rounds of sync_every = {plan.sync_every}: take a multiple"
        )


def _default_buckets(plan: Plan) -> tuple[str, bool]:
    return "bucket_bytes", (plan.first_bucket_bytes, plan.bucket_bytes) == DEFAULT_BUCKETS


def form_facts(plan: Plan) -> dict[str, object]:
    """The forms of parallelism that a plan uses beyond dp, tp and pp, for the result."""
    replicas, is_sharded = plan.dp * plan.cp > 1, plan.sharding != "none"
    facts = {
        "cp": plan.cp if plan.cp > 1 else None,
        "cp_style": plan.cp_style if plan.cp > 1 else None,
        "ep": plan.ep if plan.ep > 1 else None,
        "order": plan.order if plan.order != DEFAULT_ORDER else None,
        "sharding": plan.sharding if is_sharded else None,
        "shard_ways": plan.shard_ways,
        "reshard": plan.reshard if plan.sharding == "fsdp" else None,
        "prefetch": plan.prefetch,
        "shard_unit_bytes": plan.shard_unit_bytes,
        "dp_overlap": plan.dp_overlap if replicas and not plan.dp_overlap else None,
        "buffers": plan.buffers if plan.buffers != "auto" else None,
        "sync_every": plan.sync_every,
        "sequence_parallel": plan.sequence_parallel or None,
        "tp_overlap": plan.tp_overlap if plan.tp_overlap > 1 else None,
        "expert_imbalance": ("measured" if plan.expert_shares else plan.expert_imbalance) if plan.ep > 1 else None,
        "capacity_factor": plan.capacity_factor,
    }
    return {name: value for name, value in facts.items() if value is not None}


def exponent(imbalance: str) -> float:
    """The exponent of ``zipf:S``. Raises PlanError for another text."""
    text = imbalance.removeprefix(ZIPF) if isinstance(imbalance, str) and imbalance.startswith(ZIPF) else ""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= 10:
        raise PlanError(
            f"expert_imbalance must be {BALANCED!r} or 'zipf:S' with an exponent S above 0 and at most 10; got "
            f"{imbalance!r}{nearest(str(imbalance), (BALANCED,))}"
        )
    return value


def _is_number(value: object) -> bool:
    is_real = isinstance(value, int | float) and not isinstance(value, bool)
    return is_real and float(value) == float(value) and abs(float(value)) != float("inf")  # type: ignore[arg-type]


def _only_if(condition: bool, name: str, reason: str) -> None:
    if not condition:
        raise PlanError(f"{name} cannot matter: {reason}")


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise PlanError(f"{name} must be one of {', '.join(known)}; got {value!r}{nearest(str(value), known)}")
