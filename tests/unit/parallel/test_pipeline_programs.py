"""Do pipelines with several chunks per rank run correctly: cuts, messages, gradients, memory, accumulation?"""

from collections import Counter

import numpy as np
import pytest
from pipelines import US, run, stack
from small_transformers import B, Transformer
from synthetic import MS, Chain, Proportional

import trine
from trine.cluster import build_topology
from trine.compute import make_compute
from trine.compute.kinds import layer_of
from trine.graph.program import Collective, Compute, Phase, Recv, Send
from trine.graph.workload import FORWARD
from trine.parallel.build import build_job
from trine.parallel.cuts import balanced_starts
from trine.parallel.layer_places import layer_starts
from trine.parallel.stages import cut_into_stages


def job_of(workload, **fields):
    return build_job(workload, trine.Plan(**fields).filled(), make_compute("auto", workload))


def messages(program, kind):
    return Counter((step.peer.position, step.tag[2], step.tag[3]) for step in program.steps if isinstance(step, kind))


# -- cuts --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "block"),
    [
        ("layers.17.attention.qkv", "layers.17"),
        ("model.layers.3.moe.experts.0.up", "model.layers.3"),
        ("conv2d.5", ""),
        ("embedding", ""),
        ("h.0.attn", "h.0"),
    ],
)
def test_blocks_are_read_off_the_names_of_layers(layer, block):
    assert layer_of(layer) == block


def test_embedding_and_head_count_as_a_layer_each():
    forward = [op for op in Transformer(6).workload().operators if op.phase == FORWARD]
    assert [forward[i].layer for i in layer_starts(forward)] == ["embedding", *(f"layers.{i}.ln1" for i in range(6))]


def test_layers_are_cut_into_equal_parts():
    """Embedding and 7 layers make 8: four parts of two, whatever their times."""
    workload = Transformer(7).workload()
    _, report = job_of(workload, pp=2, virtual_stages=2, schedule="interleaved", batch=4 * B, micro_batch=B,
                       balance="layers")  # fmt: skip
    assert report.cuts == ("layers.1.ln1", "layers.3.ln1", "layers.5.ln1")
    with pytest.raises(trine.PlanError, match=r"9 pipeline stages need 9 layers; the model has 8"):
        job_of(workload, pp=9, balance="layers")


@pytest.mark.parametrize("stages", [2, 3, 7])
def test_equal_layers_balanced_by_time_are_cut_between_layers(stages):
    layers = 12
    workload = Chain([3 * MS, 2 * MS, 5 * MS] * layers, [MS] * 3 * layers).workload()
    times = {op.id: op.gpu_time_ps for op in workload.operators}
    found = cut_into_stages(workload, stages, (), times)
    loads = Counter()
    for op in workload.operators:
        loads[found.stage_of[op.id]] += op.gpu_time_ps
    if layers % stages == 0:
        assert set(loads.values()) == {13 * layers // stages * MS}


def test_five_thousand_operators_are_cut_in_a_moment():
    rng = np.random.default_rng(0)
    times = rng.integers(1, 10**9, 5000).tolist()
    workload = Chain(times, [2 * t for t in times]).workload()
    forward = [op for op in workload.operators if op.phase == FORWARD]
    starts = balanced_starts(workload, forward, 32, {op.id: op.gpu_time_ps for op in workload.operators})
    total = np.concatenate([[0], np.cumsum(times)])
    longest = max(total[b] - total[a] for a, b in zip(starts, [*starts[1:], 5000], strict=True))
    assert longest <= total[-1] / 32 + max(times)
    assert longest >= total[-1] / 32


# -- messages ----------------------------------------------------------------------------------------------------------


def test_chunks_send_to_the_rank_that_holds_the_next_one():
    """Four chunks on two ranks: 0 -> 1 -> 0 -> 1, with every micro-batch, and gradients back."""
    job, _ = job_of(stack(4, US, US, US), pp=2, virtual_stages=2, schedule="interleaved", batch=4, micro_batch=1)
    first, second = job.programs
    assert messages(first, Send) == {(1, 0, 1): 4, (1, 2, 3): 4, (1, 1, 2): 4}
    assert messages(second, Recv) == messages_as_seen_from(1, messages(first, Send))
    assert messages(first, Recv) == messages_as_seen_from(0, messages(second, Send))


def messages_as_seen_from(rank, sent):
    return Counter({(1 - rank, source, target): count for (_, source, target), count in sent.items()})


def skipping():
    """Return eight layers; the third, fifth and seventh also read the output of the first."""
    chain = Chain([MS] * 8, [MS] * 8, batch=4)
    shared = chain.operators[0].outputs[0]
    for i in (2, 4, 6):
        op = chain.operators[i]
        chain.operators[i] = type(op)(
            **{name: getattr(op, name) for name in op.__dataclass_fields__} | {"inputs": (*op.inputs, shared)}
        )
    return chain.workload()


def test_a_tensor_is_sent_to_a_rank_once_and_not_to_itself():
    """Four two-layer chunks on two ranks: rank 0 keeps it for chunk 2, rank 1 gets it once for chunks 1 and 3."""
    job, _ = job_of(skipping(), pp=2, virtual_stages=2, schedule="interleaved", micro_batch=2)
    of_first = skipping().operators[0].outputs[0]
    forward = [s.tag for s in job.programs[0].steps if isinstance(s, Send) and s.tag[1] == 0]
    assert Counter(tag[2:4] for tag in forward if tag[4] == of_first) == {(0, 1): 2}
    result = trine.simulate(
        skipping(), trine.Plan(pp=2, virtual_stages=2, schedule="interleaved", micro_batch=2),
        cluster=build_topology("full", "1 GB/s", "1 us", 2), fold="off",
    )  # fmt: skip
    assert result.step_time_ps > 0


def test_dualpipe_keeps_weights_twice_and_adds_up_their_gradients():
    workload = Transformer(3).workload()
    job, _ = job_of(workload, pp=4, schedule="dualpipe", batch=8 * B, micro_batch=B, cuts=("layers.0.ln1",
                    "layers.1.ln1", "layers.2.ln1"))  # fmt: skip
    total = sum(p.size_bytes for p in workload.parameters)
    assert job.programs[0].resident_bytes[0] == job.programs[3].resident_bytes[0]
    assert sum(p.resident_bytes[0] for p in job.programs) == 2 * total
    exchanged = [step for step in job.programs[1].steps if isinstance(step, Send) and step.tag[0] == "tied"]
    assert [(step.peer.position, step.size_bytes) for step in exchanged] == [(2, job.programs[1].resident_bytes[0])]


def test_what_a_joined_pair_sends_leaves_when_both_have_ended():
    job, _ = job_of(stack(4, US, US, US), pp=4, schedule="dualpipe", batch=8, micro_batch=1)
    steps = job.programs[0].steps
    operators = [(s.label.phase, s.label.microbatch) for s in steps if isinstance(s, Compute)]
    at = operators.index((0, 3))  # the first joined forward pass: with the backward pass of micro-batch 5
    assert operators[at + 1][0] == Phase.BACKWARD
    sends = [s for s in steps if isinstance(s, Send) and s.tag[1] == 0 and s.label.microbatch == 3]
    computes = [i for i, s in enumerate(steps) if isinstance(s, Compute)]
    assert max(sends[0].after) == computes[at + 2]


def test_a_part_without_backward_operators_still_passes_gradients_on():
    """In vgg13 in 8 parts, the last part has no operator that lists a backward operator."""
    plan = trine.Plan(pp=4, virtual_stages=2, schedule="interleaved", micro_batch=16)
    workload = trine.load("vgg13-h100-b128")
    job, _ = build_job(workload, plan.filled(), make_compute("auto", workload))
    sent = Counter(
        (r, s.peer.position, s.tag) for r, p in enumerate(job.programs) for s in p.steps if isinstance(s, Send)
    )
    got = Counter(
        (s.peer.position, r, s.tag) for r, p in enumerate(job.programs) for s in p.steps if isinstance(s, Recv)
    )
    assert sent == got


# -- gradients ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zb-h1", "dualpipe"])
def test_every_gradient_is_reduced_once_after_its_last_contribution(schedule):
    workload = Transformer(4).workload()
    ways = 2 if schedule == "interleaved" else 1
    job, report = job_of(workload, pp=2, dp=2, batch=4 * B, micro_batch=B, schedule=schedule, virtual_stages=ways,
                         first_bucket_bytes=1, bucket_bytes=1)  # fmt: skip
    twice = 2 if schedule == "dualpipe" else 1
    for program, buckets in zip(job.programs, report.buckets, strict=True):
        reductions = [i for i, s in enumerate(program.steps) if isinstance(s, Collective) and s.kind == "all_reduce"]
        assert len(reductions) == len(buckets)
        keys = [program.steps[i].key for i in reductions]
        assert len(set(keys)) == len(keys)
        assert [key[2] for key in keys] == list(range(len(keys))), "buckets are not reduced in the order of filling"
    assert sum(map(sum, report.buckets)) == twice * sum(p.size_bytes for p in workload.parameters)


@pytest.mark.parametrize(("sync", "times"), [("last", 1), ("each", 4)])
def test_without_a_pipeline_gradients_accumulate(sync, times):
    """Micro-batches run one after the other; DDP reduces in the last one (no_sync) or in each."""
    chain = Chain([10 * MS] * 2, [20 * MS] * 2, [4000, 4000], batch=8, optimizer_ps=MS)
    workload = chain.workload()
    plan = trine.Plan(dp=2, micro_batch=2, sync=sync)
    job, _ = build_job(workload, plan.filled(), Proportional(workload))
    program = job.programs[0]
    computes = [(s.label.phase, s.label.microbatch) for s in program.steps if isinstance(s, Compute)]
    assert computes == [(phase, m) for m in range(4) for phase in (0, 0, 1, 1)] + [(2, -1)]
    reduced = [s for s in program.steps if isinstance(s, Collective)]
    assert sum(s.size_bytes for s in reduced) == times * 8000
    assert {s.label.microbatch for s in reduced} == ({3} if sync == "last" else {0, 1, 2, 3})


def test_accumulation_keeps_the_activations_of_one_micro_batch_only():
    workload = Transformer(2).workload()
    peaks = [
        trine.simulate(workload, trine.Plan(batch=count * B, micro_batch=B)).memory_peaks[0].by_category["activations"]
        for count in (1, 4)
    ]
    assert peaks[0] == peaks[1]


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "ways", "held"),
    [
        ("gpipe", 1, [8, 8, 8, 8]),
        ("1f1b", 1, [4, 3, 2, 1]),
        ("interleaved", 2, [11, 9, 7, 5]),
        ("zb-h1", 1, [4, 4, 4, 4]),
    ],
)
def test_peak_of_activations_is_the_passes_held_times_what_one_keeps(schedule, ways, held):
    """Each pass keeps its layer's input, except the first chunk's, which is the batch; ``held`` is from the papers."""
    size = 10**6
    result = run(stack(4 * ways + 1, US, US, US, size_bytes=size), 8, pp=4, schedule=schedule, virtual_stages=ways,
                 cuts=tuple(f"layers.{i + 1}.linear" for i in range(1, 4 * ways)))  # fmt: skip
    peaks = [peak.by_category["activations"] for peak in result.memory_peaks]
    # rank 0 has two layers in its first chunk, so it also keeps one activation per pass; tensors in flight (an output
    # before its send, a gradient) add at most four more, and a late weight gradient also keeps the gradient of the
    # output
    for rank, (peak, most) in enumerate(zip(peaks, held, strict=True)):
        assert most * size <= peak <= (most + 4 + (rank if schedule == "zb-h1" else 0)) * size


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zb-h1", "dualpipe"])
@pytest.mark.parametrize("recompute", ["none", "full", "selective"])
def test_nothing_is_left_in_memory_after_a_step(schedule, recompute):
    ways = 2 if schedule == "interleaved" else 1
    job, _ = job_of(Transformer(4).workload(), pp=2, batch=4 * B, micro_batch=B, schedule=schedule,
                    virtual_stages=ways, recompute=recompute, steps=2)  # fmt: skip
    for program in job.programs:
        held = Counter()
        for change in program.memory:
            held[change.category] += change.delta_bytes
            assert held[change.category] >= 0
        assert not any(held.values())
