"""Does a plan say when one bandwidth for all collectives decides, and which bandwidths a file gives?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from trine import load_cluster, plan
from trine.search.fabric_note import fabric_note, ops_between
from trine.search.ranked import Ranked
from trine.search.space import Layout
from trine.search.worker import Outcome


def layout(sharding: str = "none", **changes: int) -> Layout:
    base = Layout(8, 8, 1, 1, 1, None, sharding, None, None, 1, 1, None, "none", "none")
    return base._replace(**changes)


def ranked(of: Layout, step_ps: int, exposed_ps: int, communication: dict[str, int]) -> Ranked:
    return Ranked(of, Outcome(step_ps=step_ps, exposed_ps=exposed_ps, communication=communication), 0)


def test_collectives_between_nodes() -> None:
    assert ops_between(layout(), 8) == ("all_reduce",)
    assert ops_between(layout("fsdp"), 8) == ("reduce_scatter", "all_gather")
    assert ops_between(layout("zero1", dp=4, pp=2), 8) == ("reduce_scatter", "all_gather", "send_recv")
    assert ops_between(layout(dp=2, tp=4), 8) == ()
    assert ops_between(layout(dp=8, tp=1, ep=8, pp=2), 8) == ("send_recv",)


def test_the_note_appears_where_the_error_exceeds_the_lead() -> None:
    cluster = load_cluster("dgx-h100", nodes=8)
    gathers = ranked(layout("fsdp"), 10**12, 2 * 10**11, {"dp": 10**11, "tp": 10**11})
    reduces = ranked(layout(), 10**12 + 10**10, 10**11, {"dp": 10**11, "tp": 10**11})
    note = fabric_note(cluster, [gathers, reduces])
    assert "reduce_scatter + all_gather and all_reduce between nodes" in note
    assert "the first leads by 10 ms" in note
    far = ranked(layout(), 2 * 10**12, 10**11, {"dp": 10**11, "tp": 10**11})
    assert fabric_note(cluster, [gathers, far]) == ""
    inside = [ranked(each.layout, each.outcome.step_ps, 10**11, {"tp": 10**11}) for each in (gathers, reduces)]
    assert fabric_note(cluster, inside) == ""
    assert fabric_note(load_cluster("dgx-h100"), [gathers, reduces]) == ""


def test_the_files_bandwidths_are_named(tmp_path: Path) -> None:
    path = tmp_path / "slow.yaml"
    path.write_text("base: dgx-h100\ncollective_bandwidth: {all_gather: 40 GB/s, evidence: measured}\n")
    cluster = load_cluster(path, nodes=2)
    answer = plan(
        "gpt-2", gpus=16, cluster=cluster, global_batch=32, workers=1, most_simulated=1, fix={"pp": 1, "cp": 1}
    )
    assert "bus bandwidths of the cluster file (measured): all_gather 40 GB/s on 2 nodes" in answer.fabric
    assert answer.fabric in answer.notes
    assert fabric_note(replace(cluster, library=None), answer.ranked) == ""
