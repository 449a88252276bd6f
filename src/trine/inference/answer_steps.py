"""The steps behind a serving answer as a timeline: a decode step, the first chunk of a prompt, and a mixed step."""

from __future__ import annotations

from collections.abc import Iterator

from trine.inference.deployment import resolve, step_timer
from trine.inference.job import ServingJob
from trine.inference.limits import limits_of
from trine.inference.loadstore import LOADSTORE, loadstore_timer, sequences_of
from trine.inference.step_graph import (
    NamedStep,
    SimulatedSteps,
    duration_ps,
    named_steps,
    simulate_steps,
    step_kernels,
)
from trine.inference.steps import PromptChunk, Step, StepTimer
from trine.report.serving_timeline import StepRow, StepSpan
from trine.results import timeline, waits
from trine.results.records import record_table
from trine.results.report import Timeline


def answer_steps(job: ServingJob, running: int) -> list[NamedStep]:
    """Return the steps that a load repeats. running: requests that the engine runs at a time, over all replicas.

    The decode step is in the middle of the output. The chunk is the first one of a prompt: as many tokens as fit in a
    step beside the decodes, or the whole prompt if the engine does not cut prompts.
    """
    deployment = resolve(job)
    limits = limits_of(job, deployment)
    sequences = sequences_of(job, running)
    drafts = 0 if job.speculation is None else job.speculation.drafts
    decode = Step(sequences, job.input_tokens + job.output_tokens / 2, drafts=drafts)
    cached = min(job.prefix_tokens, job.input_tokens - 1)
    new = job.input_tokens - cached
    batching = deployment.engine.batching
    if batching != "whole-prompts":
        beside = decode.tokens if batching == "mixed" else 0
        new = min(new, max(1, limits.budget - beside))
    chunk = Step(chunks=(PromptChunk(new, cached),))
    if job.phase == "decode":
        return named_steps(decode, None, mixes=False)
    if job.phase == "prefill":
        return named_steps(None, chunk, mixes=False)
    return named_steps(decode, chunk, mixes=batching != "prefill-first")


def simulated_steps(job: ServingJob, running: int) -> SimulatedSteps:
    """Return the task graph of :func:`answer_steps` with its times."""
    return simulate_steps(_timer_of(job, running), answer_steps(job, running))


def step_rows(job: ServingJob, running: int) -> list[StepRow]:
    """Return the kernels of :func:`answer_steps` for the timeline of a report."""
    timer = _timer_of(job, running)
    rows = []
    for each in answer_steps(job, running):
        rows.append(StepRow(_kind(each.step), each.title, tuple(_spans(timer, each.step))))
    return rows


def _kind(step: Step) -> str:
    """Return the kind of a step: of decodes, of a prompt, or of both."""
    if not step.decodes:
        return "prefill step"
    return "mixed step" if step.chunks else "decode step"


def _spans(timer: StepTimer, step: Step) -> Iterator[StepSpan]:
    """Yield the spans of a step in their order."""
    for kernel in step_kernels(timer, step):
        layer, _, name = kernel.name.rpartition(": ")
        yield StepSpan(name, layer, kernel.part, duration_ps(kernel))


def _timer_of(job: ServingJob, running: int) -> StepTimer:
    deployment = resolve(job)
    if job.fidelity == LOADSTORE:
        return loadstore_timer(job, deployment, sequences_of(job, running))
    return step_timer(deployment)


def step_timeline(job: ServingJob, running: int) -> Timeline:
    """Return :func:`simulated_steps` as a Perfetto trace."""
    simulated = simulated_steps(job, running)
    graph, records = simulated.graph, simulated.records
    reasons = waits.wait_reasons(graph, records, waits.releasers(graph, records))
    return Timeline(timeline.packets(graph, record_table(graph, records, reasons), None))
