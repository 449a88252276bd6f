"""Laws of answers, asked of random small jobs: more hardware never costs time, more work never saves it.

Flows that share links and kernels that press on compute may change the order of a few operators, and a network that is
faster may then end a step a little later (Graham, 1969). So laws of time have a tolerance; laws of equality have none.
"""

import random
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from plan_spaces import is_empty, outcomes, random_space, within_limits

import trine
from trine.cluster import build_topology, load_cluster
from trine.collectives.nccl.predict import Collectives
from trine.common.processes import SerialExecutor
from trine.errors import InputError
from trine.search.ties import RESOLUTION

MODEL = "model:gpt-2,layers=2,sequence=128"
MODELS = (MODEL, "model:llama-3.2-1b,layers=2,sequence=128", "model:resnet18,batch=8")
#: Share of a step that a better network may cost, by another order of operators.
ORDER = 0.005
#: Largest space of a plan that is searched.
MAX_LAYOUTS = 200
#: Questions of each law in the slow suite: 3,000 together.
QUESTIONS = {
    "bandwidth": 400, "latency": 400, "batch": 300, "size": 1420, "nodes": 200, "folding": 200, "sweep": 40, "plan": 40,
}  # fmt: skip


@dataclass(frozen=True)
class Job:
    """A random job on one topology."""

    workload: str
    plan: trine.Plan
    topology: str
    gb_per_s: float
    latency_us: float

    def cluster(self):
        return build_topology(self.topology, f"{self.gb_per_s} GB/s", f"{self.latency_us} us", self.plan.num_ranks)

    def step_ps(self, **options):
        return trine.simulate(self.workload, self.plan, cluster=self.cluster(), compare=False, **options).step_time_ps


def random_job(draw):
    """Return a job of 2 to 16 ranks."""
    workload = draw.choice(MODELS)
    is_transformer = workload != MODELS[-1]
    ways = {"dp": draw.choice((1, 2, 4)), "tp": 1, "pp": 1}
    if is_transformer:
        ways |= {"tp": draw.choice((1, 2)), "pp": draw.choice((1, 2))}
    if max(ways.values()) == 1:
        ways["dp"] = 2
    fields = {"batch": 4, "micro_batch": draw.choice((1, 2, 4)), "inputs": "none"}
    if ways["pp"] > 1:
        fields["schedule"] = draw.choice(("1f1b", "gpipe"))
    if ways["dp"] > 1 and is_transformer:
        fields["sharding"] = draw.choice(("none", "zero1", "fsdp"))
    plan = trine.Plan(**ways, **fields)
    topology = draw.choice(("switch", "ring", "full"))
    return Job(workload, plan, topology, draw.choice((1, 5, 25, 100)), draw.choice((1, 2, 20)))


def bandwidth(draw):
    job = random_job(draw)
    faster = replace(job, gb_per_s=job.gb_per_s * draw.choice((1.2, 2, 8)))
    assert faster.step_ps() <= (1 + ORDER) * job.step_ps(), job


def latency(draw):
    job = random_job(draw)
    sooner = replace(job, latency_us=job.latency_us / draw.choice((1.5, 4)))
    assert sooner.step_ps() <= (1 + ORDER) * job.step_ps(), job


def batch(draw):
    """More micro-batches, of the same size."""
    job = random_job(draw)
    more = replace(job, plan=replace(job.plan, batch=4 * draw.choice((2, 3, 5))))
    assert more.step_ps() > job.step_ps(), job


def size(draw):
    cluster = load_cluster(
        draw.choice(("dgx-h100", "dgx-a100", "hgx-b200", "mi300x-node")), nodes=draw.choice((1, 2, 3))
    )
    gpus = draw.sample(range(len(cluster.gpus)), draw.randint(2, len(cluster.gpus)))
    op = draw.choice(("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"))
    small = int(2 ** draw.uniform(3, 33))
    large = small + draw.randint(1, 4 * small)
    model = Collectives(cluster, gpus)
    assert model.predict(op, large).time_ps >= model.predict(op, small).time_ps, (op, small, large, gpus)


def nodes(draw):
    """Nodes of a switched fabric are alike, so their order changes nothing."""
    job = random_job(draw)
    order = list(range(job.plan.num_ranks))
    draw.shuffle(order)
    alike = replace(job, topology=draw.choice(("switch", "full")))
    assert alike.step_ps(placement=order) == alike.step_ps(), alike


def folding(draw):
    job = random_job(draw)
    assert job.step_ps(fold="off") == job.step_ps(fold="on"), job


def sweep(draw):
    """Each point of a sweep is the answer of the same question alone."""
    layers, dp = draw.choice((2, 3)), draw.choice((2, 4))
    rates = draw.sample((1, 2, 5, 10, 50), 2)
    settings = {
        "workload": f"model:gpt-2,layers={layers},sequence=128", "dp": dp, "topology": "ring", "latency": "1 us",
    }  # fmt: skip
    spec = {"command": "train", "settings": settings, "vary": {"bandwidth": [f"{rate} GB/s" for rate in rates]}}
    with tempfile.TemporaryDirectory() as folder:
        rows = trine.sweep(spec, Path(folder) / "sweep", executor=SerialExecutor()).rows
    for rate, row in zip(rates, rows, strict=True):
        cluster = build_topology("ring", f"{rate} GB/s", "1 us", dp)
        assert (
            row["step_time_s"] == trine.simulate(settings["workload"], trine.Plan(dp=dp), cluster=cluster).step_time_s
        )


def plan(draw):
    """No member of a small space that fits with a margin beats the first by more than the model's resolution."""
    small = random_space(draw.randrange(10**6), 7)
    if is_empty(small):
        raise InputError("an empty space")
    layouts = small.all_layouts()
    if len(layouts) > MAX_LAYOUTS:
        raise InputError("too large a space for many questions")
    found = within_limits(outcomes(small, draw.sample(layouts, min(3, len(layouts)))))
    first = small.search().ranked[0].outcome
    rivals = []
    for layout, outcome in found.items():
        if first.is_tight or (not outcome.is_tight and layout.offload == "none"):
            rivals.append((outcome.step_ps, layout))
    if not rivals:
        raise InputError("no layout to compare with")
    for step_ps, layout in rivals:
        assert first.step_ps <= (1 + RESOLUTION) * step_ps, (small.text, layout)


LAWS = {law.__name__: law for law in (bandwidth, latency, batch, size, nodes, folding, sweep, plan)}


def answers(name, first, count):
    """Ask ``count`` questions of a law, and return the broken ones; refused jobs are no questions."""
    asked, broken = 0, []
    for number in range(first, first + 8 * count + 20):
        try:
            LAWS[name](random.Random(f"{name}/{number}"))
        except InputError:
            continue
        except AssertionError as error:
            broken.append(f"{name}/{number}: {error}")
        asked += 1
        if asked == count:
            return broken
    pytest.fail(f"only {asked} of {count} questions of {name!r} have an answer")


@pytest.mark.parametrize("name", LAWS)
def test_a_few_random_questions_keep_the_law(name):
    assert answers(name, 0, 1 if name in ("sweep", "plan") else 2) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", LAWS)
def test_many_random_questions_keep_the_law(name):
    assert answers(name, 1000, QUESTIONS[name]) == []


#: Times of a step that break a law.
WRONG_TIMES = {
    "bandwidth": lambda job: job.gb_per_s,
    "latency": lambda job: 1 / job.latency_us,
    "batch": lambda job: -job.plan.batch,
    "nodes": lambda job, placement=(): len(placement),
    "folding": lambda job, fold: len(fold),
}


@pytest.mark.parametrize("name", WRONG_TIMES)
def test_an_answer_that_breaks_a_law_is_found(name, monkeypatch):
    monkeypatch.setattr(Job, "step_ps", WRONG_TIMES[name])
    broken = answers(name, 0, 3)
    assert len(broken) == 3
    assert all(each.startswith(f"{name}/") for each in broken)


def test_the_slow_suite_asks_3000_questions():
    assert sum(QUESTIONS.values()) == 3000
    assert QUESTIONS.keys() == LAWS.keys()
