"""The answer of ``trine infer`` as text: one line, one screen, or everything."""

from __future__ import annotations

from collections.abc import Callable

from trine.common.units import PS_PER_S, format_bytes, format_time
from trine.inference.numbers import AllReduceLevels, ServingNumbers, StepPart
from trine.inference.ranges import Estimate
from trine.results.screen import Listing, Screen
from trine.results.text import gpus_words, wrapped_at

#: The part of a step with attention, or with a recurrence.
_ATTENTION = "attention and KV cache"
#: Words for the kind of worker.
_PHASES = {"both": "", "prefill": ", prefill worker", "decode": ", decode worker"}
#: Column of the text behind a label.
_COLUMN = 14


def headline(answer: ServingNumbers) -> str:
    """Return the question and the main numbers in one line."""
    per_gpu = f"{number_words(answer.tokens_per_s_per_gpu.value)} tokens/s per GPU"
    if answer.job.phase == "prefill":
        return f"{_question(answer)}: {answer.input_tokens_per_s_per_gpu.value:,.0f} prompt tokens/s per GPU"
    if answer.tpot_s is None:
        return f"{_question(answer)}: {per_gpu}"
    return f"{_question(answer)}: TPOT {seconds_words(answer.tpot_s.value)}, {per_gpu}"


def _question(answer: ServingNumbers) -> str:
    job, layout = answer.job, answer.job.layout
    ways = [f"tp {layout.tp}"]
    for name, value in (("pp", layout.pp), ("ep", layout.ep), ("attention dp", layout.attention_dp)):
        if value > 1:
            ways.append(f"{name} {value}")
    load = f"batch {job.batch:,}" if job.batch is not None else f"{job.concurrency:,} in flight"
    gpus = f"{answer.gpus} x {answer.gpu.upper()}"
    return (
        f"{answer.model} ({answer.precision}) on {gpus}, {answer.engine}, {' x '.join(ways)}: "
        f"{job.input_tokens:,} + {job.output_tokens:,} tokens, {load}{_PHASES[job.phase]}"
    )


def first_screen(answer: ServingNumbers) -> Screen:
    """Return the answer on one screen."""
    return Screen(
        question=_question(answer),
        numbers=_numbers(answer),
        listings=[Listing(title=step_title(answer), rows=[_part_row(answer, part) for part in shown_parts(answer)])],
        warnings=warnings(answer),
        closing=_closing(answer),
    )


def _numbers(answer: ServingNumbers) -> list[tuple[str, str, str]]:
    rows = []
    if answer.ttft_s is not None:
        rows.append(("TTFT", *_ranged(answer.ttft_s, seconds_words)))
    else:
        rows.append(("TTFT", "not given", answer.ttft_refusal))
    if answer.tpot_s is not None:
        value, likely = _ranged(answer.tpot_s, seconds_words)
        rows.append(("TPOT", value, f"{likely}; per token after the first"))
    if answer.tpot_s is not None or answer.ttft_s is None:  # otherwise a request ends with its first token
        rows.append(("end to end", *_ranged(answer.end_to_end_s, seconds_words)))
    if answer.job.phase == "prefill":
        rows.append(
            ("throughput", *_ranged(answer.input_tokens_per_s_per_gpu, number_words, " prompt tokens/s per GPU"))
        )
    else:
        value, likely = _ranged(answer.output_tokens_per_s, number_words, " tokens/s")
        per_user = answer.tokens_per_s_per_user.value
        each = f"{number_words(answer.tokens_per_s_per_gpu.value)} per GPU, {number_words(per_user)} per user"
        rows.append(("throughput", value, f"{likely}; {each}"))
    rows.append((_memory_label(answer), f"{format_bytes(max(answer.kv_bytes, 0))} per GPU", _capacity(answer)))
    if answer.all_reduce is not None:
        time = format_time(answer.all_reduce.loadstore_s * PS_PER_S)
        rows.append(("all-reduce", time, _all_reduce_words(answer.all_reduce)))
    rows += _costs(answer)
    return rows


def _all_reduce_words(levels: AllReduceLevels) -> str:
    """Return the simulated program, and the operator level's time with its TPOT."""
    tpot = ""
    if levels.operator_tpot_s is not None:
        tpot = f" (TPOT {seconds_words(levels.operator_tpot_s)})"
    size = f"{format_bytes(levels.num_bytes)} on {gpus_words(levels.ways)}, {levels.program}, load by load"
    return f"{size}; operator level: {format_time(levels.operator_s * PS_PER_S)}{tpot}"


def _capacity(answer: ServingNumbers) -> str:
    tokens = f"{answer.kv_capacity_tokens:,} tokens a replica; " if answer.kv_capacity_tokens else ""
    limit = _memory_words(answer, answer.limit)
    return f"{tokens}at most {answer.largest_concurrency:,} requests at a time (limit: {limit})"


def _memory_label(answer: ServingNumbers) -> str:
    """Return the name of a request's memory: a KV cache, or states of a model without attention."""
    return "KV cache" if _has_attention(answer) else "states"


def _memory_words(answer: ServingNumbers, limit: str) -> str:
    """Return a limit in words."""
    return _memory_label(answer) if limit == "KV cache" else limit


def _has_attention(answer: ServingNumbers) -> bool:
    return any(each.what == "attention" for each in answer.evidence)


def _costs(answer: ServingNumbers) -> list[tuple[str, str, str]]:
    tokens = "prompt tokens" if answer.job.phase == "prefill" else "tokens"
    rows = []
    if (dollars := answer.dollars_per_million_tokens) is not None:
        rows.append(("price", *_ranged(dollars, _dollars, f" per million {tokens}")))
    if (joules := answer.joules_per_million_tokens) is not None:
        rows.append(("energy", *_ranged(joules.times(1e-3), number_words, f" kJ per million {tokens}")))
    return rows


def _ranged(estimate: Estimate, words: Callable[[float], str], unit: str = "") -> tuple[str, str]:
    """Return a value with its unit and its likely range, in words."""
    return f"{words(estimate.value)}{unit}", f"likely {words(estimate.low)} to {words(estimate.high)}"


def number_words(value: float) -> str:
    """Return a number with three digits, without an exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _dollars(value: float) -> str:
    return f"${number_words(value)}"


def seconds_words(value: float) -> str:
    """Return a time with its unit."""
    return f"{number_words(value)} s" if value >= 1 else f"{number_words(value * 1e3)} ms"


def step_title(answer: ServingNumbers) -> str:
    """Return the load, time and bound of the step that the phase repeats."""
    if _has_no_decode(answer):
        return f"one prompt alone: {seconds_words(answer.prefill_s)}"
    return (
        f"a decode step of {answer.running:,} requests: {seconds_words(answer.decode_step_s)}, "
        f"bound by {_memory_words(answer, answer.bound)}"
    )


def _has_no_decode(answer: ServingNumbers) -> bool:
    """Return whether no step decodes: a prefill worker, or answers of one token, which the prefill makes."""
    return answer.job.phase == "prefill" or answer.job.output_tokens == 1


def shown_parts(answer: ServingNumbers) -> list[StepPart]:
    """Return the parts of the step that the phase repeats, the longest first."""
    parts = answer.prefill_parts if _has_no_decode(answer) else answer.decode_parts
    return sorted((part for part in parts if part.seconds > 0), key=lambda part: -part.seconds)


def _part_row(answer: ServingNumbers, part: StepPart) -> tuple[str, ...]:
    name = "recurrence and states" if part.name == _ATTENTION and not _has_attention(answer) else part.name
    return name, seconds_words(part.seconds), f"{part.share:.0%}"


def assumptions(answer: ServingNumbers) -> tuple[str, ...]:
    """Return the notes that are no warnings."""
    shown = warnings(answer)
    return tuple(note for note in answer.notes if note not in shown)


def warnings(answer: ServingNumbers) -> list[str]:
    """Return what to read before the numbers: weights without a precision, long requests, requests that queue."""
    found = [warning for warning in (answer.weights_warning, answer.context_warning) if warning]
    if not answer.queues:
        return found
    limit = _memory_words(answer, answer.limit)
    return [
        *found,
        f"{answer.requests:,} requests are more than the {answer.largest_concurrency:,} that fit ({limit}): "
        "the others queue, and end-to-end latency contains their wait",
    ]


def _closing(answer: ServingNumbers) -> list[tuple[str, str]]:
    kinds = [f"{each.what}: {each.kind}" for each in answer.evidence]
    if answer.stack is not None:
        kinds[0] = f"calibrated on {answer.stack.points} point{'s' if answer.stack.points > 1 else ''} of this stack"
    rests = "; ".join(kinds)
    return [
        ("rests on", rests),
        ("next", "--details for evidence and assumptions; --plot FILE; --report FILE; --perfetto FILE"),
    ]


def details(answer: ServingNumbers) -> str:
    """Return the answer with the parts of both phases, memory, evidence, assumptions and effects left out."""
    lines = [_question(answer), ""]
    for name, value, likely in _numbers(answer):
        lines += wrapped_at(f"  {name}", f"{value}   {likely}", _COLUMN)
    lines += ["", "memory of one GPU"]
    for name, size in (("weights", answer.weights_bytes), ("activations", answer.activations_bytes)):
        lines.append(f"  {name:12}{format_bytes(size)}")
    kept = (
        f"{answer.kv_precision}, {answer.kv_bytes_per_token:,.0f} bytes a token"
        if _has_attention(answer)
        else "float32"
    )
    lines.append(f"  {_memory_label(answer):12}{format_bytes(max(answer.kv_bytes, 0))}, {kept}")
    for title, parts in (("decode step", answer.decode_parts), ("one prompt alone", answer.prefill_parts)):
        lines += ["", title]
        for part in parts:
            name, seconds, share = _part_row(answer, part)
            lines.append(f"  {name:24}{seconds:>10}{share:>6}")
    lines += ["", "evidence"]
    for each in answer.evidence:
        lines += wrapped_at(f"  {each.kind}", f"{each.what}: {each.detail}", _COLUMN + 2)
    lines += _paragraphs("warnings", tuple(warnings(answer)))
    lines += _paragraphs("assumptions", assumptions(answer)) + _paragraphs("not modelled", answer.not_modelled)
    return "\n".join(lines)


def _paragraphs(title: str, sentences: tuple[str, ...]) -> list[str]:
    lines = ["", title] if sentences else []
    for sentence in sentences:
        lines += wrapped_at("  -", sentence, 4)
    return lines
