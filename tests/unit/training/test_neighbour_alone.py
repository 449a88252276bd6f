"""A job beside a neighbour is the job of ``train``: its software, contention and GPU models."""

from dataclasses import replace

import pytest

import trine
from trine.cluster import load_cluster
from trine.training.neighbour import NeighbourFile, simulate_shared
from trine.training.options import SimulateOptions

MODEL = "model:llama-3.2-1b,layers=2,sequence=1024"


def both(cluster, places, plan, **options):
    """Return the answer beside an equal neighbour on other GPUs, and the step of ``trine.simulate``."""
    chosen = SimulateOptions(cluster=cluster, placement=places, compare=False, **options)
    others = [place for place in range(len(cluster.gpus)) if place not in places][: len(places)]
    neighbour = NeighbourFile(
        workload=MODEL, plan=plan, placement=others, software=options.get("software", "megatron-core")
    )
    made = trine.Plan(**plan)
    return simulate_shared(MODEL, made, neighbour, options=chosen), trine.simulate(MODEL, made, options=chosen)


@pytest.mark.parametrize("software", ["megatron-core", "fsdp-2023"])
def test_the_step_alone_is_that_of_train(software):
    """With contention of collectives and compute, and the factors of the profile's communication."""
    plan = {"dp": 4, "batch": 2, "micro_batch": 1, "inputs": "none"}
    answer, step = both(load_cluster("dgx-h100"), [0, 1, 2, 3], plan, software=software)
    assert step.contention_ps > 0
    assert answer.jobs[0].alone_ps == step.step_time_ps


def test_contention_stays_on_the_streams_of_its_job():
    """Neighbours on links of their own: each GPU's kernels slow down that GPU alone."""
    plan = {"dp": 4, "batch": 2, "micro_batch": 1, "inputs": "none"}
    answer, _ = both(load_cluster("dgx-h100", nodes=2), [0, 1, 2, 3], plan, software="megatron-core")
    assert [job.shared_ps for job in answer.jobs] == [job.alone_ps for job in answer.jobs]


def test_each_rank_keeps_the_times_of_its_gpu():
    nodes = load_cluster("dgx-a100", nodes=2)
    slow = next(index for index, device in enumerate(nodes.devices) if device.kind == "gpu")
    devices = list(nodes.devices)
    devices[slow] = replace(devices[slow], gpu="a6000")
    plan = {"dp": 2, "batch": 1, "inputs": "none"}
    answer, step = both(replace(nodes, devices=tuple(devices)), [0, 1], plan, software="pytorch-eager")
    _, uniform = both(nodes, [0, 1], plan, software="pytorch-eager")
    assert answer.jobs[0].alone_ps == step.step_time_ps
    assert step.step_time_ps > 1.2 * uniform.step_time_ps
