"""Options of a mixture-of-experts dispatch or combine: tokens, experts, and the routing between them."""

from __future__ import annotations

from dataclasses import dataclass

from trine.common.arguments import check_whole, named_arguments, option
from trine.errors import InputError, nearest

#: Names of the dispatch and the combine.
MOE = ("moe_dispatch", "moe_combine")
#: DeepSeek-V3 (arXiv 2412.19437, 2.1.2): elements per token, experts, experts per token, nodes per token (maximum).
HIDDEN, EXPERTS, TOP_K, TOP_NODES = 7168, 256, 8, 4
#: Tokens per rank in a decoding batch (DeepEP docs/legacy.md).
TOKENS = 128
#: FP8: bytes of a scale, and elements per scale.
SCALE_BYTES, SCALED = 4, 128
BALANCED, ZIPF = "balanced", "zipf:"
#: Each rank draws separate experts; or all use rank 0's draws, relative to their position, which allows folding.
RANDOM, ROTATED = "random", "rotated"
FP8, BF16 = "fp8", "bf16"
#: ``auto`` takes low-latency kernels up to this number of tokens per rank, as DeepEP recommends (docs/legacy.md).
LOW_LATENCY_TOKENS = 256
#: SMs of the normal kernels (DeepEP's tests); maximum SMs of a low-latency kernel: the H800's.
NORMAL_SMS, DEVICE_SMS = 24, 132
MAX_TOKENS, MAX_HIDDEN, MAX_EXPERTS, MAX_TOP_K = 1 << 16, 1 << 16, 4096, 32


@named_arguments
@dataclass(frozen=True, kw_only=True, slots=True)
class MoeOptions:
    """Options of a dispatch or combine. tokens: per rank. top_nodes: None: 4 for normal kernels, all for low-latency.

    expert_imbalance: the probabilities of the experts, as in :class:`trine.parallel.plan.Plan`. expert_shares: the same
    as numbers, one per expert. sms: SMs of the normal kernels (one half sends); None: 24 (DeepEP's tests).

    Raises
    ------
    InputError: a number out of range, an unknown word, experts that do not divide.
    """

    tokens: int = option(TOKENS, "Set the tokens of each rank.")
    hidden: int = option(HIDDEN, "Set the elements of a token.")
    experts: int = option(EXPERTS, "Set the experts of all ranks.")
    top_k: int = option(TOP_K, "Set the experts of a token.")
    top_nodes: int | None = option(None, "Limit the nodes of a token's experts [4, low-latency: all].")
    expert_imbalance: str = option(BALANCED, "Set the load of experts; a file has one share per line.")
    expert_shares: tuple[float, ...] = ()
    draws: str = option(RANDOM, "Pick experts for each rank, or rank 0's for all (which folds).")
    seed: int = option(0, "Set the seed of the draws.")
    dispatch_type: str = option(FP8, "Choose the type of dispatched tokens; combined ones are bf16.")
    sms: int | None = option(None, "Set the SMs of the normal kernels; half of them send [24].")

    def __post_init__(self) -> None:
        top_nodes_limit = (("top_nodes", 1, MAX_EXPERTS),) if self.top_nodes is not None else ()
        sms_limit = (("sms", 2, 1024),) if self.sms is not None else ()
        for field, low, high in (
            ("tokens", 1, MAX_TOKENS),
            ("hidden", SCALED, MAX_HIDDEN),
            ("experts", 1, MAX_EXPERTS),
            ("top_k", 1, MAX_TOP_K),
            ("seed", 0, (1 << 63) - 1),
            *top_nodes_limit,
            *sms_limit,
        ):
            check_whole(field, getattr(self, field), low, high)
        if self.hidden % SCALED:
            raise InputError(f"must be a multiple of {SCALED}, which share a scale; got {self.hidden}", field="hidden")
        if self.top_k > self.experts:
            raise InputError(f"a token has {self.top_k} different experts, and there are {self.experts}", field="top_k")
        if self.sms is not None and self.sms % 2:
            raise InputError(f"half of them send and half receive: must be even, got {self.sms}", field="sms")
        for field, choices in (("draws", (RANDOM, ROTATED)), ("dispatch_type", (FP8, BF16))):
            if getattr(self, field) not in choices:
                value = getattr(self, field)
                raise InputError(f"unknown {field} {value!r}{nearest(str(value), choices)}", field=field)
        self._check_shares()

    @property
    def words(self) -> str:
        """A description of the traffic for users."""
        tokens = f"{self.tokens} tokens a rank of {self.hidden} elements"
        shares = "by given shares" if self.expert_shares else self.expert_imbalance
        return f"{tokens} to {self.top_k} of {self.experts} experts each, {shares}, draws {self.draws}"

    def _check_shares(self) -> None:
        if self.expert_shares and self.expert_imbalance != BALANCED:
            raise InputError("contradicts expert_shares: give one", field="expert_imbalance")
        if self.expert_shares and len(self.expert_shares) != self.experts:
            raise InputError(
                f"has {len(self.expert_shares)} entries, and there are {self.experts} experts", field="expert_shares"
            )
        if not all(share > 0 for share in self.expert_shares):
            raise InputError("must be above 0: a token has different experts", field="expert_shares")
        if self.draws == ROTATED and not self.is_balanced:
            raise InputError(
                "cannot be 'rotated' where experts are not alike: each rank draws for itself", field="draws"
            )
        self.weights()

    @property
    def is_balanced(self) -> bool:
        """True if all experts are equally likely."""
        return self.expert_imbalance == BALANCED and not self.expert_shares

    def weights(self) -> tuple[float, ...]:
        """Return the probability of each expert, up to a common factor."""
        return self.expert_shares or imbalance_weights(self.expert_imbalance, self.experts)

    @property
    def token_bytes(self) -> int:
        """Bytes of a dispatched token, including the scales of FP8."""
        return self.hidden + self.scales * SCALE_BYTES if self.dispatch_type == FP8 else 2 * self.hidden

    @property
    def scales(self) -> int:
        """Number of scales of a dispatched token."""
        return self.hidden // SCALED if self.dispatch_type == FP8 else 0

    @property
    def combined_bytes(self) -> int:
        """Bytes of a combined token, in BF16."""
        return 2 * self.hidden


def is_low_latency(moe: MoeOptions) -> bool:
    """Return whether ``auto`` takes the low-latency kernels."""
    return moe.tokens <= LOW_LATENCY_TOKENS


def low_latency_sms(moe: MoeOptions) -> int:
    """Return the SMs of a low-latency kernel: the fewest that do not raise the largest number of experts per SM."""
    return -(-moe.experts // -(-moe.experts // DEVICE_SMS))


def imbalance_weights(imbalance: str, count: int) -> tuple[float, ...]:
    """Return the shares of ``count`` receivers, up to a factor: ``balanced``, or ``zipf:S``: 1/n^S for the n-th.

    Raises InputError for another text, or an exponent not above 0 and at most 10.
    """
    if imbalance == BALANCED:
        return (1.0,) * count
    try:
        power = float(imbalance.removeprefix(ZIPF)) if imbalance.startswith(ZIPF) else -1.0
    except ValueError:
        power = -1.0
    if not 0 < power <= 10:
        raise InputError(
            f"must be {BALANCED!r} or 'zipf:S' with an exponent S above 0 and at most 10; got "
            f"{imbalance!r:.80}{nearest(imbalance[:80], (BALANCED,))}",
            field="expert_imbalance",
        )
    return tuple((n + 1) ** -power for n in range(count))
