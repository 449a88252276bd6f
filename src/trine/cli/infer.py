"""``trine infer``: predict latency and throughput of a served model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from trine.cli.completions import engines, models, served_precisions
from trine.cli.machine import MachineOptions, group_machine
from trine.cli.options import LAYOUT, OUTPUT, Brief, Details, Json, Option, Perfetto, argument
from trine.cli.output import TIMELINE, drawn, say, show_answer, write_json, written
from trine.cli.parameters import Fields
from trine.errors import InputError

if TYPE_CHECKING:
    from trine.cluster import Cluster
    from trine.inference.job import Speculation

REQUESTS, ENGINE = "Requests", "Engine"


def infer(
    model: Annotated[str, argument("Model such as llama-3-70b, or a config.json.", "MODEL", values=models)],
    machine: Annotated[MachineOptions, Fields(only=("cluster",))],
    input_tokens: Annotated[int, Option("Tokens of a prompt.", "N", REQUESTS, ("--isl",))],
    output_tokens: Annotated[int, Option("Tokens of an answer.", "N", REQUESTS, ("--osl",))],
    concurrency: Annotated[int | None, Option("Keep N requests in flight.", "N", REQUESTS)] = None,
    batch: Annotated[int | None, Option("Serve one static batch of N requests.", "N", REQUESTS)] = None,
    prefix_tokens: Annotated[
        int, Option("Find N tokens of each prompt in the prefix cache.", "N", REQUESTS, ("--prefix",))
    ] = 0,
    length_spread: Annotated[float, Option("Vary lengths by up to this share of the mean.", "SHARE", REQUESTS)] = 0.0,
    tp: Annotated[int, Option("Tensor parallelism.", "N", LAYOUT)] = 1,
    pp: Annotated[int, Option("Pipeline stages.", "N", LAYOUT)] = 1,
    ep: Annotated[int, Option("Divide the experts among N GPUs.", "N", LAYOUT)] = 1,
    attention_dp: Annotated[int, Option("Replicas of the attention, which share the experts.", "N", LAYOUT)] = 1,
    engine: Annotated[
        str, Option("Choose the engine: vllm, sglang or trtllm, with :VERSION.", "NAME", ENGINE, values=engines)
    ] = "vllm",
    precision: Annotated[
        str, Option("Choose the precision of weights [as stored].", "NAME", ENGINE, values=served_precisions)
    ] = "",
    kv_precision: Annotated[
        str, Option("Choose the precision of the KV cache [the engine's].", "bf16|fp8", ENGINE, ("--kv-dtype",))
    ] = "",
    phase: Annotated[str, Option("Predict one kind of disaggregated worker.", "both|prefill|decode", ENGINE)] = "both",
    fidelity: Annotated[
        str, Option("Choose the level of detail of the decode step's all-reduce.", "operator|loadstore", ENGINE)
    ] = "operator",
    speculation: Annotated[
        str | None,
        Option("Draft K tokens a step, each accepted with this probability.", "K:PROBABILITY", ENGINE, ("--spec",)),
    ] = None,
    max_batched_tokens: Annotated[int | None, Option("Limit the tokens of a step [the engine's].", "N", ENGINE)] = None,
    max_sequences: Annotated[int | None, Option("Limit the requests of a step [the engine's].", "N", ENGINE)] = None,
    memory_fraction: Annotated[
        float | None, Option("Use this share of the GPU's memory [the engine's].", "SHARE", ENGINE)
    ] = None,
    stack: Annotated[str | None, Option("Correct times by this calibrated stack.", "FILE", ENGINE)] = None,
    price: Annotated[str | None, Option("Set dollars per GPU-hour, or a dated file.", "USD|FILE", OUTPUT)] = None,
    plot: Annotated[str | None, Option("Draw the step by part, and throughput over loads.", "FILE", OUTPUT)] = None,
    perfetto: Perfetto = None,
    brief: Brief = False,
    details: Details = False,
    json: Json = None,
) -> None:
    """Predict latency and throughput of MODEL served on GPUs: TTFT, TPOT, tokens/s, KV cache.

    Example: trine infer llama-3-70b --cluster hgx-h200 --tp 4 --isl 1024 --osl 1024 --concurrency 64
    """
    from trine.inference.infer import infer as predict

    gpus = tp * pp * attention_dp
    cluster = _machine(machine, gpus)
    settings: dict[str, Any] = {
        "input_tokens": input_tokens, "output_tokens": output_tokens, "concurrency": concurrency, "batch": batch,
        "prefix_tokens": prefix_tokens, "length_spread": length_spread, "tp": tp, "pp": pp, "ep": ep,
        "attention_dp": attention_dp, "engine": engine, "precision": precision, "kv_precision": kv_precision,
        "phase": phase, "fidelity": fidelity,
        "speculation": None if speculation is None else read_speculation(speculation),
        "max_batched_tokens": max_batched_tokens, "max_sequences": max_sequences, "memory_fraction": memory_fraction,
        "stack": stack,
    }  # fmt: skip
    dollars = None if price is None else _dollars(price, cluster)
    answer = predict(model, cluster, **settings, dollars_per_gpu_hour=dollars)
    show_answer(answer, json, brief, details)
    write_json(answer, json, "infer")
    drawn(plot, answer)
    written(perfetto, answer.to_perfetto, TIMELINE)


def read_speculation(text: str) -> Speculation:
    """Return ``3:0.7`` as drafts and acceptance. Raises InputError for another form, or numbers out of range."""
    from trine.common.units import finite_number, whole_number
    from trine.inference.job import MAX_DRAFTS, Speculation

    drafts, _, acceptance = text.partition(":")
    count, share = whole_number(drafts, most=MAX_DRAFTS), finite_number(acceptance)
    if not count or share is None or not 0 < share <= 1:
        message = (
            f"takes K:PROBABILITY with K from 1 to {MAX_DRAFTS} and a probability above 0 and at most 1, "
            f"such as 3:0.7; got {text[:40]!r}"
        )
        raise InputError(message, field="--spec")
    return Speculation(drafts=count, acceptance=share)


def _machine(options: MachineOptions, gpus: int) -> Cluster:
    """Return the GPUs of the layout on the cluster."""
    if options.cluster is None:
        raise InputError("add a machine: --cluster NAME or FILE, such as --cluster hgx-h200")
    cluster, warnings = group_machine(replace(options, gpus=gpus))
    for warning in warnings:
        say(f"note: {warning}")
    return cluster


def _dollars(price: str, cluster: Cluster) -> float:
    """Return dollars per GPU-hour of the cluster's GPUs."""
    from trine.decide.cost import read_price
    from trine.inference.communication import gpu_of

    return read_price(price).of(gpu_of(cluster).name)
