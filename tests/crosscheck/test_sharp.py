"""Do all-reduces with reduction in InfiniBand switches (--sharp) reach published rates, and only where switches can?"""

import pytest

import trine
from trine.cluster import load_cluster
from trine.collectives.nccl.predict import Collectives
from trine.collectives.options import CollectiveOptions
from trine.collectives.query import link_load
from trine.errors import InputError, SpecError

GIB = 1 << 30


def algbw(cluster, size=8 * GIB, **options):
    """Return GB/s of an all-reduce."""
    answer = Collectives(cluster, options=CollectiveOptions(**options)).predict("all_reduce", size)
    return answer.algbw_bytes_per_s / 1e9


def test_collnet_on_a100_nodes_with_eight_hdr_nics():
    """About 110 GB/s with eight NICs, says NCCL's author (github.com/NVIDIA/nccl/issues/320); a ring has 41."""
    cluster = load_cluster("dgx-a100", nodes=16, sharp=True)
    assert algbw(cluster, algorithm="collnet") == pytest.approx(110, rel=0.26)
    assert algbw(load_cluster("dgx-a100", nodes=16), algorithm="ring") < 0.7 * algbw(cluster)


def test_each_byte_leaves_a_node_once():
    """Between nodes, SHARP carries the buffer once each way, whatever the number of nodes; trees carry it twice."""
    for nodes in (4, 16):
        with_sharp, without = (load_cluster("dgx-h100", nodes=nodes, sharp=sharp) for sharp in (True, False))
        fast = Collectives(with_sharp).predict("all_reduce", GIB)
        slow = Collectives(without).predict("all_reduce", GIB)
        assert (fast.algorithm, slow.algorithm) == ("nvls", "nvlstree")
        assert fast.time_ps < 0.8 * slow.time_ps
        leaving = [
            sum(
                load
                for link, load in enumerate(link_load(cluster, range(len(cluster.gpus)), answer))
                if _leaves_node0(cluster, link)
            )
            for cluster, answer in ((with_sharp, fast), (without, slow))
        ]
        assert leaving == [pytest.approx(GIB, rel=0.01), pytest.approx(2 * GIB, rel=0.01)]


def _leaves_node0(cluster, link):
    source, target = (cluster.devices[end] for end in (cluster.links[link].source, cluster.links[link].target))
    return source.node == "node0" and target.node is None


def test_sharp_with_one_tree_level_gains_nothing_if_nvls_is_the_limit():
    """Two nodes send the buffer once in trees as well."""
    two = [load_cluster("dgx-h100", nodes=2, sharp=sharp) for sharp in (True, False)]
    assert algbw(two[0]) == pytest.approx(algbw(two[1]), rel=0.01)


def test_sharp_is_assumed_and_says_so():
    cluster = load_cluster("dgx-h100", nodes=4, sharp=True)
    sharp, plain = (Collectives(each) for each in (cluster, load_cluster("dgx-h100", nodes=4)))
    assert sharp.predict("all_reduce", GIB).evidence == "assumed"
    assert plain.predict("all_reduce", GIB).evidence != "assumed"
    assert any("SHARP: no public results" in note for note in sharp.notes("all_reduce"))
    assert any("SHARP has no effect" in note for note in sharp.notes("all_gather"))
    assert not any("SHARP" in note for note in plain.notes("all_reduce"))


def test_a_step_takes_the_time_of_the_collective():
    """Without overlap, the flows of a step's all-reduces over SHARP take what trine collective says."""
    cluster = load_cluster("dgx-h100", nodes=4, sharp=True)
    plan = trine.Plan(dp=32, dp_overlap=False, bucket_bytes=10**9, inputs="none")
    uses = [use for use in trine.simulate("vgg13-h100-b128", plan, cluster=cluster).collectives if use.group_size == 32]
    largest = max(uses, key=lambda use: use.size_bytes)
    assert largest.algorithms == ("nvls/simple",)
    alone = Collectives(cluster).predict("all_reduce", largest.size_bytes).time_ps
    assert largest.time_ps == pytest.approx(alone, rel=1e-6)


def test_message_level_refuses_nvls_with_sharp():
    with pytest.raises(InputError, match="not modelled message by message"):
        trine.collective("all_reduce", [GIB], load_cluster("dgx-h100", nodes=2, sharp=True), network="fair")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("dgx-h100", {}, "SHARP needs several nodes: add --nodes N"),
        ("mi300x-node", {"nodes": 2}, "needs InfiniBand switches that reduce: .*has roce-400"),
        ("dgx1-v100", {"nodes": 2, "fabric": "clos@ib-edr"}, "has ib-edr"),
        ("dgx-h100", {"nodes": 2, "fabric": "rail@roce-400"}, "has roce-400"),
    ],
)
def test_refusals(name, options, message):
    with pytest.raises((InputError, SpecError), match=message):
        load_cluster(name, sharp=True, **options)
