"""Simulate traces on a cluster, with the same kind of result as any other run."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from trine.cluster import Cluster
from trine.cluster.load import as_cluster
from trine.collectives.nccl.steps import StepCosts
from trine.common._version import __version__
from trine.common.evidence import Evidence
from trine.engine import run
from trine.engine.circuit_model import network_on
from trine.errors import PlanError
from trine.formats.chakra.job import trace_job
from trine.formats.chakra.task_graph import trace_graph
from trine.formats.chakra.trace import ChakraTrace
from trine.graph.placement import CollectiveCosts, Placement
from trine.graph.taskgraph import TaskGraph
from trine.parallel.instantiate import instantiate
from trine.results import Result, Simulator
from trine.training import costs_on

if TYPE_CHECKING:
    from trine.common.observer import OnCompile, Progress
    from trine.engine.models import Network

NOT_MODELLED = (
    "memory that the job needs: the traces do not list it",
    "slow-down of compute by communication kernels (SMs and memory bandwidth are not shared)",
    "ASTRA-sim's chunks, end-point delays and one communication at a time (trine help chakra)",
)


def simulate_chakra(
    trace: ChakraTrace, cluster: Cluster | str | os.PathLike[str], *, network: str | Network | None = None,
    collective_costs: str | CollectiveCosts = "auto", engine: str = "compiled", progress: Progress | None = None,
    on_compile: OnCompile | None = None, warnings: tuple[str, ...] = (),
) -> Result:  # fmt: skip
    """Simulate the traces of all ranks, rank i on the i-th GPU of ``cluster``.

    network, engine, progress, on_compile: as in :func:`trine.simulate`.
    collective_costs: as in :func:`trine.simulate`, or a function of (kind, bytes, ranks, algorithm or None) that
        returns the algorithm to simulate and the ps of software before each message.

    Raises InputError for an unknown option; PlanError for fewer GPUs than ranks, memory nodes on a cluster without a
    host, or more tasks than fit into memory; DeadlockError for nodes that wait for each other.
    """
    began = time.perf_counter()
    cluster = as_cluster(cluster)
    network = network_on(cluster, network)
    if trace.num_ranks > len(cluster.gpus):
        gpus = f"cluster {cluster.name!r} has {len(cluster.gpus)} GPUs"
        raise PlanError(f"there are traces of {trace.num_ranks} ranks, but {gpus}")
    given = collective_costs
    costs = costs_on(given, cluster, network=network) if isinstance(given, str) else given
    graph, shape = _graph(trace, cluster, costs)
    records = run(graph, network=network, engine=engine, progress=progress, on_compile=on_compile)
    return Result(
        graph=graph,
        records=records,
        memory=None,
        plan=trace_facts(trace, cluster, network if isinstance(network, str) else network.name, shape),
        evidence=_evidence(trace, cluster, costs),
        warnings=(*warnings, *trace.notes, *_notes(costs)),
        not_modelled=NOT_MODELLED,
        simulator=Simulator(
            version=__version__,
            wall_s=time.perf_counter() - began,
            events=records.num_events,
            ranks_simulated=trace.num_ranks,
        ),
    )


def _graph(trace: ChakraTrace, cluster: Cluster, costs: CollectiveCosts | None) -> tuple[TaskGraph, str]:
    """Return the task graph, and a description of its construction."""
    job, reason = trace_job(trace)
    if job is None:
        return trace_graph(trace, cluster, costs), f"rank by rank: {reason}"
    devices = np.asarray(cluster.gpus[: trace.num_ranks], np.int64)
    graph, _ = instantiate(job, Placement(devices=devices, cluster=cluster, costs=costs))
    grid = " x ".join(f"{name} {size}" for name, size in job.axes if size > 1) or "one rank"
    return graph, f"{len(job.programs)} rank program{'s' if len(job.programs) > 1 else ''} on a grid of {grid}"


def trace_facts(trace: ChakraTrace, cluster: Cluster, network: str, shape: str) -> Mapping[str, object]:
    """Return the facts of the job for the answer, in this order. ``shape``: how the traces became tasks."""
    return {
        "workload": os.path.basename(trace.prefix),
        "source": trace.prefix,
        "num_ranks": trace.num_ranks,
        "nodes": trace.num_nodes,
        "groups": len(trace.groups),
        "tasks_from": shape,
        "num_steps": 1,
        "cluster": cluster.name,
        "cluster_fingerprint": cluster.fingerprint,
        "network": network,
    }


def _notes(costs: CollectiveCosts | None) -> list[str]:
    """Return the notes of the costs after the last use. Raises InputError if a setting had no effect."""
    if not isinstance(costs, StepCosts):
        return []
    costs.check_used()
    return [f"collectives: {note}" for note in costs.notes]


def _evidence(trace: ChakraTrace, cluster: Cluster, costs: CollectiveCosts | None) -> tuple[Evidence, ...]:
    sources = "; ".join(f"{name}: {text}" for name, text in cluster.sources.items())
    operators = Evidence("operator time", "assumed", "taken from the traces, which do not state its source")
    if trace.roofline is not None:
        operators = Evidence("operator time", "modelled", "roofline on num_ops and tensor_size of the traces")
    software = "no protocol overhead" if costs is None else "software costs as given"
    if isinstance(costs, StepCosts):
        software = costs.software
    return (
        operators,
        Evidence(f"links of {cluster.name}", cluster.evidence, sources),
        Evidence("communication time", "modelled", f"as trine runs collectives, not ASTRA-sim; {software}"),
    )
