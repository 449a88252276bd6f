"""Does trine reproduce ASTRA-sim 3.0's case studies (arXiv 2606.10440) in direction and shape, at small sizes?

These sizes take seconds; examples 30 to 36 and docs/guides/case-studies-loadstore.md have the full tables.
"""

from __future__ import annotations

import pytest

from trine.gpu.cases import CASES, protocols, run_case
from trine.gpu.cases.protocols import LINKS, crossover, ll_simple
from trine.gpu.cases.runs import cost
from trine.gpu.cases.scale_out import JUDGED, PAPER
from trine.gpu.cases.scale_up import all_gather, outstanding, reduce_scatter, unrolling

KIB, MIB = 1 << 10, 1 << 20


def assert_agrees(study):
    """Assert agreement in direction; each finding lists its assumptions, which the paper does not state."""
    assert study.verdict == "agrees in direction", study.text()
    assert not study.agrees
    assert all(finding.assumed for finding in study.findings if finding.verdict)


def test_case_1_get_beats_put_in_a_large_reduce_scatter_and_not_in_a_small_one():
    study = reduce_scatter(sizes=(256 * KIB, 16 * MIB))
    assert_agrees(study)
    small, large = study.column("get ahead %")
    assert small < 0
    assert large > 5


def test_case_2_put_beats_get_in_an_all_gather_and_fair_arbitration_narrows_the_gap():
    study = all_gather(sizes=(64 * KIB, 16 * MIB))
    assert_agrees(study)
    assert study.column("gap fair %")[-1] < study.column("gap fifo %")[-1] / 2
    arbitration = study.findings[1]
    assert "32 wavefronts" in arbitration.assumed
    assert "arbitration changes little" in arbitration.here  # no such effect with 8 wavefronts, the default


def test_case_3_unrolling_helps_large_sizes_up_to_the_limit_of_the_compute_unit():
    study = unrolling(sizes=(64 * KIB, 4 * MIB), unrolls=(1, 2, 4, 8), limits=(64, 128))
    assert_agrees(study)
    large = study.column("4M, limit 128")
    assert large[0] < 0.6 * large[1] < 0.36 * large[2]  # nearly in proportion, until 32 wavefronts x 4 = 128
    assert large[3] == pytest.approx(large[2], rel=0.02)


def test_case_4_the_limit_of_a_compute_unit_saturates_and_small_sizes_do_not_feel_it():
    study = outstanding(sizes=(64 * KIB, 4 * MIB), limits=(32, 64, 512, 1024))
    assert_agrees(study)
    assert study.column("64K") == [study.column("64K")[0]] * 4


def test_case_5_events_are_linear_in_bytes_and_folded_runs_are_exact():
    study = cost(sizes=(MIB, 2 * MIB), gpus=(2, 16), larger=(8 * MIB,), whole=((2, MIB),))
    assert_agrees(study)
    events = dict(
        zip(zip(study.column("GPUs"), study.column("output bytes"), strict=True), study.column("events"), strict=True)
    )
    assert events[16, 8 * MIB] / events[16, 2 * MIB] == pytest.approx(4, rel=0.03)


def test_case_6_total_and_mean_flow_are_within_five_percent_under_every_assumption():
    study = run_case("clos")
    paper, *ours = study.rows
    for row in ours:
        for name in JUDGED:
            place = study.columns.index(name)
            assert row[place] == pytest.approx(paper[place], rel=0.05), (row[0], name)
    first = dict(zip(study.columns, ours[0], strict=True))
    assert first["busbw Gb/s"] == pytest.approx(PAPER["busbw Gb/s"], rel=0.01)
    assert first["flow alone ns"] == pytest.approx(PAPER["flow alone ns"], rel=0.01)
    # A known gap: the paper's slowest flow takes a quarter longer than alone, ours never meet.
    assert first["flow, most ns"] == first["flow alone ns"] < 0.9 * PAPER["flow, most ns"]


@pytest.mark.parametrize("link", LINKS, ids=str)
def test_the_alpha_beta_model_gives_the_papers_crossovers(link):
    assert crossover(link) == link.simple_bytes


def test_which_overheads_give_them(monkeypatch):
    def all_four(overhead_ps):
        monkeypatch.setattr(protocols, "OVERHEAD_PS", overhead_ps)
        return all(crossover(link) == link.simple_bytes for link in LINKS)

    assert [all_four(ps) for ps in (440_000, 460_000, 1_000_000, 1_160_000, 1_180_000)] == [
        False,
        True,
        True,
        True,
        False,
    ]


def test_without_the_pass_over_memory_the_size_follows_the_bandwidth():
    plain = [crossover(link, passes=0) for link in LINKS]
    assert plain[2:] == [4 * size for size in plain[:2]]


def test_simulated_ll_wins_longer_where_latency_is_higher():
    study = ll_simple(links=LINKS[:2])
    near, far = study.column("simulated bytes")
    assert near == LINKS[0].simple_bytes
    assert far == 2 * LINKS[1].simple_bytes  # two latencies more than LL, not one
    sizes, direction, *besides = study.findings
    assert (sizes.verdict, direction.verdict, study.verdict) == ("differs", "agrees in direction", "differs")
    assert all(finding.verdict is None for finding in besides)  # a formula with chosen constants is no evidence


def test_every_case_has_a_question():
    questions = [question for _, question in CASES.values()]
    assert [text.partition(":")[0] for text in questions[:6]] == [f"case {number}" for number in range(1, 7)]
    assert set(CASES) - set(list(CASES)[:6]) == {"ll-simple", "packets"}  # not numbered in the paper


@pytest.mark.slow
def test_packets_are_ahead_up_to_256_kib_on_eight_h100_as_a_library_that_tunes_has_it():
    study = protocols.packets(machines=("dgx-h100",), first=256 * KIB)
    assert study.column("size bytes") == [256 * KIB, 512 * KIB]
    (small, large), (slow, fast) = study.column("packets"), study.column("zero copy")
    assert small < slow
    assert fast < large
    assert [finding.verdict for finding in study.findings] == ["agrees in direction", "differs"]
