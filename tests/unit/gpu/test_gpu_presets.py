"""Do the insides of GPUs have all their numbers, with sources, and do files that cannot be right say where and why?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from cpu_time import computes_for_less_than

from trine.cluster import load_cluster, load_gpu
from trine.common.spec import dump_yaml
from trine.errors import InputError, PlanError, SpecError
from trine.gpu.fabric import GpuFabric
from trine.gpu.model import L2, GpuModel, Monitor, values
from trine.gpu.model.derived import flag_read_ps
from trine.gpu.model.files import gpu_model_of, known_gpu_models, load_gpu_model, to_dict
from trine.gpu.model.options import ModelOptions, check_model, check_numbers

GENERIC = to_dict(load_gpu_model("astra3-generic"))


def file_of(folder: Path, text: str, name: str = "own.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def changed(folder: Path, group: str, **fields: object) -> Path:
    """The generic GPU's file with some fields of a group replaced."""
    return file_of(folder, yaml.safe_dump({**GENERIC, group: {**GENERIC[group], **fields}}))


def test_the_promised_models_are_there() -> None:
    first = {"astra3-generic", "a100-80gb", "eidola", "h100-sxm", "h200", "mi300x"}
    assert set(known_gpu_models()) >= first | {"a40", "b200", "gb200", "h800-sxm", "l40s", "mi355x", "rtx3090"}


@pytest.mark.parametrize("name", known_gpu_models())
def test_every_number_of_a_preset_says_where_it_is_from(name: str) -> None:
    model = load_gpu_model(name)
    assert model.name == name
    assert model.notes
    paths = [field.path for field, _ in values(model)]
    assert len(paths) >= 30
    assert sorted(model.sources) == sorted(model.evidence) == sorted(paths)
    for path in paths:
        assert model.evidence[path] in ("measured", "modelled", "assumed")
        assert "no source given" not in model.sources[path], path
        if model.evidence[path] != "assumed":
            assert not model.sources[path].startswith("assumed"), path


@pytest.mark.parametrize("name", known_gpu_models())
def test_models_agree_with_the_data_sheets_of_the_operator_level(name: str) -> None:
    model, gpu = load_gpu_model(name), load_gpu(name)
    assert model.num_cus == gpu.num_compute_units
    assert model.memory.num_channels * model.memory.bytes_per_s == pytest.approx(gpu.memory_bytes_per_s, rel=0.005)


@pytest.mark.parametrize(
    ("cluster", "links"),
    [
        ("dgx-a100", 1),
        ("dgx-h100", 1),
        ("hgx-h200", 1),
        ("hgx-h800", 1),
        ("mi300x-node", 7),
        ("astra3-generic", 1),
        ("eidola", 1),
        ("hgx-b200", 1),
        ("gb200-nvl72", 1),
        ("mi355x-node", 7),
    ],
)
def test_models_have_a_port_for_each_lane_of_their_clusters(cluster: str, links: int) -> None:
    machine = load_cluster(cluster)
    model = gpu_model_of(machine, machine.gpus)
    out = [link for link in machine.links if link.source == 0 and link.link_class == "scale-up"]
    assert len(out) == links
    assert model.ports.count % links == 0
    if cluster == "dgx-h100":
        assert out[0].peak_bytes_per_s == model.ports.count * 25 * 10**9


def test_the_generic_gpu_is_the_papers() -> None:
    model = load_gpu_model("astra3-generic")
    assert (model.noc.kind, model.noc.rows, model.noc.cols) == ("mesh", 4, 8)
    assert model.num_cus == 4 * 32
    assert model.memory.num_channels * model.memory.bytes_per_s == 4 * 2**40
    machine = load_cluster("astra3-generic")
    assert len(machine.gpus) == 128
    route = machine.route(0, 127)
    assert machine.route_latency_ps(route) == 10**6
    assert {machine.links[link].bytes_per_s for link in route} == {8 * 128 * 2**30}
    assert (model.line_bytes, model.ports.count, model.ports.latency_ps, model.poll_ps) == (128, 8, 0, None)
    assert len(load_cluster("astra3-generic", gpus=16).gpus) == 16


def test_eidolas_gpu_is_the_papers_and_its_cluster_has_255_peers() -> None:
    model = load_gpu_model("eidola")
    assert (model.num_cus, model.line_bytes) == (43, 64)
    assert 1024 * 1024 * 4 // model.line_bytes == 65_536  # the paper: about 66 K reads that are not of flags
    assert model.poll_ps is not None
    assert model.monitor is None
    assert (model.poll_ps, model.poll_turn_ps) == (4 * model.cycle_ps, 4 * 4 * model.cycle_ps)
    period = model.poll_ps + model.poll_turn_ps + flag_read_ps(model, uncached=True)
    assert 4 * 10**6 / period == pytest.approx((660 - 134) / 40, rel=0.02)  # reads a us of four, as the paper's figure
    machine = load_cluster("eidola")
    assert len(machine.gpus) == 256
    route = machine.route(0, 255)
    assert [machine.seen_by_messages(link) for link in route] == [(8 * 50 * 10**9, 300_000)] * 2
    assert len(load_cluster("eidola", gpus=4).gpus) == 4
    with computes_for_less_than(0.1):
        again = load_cluster("eidola", gpus=255)
        assert len(again.gpus) == 255


def test_loads_and_stores_cross_pcie_switches_and_no_hosts() -> None:
    pair = load_cluster("a40-pcie")
    (way,) = GpuFabric(pair, pair.gpus, gpu_model_of(pair, pair.gpus)).paths(0, 1)
    assert [(hop.num_lanes, hop.bytes_per_s, hop.after_ps) for hop in way.hops] == [(1, 31_500_000_000, 450_000)] * 2
    server = load_cluster("l40s-pcie")
    fabric = GpuFabric(server, server.gpus, gpu_model_of(server, server.gpus))
    assert len(fabric.paths(0, 3)) == 1
    with pytest.raises(InputError, match="through 'pcie0->host0', which loads and stores cannot cross"):
        fabric.paths(0, 4)
    nodes = load_cluster("a40-pcie", nodes=2)
    with pytest.raises(InputError, match="cannot cross"):
        GpuFabric(nodes, nodes.gpus, gpu_model_of(nodes, nodes.gpus)).paths(0, 2)


def test_models_are_found_by_what_drivers_call_them() -> None:
    assert load_gpu_model("NVIDIA H100 80GB HBM3") is load_gpu_model("h100-sxm")
    with pytest.raises(SpecError, match="no GPU model 'h100-sxn'; did you mean 'h100-sxm'"):
        load_gpu_model("h100-sxn")


def test_the_gpus_of_a_group_name_their_model() -> None:
    with pytest.raises(SpecError, match=r"no GPU model 'v100'; known: a100-80gb, .*--gpu-model FILE"):
        gpu_model_of(load_cluster("dgx1-v100"), [0, 1])
    mixed = load_cluster("dgx-h100")
    devices = (replace(mixed.devices[0], gpu="h200"), *mixed.devices[1:])
    with pytest.raises(PlanError, match="h100-sxm, h200: name the model"):
        gpu_model_of(replace(mixed, devices=devices), [0, 1])
    unnamed = replace(mixed, devices=tuple(replace(device, gpu=None) for device in mixed.devices))
    with pytest.raises(PlanError, match="are unnamed"):
        gpu_model_of(unnamed, [0, 1])


@pytest.mark.parametrize("name", known_gpu_models())
def test_files_written_read_back_equal(name: str, tmp_path: Path) -> None:
    model = load_gpu_model(name)
    assert load_gpu_model(file_of(tmp_path, dump_yaml(to_dict(model)))) == model


def test_a_file_stands_on_a_preset_and_says_only_what_differs(tmp_path: Path) -> None:
    base = load_gpu_model("h100-sxm")
    own = load_gpu_model(
        file_of(
            tmp_path,
            "base: h100-sxm\nmemory: {latency: 300 ns, bandwidth: 20 GB/s}\nl2: none\nkernels: {poll: none}\n"
            "sources: {memory: our own chase}\nevidence: {memory.latency: measured}\n",
        )
    )
    assert own.name == "own"
    assert own == replace(
        base,
        name="own",
        memory=replace(base.memory, latency_ps=300_000, bytes_per_s=20 * 10**9),
        l2=None,
        poll_ps=None,
        evidence=own.evidence,
        sources=own.sources,
    )
    assert (own.evidence["memory.latency"], own.sources["memory.latency"]) == ("measured", "our own chase")
    assert (own.evidence["memory.bandwidth"], own.sources["memory.bandwidth"]) == ("assumed", "our own chase")
    assert own.sources["kernels.poll"] == "no source given in own.yaml"
    assert own.sources["memory.channels"] == base.sources["memory.channels"]
    assert not any(path.startswith("l2.") for path in own.sources)
    second = load_gpu_model(file_of(tmp_path, "name: second\nbase: own.yaml\ncus: {unroll: 4}\n", "second.yaml"))
    assert second == replace(own, name="second", unroll=4, evidence=second.evidence, sources=second.sources)


def test_a_file_may_have_a_monitor(tmp_path: Path) -> None:
    own = load_gpu_model(file_of(tmp_path, "base: eidola\nmonitor: {capacity: 0, wakeup: 20 ns}\n"))
    assert own.monitor == Monitor(capacity=0, wakeup_ps=20_000)
    assert own.evidence["monitor.wakeup"] == "assumed"
    assert load_gpu_model(file_of(tmp_path, dump_yaml(to_dict(own)), "again.yaml")) == own
    without = load_gpu_model(file_of(tmp_path, "base: own.yaml\nmonitor: none\n", "without.yaml"))
    assert without.monitor is None
    assert not any("monitor" in path for path in (*without.sources, *without.evidence))


def test_a_mesh_may_become_a_crossbar_and_back(tmp_path: Path) -> None:
    crossbar = load_gpu_model(file_of(tmp_path, "base: astra3-generic\nnoc: {kind: crossbar}\n"))
    assert (crossbar.noc.kind, crossbar.noc.rows, crossbar.noc.cols) == ("crossbar", 0, 0)
    assert "noc.rows" not in crossbar.sources
    mesh = "base: h100-sxm\nnoc: {kind: mesh, rows: 4, cols: 10}\nports: {count: 16}\n"
    assert load_gpu_model(file_of(tmp_path, mesh)).noc.cols == 10


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("base: h100-sxn", r"base: no GPU model 'h100-sxn'; did you mean 'h100-sxm'"),
        ("base: 7", r"base: must be the name of a GPU model or of a file, got 7"),
        ("base: own.yaml", r"base: stands on more than 8 files, or on itself"),
        ("base: other.yaml", r"other.yaml: cannot be read"),
        ("clock: 1 GHz", r"line: is missing"),
        ("[]", r"must be a mapping"),
        ("base: h100-sxm\nclok: 1 GHz", r"unknown key 'clok'; did you mean 'clock'"),
        ("base: h100-sxm\nclock: 1", r"clock: a clock needs a unit, such as '1.98 GHz'"),
        ("base: h100-sxm\nclock: 1 kHz", r"clock: a clock must be between 1 MHz and 1 THz"),
        ("base: h100-sxm\nmemory: 5", r"memory: must be a mapping, got 5"),
        ("base: h100-sxm\nmemory: {latnecy: 1 ns}", r"memory: unknown key 'latnecy'; did you mean 'latency'"),
        ("base: h100-sxm\nmemory: {latency: 1}", r"memory.latency: a time needs a unit"),
        ("base: h100-sxm\nmemory: {bandwidth: 0 B/s}", r"memory.bandwidth: a bandwidth must be positive"),
        ("base: h100-sxm\ncus: {count: 0}", r"cus.count: should be greater than or equal to 1, got 0"),
        ("base: h100-sxm\ncus: {count: 132.0}", r"cus.count: should be a valid integer, got 132.0"),
        ("base: h100-sxm\ncus: {posted_stores: maybe}", r"cus.posted_stores: should be a valid boolean"),
        ("base: h100-sxm\nkernels: {launch: 2 s}", r"kernels.launch: must be from 0 to"),
        ("base: h100-sxm\nnoc: {rows: 4}", r"noc.rows: a crossbar has no rows; they go with 'kind: mesh'"),
        ("base: h100-sxm\nnoc: {kind: mesh}", r"noc.rows: is missing: a mesh has 'rows' and 'cols'"),
        ("base: h100-sxm\nnoc: {kind: ring}", r"noc.kind: should be 'mesh' or 'crossbar', got 'ring'"),
        ("base: h100-sxm\nmemory: {interleave: 100 B}", r"interleave: 100 B is no multiple of the line of 128 B; 128"),
        ("base: h100-sxm\nline: 0", r"line: must be from 1 to 1048576, got 0"),
        ("base: h100-sxm\nline: 192 B", r"memory.interleave: 128 B is no multiple of the line of 192 B; 192 B is"),
        ("base: h100-sxm\nl2: {capacity: 51 MiB}", r"l2.capacity: 51 MiB is no whole number of sets .* 53411840 B is"),
        ("base: eidola\nmonitor: {capacity: -1, wakeup: 0}", r"monitor.capacity: should be greater than or equal to 0"),
        ("base: eidola\nmonitor: {capacity: 8}", r"monitor.wakeup: is missing"),
        ("base: eidola\nmonitor: {capacity: 8, wakeup: 5}", r"monitor.wakeup: a time needs a unit"),
        ("base: eidola\nmonitor: {capacity: 8, wakup: 5 ns}", r"monitor: unknown key 'wakup'; did you mean 'wakeup'"),
        ("base: astra3-generic\nmonitor: {capacity: 8, wakeup: 0}", r"kernels.poll: is missing: wavefronts poll if"),
        ("base: eidola\nmonitor: none\nsources: {monitor: x}", r"sources.monitor: this file does not set 'monitor'"),
        ("base: h100-sxm\nsources: {memori: x}", r"sources.memori: unknown field; did you mean 'memory'"),
        ("base: h100-sxm\nsources: {memory: x}", r"sources.memory: this file does not set 'memory'"),
        ("base: h100-sxm\nclock: 1 GHz\nevidence: {clock: guessed}", r"evidence.clock: unknown word 'guessed'"),
        ("base: h100-sxm\nclock: 1 GHz\nevidence: 3", r"evidence: must be a mapping of fields"),
    ],
)  # fmt: skip
def test_wrong_files_name_field_and_what_would_do(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        load_gpu_model(file_of(tmp_path, text))
    assert "yaml" in str(caught.value)


def test_channels_and_ports_spread_evenly_over_the_edges_of_a_mesh(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"memory.channels: 24 do not spread evenly over the 16 routers .*; 16 would"):
        load_gpu_model(changed(tmp_path, "memory", channels=24))
    with pytest.raises(
        SpecError, match=r"ports.count: 9 do not spread evenly over the 8 routers of left and right column; 8"
    ):
        load_gpu_model(changed(tmp_path, "ports", count=9))
    assert load_gpu_model(changed(tmp_path, "memory", channels=4)).memory.num_channels == 4
    assert load_gpu_model(changed(tmp_path, "cus", count=100)).num_cus == 100


def test_a_model_made_in_python_is_checked_by_the_same_rules() -> None:
    model = load_gpu_model("h100-sxm")
    bad: list[tuple[GpuModel, str]] = [
        (replace(model, unroll=0), "GPU model 'h100-sxm': cus.unroll: must be from 1 to"),
        (replace(model, launch_ps=-1), "kernels.launch: must be from 0"),
        (replace(model, num_cus=1 << 20), "cus.count: must be from 1 to 16384"),
        (replace(model, header_bytes=0), "header: must be from 1"),
        (replace(model, monitor=Monitor(capacity=-1, wakeup_ps=0)), "monitor.capacity: must be from 0 to"),
        (replace(model, monitor=Monitor(capacity=1, wakeup_ps=-1)), "monitor.wakeup: must be from 0 to"),
        (replace(model, monitor=Monitor(capacity=1, wakeup_ps=0), poll_ps=None), "kernels.poll: is missing: wave"),
        (replace(model, noc=replace(model.noc, kind="ring")), "unknown kind 'ring'"),
        (replace(model, ports=replace(model.ports, choice="hash")), "ports.choice.*did you mean 'hashed'"),
        (replace(model, ports=replace(model.ports, arbitration="faire")), "did you mean 'fair'"),
        (replace(model, l2=L2(capacity_bytes=1, ways=1, bytes_per_s=1, latency_ps=0)), "l2.capacity"),
    ]
    for wrong, message in bad:
        with pytest.raises(SpecError, match=message):
            check_model(wrong)
    for wrong, message in bad:
        if wrong.monitor is not None:
            with pytest.raises(SpecError, match=message):
                check_numbers(wrong)
    assert check_model(model) is model


def test_options_replace_numbers_and_say_so() -> None:
    model = load_gpu_model("h100-sxm")
    asked = ModelOptions(
        unroll=8, max_outstanding=64, arbitration="fair", port_choice="hashed", num_cus=16, workgroups_per_cu=1,
        posted_stores=False, poll="100 ns", launch=0,
    ).of(model)  # fmt: skip
    assert (asked.unroll, asked.max_outstanding, asked.num_cus, asked.workgroups_per_cu) == (8, 64, 16, 1)
    assert (asked.ports.arbitration, asked.ports.choice, asked.posted_stores) == ("fair", "hashed", False)
    assert (asked.poll_ps, asked.launch_ps) == (100_000, 0)
    told = {path for path, text in asked.sources.items() if text == "given as an option"}
    assert told == {
        "cus.unroll", "cus.max_outstanding", "cus.count", "cus.workgroups", "cus.posted_stores", "ports.arbitration",
        "ports.choice", "kernels.poll", "kernels.launch",
    }  # fmt: skip
    assert ModelOptions(poll="none").of(model).poll_ps is None
    assert ModelOptions().of(model) == model
    assert ModelOptions(max_outstanding=4).of(model).max_outstanding == 4


def test_ways_to_wait() -> None:
    model = load_gpu_model("eidola")
    asked = ModelOptions(sync="mwait").of(model)
    assert asked.monitor == Monitor(capacity=43 * 40, wakeup_ps=100_000)  # room for all that may wait
    assert asked.poll_ps == model.poll_ps
    assert asked.evidence["monitor.wakeup"] == "assumed"
    assert asked.sources["monitor.wakeup"].startswith("assumed: ")
    assert ModelOptions(sync="mwait", num_cus=2).of(model).monitor == Monitor(capacity=80, wakeup_ps=100_000)
    small = ModelOptions(monitor_capacity=0, wakeup=5, poll="1 us").of(asked)
    assert (small.monitor, small.poll_ps) == (Monitor(capacity=0, wakeup_ps=5), 1_000_000)
    assert small.sources["monitor.capacity"] == small.sources["monitor.wakeup"] == "given as an option"
    assert ModelOptions(sync="mwait", monitor_capacity=7, wakeup="1 us").of(model).monitor == Monitor(
        capacity=7, wakeup_ps=1_000_000
    )
    assert ModelOptions(sync="spin").of(asked) == model
    spun = ModelOptions(sync="spin", poll=0).of(load_gpu_model("astra3-generic"))
    assert (spun.poll_ps, spun.monitor) == (0, None)
    slept = ModelOptions(sync="sleep").of(asked)
    assert (slept.poll_ps, slept.monitor) == (127 * 64 * 1000, None)  # the longest s_sleep at 1 GHz
    assert "monitor.capacity" not in slept.sources
    assert ModelOptions(sync="sleep", sleep="20 us").of(model).poll_ps == 20_000_000


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("eidola", {"sync": "spim"}, "unknown --sync 'spim'; did you mean 'spin'"),
        ("eidola", {"sleep": "5 us"}, "--sleep cannot matter without --sync sleep"),
        ("eidola", {"sync": "mwait", "sleep": 5}, "--sleep cannot matter without --sync sleep"),
        ("eidola", {"sync": "sleep", "poll": 5}, "--poll cannot matter with --sync sleep"),
        ("eidola", {"sync": "sleep", "sleep": "5"}, "--sleep needs a unit"),
        ("eidola", {"sync": "sleep", "sleep": -5}, "--sleep is not negative"),
        ("eidola", {"sync": "spin", "poll": "none"}, "--poll none does not go with spin"),
        ("eidola", {"sync": "spin", "monitor_capacity": 4}, "--monitor-capacity cannot matter without --sync mwait"),
        ("eidola", {"wakeup": "5 ns"}, "--monitor-wakeup cannot matter without --sync mwait"),
        ("eidola", {"sync": "mwait", "monitor_capacity": -1}, "--monitor-capacity is a number from 0"),
        ("eidola", {"sync": "mwait", "monitor_capacity": True}, "--monitor-capacity is a number from 0"),
        ("eidola", {"sync": "mwait", "wakeup": -1}, "--monitor-wakeup is not negative"),
        ("eidola", {"sync": "mwait", "wakeup": "3 s"}, "monitor.wakeup: must be from 0"),
        ("astra3-generic", {"sync": "mwait"}, "--sync mwait needs --poll: GPU 'astra3-generic' has no polling"),
        ("astra3-generic", {"sync": "spin"}, "--sync spin needs --poll"),
    ],
)
def test_ways_to_wait_that_cannot_be_are_refused(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ModelOptions(**options).of(load_gpu_model(name))  # type: ignore[arg-type]


def test_a_monitor_needs_polls() -> None:
    watched = ModelOptions(sync="mwait").of(load_gpu_model("eidola"))
    with pytest.raises(InputError, match="--poll none: GPU 'eidola' has a monitor"):
        ModelOptions(poll="none").of(watched)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unroll": 0}, "--unroll is a number from 1"),
        ({"unroll": True}, "--unroll is a number from 1"),
        ({"unroll": 512}, "--unroll 512 cannot matter: a compute unit has 256 requests in flight"),
        ({"unroll": 8, "max_outstanding": 4}, "--unroll 8 cannot matter"),
        ({"max_outstanding": -1}, "--max-outstanding is a number from 1"),
        ({"num_cus": 1 << 20}, "--num-cus is a number from 1 to 16384"),
        ({"arbitration": "fare"}, "unknown --arbitration 'fare'; did you mean 'fair'"),
        ({"port_choice": "random"}, "unknown --port-choice 'random'; known: hashed, interleaved"),
        ({"poll": "5"}, "--poll needs a unit"),
        ({"poll": "never"}, "--poll must be a number with a unit"),
        ({"launch": -5}, "--launch is not negative"),
        ({"launch": "3 s"}, "kernels.launch: must be from 0"),
    ],
)
def test_options_that_cannot_be_or_cannot_matter_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ModelOptions(**options).of(load_gpu_model("h100-sxm"))  # type: ignore[arg-type]


def test_one_port_leaves_no_choice() -> None:
    model = load_gpu_model("h100-sxm")
    single = replace(model, ports=replace(model.ports, count=1))
    with pytest.raises(InputError, match="--port-choice cannot matter: 'h100-sxm' has one port"):
        ModelOptions(port_choice="hashed").of(single)


@pytest.mark.parametrize(
    ("asked", "meant"),
    [("h1000", "h100"), ("h10", "h100"), ("NVIDIA H100 NVL", "h100"), ("mi300", "mi300x"), ("eidloa", "eidola")],
)
def test_the_nearest_name_may_be_one_that_drivers_and_people_use(asked: str, meant: str) -> None:
    with pytest.raises(SpecError, match=f"no GPU model '{asked}'; did you mean '{meant}'?"):
        load_gpu_model(asked)
    load_gpu_model(meant)
