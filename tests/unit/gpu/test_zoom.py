"""Zoom into a collective of a step: is it the longest, do its causes add up, and is it the one that --detail shows?"""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from click.testing import CliRunner
from envelope import opened

from trine.cli.main import app
from trine.common.units import parse_time
from trine.errors import InputError
from trine.gpu.collective import extension
from trine.gpu.detail.choice import choose, of_rank
from trine.gpu.detail.two_times import zoom
from trine.gpu.detail.zoom import choose_zoom
from trine.graph.grid import RankGrid
from trine.parallel.plan import Plan
from trine.parallel.stragglers import Stragglers
from trine.training import simulate
from trine.training.options import SimulateOptions
from trine.workload.synthesis.model import synthesize

PLAN = Plan(tp=4, batch=1)
HOW = SimulateOptions(cluster="dgx-h100", compare=False)
#: Rank 2 comes late; CPU launches would hide that.
SLOW = replace(HOW, cpu=False, software="none", stragglers=Stragglers(slow=((2, 2.0),)))
COMMAND = ["train", "model:gpt-2,layers=2,sequence=128", "--tp", "4", "--batch", "1", "--cluster", "dgx-h100"]


@pytest.fixture(scope="module")
def model():
    return synthesize("gpt-2", layers=2, sequence=128)


@pytest.fixture(scope="module")
def step(model):
    return simulate(model, PLAN, options=HOW)


def chosen(result, word, plan=PLAN):
    return choose_zoom(result, RankGrid(plan.axes), word)


# -- which collective


@pytest.mark.parametrize("options", [HOW, SLOW], ids=["alike", "late"])
def test_the_largest_takes_longest_after_its_last_rank_has_come(model, options):
    result = simulate(model, PLAN, options=options)
    found, grid = chosen(result, "largest"), RankGrid(PLAN.axes)
    assert found.rank == result.slowest_rank
    times = []
    for number in range(1, found.matches + 1):
        one = choose(result, grid, replace(found.options, number=number))
        times.append(int(one.end_ps[one.position] - one.start_ps.max()))
    assert found.operator_ps == max(times)
    assert found.number == times.index(max(times)) + 1
    assert len(times) == len(of_rank(result.rank(found.rank), 0))


def test_a_word_is_a_kind_an_axis_a_phase_or_a_layer(step):
    for word, what in (("all_reduce", "kind"), ("tp", "axis"), ("backward", "phase")):
        assert getattr(chosen(step, word).what, what) == word
    for word in ("1", "layers.1", "layers.1.mlp"):
        assert chosen(step, word).what.layer.startswith("layers.1")
    assert chosen(step, "layers.1.mlp").matches < chosen(step, "layers.1").matches < chosen(step, "largest").matches


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("tpp", "no collective of rank 0 is called 'tpp'; did you mean 'tp'?"),
        ("all_reduc", "did you mean 'all_reduce'?"),
        ("larges", "did you mean 'largest'?"),
        ("layers.1.mlp.dwn", "did you mean 'layers.1.mlp.down'?"),
        ("layers.0.attention.core", "layer layers.0.attention.core has no collective with a kernel"),
    ],
)
def test_an_unknown_word_is_refused_with_the_nearest(step, word, words):
    with pytest.raises(InputError, match=re.escape(words)):
        chosen(step, word)


def test_a_step_without_collectives_is_refused(model):
    alone = simulate(model, Plan(batch=1), options=HOW)
    with pytest.raises(InputError, match="takes part in no collective that has a kernel"):
        chosen(alone, "largest", Plan(batch=1))


def test_messages_between_pipeline_stages_are_no_collective():
    plan = Plan(tp=2, pp=2, batch=2, micro_batch=1, schedule="1f1b")
    result = simulate(synthesize("gpt-2", layers=2, sequence=64), plan, options=HOW)
    with pytest.raises(InputError, match="is called 'send_recv'"):
        chosen(result, "send_recv", plan)


def test_a_kind_without_a_kernel_is_refused(step, monkeypatch):
    monkeypatch.setattr("trine.gpu.detail.choice.known_kernels", lambda kind: ())
    with pytest.raises(InputError, match="there is no kernel for its all_reduce"):
        chosen(step, "all_reduce")


def test_a_folded_step_zooms_like_the_whole_one(model):
    plan = Plan(tp=4, dp=2, batch=8, micro_batch=1)
    folded, whole = (simulate(model, plan, options=replace(HOW, fold=fold)) for fold in ("on", "off"))
    for word in ("largest", "tp", "dp"):
        one, other = chosen(folded, word, plan), chosen(whole, word, plan)
        assert (one.rank, one.operator_ps) == (other.rank, other.operator_ps)
        assert (one.what.kind, one.what.layer, one.what.size_bytes) == (
            other.what.kind, other.what.layer, other.what.size_bytes,
        )  # fmt: skip


def test_repeated_micro_batches_are_not_taken_for_one_long_collective(model):
    plan = Plan(tp=2, pp=2, batch=32, micro_batch=1, schedule="1f1b")
    result = simulate(model, plan, options=HOW)
    counts = [one.count for one in of_rank(result.rank(result.slowest_rank), 0)]
    assert max(counts) > 1  # some micro-batches stand for others
    found, whole = (
        chosen(result, "tp", plan),
        chosen(simulate(model, plan, options=replace(HOW, fold="off")), "tp", plan),
    )
    assert found.operator_ps == pytest.approx(whole.operator_ps, rel=0.01)
    assert sum(counts) == len(of_rank(simulate(model, plan, options=replace(HOW, fold="off")).rank(found.rank), 0))


# -- both levels


@pytest.fixture(scope="module")
def zoomed(model):
    return {name: zoom(model, PLAN, "largest", options=how) for name, how in (("alike", HOW), ("late", SLOW))}


@pytest.mark.parametrize("name", ["alike", "late"])
def test_the_causes_add_up_to_the_difference(zoomed, name):
    found = zoomed[name]
    assert sum(cause.time_ps for cause in found.causes) == found.loadstore_ps - found.operator_ps
    assert all(cause.why for cause in found.causes)
    document = found.document()
    assert sum(row["time_s"] for row in document["causes"]) == pytest.approx(document["difference_s"], abs=1e-12)
    low_ps, high_ps = found.range_ps
    assert low_ps <= found.formula.time_ps <= high_ps
    assert found.is_inside == (low_ps <= found.loadstore_ps <= high_ps)
    assert found.is_inside or found.main_cause.name in found.verdict


def test_it_is_what_detail_shows(zoomed):
    found = zoomed["alike"]
    done = CliRunner().invoke(app, [*COMMAND, "--detail", f"{found.choice.detail_words},sync=default", "--json", "-"])
    assert done.exit_code == 0, done.output
    detail = opened(done.stdout, "train", "result")["detail"]
    ours = found.document()["detail"]
    for key in ("collective", "operator", "loadstore", "peers"):
        expected = {**ours[key], "others": detail[key]["others"]} if key == "collective" else ours[key]
        assert detail[key] == json.loads(json.dumps(expected))


def test_the_replay_counts_the_peers_of_its_group(zoomed):
    found = zoomed["alike"]
    assert found.detail.kernel.inside.num_replayed
    assert "alone, with the writes of its 3 peers" in " ".join(found.summary().split())


def test_without_late_ranks_and_traffic_only_the_levels_differ(zoomed):
    causes = {cause.name: cause.time_ps for cause in zoomed["alike"].causes}
    assert abs(causes["in the step"]) < parse_time("10 ns", "")
    assert abs(causes["late ranks"]) < 0.02 * zoomed["alike"].loadstore_ps


def test_the_step_changes_by_the_exposed_share_of_all_such_collectives(zoomed, model, step):
    found = zoomed["alike"]
    what, effect = found.choice.what, found.effect
    same = [one for one in of_rank(step.rank(0), 0) if (one.kind, one.size_bytes) == (what.kind, what.size_bytes)]
    assert effect.count == len(same) > 1
    assert 0 < effect.exposed_share <= 1
    assert effect.change_ps == round(effect.count * found.difference_ps * effect.exposed_share)
    assert effect.step_ps == step.step_time_ps


@pytest.mark.parametrize(
    ("plan", "cluster", "workload", "word", "kind", "algorithm"),
    [
        (Plan(tp=8, batch=1), "dgx-h100", ("llama-3-8b", 1, 512), "largest", "all_reduce", "nvls"),
        (Plan(tp=4, batch=1), "dgx-a100", ("gpt-2", 2, 128), "largest", "all_reduce", "ring"),
        (Plan(dp=4, ep=4, batch=4), "dgx-h100", ("mixtral-8x7b", 1, 64), "all_to_all", "all_to_all", "direct"),
    ],
    ids=["nvls", "ring", "moe"],
)
def test_each_kind_of_collective_is_compared_with_its_own_algorithm(plan, cluster, workload, word, kind, algorithm):
    name, layers, sequence = workload
    trace = synthesize(name, layers=layers, sequence=sequence)
    found = zoom(trace, plan, word, options=replace(HOW, cluster=cluster))
    assert (found.choice.what.kind, found.formula.algorithm) == (kind, algorithm)
    assert found.same.algorithm == {"direct": "put"}.get(algorithm, algorithm)
    if algorithm != "direct":
        assert found.same.protocol == found.formula.protocol
    assert sum(cause.time_ps for cause in found.causes) == found.difference_ps


def test_links_without_a_formula_have_no_range(model):
    found = zoom(model, PLAN, "layers.1", options=replace(HOW, collective_costs="links"))
    assert found.range_ps is None
    assert found.is_inside is None
    assert "no range" in found.verdict
    assert sum(cause.time_ps for cause in found.causes) == found.difference_ps


def test_a_long_message_is_extended_from_its_parts(model, zoomed, monkeypatch):
    whole = zoomed["late"]
    size = whole.choice.what.size_bytes
    monkeypatch.setattr(extension, "PARTS_BYTES", (size // 8, size // 4, size // 2))
    monkeypatch.setattr(extension, "WHOLE_BYTES", size - 1)
    found = zoom(model, PLAN, "largest", options=SLOW)
    assert found.detail.chosen.what.size_bytes == size // 2
    assert found.loadstore_ps == found.extension.time_ps > found.detail.after_last_ps
    assert found.loadstore_with_wait_ps - found.loadstore_ps == whole.detail.time_ps - whole.detail.after_last_ps
    assert sum(cause.time_ps for cause in found.causes) == found.difference_ps
    assert found.effect.change_ps == round(found.effect.count * found.difference_ps * found.effect.exposed_share)
    assert found.extension.words in " ".join(found.summary().split())
    assert "(it runs the whole message" in found.summary()
    assert "(it runs the whole message" not in whole.summary()
    assert found.document()["extension"]["parts"][-1]["bytes"] == size // 2
    assert found.document()["same_extension"] == found.same_extension.words
    assert (whole.document()["extension"], whole.document()["same_extension"]) == (None, None)


# -- the command


def test_the_command_prints_both_times_below_the_answer_and_in_the_report(tmp_path):
    page = tmp_path / "page.html"
    done = CliRunner().invoke(app, [*COMMAND, "--zoom", "tp", "--report", str(page)])
    assert done.exit_code == 0, done.output
    for words in (
        "step",
        "operator level",
        "load by load",
        "difference by cause",
        "such collectives",
        "--detail rank=",
    ):
        assert words in done.stdout
    assert "Do both levels agree?" in page.read_text()


def test_brief_is_one_more_line():
    done = CliRunner().invoke(app, [*COMMAND, "--brief", "--zoom", "layers.1"])
    assert done.exit_code == 0, done.output
    assert len(done.stdout.splitlines()) == 2
    assert done.stdout.splitlines()[1].startswith("layers.1: all_reduce of layers.1")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--zoom", "tpp"], "--zoom, no collective of rank 0 is called 'tpp'; did you mean 'tp'?"),
        (["--zoom", ""], "--zoom needs a name"),
        (["--zoom", "largest", "--repeat", "2"], "--zoom is about one run: it does not go with --repeat"),
    ],
)
def test_the_command_refuses_in_one_line(words, problem):
    done = CliRunner().invoke(app, [*COMMAND, *words])
    assert done.exit_code == 2
    assert problem in done.output
