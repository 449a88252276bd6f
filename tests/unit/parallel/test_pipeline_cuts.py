"""Does trine cut pipelines between layers, like frameworks, and warn if it cannot or if the user cuts elsewhere?"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import combinations, pairwise

import numpy as np
import pytest
from click.testing import CliRunner
from pipelines import US, stack
from small_transformers import TIMES, B, Transformer
from synthetic import MS, Chain

import trine
from trine.cli.main import app
from trine.cluster import build_topology
from trine.errors import PlanError
from trine.graph.workload import Operator, Workload
from trine.parallel.cuts import nanotron_starts
from trine.results import Result
from trine.software import Software
from validation.training_rows import load_layouts


@cache
def model(text: str, **sizes: int) -> Workload:
    return trine.synthesize(text, gpu="h100-sxm", software="none", **sizes)


def step(workload: Workload, *, fold: str = "on", **fields: object) -> Result:
    plan = trine.Plan(**{"batch": 8 * workload.batch, "micro_batch": workload.batch, "schedule": "1f1b"} | fields)
    return trine.simulate(workload, plan, cluster=build_topology("full", "1 TB/s", "1 us", plan.num_ranks), fold=fold)


def cuts(workload: Workload, **fields: object) -> list[str]:
    return list(step(workload, **fields).plan["cuts"])


def about_cuts(result: Result) -> list[str]:
    return [sentence for sentence in result.warnings if "the cut at" in sentence or "more cuts" in sentence]


def first_of_layers(workload: Workload) -> set[str]:
    """Return the names of the operators that begin a layer or the head."""
    layers = [op.layer for op in workload.operators if op.phase == "forward"]
    pairs = pairwise(layers)
    return {after for before, after in pairs if before.split(".")[:2] != after.split(".")[:2] and "." in before + after}


# -- between layers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"pp": 2},
        {"pp": 4, "schedule": "gpipe"},
        {"pp": 4, "recompute": "full"},
        {"pp": 4, "recompute": "selective"},
        {"pp": 4, "schedule": "zb-h1"},
        {"pp": 4, "schedule": "dualpipe"},
        {"pp": 2, "virtual_stages": 4, "schedule": "interleaved"},
        {"pp": 2, "dp": 2, "sharding": "fsdp"},
        {"pp": 2, "tp": 2, "tp_style": "megatron"},
        {"pp": 8, "balance": "layers"},
    ],
    ids=str,
)
def test_cuts_lie_between_layers(fields):
    """A third of these models' operators take much longer than the rest, so equal times would cut inside layers."""
    for text in ("llama-3-8b", "gpt-2"):
        workload = model(text, layers=6, sequence=512)
        result = step(workload, **fields)
        parts = fields["pp"] * fields.get("virtual_stages", 1)
        assert len(result.plan["cuts"]) == parts - 1
        assert set(result.plan["cuts"]) <= first_of_layers(workload)
        assert not about_cuts(result)
        said = [row.detail for row in result.evidence if row.what == "pipeline cuts"]
        assert said == ["between layers, found by operator names"]


def test_what_crosses_a_cut_is_the_output_of_a_layer():
    """GPT-2 over 8 stages once sent its logits, 65 times as large; now no message is larger than (S, hidden)."""
    workload = model("gpt-2")
    result = step(workload, pp=8)
    output = workload.tensors[workload.operators[0].outputs[0]].size_bytes
    embedding = max(parameter.size_bytes for parameter in workload.parameters)  # two stages exchange its gradient
    assert {share.size_bytes for share in result.collectives if share.kind == "send_recv"} == {output, embedding}


@pytest.mark.parametrize("seed", range(4))
def test_the_slowest_stage_is_as_fast_as_cuts_between_layers_can_make_it(seed):
    """Compared with all possible cuts, for layers of three operators with random times."""
    times = np.random.default_rng(seed).integers(1, 20, 24) * MS
    chain = Chain(times.tolist(), (2 * times).tolist())
    workload = named(chain.workload(), [f"layers.{i // 3}.linear{i % 3}" for i in range(24)])
    layers = 3 * times.reshape(8, 3).sum(axis=1)
    for stages in (2, 3, 5, 8):
        ways = combinations(range(1, 8), stages - 1)
        best = min(max(layers[a:b].sum() for a, b in zip((0, *cut), (*cut, 8), strict=True)) for cut in ways)
        found = [int(name.split(".")[1]) for name in cuts(workload, pp=stages)]
        assert max(layers[a:b].sum() for a, b in zip([0, *found], [*found, 8], strict=True)) == best


def named(workload: Workload, layers: list[str]) -> Workload:
    """Return ``workload`` with these names for its forward operators and the same for their backward operators."""
    forward = [op.id for op in workload.operators if op.phase == "forward"]
    name = dict(zip(forward, layers, strict=True))

    def renamed(op: Operator) -> Operator:
        return replace(op, layer=name.get(op.id, name.get(op.forward_id or -1, op.layer)))

    return replace(workload, operators=tuple(renamed(op) for op in workload.operators))


def test_the_loss_is_never_parted_from_the_head():
    """Neither if names show layers, however long head and loss take, nor if names show no layers."""
    for names in (
        [f"layers.{i}.up" for i in range(5)] + ["head", "loss"],
        [f"linear.{i}" for i in range(6)] + ["loss"],
    ):
        workload = with_loss(names)
        assert cuts(workload, pp=2) == [names[5]]
        assert cuts(workload, pp=6)[-1] == names[5]
        with pytest.raises(trine.PlanError, match="7"):
            cuts(workload, pp=7)


def with_loss(names: list[str]) -> Workload:
    """Return six GEMMs and a loss that takes longer than all before it."""
    chain = Chain([MS] * 5 + [20 * MS, 30 * MS], [MS] * 7)
    loss = chain.operators[6]
    chain.operators[6] = replace(loss, name="aten::cross_entropy_loss", inputs=loss.inputs[:1])
    return named(chain.workload(), names)


def test_time_that_is_run_again_counts():
    """Only layers are recomputed, not the embedding and the head: the end stages then get more layers."""
    workload = stack(8, 3 * US, US, US)
    operators = [
        replace(op, layer="embedding" if op.layer == "layers.0.linear" else op.layer) for op in workload.operators
    ]
    operators = [
        replace(op, gpu_time_ps=3 * op.gpu_time_ps if op.layer == "embedding" else op.gpu_time_ps) for op in operators
    ]
    workload = replace(workload, operators=tuple(operators))
    # The embedding takes 15 us; a layer takes 5 us, or 8 us with recomputation.
    assert cuts(workload, pp=2) == ["layers.3.linear"]
    assert cuts(workload, pp=2, recompute="full") == ["layers.4.linear"]


def test_folded_is_unfolded_with_cuts_between_layers():
    """The simulation of some ranks gives the times of all; ``verify`` compares each task and says so."""
    workload = model("llama-3-8b", layers=4, sequence=512)
    folded, every = (step(workload, pp=3, dp=4, fold=fold) for fold in ("verify", "off"))
    assert folded.step_ends_ps.tolist() == every.step_ends_ps.tolist()
    assert folded.step_time_ps == every.step_time_ps > 0
    assert "verified" in folded.summary()


# -- cuts inside layers ------------------------------------------------------------------------------------------------


def test_a_tensor_larger_than_the_output_of_its_layer_is_warned_of():
    """Half a layer of the hand-made transformer: the MLP's features are four times as large as its output."""
    workload = Transformer(4).workload()
    (sentence,) = about_cuts(step(workload, pp=2, cuts=("layers.2.down",)))
    up = next(op for op in workload.operators if op.layer == "layers.2.gelu")
    size = trine.common.units.format_bytes(workload.tensors[up.outputs[0]].size_bytes)
    assert "'layers.2.down' lies inside a layer" in sentence
    assert f"tensor {up.outputs[0]}, the output of 'layers.2.gelu', crosses it with {size}, 4 times" in sentence


@pytest.mark.parametrize("cut", ["layers.2.ln1", "layers.2.drop2", "layers.2.add2"])
def test_what_is_no_larger_than_the_output_of_its_layer_is_not(cut):
    assert not about_cuts(step(Transformer(4).workload(), pp=2, cuts=(cut,)))


def test_logits_are_warned_of_and_the_gradient_of_a_tied_embedding_is_not():
    workload = model("gpt-2")
    (sentence,) = about_cuts(step(workload, pp=2, cuts=("loss",)))
    assert "the cut at 'loss'" in sentence
    assert "'head'" in sentence
    assert not about_cuts(step(workload, pp=2, cuts=("layers.6.attention.norm",)))


def test_many_cuts_inside_layers_are_counted():
    workload = Transformer(6).workload()
    found = about_cuts(step(workload, pp=6, cuts=tuple(f"layers.{i}.down" for i in range(1, 6))))
    assert len(found) == 4
    assert found[-1].startswith("2 more cuts")


# -- traces without layers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("vgg13-h100-b128", ["relu.2", "conv2d.4", "conv2d.6"]),
        ("model:resnet50", None),
    ],
)
def test_without_layers_cuts_lie_between_operators_and_the_answer_says_so(name, wanted):
    workload = model("resnet50") if wanted is None else trine.load(name)
    result = step(workload, pp=4)
    assert wanted is None or list(result.plan["cuts"]) == wanted
    said = [row.detail for row in result.evidence if row.what == "pipeline cuts"]
    assert said == ["between any two operators of different names up to the head, since names show no layers"]


def test_no_cut_is_chosen_over_which_nothing_can_be_sent():
    """A data loader's operators produce no activation, so a stage cannot begin behind one of them."""
    chain = Chain([9 * MS, 9 * MS, MS, MS, MS], [0] * 5)
    for i in (0, 1):  # before the model, like random targets in a recorded trace
        chain.operators[i] = replace(chain.operators[i], name="aten::randint", outputs=())
    workload = named(chain.workload(), ["randint.1", "randint.2", "linear.1", "linear.2", "linear.3"])
    assert cuts(workload, pp=3) == ["linear.2", "linear.3"]
    with pytest.raises(trine.PlanError, match="the trace has 3"):
        cuts(workload, pp=4)


def test_operators_of_one_name_are_not_parted():
    """If names show only whole modules, cuts lie between modules."""
    chain = Chain([MS, 5 * MS, MS, MS, MS, MS], [MS] * 6)
    workload = named(chain.workload(), ["stem"] * 2 + ["middle"] * 2 + ["top"] * 2)
    assert cuts(workload, pp=2) == ["middle"]


# -- more stages than layers -------------------------------------------------------------------------------------------


def test_more_stages_than_layers_are_refused_in_one_line():
    arguments = "train model:gpt-2 --pp 16 --gpu h100-sxm --cluster dgx-h100 --nodes 2 --batch 16 --micro-batch 1"
    for more in (["--balance", "time"], ["--balance", "layers"]):
        answer = CliRunner().invoke(app, [*arguments.split(), *more])
        assert answer.exit_code == 2
        assert "16 pipeline stages need 16 layers; the model has 14" in answer.stderr
        assert len(answer.stderr.strip().splitlines()) == 1
    answer = CliRunner().invoke(app, arguments.split())  # with Megatron-LM's cuts
    assert answer.exit_code == 2
    assert "16 stages need 16 layers; " in answer.stderr


def test_cuts_by_name_may_lie_inside_layers():
    names = tuple(f"layers.{i}.{part}" for i in range(2) for part in ("ln1", "ln2"))
    assert cuts(Transformer(2).workload(), pp=5, cuts=names, batch=8 * B) == list(names)
    assert set(TIMES) >= {"ln1", "ln2"}


@pytest.mark.parametrize("pp", [1, 2])
def test_a_stage_without_weights_enters_the_reductions_of_the_others(pp):
    """With only the loss on the last stage, the norm of all gradients is still reduced over all stages."""
    cost = {"gradient_passes": 1, "all_reduces": 1, "axis": "model"}
    costs = [{"name": "norm", **cost}, {"name": "each", "when": "micro-batch", **cost}]
    profile = Software(name="s", description="a test", step=costs, operators={"loss": "unfused"})
    starts = ("layers.1.attention.norm", "loss.copy")[-pp:]
    plan = trine.Plan(pp=1 + pp, batch=4, micro_batch=1, inputs="none", cuts=starts)
    result = trine.simulate(
        "model:gpt-2,layers=2,sequence=64,times=roofline", plan, cluster="dgx-h100", software=profile, fold="verify"
    )
    reduced = [row for row in result.collectives if row.kind == "all_reduce"]
    assert sum(row.count for row in reduced) == 1 + 4
    assert {row.group_size for row in reduced} == {1 + pp}


def test_nanotrons_rule_gives_the_stages_of_its_benchmark():
    """For every measured layout with a pipeline, the layers of each stage match the derivation in the source's note."""
    seen = {}
    for row in load_layouts():
        if row.step_s is not None and row.whole("pp") > 1:
            seen.setdefault((row.facts["model"], row.whole("pp")), row)
    judged = 0
    for (_, pp), row in seen.items():
        workload = trine.synthesize(row.transformer(), gpu=row.gpu, dtype=row.dtype, software="nanotron-2024")
        forward = [op for op in workload.operators if op.phase == "forward"]
        stated = [int(count) for count in row.facts["stage_layers"].split("|")]
        try:
            starts = nanotron_starts(workload, forward, pp)
        except PlanError:  # head and loss stay together, so one stage is empty
            assert stated[-1] == 0
            continue
        stages = [forward[a:b] for a, b in zip(starts, [*starts[1:], len(forward)], strict=True)]
        layers = [len({op.layer.split(".")[1] for op in stage if op.layer.startswith("layers.")}) for stage in stages]
        assert layers == stated
        judged += 1
    assert judged >= 7
