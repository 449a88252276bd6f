"""A serving answer corrected by the measured points of its stack."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from trine.common.evidence import MEASURED, Evidence
from trine.inference.answer import ServingAnswer
from trine.inference.numbers import StepPart
from trine.inference.ranges import Estimate
from trine.inference.stack import Stack, StackScale


def calibrated(answer: ServingAnswer, stack: Stack) -> ServingAnswer:
    """Return a blind answer with the factors and ranges of a stack.

    The part of the end-to-end latency after the first token is scaled like TPOT, TTFT by its own factor; rates and
    costs follow. Raises InputError if the stack is another one.
    """
    stack.check(names_of(answer))
    steps = 1.0 if stack.tpot is None else stack.tpot.factor
    ttft = answer.ttft_s if answer.ttft_s is None else _scaled(answer.ttft_s, stack.ttft)
    tpot = answer.tpot_s if answer.tpot_s is None else _scaled(answer.tpot_s, stack.tpot)
    whole = _end_to_end(answer, stack)
    tokens = answer.output_tokens_per_s.value * answer.end_to_end_s.value
    rate = whole.per(tokens)
    prompts = answer.input_tokens_per_s_per_gpu.value * answer.end_to_end_s.value
    return replace(
        answer, ttft_s=ttft, tpot_s=tpot, end_to_end_s=whole, output_tokens_per_s=rate,
        tokens_per_s_per_gpu=rate.times(1 / answer.gpus),
        tokens_per_s_per_user=rate.times(1 / answer.requests) if tpot is None else tpot.per(1.0),
        input_tokens_per_s_per_gpu=whole.per(prompts),
        decode_step_s=answer.decode_step_s * steps, prefill_s=answer.prefill_s * steps,
        decode_parts=_parts(answer.decode_parts, steps), prefill_parts=_parts(answer.prefill_parts, steps),
        evidence=(Evidence("stack", MEASURED, statement(stack)), *answer.evidence), stack=stack,
        at_load=partial(_at_load, answer, stack),
    )  # fmt: skip


def _at_load(blind: ServingAnswer, stack: Stack, requests: int) -> ServingAnswer:
    """Return the calibrated answer with another number of requests."""
    return calibrated(blind.at_load(requests), stack)


def statement(stack: Stack) -> str:
    """Return the calibration in words: number of points and factors."""
    points = f"{stack.points} point{'s' if stack.points > 1 else ''}"
    parts = []
    for name, scale in (("TPOT", stack.tpot), ("TTFT", stack.ttft)):
        parts.append(f"{name} unchanged" if scale is None else f"{name} x {scale.factor:.3g}")
    return f"calibrated on {points}{f' of {stack.source}' if stack.source else ''}: {', '.join(parts)}"


def names_of(answer: ServingAnswer) -> dict[str, str]:
    """Return what identifies the stack of an answer."""
    return {"model": answer.model, "gpu": answer.gpu, "engine": answer.job.engine, "precision": answer.precision}


def _scaled(estimate: Estimate, scale: StackScale | None) -> Estimate:
    return estimate if scale is None else scale.scaled(estimate.value)


def _end_to_end(answer: ServingAnswer, stack: Stack) -> Estimate:
    """Return the end-to-end latency: TTFT by its own factor, the remainder by TPOT's factor and range."""
    blind = answer.end_to_end_s
    first = 0.0 if answer.ttft_s is None else min(answer.ttft_s.value, blind.value)
    steps = 1.0 if stack.tpot is None else stack.tpot.factor
    value = first * (1.0 if stack.ttft is None else stack.ttft.factor) + (blind.value - first) * steps
    if stack.tpot is None:
        return blind.times(value / blind.value)
    return Estimate(value, value * stack.tpot.low, value * stack.tpot.high)


def _parts(parts: tuple[StepPart, ...], factor: float) -> tuple[StepPart, ...]:
    return tuple(replace(part, seconds=part.seconds * factor) for part in parts)
