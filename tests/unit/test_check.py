"""Does ``trine check`` call a sound run healthy, and name what was done to one that is not?"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from nccl_logs import log
from typer.testing import CliRunner

from trine.cli.main import app
from trine.cluster import Cluster, load_cluster
from trine.collectives.library import Collectives
from trine.errors import InputError
from trine.model.collective import CollectiveOptions
from trine.studies.check import FAST, SLOW, Check, check_log
from trine.studies.nccl_tests import NcclLog, read_log

SIZES = tuple(1 << power for power in range(3, 33))


@cache
def dgx(nodes: int = 1) -> Cluster:
    return load_cluster("dgx-h100", nodes=nodes)


def times_us(
    cluster: Cluster, op: str = "all_reduce", options: CollectiveOptions | None = None, sizes: Sequence[int] = SIZES
) -> list[float]:
    asked = Collectives(cluster, None, options)
    return [asked.predict(op, size).time_ps / 1e6 for size in sizes]


def log_of(tmp_path: Path, times: Sequence[float], nodes: int = 1, noise: float = 0.05, **how: str) -> NcclLog:
    """A log with these times, a few per cent up or down."""
    chance = random.Random(7)
    rows = [
        (size, time * chance.uniform(1 - noise, 1 + noise), time * chance.uniform(1 - noise, 1 + noise))
        for size, time in zip(SIZES, times, strict=True)
    ]
    path = tmp_path / "log.txt"
    path.write_text(log(rows, ranks=8 * nodes, **how))  # type: ignore[arg-type]
    return read_log(path)


def degraded(cluster: Cluster, link_class: str, factor: float) -> Cluster:
    links = [
        replace(link, bytes_per_s=round(link.bytes_per_s * factor)) if link.link_class == link_class else link
        for link in cluster.links
    ]
    return replace(cluster, links=tuple(links))


def names(check: Check) -> str:
    return "" if check.cause is None else check.cause.name


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_run_as_predicted_is_healthy(tmp_path: Path, nodes: int) -> None:
    check = check_log(log_of(tmp_path, times_us(dgx(nodes)), nodes), dgx(nodes))
    assert check.healthy
    assert check.cause is None
    assert "healthy" in check.table().splitlines()[-1]
    assert [row.size_bytes for row in check.rows] == list(SIZES)


def test_half_of_the_nics(tmp_path: Path) -> None:
    check = check_log(log_of(tmp_path, times_us(degraded(dgx(2), "scale-out", 0.5)), 2), dgx(2))
    assert not check.healthy
    assert names(check) == "4 of 8 NICs of each node carry the traffic"
    assert check.suspicious_from is not None
    assert check.suspicious_from >= 1 << 20
    assert check.suspicious_to == SIZES[-1]


def test_a_quarter_of_the_network(tmp_path: Path) -> None:
    check = check_log(log_of(tmp_path, times_us(degraded(dgx(2), "scale-out", 0.25)), 2), dgx(2))
    assert names(check) == "the network runs at a quarter of its rate"


def test_half_of_the_nvlinks(tmp_path: Path) -> None:
    check = check_log(log_of(tmp_path, times_us(degraded(dgx(), "scale-up", 0.5))), dgx())
    assert names(check) == "half of the links between GPUs carry the traffic"


def test_few_channels_or_another_algorithm(tmp_path: Path) -> None:
    ring = CollectiveOptions(algorithm="ring", protocol="ll")
    check = check_log(log_of(tmp_path, times_us(dgx(), options=ring)), dgx())
    assert names(check) == "the library uses ring with protocol ll"
    assert "NCCL_PROTO" in check.table()


def test_a_late_start_of_each_call(tmp_path: Path) -> None:
    check = check_log(log_of(tmp_path, [time + 40 for time in times_us(dgx())]), dgx())
    assert check.suspicious_from == SIZES[0]
    assert names(check).startswith("each call starts")
    assert 37 < float(names(check).split()[3]) < 43
    assert check.suspicious_to is not None
    assert check.suspicious_to < 1 << 26


def test_the_settings_of_the_log_are_taken(tmp_path: Path) -> None:
    options = CollectiveOptions(nvls=False)
    found = log_of(tmp_path, times_us(dgx(), options=options))
    check = check_log(replace(found, environment={"NVLS_ENABLE": "0"}), dgx())
    assert check.healthy
    assert check.options.nvls is False
    assert "the log sets NCCL_NVLS_ENABLE=0" in check.notes


def test_one_slow_row_is_noise_and_said(tmp_path: Path) -> None:
    times = times_us(dgx())
    times[10] *= 9
    check = check_log(log_of(tmp_path, times), dgx())
    assert check.healthy
    assert check.noise == (SIZES[10],)
    assert "slow at 8K alone" in check.table()


def test_a_range_in_the_middle_is_named(tmp_path: Path) -> None:
    times = [time * (8 if 1 << 14 <= size < 1 << 20 else 1) for size, time in zip(SIZES, times_us(dgx()), strict=True)]
    check = check_log(log_of(tmp_path, times), dgx())
    assert (check.suspicious_from, check.suspicious_to) == (1 << 14, 1 << 19)
    assert "suspicious from 16K to 512K" in check.table()


def test_faster_than_predicted_is_not_suspicious_but_said(tmp_path: Path) -> None:
    check = check_log(log_of(tmp_path, [time / 4 for time in times_us(dgx())]), dgx())
    assert check.healthy
    assert all(row.state == FAST for row in check.rows)
    assert "the cluster's numbers may be too low" in check.table()


def test_in_place_results_are_their_own(tmp_path: Path) -> None:
    found = log_of(tmp_path, times_us(dgx()))
    slow = [replace(row, in_place=replace(row.in_place, time_ps=5 * row.in_place.time_ps)) for row in found.rows
            if row.in_place]  # fmt: skip
    found = replace(found, rows=tuple(slow))
    assert check_log(found, dgx()).healthy
    assert all(row.state == SLOW for row in check_log(found, dgx(), in_place=True).rows)


def test_another_number_of_ranks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"16 ranks \(the device lines\).*has 8 GPUs: give --gpus 16 --nodes 2"):
        check_log(log_of(tmp_path, times_us(dgx(2)), 2), dgx())


def test_another_gpu_is_doubted(tmp_path: Path) -> None:
    check = check_log(log_of(tmp_path, times_us(dgx()), gpu="NVIDIA A100-SXM4-80GB"), dgx())
    assert any("the log names NVIDIA A100-SXM4-80GB" in note for note in check.notes)
    assert not any("names" in note for note in check_log(log_of(tmp_path, times_us(dgx())), dgx()).notes)


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.output


def test_command_takes_ranks_and_hosts_from_the_log(tmp_path: Path) -> None:
    found = log_of(tmp_path, times_us(degraded(dgx(2), "scale-out", 0.5)), 2)
    code, output = run("check", found.path, "--cluster", "dgx-h100", "--json", tmp_path / "answer.json")
    assert code == 0, output
    answer = json.loads((tmp_path / "answer.json").read_text())
    assert answer["num_ranks"] == 16
    assert answer["healthy"] is False
    assert answer["likely_cause"]["name"] == "4 of 8 NICs of each node carry the traffic"
    assert answer["verdict"] in output
    assert len(answer["rows"]) == len(SIZES)
    code, _ = run("check", found.path, "--cluster", "dgx-h100", "--fail-if-suspicious")
    assert code == 1


def test_command_draws(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = log_of(tmp_path, times_us(degraded(dgx(), "scale-up", 0.5)))
    code, output = run("check", found.path, "--cluster", "dgx-h100", "--plot", tmp_path / "check.svg")
    assert code == 0, output
    text = (tmp_path / "check.svg").read_text()
    assert text.count("<path") > 20


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "no machine was described"),
        (["--cluster", "dgx-h100", "--gpus", 4], "give --gpus 8"),
        (["--cluster", "dgx-h100", "--op", "alltoall"], "the log is of all_reduce"),
        (["--cluster", "dgx-h100", "--launch", "twice"], "launch"),
    ],
)
def test_command_refuses(tmp_path: Path, arguments: list[str], says: str) -> None:
    code, output = run("check", log_of(tmp_path, times_us(dgx())).path, *arguments)
    assert code == 2
    assert says in output
