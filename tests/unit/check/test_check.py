"""Does ``trine check`` call a sound run healthy, and name the fault of an unhealthy one?"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner
from nccl_logs import log, table

from trine.check.compare import check_log
from trine.check.hypotheses import Expected, expect
from trine.check.likelihood import weigh
from trine.check.nccl_tests import NcclLog, read_log
from trine.check.result import FAST, SLOW, CheckResult
from trine.check.verdict import Verdict, check_curve
from trine.cli.main import app
from trine.cluster import Cluster, load_cluster
from trine.collectives.nccl import Collectives
from trine.collectives.options import CollectiveOptions
from trine.errors import InputError

SIZES = tuple(1 << power for power in range(3, 35))


@cache
def dgx(nodes: int = 1) -> Cluster:
    return load_cluster("dgx-h100", nodes=nodes)


def times_us(
    cluster: Cluster, op: str = "all_reduce", options: CollectiveOptions | None = None, sizes: Sequence[int] = SIZES
) -> list[float]:
    asked = Collectives(cluster, None, options)
    return [asked.predict(op, size).time_ps / 1e6 for size in sizes]


def log_of(tmp_path: Path, times: Sequence[float], nodes: int = 1, noise: float = 0.05, **how: str) -> NcclLog:
    """Write and read a log with these times, a few per cent up or down."""
    chance = random.Random(7)
    rows = [
        (size, time * chance.uniform(1 - noise, 1 + noise), time * chance.uniform(1 - noise, 1 + noise))
        for size, time in zip(SIZES, times, strict=True)
    ]
    path = tmp_path / "log.txt"
    path.write_text(log(rows, ranks=8 * nodes, **how))  # type: ignore[arg-type]
    return read_log(path)


@cache
def expected_of(nodes: int) -> Expected:
    return expect("all_reduce", SIZES, dgx(nodes), CollectiveOptions())


def verdict_of(found: NcclLog, nodes: int, step: int) -> Verdict:
    """Return the verdict on every ``step``-th size, with the expectation that `check_log` has for the whole log."""
    places = range(0, len(SIZES), step)
    times = [row.out_of_place.time_ps for row in found.rows[::step] if row.out_of_place]
    return check_curve(expected_of(nodes).at(places), times)


def thinned(found: NcclLog, step: int) -> NcclLog:
    """Return the log with only every ``step``-th size."""
    return replace(found, rows=found.rows[::step])


def degraded(cluster: Cluster, link_class: str, factor: float) -> Cluster:
    links = [
        replace(link, bytes_per_s=round(link.bytes_per_s * factor)) if link.link_class == link_class else link
        for link in cluster.links
    ]
    return replace(cluster, links=tuple(links))


def names(check: CheckResult) -> str:
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


FAULTS = {
    "half of the NICs": (2, lambda: times_us(degraded(dgx(2), "scale-out", 0.5))),
    "a quarter of the network": (2, lambda: times_us(degraded(dgx(2), "scale-out", 0.25))),
    "half of the NVLinks": (1, lambda: times_us(degraded(dgx(), "scale-up", 0.5))),
    "ring and ll": (1, lambda: times_us(dgx(), options=CollectiveOptions(algorithm="ring", protocol="ll"))),
    "one channel": (1, lambda: times_us(dgx(), options=CollectiveOptions(max_channels=1))),
    "40 us late": (1, lambda: [time + 40 for time in times_us(dgx())]),
    "40 % of the speed": (1, lambda: [time / 0.4 for time in times_us(dgx())]),
    "large sizes alone": (
        1,
        lambda: [t * (3 if s >= 1 << 26 else 1) for s, t in zip(SIZES, times_us(dgx()), strict=True)],
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_verdict_and_cause_do_not_hang_on_how_densely_one_measured(tmp_path: Path, fault: str) -> None:
    nodes, times = FAULTS[fault]
    found = log_of(tmp_path, times(), nodes)
    checks = [verdict_of(found, nodes, step) for step in (1, 2, 3)]
    assert [check.suspicious_from is None for check in checks] == [False] * 3
    kinds = [None if check.cause is None else check.cause.kind for check in checks]
    assert kinds == [kinds[0]] * 3


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_sound_run_is_healthy_however_densely_one_measured(tmp_path: Path, nodes: int) -> None:
    found = log_of(tmp_path, times_us(dgx(nodes)), nodes)
    assert [verdict_of(found, nodes, step).suspicious_from for step in (1, 2, 3, 5, 30)] == [None] * 5


def test_more_rows_in_the_same_octaves_add_little_evidence() -> None:
    """A machine that is 1.3 times slower throughout is equally suspicious with 1 to 16 sizes per octave."""
    odds = []
    for per_octave in (1, 2, 4, 16):
        sizes = sorted({4 * round(2 ** (power / per_octave) / 4) for power in range(20 * per_octave, 30 * per_octave)})
        expected = expect("all_reduce", sizes, dgx(), CollectiveOptions())
        odds.append(check_curve(expected, [round(1.3 * each.time_ps) for each in expected.usual]).log_odds)
    assert max(odds) - min(odds) < 1.5


@pytest.mark.parametrize(("factor", "seed"), [(f, s) for f in (1.0, 1.25, 1.5, 2.5) for s in range(3)])
def test_the_text_never_contradicts_its_table(tmp_path: Path, factor: float, seed: int) -> None:
    chance = random.Random(seed)
    first = chance.randrange(len(SIZES) - 4)
    times = [t * (factor if i >= first else 1) * chance.lognormvariate(0, 0.12) for i, t in enumerate(times_us(dgx()))]
    check = check_log(log_of(tmp_path, times), dgx())
    *table, verdict = [line for line in check.table().splitlines() if not line.startswith("# causes compared")]
    marked = [line for line in table if line.endswith("slow")]
    summary = check.summary()
    assert sum(line.endswith("slow") for line in summary.splitlines()) == len(marked)
    assert verdict.removeprefix("# ") in " ".join(summary.split())
    if check.healthy:
        named = sum("slow at " in line for line in table) and len(check.noise)
        left = len(marked) - named
        fast = sum(line.endswith("fast") for line in table)
        slow = f"; {left} of {len(SIZES)} sizes slow (worst " if left else ""
        assert verdict.startswith(f"# healthy: no fault found{slow}")
        assert ("sizes slow" in verdict, "faster than predicted" in verdict) == (left > 0, fast > 0)
        assert not fast or f"; {fast} faster than predicted (worst " in verdict
        assert not check.causes
        return
    if check.state != "slow":
        assert verdict.startswith(f"# {check.state}: ")
        assert (check.suspicious_from, check.cause) == (None, None)
        return
    assert check.suspicious_from is not None
    assert check.suspicious_to is not None
    within = [row for row in check.rows if check.suspicious_from <= row.size_bytes <= check.suspicious_to]
    slow = [row for row in within if row.state == SLOW]
    assert f"{len(slow)} of {len(within)} size" in verdict
    if check.cause is not None:
        assert check.cause is check.causes[0].cause
        assert check.cause.name in verdict
        assert [each.probability for each in check.causes] == sorted(
            (x.probability for x in check.causes), reverse=True
        )


def test_two_gh200_nodes_as_they_should_be_and_without_their_network(tmp_path: Path) -> None:
    """Published measurements of a real fault: the network plug-in was switched off, and NCCL used TCP."""
    data = Path(__file__).parents[3] / "examples" / "data"
    cluster = load_cluster("gh200-node", nodes=2)
    for step, state in ((1, "cannot decide"), (2, "model does not fit")):  # sizes in the middle are 1.4 to 3 times slow
        sound = check_log(thinned(read_log(data / "gh200-8.log"), step), cluster)
        assert (sound.state, sound.noise) == (state, ())
        sick = check_log(thinned(read_log(data / "gh200-8-tcp.log"), step), cluster)
        assert sick.suspicious_from == 8


def test_two_gh200_nodes_without_their_network_are_nearest_to_tcp() -> None:
    """Their sockets reach an eighth of the catalogue's Ethernet bandwidth, as on the network of nccl#450."""
    cluster = load_cluster("gh200-node", nodes=2)
    log = read_log(Path(__file__).parents[3] / "examples" / "data" / "gh200-8-tcp.log")
    for step in (1, 2):
        check = check_log(thinned(log, step), cluster)
        assert check.causes[0].cause.kind == "tcp"
        assert (check.cause.kind if check.cause else None) == ("tcp" if step == 1 else None)
        assert min(check.causes, key=lambda each: each.left).cause.kind == "tcp"


def test_a_cause_with_an_unknown_number_is_judged_by_the_number_that_is_nearest() -> None:
    """A weak prior does not decide the nearest cause: TCP at each share explains its own curve completely."""
    expected = expect("all_reduce", SIZES, dgx(2), CollectiveOptions())
    for cause in expected.causes:
        if cause.kind == "tcp":
            left = {each.cause.name: each.left for each in weigh(expected, cause.times_ps).causes}
            assert left[cause.name] == 0


@pytest.mark.parametrize("delay_us", [92, 100, 106, 108.5])
def test_a_delay_close_to_the_shortest_time_is_named_to_one_per_cent(delay_us: float) -> None:
    """Candidate delays end at the shortest measured time, here 107.6 of 120 us; the best one lies in between."""
    expected = expected_of(1)
    measured = [round(each.time_ps + delay_us * 1e6) for each in expected.usual]
    cause = check_curve(expected, measured).cause
    assert cause is not None
    assert cause.kind == "late"
    assert cause.times_ps[0] - expected.usual[0].time_ps == pytest.approx(delay_us * 1e6, rel=0.01)


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
    assert "slow from 16K to 512K" in check.table()


def test_a_prediction_that_is_too_slow_fits_another_machine(tmp_path: Path) -> None:
    check = check_log(log_of(tmp_path, [time / 4 for time in times_us(dgx())]), dgx())
    assert (check.state, check.healthy, check.suspicious_from) == ("model does not fit", False, None)
    assert all(row.state == FAST for row in check.rows)
    assert "model does not fit: 32 of 32 sizes lie below the band" in check.table()
    assert "the cluster's numbers may be too low" in check.table()


def test_no_call_is_delayed_by_more_than_the_shortest_takes(tmp_path: Path) -> None:
    """Small sizes take 100 us and large ones are slow for another reason: a delay of more than 100 us is impossible."""
    times = [
        max(100.0, 4 * time) + (250 if size > 1 << 16 else 0) for size, time in zip(SIZES, times_us(dgx()), strict=True)
    ]
    check = check_log(log_of(tmp_path, times, noise=0.0), dgx())
    assert not check.healthy
    delays = [float(each.cause.name.split()[3]) for each in check.causes if each.cause.kind == "late"]
    assert delays
    assert all(delay <= 100.5 for delay in delays)


def test_a_cause_that_explains_a_part_only_is_said_to(tmp_path: Path) -> None:
    times = [time + 60 if size < 1 << 22 else 2.5 * time for size, time in zip(SIZES, times_us(dgx()), strict=True)]
    check = check_log(log_of(tmp_path, times, noise=0.02), dgx())
    if check.cause is not None and check.cause.kind == "late":
        assert check.unexplained_from is not None
        assert "the run is slower than this cause explains" in check.verdict()


def test_what_the_log_states_is_the_cause(tmp_path: Path) -> None:
    found = log_of(tmp_path, times_us(degraded(dgx(2), "scale-out", 0.2)), 2)
    assert check_log(found, dgx(2)).stated == ""
    for known in ({"network": "Socket"}, {"environment": {"IB_DISABLE": "1"}}):
        check = check_log(replace(found, **known), dgx(2))  # type: ignore[arg-type]
        assert names(check).startswith("nodes talk by TCP instead of RDMA")
        assert check.stated.startswith("the log s")
        assert check.stated in check.verdict()
    assert all(each.cause.kind != "tcp" for each in check_log(replace(found, network="IB"), dgx(2)).causes)
    slow = log_of(tmp_path, times_us(degraded(dgx(), "scale-up", 0.3)))
    check = check_log(replace(slow, environment={"P2P_DISABLE": "1"}), dgx())
    assert names(check) == "GPUs talk over PCIe instead of NVLink or XGMI"
    hinted = check_log(replace(slow, environment={"SHM_DISABLE": "1"}), dgx())
    assert "NCCL_SHM_DISABLE=1" in hinted.verdict()


def test_one_host_is_not_a_cluster_of_two(tmp_path: Path) -> None:
    """A single process with 16 GPUs: TCP and other network faults are not causes."""
    counts = "# nThread 1 nGpus 16 minBytes 8 maxBytes 4294967296 step: 2(factor)\n"
    rows = [(size, 3 * time, 3 * time) for size, time in zip(SIZES, times_us(dgx(2)), strict=True)]
    path = tmp_path / "log.txt"
    path.write_text(counts + "\n".join(table(rows, ranks=16)))
    check = check_log(read_log(path), dgx(2))
    assert (check.state, check.causes, check.cause) == ("model does not fit", (), None)
    assert "the log is of 1 host with 16 ranks, the cluster has 2 nodes" in check.verdict()


def test_a_known_mismatch_stops_the_diagnosis(tmp_path: Path) -> None:
    slow = [5 * time for time in times_us(dgx())]
    check = check_log(log_of(tmp_path, slow, gpu="NVIDIA A100-SXM4-80GB"), dgx())
    assert (check.state, check.causes) == ("model does not fit", ())
    assert check.table().splitlines()[-1].startswith("# model does not fit: the log names NVIDIA A100")
    for name in ("NVIDIA H100 PCIe", "NVIDIA H200", "Tesla T4", "NVIDIA H20"):
        assert check_log(log_of(tmp_path, slow, gpu=name), dgx()).state == "model does not fit"
    stand_in = check_log(log_of(tmp_path, slow, gpu="NVIDIA A30"), dgx())
    assert (stand_in.state, "the log names NVIDIA A30, the cluster has h100-sxm" in stand_in.notes) == (
        "slow",
        True,
    )
    for name in ("NVIDIA H100 80GB HBM3", "NVIDIA Graphics Device"):
        assert check_log(log_of(tmp_path, slow, gpu=name), dgx()).state == "slow"


def test_a_cluster_with_too_slow_a_network_does_not_fit(tmp_path: Path) -> None:
    """The description has a third of the measured machine's network: predictions are 3x too slow at large sizes."""
    described = degraded(dgx(2), "scale-out", 0.3)
    check = check_log(log_of(tmp_path, times_us(dgx(2)), 2), described)
    assert check.state == "model does not fit"
    assert "times faster than predicted" in check.verdict()
    document = check.document()
    assert (document["state"], document["likely_cause"]) == ("model does not fit", None)


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


def test_hosts_that_the_log_does_not_list_are_noted(tmp_path: Path) -> None:
    found = log_of(tmp_path, times_us(dgx()))
    assert not any("does not list" in note for note in check_log(found, dgx()).notes)
    notes = check_log(replace(found, num_hosts=None), dgx()).notes
    assert "the log does not list all hosts: 8 ranks on 1 node taken (--nodes)" in notes


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
    assert answer["verdict"] in " ".join(output.split())
    assert len(answer["rows"]) == len(SIZES)
    code, _ = run("check", found.path, "--cluster", "dgx-h100", "--fail-if-suspicious")
    assert code == 1


def test_given_gpus_overrule_an_uncertain_number_of_ranks(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text("\n".join(table([(1 << p, 2**p / 25e3, 2**p / 25e3) for p in (28, 30)], ranks=512)))
    code, output = run("check", path, "--cluster", "dgx-h100")
    assert (code, "of 512 ranks" in output, "fits 435 to 588 ranks" in " ".join(output.split())) == (0, True, True)
    for ranks in (480, 256):
        code, output = run("check", path, "--cluster", "dgx-h100", "--gpus", ranks)
        assert (code, f"of {ranks} ranks" in output) == (0, True), output
    code, output = run("check", path, "--cluster", "dgx-h100", "--gpus", 8)
    assert (code, "--op or --gpus contradicts the log" in " ".join(output.split())) == (0, True)


def test_given_options_overrule_the_log_with_a_note(tmp_path: Path) -> None:
    path = log_of(tmp_path, times_us(dgx())).path
    code, output = run("check", path, "--cluster", "dgx-h100", "--gpus", 4, "--op", "alltoall")
    text = " ".join(output.split())
    assert (code, "all_to_all of 4 ranks" in text) == (0, True), output
    assert "the log names all_reduce; --op all_to_all overrules it" in text
    assert "the log shows 8 ranks (the device lines); --gpus 4 overrules it" in text
    assert "busbw / algbw is 1.750 in the log, but 0.750 for all_to_all of 4 ranks" in text


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
        ([], "add a machine: "),
        (["--cluster", "dgx-h100", "--op", "allreduces"], "unknown collective"),
        (["--cluster", "dgx-h100", "--launch", "twice"], "launch"),
    ],
)
def test_command_refuses(tmp_path: Path, arguments: list[str], says: str) -> None:
    code, output = run("check", log_of(tmp_path, times_us(dgx())).path, *arguments)
    assert code == 2
    assert says in output
