"""Simulated runs of several ranks with one injected cause of lost time, written as Kineto traces, one file per rank.

`trine check FOLDER` reads the traces and must name the cause. Every operator has 1 % of jitter, and every rank a
clock that is off by up to 5 ms. A fault costs at least 5 % of the healthy step, which has the same jitter.

| cause | change by the generator |
|---|---|
| straggler | the kernels of one rank take 1.15 to 1.6 times as long |
| late CPU launch | one rank's launching thread takes 8 to 20 times its time |
| slow link | one GPU's NVLink, or one NIC, at a third to a tenth of its rate, both ways |
| imbalance | one replica has twice the micro-batches, one pipeline stage has more layers, or one expert more tokens |

    python benchmarks/generated_runs.py [--runs 30] [--healthy 10] [--seed 40]

Deterministic; about two minutes of CPU time.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import trine
from trine.cluster import load_cluster
from trine.cluster.select import slow_down
from trine.engine.run import run as run_graph
from trine.parallel.stragglers import Jitter, Stragglers
from trine.results import Result
from trine.results.activity import launches
from trine.results.kineto import write_kineto
from trine.runs.causes import IMBALANCE, LATE_LAUNCH, SLOW_LINK, STRAGGLER
from trine.runs.folder import check_folder

JITTER = Jitter(distribution="normal", spread=0.01)
MIN_COST = 1.05
_MAX_CLOCK_US = 5_000
_MAX_DRAWS = 20
_MODEL = "model:llama-3-8b,layers=2"


@dataclass(frozen=True, slots=True)
class Job:
    """A job: its workload, plan, nodes of dgx-h100, and the axis of data parallelism."""

    workload: str
    plan: dict[str, Any]
    nodes: int = 1
    launch_us: int = 8

    def simulate(self, seed: int, slow: tuple[tuple[int, float], ...] = (), links: tuple[str, ...] = (),
                 slow_link: float = 1.0, launch_us: int | None = None, **plan: Any) -> Result:  # fmt: skip
        """Simulate the job with jitter and faults."""
        cluster = load_cluster("dgx-h100", nodes=self.nodes)
        cluster = slow_down(cluster, [(link, str(slow_link)) for link in links])
        chosen = {name: value for name, value in {**self.plan, **plan}.items() if value is not None}
        return trine.simulate(
            self.workload, trine.Plan(**chosen), cluster=cluster, fold="off", gpu_spread=0.0,
            launch_cost_ps=(launch_us or self.launch_us) * 10**6,
            stragglers=Stragglers(slow=slow, jitter=JITTER, seed=seed),
        )  # fmt: skip


JOBS = {
    "tp2 dp4": Job(_MODEL, {"tp": 2, "dp": 4, "batch": 2, "micro_batch": 1}),
    "dp8": Job(_MODEL, {"dp": 8, "batch": 1}),
    "pp2 dp4": Job(
        "model:llama-3-8b,layers=8", {"pp": 2, "dp": 4, "batch": 4, "micro_batch": 1, "stage_layers": (5, 3)}
    ),
    "tp8 dp2": Job(_MODEL, {"tp": 8, "dp": 2, "batch": 2, "micro_batch": 1}, nodes=2),
}
#: Jobs of small kernels, whose launches can be late.
SMALL_JOBS = {
    "gpt-2, tp2 dp4": Job("model:gpt-2,layers=4", {"tp": 2, "dp": 4, "batch": 8}),
    "gpt-2, dp8": Job("model:gpt-2,layers=4", {"dp": 8, "batch": 8}),
}


@dataclass(frozen=True, slots=True)
class Case:
    """A generated run: its name, injected cause and ranks (both empty if healthy), and its result."""

    name: str
    kind: str
    ranks: tuple[int, ...]
    result: Result
    cost: float


def late_rank(job: Job, seed: int, rank: int, factor: int) -> Result:
    """Return a run with the launches of one rank ``factor`` times as long.

    The job is built with long launches, because trine leaves out launches that delay nothing; then those of the other
    ranks are shortened.
    """
    result = job.simulate(seed, launch_us=job.launch_us * factor)
    graph = result.graph
    others = launches(graph) & (graph.rank != rank)
    duration_ps = graph.duration_ps.copy()
    duration_ps[others] //= factor
    graph = replace(graph, duration_ps=duration_ps)
    return replace(result, graph=graph, records=run_graph(graph), memory=None)


def draw(kind: str, chance: random.Random) -> Case:
    """Return a run with a cause of this kind, "" for a healthy run; a cause that costs too little is drawn again."""
    seed = chance.randrange(2**30)
    if not kind:
        jobs = {**JOBS, **SMALL_JOBS}
        name = chance.choice(sorted(jobs))
        return Case(name, "", (), jobs[name].simulate(seed), 1.0)
    for _ in range(_MAX_DRAWS):
        case = {STRAGGLER: _straggler, LATE_LAUNCH: _late_launch, SLOW_LINK: _slow_link, IMBALANCE: _imbalance}[kind](
            chance, seed
        )
        if case.cost >= MIN_COST:
            return case
    raise RuntimeError(f"no {kind} of {_MAX_DRAWS} costs {MIN_COST - 1:.0%}")


def _case(name: str, kind: str, ranks: tuple[int, ...], result: Result, healthy: Result) -> Case:
    return Case(name, kind, ranks, result, int(result.records.end_ps.max()) / int(healthy.records.end_ps.max()))


def _straggler(chance: random.Random, seed: int) -> Case:
    name = chance.choice(sorted(JOBS))
    job = JOBS[name]
    healthy = job.simulate(seed)
    rank, factor = chance.randrange(len(healthy.graph.rank_names)), chance.uniform(1.15, 1.6)
    return _case(f"{name}, kernels of rank {rank} x {factor:.2f}", STRAGGLER, (rank,),
                 job.simulate(seed, slow=((rank, factor),)), healthy)  # fmt: skip


def _late_launch(chance: random.Random, seed: int) -> Case:
    name = chance.choice(sorted(SMALL_JOBS))
    job = SMALL_JOBS[name]
    healthy = job.simulate(seed)
    rank, factor = chance.randrange(len(healthy.graph.rank_names)), chance.randrange(8, 21)
    return _case(f"{name}, launches of rank {rank} x {factor}", LATE_LAUNCH, (rank,),
                 late_rank(job, seed, rank, factor), healthy)  # fmt: skip


def _slow_link(chance: random.Random, seed: int) -> Case:
    name = chance.choice(("tp2 dp4", "pp2 dp4", "tp8 dp2"))
    job = JOBS[name]
    healthy = job.simulate(seed)
    rank, rate = chance.randrange(len(healthy.graph.rank_names)), chance.choice((0.3, 0.2, 0.1))
    links = (f"gpu{rank}->nvswitch", f"nvswitch->gpu{rank}")
    if job.nodes > 1:
        node, number = divmod(rank, 8)
        links = tuple(link.name for link in load_cluster("dgx-h100", nodes=job.nodes).links
                      if f"node{node}.nic{number}" in link.name)  # fmt: skip
    return _case(f"{name}, link of rank {rank} x {rate}", SLOW_LINK, (rank,),
                 job.simulate(seed, links=links, slow_link=rate), healthy)  # fmt: skip


def _imbalance(chance: random.Random, seed: int) -> Case:
    form = chance.choice(("micro-batches", "layers", "experts"))
    if form == "micro-batches":
        job = JOBS["dp8"]
        replica = chance.randrange(8)
        batches = tuple(4 if each == replica else 2 for each in range(8))
        healthy = job.simulate(seed, batch=2, micro_batch=1)
        result = job.simulate(seed, batch=None, micro_batch=1, replica_batches=batches)
        return _case(f"dp8, replica {replica} with 4 samples, others 2", IMBALANCE, (replica,), result, healthy)
    if form == "layers":
        job = JOBS["pp2 dp4"]
        layers = chance.choice(((7, 1), (3, 5)))
        stage = layers.index(max(layers))
        ranks = tuple(range(4 * stage, 4 * stage + 4))
        result = job.simulate(seed, stage_layers=layers)
        return _case(f"pp2 dp4, {layers} layers", IMBALANCE, ranks, result, job.simulate(seed))
    job = Job("model:mixtral-8x7b,layers=2", {"dp": 8, "ep": 8, "batch": 1})
    result = job.simulate(seed, expert_imbalance="zipf:0.5")
    return _case("dp8 ep8, experts zipf 0.5", IMBALANCE, (0,), result, job.simulate(seed))


def write_case(case: Case, folder: Path, chance: random.Random) -> None:
    """Write the case's traces, each with another clock."""
    write_kineto(case.result, folder)
    for path in sorted(folder.glob("rank*.json.gz")):
        with gzip.open(path, "rt") as file:
            trace = json.load(file)
        offset_us = _MAX_CLOCK_US + chance.randrange(-_MAX_CLOCK_US, _MAX_CLOCK_US)
        for event in trace["traceEvents"]:
            event["ts"] += offset_us
        with gzip.open(path, "wt", compresslevel=1) as file:
            json.dump(trace, file)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What `trine check` names first: kind and ranks, both empty if it names nothing."""

    kind: str
    ranks: tuple[int, ...]
    share: float


def judge(case: Case, chance: random.Random) -> Verdict:
    """Write the case's traces and return the verdict on them."""
    with tempfile.TemporaryDirectory() as folder:
        write_case(case, Path(folder), chance)
        answer = check_folder(folder)
    if not answer.causes:
        return Verdict("", (), 0.0)
    return Verdict(answer.causes[0].kind, answer.causes[0].ranks, answer.causes[0].share)


def is_right_rank(case: Case, verdict: Verdict) -> bool:
    """Return whether the named ranks match the cause; for a link, its partner in the group may be named too."""
    if case.kind == SLOW_LINK:
        return set(case.ranks) <= set(verdict.ranks) and len(verdict.ranks) <= 2
    return set(case.ranks) == set(verdict.ranks)


def cases(num_runs: int, num_healthy: int, chance: random.Random) -> Iterator[Case]:
    """Yield the runs: the kinds in turn, then the healthy ones."""
    kinds = (STRAGGLER, LATE_LAUNCH, SLOW_LINK, IMBALANCE)
    for number in range(num_runs):
        yield draw(kinds[number % len(kinds)], chance)
    for _ in range(num_healthy):
        yield draw("", chance)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--healthy", type=int, default=10)
    parser.add_argument("--seed", type=int, default=40)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    ranks = kinds = quiet = 0
    for case in cases(options.runs, options.healthy, chance):
        verdict = judge(case, chance)
        has_rank, has_kind = is_right_rank(case, verdict), case.kind == verdict.kind
        if case.kind:
            ranks += has_rank
            kinds += has_kind
        else:
            quiet += not verdict.kind
        mark = "" if has_rank and has_kind else "   WRONG"
        print(f"{case.kind or 'healthy':16} {case.name:44} costs {case.cost - 1:6.1%}   {verdict.kind or 'none':16} "
              f"{verdict.ranks} {verdict.share:.1%}{mark}", flush=True)  # fmt: skip
    print(f"right rank {ranks} and right kind {kinds} of {options.runs}")
    print(f"{quiet} of {options.healthy} healthy runs without a cause")


if __name__ == "__main__":
    main()
