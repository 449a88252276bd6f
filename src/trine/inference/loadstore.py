"""The decode step's all-reduce, run load by load and store by store in place of its measured table."""

from __future__ import annotations

import numpy as np

from trine.common.plugins import load_target
from trine.common.units import format_bytes
from trine.errors import InputError
from trine.inference.communication import Communication
from trine.inference.job import ServingJob
from trine.inference.products import TOKENS
from trine.inference.simulated_all_reduce import SimulatedAllReduce
from trine.inference.steps import ACTIVATION, Deployment, StepTimer

LOADSTORE, FIDELITIES = "loadstore", ("operator", "loadstore")
_COSTS = "trine.gpu.collective.costs:kept_costs"


def sequences_of(job: ServingJob, running: int) -> int:
    """Return the sequences of a decode step when ``running`` requests run over all replicas and micro-batches."""
    return max(1, -(-running // (job.layout.attention_dp * job.layout.pp)))


def decode_bytes(job: ServingJob, deployment: Deployment, sequences: int) -> int:
    """Return the bytes of one all-reduce of a decode step of ``sequences`` requests."""
    drafts = 0 if job.speculation is None else job.speculation.drafts
    return sequences * (1 + drafts) * deployment.model.hidden * ACTIVATION


def loadstore_timer(job: ServingJob, deployment: Deployment, sequences: int) -> StepTimer:
    """Return a timer whose all-reduces up to the size of a decode step are simulated.

    Raises InputError if no decode step has an all-reduce by the engine's own kernel.
    """
    num_bytes = decode_bytes(job, deployment, sequences)
    _check(job, deployment, num_bytes)
    tokens = num_bytes / (deployment.model.hidden * ACTIVATION)
    above = TOKENS[min(int(np.searchsorted(TOKENS, tokens)), len(TOKENS) - 1)]
    most_bytes = max(num_bytes, float(above) * deployment.model.hidden * ACTIVATION)
    simulated = SimulatedAllReduce(load_target(_COSTS)(deployment.cluster), most_bytes)
    return StepTimer(deployment, Communication(deployment.cluster, deployment.engine, simulated))


def _check(job: ServingJob, deployment: Deployment, num_bytes: int) -> None:
    """Raise InputError if the load-store level would change nothing."""
    tp, engine = deployment.layout.tp, deployment.engine
    limit = engine.custom_all_reduce_bytes.get(tp, 0)
    why = ""
    if job.phase == "prefill" or job.output_tokens == 1:
        why = "no step decodes"
    elif tp == 1:
        why = "tp 1 has no all-reduce"
    elif not Communication(deployment.cluster, engine).has_all_reduce_kernel(tp):
        why = f"{engine.title} sums tensors of {tp} GPUs here with the library, not with its own kernel"
    elif num_bytes > limit:
        most = format_bytes(limit)
        why = f"a decode step sums {format_bytes(num_bytes)}, and {engine.title}'s own kernel at most {most}"
    if why:
        raise InputError(f"{LOADSTORE} changes nothing: {why}", field="fidelity")
