"""Do the conformance checks pass correct plug-ins, and does each check catch its fault?"""

from __future__ import annotations

import dataclasses
import itertools
import random
from pathlib import Path

import numpy as np
import pytest
from compute_cases import BATCH, US, relus

from trine.collectives import make_schedule
from trine.collectives.registry import ALGORITHMS
from trine.compute import Duration, make_compute
from trine.compute.models import COMPUTE_MODELS
from trine.engine.models import NETWORK_MODELS, EqualSplit, FairSharing
from trine.errors import InputError, PlanError, TraceError
from trine.parallel.schedules import BACKWARD_PASS as B
from trine.parallel.schedules import FORWARD_PASS as F
from trine.parallel.schedules import INPUT_PASS, SCHEDULES, WEIGHT_PASS, PipelineAction, PipelineSchedule
from trine.testing import (
    check_collective,
    check_compute_model,
    check_network_model,
    check_reader,
    check_schedule,
)
from trine.workload import READERS, load, save

ROOT = Path(__file__).parents[3]
TRIOSIM = ROOT / "src" / "trine" / "presets" / "traces" / "vgg13-h100-b128"


# -- network models ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETWORK_MODELS.names())
def test_built_in_network_models(name):
    check_network_model(NETWORK_MODELS.get(name))
    check_network_model(NETWORK_MODELS.get(name)())


def test_max_min_leaves_nothing_and_the_equal_split_does():
    check_network_model(FairSharing(), work_conserving=True)
    with pytest.raises(AssertionError, match=r"'equal'.* has .* although no link on its way is full"):
        check_network_model(EqualSplit(), work_conserving=True)


class Broken:
    """Max-min rates with one fault."""

    def __init__(self, fault):
        self.name, self.fault, self.calls = "broken", fault, 0

    def rates(self, routes, capacity):
        self.calls += 1
        rates = FairSharing().rates(routes, capacity)
        match self.fault:
            case "negative":
                return [-rate for rate in rates]
            case "infinite":
                return [float("inf")] * len(routes)
            case "words":
                return ["fast"] * len(routes)
            case "short":
                return rates[1:]
            case "over":
                return [rate * 1.001 for rate in rates]
            case "starved":
                return [0.0 if len(route) > 2 else rate for route, rate in zip(routes, rates, strict=True)]
            case "state":
                return [rate / self.calls for rate in rates]
            case "chance":
                return [rate * random.random() for rate in rates]
            case "numbers":  # the first flow gets all capacity
                return [float(min(capacity[link] for link in routes[0]))] + [1.0] * (len(routes) - 1) if routes else []
            case "links":
                return [rate / (1 + route[0]) for route, rate in zip(routes, rates, strict=True)]
            case "order":  # the last bit depends on the flows' order
                total = sum(0.1 * len(route) for route in routes)
                return [rate * (total / (total + 1)) for rate in rates]
            case "changes":
                capacity[0] += 1
                return rates
            case "crawls":
                return [rate * 1e-18 for rate in rates]
        return rates


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("negative", "must be finite and not negative"),
        ("infinite", "must be finite and not negative"),
        ("words", "'fast'; it must be finite and not negative"),
        ("short", "0 rates for 1 flows"),
        ("over", r"link \d of \d+ bytes/s is over its capacity"),
        ("starved", r"has 0.0 bytes/s although no link"),
        ("state", "other rates when asked again"),
        ("chance", "other rates when asked again"),
        ("numbers", "gets 1.0 bytes/s, but .* numbered otherwise"),
        ("links", "numbered otherwise"),
        ("order", "numbered otherwise.*fsum"),
        ("changes", "must not change its arguments"),
        ("crawls", "simulated time passes"),
    ],
)
def test_broken_network_models(fault, message):
    with pytest.raises(AssertionError, match=message):
        check_network_model(Broken(fault))


class Aware(FairSharing):
    """Rates that depend on more than the arguments: on the number of the run."""

    name = "aware"

    def __init__(self, seen):
        self.seen = seen

    def rates(self, routes, capacity):
        factor = self.seen()
        return [rate * factor for rate in super().rates(routes, capacity)]


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        ([1.0, 0.5], "a second run differs from the first"),
        ([1.0, 1.0, 0.5], "depend on its remaining bytes"),
        ([0.5, 0.5, 1.0], r"ends at \d+ ps, but with twice the bytes at"),
    ],
)
def test_models_that_differ_from_run_to_run(factors, message, monkeypatch):
    from trine.testing import network

    runs = []
    simulated = network._simulated
    monkeypatch.setattr(network, "_simulated", lambda *a: (runs.append(1), simulated(*a))[1])
    with pytest.raises(AssertionError, match=message):
        check_network_model(Aware(lambda: factors[min(len(runs), len(factors)) - 1]))


def test_what_is_no_network_model():
    class Nameless:
        name = ""

        def rates(self, routes, capacity):
            return []

    for model in (object(), Nameless(), Nameless):
        with pytest.raises(AssertionError, match="has a name and a method rates"):
            check_network_model(model)


# -- compute models ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMPUTE_MODELS.names())
def test_built_in_compute_models(name):
    workload = load("vgg13-h100-b128")
    anchored, slack = name not in ("roofline", "tables"), 0.1 if name == "tables" else 0.0
    check_compute_model(make_compute(name, workload), workload, anchored=anchored, slack=slack)


class Times:
    """Compute model with preset answers."""

    name, notes = "times", ()

    def __init__(self, answer, report=None, notes=()):
        self.answer, self.report, self.notes = answer, report, notes

    def fit_report(self):
        return self.report

    def duration(self, operator, split):
        return self.answer(operator, split)


def right(operator, split):
    ps = operator.gpu_time_ps * split.batch // BATCH
    return Duration(ps, "measured" if split.batch == BATCH else "assumed")


def refuses(operator, split):
    raise PlanError("no")


def only_recorded(operator, split):
    if split.batch != BATCH:
        raise PlanError("no")
    return Duration(operator.gpu_time_ps, "measured")


CLOCK = itertools.count()
SMALL = relus([(1000, 100 * US), (3000, 300 * US)]).workload()


def test_right_compute_models():
    check_compute_model(Times(right), SMALL)
    check_compute_model(Times(only_recorded), SMALL)
    check_compute_model(Times(lambda op, split: Duration(7 * split.batch, "modelled")), SMALL, anchored=False)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Times(refuses), r"operator 1 \(aten::relu\), batch 8: refuses the trace's own sizes: no"),
        (Times(lambda op, split: 5), "a duration is a Duration of whole picoseconds, not 5"),
        (Times(lambda op, split: Duration(1.5, "measured")), "whole picoseconds"),
        (Times(lambda op, split: Duration(-1, "measured")), "takes -1 ps"),
        (Times(lambda op, split: Duration(1, "guessed")), "'guessed', not one of measured, interpolated"),
        (Times(lambda op, split: Duration(7, "modelled")), "7 ps .* at the trace's own sizes, recorded were 100000000"),
        (
            Times(lambda op, split: Duration(op.gpu_time_ps * BATCH // split.batch, "modelled")),
            "400000000 ps at batch 2, but 800000000 ps at batch 1",
        ),
        (Times(lambda op, split: dataclasses.replace(right(op, split), ps=next(CLOCK))), "at the trace's own sizes"),
        (Times(right, report="good"), r"fit_report\(\) returns 'good'"),
        (Times(right, notes="good"), "notes are a tuple of sentences"),
    ],
)
def test_broken_compute_models(model, message):
    with pytest.raises(AssertionError, match=message):
        check_compute_model(model, SMALL)


def test_compute_models_that_change_their_mind_or_claim_a_measurement():
    model = Times(lambda op, split: Duration(next(CLOCK), "modelled"))
    with pytest.raises(AssertionError, match=r"at first, .* when asked again"):
        check_compute_model(model, SMALL, anchored=False)
    with pytest.raises(AssertionError, match=r"7 ps \(measured\) at the trace's own sizes"):
        check_compute_model(Times(lambda op, split: Duration(7, "measured")), SMALL, anchored=False)


# -- collective algorithms ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS.names())
def test_built_in_collectives(name):
    check_collective(name.partition("/")[0], ALGORITHMS.get(name))


def changed(**values):
    """Return a maker of the ring all-reduce with other fields; a function as a value is given the schedule."""

    def make(num_ranks, size_bytes, root):
        good = make_schedule("all_reduce", num_ranks, size_bytes)
        return dataclasses.replace(good, **{k: v(good) if callable(v) else v for k, v in values.items()})

    return make


def sends(change):
    """Return a ``sends_of`` that changes the correct answer."""
    return lambda good: lambda position, *shape: change(good.sends_of(position, *shape), position)


def never_twice_the_same(one, position):
    return dataclasses.replace(one, channel=one.channel + next(CLOCK))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (changed(kind="all_gather"), "all_reduce of 1 ranks, 0 bytes: the schedule says kind 'all_gather'"),
        (changed(num_ranks=3), "the schedule says num_ranks 3"),
        (changed(size_bytes=7), "the schedule says size_bytes 7"),
        (changed(num_chunks=0), "0 chunks of 0 bytes"),
        (changed(chunk_bytes=lambda s: s.size_bytes // s.num_chunks), "2 ranks, 1 bytes: .* would have 1 bytes each"),
        (changed(chunk_bytes=lambda s: s.size_bytes), "equal chunks, rounded up, would have"),
        (changed(sends_of=sends(lambda one, p: dataclasses.replace(one, peer=one.peer[:-1]))), "have the lengths"),
        (changed(sends_of=sends(never_twice_the_same)), "the sends of rank 0 differ from call to call"),
        (
            changed(sends_of=sends(lambda one, p: dataclasses.replace(one, channel=one.channel + p))),
            "shift_symmetric, but the sends of rank 1",
        ),
        (
            changed(sends_of=sends(lambda one, p: dataclasses.replace(one, reduce=np.zeros_like(one.reduce)))),
            "of 2 ranks, 0 bytes: ring all_reduce of 2 ranks: chunk 0 of rank 0 ends with the data of",
        ),
        (
            changed(sends_of=sends(lambda one, p: dataclasses.replace(one, peer=one.peer * 0 + p))),
            "a rank sends to itself",
        ),
    ],
)  # fmt: skip
def test_broken_collectives(make, message):
    with pytest.raises(AssertionError, match=message):
        check_collective("all_reduce", make)


def test_collectives_of_some_sizes_only():
    def powers_of_two(num_ranks, size_bytes, root):
        if num_ranks & (num_ranks - 1):
            raise InputError(f"needs a power of two, not {num_ranks}")
        return make_schedule("all_reduce", num_ranks, size_bytes)

    check_collective("all_reduce", powers_of_two, ranks=(1, 2, 4, 8, 16))
    with pytest.raises(AssertionError, match="of 3 ranks, 0 bytes: needs a power of two, not 3"):
        check_collective("all_reduce", powers_of_two)
    with pytest.raises(AssertionError, match="'all_sum' is not one of all_reduce"):
        check_collective("all_sum", powers_of_two)


def test_other_roots_and_chunks():
    def to_rank_0(num_ranks, size_bytes, root):
        return make_schedule("broadcast", num_ranks, size_bytes, root=0)

    def halves(num_ranks, size_bytes, root):
        good = make_schedule("all_gather", num_ranks, size_bytes)
        return dataclasses.replace(good, num_chunks=2 * num_ranks, chunk_bytes=-(-size_bytes // (2 * num_ranks)))

    with pytest.raises(AssertionError, match="of 2 ranks, 0 bytes, root 1: the schedule says root 0"):
        check_collective("broadcast", to_rank_0)
    with pytest.raises(AssertionError, match="of 2 ranks, 0 bytes: declares shift_symmetric"):
        check_collective("all_gather", halves)


# -- pipeline schedules ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCHEDULES.names())
def test_built_in_schedules(name):
    check_schedule(SCHEDULES.get(name))


def test_one_f_one_b_holds_what_it_promises():
    def fewer(rank, shape):
        return min(shape.num_ranks - rank, shape.num_microbatches)

    check_schedule(SCHEDULES.get("1f1b"), in_flight=fewer)
    with pytest.raises(AssertionError, match="2 in flight at the forward pass of chunk 0 on micro-batch 1, promised"):
        check_schedule(SCHEDULES.get("gpipe"), in_flight=fewer)


class Made(PipelineSchedule):
    """Schedule made by changing GPipe's passes."""

    def __init__(self, change, splits=False):
        self.change, self.splits_backward = change, splits

    def passes(self, rank, pipeline):
        return self.change(SCHEDULES.get("gpipe").passes(rank, pipeline), rank)


def interlock(order, rank):
    forward, backward = [p for p in order if p.kind == F], [p for p in order if p.kind == B]
    pairs = list(zip(forward, backward, strict=True)) if backward else [(one,) for one in forward]
    return [one for pair in (pairs[::-1] if rank % 2 else pairs) for one in pair]


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (Made(lambda o, r: [p for p in o if p.kind == F]), "backward pass of chunk 0 on micro-batch 0 is missing"),
        (Made(lambda o, r: o[1:]), "forward pass of chunk 0 on micro-batch 0 is missing"),
        (Made(lambda o, r: o + o), "forward pass of chunk 0 on micro-batch 0 is there twice"),
        (
            Made(lambda o, r: [*o, PipelineAction(F, 9, 0)]),
            "chunk 9 on micro-batch 0 belongs to another rank, or to none",
        ),
        (
            Made(lambda o, r: [*o, PipelineAction(INPUT_PASS, r, 0)]),
            "backward pass of chunk 0 on micro-batch 0 is one too many",
        ),
        (Made(lambda o, r: [*o, PipelineAction(7, r, 0)]), "7 is no kind of pass"),
        (Made(lambda o, r: o[::-1]), "backward pass of chunk 0 on micro-batch 0 comes before the forward pass"),
        (Made(lambda o, r: [p._replace(joined=True) for p in o]), "has nothing before it to run together with"),
        (
            Made(
                lambda o, r: [
                    q
                    for p in o
                    for q in ([p] if p.kind == F else [p._replace(kind=WEIGHT_PASS), p._replace(kind=INPUT_PASS)])
                ],
                splits=True,
            ),
            "weight gradient pass of chunk 0 on micro-batch 0 comes before the input gradient pass",
        ),
        (
            Made(
                lambda o, r: [
                    q
                    for p in o
                    for q in ([p] if p.kind == F else [p._replace(kind=INPUT_PASS), p._replace(kind=WEIGHT_PASS)])
                ]
            ),
            "a backward pass is split, and splits_backward is false",
        ),
        (
            Made(interlock),
            "the pipeline deadlocks; there wait rank 0 for the backward pass of chunk 0 on micro-batch 0",
        ),
        (Made(lambda o, r: [*o, PipelineAction(F, r, next(CLOCK))]), "another order when asked again"),
    ],
)
def test_broken_schedules(schedule, message):
    with pytest.raises(AssertionError, match=message):
        check_schedule(schedule)


def test_a_schedule_that_refuses():
    class Refuses(Made):
        def check(self, pipeline):
            raise PlanError("never")

    with pytest.raises(AssertionError, match="every shape with a backward pass is refused"):
        check_schedule(Refuses(lambda o, r: o))

    def late(order, rank):
        raise PlanError("too late")

    with pytest.raises(AssertionError, match="1 ranks, 1 micro-batches, rank 0: too late"):
        check_schedule(Made(late))


# -- trace readers -----------------------------------------------------------------------------------------------------


def test_built_in_readers(tmp_path):
    check_reader(READERS.get("triosim"), TRIOSIM)
    check_reader(READERS.get("pytorch"), ROOT / "tests" / "data" / "vgg13-raw-b512")
    save(load(TRIOSIM), tmp_path / "a.trine.json")
    check_reader(READERS.get("native"), str(tmp_path))


GOOD = READERS.get("triosim")


def reads(**values):
    """Return a trace reader whose workloads have other fields."""

    def read(files, batch):
        workload = GOOD.read(files, batch)
        return dataclasses.replace(workload, **{k: v(workload) if callable(v) else v for k, v in values.items()})

    return dataclasses.replace(GOOD, read=read)


def found(answer):
    return dataclasses.replace(GOOD, find=lambda path: answer if any(path.iterdir()) else None)


def first_operator(**values):
    return lambda w: (dataclasses.replace(w.operators[0], **values), *w.operators[1:])


def raises(path):
    raise TraceError("is empty", file=path)


@pytest.mark.parametrize(
    ("reader", "message"),
    [
        (dataclasses.replace(GOOD, looks_for=""), "needs a name and a text looks_for"),
        (dataclasses.replace(GOOD, find=lambda path: {}), r"finds {} in an empty folder"),
        (dataclasses.replace(GOOD, find=raises), "must return None for an empty folder, not raise: .*is empty"),
        (found(None), "finds nothing at .*vgg13-h100-b128; it looks for"),
        (found({"trace": Path("/no/such/file")}), "which is no file"),
        (dataclasses.replace(GOOD, read=lambda files, batch: None), "reads None, which is no Workload"),
        (reads(name=lambda w: str(next(CLOCK))), "another workload when .* is read again"),
        (reads(operators=first_operator(phase="fore")), "has the phase 'fore'"),
        (reads(operators=first_operator(inputs=(10**6,))), "uses tensor 1000000, which does not exist"),
        (reads(operators=first_operator(gpu_time_ps=-1)), "takes -1 ps"),
        (reads(operators=(), parameters=()), "read no operator"),
        (reads(operators=first_operator(attributes={"pair": {1, 2}})), "does not survive trine's own format"),
        (reads(metadata={"a": 1}), "does not survive trine's own format"),
        (reads(missing=["GPU"]), r"missing of the workload comes back different .*\['GPU'\] became \('GPU',\)"),
        (
            dataclasses.replace(
                GOOD, read=lambda files, batch: dataclasses.replace(GOOD.read(files, None), batch=64 if batch else 128)
            ),
            "batch 128 was given, the workload has 64",
        ),
    ],
)
def test_broken_readers(reader, message):
    with pytest.raises(AssertionError, match=message):
        check_reader(reader, TRIOSIM)
