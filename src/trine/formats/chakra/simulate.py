"""Traces on a cluster: the same answer as that of any other run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from trine._version import __version__
from trine.collectives.nccl.steps import StepCosts
from trine.errors import PlanError
from trine.evidence import Evidence
from trine.formats.chakra.graph import trace_graph
from trine.formats.chakra.job import trace_job
from trine.formats.chakra.trace import ChakraTrace
from trine.graph.placement import CollectiveCosts, Placement
from trine.parallel.instantiate import instantiate
from trine.results import Result, Simulator
from trine.simulation import costs_on

if TYPE_CHECKING:
    from trine.cluster import Cluster
    from trine.engine.models import Network
    from trine.graph.taskgraph import Progress, TaskGraph

NOT_MODELLED = (
    "memory that the job needs: traces say nothing of it",
    "slow-down of compute by communication kernels (SMs and memory bandwidth are not shared)",
    "ASTRA-sim's chunks, end-point delays and one communication at a time (docs/formats/chakra.md)",
)


def simulate_chakra(
    trace: ChakraTrace,
    cluster: Cluster | str | os.PathLike[str],
    *,
    network: str | Network | None = None,
    collective_costs: str | CollectiveCosts = "auto",
    engine: str = "compiled",
    progress: Progress | None = None,
    on_compile: Callable[[], None] | None = None,
    warnings: tuple[str, ...] = (),
) -> Result:
    """Simulate the traces of all ranks, rank i on the i-th GPU of ``cluster``.

    Parameters
    ----------
    network, engine, progress, on_compile: as of :func:`trine.simulate`.
    collective_costs: as of :func:`trine.simulate`, or a function of (kind, bytes, ranks, algorithm or None) that gives
        the algorithm to simulate and the ps of software before each message.

    Raises
    ------
    InputError: an option that is not known.
    PlanError: fewer GPUs than ranks, memory nodes on a cluster without a host, or more tasks than fit into memory.
    DeadlockError: nodes that wait for each other.
    """
    from trine.engine import run
    from trine.engine.circuit_model import network_on

    began = time.perf_counter()
    if isinstance(cluster, str | os.PathLike):
        from trine.cluster import load_cluster

        cluster = load_cluster(os.fspath(cluster))
    network = network_on(cluster, network)
    if trace.num_ranks > len(cluster.gpus):
        raise PlanError(
            f"there are traces of {trace.num_ranks} ranks, but cluster {cluster.name!r} has {len(cluster.gpus)} GPUs"
        )
    costs: CollectiveCosts | None = None
    if not isinstance(collective_costs, str):
        costs = collective_costs
    else:
        costs = costs_on(collective_costs, cluster, network=network)
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
        simulator=_simulator(time.perf_counter() - began, records.num_events, trace.num_ranks),
    )


def _graph(trace: ChakraTrace, cluster: Cluster, costs: CollectiveCosts | None) -> tuple[TaskGraph, str]:
    """The task graph, and in words by which way it came about."""
    job, reason = trace_job(trace)
    if job is None:
        return trace_graph(trace, cluster, costs), f"rank by rank: {reason}"
    devices = np.asarray(cluster.gpus[: trace.num_ranks], np.int64)
    graph, _ = instantiate(job, Placement(devices=devices, cluster=cluster, costs=costs))
    grid = " x ".join(f"{name} {size}" for name, size in job.axes if size > 1) or "one rank"
    return graph, f"{len(job.programs)} rank program{'s' if len(job.programs) > 1 else ''} on a grid of {grid}"


def trace_facts(trace: ChakraTrace, cluster: Cluster, network: str, shape: str) -> Mapping[str, object]:
    """What people should know of the job, in this order. ``shape``: how tasks were made of the traces."""
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
    """What costs say of themselves, once all were asked for. Raises InputError where they changed nothing."""
    if not isinstance(costs, StepCosts):
        return []
    costs.check_used()
    return [f"collectives: {note}" for note in costs.notes]


def _evidence(trace: ChakraTrace, cluster: Cluster, costs: CollectiveCosts | None) -> tuple[Evidence, ...]:
    sources = "; ".join(f"{name}: {text}" for name, text in cluster.sources.items())
    operators = Evidence("operator time", "assumed", "as the traces have it; they do not say what it rests on")
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


def _simulator(wall_s: float, events: int, ranks: int) -> Simulator:
    return Simulator(version=__version__, wall_s=wall_s, events=events, ranks_simulated=ranks)
