"""Host memory of a job with offload: bytes of each host's ranks against the host's capacity."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from trine.graph.grid import RankGrid
from trine.results.host_memory import HostMemory

if TYPE_CHECKING:
    from trine.training.setup import Setup


def host_memory_of(setup: Setup) -> HostMemory | None:
    """Return the offloaded data of the fullest host; None without offload or hosts.

    The host of a rank is its node, with the memory of all host devices there; without nodes, the nearest host device.
    """
    plan, machine = setup.plan, setup.machine
    if plan.offload == "none" or machine is None or not setup.has_host:
        return None
    gpus = np.asarray(machine.gpus, np.int64)[setup.places]
    devices = machine.hosts_of(gpus)
    place_of = np.where(machine.node_of < 0, -1 - np.arange(len(machine.node_of)), machine.node_of)
    stage = RankGrid(plan.axes).coordinates(np.arange(plan.num_ranks, dtype=np.int64), "pp") if plan.pp > 1 else 0
    per_rank = np.array(_bytes_per_stage(setup), np.int64)[stage] * np.ones(plan.num_ranks, np.int64)
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


def _bytes_per_stage(setup: Setup) -> list[int]:
    """Return the most bytes that a rank of each stage holds in host memory, from its program alone.

    Gradients leave for the host in a step's last passes only, so that an offloaded optimizer needs few micro-batches.
    """
    from trine.parallel.job import JobContext
    from trine.parallel.offload import host_peak_bytes
    from trine.parallel.stage import StageBuilder
    from trine.training.memory import shortened

    plan = shortened(replace(setup.plan, steps=1, sync_every=None), setup.workload.batch)
    if plan.offload == "optimizer" and plan.micro_batch is not None and not plan.replica_batches:
        few = plan.pp if plan.virtual_stages > 1 else 1
        plan = replace(plan, batch=min(plan.batch or setup.workload.batch, few * plan.micro_batch))
    context = JobContext(
        setup.workload, plan, setup.model, None, setup.software.profile, host_bytes_per_s=setup.host_bytes_per_s or 1.0
    )
    return [host_peak_bytes(StageBuilder(context, stage, setup.has_host).build()) for stage in range(plan.pp)]
