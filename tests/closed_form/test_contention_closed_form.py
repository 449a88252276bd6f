"""Do steps under contention, without overlap and with shared host links match times worked out by hand?"""

import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from folded_cases import assert_folded_is_unfolded

import trine
from trine.common.units import format_time, transfer_ps
from trine.engine import run
from trine.errors import InputError, PlanError
from trine.graph.placement import Placement
from trine.graph.program import Collective, Compute, HostCopy, Job, Label, Peer, RankProgram, Recv, Send
from trine.graph.taskgraph import COMPUTE
from trine.parallel.contention import (
    Bound,
    ChannelUse,
    bound_of,
    kernels_of,
    pressure_ppm,
    under_pressure,
)
from trine.parallel.instantiate import instantiate
from trine.parallel.no_overlap import in_sequence
from trine.training import costs_on, placement_of

MS = 10**9
GBS = 10**9
NONE = Label()
ENGINES = ("compiled", "reference")


class Wires:
    """Devices with one outgoing link each; with a host, both directions use link 0."""

    def __init__(self, bytes_per_s, latency_ps, device_names, host=-1):
        self.link_bytes_per_s, self.link_latency_ps = np.array(bytes_per_s), np.array(latency_ps)
        self.link_names, self.device_names, self.host = (
            [f"link {i}" for i in range(len(bytes_per_s))],
            device_names,
            host,
        )

    def route(self, source, target):
        return (source,) if self.host < 0 else (0,)

    def hosts_of(self, gpus):
        return np.full(len(gpus), self.host)


def two_gpus(rate=GBS, latency_ps=0):
    """Return a placement on two devices with one link in each direction."""
    return Placement(devices=np.arange(2), cluster=Wires([rate, rate], [latency_ps] * 2, ["a", "b"]))


def job(*steps, others=None):
    """Return a job of two ranks on one axis; both run ``steps``, or the second runs ``others``."""
    programs = [
        RankProgram(name=f"p{i}", steps=tuple(own), memory=(), resident_bytes=(0,) * 6)
        for i, own in enumerate([steps] if others is None else [steps, others])
    ]
    return Job(
        axes=(("dp", 2),), programs=tuple(programs), program_of=(0, 0 if others is None else 1),
        operator_names=(), layer_names=(),
    )  # fmt: skip


def bucket(pressure_ppm=0, size=2 * 10**6):
    """Return 4 ms of compute, then 6 ms of compute overlapped with the gradients' all-reduce, then 1 ms after both."""
    return (
        Compute("compute", 4 * MS, (), NONE),
        Collective("all_reduce", "dp", ("k",), size, -1, "ring", (0,), NONE, pressure_ppm=pressure_ppm),
        Compute("compute", 6 * MS, (), NONE),
        Compute("compute", 1 * MS, (1,), NONE),
    )


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("ppm", [0, 200_000, 333_333])
def test_one_bucket_under_pressure(engine, ppm):
    """A ring of two reduces 2 MB in 2 ms at 1 GB/s; meanwhile the operator loses ``ppm`` of its speed."""
    graph, _ = instantiate(job(*bucket(ppm)), two_gpus())
    records = run(graph, engine=engine)
    assert (graph.pressure_ppm is None) == (ppm == 0)
    lost_ps = -(-2 * MS * ppm // 10**6)
    assert records.end_ps.max() == 11 * MS + lost_ps
    assert records.end_ps[:5].tolist() == [4 * MS, 4 * MS, 6 * MS, 10 * MS + lost_ps, 11 * MS + lost_ps]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_kernel_presses_while_it_waits_for_a_late_rank(engine):
    """The second rank enters 3 ms after the first; the first is slowed down from its entry on, for 5 ms."""
    late = list(bucket(200_000))
    late[0] = Compute("compute", 7 * MS, (), NONE)
    graph, _ = instantiate(job(*bucket(200_000), others=late), two_gpus())
    records = run(graph, engine=engine)
    assert records.end_ps[3] == 10 * MS + 5 * MS * 200_000 // 10**6


@pytest.mark.parametrize("engine", ENGINES)
def test_a_message_presses_on_its_sender(engine):
    """1 MB at 1 GB/s takes 1 ms plus 2 us of latency and slows the sender; the receiver is not slowed down."""
    sender = (
        Compute("compute", MS, (), NONE),
        Send(Peer("dp", 1), 10**6, ("m",), (0,), NONE, pressure_ppm=500_000),
        Compute("compute", 5 * MS, (), NONE),
    )
    receiver = (Recv(Peer("dp", 0), ("m",), (), NONE), Compute("compute", 5 * MS, (), NONE))
    graph, _ = instantiate(job(*sender, others=receiver), two_gpus(latency_ps=2_000_000))
    ends = run(graph, engine=engine).end_ps.tolist()
    assert ends[1:4] == [MS, 2 * MS + 2_000_000, 6 * MS + (MS + 2_000_000) // 2]
    assert ends[5] == 5 * MS


def test_without_overlap_everything_takes_turns():
    graph, _ = instantiate(
        replace(job(*bucket()), programs=tuple(in_sequence(p) for p in job(*bucket()).programs)), two_gpus()
    )
    assert run(graph).end_ps.max() == (4 + 2 + 6 + 1) * MS


def test_copies_of_one_pause_share_it():
    """Two copies between operators run concurrently, each at half the link's rate."""
    steps = (
        Compute("compute", MS, (), NONE),
        HostCopy(10**6, (), NONE),
        HostCopy(10**6, (), NONE, to_host=True),
        Compute("compute", MS, (), NONE),
    )
    program = in_sequence(RankProgram(name="p", steps=steps, memory=(), resident_bytes=(0,) * 6))
    one = Job(axes=(("dp", 1),), programs=(program,), program_of=(0,), operator_names=(), layer_names=())
    place = Placement(devices=np.zeros(1, np.int64), cluster=Wires([GBS], [0], ["gpu", "host"], host=1))
    graph, _ = instantiate(one, place)
    assert run(graph).end_ps.tolist() == [MS, 3 * MS, 3 * MS, 4 * MS]


# -- amount of pressure ------------------------------------------------------------------------------------------------


def test_the_share_of_the_sms_and_of_the_bandwidth():
    h100 = trine.load_gpu("h100-sxm")
    assert pressure_ppm(h100, ChannelUse(24, 0.0), Bound()) == round(24 / 132 * 10**6)
    assert pressure_ppm(h100, ChannelUse(24, h100.memory_bytes_per_s / 4), Bound(memory=1.0)) == 250_000
    assert pressure_ppm(h100, ChannelUse(33, h100.memory_bytes_per_s / 2), Bound(memory=0.5)) == 375_000
    assert pressure_ppm(h100, ChannelUse(33, 0.0), Bound(waves=0.5)) == 375_000
    part = 4 / 13.2  # of a second wave, whose whole needs 13.2 SMs
    assert pressure_ppm(h100, ChannelUse(4, 0.0, MS), Bound(waves=0.5), MS) == round(part * 10**6)
    assert pressure_ppm(h100, ChannelUse(4, 0.0), Bound(waves=1.0)) == round(part / (1 + part) * 10**6)
    assert pressure_ppm(h100, ChannelUse(500, 0.0), Bound()) == 990_000


@pytest.mark.parametrize("channels", [1, 4, 13, 24])
@pytest.mark.parametrize("kernel_ms", [1, 3, 4, 5, 7, 8, 20])
def test_blocks_without_an_sm_come_in_a_second_wave(kernel_ms, channels):
    """Blocks of a 4 ms GEMM that get no SM start once the concurrent kernel or the other blocks end."""
    h100, product_ms = trine.load_gpu("h100-sxm"), 4
    use = ChannelUse(channels, 0.0, kernel_ms * MS)
    wave = min(channels / 13.2, 1)
    lost = pressure_ppm(h100, use, Bound(waves=1.0), product_ms * MS)
    cap = min(wave, 0.99) if kernel_ms <= product_ms else wave
    steps = (
        Collective("all_reduce", "dp", ("k",), kernel_ms * 10**6, -1, "ring", (), NONE, pressure_ppm=lost),
        Compute("compute", product_ms * MS, (), NONE),
    )
    graph, _ = instantiate(job(*steps), two_gpus())
    ended = run(graph).end_ps[graph.kind == COMPUTE][0] / MS
    assert ended == pytest.approx(product_ms + cap * min(product_ms, kernel_ms), rel=1e-5)


@pytest.mark.parametrize("seed", range(20))
def test_half_the_channels_cause_at_least_half_of_the_loss_and_more_never_less(seed):
    """For any mixture of operators, product beside the kernel and transfer time; one channel loses next to nothing."""
    h100, rng = trine.load_gpu("h100-sxm"), random.Random(seed)
    memory = rng.uniform(0, 1)
    bound = Bound(memory=memory, waves=rng.uniform(0, 1 - memory))
    rate, product_ps, time_ps = rng.uniform(0, 3e12), rng.choice((0, rng.randrange(20 * MS))), rng.randrange(1, 20 * MS)
    lost = [
        pressure_ppm(h100, ChannelUse(channels, rate, time_ps), bound, product_ps) for channels in range(1, 133)
    ]  # fmt: skip
    assert all(more >= fewer - 1 for fewer, more in pairwise(lost))
    assert all(2 * lost[half - 1] >= lost[2 * half - 1] - 2 for half in range(1, 67))
    for fewer, more in pairwise(lost):  # no jump: each SM adds at most the part of a wave that it can add
        assert more - fewer <= 10**6 / 13.2 + 2


def test_products_of_hopper_and_blackwell_come_in_waves():
    """A100 GEMMs run one tile per block and do not count; neither do convolutions, attention or norms on any GPU."""
    workload = trine.synthesize("llama-3-8b", gpu="h100-sxm")
    products = sum(op.gpu_time_ps for op in workload.operators if "linear" in op.name)
    whole = sum(op.gpu_time_ps for op in workload.operators if op.phase != "optimizer")
    for gpu in ("h100-sxm", "b200"):
        assert bound_of(workload, trine.load_gpu(gpu)).waves == pytest.approx(products / whole, rel=0.02)
    assert bound_of(workload, trine.load_gpu("a100-80gb")).waves == 0
    assert bound_of(trine.load("resnet50-h100-b128"), trine.load_gpu("h100-sxm")).waves < 0.01


def test_memory_products_and_the_rest_are_parts_of_the_time():
    """A layer of Llama: each operator counts with its time, except for the optimizer's operators."""
    workload, h100 = trine.synthesize("llama-3-8b", gpu="h100-sxm", layers=1), trine.load_gpu("h100-sxm")
    passes = [replace(op, gpu_time_ps=op.id * MS) for op in workload.operators if op.phase != "optimizer"]
    steps = [replace(op, gpu_time_ps=MS) for op in workload.operators if op.phase == "optimizer"]
    found = bound_of(replace(workload, operators=(*passes, *steps)), h100)
    waves = sum(op.id for op in passes if "linear" in op.name)
    assert steps
    assert found.waves == pytest.approx(waves / sum(op.id for op in passes))
    by_memory = sum(op.id for op in passes if not any(word in op.name for word in ("linear", "attention")))
    assert found.memory == pytest.approx(by_memory / sum(op.id for op in passes))


def test_the_product_that_starts_beside_a_collective_counts():
    """A GEMM at least as long as the collective loses 99 % of its speed, one longer than half of it loses its share
    of the collective's time. A shorter one loses half of its speed, and what follows it the average over all operators,
    as attention does."""
    cluster = trine.load_cluster("dgx-h100")
    workload, h100 = trine.synthesize("llama-3-8b", gpu="h100-sxm"), trine.load_gpu("h100-sxm")
    kernels = kernels_of(h100, workload, cluster, np.arange(2), None)
    names = [op.name for op in workload.operators]
    numbers = {word: next(i for i, name in enumerate(names) if word in name) for word in ("linear", "attention")}
    size = 2**26
    (use,) = kernels.of_groups("all_reduce", size, np.arange(2)[None, :])

    def found(word, times):
        first, second, third, _ = bucket(size=size)
        third = third._replace(duration_ps=round(use.time_ps * times), label=Label(operator=numbers[word]))
        return under_pressure(job(first, second, third), kernels).programs[0].steps[1].pressure_ppm

    assert found("linear", 2) == 990_000
    assert found("linear", 0.75) == pytest.approx(750_000, abs=2)
    usual = kernels.ppm([use], 0)
    assert found("linear", 0.25) == pytest.approx(250_000 + usual / 2, abs=2)
    assert found("attention", 0.25) == found("attention", 2) == usual
    assert usual == pressure_ppm(h100, use, bound_of(workload, h100))


def test_the_part_that_memory_bounds():
    """In the bundled VGG-13, arithmetic bounds the convolutions and memory bounds relu, pooling and dropout."""
    workload, h100 = trine.load("vgg13-h100-b128"), trine.load_gpu("h100-sxm")
    relu = sum(op.gpu_time_ps for op in workload.operators if "relu" in op.name.lower() and op.phase != "optimizer")
    whole = sum(op.gpu_time_ps for op in workload.operators if op.phase != "optimizer")
    assert relu / whole < bound_of(workload, h100).memory < 0.6


@pytest.mark.parametrize(("name", "switches_add_up"), [("dgx-a100", False), ("dgx-h100", True)])
def test_the_librarys_channels_and_times_make_the_pressure(name, switches_add_up):
    """A ring accesses memory three times per byte sent; NVLS reads the payload and writes the result."""
    cluster = trine.load_cluster(name)
    workload, h100 = trine.load("vgg13-h100-b128"), trine.load_gpu("h100-sxm")
    kernels = kernels_of(h100, workload, cluster, np.arange(8), costs_on("library", cluster))
    (use,) = kernels.of_groups("all_reduce", 2**28, np.arange(8)[None, :])
    answer = trine.Collectives(cluster).predict("all_reduce", 2**28)
    assert use.channels == answer.channels
    assert answer.algorithm.startswith("nvls") == switches_add_up
    touched = 2 * answer.algbw_bytes_per_s if switches_add_up else 3 * answer.busbw_bytes_per_s
    assert use.memory_bytes_per_s == pytest.approx(touched)


def test_messages_take_what_their_route_carries():
    cluster = trine.load_cluster("dgx-h100")
    workload, h100 = trine.load("vgg13-h100-b128"), trine.load_gpu("h100-sxm")
    kernels = kernels_of(h100, workload, cluster, np.arange(8), None)
    use = kernels.of_message(np.array([0]), np.array([1]))
    assert use == ChannelUse(8, 4.0 * 370_800_000_000)
    assert kernels.ppm([use], 0) == pressure_ppm(h100, use, kernels.bound)
    (group,) = kernels.of_groups("all_reduce", 2**28, np.arange(8)[None, :])
    assert group == ChannelUse(24, 3.0 * 370_800_000_000, transfer_ps(2**28, 370_800_000_000))


def test_pressure_is_put_on_every_kernel_of_a_job():
    cluster = trine.load_cluster("dgx-h100")
    workload, h100 = trine.load("vgg13-h100-b128"), trine.load_gpu("h100-sxm")
    pressed = under_pressure(job(*bucket(size=2**26)), kernels_of(h100, workload, cluster, np.arange(2), None))
    assert [type(step).__name__ for step in pressed.programs[0].steps if getattr(step, "pressure_ppm", 0)] == [
        "Collective"
    ]


# -- a whole job -------------------------------------------------------------------------------------------------------


def test_the_range_of_a_job_in_order_and_in_json():
    found = trine.overlap_range("vgg13-h100-b128", trine.Plan(dp=8), cluster="dgx-h100")
    assert found.ideal.step_time_ps < found.modelled.step_time_ps < found.none.step_time_ps
    row = found.to_json()
    assert row["saved_s"] == pytest.approx(row["none_step_s"] - row["modelled_step_s"])
    assert row["contention_cost_s"] == pytest.approx(row["modelled_step_s"] - row["ideal_step_s"])
    assert "contention of compute" in " ".join(item.what for item in found.modelled.evidence)
    assert not any(text.startswith("contention of compute") for text in found.modelled.not_modelled)
    assert any(text.startswith("contention of compute") for text in found.ideal.not_modelled)


def test_nothing_overlaps_without_overlap():
    """Compute, exposed communication and idle time add up to a DDP step, and no communication is hidden."""
    result = trine.simulate("vgg13-h100-b128", trine.Plan(dp=4, overlap="none", inputs="none"), cluster="dgx-h100")
    times = result.rank_times
    assert (times.communication == times.exposed).all()
    assert (times.compute + times.exposed + times.idle == result.step_time_ps).all()


@pytest.mark.parametrize("overlap", ["modelled", "none"])
def test_folded_is_unfolded(overlap):
    cluster = trine.load_cluster("dgx-h100", nodes=2)
    plan = trine.Plan(dp=4, tp=2, pp=2, micro_batch=64, overlap=overlap)
    assert_folded_is_unfolded("vgg13-h100-b128", plan, cluster=cluster)


def test_what_cannot_matter_is_refused():
    with pytest.raises(PlanError, match="but there is one GPU"):
        trine.Plan(overlap="none")
    with pytest.raises(PlanError, match="needs ddp"):
        trine.Plan(dp=2, data="dp", overlap="modelled")
    with pytest.raises(PlanError, match=r"overlap must be one of .* did you mean 'modelled'"):
        trine.Plan(dp=2, overlap="modeled")
    ring = trine.build_topology("ring", "65 GB/s", "1 us", 2)
    workload = replace(trine.load("vgg13-h100-b128"), gpu=None)
    with pytest.raises(InputError, match="--trace-gpu NAME"):
        trine.simulate(workload, trine.Plan(dp=2, overlap="modelled"), cluster=ring)


# -- host links are shared ---------------------------------------------------------------------------------------------


def on_machine(machine, places, *programs):
    """Return the end times of a job with one program per rank, on the GPUs ``places`` of a cluster."""
    ranks = [RankProgram(name=f"r{i}", steps=s, memory=(), resident_bytes=(0,) * 6) for i, s in enumerate(programs)]
    whole = Job(
        axes=(("dp", len(places)),), programs=tuple(ranks), program_of=tuple(range(len(ranks))),
        operator_names=(), layer_names=(),
    )  # fmt: skip
    graph, _ = instantiate(whole, placement_of(machine, len(places), None, np.array(places)))
    return run(graph).end_ps.tolist()


def test_two_gpus_behind_one_switch_halve_each_others_copies():
    """GPUs 0 and 1 of a DGX H100 share the link from the socket to their PCIe switch; GPU 2 uses another."""
    machine = trine.load_cluster("dgx-h100")
    size, rate = 10**9, 53 * GBS
    copy = (HostCopy(size, (), NONE),)
    alone, shared, apart = (on_machine(machine, p, *[copy] * len(p))[0] for p in ([0], [0, 1], [0, 2]))
    latency_ps = alone - transfer_ps(size, rate)
    assert shared == pytest.approx(latency_ps + transfer_ps(2 * size, rate), abs=2)
    assert apart == alone


def test_what_a_nic_brings_slows_input_copies_down():
    """A message from another node and a host copy share the last link to the GPU, at half of 53 GB/s each.

    The NIC's 400 Gbit/s would allow the message more. The copy continues alone once the message ends.
    """
    machine = trine.load_cluster("dgx-h100", nodes=2)
    size = 10**9
    receives = (HostCopy(2 * size, (), NONE), Recv(Peer("dp", 1), ("m",), (), NONE))
    sends = (Send(Peer("dp", 0), size, ("m",), (), NONE),)
    copied, received, sent = on_machine(machine, [0, 8], receives, sends)
    gpu = machine.gpus[0]
    shared = machine.route(machine.host_of(gpu), gpu)[-1]
    assert shared in machine.route(machine.gpus[8], gpu)
    rate = machine.links[shared].bytes_per_s
    both = sum(size / rate for _ in range(3)) * 1e12  # all three GB cross that link without a pause
    assert copied == pytest.approx(both, rel=1e-4)
    assert received == sent == pytest.approx(2 * size / rate * 1e12, rel=1e-4)
    assert received > 1.9 * transfer_ps(size, rate)


def test_a_message_to_another_node_presses_otherwise_than_one_inside():
    """A rank sends to a near and a far stage; each message uses the channels and the rate of its route."""
    workload, h100 = trine.load("vgg13-h100-b128"), trine.load_gpu("h100-sxm")
    cluster = trine.load_cluster("dgx-h100", nodes=2)
    kernels = kernels_of(h100, workload, cluster, np.arange(16), None)
    sends = [Send(Peer("pp", stage), 10**6, (stage,), (), NONE) for stage in (1, 8)]
    sender, idle = job(*sends, others=()).programs
    made = Job(
        axes=(("pp", 16),), programs=(sender, idle), program_of=(0, *[1] * 15), operator_names=(), layer_names=()
    )
    near, far = (step.pressure_ppm for step in under_pressure(made, kernels).programs[0].steps)
    alone = [kernels.of_message(np.array([0]), np.array([peer])) for peer in (1, 8)]
    assert [near, far] == [kernels.ppm([use], 0) for use in alone]
    assert near != far
    slowest = min(cluster.links[link].bytes_per_s for link in cluster.route(cluster.gpus[0], cluster.gpus[8]))
    assert alone[1] == ChannelUse(2, 4.0 * slowest)


def test_fewer_nics_do_not_make_compute_faster():
    """FSDP of an 8B model on 8 GPUs: across nodes NCCL has fewer channels, but its gathers last longer."""
    compute_s, contention_ps = [], []
    for nodes in (1, 2, 4):
        cluster = trine.load_cluster("dgx-h100", nodes=nodes, gpus=8)
        plan = trine.Plan(dp=8, sharding="fsdp", overlap="modelled")
        result = trine.simulate("model:llama-3-8b", plan, cluster=cluster, software="megatron-core")
        compute_s.append(result.compute_s)
        contention_ps.append(result.contention_ps)
    assert compute_s == sorted(compute_s)
    alone_s = compute_s[0] - contention_ps[0] / 1e12
    for busy_s, lost_ps in zip(compute_s, contention_ps, strict=True):
        assert busy_s - lost_ps / 1e12 == pytest.approx(alone_s, rel=1e-3)


def test_the_answer_names_contention_above_5_percent_of_the_step():
    cluster, plan = trine.load_cluster("dgx-h100", gpus=8), trine.Plan(dp=8, sharding="fsdp", overlap="modelled")
    result = trine.simulate("model:llama-3-8b,layers=2", plan, cluster=cluster, software="megatron-core")
    part = result.contention_ps / result.step_time_ps
    assert part > 0.05
    assert f"cost {format_time(result.contention_ps)} of compute, {100 * part:.1f} %" in " ".join(
        result.summary().split()
    )
    ideal = trine.simulate("model:llama-3-8b,layers=2", replace(plan, overlap="ideal"), cluster=cluster)
    assert ideal.contention_ps == 0
    assert "kernels beside" not in ideal.summary()
