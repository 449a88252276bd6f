"""Answer a serving question: resolve its names, time its steps, and follow the requests through the engine."""

from __future__ import annotations

from trine.inference.answer import ServingAnswer
from trine.inference.job import ServingJob


def answer(job: ServingJob) -> ServingAnswer:
    """Return the latency and throughput of ``job``.

    Raises InputError (one line) for an unknown engine, version or precision, a layout that does not divide the model,
    and a model or request that does not fit (with the missing bytes).
    """
    raise NotImplementedError
