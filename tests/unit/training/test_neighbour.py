"""Does a neighbour on the same links slow both jobs as fair shares say, and one on other links change nothing?"""

import pytest
from click.testing import CliRunner

import trine
from trine.cli.main import app
from trine.cluster import build_topology, load_cluster
from trine.errors import InputError
from trine.training.neighbour import FlowSpec, NeighbourFile, read_neighbour, simulate_shared
from trine.training.options import SimulateOptions

TRACE = "vgg13-h100-b128"


def ring(gpus=8, bandwidth="5 GB/s"):
    return build_topology("ring", bandwidth, "1 us", gpus)


def shared(cluster, places, neighbour, **options):
    plan = trine.Plan(dp=len(places), inputs="none")
    return simulate_shared(TRACE, plan, neighbour, options=SimulateOptions(
        cluster=cluster, placement=places, collective_costs="links", **options))  # fmt: skip


def job(places, **plan):
    return NeighbourFile(workload=TRACE, plan={"dp": len(places), "inputs": "none", **plan}, placement=places)


def test_disjoint_links_change_nothing():
    """Two jobs on two separate halves: bit-equal times, with each engine."""
    nodes = load_cluster("dgx-h100", nodes=2)
    plan = trine.Plan(dp=8)
    for engine in ("compiled", "reference"):
        options = SimulateOptions(cluster=nodes, placement=list(range(8)), engine=engine)
        answer = simulate_shared(TRACE, plan, NeighbourFile(workload=TRACE, plan={"dp": 8}), options=options)
        assert answer.num_shared_links == 0
        assert [each.shared_ps for each in answer.jobs] == [each.alone_ps for each in answer.jobs]
        assert answer.jobs[0].alone_ps == trine.simulate(TRACE, plan, options=options).step_time_ps
        assert answer.jobs[1].gpus == tuple(range(8, 16))


def test_two_equal_jobs_that_share_all_links_slow_down_alike():
    """GPUs of two jobs alternate on a ring: each link carries both, so that exposed communication doubles."""
    answer = shared(ring(), [0, 2, 4, 6], job([1, 3, 5, 7]))
    first, second = answer.jobs
    assert answer.num_shared_links == 8
    assert first.shared_ps == second.shared_ps
    assert first.alone_ps == second.alone_ps
    assert 1.2 < first.slowdown < 2.0


def test_bandwidth_bound_jobs_take_twice_as_long():
    """With links so slow that communication is all, two equal jobs take 2.0 times their time alone."""
    answer = shared(ring(bandwidth="20 MB/s"), [0, 2, 4, 6], job([1, 3, 5, 7]))
    assert [each.slowdown for each in answer.jobs] == pytest.approx([2.0, 2.0], abs=0.02)


def test_a_faster_network_is_disturbed_less():
    slowdowns = [
        shared(ring(bandwidth=f"{rate} GB/s"), [0, 2, 4, 6], job([1, 3, 5, 7])).jobs[0].slowdown
        for rate in (2, 5, 20, 200)
    ]
    assert slowdowns == sorted(slowdowns, reverse=True)
    assert slowdowns[-1] < 1.1


def test_shorter_steps_of_the_neighbour_repeat():
    """A neighbour whose step takes a fraction of the job's repeats it."""
    cluster = ring(bandwidth="1 GB/s")
    answer = shared(cluster, [0, 2, 4, 6], NeighbourFile(
        workload="resnet50-h100-b128", plan={"dp": 2, "inputs": "none"}, placement=[1, 3]))  # fmt: skip
    assert answer.jobs[1].steps > 1
    assert answer.jobs[0].slowdown > 1


def test_background_flows_take_their_rate():
    """A link of 1 GB/s with 0.4 GB/s of background leaves max-min 0.6 GB/s: communication takes 1 / 0.6 as long."""
    cluster = ring(gpus=4, bandwidth="20 MB/s")
    names = [cluster.devices[gpu].name for gpu in cluster.gpus]
    flows = [FlowSpec(**{"from": names[i], "to": names[(i + 1) % 4], "rate": "8 MB/s"}) for i in range(4)]
    answer = shared(cluster, [0, 1, 2, 3], NeighbourFile(flows=flows))
    assert answer.jobs[0].slowdown == pytest.approx(1 / 0.6, rel=0.02)
    idle = [FlowSpec(**{"from": names[0], "to": names[1], "rate": "1 kB/s"})]
    assert shared(cluster, [0, 1, 2, 3], NeighbourFile(flows=idle)).jobs[0].slowdown == pytest.approx(1.0, rel=1e-3)


def test_refusals(tmp_path):
    with pytest.raises(InputError, match="GPU 2 runs both jobs"):
        shared(ring(), [0, 2, 4, 6], job([1, 2, 3, 5]))
    with pytest.raises(InputError, match="needs 6 GPUs, and the job leaves 4 free"):
        shared(ring(), [0, 2, 4, 6], NeighbourFile(workload=TRACE, plan={"dp": 6}))
    with pytest.raises(InputError, match="unknown field 'batches' of the plan; did you mean 'batch'"):
        shared(ring(), [0, 2, 4, 6], NeighbourFile(workload=TRACE, plan={"batches": 2}))
    with pytest.raises(InputError, match="unknown device 'gpu9'"):
        shared(ring(), [0, 2], NeighbourFile(flows=[FlowSpec(**{"from": "gpu9", "to": "gpu1", "rate": "1 GB/s"})]))
    wrong = {
        "needs a 'workload' or 'flows'": "plan: {dp: 2}",
        "unknown key 'workloads'": "workloads: x",
        "need a 'workload'": "flows: [{from: gpu0, to: gpu1, rate: 1 GB/s}]\nplan: {dp: 2}",
    }
    for words, text in wrong.items():
        (tmp_path / "n.yaml").write_text(text)
        with pytest.raises(InputError, match=words):
            read_neighbour(tmp_path / "n.yaml")


def test_the_command(tmp_path):
    (tmp_path / "n.yaml").write_text(f"workload: {TRACE}\nplan: {{dp: 4}}\n")
    words = f"train {TRACE} --dp 4 --cluster dgx-h100 --neighbour {tmp_path / 'n.yaml'} --json -"
    found = CliRunner().invoke(app, words.split())
    assert found.exit_code == 0, found.output
    assert '"num_shared_links": ' in found.output
    assert f"neighbour {TRACE}" in found.output
