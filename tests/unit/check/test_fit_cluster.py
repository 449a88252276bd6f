"""Does the fit of a cluster recover the links and the spread of logs that trine wrote with known ones?"""

import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import trine
from trine.check.fit_cluster import LARGE_OCTAVES, _run_of, _weights, fit_cluster
from trine.check.nccl_tests import read_log
from trine.cli.main import app
from trine.cluster import load_cluster
from trine.cluster.parts import SCALE_OUT, SCALE_UP
from trine.collectives.nccl import Collectives
from trine.errors import InputError

SIZES = tuple(2**i for i in range(12, 34, 2))


def changed(cluster, link_class, rate, latency):
    """Return the cluster with the bandwidth and latency of a class of links multiplied."""
    table = cluster.link_table
    numbers = tuple(
        replace(link, bytes_per_s=round(link.bytes_per_s * rate), latency_ps=round(link.latency_ps * latency))
        if link.link_class == link_class
        else link
        for link in table.numbers
    )
    return replace(cluster, links=replace(table, numbers=numbers), cut_from=None, degraded_from=())


def write_log(path, cluster, noise, seed=0, repeats=1, op="all_reduce", sizes=SIZES):
    """Write a log with trine's times for the cluster, times lognormal noise."""
    draws, model, ranks = random.Random(seed), Collectives(cluster), len(cluster.gpus)
    nodes = len({cluster.devices[gpu].node for gpu in cluster.gpus})
    lines = [f"# nThread 1 nGpus 1 minBytes 4096 maxBytes 8589934592 step: 2(factor)\n# {op}_perf"]
    lines += [
        f"#  Rank {i:2} Group  0 Pid  {100 + i} on  node{i * nodes // ranks} device {i % 8:2} [0x0{i % 8}] NVIDIA H100"
        for i in range(ranks)
    ]
    result = "   time   algbw   busbw #wrong"
    lines += [f"#  size  count  type  redop  root  {result}  {result}", "#  (B)  (elements)  (us)  (GB/s)  (GB/s)"]
    for size in sizes:
        for _ in range(repeats):
            us = model.predict(op, size).time_ps / 1e6 * math.exp(draws.gauss(0, noise))
            rate = size / us / 1e3
            cells = f"{us:.2f} {rate:.3f} {rate * 2 * (ranks - 1) / ranks:.3f} 0"
            lines.append(f"  {size} {size // 4} float sum -1 {cells} {cells}")
    path.write_text("\n".join(lines) + "\n")
    return read_log(path)


@pytest.mark.parametrize(("rate", "latency"), [(1.0, 1.0), (0.7, 3.0), (1.2, 0.5), (0.45, 8.0)])
def test_links_inside_a_node_are_recovered(tmp_path, rate, latency):
    """Factors of logs with 2 % of noise come back within 4 % (bandwidth) and a fifth of a microsecond per step."""
    base = load_cluster("dgx-h100")
    log = write_log(tmp_path / "a.log", changed(base, SCALE_UP, rate, latency), 0.02, seed=3, repeats=3)
    fit = fit_cluster(base, [log])
    links = fit.links[0]
    assert links.bandwidth == pytest.approx(rate, rel=0.04)
    assert links.latency == pytest.approx(latency, rel=0.15, abs=0.6)
    assert fit.error_after < 0.02
    assert fit.spread == pytest.approx(0.02, rel=0.35)
    assert "repeated sizes" in fit.spread_from


@pytest.mark.slow
def test_a_fabric_is_recovered_from_logs_of_two_nodes(tmp_path):
    """A log of one node and one of two tell links inside from links between."""
    base = load_cluster("dgx-h100")
    two = load_cluster("dgx-h100", nodes=2)
    slow = changed(changed(two, SCALE_UP, 0.8, 1.0), SCALE_OUT, 0.5, 2.0)
    logs = [write_log(tmp_path / "one.log", changed(base, SCALE_UP, 0.8, 1.0), 0.01, 1),
            write_log(tmp_path / "two.log", slow, 0.01, 2)]  # fmt: skip
    fit = fit_cluster(base, logs, name="ours")
    inside, between = fit.links
    assert (inside.link_class, between.link_class) == (SCALE_UP, SCALE_OUT)
    assert inside.bandwidth == pytest.approx(0.8, rel=0.03)
    assert between.bandwidth == pytest.approx(0.5, rel=0.03)
    assert fit.error_after < 0.02 < fit.error_before
    assert len(fit.cluster.gpus) == 16


def test_the_file_reads_back_and_widens_the_range_of_a_step(tmp_path):
    """The spread of the file widens the likely range by the exposed communication's 80 % interval."""
    base = load_cluster("dgx-h100")
    log = write_log(tmp_path / "a.log", base, 0.08, seed=5, repeats=6)
    fit = fit_cluster(base, [log])
    fit.save(tmp_path / "ours.yaml")
    cluster = load_cluster(tmp_path / "ours.yaml")
    assert cluster.spread == pytest.approx(0.08, rel=0.3)
    assert (cluster.link_table.bytes_per_s == fit.cluster.link_table.bytes_per_s).all()
    plan = trine.Plan(dp=8)
    with_spread = trine.simulate("vgg13-h100-b128", plan, cluster=cluster)
    without = trine.simulate("vgg13-h100-b128", plan, cluster=replace(cluster, spread=None))
    assert with_spread.step_time_ps == without.step_time_ps
    far = math.exp(1.2815515655446004 * cluster.spread)
    reach = round(with_spread.exposed_communication_s * 1e12) * (far - 1)
    low, high = with_spread.band.ends_ps(with_spread)
    assert high >= with_spread.step_time_ps + reach - 2
    assert low <= with_spread.step_time_ps - reach / far + 2
    assert "varies by" in with_spread.band.words


def test_large_sizes_weigh_as_much_as_all_others(tmp_path):
    """With n of m sizes within LARGE_OCTAVES of the largest, each of them weighs m / 2n, the others m / 2(m - n)."""
    log = write_log(tmp_path / "a.log", load_cluster("dgx-h100"), 0.0)
    run = _run_of(log, load_cluster("dgx-h100"))
    largest = max(SIZES)
    is_large = [size >= largest / 2**LARGE_OCTAVES for size in SIZES]
    expected = [len(SIZES) / 2 / (is_large.count(True) if each else is_large.count(False)) for each in is_large]
    assert 0 < is_large.count(True) < len(SIZES) / 2
    assert _weights([run]) == pytest.approx(expected)
    assert sum(_weights([run, run])) == pytest.approx(2 * len(SIZES))


def test_a_stray_size_hardly_moves_the_fit(tmp_path):
    """One large size at ten times its time: the bandwidth stays within 8 %."""
    base = load_cluster("dgx-h100")
    write_log(tmp_path / "a.log", base, 0.01, seed=1)
    lines = (tmp_path / "a.log").read_text().splitlines()
    cells = lines[-2].split()
    for time in (5, 9):
        cells[time] = f"{float(cells[time]) * 10:.2f}"
        cells[time + 1], cells[time + 2] = (f"{float(cells[time + i]) / 10:.3f}" for i in (1, 2))
    (tmp_path / "b.log").write_text("\n".join([*lines[:-2], "  ".join(cells), lines[-1]]) + "\n")
    fits = [fit_cluster(base, [read_log(tmp_path / name)]).links[0].bandwidth for name in ("a.log", "b.log")]
    assert fits[1] == pytest.approx(fits[0], rel=0.08)


@pytest.mark.slow
def test_a_real_log_fits_better_than_before():
    """Eight GH200 on a public machine (examples/data/gh200-8.log)."""
    log = read_log(Path(__file__).parents[3] / "examples" / "data" / "gh200-8.log")
    fit = fit_cluster("gh200-node", [log])
    assert fit.error_after < fit.error_before
    assert fit.num_sizes >= 4


def test_refusals_and_the_command(tmp_path):
    base = load_cluster("dgx-h100")
    log = write_log(tmp_path / "a.log", base, 0.02)
    with pytest.raises(InputError, match="has 8 ranks on 1 nodes"):
        fit_cluster(load_cluster("dgx-h100", gpus=4), [log])
    with pytest.raises(InputError, match="at least one log"):
        fit_cluster(base, [])
    target = tmp_path / "ours.yaml"
    found = CliRunner().invoke(app, ["calibrate", "--cluster", "dgx-h100", str(tmp_path / "a.log"), "-o", str(target)])
    assert found.exit_code == 0, found.output
    assert "dgx-h100 fitted to 11 sizes of 1 log:" in " ".join(found.output.split())
    assert load_cluster(target).name == "ours"
    assert CliRunner().invoke(app, ["calibrate", "--cluster", "dgx-h100"]).exit_code == 2


def test_a_misfit_widens_the_range_and_is_not_measured():
    """The log of a broken fabric: what the links do not explain counts as spread."""
    log = read_log(Path(__file__).parents[3] / "examples/data/gh200-8.log")
    fit = fit_cluster("gh200-node", [log])
    assert fit.error_after > 0.3
    assert fit.spread == fit.error_after
    assert fit.cluster.evidence == "assumed"


@pytest.mark.parametrize(
    ("sizes", "unchanged", "fitted"),
    [(SIZES[-4:], "latency", "bandwidth"), ((8, 16, 32, 64, 128, 256), "bandwidth", "latency")],
)
def test_a_factor_that_the_logs_do_not_determine_is_unchanged(tmp_path, sizes, unchanged, fitted):
    """Large sizes show no latency, a few bytes no bandwidth; the other factor is still fitted."""
    base = load_cluster("dgx-h100")
    log = write_log(tmp_path / "a.log", changed(base, SCALE_UP, 0.7, 4.0), 0.02, seed=1, sizes=sizes)
    fit = fit_cluster(base, [log])
    assert getattr(fit.links[0], unchanged) == 1
    assert abs(math.log(getattr(fit.links[0], fitted))) > 0.1
    assert f"the logs do not determine the {unchanged} of scale-up links: unchanged" in fit.notes


def test_a_fitted_bandwidth_is_at_most_the_data_sheets(tmp_path):
    base = load_cluster("dgx-h100")
    log = write_log(tmp_path / "a.log", changed(base, SCALE_UP, 1.6, 1.0), 0.01)
    fit = fit_cluster(base, [log])
    for link in fit.cluster.links:
        assert link.peak_bytes_per_s is None or link.bytes_per_s <= link.peak_bytes_per_s * (1 + 1e-9)
    assert fit.links[0].bandwidth == pytest.approx(25 / 20.6, rel=1e-3)
    assert any("is at its data sheet" in note for note in fit.notes)
