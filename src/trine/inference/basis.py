"""The basis of a serving answer: evidence of its parts, assumptions in words, and effects left out."""

from __future__ import annotations

from trine.common.evidence import ASSUMED, INTERPOLATED, MODELLED, Evidence
from trine.inference.communication import Communication, all_reduce_kernels, exchange_kernel
from trine.inference.context import context_warning
from trine.inference.job import ServingJob
from trine.inference.limits import Limits
from trine.inference.precision import has_precision
from trine.inference.recurrence_times import RECURRENCES
from trine.inference.steps import Deployment, StepTimer
from trine.workload.architecture.blocks import CompressedAttention, Mixture

NOT_MODELLED = (
    "arrivals at a rate, and their queues (the clients keep a fixed number of requests in flight)",
    "eviction from the prefix cache, and preemption of running requests",
    "rebalancing of experts, and offloading of the KV cache",
)

#: Source of collectives without a kernel of the engine.
_LIBRARY = "NCCL's algorithms and software costs (see `trine collective`)"
_SIMULATED = (
    "up to the size of a decode step, run load by load and store by store (trine help levels); larger ones have the "
    "table of the engine's kernel, or the library's costs"
)
_WEIGHT_ONLY = (
    "measured 16-bit GEMMs, and published kernels that widen weights to 16 bits (Marlin, Machete, TensorRT-LLM's)"
)
#: Form of stored weights whose kernels have the times of another precision -> warning.
_OTHER_KERNELS = {"w8a8": "weights and activations are stored in 8-bit integers: their GEMMs take the times of FP8"}
_TOKENISES = {"together": "all waiting prompts at once", "one-by-one": "one prompt after the other"}


def evidence_of(deployment: Deployment, timer: StepTimer) -> tuple[Evidence, ...]:
    """Return the evidence of each kind of time, the surest first within an answer."""
    measured = "measured GEMMs of this GPU or a sibling (aiconfigurator)"
    source = _WEIGHT_ONLY if timer.products_evidence == MODELLED else measured
    found = [Evidence("GEMMs", timer.products_evidence, source)]
    mixers = list(timer.mixers)
    if not all(isinstance(mixer, RECURRENCES) for mixer in mixers):
        source = "measured kernels of inference engines (aiconfigurator)"
        found.append(Evidence("attention", timer.attention_evidence, source))
    if any(isinstance(mixer, RECURRENCES) for mixer in mixers):
        source = "bytes of the states, FLOPs of a prompt, and shares of the peaks from kernels of vLLM (aiconfigurator)"
        found.append(Evidence("recurrence", MODELLED, source))
    if any(isinstance(layer.feed_forward, Mixture) for layer in deployment.model.layers):
        found.append(Evidence("experts", timer.experts_evidence, "measured grouped GEMMs, loads by a power law"))
    found += _collectives_evidence(deployment, timer.communication)
    found.append(Evidence("CPU", ASSUMED, deployment.engine.sources["host_us"]))
    return tuple(found)


def _collectives_evidence(deployment: Deployment, communication: Communication) -> list[Evidence]:
    """Return the evidence of the collectives that the layout has."""
    layout, found = deployment.layout, []
    if layout.tp > 1:
        table = all_reduce_kernels()
        if communication.simulated is not None:
            found.append(Evidence("all-reduce", MODELLED, _SIMULATED))
        elif not communication.has_all_reduce_kernel(layout.tp):
            found.append(Evidence("all-reduce", MODELLED, _LIBRARY))
        elif deployment.gpu.name == table.gpu:
            found.append(Evidence("all-reduce", INTERPOLATED, table.source))
        else:
            found.append(Evidence("all-reduce", MODELLED, table.source))
    has_experts = any(isinstance(layer.feed_forward, Mixture) for layer in deployment.model.layers)
    if has_experts and layout.attention_dp > 1:
        is_kernel = communication.has_exchange_kernel(layout.stage_gpus)
        found.append(Evidence("exchange", MODELLED, exchange_kernel().source if is_kernel else _LIBRARY))
    return found


def _kept_words(deployment: Deployment) -> str:
    """Return what the engine keeps of requests, in words."""
    if all(isinstance(mixer, RECURRENCES) for mixer in deployment.model.mixers()):
        return "states in float32"
    return f"KV cache in {deployment.kv}, blocks of {deployment.engine.block_tokens} tokens"


def weights_warning(job: ServingJob, deployment: Deployment) -> str:
    """Return a warning if the weights are stored in a form without its kernels in trine, else an empty text."""
    stored = deployment.model.stored
    if job.precision:
        return ""
    if has_precision(stored):
        return _OTHER_KERNELS.get(stored, "")
    return (
        f"the weights are stored as {stored}, for which trine has no kernels: 16 bits assumed; --precision int4 or "
        "int8 has integers of 4 or 8 bits"
    )


def _has_experts(deployment: Deployment) -> bool:
    return any(isinstance(layer.feed_forward, Mixture) for layer in deployment.model.layers)


def notes_of(job: ServingJob, deployment: Deployment, limits: Limits) -> tuple[str, ...]:
    """Return the assumptions as sentences."""
    engine = deployment.engine
    found = [
        f"{engine.title} {engine.version}: at most {limits.budget:,} tokens and {limits.sequences:,} sequences a step; "
        + _kept_words(deployment),
    ]
    if job.phase != "prefill":
        found.append(
            "a step of decodes alone is padded to the size of a CUDA graph; steps with prompts are not; "
            "tokens of padding are alike and choose the same experts"
        )
    if job.concurrency is not None and job.phase != "decode":
        found.append(
            "clients start together and send the next request when one ends; lengths "
            + (
                f"differ by up to {job.length_spread:.0%}"
                if job.length_spread
                else "are equal, which keeps them in step"
            )
        )
        found.append(
            f"{engine.front_end_us / 1e3:g} ms of HTTP per request, and {engine.tokenise_us:g} us to tokenise each "
            f"token of its prompt, {_TOKENISES[engine.tokenises]}"
        )
        if job.poll_steps > 1:
            found.append(f"the scheduler looks at new requests every {job.poll_steps:,} decode steps")
    if job.phase == "decode":
        found.append("the KV cache of a prompt arrives while other requests decode; its transfer is not in TPOT")
    if engine.batching == "whole-prompts":
        found.append("the limit of tokens per step is raised, if needed, so that one prompt fits beside all decodes")
    if _has_experts(deployment):
        found.append("tokens choose experts by a power law with exponent 1.01, as in the measurements")
    if any(isinstance(layer.mixer, CompressedAttention) for layer in deployment.model.layers):
        found.append("compressed attention takes the time of latent attention with the same number of keys")
    if job.speculation is not None:
        found.append(
            f"{job.speculation.drafts} drafts a step, each accepted with probability {job.speculation.acceptance:g}: "
            f"{job.speculation.tokens_per_step:.2f} tokens a step; a draft costs one layer and the head"
        )
    if warning := weights_warning(job, deployment):
        found.append(warning)
    model, tokens = deployment.model, job.input_tokens + job.output_tokens
    if warning := context_warning(model.name, model.max_context, tokens):
        found.append(warning)
    if model.towers:
        found.append("prompts have no images: encoders take memory, but no time")
    return tuple(found)
