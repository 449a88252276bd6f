"""A job beside a neighbour is the job of ``train``: its software, contention and GPU models."""

from dataclasses import replace

import pytest

import trine
from trine.cluster import load_cluster
from trine.software import load_software
from trine.training.neighbour import NeighbourFile, simulate_shared
from trine.training.options import SimulateOptions

MODEL = "model:llama-3.2-1b,layers=2,sequence=1024"


def both(cluster, places, plan, **options):
    """Return the answer beside an equal neighbour on other GPUs, and the step of ``trine.simulate``."""
    chosen = SimulateOptions(cluster=cluster, placement=places, compare=False, **options)
    others = [place for place in range(len(cluster.gpus)) if place not in places][: len(places)]
    software = options.get("software", "megatron-core")
    name = software if isinstance(software, str) else software.name
    neighbour = NeighbourFile(workload=MODEL, plan=plan, placement=others, software=name)
    made = trine.Plan(**plan)
    return simulate_shared(MODEL, made, neighbour, options=chosen), trine.simulate(MODEL, made, options=chosen)


@pytest.mark.parametrize("software", ["megatron-core", "fsdp-2023"])
def test_the_step_alone_is_that_of_train(software):
    """With contention of collectives and compute, and the factors of the profile's communication."""
    plan = {"dp": 4, "batch": 2, "micro_batch": 1, "inputs": "none"}
    answer, step = both(load_cluster("dgx-h100"), [0, 1, 2, 3], plan, software=software)
    assert step.contention_ps > 0
    assert answer.jobs[0].alone_ps == step.step_time_ps


def test_factors_of_a_fitted_profile_lengthen_the_collectives_of_both():
    plan = {"dp": 4, "batch": 2, "micro_batch": 1, "inputs": "none"}
    usual = load_software("megatron-core")
    fitted = usual.scaled({"communication": 3.0}, "a test")
    steps = []
    for software in (usual, fitted):
        answer, step = both(load_cluster("dgx-h100"), [0, 1, 2, 3], plan, software=software)
        assert answer.jobs[0].alone_ps == step.step_time_ps
        steps.append(step.step_time_ps)
    assert steps[1] > 1.02 * steps[0]


def test_contention_stays_on_the_streams_of_its_job():
    """Neighbours on links of their own: each GPU's kernels slow down that GPU alone."""
    plan = {"dp": 4, "batch": 2, "micro_batch": 1, "inputs": "none"}
    answer, _ = both(load_cluster("dgx-h100", nodes=2), [0, 1, 2, 3], plan, software="megatron-core")
    assert [job.shared_ps for job in answer.jobs] == [job.alone_ps for job in answer.jobs]


@pytest.mark.parametrize("rank", [0, 1])
def test_each_rank_keeps_the_times_of_its_gpu(rank):
    nodes = load_cluster("dgx-a100", nodes=2)
    slow = [index for index, device in enumerate(nodes.devices) if device.kind == "gpu"][rank]
    devices = list(nodes.devices)
    devices[slow] = replace(devices[slow], gpu="a6000")
    plan = {"dp": 2, "batch": 1, "inputs": "none"}
    answer, step = both(replace(nodes, devices=tuple(devices)), [0, 1], plan, software="pytorch-eager")
    _, uniform = both(nodes, [0, 1], plan, software="pytorch-eager")
    assert answer.jobs[0].alone_ps == step.step_time_ps
    assert step.step_time_ps > 1.2 * uniform.step_time_ps
