"""Small graphs with times worked out by hand, for the tests of results."""

from dataclasses import replace

import numpy as np

from trine.graph.builder import TaskGraphBuilder
from trine.graph.memory import MEMORY_CATEGORIES, MemoryEvents
from trine.graph.taskgraph import CollectiveLabel, Records
from trine.results import Evidence, Result, Simulator

CATEGORY = {name: index for index, name in enumerate(MEMORY_CATEGORIES)}


def records(*times):
    """Records from (ready, start, end) of each task."""
    ready, start, end = np.array(times, np.int64).reshape(-1, 3).T.copy()
    return Records(ready_ps=ready, start_ps=start, end_ps=end, num_events=2 * len(times), engine="hand", network="fair")


def labelled(graph, **columns):
    """The graph with label columns replaced, and with the names that they refer to."""
    fields = graph.labels.__dataclass_fields__
    arrays = {name: np.array(columns.pop(name), np.int32) for name in list(columns) if name in fields}
    if "phase" in arrays:
        arrays["phase"] = arrays["phase"].astype(np.int8)
    return replace(graph, labels=replace(graph.labels, **arrays), **columns)


def memory(changes, resident):
    """Events from (task, at_end, rank, delta, category name)."""
    task, at_end, rank, delta, category = zip(*changes, strict=True) if changes else ((),) * 5
    return MemoryEvents(
        task=np.array(task, np.int32),
        at_end=np.array(at_end, np.int8),
        rank=np.array(rank, np.int32),
        delta_bytes=np.array(delta, np.int64),
        category=np.array([CATEGORY[name] for name in category], np.int8),
        resident_bytes=np.array(resident, np.int64),
    )


def result(graph, run, **more):
    return Result(
        graph=graph,
        records=run,
        memory=more.pop("memory", None),
        plan=more.pop("plan", {}),
        simulator=Simulator(version="0.1.0", wall_s=0.25, events=run.num_events, ranks_simulated=len(graph.rank_names)),
        **more,
    )


def overlap():
    """Two ranks with a copy of inputs, an overlapped and an exposed transfer; times in ps, step 100.

    rank 0: input copy 0-10, conv 10-40 (forward), conv 40-70 (backward), linear 90-100 (optimizer)
            transfers 0->1: 50-90 (a collective); so communication 40, exposed 20, idle 10
    rank 1: conv 0-20; transfer in 50-90; idle 20-50 and 90-100
    """
    builder = TaskGraphBuilder([10**12, 2 * 10**12], [0, 0], link_names=["a to b", "host to a"], rank_names=["a", "b"])
    copy = builder.transfer(0, 0, [1], 20)
    forward = builder.compute(0, "compute", 30, [copy])
    backward = builder.compute(0, "compute", 30, [forward])
    send = builder.transfer(0, 1, [0], 40, [forward])
    builder.compute(0, "compute", 10, [backward, send])
    builder.compute(1, "compute", 20)
    graph = labelled(
        builder.build(),
        phase=[3, 0, 1, 1, 2, 0],
        operator=[-1, 0, 0, -1, 1, 0],
        layer=[-1, 0, 0, 0, 1, 0],
        collective=[-1, -1, -1, 0, -1, -1],
        step=[0] * 6,
        operator_names=("conv", "linear"),
        layer_names=("features.0", "fc"),
        collectives=(CollectiveLabel(kind="broadcast", algorithm="direct", size_bytes=40, ranks=(0, 1), axis="dp"),),
    )
    run = records((0, 0, 10), (10, 10, 40), (40, 40, 70), (50, 50, 90), (90, 90, 100), (0, 0, 20))
    return graph, run


def full_result():
    graph, run = overlap()
    events = memory(
        [
            (1, 0, 0, 500, "activations"),
            (2, 0, 0, 300, "gradients"),
            (2, 1, 0, -500, "activations"),
            (4, 0, 0, 100, "buckets"),
            (5, 0, 1, 50, "activations"),
        ],
        [[1000, 0, 200, 0, 0, 0], [1000, 0, 0, 0, 0, 0]],
    )
    return result(
        graph,
        run,
        memory=events,
        plan={"workload": "toy", "dp": 2, "cuts": [], "cluster": None, "cpu_launch": False},
        evidence=(Evidence("operator time", "measured", "recorded on a test", 0.75), Evidence("links", "assumed")),
        warnings=("the cluster has no name",),
        not_modelled=("kernel interference",),
        memory_capacity_bytes=(1900, 10_000),
    )
