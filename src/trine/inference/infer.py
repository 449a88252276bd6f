"""``trine.infer``: latency and throughput of a served model, from plain arguments."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

from trine.common.arguments import check_whole, named_arguments
from trine.errors import InputError
from trine.inference.answer import ServingAnswer
from trine.inference.calibrated import calibrated
from trine.inference.job import MAX_TOKENS, MAX_WAYS, ServingJob, ServingLayout, Speculation
from trine.inference.loadstore import FIDELITIES, LOADSTORE
from trine.inference.serve import answer
from trine.inference.stack import Stack, read_stack

if TYPE_CHECKING:
    from trine.cluster import Cluster
    from trine.workload.architecture.model import Architecture

PHASES = ("both", "prefill", "decode")


@named_arguments
def infer(
    model: Architecture | str,
    cluster: Cluster | str,
    *,
    input_tokens: int,
    output_tokens: int,
    concurrency: int | None = None,
    batch: int | None = None,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    attention_dp: int = 1,
    engine: str = "vllm",
    precision: str = "",
    kv_precision: str = "",
    prefix_tokens: int = 0,
    phase: Literal["both", "prefill", "decode"] = "both",
    fidelity: Literal["operator", "loadstore"] = "operator",
    speculation: Speculation | None = None,
    max_batched_tokens: int | None = None,
    max_sequences: int | None = None,
    memory_fraction: float | None = None,
    length_spread: float = 0.0,
    dollars_per_gpu_hour: float | None = None,
    stack: Stack | str | os.PathLike[str] | None = None,
) -> ServingAnswer:
    """Predict latency and throughput of one copy of a served model under a steady load.

    Parameters
    ----------
    model: name of a bundled model, path of a config.json, or an architecture.
    cluster: name of a preset (with enough nodes for the GPUs), or a cluster.
    input_tokens, output_tokens: of each request. prefix_tokens: of the prompt that the prefix cache holds.
    concurrency: requests in flight in a closed loop. batch: a static batch instead. Exactly one is needed.
    tp, pp, ep, attention_dp: the layout (:class:`trine.inference.job.ServingLayout`).
    engine: ``vllm``, ``sglang`` or ``trtllm``, with a version after a colon (``vllm:0.18``).
    fidelity: ``loadstore`` simulates the all-reduce of a decode step load by load (both times: ``answer.all_reduce``).
    stack: a calibrated stack, or the file of one that ``trine calibrate --serving`` wrote.
    Further parameters: the fields of :class:`trine.inference.job.ServingJob`.

    Returns the answer: ``answer.tpot_s.value``, ``print(answer.summary())``, ``answer.to_json(path)``.

    Raises InputError: an unknown name, a layout that does not divide the model, no room for one request, a number
    out of range, a stack of another model, GPU, engine or precision.
    """
    counts = {
        "input_tokens": input_tokens, "output_tokens": output_tokens, "concurrency": concurrency, "batch": batch,
        "max_batched_tokens": max_batched_tokens, "max_sequences": max_sequences,
    }  # fmt: skip
    for name, value in counts.items():
        if value is not None:
            check_whole(name, value, 1, MAX_TOKENS)
    check_whole("prefix_tokens", prefix_tokens, 0, MAX_TOKENS)
    for name, value in {"tp": tp, "pp": pp, "ep": ep, "attention_dp": attention_dp}.items():
        check_whole(name, value, 1, MAX_WAYS)
    if phase not in PHASES:
        raise InputError(f"must be one of {', '.join(PHASES)}; got {phase!r:.40}", field="phase")
    if fidelity not in FIDELITIES:
        raise InputError(f"must be one of {', '.join(FIDELITIES)}; got {fidelity!r:.40}", field="fidelity")
    if stack is not None and fidelity == LOADSTORE:
        raise InputError("a stack corrects the operator level: leave one of the two out", field="fidelity")
    _check_share(memory_fraction, "memory_fraction", 0.01, 1.0)
    _check_share(length_spread, "length_spread", 0.0, 0.99)
    name, _, version = engine.partition(":")
    job = ServingJob(
        model=model, cluster=cluster, input_tokens=input_tokens, output_tokens=output_tokens, concurrency=concurrency,
        batch=batch, prefix_tokens=prefix_tokens,
        layout=ServingLayout(tp=tp, pp=pp, ep=ep, attention_dp=attention_dp), precision=precision,
        kv_precision=kv_precision, engine=name, engine_version=version, phase=phase, fidelity=fidelity,
        speculation=speculation,
        max_batched_tokens=max_batched_tokens, max_sequences=max_sequences, memory_fraction=memory_fraction,
        length_spread=length_spread,
    )  # fmt: skip
    blind = answer(job, dollars_per_gpu_hour)
    return blind if stack is None else calibrated(blind, read_stack(stack))


def _check_share(value: float | None, field: str, low: float, high: float) -> None:
    """Raise InputError unless ``value`` is None or a number from ``low`` to ``high``."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise InputError(f"must be a share from {low:g} to {high:g}, got {value!r:.40}", field=field)
