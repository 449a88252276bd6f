"""Does the command line print the right text on the right stream, with the right exit code?"""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from trine.cli.main import app

TRACE = "vgg13-h100-b128"
RING = ["--topology", "ring", "--bandwidth", "65 GB/s", "--latency", "1 us"]


def process(*arguments):
    """Run the command line in a separate process."""
    return subprocess.run(
        [sys.executable, "-m", "trine", *map(str, arguments)], capture_output=True, text=True, timeout=120
    )


def trine(*arguments):
    """Run the command line in this process, which has already loaded the kernels."""
    done = CliRunner().invoke(app, [str(each) for each in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return SimpleNamespace(returncode=done.exit_code, stdout=done.stdout, stderr=done.stderr)


def test_json_to_stdout_holds_the_json_alone_and_the_documented_keys():
    done = process("train", TRACE, "--gpus", 4, "--parallel", "ddp", *RING, "--json", "-")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    for key in (
        "step_time_s", "compute_s", "communication_s", "exposed_communication_s", "bubble_s", "idle_s",
        "memory_peak_bytes", "collectives", "evidence", "warnings", "simulator",
    ):  # fmt: skip
        assert key in answer
    assert {"version", "wall_s", "events", "ranks_simulated"} <= set(answer["simulator"])
    assert answer["simulator"]["ranks_simulated"] == 1  # four identical ranks
    assert {"kind", "bytes", "count", "group_size"} <= set(answer["collectives"][0])
    parts = answer["compute_s"] + answer["exposed_communication_s"] + answer["bubble_s"] + answer["idle_s"]
    assert parts == pytest.approx(answer["step_time_s"], rel=1e-12)
    assert "ms" in done.stderr


def test_one_gpu_is_exact_and_readable():
    done = trine("train", TRACE, "--gpus", 1)
    assert done.returncode == 0, done.stderr
    assert "94.04 ms" in done.stdout or "94.038 ms" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--gpus", 4], "need a parallelism"),
        (["--gpus", "four"], "--gpus must be a whole number, got 'four'"),
        (["--batch", "1.5"], "--batch must be a whole number, got '1.5'"),
        (["--gpu", "zzz"], "unknown GPU 'zzz'; 'trine support' lists all"),
        (["--gpus", 2, "--parallel", "ddp", "--offload", "weights", *RING], "optimizer, activations; got 'weights'\n"),
        (["--gpus", 4, "--parallel", "ddp"], "need a cluster"),
        (["--gpus", 4, "--parallel", "zp", *RING], "dp, ddp, fsdp, tp, pp"),
        (["--gpus", 4, "--dp", 3, *RING], "contradicts --gpus 4"),
        (["--gpus", 4, "--parallel", "ddp", "--tp", 2, *RING], "contradicts it"),
        (["--parallel", "ddp", *RING], "needs --gpus"),
        (["--gpus", 4, "--parallel", "ddp", "--topology", "rign", "--bandwidth", "1 GB/s"], "ring"),
        (["--gpus", 4, "--parallel", "ddp", "--topology", "ring", "--bandwidth", "65"], "unit"),
        (["--gpus", 4, "--parallel", "ddp", "--topology", "ring"], "needs --bandwidth"),
        (["--gpus", 4, "--parallel", "ddp", "--cluster", "dgx-h100", *RING], "give one"),
        (["--gpus", 4, "--parallel", "ddp", "--bandwidth", "65 GB/s"], "--topology"),
        (["--gpus", 9, "--parallel", "ddp", "--cluster", "dgx-h100", "--nodes", 1], "do not fit into 1"),
        (["--gpus", 4, "--parallel", "ddp", "--cluster", "dgx-h101"], "dgx-h100"),
        (["--batch", 4, "--global-batch", 4], "give one"),
        (["--gpus", 4, "--parallel", "ddp", "--global-batch", 130, *RING], "does not divide"),
        (["--batch", 0], "batch must be a positive"),
        (["--compute", "guess"], "recorded"),
        (["--gpus", 2, "--parallel", "ddp", "--network", "fare", *RING], "fair"),
        (["--compute", "recorded", "--batch", 64], "linear"),
        (["--gpus", 2, "--parallel", "ddp", "--bucket", "25", *RING], "unit"),
        (["--gpus", 2, "--parallel", "tp", "--bucket", "25MiB", *RING], "--bucket needs DDP"),
        (["--gpus", 2, "--parallel", "ddp", "--schedule", "1f1b", *RING], "--schedule needs a pipeline: add --pp N"),
        (
            ["--gpus", 2, "--parallel", "ddp", "--tp-style", "megatron", *RING],
            "--tp-style needs tensor parallelism: add --tp N",
        ),
        (["--network", "equal"], "--network is about the machine"),
        (["--inputs", "none"], "--inputs is about the machine"),
        (["--gpus", 2, "--parallel", "pp", "--schedule", "1f2b", *RING], "1f1b"),
        (["--gpus", 2, "--parallel", "ddp", "--algorithm", "ring", *RING], "all_reduce=ring"),
        (["--gpus", 2, "--parallel", "dp", "--micro-batch", 2, *RING], "need ddp"),
        (["--gpu", "h1000"], "h100"),
        (["--gpus", 2, "--parallel", "pp", "--micro-batch", 200, *RING], "larger than"),
        (["--gpus", 2, "--parallel", "pp", "--cuts", "conv2d.99", *RING], "conv2d"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(arguments, says):
    done = trine("train", TRACE, *arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_missing_trace_is_exit_code_2():
    done = process("train", "no-such-trace")
    assert done.returncode == 2
    assert "no-such-trace" in done.stderr
    assert "Traceback" not in done.stderr


def test_run_answers_a_graph(tmp_path):
    (tmp_path / "c.yaml").write_text(
        "devices: [a, b]\nlinks: [{from: a, to: b, bandwidth: 1 GB/s, latency: 1 us, duplex: true}]\n"
    )
    tasks = [
        {"id": "x", "kind": "compute", "rank": "a", "stream": "s", "duration": "1 ms"},
        {"id": "y", "kind": "transfer", "src": "a", "dst": "b", "bytes": 1000000, "after": ["x"]},
        {"id": "z", "kind": "join", "need": 1, "after": ["x", "y"]},
    ]
    (tmp_path / "g.json").write_text(json.dumps({"tasks": tasks}))
    done = trine("run", tmp_path / "g.json", "--cluster", tmp_path / "c.yaml", "--json", "-")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["end_time_s"] == 0.002001
    assert answer["tasks"]["y"] == {"start_ps": 10**9, "end_ps": 2 * 10**9 + 10**6}
    assert answer["tasks"]["z"]["end_ps"] == 10**9


def test_a_deadlock_is_exit_code_1_and_names_who_waits(tmp_path):
    (tmp_path / "c.yaml").write_text("devices: [a]\n")
    tasks = [
        {"id": "x", "kind": "compute", "rank": "a", "stream": "s", "duration": "1 ms", "after": ["y"]},
        {"id": "y", "kind": "compute", "rank": "a", "stream": "t", "duration": "1 ms", "after": ["x"]},
    ]
    (tmp_path / "g.json").write_text(json.dumps({"tasks": tasks}))
    done = trine("run", tmp_path / "g.json", "--cluster", tmp_path / "c.yaml")
    assert done.returncode == 1
    assert "x" in done.stderr
    assert "y" in done.stderr
    assert "Traceback" not in done.stderr


def test_timeline_and_records_are_written(tmp_path):
    done = trine(
        "train", TRACE, "--gpus", 2, "--parallel", "pp", "--micro-batch", 32, *RING,
        "--perfetto", tmp_path / "t.perfetto", "--parquet", tmp_path / "records", "--json", tmp_path / "a.json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "t.perfetto").stat().st_size > 1000
    assert any((tmp_path / "records").iterdir())
    assert json.loads((tmp_path / "a.json").read_text())["bubble_s"] > 0


@pytest.mark.parametrize(("rounds", "collects"), [(1, False), (40, True)])
def test_long_commands_collect_garbage_and_short_ones_do_not(rounds, collects):
    """Each round leaves 100 000 reference cycles, as a simulated job does."""
    command = f"""
import gc, sys
import trine.cli.main as cli
def run(words):
    gc.collect()
    for _ in range({rounds}):
        for _ in range(100_000):
            cycle = []
            cycle.append(cycle)
    print(len(gc.get_objects()))
    return 0
cli._run = run
cli.main()
"""
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    left = int(done.stdout)
    assert left < 1_200_000
    assert (left < 100_000 * rounds) is collects


def test_inspect_and_convert(tmp_path):
    done = trine("trace", "inspect", TRACE, "--json", "-")
    assert done.returncode == 0, done.stderr
    json.loads(done.stdout)
    target = tmp_path / "vgg.trine.json.gz"
    assert trine("trace", "convert", TRACE, target).returncode == 0
    done = trine("train", target, "--json", "-")
    assert json.loads(done.stdout)["step_time_s"] == 0.094038


@pytest.mark.parametrize("asked", ["rank=4,layer=0", "rank=0,layer=33"])
def test_what_detail_cannot_find_is_refused_before_the_step_is_printed(asked):
    model = "model:llama-3.2-1b,layers=1,sequence=128"
    done = trine("train", model, "--tp", 2, "--cluster", "dgx-h100", "--no-cpu", "--detail", asked)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--detail, " in done.stderr
    assert "the nearest is" in done.stderr
