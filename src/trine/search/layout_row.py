"""A layout as a row of the answer of ``trine plan``: its columns, with units and meanings."""

from __future__ import annotations

from dataclasses import dataclass

from trine.common.units import PS_PER_S
from trine.results.columns import Column, Columns
from trine.search.ranked import Ranked
from trine.search.space import Layout
from trine.search.worker import Outcome, per_second


@dataclass(frozen=True, slots=True)
class LayoutRow:
    """A layout with its place in the list, from 1 (0: the layout of a configuration file)."""

    rank: int
    ranked: Ranked

    @property
    def layout(self) -> Layout:
        """The layout."""
        return self.ranked.layout

    @property
    def outcome(self) -> Outcome:
        """The outcome of its simulation, or the screen's estimate."""
        return self.ranked.outcome

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second of all GPUs; None if samples have no tokens or the layout was refused."""
        outcome = self.outcome
        return None if outcome.tokens is None or not outcome.step_ps else per_second(outcome.tokens, outcome.step_ps)

    @property
    def samples_per_s(self) -> float | None:
        """Samples per second of all GPUs; None if the layout was refused."""
        return per_second(self.outcome.samples, self.outcome.step_ps) if self.outcome.step_ps else None

    @property
    def compute_ps(self) -> int | None:
        """Compute time of the step in ps; None if the layout is estimated."""
        return self._part("compute_ps")

    @property
    def exposed_ps(self) -> int | None:
        """Exposed communication of the step in ps; None if the layout is estimated."""
        return self._part("exposed_ps")

    @property
    def bubble_ps(self) -> int | None:
        """Bubble of the step in ps; None if the layout is estimated."""
        return self._part("bubble_ps")

    @property
    def idle_ps(self) -> int | None:
        """Other waits of the step in ps; None if the layout is estimated."""
        return self._part("idle_ps")

    def _part(self, name: str) -> int | None:
        return None if self.outcome.is_estimated else getattr(self.outcome, name)

    @property
    def communication_s(self) -> dict[str, float]:
        """Transfer time by axes, in seconds."""
        return {axis: ps / PS_PER_S for axis, ps in sorted(self.outcome.communication.items())}


_FIELD = "Field of the plan."
_PARTS = "Parts of the step on the slowest rank."
_RATES = "Throughput of all GPUs, and model FLOP/s over the peak."
_FITS = "Memory of the GPU; `fits`, `tight`, `does not fit` or `capacity unknown`."
_USUAL = "the software's default"


def _field(name: str, unit: str, null_if: str = "") -> Column:
    return Column(key=name, unit=unit, meaning=_FIELD, null_if=null_if, attribute=f"layout.{name}")


LAYOUT = Columns(
    Column(key="rank", unit="integer", meaning="Rank in the list (0: given)."),
    _field("dp", "integer"),
    _field("tp", "integer"),
    _field("pp", "integer"),
    _field("cp", "integer"),
    _field("ep", "integer"),
    _field("etp", "integer", _USUAL),
    _field("sharding", "text"),
    _field("shard_ways", "integer", _USUAL),
    _field("schedule", "text", _USUAL),
    _field("virtual_stages", "integer"),
    _field("micro_batch", "integer"),
    _field("sequence_parallel", "true/false", _USUAL),
    _field("recompute", "text"),
    _field("offload", "text"),
    _field("expert_overlap", "true/false"),
    _field("shared_expert_overlap", "true/false"),
    _field("dispatch", "text", _USUAL),
    Column(
        key="is_estimated", unit="true/false", meaning="Whether the screen estimated the row without a simulation.",
        attribute="outcome.is_estimated",
    ),
    Column(key="step_time_s", unit="s", meaning="Simulated or estimated step time.", attribute="outcome.step_ps"),
    Column(
        key="step_time_low_s", unit="s", meaning="Likely range of the step time.", null_if="unknown",
        attribute="outcome.low_ps",
    ),
    Column(
        key="step_time_high_s", unit="s", meaning="Likely range of the step time.", null_if="unknown",
        attribute="outcome.high_ps",
    ),
    Column(key="bound_s", unit="s", meaning="Lower bound of the step time (0: none).", attribute="ranked.bound_ps"),
    Column(
        key="screened_s", unit="s", meaning="The screen's estimate of the step time.", null_if="no screen",
        attribute="ranked.screened_ps", none=0,
    ),
    Column(key="tokens_per_s", unit="1/s", meaning=_RATES, null_if="unknown"),
    Column(key="samples_per_s", unit="1/s", meaning=_RATES, null_if="unknown"),
    Column(key="mfu", unit="fraction", meaning=_RATES, null_if="unknown", attribute="outcome.mfu"),
    Column(key="compute_s", unit="s", meaning=_PARTS, null_if="estimated", attribute="compute_ps"),
    Column(key="exposed_communication_s", unit="s", meaning=_PARTS, null_if="estimated", attribute="exposed_ps"),
    Column(key="bubble_s", unit="s", meaning=_PARTS, null_if="estimated", attribute="bubble_ps"),
    Column(key="idle_s", unit="s", meaning=_PARTS, null_if="estimated", attribute="idle_ps"),
    Column(
        key="communication_s", unit="object of numbers (s)",
        meaning="Transfer time of collectives by axes, hidden or exposed.",
    ),
    Column(
        key="memory_bytes", unit="bytes", meaning="Memory that the fullest GPU needs.", null_if="unknown",
        attribute="outcome.memory_bytes",
    ),
    Column(key="memory_capacity_bytes", unit="bytes", meaning=_FITS, attribute="outcome.capacity_bytes"),
    Column(key="memory_verdict", unit="text", meaning=_FITS, attribute="outcome.verdict"),
    Column(
        key="refused", unit="text", meaning="Reason why the layout cannot run.", null_if="it runs",
        attribute="outcome.refused", none="",
    ),
)  # fmt: skip
