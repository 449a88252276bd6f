"""The programs of the latest jobs, for later jobs that differ in the batch or the network alone.

A step's programs contain few of its micro-batches (:mod:`trine.folding.period`), so they depend on neither. Sweeps ask
for many such jobs, and writing programs is half of the work.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import TYPE_CHECKING

from trine.graph.workload import SYNTHESISED
from trine.parallel.build import WrittenJob, write_job
from trine.parallel.stage import FORMS
from trine.parallel.token_dispatch import DEEPEP

if TYPE_CHECKING:
    from trine.training.setup import Setup

#: Most steps of all kept programs, about 500 bytes each.
MAX_STEPS = 100_000
#: The latest programs by :func:`_key`. Their context holds the objects whose ids are part of the key.
_kept: dict[Hashable, WrittenJob] = {}


def written_job(setup: Setup, simulated: int | None) -> tuple[Setup, WrittenJob]:
    """Return the programs of a job with ``simulated`` micro-batches (None: all).

    The setup has the operator times that wrote them: these take notes while programs are written.
    """
    key = _key(setup, simulated)
    kept = _kept.pop(key, None)
    written = None if kept is None else kept.with_batch(setup.plan)
    if kept is None or written is None:
        kept = written = write_job(setup.job_context(simulated), setup.has_host)
    if key is None:
        return setup, written
    _kept[key] = kept
    while sum(each.num_steps for each in _kept.values()) > MAX_STEPS:
        del _kept[next(iter(_kept))]
    return replace(setup, gpus=replace(setup.gpus, models=(written.context.compute,))), written


def _key(setup: Setup, simulated: int | None) -> Hashable:
    """Return all that programs depend on besides the batch; None if they depend on more, or hold all micro-batches.

    The operator times of a synthesised workload on its own GPU are part of the workload.
    """
    plan, options = setup.plan, setup.options
    depends_on_more = (
        simulated is None or setup.workload.format != SYNTHESISED or setup.times.predicted_for is not None
        or len(setup.gpus.models) > 1 or setup.cap is not None or options.calibration is not None or bool(FORMS)
        or plan.data == "dp" or plan.sync_every is not None or bool(plan.replica_batches) or plan.overlap == "none"
        or plan.userbuffers or plan.tp_overlap > 1 or plan.dispatch == DEEPEP  # then on the cluster too
    )  # fmt: skip
    if depends_on_more:
        return None
    return (
        id(setup.workload), id(setup.software.profile), replace(plan, batch=None), setup.compute, setup.slower,
        tuple((clock.limit_w, clock.clock) for clock in setup.clocks),
        setup.launch, setup.has_host, setup.host_bytes_per_s, simulated,
    )  # fmt: skip
