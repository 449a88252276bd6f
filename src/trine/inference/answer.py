"""The answer of ``trine infer``: its numbers as text, JSON and tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from trine.inference import screen
from trine.inference.job import ServingJob
from trine.inference.numbers import ServingNumbers, StepPart
from trine.inference.ranges import Estimate
from trine.results.report import Report, Row, Table, Timeline

if TYPE_CHECKING:
    from trine.report.run_blocks import RunBlocks

__all__ = ["Estimate", "ServingAnswer", "StepPart"]


@dataclass(frozen=True, kw_only=True, repr=False)
class ServingAnswer(ServingNumbers, Report):
    """Predicted latency and throughput of one copy of the model: :class:`ServingNumbers` as a report.

    at_load: returns the answer to the same question with another number of requests, at the operator level.
    """

    SCHEMA: ClassVar[str] = "infer"

    at_load: Callable[[int], ServingAnswer] = field(compare=False)

    @property
    def headline(self) -> str:
        """The result in one line."""
        return screen.headline(self)

    def summary(self) -> str:
        """Return the answer on one screen."""
        return screen.first_screen(self).text()

    def details(self) -> str:
        """Return the answer with all parts, evidence and effects left out."""
        return screen.details(self)

    def document(self) -> Row:
        """Return all numbers as plain data."""
        found: dict[str, Any] = {"question": _question(self.job)}
        for name in _PLAIN:
            found[name] = getattr(self, name)
        for name in _ESTIMATES:
            estimate = getattr(self, name)
            found[name] = None if estimate is None else asdict(estimate)
        found["stack"] = None if self.stack is None else self.stack.model_dump()
        found["all_reduce"] = None if self.all_reduce is None else asdict(self.all_reduce)
        found["decode_parts"] = [asdict(part) for part in self.decode_parts]
        found["prefill_parts"] = [asdict(part) for part in self.prefill_parts]
        found["evidence"] = [asdict(each) for each in self.evidence]
        found["warnings"] = screen.warnings(self)
        found["notes"] = list(screen.assumptions(self))
        found["not_modelled"] = list(self.not_modelled)
        return found

    def timeline(self) -> Timeline:
        """Return a decode step, the first chunk of a prompt, and a mixed step if the engine has them, kernel by kernel.

        Times are without the correction of a stack, as a note of the file states.
        """
        from trine.inference.answer_steps import step_timeline

        notes = () if self.stack is None else ("the timeline is without the correction of the stack",)
        return step_timeline(self.job, self.running)._replace(notes=notes)

    def run_blocks(self) -> RunBlocks:
        """Return the timeline of the same steps as in :meth:`timeline`, for a report."""
        from trine.inference.answer_steps import step_rows
        from trine.report.run_blocks import RunBlocks
        from trine.report.serving_timeline import steps_timeline

        note = "" if self.stack is None else "Times are without the correction of the stack."
        return RunBlocks(timeline=steps_timeline(step_rows(self.job, self.running), note))

    def pictures(self) -> Mapping[str, Callable[..., Any]]:
        """Return the picture of the step by part, and of throughput over loads."""
        return {"serving": self._draw}

    def _draw(self) -> Any:
        from trine.inference.answer_picture import draw_answer, loads_of

        return draw_answer(self, self.headline, [self.at_load(requests) for requests in loads_of(self)])

    def record(self) -> Row:
        """Return one flat row: the plain numbers, and the middle of each estimate."""
        found: dict[str, Any] = {name: getattr(self, name) for name in _PLAIN}
        for name in _ESTIMATES:
            estimate = getattr(self, name)
            found[name] = None if estimate is None else estimate.value
        return found

    def tables(self) -> Mapping[str, Table]:  # type: ignore[override]
        """Return the parts of a decode step and of a prompt."""
        return {
            "decode": [asdict(part) for part in self.decode_parts],
            "prefill": [asdict(part) for part in self.prefill_parts],
        }


#: Plain fields in JSON, and estimates (value, low, high).
_PLAIN = (
    "model", "gpu", "cluster", "gpus", "engine", "precision", "kv_precision", "ttft_refusal", "running", "queues",
    "limit", "largest_concurrency", "max_context_tokens", "kv_capacity_tokens", "kv_bytes_per_token", "kv_bytes",
    "weights_bytes", "activations_bytes", "decode_step_s", "prefill_s", "bound", "power_w", "dollars_per_gpu_hour",
)  # fmt: skip
_ESTIMATES = (
    "ttft_s", "tpot_s", "end_to_end_s", "output_tokens_per_s", "tokens_per_s_per_gpu", "tokens_per_s_per_user",
    "input_tokens_per_s_per_gpu", "dollars_per_million_tokens", "joules_per_million_tokens",
)  # fmt: skip


def _question(job: ServingJob) -> dict[str, Any]:
    """Return the request: layout, lengths and load."""
    layout = job.layout
    return {
        "tp": layout.tp, "pp": layout.pp, "ep": layout.ep, "attention_dp": layout.attention_dp,
        "input_tokens": job.input_tokens, "output_tokens": job.output_tokens, "prefix_tokens": job.prefix_tokens,
        "batch": job.batch, "concurrency": job.concurrency, "phase": job.phase,
        "fidelity": job.fidelity,
        "length_spread": job.length_spread,
        "drafts": 0 if job.speculation is None else job.speculation.drafts,
        "acceptance": None if job.speculation is None else job.speculation.acceptance,
    }  # fmt: skip
