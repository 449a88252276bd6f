"""Do dotted fields change the files that questions read, and name the nearest field on a miss?"""

from __future__ import annotations

import itertools

import pytest

import trine
from trine.cluster import load_cluster
from trine.errors import InputError
from trine.experiments.fields import check_files, with_changed_files
from trine.gpu.model.files import load_gpu_model
from trine.software import load_software


def changed(tmp_path, **settings):
    named = {name.replace("__", "."): value for name, value in settings.items()}
    return with_changed_files(named, tmp_path)[0]


def test_a_link_of_a_cluster_by_the_beginning_of_its_name(tmp_path):
    plain = changed(tmp_path, cluster="dgx-h100", cluster__links__nvlink__bandwidth="300 GB/s")
    cluster, preset = load_cluster(plain["cluster"]), load_cluster("dgx-h100")
    rates = {(a.bytes_per_s, b.bytes_per_s) for a, b in zip(preset.links, cluster.links, strict=True)}
    moved = {pair for pair in rates if pair[0] != pair[1]}
    assert {after for _, after in moved} == {300 * 10**9}
    assert len(moved) == 1
    assert cluster.name == "dgx-h100"
    assert cluster.sources["links.nvlink.bandwidth"] == "set by the experiment"


def test_fields_of_fabric_device_software_and_gpu_model(tmp_path):
    plain = changed(
        tmp_path, cluster="dgx-h100", cluster__fabric__link="ib-xdr", cluster__devices__gpu__gpu="h200",
        software="megatron-core", software__launch__cpu_us_per_kernel=7, software__factors__gpu__value=1.25,
        gpu_model="h100-sxm", gpu_model__l2__capacity="60 MiB",
    )  # fmt: skip
    cluster = load_cluster(plain["cluster"], nodes=2)
    assert cluster.devices[cluster.gpus[0]].gpu == "h200"
    assert any(link.medium == "ib-xdr" for link in cluster.links)
    profile = load_software(plain["software"])
    assert (profile.launch.cpu_us_per_kernel, profile.factors.gpu.value) == (7, 1.25)
    assert load_gpu_model(plain["gpu_model"]).l2.capacity_bytes == 60 * 2**20


def test_a_gpu_model_with_a_base_and_a_user_s_file_with_a_neighbour(tmp_path):
    plain = changed(tmp_path / "x", gpu_model="h200", gpu_model__l2__capacity="60 MiB")
    assert load_gpu_model(plain["gpu_model"]).l2.capacity_bytes == 60 * 2**20
    (tmp_path / "node.yaml").write_text("base: dgx-h100\nname: mine\n")
    pod = tmp_path / "pod.yaml"
    pod.write_text("node: {file: node.yaml, count: 2}\nfabric: {kind: switch, link: ib-ndr}\n")
    plain = changed(tmp_path / "x", cluster=str(pod), cluster__fabric__link="ib-xdr")
    assert len(load_cluster(plain["cluster"]).gpus) == 16


def test_a_workload_gets_model_options(tmp_path):
    plain = changed(tmp_path, workload="model:llama-3-8b", workload__sequence=4096)
    assert plain == {"workload": "model:llama-3-8b,sequence=4096"}
    with pytest.raises(InputError, match="is a trace"):
        changed(tmp_path, workload="vgg13-h100-b128", workload__sequence=4096)


def test_equal_changes_share_a_file_and_have_equal_identities(tmp_path):
    first = with_changed_files({"cluster": "dgx-h100", "cluster.fabric.link": "ib-xdr"}, tmp_path / "a")
    second = with_changed_files({"cluster": "dgx-h100", "cluster.fabric.link": "ib-xdr"}, tmp_path / "b")
    third = with_changed_files({"cluster": "dgx-h100", "cluster.fabric.link": "ib-hdr"}, tmp_path / "b")
    assert first[1] == second[1] != third[1]
    assert first[0] != second[0]
    assert len(list((tmp_path / "b" / "files").iterdir())) == 2


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("cluster.fabrik.link", "ib-xdr", "unknown key 'fabrik'; did you mean 'fabric'"),
        ("cluster.fabric.lnk", "ib-xdr", "unknown key 'lnk'; did you mean 'link'"),
        ("cluster.fabric.link", "ib-xyz", "unknown kind of link 'ib-xyz'"),
        ("cluster.links.nvlinq.bandwidth", "1 GB/s", "no entry 'nvlinq'; did you mean 'nvlink4'"),
        ("cluster.links.nvlink4.bandwidth", 300, "bandwidth"),
        ("cluster.name.first", "x", "no 'first' below 'name'"),
        ("software.lunch.cpu_us_per_kernel", 7, "unknown key 'lunch'; did you mean 'launch'"),
        ("gpu_model.l2.capacty", "1 MiB", "did you mean 'l2.capacity'"),
    ],
)
def test_unknown_fields_name_the_nearest(tmp_path, field, value, problem):
    base = {"cluster": "dgx-h100", "software": "megatron-core", "gpu_model": "h100-sxm"}
    option = field.partition(".")[0]
    with pytest.raises(InputError, match=problem):
        check_files({option: base[option], field: value}, tmp_path)


def test_a_field_without_its_file_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"software\.launch\.cpu_us_per_kernel: changes a file: set software too"):
        check_files({"software.launch.cpu_us_per_kernel": 7}, tmp_path)
    with pytest.raises(InputError, match="cluster: 'no-such' is neither a preset nor a file"):
        check_files({"cluster": "no-such", "cluster.fabric.link": "ib-xdr"}, tmp_path)


@pytest.mark.parametrize(
    ("field", "values", "per_step_us"),
    [
        ("cluster.fabric.latency", "600 ns,1600 ns,2600 ns", 4.0),
        ("cluster.links.nvlink.latency", "350 ns,1350 ns", 28.0),
    ],
)
def test_latencies_of_the_fabric_and_of_links_vary(tmp_path, field, values, per_step_us):
    """The catalogue gives the preset's answer. A tree's message crosses 4 ends of the fabric and 28 NVLinks."""
    settings = {"op": "all_reduce", "cluster": "dgx-h100", "nodes": 2, "size": "64K"}
    spec = trine.ExperimentSpec(command="collective", settings=settings, vary={field: values})
    times = trine.sweep(spec, tmp_path / "e", processes=1).to_frame("points")["time_us"].tolist()
    usual = trine.collective("all_reduce", "64K", trine.load_cluster("dgx-h100", nodes=2)).document()["rows"][0]
    assert times[0] == pytest.approx(usual["time_us"])
    steps = [after - before for before, after in itertools.pairwise(times)]
    assert steps == pytest.approx([per_step_us] * len(steps), rel=1e-3)


def test_the_latency_of_a_fabric_is_part_of_its_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("base: dgx-h100\nname: mine\nfabric: {latency: 3 us}\n")
    cluster = trine.load_cluster(path)
    assert cluster.fabric.latency_ps == 3_000_000
    (tmp_path / "again.yaml").write_text(cluster.to_yaml())
    assert trine.load_cluster(tmp_path / "again.yaml") == cluster
    joined = trine.load_cluster(path, nodes=2)
    ends = [link for link in joined.links if link.link_class == "scale-out" and "nic" in link.name]
    assert {link.latency_ps for link in ends} == {3_000_000}
