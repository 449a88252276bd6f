"""GPU files: writing by trine measure, reading by --gpu FILE, and damaged files."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from measured_gpus import FOLDER, ReplayedDevice, facts_of, measured_file, predicted_us, read_times, write_file

import trine
from trine.cli.main import app
from trine.cluster import load_cluster, load_gpu
from trine.cluster.measured_gpu import measured_gpu
from trine.cluster.presets import library_of_gpu
from trine.common.evidence import INTERPOLATED, MODELLED
from trine.compute.power_curve import curve_of, has_tensor_clocks
from trine.compute.tables.machine import generation_of, siblings_of
from trine.compute.tables.operators import AttentionShape, OperatorTables
from trine.errors import InputError, SpecError
from trine.measure.gpu_file import check_target, preset_of, write_gpu_file
from trine.measure.kernels import Kernel, gpu_kernels
from trine.measure.timing import measure_kernels

PEAK, BANDWIDTH, LAUNCH_S = 120e12, 600e9, 3e-6


def made_up_us(kernel):
    """Return microseconds on a GPU of 120 TFLOP/s in 16 bits and 600 GB/s; other precisions by ratios."""
    ratio = {"float8": 0.5, "float32": 8.0, "tfloat32": 2.0}.get(kernel.dtype, 1.0)
    flops = kernel.flops
    if kernel.kind.startswith("attention"):
        batch, heads, _, length, size = kernel.shape
        flops = 2 * batch * heads * length**2 * size * (1.0 if kernel.kind == "attention" else 2.5)
    return 1e6 * (LAUNCH_S + max(ratio * flops / PEAK, kernel.num_bytes / BANDWIDTH))


def made_up_file(path, facts=None, dtypes=("bfloat16", "float32", "float8")):
    kernels = gpu_kernels(dtypes)
    device = ReplayedDevice({kernel: made_up_us(kernel) for kernel in kernels})
    measurement = measure_kernels(device, kernels, budget_s=300, now=device.now)
    return write_file(path, facts or facts_of("Some GPU", "sm_89"), measurement)


@pytest.fixture(scope="module")
def a6000(tmp_path_factory):
    path = tmp_path_factory.mktemp("gpu") / "my-a6000.yaml"
    return measured_file(path, read_times("a6000"), ("bfloat16",), "NVIDIA RTX A6000", "sm_86")[0]


@pytest.fixture(scope="module")
def unknown(tmp_path_factory):
    return made_up_file(tmp_path_factory.mktemp("gpu") / "unknown.yaml")


# The data sheet -------------------------------------------------------------------------------------------------------


def test_a_known_gpu_has_its_data_sheet(a6000):
    spec, preset = load_gpu(a6000), load_gpu("a6000")
    assert spec.name == a6000
    for name in ("memory_bytes", "memory_bytes_per_s", "flop_per_s", "num_compute_units", "power_w", "nvlink", "pcie"):
        assert getattr(spec, name) == getattr(preset, name)
    assert set(spec.sources.values()) == {"data sheet of a6000 in trine"}
    assert generation_of(a6000) == "ampere-gddr"
    assert siblings_of(a6000)[0] == "a6000"
    assert library_of_gpu(a6000) == "nccl"


def test_an_unknown_gpu_has_derived_peaks(unknown):
    """The fastest GEMM is 80 % of the peak, the largest copy 92 % of the bandwidth."""
    spec = load_gpu(unknown)
    largest = Kernel("gemm", "bfloat16", (8192, 16384, 16384))
    assert spec.flop_per_s["bfloat16"] == pytest.approx(largest.flops / made_up_us(largest) * 1e6 / 0.8, rel=0.01)
    assert spec.flop_per_s["float16"] == spec.flop_per_s["bfloat16"]
    assert spec.flop_per_s["float8"] == pytest.approx(2 * spec.flop_per_s["bfloat16"], rel=0.01)
    assert spec.memory_bytes_per_s == pytest.approx(BANDWIDTH / 0.92, rel=0.03)
    assert spec.sources["compute"].startswith("derived")
    assert spec.sources["memory_bandwidth"].startswith("derived")
    assert spec.memory_bytes == 48 << 30
    assert generation_of(unknown) == "ada"
    assert siblings_of(unknown)[0] == "l40s"


def test_a_precision_that_the_data_sheet_does_not_list_has_a_derived_peak(tmp_path):
    """An A100 runs no FP8; a file of one with FP8 rows is readable all the same."""
    path = made_up_file(tmp_path / "gpu.yaml", facts_of("NVIDIA A100-SXM4-80GB", "sm_80"))
    spec = load_gpu(path)
    assert spec.flop_per_s["bfloat16"] == load_gpu("a100-80gb").flop_per_s["bfloat16"]
    assert spec.flop_per_s["float8"] == pytest.approx(2 * PEAK / 0.8, rel=0.02)
    assert spec.sources["compute"].endswith("float8 derived: the fastest GEMM / 0.8")


def test_pytorch_s_clock_and_bus_give_the_bandwidth(tmp_path):
    facts = replace(facts_of("Some GPU", "sm_86"), memory_bytes_per_s=768_000_000_000)
    spec = load_gpu(made_up_file(tmp_path / "gpu.yaml", facts))
    assert spec.memory_bytes_per_s == 768_000_000_000
    assert spec.sources["memory_bandwidth"].startswith("PyTorch")


def test_few_kernels_suffice_for_a_file(tmp_path):
    """Ctrl-C after the first kernel keeps it: its bytes give the bandwidth, its FLOPs the peak."""
    kernel = gpu_kernels(("bfloat16",))[0]
    device = ReplayedDevice({kernel: 100.0})
    measurement = measure_kernels(device, [kernel], budget_s=300, now=device.now)
    spec = load_gpu(write_file(tmp_path / "gpu.yaml", facts_of("Some GPU", "sm_86"), measurement))
    assert spec.flop_per_s["bfloat16"] == round(kernel.flops / 100e-6 / 0.8)
    assert spec.sources["memory_bandwidth"].startswith("derived: the fastest kernel")


def test_a_gpu_of_an_unknown_architecture_is_an_assumption(tmp_path):
    path = made_up_file(tmp_path / "gpu.yaml", facts_of("Some GPU", "sm_999"))
    assert generation_of(path) == path
    assert siblings_of(path)[0] == "h100-sxm"


def test_a_path_is_no_driver_s_name():
    assert preset_of("NVIDIA RTX A6000").name == "a6000"
    assert preset_of("Some GPU") is None
    assert preset_of("a6000.yaml") is None


# Tables ---------------------------------------------------------------------------------------------------------------


def test_measured_kernels_have_their_times(unknown):
    tables = OperatorTables(load_gpu(unknown))
    for kernel in gpu_kernels(("bfloat16", "float32", "float8")):
        if kernel.kind in ("gemm", "attention"):
            assert predicted_us(tables, kernel) == pytest.approx(made_up_us(kernel), rel=0.011), kernel


def test_kernels_between_them_follow_the_gpu_s_law(unknown):
    """A made-up roofline is predicted between the shapes within a fifth, memory-bound kernels within a twentieth."""
    tables = OperatorTables(load_gpu(unknown))
    for shape in ((3000, 3000, 3000), (64, 8192, 3072), (6144, 2560, 10240)):
        kernel = Kernel("gemm", "bfloat16", shape)
        assert predicted_us(tables, kernel) == pytest.approx(made_up_us(kernel), rel=0.2)
    for rows in (100, 3000, 20_000):
        kernel = Kernel("elementwise", "bfloat16", (rows, 4096))
        assert predicted_us(tables, kernel) == pytest.approx(made_up_us(kernel), rel=0.05)


def test_backward_attention_has_its_own_rows(unknown):
    tables = OperatorTables(load_gpu(unknown))
    shape = AttentionShape(batch=2, heads=16, kv_heads=16, length=4096, size=128)
    backward = tables.attention_in_step(shape, backward=True)
    forward = tables.attention_in_step(shape, backward=False)
    assert backward.us == pytest.approx(2.5 * forward.us, rel=0.2)
    flash_1 = tables.attention_in_step(shape, backward=False, kernel="flash-1")
    assert flash_1.us == pytest.approx(2 * forward.us)  # half as fast as FlashAttention-2 (arXiv:2307.08691)


def test_float8_gemms_of_a_file_have_no_quantisation(unknown):
    """The bundled tables time a cast with each FP8 GEMM; a file has the product alone."""
    tables = OperatorTables(load_gpu(unknown))
    m, n, k = 8192, 4096, 4096
    alone = tables.gemm(m, n, k, "float8").us
    assert tables.gemm_in_step(m, n, k, "float8", 0).us >= 0.95 * alone


def test_evidence_far_beyond_the_measured_sizes_is_modelled(unknown):
    tables = OperatorTables(load_gpu(unknown))
    assert tables.gemm(30_000, 5000, 5000).evidence == INTERPOLATED
    assert tables.gemm(40_000, 5000, 5000).evidence == MODELLED
    assert tables.gemm_in_step(40_000, 5000, 5000, "float32", 0).evidence == MODELLED
    shape = AttentionShape(batch=1, heads=8, kv_heads=8, length=40_000, size=128)
    assert tables.attention(shape).evidence == MODELLED
    assert tables.memory(1e6, "activation").evidence == INTERPOLATED


def test_a_known_power_curve_applies_to_the_file(tmp_path):
    path = made_up_file(tmp_path / "gpu.yaml", facts_of("NVIDIA H100 80GB HBM3", "sm_90"), ("bfloat16", "float8"))
    assert has_tensor_clocks(load_gpu(path))
    curve, bundled = curve_of(load_gpu(path)), curve_of(load_gpu("h100-sxm"))
    assert curve.tensor.table == bundled.tensor.table
    assert "assumed for" in curve.source
    other = made_up_file(tmp_path / "other.yaml", facts_of("Some GPU", "sm_90"), ("bfloat16",))
    assert not has_tensor_clocks(load_gpu(other))


# Answers --------------------------------------------------------------------------------------------------------------


def run(*words):
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.output


def test_a_step_on_the_file_quotes_it(a6000, tmp_path):
    code, output = run("train", "model:llama-3-8b", "--gpu", a6000, "--gpus", 1, "--json", tmp_path / "a.json")
    assert code == 0, output
    words = " ".join(output.split())
    assert f"llama-3-8b on 1 x {a6000}" in words
    assert re.search(r"rests on operator times .*kernels of \S*my-a6000.yaml", words)
    assert "NVIDIA RTX A6000, 53 kernels measured on 2026-11-29" in words
    assert "kernel times of this step come from" in words
    answer = json.loads((tmp_path / "a.json").read_text())
    assert ("GPU file", "measured") in {(row["what"], row["kind"]) for row in answer["evidence"]}
    shares = {row["kind"]: row["share"] for row in answer["evidence"] if row["what"] == "operator time"}
    assert shares["interpolated"] + shares.get("modelled", 0) > 0.95


def test_the_file_s_times_decide_the_step(a6000, tmp_path):
    """Tripling the kernel times triples the step; the bundled preset's step is of the same order."""
    slower = {kernel: 3 * us for kernel, us in read_times("a6000").items()}
    path, _ = measured_file(tmp_path / "slow.yaml", slower, ("bfloat16",), "NVIDIA RTX A6000", "sm_86")
    steps = [trine.simulate("model:llama-3-8b,layers=2", gpu=gpu).step_time_ps for gpu in (a6000, path, "a6000")]
    assert 2.5 < steps[1] / steps[0] < 3.2
    assert 0.5 < steps[2] / steps[0] < 2.0


def test_cluster_files_take_the_path_from_their_folder(a6000, tmp_path, monkeypatch):
    (tmp_path / "gpus").mkdir()
    text = Path(a6000).read_text(encoding="utf-8")
    (tmp_path / "gpus" / "mine.yaml").write_text(text)
    devices = "devices: [{name: gpu, count: 2, gpu: gpus/mine.yaml}]\n"
    links = "links: [{from: gpu0, to: gpu1, duplex: true, bandwidth: 50 GB/s, latency: 1 us}]\n"
    (tmp_path / "c.yaml").write_text(devices + links)
    (tmp_path / "changed.yaml").write_text("base: dgx-a100\ndevices: [{name: gpu0..7, gpu: gpus/mine.yaml}]\n")
    (tmp_path / "t.yaml").write_text(
        "topology: {kind: ring, gpus: 4, bandwidth: 50 GB/s, latency: 1 us, gpu: gpus/mine.yaml}\n"
    )
    for name in ("c", "changed", "t"):
        cluster = load_cluster(str(tmp_path / f"{name}.yaml"))
        assert {cluster.devices[gpu].gpu for gpu in cluster.gpus} == {str(tmp_path / "gpus" / "mine.yaml")}
    monkeypatch.chdir(tmp_path)
    code, output = run("train", "model:gpt-2,layers=2", "--dp", 2, "--gpus", 2, "--cluster", "c.yaml")
    assert code == 0, output
    assert "2 x gpus/mine.yaml" in " ".join(output.split())


def test_a_wrong_gpu_file_in_a_cluster_names_both_files(tmp_path):
    (tmp_path / "mine.yaml").write_text("format: trine-gpu-1\n")
    cluster = tmp_path / "c.yaml"
    cluster.write_text("topology: {kind: ring, gpus: 4, bandwidth: 50 GB/s, latency: 1 us, gpu: mine.yaml}\n")
    with pytest.raises(SpecError, match=r"c\.yaml: topology\.gpu: .*mine\.yaml: name"):
        load_cluster(str(cluster))


def test_the_preset_s_cluster_is_the_file_s_machine(tmp_path):
    """A file of an A100 on a cluster of A100s: no warning about another GPU."""
    path = made_up_file(tmp_path / "mine.yaml", facts_of("NVIDIA A100-SXM4-80GB", "sm_80"), ("bfloat16",))
    words = "train", "model:gpt-2,layers=2", "--dp", 8, "--gpus", 8, "--details"
    assert "operator times are from" not in " ".join(run(*words, "--cluster", "dgx-a100", "--gpu", path)[1].split())
    assert "operator times are from" in " ".join(run(*words, "--cluster", "dgx-h100", "--gpu", path)[1].split())


def test_support_describes_the_file(a6000):
    code, output = run("support", a6000)
    words = " ".join(output.split())
    assert code == 0
    assert "53 kernels measured on 2026-11-29" in words
    assert "35 gemm bfloat16 (spread 2.0%)" in words


def test_resolved_inputs_tell_two_files_apart(a6000, tmp_path):
    """``trine compare`` names the kernels if two files of one GPU differ."""
    text = Path(a6000).read_text(encoding="utf-8")
    other = tmp_path / "other.yaml"
    other.write_text(text.replace("us: 1", "us: 2", 1))
    first, second = measured_gpu(a6000), measured_gpu(str(other))
    assert first.spec.flop_per_s == second.spec.flop_per_s
    assert first.fingerprint != second.fingerprint


def test_a_file_that_changes_is_read_again(a6000, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = Path(a6000).read_text(encoding="utf-8")
    path = tmp_path / "gpu.yaml"
    path.write_text(text)
    before = load_gpu("gpu.yaml").memory_bytes
    path.write_text(text.replace("memory: 51539607552 B", "memory: 20 GiB"))
    assert (before, load_gpu("gpu.yaml").memory_bytes) == (48 << 30, 20 << 30)


# Writing --------------------------------------------------------------------------------------------------------------


def test_equal_measurements_give_equal_files(tmp_path):
    first, second = (made_up_file(tmp_path / name) for name in ("a.yaml", "b.yaml"))
    assert Path(first).read_bytes() == Path(second).read_bytes()


def test_the_guide_s_example_is_a_gpu_file(tmp_path):
    guide = Path(__file__).parents[3] / "docs" / "guides" / "measure-a-gpu.md"
    example = re.search(r"```yaml\n(.*?)```", guide.read_text(encoding="utf-8"), re.DOTALL).group(1)
    (tmp_path / "gpu.yaml").write_text(example)
    assert load_gpu(str(tmp_path / "gpu.yaml")).memory_bytes == 48 << 30


def test_the_bundled_example_is_what_trine_writes(a6000):
    """tests/data/measured_gpus/a6000.yaml: write it again if the format or the list of kernels changes."""
    assert Path(a6000).read_bytes() == (FOLDER / "a6000.yaml").read_bytes()


def test_a_symbolic_link_is_replaced_and_its_target_stays(tmp_path):
    target, link = tmp_path / "target.yaml", tmp_path / "link.yaml"
    target.write_text("precious")
    link.symlink_to(target)
    with pytest.raises(InputError, match="exists already"):
        check_target(str(link), overwrite=False)
    check_target(str(link), overwrite=True)
    write_gpu_file(str(link), "new")
    assert (target.read_text(), link.read_text(), link.is_symlink()) == ("precious", "new", False)


def test_a_dangling_link_exists(tmp_path):
    (tmp_path / "link.yaml").symlink_to(tmp_path / "nothing")
    with pytest.raises(InputError, match="exists already"):
        check_target(str(tmp_path / "link.yaml"), overwrite=False)


@pytest.mark.parametrize("name", ["gpu.txt", "gpu", "gpu.json"])
def test_the_name_ends_in_yaml(name):
    with pytest.raises(InputError, match=r"ends in \.yaml"):
        check_target(name, overwrite=True)


# Damaged files --------------------------------------------------------------------------------------------------------

DAMAGES = {
    "format": (lambda c: c.update(format="trine-gpu-9"), "format: .*'trine-gpu-1'"),
    "missing": (lambda c: c.pop("gpu"), "gpu: .*"),
    "unknown field": (lambda c: c.update(clock=3), "unknown key 'clock'; did you mean 'clocks'"),
    "preset": (lambda c: c.update(preset="a600"), "preset: no bundled GPU 'a600'.*did you mean 'a6000'"),
    "kind": (lambda c: c["kernels"][0].update(kind="gem"), r"kernels\[0\]\.kind: .*'gem'"),
    "dtype": (lambda c: c["kernels"][1].update(dtype="bf16"), r"kernels\[1\]\.dtype: .*'bf16'"),
    "sizes": (lambda c: c["kernels"][0].update(shape=[4]), r"kernels\[0\]\.shape: a gemm has 3 sizes .*got 1"),
    "size 0": (lambda c: c["kernels"][0].update(shape=[0, 4, 4]), r"kernels\[0\]\.shape\[0\]: must be 1 to .*got 0"),
    "huge": (lambda c: c["kernels"][0].update(shape=[1 << 50, 4, 4]), r"kernels\[0\]\.shape\[0\]"),
    "text": (lambda c: c["kernels"][0].update(us="fast"), r"kernels\[0\]\.us: .*'fast'"),
    "negative": (lambda c: c["kernels"][0].update(us=-1.0), r"kernels\[0\]\.us: .*greater than 0"),
    "infinite": (lambda c: c["kernels"][0].update(us=float("inf")), "no finite number"),
    "repeats": (lambda c: c["kernels"][0].update(repeats=0), r"kernels\[0\]\.repeats"),
    "twice": (lambda c: c["kernels"].append(c["kernels"][0]), r"kernels\[\d+\]: gemm \[.*\] in bfloat16 comes twice"),
    "empty": (lambda c: c.update(kernels=[]), "kernels: .*at least 1"),
    "peak": (lambda c: c["gpu"].update(compute={"float32": "1 TFLOP/s"}), r"gpu\.compute: has no peak of bfloat16"),
    "no bandwidth": (lambda c: c["gpu"].update(memory_bandwidth="0.1 B/s"), r"gpu\.memory_bandwidth"),
    "no peak": (lambda c: c["gpu"].update(compute={"bfloat16": "0 FLOP/s"}), r"gpu\.compute\.bfloat16"),
    "no rate": (lambda c: c["gpu"].update(memory_bandwidth="0 B/s"), r"gpu\.memory_bandwidth"),
    "unit": (lambda c: c["gpu"].update(memory_bandwidth=768), r"gpu\.memory_bandwidth: .*768"),
    "units": (lambda c: c["gpu"].update(compute_units=0), r"gpu\.compute_units"),
    "name": (lambda c: c["gpu"].update(name="x"), r"gpu\.name: is not a field"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_refused_by_field(damage, a6000, tmp_path, capsys):
    change, message = DAMAGES[damage]
    content = yaml.safe_load(Path(a6000).read_text(encoding="utf-8"))
    change(content)
    path = tmp_path / "bad.yaml"
    path.write_text(yaml.dump(content, Dumper=NoAliases))
    with pytest.raises(SpecError, match=message) as refused:
        load_gpu(str(path))
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)
    code, output = run("train", "model:gpt-2,layers=2", "--gpu", path, "--gpus", 1)
    assert code == 2
    assert "bad.yaml" in output
    assert "Traceback" not in output


class NoAliases(yaml.SafeDumper):
    def ignore_aliases(self, data):
        return True


@pytest.mark.parametrize("content", ["", "- 1\n", "{", "format: [trine-gpu-1]\n", "a: &x 1\nb: *x\n"])
def test_files_of_another_kind_are_refused(content, tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text(content)
    with pytest.raises(SpecError, match=r"bad\.yaml"):
        load_gpu(str(path))


@pytest.mark.parametrize("name", ["nothing.yaml", ".", "/dev/zero"])
def test_paths_that_are_no_files(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if name == ".":
        os.mkdir("folder.yaml")
        name = "folder.yaml"
    with pytest.raises(SpecError):
        load_gpu(name)
