"""Does the comparison of two logs tell a slower run from noise, and refuse logs of different tests?"""

import json
import math
import random

import pytest
from click.testing import CliRunner

from trine.check.nccl_tests import read_log
from trine.check.two_runs import FASTER, MIXED, SAME, SLOWER, compare_logs
from trine.cli.main import app
from trine.errors import InputError

SIZES = tuple(2**i for i in range(10, 33))


def write_log(path, factor=lambda size: 1.0, noise=0.02, seed=0, repeats=1, op="all_reduce", ranks=8, sizes=SIZES):
    """Write a log of nccl-tests with times of 20 us + size / 200 GB/s, times ``factor(size)`` and lognormal noise."""
    draws = random.Random(seed)
    result = "   time   algbw   busbw #wrong"
    lines = [f"# nThread 1 nGpus 1 minBytes 1024 maxBytes 8589934592 step: 2(factor)\n# {op}_perf"]
    lines += [f"#  Rank {i:2} Group  0 Pid  1 on  node1 device {i:2} [0x0{i}] NVIDIA H100" for i in range(ranks)]
    lines += [f"#  size  count  type  redop  root  {result}  {result}"]
    lines += ["#  (B)  (elements)  (us)  (GB/s)  (GB/s)  (us)  (GB/s)  (GB/s)"]
    for size in sizes:
        for _ in range(repeats):
            us = (20 + size / 200e3) * factor(size) * math.exp(draws.gauss(0, noise))
            rate = size / us / 1e3
            bus = rate * 2 * (ranks - 1) / ranks
            cells = f"{us:.2f} {rate:.2f} {bus:.2f} 0"
            lines.append(f"  {size} {size // 4} float sum -1 {cells} {cells}")
    path.write_text("\n".join(lines) + "\n")
    return path


def compared(tmp_path, factor, **options):
    logs = [write_log(tmp_path / "a.log", seed=1, **options), write_log(tmp_path / "b.log", factor, seed=2, **options)]
    return compare_logs(*map(read_log, logs))


def test_equal_runs_differ_by_noise_alone(tmp_path):
    """Of 60 pairs of equal runs, the verdict is wrong for at most one in twenty."""
    states = []
    for seed in range(60):
        logs = [write_log(tmp_path / f"{name}.log", seed=2 * seed + i) for i, name in enumerate("ab")]
        states.append(compare_logs(*map(read_log, logs)).state)
    assert states.count(SAME) >= 57


@pytest.mark.parametrize(
    ("factor", "state"),
    [
        (lambda size: 1.3, SLOWER),
        (lambda size: 1 / 1.3, FASTER),
        (lambda size: 1.4 if size >= 2**26 else 1.0, SLOWER),
        (lambda size: 1.4 if size >= 2**26 else 0.7 if size <= 2**14 else 1.0, MIXED),
    ],
)
def test_a_known_change_is_found_in_its_sizes(tmp_path, factor, state):
    answer = compared(tmp_path, factor)
    assert answer.state == state
    for row in answer.rows:
        assert row.ratio == pytest.approx(factor(row.size_bytes), rel=0.12)
    changed = [size for size in SIZES if factor(size) != 1.0]
    assert (answer.ranges[0][1], answer.ranges[-1][2]) == (changed[0], changed[-1])


def test_a_change_of_12_percent_is_more_than_two_single_measurements_differ(tmp_path):
    """Single measurements repeat within 2.5 %; the logs themselves scatter by 0.5 %."""
    assert compared(tmp_path, lambda size: 1.12, noise=0.005).state == SLOWER
    assert compared(tmp_path, lambda size: 1.03, noise=0.005).state == SAME


def test_repeated_measurements_give_the_noise(tmp_path):
    """Ten measurements of each size with 2 % of noise: the ratio of medians has 2 % x sqrt(2 / 10)."""
    answer = compared(tmp_path, lambda size: 1.04, repeats=10)
    assert all(row.noise == pytest.approx(0.02 * math.sqrt(0.2), rel=0.15) for row in answer.rows)
    assert answer.state == SLOWER


def test_one_slow_size_counts_as_noise(tmp_path):
    answer = compared(tmp_path, lambda size: 2.0 if size == 2**20 else 1.0)
    assert (answer.state, answer.isolated) == (SAME, (2**20,))
    assert "1M: differs alone, counted as noise" in answer.details()


def test_swapped_logs_give_the_opposite(tmp_path):
    logs = [
        read_log(write_log(tmp_path / "a.log", seed=1)),
        read_log(write_log(tmp_path / "b.log", lambda s: 1.3, seed=2)),
    ]
    ahead, back = compare_logs(*logs), compare_logs(*logs[::-1])
    assert (ahead.state, back.state) == (SLOWER, FASTER)
    assert [row.ratio for row in ahead.rows] == pytest.approx([1 / row.ratio for row in back.rows])


def test_other_tests_are_refused(tmp_path):
    first = read_log(write_log(tmp_path / "a.log"))
    others = {
        "collective all_gather, not all_reduce": {"op": "all_gather"},
        "number of ranks 4, not 8": {"ranks": 4},
        "has no size of": {"sizes": (8, 16)},
    }
    for words, options in others.items():
        with pytest.raises(InputError, match=words):
            compare_logs(first, read_log(write_log(tmp_path / "b.log", **options)))


def test_the_command(tmp_path):
    logs = [str(write_log(tmp_path / "a.log", seed=1)), str(write_log(tmp_path / "b.log", lambda size: 1.3, seed=2))]
    found = CliRunner().invoke(app, ["check", *logs, "--json", str(tmp_path / "answer.json")])
    assert found.exit_code == 0
    assert "b.log is slower from 1K to 4G, 1." in " ".join(found.output.split())
    answer = json.loads((tmp_path / "answer.json").read_text())
    assert (answer["schema"], answer["state"], len(answer["rows"])) == ("trine/check-runs/1", SLOWER, len(SIZES))
    assert CliRunner().invoke(app, ["check", *logs, "--fail-if-suspicious"]).exit_code == 1
    assert CliRunner().invoke(app, ["check", *logs[::-1], "--fail-if-suspicious"]).exit_code == 0
    refused = CliRunner().invoke(app, ["check", *logs, "--cluster", "dgx-h100"])
    assert refused.exit_code == 2
    assert "two logs are compared with each other" in refused.output
