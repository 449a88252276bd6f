"""Is a graph file read as written, and refused where it is wrong?"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from trine.cluster import Cluster, build_topology, load_cluster
from trine.engine import run
from trine.errors import DeadlockError, SpecError
from trine.graph.taskgraph import TaskGraph
from trine.training.graph_file import graph_answer, load_graph


@pytest.fixture
def ring() -> Cluster:
    return build_topology("ring", "1 GB/s", "1 us", 4)


def read(tmp_path: Path, cluster: Cluster, tasks: object) -> TaskGraph:
    path = tmp_path / "graph.json"
    path.write_text(json.dumps({"tasks": tasks}))
    return load_graph(path, cluster)


def test_a_graph_runs_and_is_answered_by_id(tmp_path: Path, ring: Cluster) -> None:
    graph = read(
        tmp_path,
        ring,
        [
            {"id": "j", "kind": "join", "need": 1, "after": ["t", 1]},
            {"id": 1, "kind": "compute", "rank": "gpu0", "stream": "main", "duration": "5 us"},
            {"id": "2", "kind": "compute", "rank": 0, "stream": "main", "duration": 1e-6},
            {"id": "t", "kind": "transfer", "src": "gpu0", "dst": 2, "bytes": 1e6, "after": ["1"]},
            {"id": "end", "kind": "join", "after": ["j", "t", 2]},
            {"id": "local", "kind": "transfer", "src": 1, "dst": 1, "bytes": "1 GiB"},
        ],
    )
    assert graph.task_names == ("j", "1", "2", "t", "end", "local")
    assert graph.rank_names == ("gpu0", "gpu1", "gpu2", "gpu3")
    answer = graph_answer(graph, run(graph, engine="reference"))
    assert answer == {
        "end_time_s": 1007e-6,
        "tasks": {
            "j": {"start_ps": 5_000_000, "end_ps": 5_000_000},
            "1": {"start_ps": 0, "end_ps": 5_000_000},
            "2": {"start_ps": 5_000_000, "end_ps": 6_000_000},
            "t": {"start_ps": 5_000_000, "end_ps": 1_007_000_000},
            "end": {"start_ps": 1_007_000_000, "end_ps": 1_007_000_000},
            "local": {"start_ps": 0, "end_ps": 0},
        },
    }


def test_an_empty_graph_ends_at_once(tmp_path: Path, ring: Cluster) -> None:
    graph = read(tmp_path, ring, [])
    assert graph_answer(graph, run(graph, engine="reference")) == {"end_time_s": 0.0, "tasks": {}}


def test_streams_are_separate_queues(tmp_path: Path, ring: Cluster) -> None:
    task = {"kind": "compute", "rank": 0, "duration": "1 us"}
    graph = read(tmp_path, ring, [{**task, "id": 1}, {**task, "id": 2}, {**task, "id": 3, "stream": "copy"}])
    assert run(graph, engine="reference").end_ps.tolist() == [10**6, 2 * 10**6, 10**6]


def test_cycles_are_left_to_the_engine(tmp_path: Path, ring: Cluster) -> None:
    graph = read(
        tmp_path, ring, [{"id": "a", "kind": "join", "after": ["b"]}, {"id": "b", "kind": "join", "after": ["a"]}]
    )
    with pytest.raises(DeadlockError, match="a"):
        run(graph, engine="reference")


COMPUTE = {"id": "c", "kind": "compute", "rank": 0, "duration": "1 us"}
TRANSFER = {"id": "t", "kind": "transfer", "src": 0, "dst": 1, "bytes": 8}
JOIN = {"id": "j", "kind": "join"}
FAULTS = [
    ({**COMPUTE, "duratoin": 1}, r"tasks\[0\]: a compute has no 'duratoin'; did you mean 'duration'"),
    ({**COMPUTE, "bytes": 1}, r"tasks\[0\]: a compute has no 'bytes'"),
    ({"id": 1, "kind": "compute", "rank": 0}, r"tasks\[0\].duration: is missing"),
    ({"kind": "join"}, r"tasks\[0\].id: is missing"),
    ({"id": 1}, r"tasks\[0\].kind: is missing"),
    ({"id": 1, "kind": "jion"}, r"tasks\[0\].kind: unknown kind 'jion'; did you mean 'join'"),
    ({"id": 1, "kind": ["join"]}, r"tasks\[0\].kind: unknown kind"),
    ("join", r"tasks\[0\]: must be an object"),
    ({**JOIN, "id": ""}, r"tasks\[0\].id: must be text"),
    ({**JOIN, "id": 1.5}, r"tasks\[0\].id: must be text or a whole number"),
    ({**JOIN, "id": True}, r"tasks\[0\].id: must be text or a whole number"),
    ({**JOIN, "after": ["k"]}, r"tasks\[0\].after\[0\]: no task has the id 'k'"),
    ({**JOIN, "after": "j"}, r"tasks\[0\].after: must be a list"),
    ({**JOIN, "after": ["j", "j"]}, r"tasks\[0\].after: names a task twice"),
    ({**JOIN, "need": 1}, r"tasks\[0\].need: must be a whole number up to 0|from 0 to 0"),
    ({**JOIN, "need": -1}, r"tasks\[0\].need: must be a whole number"),
    ({**JOIN, "need": True}, r"tasks\[0\].need: must be a whole number"),
    ({**COMPUTE, "rank": "gpu9"}, r"tasks\[0\].rank: .*no device 'gpu9'; did you mean 'gpu"),
    ({**COMPUTE, "rank": 4}, r"tasks\[0\].rank: must be a device's name or its index, 0 to 3, got 4"),
    ({**COMPUTE, "rank": -1}, r"tasks\[0\].rank: must be a device's name"),
    ({**COMPUTE, "rank": None}, r"tasks\[0\].rank: must be a device's name"),
    ({**COMPUTE, "stream": []}, r"tasks\[0\].stream: must be text"),
    ({**COMPUTE, "duration": -1}, r"tasks\[0\].duration: the duration must not be negative"),
    ({**COMPUTE, "duration": "1 GB"}, r"tasks\[0\].duration: the duration has an unknown unit 'GB'"),
    ({**COMPUTE, "duration": None}, r"tasks\[0\].duration: the duration must be a number"),
    ({**TRANSFER, "bytes": 0.5}, r"tasks\[0\].bytes: the bytes must be a whole number"),
    ({**TRANSFER, "bytes": 10**30}, r"tasks\[0\].bytes: the bytes is too large"),
    ({**TRANSFER, "dst": 9}, r"tasks\[0\].dst: must be a device's name"),
]


@pytest.mark.parametrize(("task", "message"), FAULTS)
def test_faults_are_named(tmp_path: Path, ring: Cluster, task: object, message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        read(tmp_path, ring, [task])
    assert "graph.json" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "must be an object with 'tasks'"),
        ("{}", "tasks: is missing"),
        ('{"tasks": 3}', "tasks: must be a list"),
        ('{"task": []}', "unknown key 'task'; did you mean 'tasks'"),
        ('{"tasks": [}', "graph.json:1: not valid JSON"),
        ('{"tasks": [], "tasks": []}', "the key 'tasks' is given twice"),
        ('{"tasks": [{"id": 1, "kind": "join", "need": NaN}]}', "'NaN' is not a number"),
    ],
)
def test_faults_of_the_file_are_named(tmp_path: Path, ring: Cluster, text: str, message: str) -> None:
    path = tmp_path / "graph.json"
    path.write_text(text)
    with pytest.raises(SpecError, match=message):
        load_graph(path, ring)


def test_ids_are_unique_as_text(tmp_path: Path, ring: Cluster) -> None:
    with pytest.raises(SpecError, match=r"tasks\[1\].id: '1' is the id of tasks\[0\] too"):
        read(tmp_path, ring, [{"id": 1, "kind": "join"}, {"id": "1", "kind": "join"}])


def test_unreachable_ends_are_named(tmp_path: Path) -> None:
    path = tmp_path / "machine.yaml"
    path.write_text("devices: [a, b]\nlinks: [{from: a, to: b, bandwidth: 1 GB/s, latency: 0}]")
    with pytest.raises(SpecError, match=r"tasks\[0\].dst: .*no route from 'b' to 'a'"):
        read(tmp_path, Cluster.from_yaml(path), [{"id": 1, "kind": "transfer", "src": "b", "dst": "a", "bytes": 1}])


def test_switches_do_not_compute(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"tasks\[0\].rank: 'nvswitch' is a switch, which cannot compute"):
        read(tmp_path, load_cluster("dgx-h100"), [{**COMPUTE, "rank": "nvswitch"}])


def test_routes_of_transfers_are_those_of_the_cluster(tmp_path: Path) -> None:
    cluster = load_cluster("dgx-h100")
    graph = read(tmp_path, cluster, [{**TRANSFER, "src": "host0", "dst": "gpu3"}])
    links = graph.route_links[graph.route_ptr[graph.route[0]] : graph.route_ptr[graph.route[0] + 1]]
    assert [graph.link_names[link] for link in links] == ["host0->pcie1", "pcie1->gpu3"]
    assert graph.route_latency_ps[graph.route[0]] == sum(
        cluster.links[link].latency_ps for link in cluster.route(21, 3)
    )
    assert np.array_equal(graph.link_bytes_per_s, cluster.link_bytes_per_s)


def test_a_cluster_with_circuits_runs_the_file_on_them(tmp_path):
    from trine.cluster import Cluster
    from trine.training.graph_file import run_graph

    (tmp_path / "c.yaml").write_text(
        "devices: [{name: g, count: 2}]\ncircuits: {setup: 1 ms, ports: 2, bandwidth: 24 GB/s, latency: 0 ns}\n"
    )
    cluster = Cluster.from_yaml(tmp_path / "c.yaml")
    names = [device.name for device in cluster.devices]
    tasks = [{"id": "a", "kind": "transfer", "src": names[0], "dst": names[1], "bytes": 24_000_000}]
    path = tmp_path / "g.json"
    path.write_text(json.dumps({"tasks": tasks}))
    _, records = run_graph(path, cluster)
    assert records.end_ps.tolist() == [10**9 + 10**9]  # set up, then 24 MB at 24 GB/s
    with pytest.raises(SpecError, match="run_graph"):
        load_graph(path, cluster)
