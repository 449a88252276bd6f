"""Random jobs on random machines, for tests that compare folded runs with unfolded ones."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from forms_of_parallelism import model
from hypothesis import strategies as st
from synthetic import Chain

import trine
from trine.cluster import Cluster, build_topology, load_cluster
from trine.cluster.join import join_nodes, with_usual_fabric
from trine.cluster.select import slow_down, take_down
from trine.cluster.topologies import add_host
from trine.errors import SpecError
from trine.model.workload import Workload
from trine.parallel.plan import Plan

US = 10**6
ORDERS = ("tp-cp-ep-dp-pp", "pp-dp-ep-cp-tp", "dp-tp-cp-ep-pp", "cp-pp-tp-dp-ep")
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-h1", "dualpipe")
#: Collective -> algorithms that give any number of ranks a schedule.
ALGORITHMS = {
    "all_reduce": ("ring", "direct", "tree", "double-binary-tree", "halving-doubling"),
    "all_gather": ("ring", "direct", "bruck"),
    "reduce_scatter": ("ring", "direct", "pat"),
    "all_to_all": ("direct", "bruck"),
    "broadcast": ("ring", "tree", "direct"),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """What :func:`trine.simulate` is asked. settings: its other arguments."""

    workload: Workload
    plan: Plan
    cluster: Cluster
    settings: dict[str, Any] = field(default_factory=dict)

    def run(self, **settings: Any) -> trine.Result:
        return trine.simulate(self.workload, self.plan, cluster=self.cluster, **{**self.settings, **settings})


@cache
def chain(layers: int = 4, times: tuple[int, ...] = (3, 7), optimizer_us: int = 20, grain: int = US) -> Workload:
    """Layers with times that do not divide each other, as if recorded on an H100."""
    made = Chain(
        forward_ps=[grain * (times[i % len(times)] + i) for i in range(layers)],
        backward_ps=[grain * (2 * times[i % len(times)] + 3 * i) for i in range(layers)],
        weight_bytes=[4 * 10**5 * (i + 1) for i in range(layers)],
        optimizer_ps=optimizer_us * US,
    )
    return replace(made.workload(), gpu="h100-sxm")


def pick(draw: Any, name: str, *values: Any) -> Any:
    return draw(st.sampled_from(values), label=name)


# -- plans -------------------------------------------------------------------------------------------------------------


@st.composite
def jobs(draw: Any, most: int = 64) -> tuple[Workload, Plan]:
    """A chain of layers, or a transformer with or without experts, and a plan for it on at most ``most`` ranks."""
    kind = pick(draw, "workload", "chain", "chain", "llama", "moe")
    sizes = [ways for ways in (1, 2, 4, 8) if ways * 2 <= most]
    ways = {"dp": pick(draw, "dp", *sizes), "tp": pick(draw, "tp", 1, 2, 4), "pp": pick(draw, "pp", 1, 2, 3, 4)}
    if kind != "chain":
        ways["cp"] = pick(draw, "cp", 1, 2)
        ways["pp"] = min(ways["pp"], 2)
    for name in ("tp", "pp", "dp", "cp"):
        while _ranks(ways) > most and ways.get(name, 1) > 1:
            ways[name] //= 2
    if _ranks(ways) == 1:
        ways["dp"] = 2
    fields: dict[str, Any] = {"num_steps": pick(draw, "steps", 1, 1, 2)}
    fields |= _of_pipeline(draw, ways, kind) | _of_replicas(draw, ways, kind) | _of_tensors(draw, ways, kind)
    if kind != "chain":
        fields |= {"batch": 2 * fields.pop("microbatches"), "micro_batch": 2}
        if ways["cp"] > 1:
            fields["cp_style"] = pick(draw, "cp_style", "ring", "all-gather", "ulysses")
        fields["recompute"] = pick(draw, "recompute", "none", "full", "selective")
    else:
        fields["micro_batch"] = 8 // fields.pop("microbatches")
    if sum(n > 1 for n in ways.values()) > 1:
        fields["order"] = pick(draw, "order", *ORDERS)
    fields["algorithms"] = tuple(
        (name, pick(draw, name, *known)) for name, known in ALGORITHMS.items() if draw(st.booleans(), label=f"set {name}")
    )
    return _workload(draw, kind), Plan(**ways, **fields)


def _ranks(ways: dict[str, int]) -> int:
    total = 1
    for size in ways.values():
        total *= size
    return total


def _workload(draw: Any, kind: str) -> Workload:
    if kind == "chain":
        times = tuple(draw(st.lists(st.integers(1, 400), min_size=1, max_size=3), label="times"))
        return chain(8, times, pick(draw, "optimizer", 1, 300))
    return model("mixtral-8x7b" if kind == "moe" else "llama-3-8b", layers=2, sequence=64)


def _of_pipeline(draw: Any, ways: dict[str, int], kind: str) -> dict[str, Any]:
    fields: dict[str, Any] = {"microbatches": pick(draw, "microbatches", 1, 2, 4)}
    if ways["pp"] == 1:
        return fields
    fields["schedule"] = pick(draw, "schedule", *(SCHEDULES if kind == "chain" else ("gpipe", "1f1b", "zb-h1")))
    if fields["schedule"] == "interleaved":
        fields |= {"virtual_stages": 2, "microbatches": ways["pp"] if 8 % ways["pp"] == 0 else 1}
        if 8 % ways["pp"]:
            ways["pp"], fields["microbatches"] = 2, 2
    if fields["schedule"] == "dualpipe":
        ways["pp"] += ways["pp"] % 2
        fields |= {"virtual_stages": 2, "microbatches": 8}
    return fields


def _of_replicas(draw: Any, ways: dict[str, int], kind: str) -> dict[str, Any]:
    if ways["dp"] * ways.get("cp", 1) == 1:
        return {}
    fields: dict[str, Any] = {"dp_overlap": draw(st.booleans(), label="dp_overlap")}
    fields["sharding"] = pick(draw, "sharding", "none", "none", "zero1", "zero2", "zero3", "fsdp")
    if fields["sharding"] == "none":
        fields["bucket_bytes"] = pick(draw, "bucket", 10**5, 10**6, 10**8)
    if kind == "moe" and ways["dp"] > 1:
        fields["ep"] = pick(draw, "ep", *(e for e in (1, 2, 4) if ways["dp"] % e == 0))
        if fields["ep"] > 1:
            fields["expert_imbalance"] = pick(draw, "imbalance", "balanced", "zipf:0.8")
    if fields["sharding"] != "none":
        fields["prefetch"] = pick(draw, "prefetch", None, 0, 1)
        if ways["dp"] == 4 and 2 % fields.get("ep", 1) == 0:
            fields["shard_ways"] = pick(draw, "shard_ways", None, 2)
    if fields["sharding"] == "fsdp":
        fields["reshard"] = draw(st.booleans(), label="reshard")
    return fields


def _of_tensors(draw: Any, ways: dict[str, int], kind: str) -> dict[str, Any]:
    if ways["tp"] == 1 or kind == "chain":
        return {}
    fields: dict[str, Any] = {"tp_style": pick(draw, "tp_style", "column", "megatron")}
    if fields["tp_style"] == "megatron" and draw(st.booleans(), label="sequence_parallel"):
        fields |= {"sequence_parallel": True, "tp_overlap": pick(draw, "tp_overlap", 1, 3)}
    return fields


# -- machines ----------------------------------------------------------------------------------------------------------


@st.composite
def machines(draw: Any, num_gpus: int) -> Cluster:
    """A machine of at least ``num_gpus`` GPUs, now and then with slow or dead links."""
    kind = pick(draw, "machine", "topology", "dgx-h100", "dgx-h100", "mi300x-node", "unequal", "dgx1-v100")
    if kind == "topology":
        cluster = _topology(draw, num_gpus)
    elif kind == "unequal":
        cluster = unequal_nodes(num_gpus)
    else:
        nodes = -(-num_gpus // 8)
        fabric = None if nodes == 1 else pick(draw, "fabric", None, "switch", "rail", "fat-tree:2", "clos")
        cluster = load_cluster(kind, nodes=nodes, fabric=fabric)
        if nodes > 1 and kind != "dgx1-v100":
            routing = pick(draw, "routing", None, None, "d-mod-k", "ecmp-hash:3", "shortest")
            cluster = cluster if routing is None else replace(cluster, routing=routing)
    return _degraded(draw, cluster)


def _topology(draw: Any, num_gpus: int) -> Cluster:
    words = ["ring", "switch", "full", f"mesh:{num_gpus}x1"]
    if num_gpus % 4 == 0:
        words += [f"torus:4x{num_gpus // 4}", f"mesh:2x{num_gpus // 2}", "fat-tree:4:2", "tree:2"]
    word = pick(draw, "topology", *words)
    cluster = build_topology(word, pick(draw, "rate", "100 GB/s", "7 GB/s"), pick(draw, "latency", 0, "1 us"), num_gpus)
    if draw(st.booleans(), label="host"):
        cluster = add_host(cluster, 20 * 10**9, 10**6, pick(draw, "gpus per link", 1, 2))
    return cluster


@cache
def unequal_nodes(num_gpus: int) -> Cluster:
    """Nodes of 8 and of 4 H100s in turn, which one fat tree joins."""
    whole, half = load_cluster("dgx-h100"), load_cluster("dgx-h100", gpus=4)
    nodes = [whole]
    while sum(len(node.gpus) for node in nodes) < num_gpus:
        nodes.append(half if len(nodes) % 2 else whole)
    return join_nodes(nodes, with_usual_fabric(whole, "fat-tree:2"), "unequal nodes")


def _degraded(draw: Any, cluster: Cluster) -> Cluster:
    for what in draw(st.lists(st.sampled_from(("slow", "dead")), max_size=2), label="degraded"):
        link = draw(st.integers(0, len(cluster.links) - 1), label="link")
        name = cluster.link_names[link]
        if what == "slow":
            cluster = slow_down(cluster, [(name, pick(draw, "factor", 0.5, 0.93))])
        else:
            try:
                cluster = take_down(cluster, [name])
            except SpecError:
                continue  # nothing else leads there
    return cluster


@st.composite
def cases(draw: Any, most: int = 64) -> Case:
    """A job, a machine for it, and how it is run there."""
    workload, plan = draw(jobs(most))
    ranks = plan.num_ranks
    cluster = draw(machines(ranks))
    placement = pick(draw, "placement", None, None, "round-robin", "random:1")
    settings: dict[str, Any] = {
        "network": pick(draw, "network", "fair", "fair", "equal"),
        "collective_costs": pick(draw, "costs", "auto", "links"),
        "cpu": False,
        "placement": placement,
    }
    slow = draw(st.lists(st.integers(0, ranks - 1), max_size=2, unique=True), label="slow ranks")
    if slow:
        settings["stragglers"] = trine.Stragglers(slow=tuple((rank, 1.3) for rank in slow))
    return Case(workload=workload, plan=plan, cluster=cluster, settings=settings)
