"""Host memory of a job with offload: bytes of each host's ranks against the host's capacity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from trine.graph.grid import RankGrid
from trine.results.host_memory import HostMemory

if TYPE_CHECKING:
    from trine.parallel.build import WrittenJob
    from trine.parallel.plan import Plan
    from trine.training.setup import Setup


def host_memory_of(setup: Setup, per_stage: Sequence[int] | None = None) -> HostMemory | None:
    """Return the offloaded data of the fullest host; None without offload or hosts.

    The host of a rank is its node, with the memory of all host devices there; without nodes, the nearest host device.
    per_stage: host bytes of a rank of each stage (:func:`written_host_bytes`); None: from programs written for it.
    """
    plan, machine = setup.plan, setup.machine
    if plan.offload == "none" or machine is None or not setup.has_host:
        return None
    gpus = np.asarray(machine.gpus, np.int64)[setup.places]
    devices = machine.hosts_of(gpus)
    place_of = np.where(machine.node_of < 0, -1 - np.arange(len(machine.node_of)), machine.node_of)
    stage = RankGrid(plan.axes).coordinates(np.arange(plan.num_ranks, dtype=np.int64), "pp") if plan.pp > 1 else 0
    held_by_rank = _bytes_per_stage(setup) if per_stage is None else per_stage
    per_rank = np.array(held_by_rank, np.int64)[stage] * np.ones(plan.num_ranks, np.int64)
    places, index, ranks = np.unique(place_of[devices], return_inverse=True, return_counts=True)
    held = np.zeros(len(places), np.int64)
    np.add.at(held, index, per_rank)
    table = machine.device_table
    memory = np.array([kind.memory_bytes or 0 for kind in table.kinds], np.int64)[table.kind]
    capacity = np.array([memory[place_of == place].sum() for place in places.tolist()], np.int64)
    fullest = int(np.argmin(capacity - held))
    place = int(places[fullest])
    return HostMemory(
        host=table.node_names[place] if place >= 0 else machine.device_name(-1 - place),
        bytes_per_host=int(held[fullest]), capacity_bytes=int(capacity[fullest]), ranks=int(ranks[fullest]),
        hosts=len(places),
    )  # fmt: skip


def written_host_bytes(setup: Setup, written: WrittenJob) -> tuple[int, ...] | None:
    """Return the host bytes of a rank of each stage from a job's own programs; None if these may hold too little.

    They do if they have one step, one program for each stage, and as many micro-batches as the peak needs.
    """
    plan, size = setup.plan, setup.plan.micro_batch
    if plan.offload == "none" or plan.steps > 1 or plan.sync_every is not None or len(written.programs) != plan.pp:
        return None
    needed = _samples_for_the_peak(plan, setup.workload.batch)
    num_written, num_all = len(written.context.micro_batches), len(written.context.all_micro_batches)
    if num_written < num_all and (size is None or num_written * size < needed):
        return None
    from trine.parallel.offload import host_peak_bytes

    return tuple(map(host_peak_bytes, written.programs))


def _samples_for_the_peak(plan: Plan, batch: int) -> int:
    """Return how many samples of a step hold as much in host memory as all.

    Gradients leave for the host in a step's last passes only, so that an offloaded optimizer needs few micro-batches.
    """
    from trine.training.memory import shortened

    plan = shortened(plan, batch)
    samples = plan.batch or batch
    if plan.offload == "optimizer" and plan.micro_batch is not None and not plan.replica_batches:
        few = plan.pp if plan.virtual_stages > 1 else 1
        samples = min(samples, few * plan.micro_batch)
    return samples


def _bytes_per_stage(setup: Setup) -> list[int]:
    """Return the most bytes that a rank of each stage holds in host memory, from a program written for it."""
    from trine.parallel.job import JobContext
    from trine.parallel.offload import host_peak_bytes
    from trine.parallel.stage import StageBuilder

    plan = replace(setup.plan, steps=1, sync_every=None)
    samples = _samples_for_the_peak(plan, setup.workload.batch)
    if samples < (plan.batch or setup.workload.batch):
        plan = replace(plan, batch=samples)
    context = JobContext(
        setup.workload, plan, setup.model, None, setup.software.profile, host_bytes_per_s=setup.host_bytes_per_s or 1.0
    )
    return [host_peak_bytes(StageBuilder(context, stage, setup.has_host).build()) for stage in range(plan.pp)]
