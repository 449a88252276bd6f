"""Parts of a step's answer in one line: profile, throughput and memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trine.common.units import format_bytes
from trine.results import headline
from trine.software.profile import NO_SOFTWARE

if TYPE_CHECKING:
    from trine.results.headline import StepWork
    from trine.results.run import TaskRun


def profile_suffix(result: TaskRun) -> str:
    """Return ``" with megatron-core"``, the software profile; empty without one."""
    name = result.plan.get("software")
    return f" with {name}" if name not in (None, NO_SOFTWARE) else ""


def throughput(work: StepWork, step_ps: int) -> list[str]:
    """Return samples and tokens per second, with five digits or all digits before the decimal point."""
    counts = ((unit, getattr(work, unit)) for unit in ("samples", "tokens"))
    return [f"{digits(headline.per_second(count, step_ps))} {unit}/s" for unit, count in counts if count]


def digits(number: float) -> str:
    """Return a number with five digits, or all digits before the decimal point."""
    return f"{number:,.0f}" if number >= 1e4 else f"{number:,.5g}"


def rates_in_brief(result: TaskRun) -> list[str]:
    """Return tokens (or samples) per second and the MFU, if known."""
    if result.work is None or not result.step_time_ps:
        return []
    mfu = headline.mfu(result)
    rate = throughput(result.work, result.step_time_ps)[-1:]
    return rate if mfu is None else [*rate, headline.mfu_words(mfu, definition=result.work.mfu_definition)]


def memory_needed(result: TaskRun) -> str:
    """Return the memory of the rank with the least headroom, and whether it fits; empty if memory was not followed."""
    if not result.memory_peaks:
        return ""
    use = result.memory_uses[result.fullest_row]
    is_known = use.margin_bytes is not None
    capacity = f" of {format_bytes(use.capacity_bytes)}" if is_known else ""
    verdict = use.verdict.upper() if is_known else use.verdict
    host = result.host_memory
    on_host = f"; {format_bytes(host.bytes_per_host)} on host {host.host}: {host.verdict.upper()}" if host else ""
    return f"{format_bytes(use.needed_bytes)}{capacity} (rank {result.fullest_rank}): {verdict}{on_host}"
