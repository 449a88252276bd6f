"""The simulated system of a run: GPUs with their programs, the paths between them, and the tasks of the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from trine.cluster.cluster import Cluster
from trine.common.arrays import Int32
from trine.errors import InputError
from trine.gpu.fabric import GpuFabric, distance, rank_grid
from trine.gpu.layout import GpuLayout, layout_of
from trine.gpu.model import GpuModel
from trine.gpu.peers import Arrivals, PeerWrites
from trine.gpu.program import GpuProgram
from trine.graph.assembler import GraphAssembler, GraphLinks
from trine.graph.taskgraph import COMPUTE, TaskGraph


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GpuSystem:
    """Simulated GPUs 0..g-1, and the ranks that they represent.

    program: kernel_rank and operand_rank are numbers of simulated GPUs, and semaphores has one row per simulated GPU.
        In a folded run operand_rank is the representative of the target rank; -1: the target is replayed.
    ranks: int32[g], the rank of each simulated GPU. gpu_of: int32[ranks], the simulated GPU that represents each rank.
    operand_peer: int32[operands], the target rank before folding, which determines paths and distances.
    link_image: int32[links of the cluster], the link that represents each link (itself without folding).
    link_home: int32[links], the rank at one end of the link (the source or destination of all traffic on it), -1: none.
    grid: dimensions of the ranks' grid, row-major; ``(ranks,)`` for a ring. Distances are measured along it.
    outside: traffic to GPU 0 from ranks that are not simulated (gpu_of -1: replayed); None: no such traffic.
    record: the simulated GPU whose arrivals are recorded, -1: none.
    graph: the tasks; its ranks are ranks, not simulated GPUs. task_kernel: int32[tasks], each task's kernel, -1: none.
    """

    program: GpuProgram
    model: GpuModel
    layout: GpuLayout
    fabric: GpuFabric
    num_ranks: int
    ranks: Int32
    gpu_of: Int32
    operand_peer: Int32
    link_image: Int32
    link_home: Int32
    grid: tuple[int, ...]
    graph: TaskGraph
    task_kernel: Int32
    outside: PeerWrites | Arrivals | None = None
    record: int = -1

    @property
    def num_gpus(self) -> int:
        return len(self.ranks)

    def is_host(self, gpu: int) -> bool:
        """Return whether the simulated GPU ``gpu`` is the memory of a host."""
        return gpu >= self.num_gpus - self.program.num_hosts

    def distance(self, source: int, origin: int) -> int:
        """Return the distance of rank ``source`` from rank ``origin``: 0 for itself, below the number of ranks."""
        return distance(self.grid, source, origin)


class KernelTasks(NamedTuple):
    """A task graph, and the kernel of each of its tasks: int32[tasks], -1: none."""

    graph: TaskGraph
    task_kernel: Int32


def unfolded(
    program: GpuProgram, cluster: Cluster, group: Sequence[int], model: GpuModel, tasks: KernelTasks
) -> GpuSystem:
    """Return a system that simulates every rank."""
    num_ranks = program.num_ranks
    fabric = GpuFabric(cluster, group, model)
    ranks = np.arange(num_ranks, dtype=np.int32)
    return GpuSystem(
        program=program, model=model, layout=layout_of(model), fabric=fabric, num_ranks=num_ranks, ranks=ranks,
        gpu_of=ranks, operand_peer=program.operand_rank, link_image=np.arange(len(cluster.links), dtype=np.int32),
        link_home=link_homes(cluster, group), grid=rank_grid(cluster, group), graph=tasks.graph,
        task_kernel=tasks.task_kernel,
    )  # fmt: skip


def host_group(cluster: Cluster, program: GpuProgram) -> tuple[int, ...]:
    """Return a device for each rank: the first GPUs, then the hosts nearest to them.

    Raises InputError if the cluster has too few.
    """
    gpus = cluster.gpus[: program.num_gpus]
    nearest = cluster.hosts_of(np.array(gpus, np.int64)) if program.num_hosts else np.zeros(0, np.int64)
    hosts = tuple(dict.fromkeys(host for host in nearest.tolist() if host >= 0))[: program.num_hosts]
    if len(gpus) < program.num_gpus or len(hosts) < program.num_hosts:
        raise InputError(
            f"cluster {cluster.name!r} has {len(gpus)} of {program.num_gpus} GPUs, and they have {len(hosts)} of "
            f"{program.num_hosts} hosts",
            field="cluster",
        )
    return (*gpus, *hosts)


def link_homes(cluster: Cluster, group: Sequence[int]) -> Int32:
    """Return the rank of each link, int32[links]: the GPU at its source, else the GPU at its target; -1: neither."""
    table = cluster.link_table
    rank_of = np.full(len(cluster.devices), -1, np.int32)
    rank_of[np.asarray(group, np.int64)] = np.arange(len(group), dtype=np.int32)
    source, target = rank_of[table.source], rank_of[table.target]
    return np.where(source >= 0, source, target).astype(np.int32)


def kernel_tasks(program: GpuProgram) -> KernelTasks:
    """Return one task per kernel, without dependencies."""
    assembler = GraphAssembler(GraphLinks.none())
    assembler.tasks(program.num_kernels, kind=COMPUTE, rank=program.kernel_rank)
    graph = assembler.build(rank_names=[f"rank {rank}" for rank in range(program.num_ranks)])
    return KernelTasks(graph, np.arange(program.num_kernels, dtype=np.int32))
