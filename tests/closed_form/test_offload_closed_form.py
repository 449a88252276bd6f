"""Does offload move the right bytes at the right time, and free their memory?"""

import dataclasses

import numpy as np
import pytest
from folded_cases import assert_folded_is_unfolded
from forms_of_parallelism import model
from synthetic import MS, Chain, Proportional

import trine
from trine.cluster import load_cluster
from trine.common.units import transfer_ps
from trine.compute import make_compute
from trine.engine import run
from trine.errors import PlanError
from trine.graph.memory import MEMORY_CATEGORIES
from trine.graph.program import HOST_STREAM, Collective, Compute, HostCopy, RankProgram
from trine.parallel.build import build_job
from trine.parallel.instantiate import instantiate
from trine.parallel.offload import host_bytes_per_s
from trine.parallel.plan import Plan
from trine.results.memory import memory_timeline
from trine.training import placement_of

RATE = 10**10  # of host memory, bytes/s
VGG13 = "vgg13-h100-b128"
WEIGHTS = [40 * 10**6, 60 * 10**6, 20 * 10**6]


def chain(**more):
    given = {"forward_ps": [MS] * 3, "backward_ps": [2 * MS] * 3, "weight_bytes": WEIGHTS, "optimizer_ps": MS}
    return Chain(**{**given, **more}).workload()


def built(workload, plan):
    job, _ = build_job(workload, plan.filled(), Proportional(workload), has_host=True, host_bytes_per_s=float(RATE))
    return job


def copies(program, to_host):
    return [s for s in program.steps if isinstance(s, HostCopy) and s.to_host == to_host and s.label.phase != 3]


def on_dgx(job, num_ranks=1):
    machine = trine.load_cluster("dgx-h100")
    graph, memory = instantiate(job, placement_of(machine, num_ranks))
    return graph, memory, run(graph), machine


# -- the optimizer -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sharding", ["none", "zero1", "zero2"])
@pytest.mark.parametrize("micro_batches", [1, 4])
def test_gradients_of_all_micro_batches_stay_in_their_buffer_until_they_leave(sharding, micro_batches):
    """Megatron-LM's float32 gradients are in one buffer on the GPU: only the optimizer's state leaves its memory."""
    uses = {}
    for offload in ("none", "optimizer"):
        plan = Plan(dp=2, sharding=sharding, batch=micro_batches, micro_batch=1, offload=offload)
        result = trine.simulate("model:llama-3.2-1b", plan=plan, cluster="dgx-h100", software="megatron-core")
        uses[offload] = dict(zip(MEMORY_CATEGORIES, result.rank(0).memory_timeline.resident_bytes[0], strict=True))
    state = uses["none"]["optimizer_state"]
    assert state > 0
    assert uses["optimizer"] == {**uses["none"], "optimizer_state": 0}
    gradients = 4 * uses["none"]["weights"] // 2
    assert uses["none"]["gradients"] == (gradients // 2 if sharding == "zero2" else gradients)


def test_gradients_go_out_bucket_by_bucket_and_weights_come_back():
    program = built(chain(), Plan(offload="optimizer", bucket_bytes=1, first_bucket_bytes=1)).programs[0]
    assert [copy.size_bytes for copy in copies(program, True)] == WEIGHTS[::-1]
    assert [copy.size_bytes for copy in copies(program, False)] == WEIGHTS[::-1]
    on_cpu = [step for step in program.steps if isinstance(step, Compute) and step.stream == HOST_STREAM]
    assert [step.duration_ps for step in on_cpu] == [transfer_ps(3 * size, RATE) for size in WEIGHTS[::-1]]
    assert not any(step.label.operator == 6 for step in program.steps)  # the recorded optimizer operator


def test_the_step_ends_with_the_cpu_and_the_last_copy_back():
    """One bucket: 9 ms of compute, 120 MB out, three passes over them on the CPU, 120 MB back."""
    plan = Plan(offload="optimizer", bucket_bytes=10**9, first_bucket_bytes=10**9, inputs="none")
    job = built(chain(), plan)
    _, _, records, machine = on_dgx(job)
    gpu = machine.gpus[0]
    links = machine.route(gpu, machine.host_of(gpu))
    latency_ps = sum(machine.links[link].latency_ps for link in links)
    size = sum(WEIGHTS)
    one_way = latency_ps + transfer_ps(size, min(machine.links[link].bytes_per_s for link in links))
    expected = 9 * MS + 2 * one_way + transfer_ps(3 * size, RATE)
    assert abs(int(records.end_ps.max()) - expected) <= 2


def test_the_next_step_waits_for_its_weights():
    plan = Plan(offload="optimizer", steps=2, inputs="none")
    graph, _, records, _ = on_dgx(built(chain(), plan))
    back = [i for i in np.flatnonzero(graph.labels.phase == 5) if graph.labels.step[i] == 0]
    first = np.flatnonzero((graph.labels.step == 1) & (graph.labels.operator == 0))
    assert records.start_ps[first[0]] == records.end_ps[back].max()


def test_state_and_copied_gradients_leave_the_gpu():
    with_it, without = (
        trine.simulate(VGG13, Plan(offload=offload), cluster="dgx-h100") for offload in ("optimizer", "none")
    )
    assert with_it.memory_peaks[0].by_category["optimizer_state"] == 0
    gone = without.memory_peaks[0].by_category["optimizer_state"]
    assert gone == 2 * 532_191_392
    assert without.memory_peak_bytes - with_it.memory_peak_bytes >= gone
    state = MEMORY_CATEGORIES.index("optimizer_state")
    assert (with_it.memory.resident_bytes[:, state] == 0).all()


def test_what_the_cpu_moves_is_gradients_weights_and_state():
    """VGG-13 with Adam: 532 MB of gradients read, 532 MB of weights and twice the bytes of states read and written."""
    result = trine.simulate(VGG13, Plan(offload="optimizer"), cluster="dgx-h100")
    graph = result.graph
    on_host = [i for i, stream in enumerate(graph.stream) if stream >= 0 and graph.stream_names[stream] == HOST_STREAM]
    machine = trine.load_cluster("dgx-h100")
    rate = host_bytes_per_s(machine, np.asarray(machine.gpus)[:1])
    assert rate == 245_760_000_000
    moved = 532_191_392 * (1 + 2 + 4)
    assert graph.duration_ps[on_host].sum() == pytest.approx(moved / rate * 1e12, rel=1e-6)


def test_gpus_of_a_socket_share_its_memory():
    machine = trine.load_cluster("dgx-h100")
    gpus = np.asarray(machine.gpus, np.int64)
    assert host_bytes_per_s(machine, gpus) == host_bytes_per_s(machine, gpus[:4]) == 245_760_000_000 / 4


def on_hosts(name: str, plan: Plan) -> tuple[RankProgram, int]:
    """Return the program of rank 0 of a small transformer, and the bytes of the weights that it keeps."""
    workload = model(name)
    compute = make_compute("auto", workload)
    program = build_job(workload, plan.filled(), compute, has_host=True, host_bytes_per_s=float(RATE))[0].programs[0]
    kept = build_job(workload, Plan(**{**plan_of(plan), "offload": "none"}).filled(), compute)[0].programs[0]
    return program, kept.resident_bytes[MEMORY_CATEGORIES.index("weights")]


def plan_of(plan: Plan) -> dict[str, object]:
    return {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan)}


def reached(program: RankProgram, step: int) -> set[int]:
    """Return all steps that ``step`` waits for, directly or not."""
    found, left = set(), [step]
    while left:
        new = set(program.steps[left.pop()].after) - found
        found |= new
        left += new
    return found


SHARDED = [
    {"dp": 4}, {"dp": 4, "dp_overlap": False}, {"dp": 4, "sharding": "zero2", "micro_batch": 1},
    {"dp": 4, "sharding": "fsdp"}, {"dp": 4, "sharding": "fsdp", "dp_overlap": False, "micro_batch": 1},
    {"dp": 8, "sharding": "fsdp", "shard_ways": 4}, {"dp": 4, "sharding": "zero1", "sync": "last"},
]  # fmt: skip


@pytest.mark.parametrize("fields", SHARDED, ids=str)
def test_gradients_leave_when_they_are_reduced_and_each_leaves_once_a_reduction(fields):
    program, _ = on_hosts("llama-3-8b", Plan(offload="optimizer", inputs="none", **fields))
    last_kind = "copies" if "shard_ways" in fields else "bucket"
    reductions = [i for i, s in enumerate(program.steps) if isinstance(s, Collective) and s.key[0] == last_kind]
    out = [i for i, s in enumerate(program.steps) if isinstance(s, HostCopy) and s.to_host]
    assert len(out) == len(reductions) > 1
    for copy, reduction in zip(out, reductions, strict=True):
        assert reduction in program.steps[copy].after
        ways = {"none": 1}.get(fields.get("sharding", "none"), fields.get("shard_ways", fields["dp"]))
        whole = program.steps[reduction].size_bytes * (ways if "shard_ways" in fields else 1)
        assert program.steps[copy].size_bytes == pytest.approx(whole / ways, abs=ways)


@pytest.mark.parametrize("ep", [2, 4])
@pytest.mark.parametrize("sharding", ["none", "zero1", "fsdp"])
def test_the_cpu_updates_all_weights_that_a_rank_is_responsible_for(sharding, ep):
    """Experts' weights are included: with ep = dp no other rank has them, so no collective reduces their gradients."""
    plan = Plan(dp=4, ep=ep, sharding=sharding, offload="optimizer", inputs="none")
    program, weights = on_hosts("mixtral-8x7b", plan)
    back = sum(s.size_bytes for s in program.steps if isinstance(s, HostCopy) and not s.to_host)
    if sharding == "zero1":  # weights are whole on each rank; it updates its part
        experts = 2 * 8 * 3 * 4096 * 14336 * 2 // ep
        weights = (weights - experts) / 4 + experts / (4 // ep)
    assert back == pytest.approx(weights, rel=1e-5)
    assert sum(s.size_bytes for s in program.steps if isinstance(s, HostCopy) and s.to_host) == back


@pytest.mark.parametrize(("sharding", "prefetch"), [("zero1", 0), ("zero1", 1), ("zero2", 1), ("fsdp", 1)])
def test_parameters_are_gathered_when_the_cpu_has_updated_them(sharding, prefetch):
    plan = Plan(dp=4, sharding=sharding, prefetch=prefetch, offload="optimizer", steps=2, inputs="none")
    program, _ = on_hosts("llama-3-8b", plan)
    back = [i for i, s in enumerate(program.steps) if isinstance(s, HostCopy) and not s.to_host and s.label.step == 0]
    later = [i for i, s in enumerate(program.steps) if i > back[-1] and getattr(s, "kind", "") == "all_gather"]
    assert set(back) <= reached(program, later[0])


def test_local_sgd_averages_what_the_cpu_has_updated():
    program, _ = on_hosts("llama-3-8b", Plan(dp=4, sync_every=2, steps=4, offload="optimizer", inputs="none"))
    averages = [i for i, s in enumerate(program.steps) if isinstance(s, Collective) and s.key[0] == "average"]
    assert len(averages) == 2
    for average in averages:
        step = program.steps[average].label.step
        back = {i for i, s in enumerate(program.steps) if isinstance(s, HostCopy) and s.label.step == step}
        assert back
        assert back <= reached(program, average)


# -- activations -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", [Plan(), Plan(pp=2, micro_batch=2), Plan(dp=2, micro_batch=4, steps=2)])
def test_what_leaves_comes_back(plan):
    job = built(chain(), trine.Plan(**{**plan_fields(plan), "offload": "activations"}))
    for program in job.programs:
        out, back = (sorted(copy.size_bytes for copy in copies(program, way)) for way in (True, False))
        assert out == back
        balance = np.zeros(len(MEMORY_CATEGORIES), np.int64)
        for change in program.memory:
            balance[change.category] += change.delta_bytes
        assert (balance == 0).all()
    assert any(copies(program, True) for program in job.programs)


def plan_fields(plan):
    return {name: getattr(plan, name) for name in ("dp", "pp", "micro_batch", "steps")}


def test_each_layer_but_the_last_leaves_its_input():
    """Three linear layers keep their inputs; the first is data, so two activations; the last layer's stays."""
    program = built(chain(), Plan(offload="activations")).programs[0]
    assert [copy.size_bytes for copy in copies(program, True)] == [4 * 8 * 64]


def test_memory_is_never_negative_and_the_peak_falls():
    with_it, without = (
        trine.simulate("model:llama-3-8b", Plan(offload=offload, batch=2), cluster="dgx-h100")
        for offload in ("activations", "none")
    )
    timeline = memory_timeline(with_it.memory, with_it.records)
    held = np.cumsum(timeline.delta_bytes[timeline.category == MEMORY_CATEGORIES.index("activations")])
    assert held.min() >= 0
    assert held[-1] == 0
    peaks = [result.memory_peaks[0].by_category["activations"] for result in (with_it, without)]
    assert peaks[0] < 0.4 * peaks[1]
    assert with_it.rank_times.offload[0] > 0
    assert with_it.step_time_ps >= without.step_time_ps


@pytest.mark.parametrize("offload", ["optimizer", "activations"])
def test_folded_is_unfolded(offload):
    plan = Plan(dp=4, pp=2, micro_batch=64, offload=offload, steps=2)
    assert_folded_is_unfolded(VGG13, plan, cluster="dgx-h100")


# -- refused -----------------------------------------------------------------------------------------------------------


def test_what_cannot_be_is_refused():
    ring = trine.build_topology("ring", "65 GB/s", "1 us", 2)
    with pytest.raises(PlanError, match="needs host memory"):
        trine.simulate(VGG13, Plan(dp=2, offload="optimizer"), cluster=ring)
    with pytest.raises(PlanError, match="no backward pass"):
        built(Chain(forward_ps=[MS, MS]).workload(), Plan(offload="activations"))
    with pytest.raises(PlanError, match="finds nothing to copy"):
        built(chain(forward_ps=[MS], backward_ps=[MS], weight_bytes=[400]), Plan(offload="activations"))
    with pytest.raises(PlanError, match="needs ddp"):
        Plan(dp=2, data="dp", offload="optimizer")


def test_gpus_of_a_full_host_share_its_memory_and_decide():
    """With four GPUs per processor on one node and one GPU on another, all get a quarter of the rate of one alone."""
    cluster = load_cluster("dgx-h100", nodes=2)
    gpus = np.array(cluster.gpus, np.int64)
    alone = host_bytes_per_s(cluster, gpus[8:9])
    assert host_bytes_per_s(cluster, gpus[:9]) == pytest.approx(alone / 4)
    assert host_bytes_per_s(cluster, gpus[6:9]) == pytest.approx(alone / 2)
