"""The goal of a served model: requests, latency limits, engine and precision, for ``trine plan`` and ``size``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trine.common.arguments import check_whole, option
from trine.common.units import PS_PER_S, parse_time
from trine.errors import InputError, UnitError

if TYPE_CHECKING:
    from trine.inference.point_search import LatencyLimits

_MAX_TOKENS = 10_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingGoal:
    """Requests and limits of a served model.

    input_tokens, output_tokens: of each request. prefix_tokens: of the prompt that the prefix cache holds. ttft, tpot:
    limits of the means over requests, as seconds or a text such as ``500ms``; None: no limit. engine: ``vllm``,
    ``sglang`` or ``trtllm``, with a version after a colon. precision: of the weights; None: all that the GPU computes
    in. kv_precision: of the KV cache; empty: the engine's default.
    """

    input_tokens: int = option(
        help="Tokens of a prompt.", needed="serving needs the tokens of a prompt: input_tokens N"
    )
    output_tokens: int = option(
        help="Tokens of an answer, 2 or more.", needed="serving needs the tokens of an answer: output_tokens N"
    )
    prefix_tokens: int = option(0, "Find N tokens of each prompt in the prefix cache.")
    ttft: float | str | None = option(None, "Limit the mean time to first token.")
    tpot: float | str | None = option(None, "Limit the mean time per output token after the first.")
    engine: str = option("vllm", "Choose the engine: vllm, sglang or trtllm, with :VERSION.")
    precision: str | None = option(None, "Choose the precision of weights [all that the GPU computes in].")
    kv_precision: str = option("", "Choose the precision of the KV cache [the engine's].")

    def __post_init__(self) -> None:
        """Raise InputError for numbers out of range."""
        check_whole("input_tokens", self.input_tokens, 1, _MAX_TOKENS)
        check_whole("output_tokens", self.output_tokens, 2, _MAX_TOKENS)
        check_whole("prefix_tokens", self.prefix_tokens, 0, _MAX_TOKENS)
        if self.prefix_tokens > self.input_tokens:
            message = f"{self.prefix_tokens:,} tokens are more than the prompt's {self.input_tokens:,}"
            raise InputError(message, field="prefix_tokens")

    def limits(self) -> LatencyLimits:
        """Return the limits in seconds. Raises InputError for one that is no positive time."""
        from trine.inference.point_search import LatencyLimits

        return LatencyLimits(_seconds(self.ttft, "ttft"), _seconds(self.tpot, "tpot"))


def _seconds(limit: float | str | None, field: str) -> float | None:
    if limit is None:
        return None
    try:
        seconds = parse_time(limit, "the limit", base=True, example="500 ms") / PS_PER_S
    except UnitError as error:
        raise InputError(str(error), field=field) from None
    if seconds <= 0:
        raise InputError(f"must be a time above 0, got {limit!r:.40}", field=field)
    return seconds
