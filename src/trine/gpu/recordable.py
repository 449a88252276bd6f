"""Can one GPU be recorded, and replayed (docs/design/replay.md, not replayed)?"""

from __future__ import annotations

import numpy as np

from trine.errors import InputError
from trine.gpu.model import FAIR
from trine.gpu.program import DMA
from trine.gpu.system import GpuSystem
from trine.gpu.validate import place_of
from trine.gpu.way_table import operand_gpus
from trine.graph.taskgraph import COMPUTE


def check_recordable(system: GpuSystem, target: int) -> None:
    """Raise InputError where what comes to rank ``target`` of an unfolded system is more than requests to its ports."""
    if not 0 <= target < system.num_ranks:
        raise InputError(f"rank {target} is not one of {system.num_ranks}", field="record")
    program = system.program
    dma = np.flatnonzero(program.op_kind == DMA)
    if len(dma):
        raise InputError(f"{place_of(program, int(dma[0]))}: copies by copy engines are not recorded", field="record")
    if (system.graph.kind != COMPUTE).any():
        raise InputError("task graphs with transfers or joins are not recorded", field="record")
    _check_routes(system, target)
    check_replayable_model(system, "record")


def check_replayable_model(system: GpuSystem, field: str) -> None:
    """With fair ports and no latency what comes at an instant depends on more than a record has."""
    if system.model.ports.arbitration == FAIR and system.model.ports.latency_ps == 0:
        raise InputError("with fair arbitration the ports must have a latency, else a record is not exact", field=field)


def _check_routes(system: GpuSystem, target: int) -> None:
    """Ways between others must not lead through the target."""
    gpu, _ = operand_gpus(system)
    source = system.ranks[gpu].astype(np.int64)
    device = system.fabric.group[target]
    sources = system.fabric.cluster.link_table.source
    for key in np.unique(source * system.num_ranks + system.operand_peer).tolist():
        rank, peer = divmod(key, system.num_ranks)
        if rank == peer:
            continue
        for one, other in ((rank, peer), (peer, rank)):
            for way in system.fabric.paths(one, other):
                if any(sources[hop.link] == device for hop in way.hops[1:]):
                    raise InputError(
                        f"the way from rank {one} to rank {other} leads through rank {target}: that is not recorded",
                        field="record",
                    )
