"""Are recorded times used on the GPU that they were recorded on, and on no other without a word?"""

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from synthetic import MS, Chain

import trine
from trine.cli.main import app
from trine.cluster import build_topology, load_cluster
from trine.compute import Roofline, Split, make_compute
from trine.software.profile import load_software
from trine.training.ensemble import step_ensemble
from trine.workload import load, save
from trine.workload.on_gpu import on_gpu

DATA = Path(__file__).parents[2] / "data" / "torch213-cpu"
CPU_PAIR = DATA / "cnn_kineto.json.gz"
CSV = Path(trine.__file__).parent / "presets" / "traces" / "vgg13-h100-b128"
DDP = trine.Plan(dp=2, inputs="none")
SWITCH = build_topology("switch", "65 GB/s", "1 us", 2)


def cli(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def chain(gpu=None):
    """A step of 40 ms of operators, recorded on ``gpu``."""
    made = Chain([10 * MS] * 2, [10 * MS] * 2, [4096, 8192]).workload()
    return replace(made, gpu=gpu)


def simulated(workload, cluster, **options):
    return trine.simulate(workload, DDP if cluster is not None else trine.Plan(), cluster=cluster, **options)


def operator_rows(result):
    return [(row.kind, row.detail) for row in result.evidence if row.what == "operator time"]


def refusal(workload, cluster, **options):
    with pytest.raises(trine.InputError) as found:
        simulated(workload, cluster, **options)
    text = str(found.value)
    assert "\n" not in text
    assert len(text) <= 400
    return text


# -- recorded on a CPU -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compute", ["linear", "recorded"])
@pytest.mark.parametrize("options", [{}, {"gpu": "h100-sxm"}, {"trace_gpu": "h100-sxm"}])
@pytest.mark.parametrize("cluster", ["dgx-h100", SWITCH, None])
def test_times_of_a_cpu_are_never_those_of_a_gpu(cluster, options, compute):
    text = refusal(CPU_PAIR, cluster, compute=compute, **options)
    assert "recorded on a CPU" in text
    assert "--compute roofline" in text
    if options or cluster == "dgx-h100":
        assert "for the h100-sxm" in text
    else:
        assert "--gpu NAME" in text


@pytest.mark.parametrize(("cluster", "gpu"), [("dgx-h100", "h100-sxm"), ("dgx-a100", "a100-80gb")])
def test_shapes_recorded_on_a_cpu_are_timed_by_the_clusters_data_sheet(cluster, gpu):
    result = simulated(CPU_PAIR, cluster, compute="roofline")
    workload = on_gpu(load(CPU_PAIR), load_software("pytorch-eager"))
    model = Roofline(workload, trine.load_gpu(gpu))
    total = sum(model.duration(op, Split(workload.batch)).ps for op in workload.operators)
    assert result.compute_s == pytest.approx(total / 1e12, rel=1e-9)
    ((kind, detail),) = operator_rows(result)
    assert kind == "assumed"
    assert f"data sheet of the {gpu}" in detail
    assert "recorded on a CPU" in detail
    named = simulated(CPU_PAIR, cluster, compute="roofline", gpu=gpu)
    assert named.step_time_ps == result.step_time_ps
    other = simulated(CPU_PAIR, cluster, compute="roofline", gpu="v100")
    assert other.compute_s > result.compute_s


@pytest.mark.parametrize(("cluster", "options"), [("dgx-h100", {}), (SWITCH, {"gpu": "h100-sxm"})])
def test_what_is_not_said_means_the_tables_where_a_gpu_is_known(cluster, options):
    result = simulated(CPU_PAIR, cluster, **options)
    assert result.step_time_ps == simulated(CPU_PAIR, cluster, compute="tables", **options).step_time_ps
    rows = operator_rows(result)
    assert {kind for kind, _ in rows} <= {"interpolated", "transferred", "assumed"}
    assert all("from the shapes of a step recorded on" in detail and "a CPU" in detail for _, detail in rows)


@pytest.mark.parametrize("cluster", [SWITCH, None])
def test_what_is_not_said_is_refused_where_no_gpu_is_known(cluster):
    assert "recorded on a CPU" in refusal(CPU_PAIR, cluster)


def test_an_unknown_gpu_is_said_first():
    assert "did you mean 'h100" in refusal(CPU_PAIR, "dgx-h100", gpu="h1000")


def test_shapes_without_any_gpu_have_no_roofline():
    assert "roofline needs a GPU" in refusal(CPU_PAIR, None, compute="roofline")
    assert "roofline needs a GPU" in refusal(CPU_PAIR, SWITCH, compute="roofline")
    assert simulated(CPU_PAIR, SWITCH, compute="roofline", gpu="a40").step_time_ps > 0


def test_a_converted_trace_remembers_that_it_was_a_cpus(tmp_path):
    path = tmp_path / "cnn.trine.json.gz"
    save(load(CPU_PAIR), path)
    assert "recorded on a CPU" in refusal(path, "dgx-h100", compute="linear")
    assert "on a CPU" in cli("trace", "inspect", path).stdout.splitlines()[0]


def test_a_table_without_any_gpu_time_was_not_recorded_on_a_gpu(tmp_path):
    with (CSV / "trace.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    column = rows[0].index("Operator_cudatimenooverlap")
    for row in rows[1:]:
        row[column] = "0"
    with (tmp_path / "trace.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    (tmp_path / "tensor.csv").write_bytes((CSV / "tensor.csv").read_bytes())
    assert "recorded on a CPU" in refusal(tmp_path, None)
    assert simulated(tmp_path, "dgx-h100", compute="roofline").compute_s > 0.01


def test_every_way_to_a_result_refuses_them():
    workload = load(CPU_PAIR)
    for call in (
        lambda: make_compute("auto", workload),
        lambda: trine.overlap_range(CPU_PAIR, DDP, cluster="dgx-h100", compute="linear"),
        lambda: step_ensemble(CPU_PAIR, DDP, repeats=2, cluster="dgx-h100", compute="linear"),
        lambda: trine.hop(CPU_PAIR, cluster=build_topology("ring", "10 GB/s", "1 us", 8)),
        lambda: trine.calibrate([workload]),
    ):
        with pytest.raises(trine.InputError, match="CPU"):
            call()


def test_on_the_command_line_the_refusal_is_one_line():
    job = ("train", CPU_PAIR, "--gpus", 2, "--parallel", "ddp", "--inputs", "none", "--cluster", "dgx-h100")
    done = cli(*job, "--compute", "linear")
    assert (done.exit_code, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert "--compute roofline predicts for the h100-sxm" in done.stderr
    done = cli(*job, "--compute", "roofline", "--json", "-")
    assert done.exit_code == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["step_time_s"] == simulated(CPU_PAIR, "dgx-h100", compute="roofline").step_time_ps / 1e12
    assert "measured" not in {row["kind"] for row in answer["evidence"] if row["what"] == "operator time"}


# -- recorded on a GPU that the trace does not name --------------------------------------------------------------------


@pytest.mark.parametrize("cluster", [SWITCH, None])
def test_without_any_name_recorded_times_are_kept(cluster):
    result = simulated(chain(), cluster)
    assert result.compute_s == 0.04
    assert operator_rows(result) == [("measured", "recorded on an unnamed GPU at batch 8")]


def test_a_cluster_of_named_gpus_asks_for_the_traces():
    text = refusal(chain(), "dgx-h100")
    assert "--trace-gpu NAME" in text
    assert "h100-sxm" in text
    assert "--trace-gpu NAME" in refusal(CSV, "dgx-h100")
    assert "--trace-gpu NAME" in refusal(chain(), "dgx-h100", gpu="h100-sxm")
    assert "--trace-gpu NAME" in refusal(chain(), SWITCH, gpu="h100-sxm")
    said = simulated(chain(), "dgx-h100", trace_gpu="NVIDIA H100 80GB HBM3")
    assert said.compute_s == 0.04
    assert operator_rows(said) == [("measured", "recorded on h100-sxm at batch 8")]
    assert any("names no GPU" in row.detail and "h100-sxm" in row.detail for row in said.evidence)


def test_a_roofline_needs_no_name_of_the_traces_gpu():
    result = simulated(chain(), "dgx-h100", compute="roofline")
    assert result.step_time_ps == simulated(chain("h100-sxm"), "dgx-h100", compute="roofline").step_time_ps
    assert "a GPU that the trace does not name" in operator_rows(result)[0][1]


# -- recorded on another GPU -------------------------------------------------------------------------------------------


def test_another_gpu_is_asked_about_and_both_answers_run():
    text = refusal(chain("NVIDIA H100 80GB HBM3"), "dgx-a100")
    assert "--gpu a100-80gb predicts" in text
    assert "--gpu h100-sxm keeps" in text
    kept = simulated(chain("h100-sxm"), "dgx-a100", gpu="h100-sxm")
    assert kept.compute_s == 0.04
    ((kind, detail),) = operator_rows(kept)
    assert kind == "measured"
    assert "recorded on h100-sxm" in detail
    assert "a100-80gb" in detail
    moved = simulated(chain("h100-sxm"), "dgx-a100", gpu="a100-80gb")
    assert moved.compute_s > 0.04
    ((kind, detail),) = operator_rows(moved)
    assert kind == "assumed"
    assert "moved to a100-80gb" in detail


def test_kept_times_leave_the_clusters_memory_as_it_is():
    machine = load_cluster("dgx-a100")
    devices = tuple(replace(d, gpu=None if d.gpu is None else "a100-40gb") for d in machine.devices)
    small = replace(machine, devices=devices)
    kept = simulated(chain("h100-sxm"), small, gpu="h100-sxm")
    assert kept.memory_capacity_bytes == (40 * 2**30,) * 2
    assert any("times are from the h100-sxm of the trace" in text for text in kept.warnings)
    assert (
        "also used for the cluster's a100-40gb"
        in operator_rows(simulated(chain("h100-sxm"), small, gpu="h100-sxm"))[0][1]
    )


def test_a_roofline_is_the_clusters_whatever_the_trace_was_recorded_on():
    there = simulated(chain("a100-80gb"), "dgx-a100", compute="roofline")
    here = simulated(chain("h100-sxm"), "dgx-a100", compute="roofline")
    assert here.step_time_ps == there.step_time_ps
    assert "data sheet of the a100-80gb on the shapes of a step recorded on h100-sxm" in operator_rows(here)[0][1]


def test_bundled_traces_are_of_an_h100():
    assert operator_rows(simulated("vgg13-h100-b128", "dgx-h100"))[0][0] == "measured"
    assert "--gpu a100-80gb predicts" in refusal("vgg13-h100-b128", "dgx-a100")


def test_a_model_is_written_for_the_clusters_gpu():
    result = simulated("model:gpt-2,layers=1,sequence=128", "dgx-a100")
    assert "kernel times on the a100-80gb" in " ".join(result.details().split())
    assert trine.hop("model:gpt-2,layers=1,sequence=128", cluster="dgx-a100", protocol=trine.HopProtocol(iterations=2))


@pytest.mark.parametrize(
    ("trace", "cluster", "says"),
    [
        ("H100-SXM5-80GB", "dgx-h100", None),
        ("nvidia  h100 80gb hbm3", "dgx-h100", None),
        ("NVIDIA A100-SXM4-80GB", "dgx-a100", None),
        ("NVIDIA A100-SXM4-40GB", "dgx-a100", "--gpu a100-40gb keeps"),
        ("h100-pcie", "dgx-h100", "--gpu h100-pcie keeps"),
        ("h200", "dgx-h100", "--gpu h100-sxm predicts"),
        ("Foo 9000", "dgx-h100", "--trace-gpu NAME takes a known one"),
        ("h100-sxm", "foo 9000", "--gpu h100-sxm keeps"),
        ("Foo 9000", "FOO  9000", None),
        ("Foo 9000", "bar 9000", "no data sheet of the trace's GPU"),
    ],
)
def test_which_names_mean_one_gpu(trace, cluster, says):
    machine = load_cluster("dgx-h100" if "9000" in cluster else cluster)
    if "9000" in cluster:
        devices = tuple(replace(d, gpu=None if d.gpu is None else cluster) for d in machine.devices)
        machine = replace(machine, devices=devices)
    if says is None:
        assert simulated(chain(trace), machine).compute_s == 0.04
    else:
        assert says in refusal(chain(trace), machine)


def test_a_gpu_without_a_data_sheet_can_be_taken_for_a_known_one():
    result = simulated(chain("Foo 9000"), "dgx-h100", trace_gpu="h100-sxm")
    assert result.compute_s == 0.04
    assert any("names Foo 9000" in row.detail for row in result.evidence)
    foo = load_cluster("dgx-h100")
    foo = replace(foo, devices=tuple(replace(d, gpu=None if d.gpu is None else "foo 9000") for d in foo.devices))
    assert "no data sheet of the cluster's foo 9000" in refusal(chain("h100-sxm"), foo, compute="roofline")
    with pytest.raises(trine.InputError, match="the trace was recorded on 'h100-sxm', not on 'a100-80gb'"):
        simulated(chain("h100-sxm"), "dgx-h100", trace_gpu="a100-80gb")


def test_an_empty_name_of_the_gpu_is_called_so():
    assert "was recorded on a GPU whose name is empty" in refusal(chain(" "), "dgx-h100")


def test_long_names_leave_the_refusal_a_line():
    for trace in (chain("g" * 10_000), chain(), replace(load(CPU_PAIR), gpu="g" * 10_000)):
        refusal(replace(trace, name="n" * 10_000), "dgx-h100", compute="linear")


def test_on_a_mixed_cluster_the_gpus_of_the_ranks_count():
    machine = load_cluster("dgx-h100", nodes=2)
    second = {machine.gpus[8 + i] for i in range(8)}
    devices = tuple(replace(d, gpu="a100-80gb") if i in second else d for i, d in enumerate(machine.devices))
    mixed = replace(machine, devices=devices)
    assert simulated(chain("h100-sxm"), mixed).compute_s == 0.04
    assert "the cluster's GPUs are a100-80gb" in refusal(chain("h100-sxm"), mixed, placement=[8, 9])
    both = simulated(chain("h100-sxm"), mixed, placement=[0, 8])
    assert any("times of the h100-sxm alone: times of the a100-80gb are predicted" in text for text in both.warnings)
    assert both.rank_times.compute[0] == 40 * MS < both.rank_times.compute[1]
    kept = simulated(chain("h100-sxm"), mixed, placement=[0, 8], gpu="h100-sxm")
    assert any("mixes h100-sxm, a100-80gb" in text for text in kept.warnings)
    assert kept.rank_times.compute.tolist() == [40 * MS] * 2
    there = simulated("model:gpt-2,layers=1,sequence=128", mixed, placement=[8, 9])
    assert "kernel times on the a100-80gb" in " ".join(there.details().split())


# -- the other commands that take traces -------------------------------------------------------------------------------


def test_hop_asks_the_same():
    few = trine.HopProtocol(iterations=2)
    with pytest.raises(trine.InputError, match="--trace-gpu NAME"):
        trine.hop(chain(), few, cluster="dgx-h100")
    with pytest.raises(trine.InputError, match="--gpu a100-80gb predicts"):
        trine.hop(chain("h100-sxm"), few, cluster="dgx-a100")
    assert trine.hop(chain(), few, cluster="dgx-h100", trace_gpu="h100-sxm").gradient_ps == 40 * MS
    assert trine.hop(chain("h100-sxm"), few, cluster="dgx-a100", gpu="h100-sxm").gradient_ps == 40 * MS
    assert trine.hop(chain("h100-sxm"), few, cluster="dgx-a100", gpu="a100-80gb").gradient_ps > 40 * MS
    done = cli("hop", "vgg13-h100-b128", "--cluster", "dgx-a100", "--iterations", 2)
    assert (done.exit_code, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    job = ("hop", CPU_PAIR, "--cluster", "dgx-h100", "--iterations", 2, "--json", "-")
    assert cli(*job).exit_code == 2
    done = cli(*job, "--compute", "roofline")
    assert done.exit_code == 0, done.stderr
    alone = trine.simulate(CPU_PAIR, compute="roofline", gpu="h100-sxm")
    answer = json.loads(done.stdout)
    assert answer["gradient_s"] + answer["apply_s"] == pytest.approx(alone.step_time_s, rel=1e-12)


def test_a_calibration_is_of_one_gpu_that_is_known(tmp_path):
    named, unnamed = chain("h100-sxm"), chain()
    with pytest.raises(trine.InputError, match="names no GPU"):
        trine.calibrate([named, unnamed])
    assert trine.calibrate([named, replace(named, gpu="NVIDIA H100 80GB HBM3")]).gpu == "h100-sxm"
    assert trine.calibrate([named, unnamed], trace_gpu="h100-sxm").gpu == "h100-sxm"
    for workload, calibration in ((named, trine.calibrate([unnamed])), (unnamed, trine.calibrate([named]))):
        with pytest.raises(trine.InputError, match="--trace-gpu NAME"):
            make_compute("auto", workload, calibration=calibration)
    other_name = replace(named, gpu="NVIDIA H100 80GB HBM3")
    assert make_compute("auto", other_name, calibration=trine.calibrate([named])).name == "auto"
    with pytest.raises(trine.InputError, match="names no GPU"):
        trine.synthesize("vgg13", calibration=trine.calibrate([unnamed]))
    file = tmp_path / "fits.json"
    assert cli("calibrate", CSV, "-o", file, "--trace-gpu", "h100-sxm").exit_code == 0
    assert trine.Calibration.load(file).gpu == "h100-sxm"
    done = cli("calibrate", CPU_PAIR)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "holds CPU times" in done.stderr
