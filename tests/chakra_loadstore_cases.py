"""Small traces, GPUs and kernels for Chakra traces at the load-store level, and random traces."""

from __future__ import annotations

import random
from dataclasses import replace

from chakra_files import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    COMP,
    REDUCE_SCATTER,
    collective,
    node,
    receive,
    send,
    write,
)
from gpu_cases import NS, small_model

from trine.cluster import build_topology
from trine.formats.chakra import read_chakra
from trine.gpu.chakra.kernels import KernelChoices
from trine.gpu.chakra.run import simulate_chakra_loadstore
from trine.gpu.model import MemorySystem

US = 10**6
SMALL = KernelChoices(workgroups=2, wavefronts=2, compute_workgroups=4, compute_wavefronts=2)


def model(**changes):
    """Four compute units with room for all that the traces here start at once."""
    memory = MemorySystem(num_channels=2, bytes_per_s=400 * 10**9, latency_ps=100 * NS, interleave_bytes=256)
    wanted = {"num_cus": 4, "workgroups_per_cu": 16, "wavefronts_per_cu": 64, "memory": memory, "launch_ps": 300 * NS}
    return replace(small_model(), **(wanted | changes))


def cluster(ranks, bandwidth="20 GB/s"):
    return build_topology("full", bandwidth, "200 ns", ranks)


def run(folder, ranks, kernels=SMALL, gpu=None, groups=None, machine=None, **how):
    """Simulate nodes, a list a rank."""
    prefix = write(folder, ranks)
    path = None
    if groups is not None:
        path = folder / "groups.json"
        path.write_text(groups)
    trace = read_chakra(prefix, comm_groups=path)
    return simulate_chakra_loadstore(
        trace, machine or cluster(len(ranks)), model=gpu or model(), kernels=kernels, **how
    )


def random_ranks(seed, num_ranks):
    """Nodes of all ranks: the same collectives in the same order, compute nodes and messages between them."""
    draw = random.Random(seed)
    ranks = [[] for _ in range(num_ranks)]

    for number in range(1, 1 + draw.randint(2, 5)):
        kind = draw.choice((COMP, COMP, ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, "message"))
        ends = draw.sample(range(num_ranks), 2)
        size = draw.choice((1, 100, 1024, 3000))
        for rank, nodes in enumerate(ranks):
            after = [made.id for made in nodes if draw.random() < 0.4]
            if kind == COMP:
                tensor = draw.choice((0, 0, 4096))
                nodes.append(node(number, COMP, after, micros=draw.randint(0, 4), tensor_size=tensor))
            elif kind != "message":
                nodes.append(collective(number, kind, size, after))
            elif rank == ends[0]:
                nodes.append(send(number, ends[1], size, after))
            elif rank == ends[1]:
                nodes.append(receive(number, ends[0], size, after))
    return ranks
