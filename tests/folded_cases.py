"""Random jobs on random machines, from a seed, for tests that compare folded runs with unfolded ones."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest
from forms_of_parallelism import model
from synthetic import Chain

import trine
from trine.cluster import Cluster, build_topology, load_cluster
from trine.cluster.join import join_nodes, with_usual_fabric
from trine.cluster.select import slow_down, take_down
from trine.cluster.topologies import add_host
from trine.compute import make_compute
from trine.errors import PlanError, SpecError
from trine.folding import classes, deferral, stages
from trine.graph.workload import SYNTHESISED, Workload
from trine.parallel.build import build_job
from trine.parallel.plan import Plan
from trine.parallel.stragglers import Jitter
from trine.results import Result

US = 10**6
ORDERS = ("tp-cp-ep-dp-pp", "pp-dp-ep-cp-tp", "dp-tp-cp-ep-pp", "cp-pp-tp-dp-ep")
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-h1", "dualpipe")
SHARDINGS = ("none", "none", "zero1", "zero2", "zero3", "fsdp")
ALGORITHMS = {
    "all_reduce": ("ring", "direct", "tree", "double-binary-tree", "halving-doubling"),
    "all_gather": ("ring", "direct", "bruck"),
    "reduce_scatter": ("ring", "direct", "pat"),
    "all_to_all": ("direct", "bruck"),
    "broadcast": ("ring", "tree", "direct"),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """Arguments of :func:`trine.simulate`. settings: its other arguments."""

    workload: Workload
    plan: Plan
    cluster: Cluster
    settings: dict[str, Any] = field(default_factory=dict)

    def run(self, **settings: Any) -> Result:
        kept = {} if self.workload.format == SYNTHESISED else {"gpu": self.workload.gpu}  # on any machine
        return trine.simulate(self.workload, self.plan, cluster=self.cluster, **{**kept, **self.settings, **settings})

    def __str__(self) -> str:
        return f"{self.workload.name}, {self.plan}, {self.cluster.name} ({self.cluster.notes}), {self.settings}"


def assert_folded_is_unfolded(workload: Workload | str, plan: Plan, **settings: Any) -> None:
    """Compare a folded run, which compares every task with its own unfolded one, with the answer of an unfolded run."""
    folded, whole = (trine.simulate(workload, plan, fold=fold, **settings) for fold in ("verify", "off"))
    assert folded.simulator.events < whole.simulator.events
    assert folded.step_ends_ps.tolist() == whole.step_ends_ps.tolist()
    for part in ("compute", "communication", "exposed", "bubble", "idle", "offload"):
        assert getattr(folded.rank_times, part).tolist() == getattr(whole.rank_times, part).tolist(), part
    assert [peak.total_bytes for peak in folded.memory_peaks] == [peak.total_bytes for peak in whole.memory_peaks]


@cache
def chain(
    layers: int, times: tuple[int, ...] = (3, 7), optimizer_us: int = 20, weight_bytes: int = 4 * 10**5
) -> Workload:
    """Return layers with times (us) that do not divide each other, as if recorded on an H100."""
    made = Chain(
        forward_ps=[US * (times[i % len(times)] + i) for i in range(layers)],
        backward_ps=[US * (2 * times[i % len(times)] + 3 * i) for i in range(layers)],
        weight_bytes=[weight_bytes * (i + 1) for i in range(layers)],
        optimizer_ps=optimizer_us * US,
    )
    return replace(made.workload(), gpu="h100-sxm")


def random_case(seed: int, most: int = 64, networks: tuple[str, ...] = ("fair", "fair", "equal")) -> Case:
    """Return a job of at most ``most`` ranks, a machine for it, and the settings of the run."""
    rng = Random(seed)
    workload, plan = random_job(rng, most)
    ranks = plan.num_ranks
    cluster = random_machine(rng, ranks)
    if cluster.name.startswith("dgx-h100") and rng.random() < 0.3:
        plan = replace(plan, overlap=rng.choice(("modelled", "none")))
    settings: dict[str, Any] = {
        "network": rng.choice(networks),
        "collective_costs": rng.choice(("auto", "links")),
        "cpu": False,
        "placement": rng.choice((None, None, "round-robin", f"random:{seed % 97}")),
    }
    slow = rng.sample(range(ranks), rng.choice((0, 0, 1, 2)))
    jitter = Jitter(distribution="normal", spread=0.05) if rng.random() < 0.15 else None
    if slow or jitter:
        factors = tuple((rank, rng.choice((1.3, 1.02))) for rank in slow)
        settings["stragglers"] = trine.Stragglers(slow=factors, jitter=jitter, each="class")
    return Case(workload=workload, plan=plan, cluster=cluster, settings=settings)


# -- plans -------------------------------------------------------------------------------------------------------------


def random_job(rng: Random, most: int) -> tuple[Workload, Plan]:
    """Return a chain of layers, or a transformer with or without experts, and a plan for it."""
    kind = rng.choice(("chain", "chain", "chain", "llama", "moe"))
    ways = {"dp": rng.choice((1, 2, 2, 3, 4, 4, 8)), "tp": rng.choice((1, 1, 2, 4)), "pp": rng.choice((1, 1, 2, 3, 4))}
    if kind != "chain":
        ways["cp"] = rng.choice((1, 1, 2))
        ways["pp"] = min(ways["pp"], 2)
    fields: dict[str, Any] = {"steps": rng.choice((1, 1, 2))}
    fields |= _of_pipeline(rng, ways, kind)
    while _ranks(ways) > most:
        widest = max((name for name in ways if name != "pp"), key=lambda name: ways[name])
        ways[widest] //= 2
    if _ranks(ways) == 1:
        ways["dp"] = 2
    fields |= _of_replicas(rng, ways, kind) | _of_tensors(rng, ways, kind)
    microbatches = fields.pop("microbatches")
    if kind == "chain":
        fields["batch"], fields["micro_batch"] = 8, 8 // microbatches
    else:
        fields["batch"], fields["micro_batch"] = 2 * microbatches, 2
        fields["recompute"] = rng.choice(("none", "full", "selective"))
        if ways["cp"] > 1:
            fields["cp_style"] = rng.choice(("ring", "all-gather", "ulysses"))
    if sum(n > 1 for n in ways.values()) > 1:
        fields["order"] = rng.choice(ORDERS)
    algorithms = tuple((name, rng.choice(known)) for name, known in ALGORITHMS.items() if rng.random() < 0.3)
    workload = _workload(rng, kind)
    return workload, _with_algorithms(workload, Plan(**ways, **fields), dict(algorithms))


def random_chain_job(rng: Random, ways: dict[str, int], most: int) -> tuple[Workload, Plan]:
    """Return a chain of layers and a plan for at most ``most`` ranks; ``ways``: of dp, tp, pp."""
    ways = {"dp": 1, "tp": 1, "pp": 1} | ways
    fields = {"steps": rng.choice((1, 1, 2))} | _of_pipeline(rng, ways, "chain") | _of_replicas(rng, ways, "chain")
    while _ranks(ways) > most:
        ways["dp"] //= 2
    fields["batch"], fields["micro_batch"], fields["order"] = 8, 8 // fields.pop("microbatches"), rng.choice(ORDERS)
    algorithms = {name: rng.choice(known) for name, known in ALGORITHMS.items() if rng.random() < 0.5}
    times = tuple(rng.randint(1, 400) for _ in range(rng.randint(1, 3)))
    workload = chain(8, times, rng.choice((1, 300)), rng.choice((4 * 10**5, 4 * 10**7)))
    return workload, _with_algorithms(workload, Plan(**ways, **fields, inputs="none"), algorithms)


def _with_algorithms(workload: Workload, plan: Plan, algorithms: dict[str, str]) -> Plan:
    """Return the plan with the ``algorithms`` of collectives in its job; it would refuse the others."""
    while True:
        asked = replace(plan, algorithm=tuple(algorithms.items()))
        try:
            build_job(workload, asked.filled(), make_compute("linear", workload))
        except PlanError as error:
            idle = next((kind for kind in algorithms if f"algorithm {kind}=" in str(error)), None)
            if idle is None:
                return asked
            del algorithms[idle]
        else:
            return asked


def _ranks(ways: dict[str, int]) -> int:
    total = 1
    for size in ways.values():
        total *= size
    return total


def _workload(rng: Random, kind: str) -> Workload:
    if kind == "chain":
        times = tuple(rng.randint(1, 400) for _ in range(rng.randint(1, 3)))
        return chain(8, times, rng.choice((1, 300)), rng.choice((4 * 10**5, 4 * 10**7)))
    return model("mixtral-8x7b" if kind == "moe" else "llama-3-8b", layers=2, sequence=64)


def _of_pipeline(rng: Random, ways: dict[str, int], kind: str) -> dict[str, Any]:
    fields: dict[str, Any] = {"microbatches": rng.choice((1, 2, 4))}
    if ways["pp"] == 1:
        return fields
    fields["schedule"] = rng.choice(SCHEDULES if kind == "chain" else ("gpipe", "1f1b", "zb-h1"))
    if fields["schedule"] == "interleaved":
        ways["pp"] = rng.choice((2, 4))
        fields |= {"virtual_stages": 2, "microbatches": ways["pp"]}
    if fields["schedule"] == "dualpipe":
        ways["pp"] = rng.choice((2, 4))
        fields["microbatches"] = 8
    return fields


def _of_replicas(rng: Random, ways: dict[str, int], kind: str) -> dict[str, Any]:
    if ways["dp"] * ways.get("cp", 1) == 1:
        return {}
    fields: dict[str, Any] = {"dp_overlap": rng.random() < 0.6, "sharding": rng.choice(SHARDINGS)}
    if fields["sharding"] == "none":
        fields["bucket_bytes"] = rng.choice((10**5, 10**6, 10**8))
    if kind == "moe" and ways["dp"] > 1:
        fields["ep"] = rng.choice([e for e in (1, 2, 4) if ways["dp"] % e == 0])
        if fields["ep"] > 1:
            fields["expert_imbalance"] = rng.choice(("balanced", "zipf:0.8"))
    if fields["sharding"] != "none":
        fields["prefetch"] = rng.choice((None, 0, 1))
        if ways["dp"] in (4, 8) and 2 % fields.get("ep", 1) == 0:
            fields["shard_ways"] = rng.choice((None, 2))
    if fields["sharding"] == "fsdp":
        fields["reshard"] = rng.random() < 0.5
    return fields


def _of_tensors(rng: Random, ways: dict[str, int], kind: str) -> dict[str, Any]:
    if ways["tp"] == 1 or kind == "chain":
        return {}
    fields: dict[str, Any] = {"tp_style": rng.choice(("column", "megatron"))}
    if fields["tp_style"] == "megatron" and rng.random() < 0.5:
        fields |= {"sequence_parallel": True, "tp_overlap": rng.choice((1, 3))}
    return fields


# -- machines ----------------------------------------------------------------------------------------------------------


def random_machine(rng: Random, num_gpus: int) -> Cluster:
    """Return a machine of at least ``num_gpus`` GPUs, sometimes with slow or dead links."""
    kind = rng.choice(("topology", "dgx-h100", "dgx-h100", "mi300x-node", "unequal", "dgx1-v100"))
    if kind == "topology":
        cluster = _topology(rng, num_gpus)
    elif kind == "unequal":
        cluster = unequal_nodes(num_gpus)
    else:
        nodes = -(-num_gpus // 8)
        cluster = joined(kind, nodes, rng.choice((None, "switch", "rail", "fat-tree", "clos")) if nodes > 1 else None)
        if nodes > 1:
            routing = rng.choice((None, None, "d-mod-k", "ecmp-hash:3", "shortest"))
            cluster = cluster if routing is None else replace(cluster, routing=routing)
    for _ in range(rng.choice((0, 0, 1, 2))):
        cluster = degraded(rng, cluster)
    return cluster


@cache
def joined(kind: str, nodes: int, fabric: str | None) -> Cluster:
    return load_cluster(kind, nodes=nodes, fabric=fabric)


def _topology(rng: Random, num_gpus: int) -> Cluster:
    words = ["ring", "switch", "full"]
    if num_gpus % 4 == 0:
        words += [f"torus:4x{num_gpus // 4}", f"mesh:2x{num_gpus // 2}", "fat-tree:4:2", "tree:2"]
    latency_ps, rate = rng.choice((0, US)), rng.choice((100 * 10**9, 7 * 10**9))
    cluster = build_topology(rng.choice(words), rate, latency_ps, num_gpus)
    return add_host(cluster, 20 * 10**9, US, rng.choice((1, 2)), 1 << 40) if rng.random() < 0.5 else cluster


@cache
def unequal_nodes(num_gpus: int) -> Cluster:
    """Return alternating nodes of 8 and 4 H100s, joined by one fat tree."""
    whole, half = load_cluster("dgx-h100"), load_cluster("dgx-h100", gpus=4)
    nodes = [whole]
    while sum(len(node.gpus) for node in nodes) < num_gpus:
        nodes.append(half if len(nodes) % 2 else whole)
    return join_nodes(nodes, with_usual_fabric(whole, "fat-tree:2"), "unequal nodes")


def degraded(rng: Random, cluster: Cluster) -> Cluster:
    """Return the cluster with one slow link, or a dead one if no device loses its connection."""
    name = cluster.link_names[rng.randrange(len(cluster.links))]
    if rng.random() < 0.6:
        return slow_down(cluster, [(name, rng.choice((0.5, 0.93)))])
    try:
        left = take_down(cluster, [name])
        gpus = np.asarray(left.gpus, np.int64)
        left.routes(np.repeat(gpus, len(gpus)), np.tile(gpus, len(gpus)))
        hosts, _ = left.host_routes(gpus)
    except SpecError:
        return cluster
    return cluster if (hosts < 0).any() != (cluster.hosts_of(gpus) < 0).any() else left


def reckless(rng: Random, patch: pytest.MonkeyPatch) -> None:
    """Close axes, stop runs, cut them and give up folding at sizes too small for any gain."""
    patch.setattr(stages, "FEW_TASKS", rng.choice((0, 0, 0, 500_000)))
    patch.setattr(deferral, "MANY_TASKS", rng.choice((0, 0, 300)))
    patch.setattr(deferral, "WORTH_A_STOP", rng.choice((2.0, 2.0, 1.0, 0.8)))
    patch.setattr(deferral, "WORTH_WAITING", rng.choice((2.0, 2.0, 0.9)))
    patch.setattr(deferral, "RUN_TASKS", rng.choice((1, 200, 10**6)))
    patch.setattr(stages, "MAX_STOPS", rng.choice((64, 64, 2)))
    patch.setattr(classes, "FEW_RANKS", rng.choice((4096, 4096, 0)))
    patch.setattr(classes, "MAX_CLASSES", rng.choice((0.25, 0.6)))


def private_case(seed: int) -> Case:
    """Return a job on a machine whose routes share no links, so that queues may fold."""
    rng = Random(seed)
    num_ranks, shape = rng.choice((2, 3, 4, 8)), rng.choice(("rings", "rings", "pairs", "stages"))
    fields: dict[str, Any] = {"batch": 8, "micro_batch": rng.choice((2, 8)), "steps": rng.choice((1, 2))}
    if shape == "stages":
        fields |= {"pp": rng.choice((2, 4)), "schedule": rng.choice(("gpipe", "1f1b"))}
        words = ["full", "ring", "mesh:1x"]
    else:
        fields |= {"dp": num_ranks, "bucket_bytes": rng.choice((10**5, 10**8))}
        words = ["full"] if shape == "pairs" else ["full", "ring", "switch"]
        fields["algorithm"] = (("all_reduce", "direct" if shape == "pairs" else "ring"),)
    plan = Plan(**fields, inputs="none")
    word = rng.choice(words)
    word = f"{word}{plan.num_ranks}" if word.startswith("mesh") else word
    cluster = build_topology(word, rng.choice((10**9, 10**11)), rng.choice((0, US)), plan.num_ranks)
    if rng.random() < 0.3:
        cluster = slow_down(cluster, [(rng.choice(cluster.link_names), 0.5)])
    slow = trine.Stragglers(slow=((rng.randrange(plan.num_ranks), 1.3),)) if rng.random() < 0.3 else None
    times = (rng.randint(1, 50), rng.randint(1, 50))
    return Case(workload=chain(8, times, 1), plan=plan, cluster=cluster, settings={"cpu": False, "stragglers": slow})
