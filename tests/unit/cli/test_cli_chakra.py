"""Does ``trine chakra`` run and describe traces, and report errors in one line?"""

from __future__ import annotations

import json
import re

import pytest
from chakra_files import ALL_REDUCE, DATA, collective, node, send, write
from click.testing import CliRunner

from trine.cli.main import app

RING = ["--topology", "ring", "--bandwidth", "50 GB/s", "--latency", "1 us"]
BENCHMARK = str(DATA / "microbenchmarks" / "all_reduce" / "4npus_1MB" / "all_reduce")


def invoke(*arguments):
    return CliRunner().invoke(app, ["chakra", *(str(argument) for argument in arguments)])


def test_a_micro_benchmark_runs_with_all_outputs(tmp_path):
    done = invoke("run", BENCHMARK, *RING, "--json", tmp_path / "a.json", "--perfetto", tmp_path / "a.pftrace")
    assert done.exit_code == 0, done.output
    assert re.search(r"^step +37.46 us$", done.stdout, re.M)
    assert "all_reduce of 4  1 x 1 MiB" in done.stdout
    answer = json.loads((tmp_path / "a.json").read_text())
    # a ring: 6 messages of a quarter, one after the other
    assert answer["step_time_s"] == pytest.approx(6 * (2**18 / 50e9 + 1e-6))
    assert (tmp_path / "a.pftrace").stat().st_size > 0


def test_inspect_counts_nodes_and_names_the_grid(tmp_path):
    done = invoke("inspect", BENCHMARK, "--json", "-")
    assert done.exit_code == 0
    answer = json.loads(done.stdout)
    assert (answer["ranks"], answer["nodes"], answer["programs"]) == (4, 4, 1)
    assert answer["kinds"] == {"all_reduce": {"nodes": 4, "bytes": 4 * 2**20, "time_s": 0.0}}
    shown = invoke("inspect", DATA / "custom_ring_allreduce_8npus_1MB" / "custom_allreduce").stdout
    assert "send" in shown
    assert "distinct programs: 8" in shown


def test_groups_and_a_roofline(tmp_path):
    ranks = [
        [node(1, 4, num_ops=10**9, tensor_size=1), collective(2, ALL_REDUCE, 2**20, [1], pg_name=str(1 + rank // 2))]
        for rank in range(4)
    ]
    prefix = write(tmp_path, ranks)
    (tmp_path / "job.groups.json").write_text('{"1": [0, 1], "2": [2, 3]}')
    done = invoke("run", prefix, *RING, "--peak", "1 TFLOP/s", "--memory", "1 TB/s", "--json", "-")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["step_time_s"] == pytest.approx(1e-3 + 2 * (2**19 / 50e9 + 1e-6))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "add a machine: "),
        ([*RING, "--peak", "1 TFLOP/s"], "needs both"),
        ([*RING, "--network", "fairest"], "did you mean"),
        ([*RING, "--collective-costs", "link"], "did you mean"),
        ([*RING, "--algorithm", "all_gather=ring"], "no trace has a all_gather"),
        ([*RING, "--algorithm", "all_reduce=rings"], "no algorithm 'rings'"),
        (["--cluster", "a40-pcie", "--nodes", "1"], "4 GPUs do not fit into 1 x a40-pcie"),
    ],
)
def test_wrong_options_end_in_one_line(options, message):
    done = invoke("run", BENCHMARK, *options)
    assert done.exit_code == 2
    assert message in done.stderr
    assert "Traceback" not in done.output


def test_wrong_traces_end_in_one_line(tmp_path):
    prefix = write(tmp_path, [[send(3, 1, 8)], []])
    done = invoke("run", prefix, *RING)
    assert done.exit_code == 2
    assert "job.0.et: node 3" in done.stderr


def test_train_writes_traces_that_run_alike(tmp_path):
    from trine.cli.main import app as trine

    def train(*options):
        arguments = ["train", "vgg13-h100-b128", "--dp", "2", "--tp", "2", *RING, *options]
        return CliRunner().invoke(trine, [str(argument) for argument in arguments])

    done = train("--chakra", tmp_path / "vgg", "--json", tmp_path / "a.json")
    assert done.exit_code == 0, done.output
    assert "4 ranks" in done.stderr
    assert "note: " in done.stderr
    again = invoke("run", tmp_path / "vgg", *RING, "--json", "-")
    assert json.loads(again.stdout)["step_time_s"] == json.loads((tmp_path / "a.json").read_text())["step_time_s"]
    assert "did you mean 'chakra'" in train("--chakra", tmp_path / "x", "--chakra-target", "chakras").stderr
    assert "was not given" in train("--chakra-target", "chakra").stderr
    assert not list(tmp_path.glob("x.*"))
