"""Random programs some of whose memory is a host's, and a cluster of GPUs with one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from gpu_cases import GB, NS, Case
from gpu_random import RandomCase

from trine.cluster.cluster import Cluster
from trine.cluster.parts import HOST_LINK, SCALE_UP, Device, Link
from trine.gpu.program import ACQUIRE, DMA, READ, READ_FLAGGED, WRITE, WRITE_FLAGGED

UP, PCIE, DRAM = (100 * GB, 300 * NS), (20 * GB, 400 * NS), (150 * GB, 30 * NS)


def hosted_cluster(num_gpus, up=UP, pcie=PCIE, dram=DRAM):
    """GPUs joined to each other and to a CPU, whose memory is a device behind it: the last."""
    devices = [Device(name=f"gpu{i}", gpu="h100-sxm") for i in range(num_gpus)]
    devices += [Device(name="cpu", kind="host", forwards=True), Device(name="dram", kind="host")]
    cpu, dram_at = num_gpus, num_gpus + 1
    ends = [(i, j, SCALE_UP, up) for i in range(num_gpus) for j in range(i)]
    ends += [(i, cpu, HOST_LINK, pcie) for i in range(num_gpus)] + [(dram_at, cpu, HOST_LINK, dram)]
    links = [
        Link(name=f"{a}->{b}", source=a, target=b, bytes_per_s=rate, latency_ps=latency, link_class=of)
        for one, other, of, (rate, latency) in ends
        for a, b in ((one, other), (other, one))
    ]
    return Cluster(name="hosted", devices=tuple(devices), links=tuple(links))


def hosted_case(seed, size=6):
    """A random case, of whose data and flags some are in the memory of a host, which is a rank behind the others."""
    case, rng = RandomCase(seed, size, without=(DMA,)).case(), np.random.default_rng(seed)
    program, host = case.program, case.program.num_ranks
    kind = np.repeat(program.op_kind, np.diff(program.operand_ptr))
    role, rank, semaphore = program.operand_role, program.operand_rank.copy(), program.operand_semaphore.copy()
    flagged = np.isin(role, (READ_FLAGGED, WRITE_FLAGGED))
    count = program.semaphores.shape[1]
    semaphores = np.zeros((host + 1, count * host), np.int32)
    semaphores[:host, :count] = program.semaphores
    plain = np.isin(role, (READ, WRITE)) & (semaphore < 0)
    moves = plain & (rng.random(len(rank)) < 0.4)
    for each in range(host):
        own = flagged & (rank == each)
        if rng.random() < 0.7:
            semaphores[host, each * count : (each + 1) * count] = program.semaphores[each]
            semaphore[own] += each * count
            moves |= own
    assert not (kind[moves] == ACQUIRE).any()
    moved = replace(
        program,
        num_ranks=host + 1,
        num_hosts=1,
        operand_rank=np.where(moves, host, rank).astype(np.int32),
        operand_semaphore=semaphore,
        semaphores=semaphores,
    )
    cluster = hosted_cluster(host)
    return Case(moved, case.model, cluster, [*range(host), host + 1])
