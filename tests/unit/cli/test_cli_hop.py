"""Does ``trine hop`` answer, compare, write JSON and refuse what cannot matter, in one line?"""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

import trine
from trine.cli.main import app
from trine.decentralised import picture
from trine.decentralised.protocol import HopProtocol, WorkerGraph, worker_graph
from trine.decentralised.study import edge_cluster, slowed_links
from trine.errors import InputError, PlanError
from trine.parallel.stragglers import Stragglers, parse_slow

RUNNER = CliRunner()
TRACE = "vgg13-h100-b128"
LINKS = ["--bandwidth", "10 GB/s", "--latency", "2 us", "--iterations", "6"]
KEYS = {
    "graph", "protocol", "cluster", "end_s", "iterations_per_s", "shares", "staleness", "missed_updates",
    "sent_updates", "unused_updates", "dropped_updates", "sent_bytes", "workers", "evidence",
    "warnings", "not_modelled", "simulator",
}  # fmt: skip


def run(*args: str) -> tuple[int, str, str]:
    result = RUNNER.invoke(app, ["hop", TRACE, *args])
    return result.exit_code, result.stdout, result.stderr


def test_json_alone_on_stdout_with_the_comparison():
    code, out, err = run(*LINKS, "--backup", "1", "--slow-by", "1:10", "--seed", "1", "--compare", "--json", "-")
    assert code == 0, err
    answer = json.loads(out)
    assert set(answer) >= KEYS | {"standard", "speedup"}
    assert answer["speedup"] == pytest.approx(answer["standard"]["end_s"] / answer["end_s"])
    assert answer["standard"]["protocol"]["backup"] == 0
    assert answer["protocol"]["max_gap"] == 8
    assert answer["sent_bytes"] == answer["sent_updates"] * answer["update_bytes"]
    assert sum(answer["shares"].values()) == pytest.approx(1)
    assert "times as fast as standard" in err


def test_a_preset_and_a_slow_worker_and_a_timeline(tmp_path):
    path = tmp_path / "hop.pftrace"
    code, out, err = run(
        "--cluster", "dgx-h100", "--iterations", "4", "--slow", "rank=3:2", "--jitter", "normal:5%", "--order",
        "serial", "--perfetto", str(path),
    )  # fmt: skip
    assert code == 0, err
    assert "rank 3: 2x compute time" in out
    assert "standard (every update is waited for)" in out
    assert b"gpu3" in path.read_bytes()


def test_an_ensemble_is_reproducible():
    args = (*LINKS, "--jitter", "lognormal:0.1", "--repeat", "5", "--seed", "3", "--json", "-")
    code, out, err = run(*args)
    assert code == 0, err
    assert [row["seed"] for row in json.loads(out)["runs"]] == [3, 4, 5, 6, 7]
    assert run(*args)[1] == out
    assert len({row["time_ps"] for row in json.loads(out)["runs"]}) == 5


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ((), "no links were described"),
        ((*LINKS, "--graph", "rinng"), "did you mean 'ring'"),
        ((*LINKS, "--workers", "7"), "even number"),
        ((*LINKS, "--workers", "6", "--graph", "double-ring"), "multiple of 4"),
        ((*LINKS, "--backup", "3"), "leave nobody to wait for"),
        ((*LINKS, "--max-gap", "4"), "--max-gap 4 has no effect"),
        ((*LINKS, "--backup", "1", "--max-gap", "0"), "at least 1"),
        ((*LINKS, "--max-skip", "3"), "nobody can skip"),
        ((*LINKS, "--skip-behind", "3"), "--skip-behind needs --max-skip"),
        (
            (*LINKS, "--backup", "1", "--max-gap", "2", "--max-skip", "3", "--skip-behind", "3"),
            "--skip-behind 3 has no effect",
        ),
        ((*LINKS, "--drop-late"), "--drop-late cannot matter"),
        ((*LINKS, "--compare"), "needs an option of Hop"),
        ((*LINKS, "--seed", "3"), "--seed matters"),
        ((*LINKS, "--repeat", "3"), "needs something random"),
        ((*LINKS, "--slow-per", "gpu"), "--slow-per needs --slow-by"),
        ((*LINKS, "--slow-by", "0.5:2"), "at least 1"),
        ((*LINKS, "--slow-by", "2"), "LOW:HIGH"),
        ((*LINKS, "--slow", "rank=9:2"), "no rank 9"),
        ((*LINKS, "--link-down", "gpu0-gpu1"), "about the links of --cluster"),
        ((*LINKS, "--cluster", "dgx-a100"), "--cluster other links"),
        (("--cluster", "dgx-a100", "--workers", "16"), "workers do not fit on the 8 GPUs"),
    ],
)
def test_wrong_input_is_one_line(args, why):
    code, out, err = run(*args)
    assert (code, out) == (2, "")
    assert why in err
    assert len(err.strip().splitlines()) == 1


def test_the_graphs_of_the_paper():
    """TrioSim, figure 16: eight workers with three neighbours each, or four."""
    ring, double = worker_graph("ring-based", 8), worker_graph("double-ring", 8)
    assert ring.out[0] == (1, 4, 7)
    assert {len(out) for out in ring.out} == {3}
    assert double.out[0] == (1, 2, 3, 4)
    assert {len(out) for out in double.out} == {4}
    assert len(worker_graph("full", 5).edges) == 20
    assert worker_graph("ring", 2).out == ((1,), (0,))


@pytest.mark.parametrize(
    ("out", "why"),
    [
        (((1,), (0,), (0,)), "falls apart"),
        (((1, 1), (0,)), "at most once"),
        (((0,), (0,)), "at most once"),
        (((),), "at least two"),
    ],
)
def test_graphs_that_cannot_be(out, why):
    with pytest.raises(PlanError, match=why):
        WorkerGraph("mine", out)


def test_slow_links_are_slowed_as_they_say():
    graph = worker_graph("ring-based", 8)
    cluster = edge_cluster(graph, 10**10, 5)
    slow = slowed_links(cluster, (1, 10), seed=4)
    factors = {link.name: 10**10 / link.bytes_per_s for link in slow.links}
    assert all(1 <= factor <= 10.0001 for factor in factors.values())
    assert factors["gpu0->gpu1"] == factors["gpu1->gpu0"]
    assert len(set(factors.values())) == 12
    assert slow == slowed_links(cluster, (1, 10), seed=4)
    each = slowed_links(cluster, (1, 10), seed=4, per="gpu")
    assert len({link.bytes_per_s for link in each.links}) <= 8
    with pytest.raises(InputError, match="per link or per gpu"):
        slowed_links(cluster, (1, 10), seed=4, per="node")


def test_an_iteration_is_a_step_of_one_gpu():
    one = trine.simulate(TRACE, trine.Plan(inputs="none"))
    graph = worker_graph("ring", 4)
    result = trine.hop(TRACE, HopProtocol(iterations=3), graph=graph, cluster=edge_cluster(graph, 10**15, 0))
    assert result.gradient_ps + result.apply_ps == one.step_time_ps
    assert result.end_ps == 3 * one.step_time_ps
    assert result.iterations_per_s == pytest.approx(1 / one.step_time_s)
    assert result.update_bytes == sum(p.size_bytes for p in trine.load(TRACE).parameters)


def test_a_cluster_with_circuits_runs_on_them():
    code, out, err = run("--cluster", "wafer-a100-photonic", "--workers", "4", "--iterations", "2", "--json", "-",
                         "--gpu", "a100-80gb")  # fmt: skip
    assert code == 0, err
    assert json.loads(out)["network"] == "circuit"


def test_the_picture_has_a_bar_for_each_part_of_a_workers_time_and_the_share_of_each_age():
    pytest.importorskip("matplotlib")
    protocol = HopProtocol(iterations=6, backup=1, max_gap=8)
    graph = worker_graph("ring-based", 4)
    slow = Stragglers(slow=parse_slow(["rank=2:3"]), jitter=None, per="step", seed=0)
    cluster = edge_cluster(graph, 10 * 10**9, 0)
    result = trine.hop(TRACE, protocol, graph=graph, cluster=cluster, stragglers=slow)
    numbers = result.numbers
    times, ages = result.plot().axes
    widths = {bars.get_label(): [bar.get_width() for bar in bars] for bars in times.containers}
    computing_s = [ps / 1e12 for ps in numbers.computing_ps.tolist()]
    assert times.get_xlabel() == "time (s)"
    assert widths["computing"] == pytest.approx(computing_s)
    total = sum(numbers.staleness.values()) + numbers.num_missed
    (shares,) = ages.containers[:1]
    expected = [100 * count / total for count in (*numbers.staleness.values(), numbers.num_missed)]
    assert [bar.get_width() for bar in shares] == pytest.approx(expected)
    assert [label.get_text() for label in ages.get_yticklabels()] == ["same iteration", "missed"]
    assert ages.get_ylim() == times.get_ylim()  # bars of both sides are as high


def test_the_picture_of_many_workers_shows_those_that_compute_longest(monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(picture, "MAX_WORKERS", 2)
    graph = worker_graph("ring", 8)
    slow = Stragglers(slow=parse_slow(["rank=6:3"]), jitter=None, per="step", seed=0)
    cluster = edge_cluster(graph, 10 * 10**9, 0)
    result = trine.hop(TRACE, HopProtocol(iterations=3), graph=graph, cluster=cluster, stragglers=slow)
    times = result.plot().axes[0]
    assert [label.get_text() for label in times.get_yticklabels()] == ["worker 0", "worker 6"]
    assert times.get_title("left") == "Time of each worker: the 2 of 8 that compute longest"


def test_many_seeds_have_no_picture(tmp_path):
    pytest.importorskip("matplotlib")
    code, _, err = run(*LINKS, "--jitter", "lognormal:0.1", "--repeat", "2", "--plot", str(tmp_path / "hop.png"))
    assert code == 2
    assert "no other output" in err
