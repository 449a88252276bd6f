"""Does `trine check` give one of five verdicts, and exit with 0 only for a healthy run?"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner
from nccl_logs import log, table

from trine.check.compare import check_log
from trine.check.hypotheses import Expected, Hypothesis, expect
from trine.check.likelihood import Weighed, groups_of, probability_of, weigh
from trine.check.nccl_tests import read_log
from trine.check.result import CheckResult
from trine.check.verdict import Verdict, check_curve
from trine.cli.main import app
from trine.cluster import load_cluster
from trine.collectives.nccl import Collectives
from trine.collectives.options import CollectiveOptions

MIB = 1 << 20
SIZES = tuple(1 << power for power in range(10, 33))


@cache
def expected_of(sizes: tuple[int, ...]) -> Expected:
    return expect("all_reduce", sizes, load_cluster("dgx-h100"), CollectiveOptions())


def verdict_of(sizes: Sequence[int], slower: Mapping[int, float] | float) -> Verdict:
    """Return the verdict on predicted times, some of them (or all) slower by a factor."""
    expected = expected_of(tuple(sizes))
    factors = slower if isinstance(slower, Mapping) else dict.fromkeys(sizes, slower)
    times = [round(t.time_ps * factors.get(size, 1.0)) for size, t in zip(sizes, expected.usual, strict=True)]
    return check_curve(expected, times)


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize(
    ("first", "factor", "state"),
    [
        (256 * MIB, 1.1, "healthy"),
        (256 * MIB, 1.6, "slow"),
        (1024 * MIB, 20.0, "slow"),
        (1 * MIB, 1.1, "healthy"),
        (1 * MIB, 20.0, "cannot decide"),
        (8, 4.0, "cannot decide"),
        (16 * MIB, 0.1, "model does not fit"),
    ],
)
def test_few_sizes_decide_only_if_one_is_large(number: int, first: int, factor: float, state: str) -> None:
    sizes = [first << i for i in range(number)]
    found = verdict_of(sizes, factor)
    assert found.state == state
    assert found.noise == ()
    assert (found.suspicious_from is not None) == (state == "slow")
    if state == "cannot decide":
        assert found.reason.startswith(f"{number} of {number} size")
        assert "possible causes: " in found.reason


def test_the_edge_of_256_mib() -> None:
    below = [64 * MIB, 128 * MIB, 255 * MIB]
    assert verdict_of(below, 1.6).state == "cannot decide"
    assert verdict_of([*below[:2], 256 * MIB], {256 * MIB: 1.6}).state == "slow"


def test_a_size_is_isolated_only_between_sizes_inside_the_band() -> None:
    one = verdict_of(SIZES, {MIB: 4.0})
    assert (one.state, one.noise) == ("healthy", (MIB,))
    assert verdict_of(SIZES, {MIB: 4.0, 2 * MIB: 4.0, 4 * MIB: 4.0}).noise == ()
    two = verdict_of(SIZES, {64 * MIB: 2.6, 128 * MIB: 2.6})
    assert (two.state, two.suspicious_from, two.suspicious_to, two.noise) == ("slow", 64 * MIB, 128 * MIB, ())
    apart = verdict_of(SIZES, {64 * MIB: 2.6, 256 * MIB: 2.6})
    assert (apart.state, apart.noise) == ("healthy", (64 * MIB, 256 * MIB))


@pytest.mark.parametrize(("factor", "states"), [(1.0, "healthy"), (1.4, "cannot decide, slow"), (9.0, "slow")])
def test_many_sizes_in_a_fraction_of_an_octave_are_never_called_alone(factor: float, states: str) -> None:
    sizes = [128 * MIB + i * MIB for i in range(6)]
    found = verdict_of(sizes, factor)
    assert found.state in states.split(", ")
    assert found.noise == ()


def test_a_run_twice_as_slow_is_slow() -> None:
    found = verdict_of(SIZES, 2.5)
    assert (found.state, found.suspicious_from, found.suspicious_to) == ("slow", SIZES[0], SIZES[-1])


# -- whole logs --------------------------------------------------------------------------------------------------------


def times_us(sizes: Sequence[int]) -> list[float]:
    library = Collectives(load_cluster("dgx-h100"))
    return [library.predict("all_reduce", size).time_ps / 1e6 for size in sizes]


def text_of(sizes: Sequence[int], factor: float = 1.0, last: int | None = None) -> str:
    rows = [(size, factor * time, factor * time) for size, time in zip(sizes, times_us(sizes), strict=True)]
    text = log(rows, ranks=8).replace("maxBytes 134217728", f"maxBytes {last or sizes[-1]}")
    return text if last is None else text[: text.index("# Out of bounds")]


def answer_of(tmp_path: Path, text: str) -> CheckResult:
    path = tmp_path / "all.log"
    path.write_text(text)
    return check_log(read_log(path), load_cluster("dgx-h100"))


TEXTS = {
    "healthy": lambda: text_of(SIZES),
    "slow": lambda: text_of(SIZES, 2.5),
    "cannot decide": lambda: text_of(SIZES[:2], 6.0),
    "model does not fit": lambda: text_of(SIZES, 0.3),
    "incomplete": lambda: text_of(SIZES[:2], 1.0, SIZES[-1]),
}


@pytest.mark.parametrize("state", TEXTS)
def test_only_healthy_exits_with_zero_and_all_outputs_agree(tmp_path: Path, state: str) -> None:
    answer = answer_of(tmp_path, TEXTS[state]())
    assert (answer.state, answer.healthy) == (state, state == "healthy")
    assert answer.headline.rpartition(": ")[2].startswith(state)
    assert answer.verdict().startswith(state)
    document = answer.document()
    assert (document["state"], document["healthy"]) == (state, state == "healthy")
    arguments = ["check", str(tmp_path / "all.log"), "--cluster", "dgx-h100", "--fail-if-suspicious"]
    assert CliRunner().invoke(app, arguments).exit_code == (0 if state == "healthy" else 1)


@pytest.mark.parametrize("state", ["healthy", "slow", "model does not fit", "incomplete"])
def test_the_title_of_the_picture_is_the_headline(tmp_path: Path, state: str) -> None:
    pytest.importorskip("matplotlib")
    answer = answer_of(tmp_path, TEXTS[state]())
    figure = answer.pictures()["sizes"]()
    assert figure.get_suptitle() == answer.headline.replace(" us", " µs")


def test_a_slow_log_that_ends_early_is_slow_and_the_end_is_noted(tmp_path: Path) -> None:
    answer = answer_of(tmp_path, text_of(SIZES[:-3], 3.0, SIZES[-2]))
    assert answer.state == "slow"
    assert "the log is incomplete: rows end at 512M, the run was to go to 2G" in answer.notes


def test_wrong_results_and_contradicting_numbers_decide_nothing(tmp_path: Path) -> None:
    rows = [(size, time, time) for size, time in zip(SIZES, times_us(SIZES), strict=True)]
    lines = table(rows)
    wrong = "\n".join([*lines[:-1], lines[-1][:-1] + "7"])
    answer = answer_of(tmp_path, wrong)
    assert (answer.state, "the test found wrong results" in answer.verdict()) == ("cannot decide", True)
    contradicting = [
        f"{size} {size // 4} float sum -1 {time:.2f} {3.3 * rate:.2f} {3.3 * 1.75 * rate:.2f} 0"
        for size, time, rate in ((size, time, size / time / 1e3) for size, time, _ in rows)
    ]
    answer = answer_of(tmp_path, "\n".join(contradicting))
    assert answer.state == "cannot decide"
    assert answer.verdict().startswith("cannot decide: time and algbw disagree: size / time is 0.303 times algbw")


def weighed(name: str, times_ps: tuple[int, ...], probability: float) -> Weighed:
    cause = Hypothesis(kind="nics", name=name, advice="", times_ps=times_ps, group=name)
    return Weighed(cause=cause, probability=probability, left=0.1)


def test_causes_within_three_per_cent_are_one_group() -> None:
    first, near = weighed("a", (1000, 2000), 0.4), weighed("b", (1029, 1945), 0.1)
    beyond, other = weighed("c", (1000, 2062), 0.2), weighed("d", (5000, 9000), 0.3)
    groups = groups_of([first, other, beyond, near])
    assert groups == ((first, near), (other,), (beyond,))
    assert probability_of(groups[0]) == 0.5
    assert groups_of([]) == ()


def test_a_slow_run_lists_causes_that_the_sizes_cannot_tell_apart_together() -> None:
    """Half the NICs and one NIC at half of its rate bound a ring alike."""
    cluster = load_cluster("dgx-a100", nodes=2)
    sizes = [1 << i for i in range(20, 34)]
    options = CollectiveOptions()
    expected = expect("all_gather", sizes, cluster, options)
    slow = next(each for each in expected.causes if each.name == "one NIC runs at half of its rate")
    weights = weigh(expected, slow.times_ps)
    groups = groups_of(weights.causes)
    totals = [sum(each.probability for each in group) for group in groups]
    assert all(a >= b - 1e-9 for a, b in itertools.pairwise(totals))
    with_nic = next(group for group in groups[:2] if slow.name in [each.cause.name for each in group])
    assert len(with_nic) > 1
    assert [each for group in groups for each in group] == list(weights.causes)
    verdict = check_curve(expected, slow.times_ps)
    assert verdict.state == "slow"
    assert verdict.cause is not None
    assert slow.name in (verdict.cause.name, *verdict.alike)


def test_the_table_of_causes_joins_those_that_the_sizes_cannot_tell_apart(tmp_path: Path) -> None:
    cluster = load_cluster("dgx-a100", nodes=2)
    sizes = [1 << i for i in range(20, 34)]
    expected = expect("all_gather", sizes, cluster, CollectiveOptions())
    slow = next(each for each in expected.causes if each.name == "one NIC runs at half of its rate")
    rows = [(size, ps / 1e6, ps / 1e6) for size, ps in zip(sizes, slow.times_ps, strict=True)]
    path = tmp_path / "log.txt"
    path.write_text(log(rows, "all_gather", 16, gpu="NVIDIA A100-SXM4-80GB"))
    result = check_log(read_log(path), cluster)
    lines = result.summary().splitlines()
    group = groups_of(result.causes)[0]
    place = next(i for i, line in enumerate(lines) if line.startswith(group[0].cause.name))
    assert f" {probability_of(group):.0%} " in lines[place]
    assert lines[place + 1].strip() == f"or {group[1].cause.name}"
