"""Do the options about ranks work: folding, placement, slow ranks, jitter, repeats, shown ranks?"""

import json

import pytest
from click.testing import CliRunner

import trine
from trine.cli.main import app
from trine.parallel.stragglers import Jitter, Stragglers

JOB = ["train", "resnet50-h100-b128"]
TWO_NODES = ["--dp", "16", "--cluster", "dgx-h100", "--nodes", "2", "--buffers", "none"]


def invoke(*words, job=TWO_NODES):
    return CliRunner().invoke(app, [*JOB, *job, *words])


def answer(tmp_path, *words, job=TWO_NODES):
    path = tmp_path / "answer.json"
    done = invoke(*words, "--details", "--json", str(path), job=job)
    assert done.exit_code == 0, done.output
    return json.loads(path.read_text()), done.output


def simulate(**options):
    plan = trine.Plan(dp=16, buffers="none")
    return trine.simulate("resnet50-h100-b128", plan, cluster=trine.load_cluster("dgx-h100", nodes=2), **options)


def test_folding_can_be_turned_off_and_verified(tmp_path):
    folded, text = answer(tmp_path)
    verified, said = answer(tmp_path, "--verify-fold")
    unfolded, _ = answer(tmp_path, "--no-fold")
    assert folded["step_time_s"] == verified["step_time_s"] == unfolded["step_time_s"]
    assert unfolded["folding"] is None
    assert folded["folding"]["classes"] < 16
    (stage,) = folded["folding"]["stages"]
    assert stage["ranks"] == 16
    assert stage["events"] == folded["simulator"]["events"]
    assert f"{stage['tasks']:,} tasks, {stage['events']:,} events" in text
    assert "equal to the picosecond" in " ".join(said.split())
    assert any(note.startswith("verified: ") for note in verified["folding"]["notes"])


def test_verification_that_finds_a_difference_fails(monkeypatch):
    from trine.folding import run as folded

    right = folded.whole_times

    def wrong(run, ranks):
        times = right(run, ranks)
        ready, start, end = times[3]
        times[3] = ready, start, end + 1
        return times

    monkeypatch.setattr(folded, "whole_times", wrong)
    done = invoke("--verify-fold")
    assert done.exit_code == 1
    assert "rank 3" in done.output


def test_placement_is_that_of_the_api(tmp_path):
    packed, _ = answer(tmp_path, "--placement", "packed", "--no-fold", "--collective-costs", "links")
    for words in ("round-robin", "random:7"):
        placed, _ = answer(tmp_path, "--placement", words, "--no-fold", "--collective-costs", "links")
        own = simulate(placement=words, fold="off", collective_costs="links")
        assert placed["step_time_s"] == own.step_time_s
        assert [rank["name"] for rank in placed["ranks"]] != [rank["name"] for rank in packed["ranks"]]
    file = tmp_path / "places.txt"
    file.write_text("# the other way round\n" + "\n".join(str(gpu) for gpu in reversed(range(16))))
    placed, _ = answer(tmp_path, "--placement", str(file))
    assert placed["ranks"][0]["name"].startswith("node1.")


def test_slow_ranks_and_jitter_are_those_of_the_api(tmp_path):
    content, text = answer(
        tmp_path, "--slow", "rank=3:1.3", "--jitter", "normal:5%", "--jitter-per", "step", "--seed", "4"
    )
    stragglers = Stragglers(
        slow=((3, 1.3),), jitter=Jitter(distribution="normal", spread=0.05), per="step", seed=4
    )  # fmt: skip
    assert content["step_time_s"] == simulate(stragglers=stragglers).step_time_s
    assert "rank 3: 1.3x compute time" in text
    assert not any("every rank takes the same time" in sentence for sentence in content["not_modelled"])


def test_repeats_are_runs_with_seeds_that_follow_each_other(tmp_path):
    content, text = answer(tmp_path, "--jitter", "normal:5%", "--jitter-per", "step", "--seed", "2", "--repeat", "3")
    found = content["ensemble"]
    assert [run["seed"] for run in found["runs"]] == [2, 3, 4]
    assert found["runs"][0]["time_ps"] == round(content["step_time_s"] * 1e12)
    one, _ = answer(tmp_path, "--jitter", "normal:5%", "--jitter-per", "step", "--seed", "4")
    assert found["runs"][2]["time_ps"] == round(one["step_time_s"] * 1e12)
    times = sorted(run["time_ps"] for run in found["runs"])
    assert [found["min_s"], found["median_s"], found["max_s"]] == [time / 1e12 for time in times]
    assert "3 runs, seeds 2 to 4" in text
    assert "normal 0.05 per step" in text


def test_repeats_alone_perturb_and_fold_as_before(tmp_path):
    plain, _ = answer(tmp_path)
    content, text = answer(tmp_path, "--repeat", "3")
    assert content["step_time_s"] == plain["step_time_s"]
    assert content["folding"] == plain["folding"]
    for run in content["ensemble"]["runs"]:
        assert run["time_ps"] / 1e12 == pytest.approx(plain["step_time_s"], rel=1e-5)
    assert len({run["time_ps"] for run in content["ensemble"]["runs"]}) == 3
    assert "perturbed by 1e-06 of its time" in text


@pytest.mark.parametrize("fold", ["on", "off"])
def test_jitter_of_classes_is_the_same_folded_or_not(fold):
    jitter = Jitter(distribution="normal", spread=0.02)
    stragglers = Stragglers(slow=((5, 1.1),), jitter=jitter, each="class", seed=1)
    verified = simulate(stragglers=stragglers, fold="verify")  # raises if a task differs
    assert simulate(stragglers=stragglers, fold=fold).step_time_ps == verified.step_time_ps


def test_classes_that_draw_alike_stay_together():
    jitter = Jitter(distribution="normal", spread=0.02)
    plain = simulate()
    jittered = simulate(stragglers=Stragglers(jitter=jitter, each="class", seed=1))
    assert jittered.scope.stages[0].num_classes == plain.scope.stages[0].num_classes < 16
    own = simulate(stragglers=Stragglers(jitter=jitter, seed=1))
    assert own.scope is None
    assert own.step_time_ps > jittered.step_time_ps


JOB_128 = ["--dp", "128", "--cluster", "dgx-h100", "--nodes", "16"]


@pytest.mark.parametrize("words", [[], ["--no-fold"]])
def test_ranks_that_are_shown(tmp_path, words):
    timeline, picture = tmp_path / "t.pftrace", tmp_path / "t.png"
    show = ["--show-rank", "100", "--show-rank", "17", *words]
    outputs = ["--perfetto", str(timeline), "--timeline", str(picture)]
    content, text = answer(tmp_path, *show, "--slow", "rank=17:1.3", *outputs, job=JOB_128)
    assert [row["rank"] for row in content["ranks"]] == [100, 17]
    assert content["ranks"][1]["compute_s"] == pytest.approx(1.3 * content["ranks"][0]["compute_s"], rel=1e-3)
    assert "time of rank 17, the slowest of 128" in text
    tracks = timeline.read_bytes()
    assert b"node12.gpu4" in tracks
    assert b"node12.gpu5" not in tracks
    assert (content["energy"] is None) == bool(words)
    assert picture.stat().st_size > 5000


def test_a_rank_that_is_not_the_last_says_so():
    plan = trine.Plan(dp=2, pp=2)
    result = trine.simulate("vgg13-h100-b128", plan, cluster="dgx-h100", stragglers=Stragglers(slow=((0, 1.3),)))
    ends = [int(result.records.end_ps[result.graph.rank == rank].max()) for rank in range(4)]
    early = ends.index(min(ends))
    assert ends[early] < result.end_time_ps
    assert f"time of rank {early}, which ends " in result.rank(early).details()
    assert "before the last of 4" in result.rank(early).details()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--no-fold", "--verify-fold"], "contradict each other"),
        (["--seed", "1"], "--seed matters to --jitter and --repeat only"),
        (["--jitter-per", "step"], "--jitter-per needs --jitter"),
        (["--jitter", "norml:5%"], "did you mean 'normal'"),
        (["--jitter", "normal:5%", "--jitter-per", "steps"], "did you mean 'step'"),
        (["--repeat", "1"], "at least 2"),
        (["--repeat", "3", "--verify-fold"], "checks one run"),
        (["--repeat", "3", "--overlap", "range"], "ask for one at a time"),
        (["--verify-fold", "--network", "fifo"], "no ranks are folded, so there is nothing to verify"),
        (["--verify-fold", "--jitter", "normal:1%"], "jitter makes every rank different"),
        (["--show-rank", "16"], "ranks are 0 to 15"),
        (["--show-rank", "3", "--show-rank", "3"], "given twice"),
        (["--slow", "rank=99:2"], "there is no rank 99"),
        (["--slow", "17:2"], "rank=17:1.3"),
        (["--placement", "round-robbin"], "did you mean 'round-robin'"),
    ],
)
def test_what_is_refused(words, said):
    done = invoke(*words)
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--no-fold"], "--no-fold is about several ranks"),
        (["--verify-fold"], "--verify-fold is about several ranks"),
        (["--repeat", "3"], "--repeat needs --jitter here"),
        (["--placement", "packed"], "--placement is about the machine"),
    ],
)
def test_what_one_gpu_refuses(words, said):
    done = invoke(*words, job=[])
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())


def test_picoseconds_matter_where_ranks_share_links_unevenly(tmp_path):
    """A randomly placed ring gets the warning, and its spread is a thousand times the perturbation."""
    ring = [
        "--dp",
        "64",
        "--cluster",
        "dgx-h100",
        "--nodes",
        "8",
        "--algorithm",
        "all_reduce=ring",
        "--buffers",
        "none",
    ]
    _, said = answer(tmp_path, job=ring)
    uneven, text = answer(tmp_path, "--placement", "random:1", "--repeat", "4", job=ring)
    assert "picoseconds" not in said
    assert any("sensitive to picoseconds" in sentence for sentence in uneven["warnings"])
    found = uneven["ensemble"]
    assert found["max_s"] - found["min_s"] > 1e-4 * uneven["step_time_s"]
    assert "--repeat 5 gives the spread" in " ".join(text.split())
