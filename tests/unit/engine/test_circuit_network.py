"""Are circuits declared and checked correctly, and are invalid ones refused?"""

import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

import trine
from trine.cli.main import app
from trine.cluster import Circuits, Cluster, Device, load_cluster
from trine.engine.circuit_model import CircuitModel, CircuitSwitching, IdleCircuit, network_on, usual_network
from trine.engine.models import (
    BUILT_IN,
    EqualSplit,
    FairSharing,
    StoreAndForward,
    is_compiled,
    network_model,
    why_unfolded,
)
from trine.engine.reference import Reference
from trine.engine.run import run
from trine.errors import InputError, SimulationError, SpecError
from trine.graph.builder import TaskGraphBuilder
from trine.testing import check_network_model

MS = 10**9
NUMBERS = Circuits(setup_ps=20 * MS, ports=2, bytes_per_s=10**9, latency_ps=0)
FILE = """
devices: [{name: gpu, count: 4}]
circuits: {setup: 20 ms, ports: 2, bandwidth: 1 GB/s, latency: 0}
"""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ports": 0}, "circuits.ports: must be a whole number from 1 to"),
        ({"setup_ps": -1}, "circuits.setup_ps"),
        ({"bytes_per_s": 0}, "circuits.bytes_per_s"),
        ({"latency_ps": 1.5}, "circuits.latency_ps"),
        ({"buffer_bytes": 0}, "circuits.buffer_bytes"),
        ({"ports": True}, "circuits.ports"),
    ],
)
def test_numbers_that_cannot_be(change, message):
    with pytest.raises(SpecError, match=message):
        replace(NUMBERS, **change)


def written(tmp_path, text):
    path = tmp_path / "machine.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("buffer", ["", ", buffer: 64 MiB"])
def test_files_are_read_and_written_back(tmp_path, buffer):
    text = FILE.replace("latency: 0}", f"latency: 0{buffer}}}")
    machine = Cluster.from_yaml(written(tmp_path, text))
    assert machine.circuits == replace(NUMBERS, buffer_bytes=64 * 2**20 if buffer else None)
    assert Cluster.from_yaml(written(tmp_path, machine.to_yaml())) == machine
    assert machine.route(0, 3) == ()
    ptr, links = machine.routes(np.array([0, 1]), np.array([3, 1]))
    assert (ptr.tolist(), links.tolist()) == ([0, 0, 0], [])
    assert machine.fingerprint != replace(machine, circuits=replace(NUMBERS, ports=3)).fingerprint


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("setup: 20 ms", "setup: 20", "circuits.setup: a time needs a unit"),
        ("setup: 20 ms, ", "", "circuits.setup: is missing"),
        ("ports: 2", "port: 2", "circuits: unknown key 'port'; did you mean 'ports'"),
        ("ports: 2", "ports: 0", "circuits.ports"),
        ("latency: 0", "latency: 0, buffer: 0", "circuits.buffer: must be positive"),
        ("latency: 0", "", "circuits.latency: is missing"),
    ],
)
def test_faults_of_files_are_named(tmp_path, old, new, message):
    with pytest.raises(SpecError, match=message):
        Cluster.from_yaml(written(tmp_path, FILE.replace(old, new)))


def test_a_cluster_with_circuits_is_no_node_of_another(tmp_path):
    written(tmp_path, FILE)
    both = "nodes: [{file: machine.yaml}, {file: machine.yaml}]\nfabric: {kind: none, link: ib-ndr}"
    (tmp_path / "both.yaml").write_text(both)
    with pytest.raises(SpecError, match="the circuits of 'machine' end at its GPUs"):
        Cluster.from_yaml(tmp_path / "both.yaml")


def test_circuits_join_nodes_that_nothing_else_joins(tmp_path):
    text = "node: {preset: dgx-a100, count: 2}\nfabric: {kind: none, link: ib-hdr}\n" + FILE.splitlines()[2]
    machine = Cluster.from_yaml(written(tmp_path, text))
    assert machine.route(0, 15) == ()
    assert len(machine.route(0, 7)) == 2
    result = trine.simulate("vgg13-h100-b128", trine.Plan(dp=16), cluster=machine, gpu="a100-80gb")
    assert (result.records.network, result.plan["network"]) == ("circuit", "circuit")
    assert result.communication_s > 0.02


def test_the_network_goes_with_the_cluster():
    wafer, wires = load_cluster("wafer-a100-photonic"), load_cluster("wafer-a100-mesh")
    assert (usual_network(wafer), usual_network(wires), usual_network(None)) == ("circuit", "fair", "fair")
    chosen = network_on(wafer, None)
    assert isinstance(chosen, CircuitSwitching)
    assert chosen.circuits == wafer.circuits == replace(CircuitSwitching().circuits, latency_ps=5000)
    assert network_on(wires, None) == "fair"
    own = CircuitSwitching(wafer.circuits)
    assert network_on(wafer, own) is own
    for network in ("fair", "fifo", EqualSplit()):
        with pytest.raises(InputError, match=r"are joined by circuits, which the network '.*' does not model"):
            network_on(wafer, network)
    for network in ("circuit", own):
        with pytest.raises(InputError, match="cluster 'wafer-a100-mesh' has none"):
            network_on(wires, network)
        with pytest.raises(InputError, match="no machine was described"):
            network_on(None, network)
    with pytest.raises(InputError, match="give the model the cluster's"):
        network_on(wafer, CircuitSwitching(NUMBERS))
    with pytest.raises(InputError, match="but links join all GPUs of"):
        network_on(replace(wires, circuits=NUMBERS), None)


def test_the_mesh_has_the_wafers_shape():
    mesh = load_cluster("wafer-a100-mesh")
    assert len(mesh.gpus) == len(load_cluster("wafer-a100-photonic").gpus) == 12 * 7
    assert len(mesh.links) == 2 * (12 * 6 + 11 * 7)
    assert all(len(mesh.route(gpu, (gpu + 1) % 84)) == 1 for gpu in mesh.gpus)
    degrees = sorted(len(mesh.links_from(gpu)) for gpu in mesh.gpus)
    assert degrees == [2] * 4 + [3] * (2 * 5 + 2 * 10) + [4] * (5 * 10)
    assert max(len(mesh.route(0, gpu)) for gpu in mesh.gpus) == 11 + 6


def test_transfers_of_nobody_are_refused():
    builder = TaskGraphBuilder([], [])
    builder.transfer(0, 1, [], 10, name="lost")
    graph = builder.build()
    lost = replace(graph, peer=np.array([-1], np.int32))
    with pytest.raises(InputError, match=r"'lost' .* needs a circuit, but names not both of its ends"):
        run(lost, network="circuit")


def test_every_model_says_whether_it_folds():
    assert [why_unfolded(model) for model in (FairSharing(), EqualSplit())] == [None, None]
    assert "one after the other" in why_unfolded(StoreAndForward())
    assert "order of tasks" in why_unfolded(network_model("circuit"))
    assert all(hasattr(network_model(name), "folds") for name in BUILT_IN)

    class Silent:
        name = "silent"

        def rates(self, routes, capacity):
            return [1.0] * len(routes)

    assert "'silent' has no weighted_rates" in why_unfolded(Silent())


class Newest(CircuitSwitching):
    """Policy that tears down the most recently used circuit first."""

    name = "newest"

    def victim(self, idle):
        return len(idle) - 1


def test_another_rule_of_teardown_runs_in_the_reference_engine():
    check_network_model(lambda: Newest(NUMBERS))
    assert isinstance(Newest(), CircuitModel)
    assert not isinstance(FairSharing(), CircuitModel)
    assert not is_compiled(Newest())
    builder = TaskGraphBuilder([], [])
    for number, peer in enumerate((1, 2, 3, 1)):
        builder.transfer(0, peer, [], 1000, [number - 1] if number else [])
    graph = builder.build()
    with pytest.raises(InputError, match="runs with engine='reference' only"):
        run(graph, network=Newest(NUMBERS))
    newest = run(graph, network=Newest(NUMBERS), engine="reference").end_ps[-1]
    oldest = run(graph, network=CircuitSwitching(NUMBERS)).end_ps[-1]
    assert oldest - newest == NUMBERS.setup_ps


class Broken(CircuitSwitching):
    """Circuit switching with one fault."""

    name = "broken"

    def __init__(self, fault):
        super().__init__(NUMBERS)
        self.fault, self.calls = fault, 0

    def victim(self, idle):
        self.calls += 1
        match self.fault:
            case "range":
                return len(idle)
            case "float":
                return 0.0
            case "changes":
                idle.reverse()
            case "state":
                return self.calls % len(idle)
        return super().victim(idle)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("range", r"victim\(\) is a position, 0 to \d, got \d"),
        ("float", r"victim\(\) is a position, 0 to \d, got 0\.0"),
        ("changes", r"victim\(\) must not change its argument"),
        ("state", "another victim when asked again"),
    ],
)
def test_broken_models(fault, message):
    with pytest.raises(AssertionError, match=message):
        check_network_model(lambda: Broken(fault))


def test_a_choice_that_cannot_be_ends_the_run():
    builder = TaskGraphBuilder([], [])
    for number in range(4):
        builder.transfer(0, number + 1, [], 1000, [number - 1] if number else [])
    with pytest.raises(SimulationError, match=r"victim must be 0 to 1, got 2"):
        run(builder.build(), network=Broken("range"), engine="reference")


@pytest.mark.parametrize(
    ("forge", "message"),
    [
        (lambda records, history: (records, history[:-1]), "without a circuit"),
        (
            lambda records, history: (replace(records, end_ps=records.end_ps - 1), history),
            "starts before|ends at|withou",
        ),
        (lambda records, history: (records, [*history, *history]), "set up twice"),
        (lambda records, history: (records, [history[0]._replace(what="torn down"), *history]), "but does not stand"),
        (lambda records, history: (records, [*history, history[0]._replace(ends=(0, 9))]), "has 2 circuits"),
    ],
)
def test_the_check_of_runs_catches_what_it_is_there_for(forge, message):
    from trine.testing.circuits import require_lawful_circuits

    model = CircuitSwitching(replace(NUMBERS, ports=1))
    builder = TaskGraphBuilder([], [])
    for _ in range(3):
        builder.transfer(0, 1, [], 1000)
    reference = Reference(builder.build(), model)
    reference.run()
    records, history = forge(reference.records(), reference.circuits.history)
    with pytest.raises(AssertionError, match=message):
        require_lawful_circuits(reference.graph, records, history, model, "here")


def test_the_longest_idle_goes_and_ties_go_by_task():
    assert CircuitSwitching().victim([IdleCircuit(5, 1), IdleCircuit(3, 9), IdleCircuit(3, 8)]) == 2


def trine_says(*arguments):
    done = CliRunner().invoke(app, arguments)
    return done.exit_code, done.output + done.stderr


ALONE = ("--circuit-setup", "20 ms", "--circuit-ports", "8", "--circuit-bandwidth", "60.5 GB/s")
TRAIN = ("train", "vgg13-h100-b128", "--parallel", "ddp", "--gpus", "4")


def test_options_describe_a_machine_of_their_own(tmp_path):
    out = tmp_path / "out.json"
    status, said = trine_says(*TRAIN, *ALONE, "--json", str(out))
    assert status == 0, said
    assert "circuits have no latency" in said
    answer = json.loads(out.read_text())
    same = Cluster(
        name="same",
        devices=[Device(name=f"gpu{i}") for i in range(4)],
        links=(),
        circuits=Circuits(setup_ps=20 * MS, ports=8, bytes_per_s=60_500_000_000, latency_ps=0),
    )
    result = trine.simulate("vgg13-h100-b128", trine.Plan(dp=4), cluster=same)
    assert answer["plan"]["network"] == "circuit"
    assert answer["step_time_s"] == result.step_time_s
    assert any("8 circuits a GPU of 60.5 GB/s, set up in 20 ms" in row.detail for row in result.evidence)


def test_options_change_single_numbers_of_the_cluster(tmp_path):
    sizes = ("collective", "all_reduce", "--size", "1M", "--cluster", "wafer-a100-photonic", "--gpus", "8")
    times = []
    for more in ((), ("--circuit-setup", "1 ms"), ("--circuit-setup", "1 ms", "--network", "circuit")):
        out = tmp_path / "out.json"
        status, said = trine_says(*sizes, *more, "--json", str(out))
        assert status == 0, said
        times.append(json.loads(out.read_text())["rows"][0]["time_us"])
    assert times[0] - times[1] == pytest.approx(19_000)
    assert times[1] == times[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*TRAIN, *ALONE[:4]), "--circuit-bandwidth is missing"),
        ((*TRAIN, *ALONE, "--network", "fair"), "does not model"),
        ((*TRAIN, *ALONE, "--topology", "ring", "--bandwidth", "1 GB/s"), "leaves no circuits"),
        ((*TRAIN, *ALONE, "--cluster", "dgx-a100"), "but links join all GPUs"),
        ((*TRAIN, "--cluster", "dgx-a100", "--network", "circuit"), "'dgx-a100' has none"),
        ((*TRAIN, *ALONE[:3], "0", *ALONE[4:]), "--circuit-ports must be at least 1"),
        ((*TRAIN, *ALONE, "--collective-costs", "library"), "links of a known kind"),
        (("collective", "all_reduce", "--size", "1M", *ALONE), "circuits need a number of GPUs"),
        (("collective", "all_reduce", "--size", "1M", *ALONE, "--gpus", "4", "--protocol", "simple"), "on links only"),
    ],
)
def test_what_cannot_matter_or_is_missing(arguments, message):
    status, said = trine_says(*arguments)
    assert status != 0
    assert message in " ".join(said.split())


def test_the_formulas_of_libraries_are_not_asked_about_circuits():
    with pytest.raises(InputError, match="libraries know links only"):
        trine.Collectives(load_cluster("wafer-a100-photonic"), range(4))


def test_show(tmp_path):
    status, said = trine_says("cluster", "show", "wafer-a100-photonic", "--gpus", "3", "--json", str(tmp_path / "o"))
    assert status == 0, said
    document = json.loads((tmp_path / "o").read_text())
    assert document["circuits"]["ports"] == 8
    status, said = trine_says("cluster", "show", "wafer-a100-photonic", "--gpus", "3")
    assert "GPUs without links: 8 circuits a GPU of 60.5 GB/s, set up in 20 ms, latency 5 ns" in said
    assert "60.5/0.005" in said


def test_graph_files_run_on_circuits(tmp_path):
    graph = tmp_path / "g.json"
    graph.write_text(json.dumps({"tasks": [{"id": "a", "kind": "transfer", "src": 0, "dst": 5, "bytes": "60.5 MB"}]}))
    status, said = trine_says("run", str(graph), "--cluster", "wafer-a100-photonic")
    assert status == 0, said
    assert f"({21 * MS + 5000} ps)" in said
