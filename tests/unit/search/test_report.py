"""The answer of a search: terms, notes, one screen, rows."""

import dataclasses

import pytest

from trine.common.evidence import Evidence
from trine.common.units import PS_PER_S
from trine.results.text import MAX_LINES, fitted
from trine.search.ranked import Ranked
from trine.search.report import PlanSearch, pareto, words
from trine.search.space import Layout
from trine.search.worker import Outcome

LAYOUT = Layout(
    dp=4, tp=8, pp=8, cp=1, ep=1, etp=None, sharding="zero1", shard_ways=None, schedule="interleaved", virtual_stages=5,
    micro_batch=1, sequence_parallel=True, recompute="selective", offload="none",
)  # fmt: skip
GIB = 2**30


def ranked(seconds, memory_gib, **layout):
    ps = round(seconds * PS_PER_S)
    outcome = Outcome(
        step_ps=ps, low_ps=round(0.9 * ps), high_ps=round(1.1 * ps), tokens=8_388_608, samples=1024, mfu=0.4,
        compute_ps=round(0.8 * ps), exposed_ps=round(0.1 * ps), bubble_ps=round(0.1 * ps), idle_ps=0,
        communication={"tp": round(0.2 * ps), "cp+dp": 5}, memory_bytes=memory_gib * GIB, capacity_bytes=80 * GIB,
        verdict="fits",
    )  # fmt: skip
    return Ranked(LAYOUT._replace(**layout), outcome, round(0.95 * ps))


def answer(*results, **changes):
    values = {
        "model": "llama-3-70b", "gpus": 256, "gpu": "h100-sxm", "cluster": "dgx-h100", "software": "megatron-core",
        "global_batch": 1024, "sequence": 8192, "layers": 80, "num_layouts": 90_000, "num_simulated": 50,
        "ranked": results, "command": "trine train llama-3-70b --dp 4 --tp 8 --pp 8 --cluster dgx-h100 --nodes 32",
        "rejected": {f"a reason with the number {n}, which takes some more words": 10_000 * n for n in range(1, 9)},
    }  # fmt: skip
    return PlanSearch(**{**values, **changes})


def test_parts_of_the_step_add_up_and_show_the_difference():
    terms = {row["term"]: row for row in answer(ranked(10, 60), ranked(11, 50, dp=8, pp=4)).terms()}
    parts = [terms[name] for name in ("compute", "exposed communication", "bubble")]
    assert sum(row["first_s"] for row in parts) == pytest.approx(10)
    assert sum(row["difference_s"] for row in parts) == pytest.approx(1)
    assert terms["step"]["first_s"] == pytest.approx(sum(row["first_s"] for row in parts))
    assert "other waits" not in terms  # zero in both
    assert terms["transfers tp"]["second_s"] == pytest.approx(2.2)


def test_one_screen_shows_the_terms_that_differ_most():
    first, second = ranked(10, 60), ranked(10.7, 50)
    longer = dataclasses.replace(second.outcome, compute_ps=first.outcome.compute_ps, bubble_ps=round(1.63 * PS_PER_S))
    result = answer(first, second._replace(outcome=longer))
    assert [line.split()[0] for line in result._terms(1)[1:-1]] == ["bubble"]
    assert [line.split()[0] for line in result._terms(2)[1:-1]] == ["exposed", "bubble"]


def test_a_step_with_time_outside_of_its_parts_shows_the_rest():
    result = ranked(10, 60)
    result = result._replace(outcome=dataclasses.replace(result.outcome, bubble_ps=0))
    terms = {row["term"]: row["first_s"] for row in answer(result, result).terms()}
    assert terms["rest"] == pytest.approx(1)


def test_layouts_within_the_resolution_are_called_a_tie():
    plain, offloaded = ranked(10.1, 60), ranked(10, 60, offload="optimizer")
    tie = answer(plain, offloaded, ranked(11, 50), node_gpus=8).tie
    assert "layouts 1 and 2 are a tie (within 2%)" in tie
    assert "faster by 1.0%; more offload" in tie
    assert answer(plain, ranked(11, 50)).tie == ""


def test_a_first_layout_with_offload_names_the_fastest_without():
    offloaded = ranked(10, 60, offload="optimizer")
    note = answer(offloaded, ranked(10.5, 60, tp=4, offload="optimizer"), ranked(10.8, 60, dp=8)).offload
    assert note == "number 3 is the fastest listed without offload to the host, 8.0% slower"
    assert note in " ".join(answer(offloaded, ranked(10.8, 60, dp=8)).summary().split()).replace("number 2", "number 3")
    assert answer(offloaded).offload == "no simulated layout does without offload to the host"
    assert answer(ranked(10, 60), offloaded).offload == ""


def test_a_simulated_layout_without_offload_that_is_not_listed_is_named():
    offloaded, plain = ranked(10, 60, offload="optimizer"), ranked(10.8, 60, dp=8)
    note = answer(offloaded, simulated=(offloaded, plain)).offload
    assert note == f"{words(plain.layout)} is the fastest simulated without offload to the host, 8.0% slower"
    near = answer(offloaded, estimated(10.8, 60, dp=8), simulated=(offloaded, plain)).offload
    assert near.endswith("without offload to the host, about 8.0% slower")
    assert answer(offloaded, estimated(9.9, 60, dp=8)).offload.endswith(", about 1.0% faster")


def test_a_given_layout_is_compared_in_words():
    first = ranked(10, 60)
    assert answer(first, given=first).comparison == "your layout is the first"
    slower = answer(first, given=ranked(12, 60, dp=8)).comparison
    assert slower == "your layout is 20.0% slower than the first, mostly compute (+1.6 s)"
    assert "ties with the first: 1.0% slower" in answer(first, given=ranked(10.1, 60, dp=8)).comparison


def test_the_screen_prints_its_error():
    text = answer(ranked(10, 60), screen_errors=(0.001, -0.002, 0.01), num_screened=8000).screen
    assert text == "screen: estimated 8,000 of 90,000 layouts, off by 0.2% on the 3 simulated (at most 1.0%)"


def test_overlapping_ranges_are_noted():
    assert "10.0% ahead of the second, and their likely" in answer(ranked(10, 60), ranked(11, 50)).overlap
    assert answer(ranked(10, 60), ranked(15, 50)).overlap == ""
    assert answer(ranked(10, 60)).overlap == ""


@pytest.mark.parametrize("columns", [60, 80, 100])
@pytest.mark.parametrize("count", [1, 5, 40])
def test_the_answer_fits_one_screen(columns, count):
    results = [ranked(10 + n, 60, micro_batch=n + 1) for n in range(count)]
    with fitted(columns):
        lines = answer(*results, given=ranked(20, 30)).summary().splitlines()
    assert len(lines) <= MAX_LINES
    command = next(n for n, line in enumerate(lines) if line.startswith("next"))
    assert max(map(len, lines[:command])) <= columns
    assert lines[command].split()[1] == "trine"


def test_the_frontier_has_no_layout_that_another_beats_in_both():
    points = [ranked(10, 60), ranked(11, 70), ranked(12, 40), ranked(13, 40), ranked(14, 20)]
    frontier = pareto(reversed(points))
    assert [each.outcome.step_ps // PS_PER_S for each in frontier] == [10, 12, 14]


def test_words_name_what_differs_from_the_default():
    assert words(LAYOUT) == "dp 4 x tp 8 x pp 8, interleaved 5, mb 1, zero1, sp, recompute selective"
    plain = LAYOUT._replace(dp=8, tp=1, pp=1, schedule=None, virtual_stages=1, sharding="none", sequence_parallel=None,
                            recompute="none")  # fmt: skip
    assert words(plain) == "dp 8, mb 1"


def test_rows_are_a_data_frame():
    frame = answer(ranked(10, 60), ranked(11, 50)).to_frame()
    assert list(frame["step_time_s"]) == [10.0, 11.0]
    assert list(frame["tp"]) == [8, 8]
    assert {row["reason"] for row in answer(ranked(10, 60)).document()["rejected"]}


def estimated(seconds, memory_gib, **layout):
    """Return a layout that the screen estimates, from a simulated one of 10 s."""
    simulated = ranked(10, 60)
    outcome = simulated.outcome.estimated(round(seconds * PS_PER_S), memory_gib * GIB)
    return Ranked(LAYOUT._replace(**layout), outcome, 0)


def test_estimated_rows_are_marked_and_have_no_parts():
    found = answer(ranked(10, 60), estimated(11, 50, dp=2), ranked(12, 40, dp=8), screen_errors=(0.01,))
    rows = found.document()["layouts"]
    assert [row["is_estimated"] for row in rows] == [False, True, False]
    assert rows[1]["step_time_s"] == pytest.approx(11)
    assert rows[1]["mfu"] == pytest.approx(0.4 * 10 / 11)
    assert rows[1]["tokens_per_s"] == pytest.approx(rows[0]["tokens_per_s"] * 10 / 11)
    assert [rows[1][name] for name in ("compute_s", "bubble_s", "idle_s", "step_time_low_s")] == [None] * 4
    assert rows[0]["idle_s"] == 0
    assert "about 11 s" in found.details()
    assert "row 2 is estimated" in found.screen


def test_the_first_is_compared_with_the_next_simulated_layout():
    found = answer(ranked(10, 60), estimated(10.5, 50, dp=2), ranked(11, 40, dp=8))
    terms = {row["term"]: row for row in found.terms()}
    assert terms["step"]["second_s"] == pytest.approx(11)
    assert "first and number 3" in found.summary()
    assert "ahead of number 3" in found.overlap
    assert answer(ranked(10, 60), estimated(11, 50)).terms() == []


@pytest.mark.parametrize("seconds", [9.5, 9.99, 10.01])
def test_estimated_layouts_are_no_part_of_a_tie(seconds):
    first, tying = ranked(10, 60), ranked(10.05, 60, dp=8)
    assert answer(first, estimated(seconds, 50, dp=2)).tied == [first]
    assert answer(first, estimated(seconds, 50, dp=2)).tie == ""
    assert "layouts 1 and 3 are a tie (within 2%)" in answer(first, estimated(seconds, 50, dp=2), tying).tie


def test_the_answer_states_what_it_assumes_about_the_request():
    batch = Evidence("global batch", "assumed", "1,024 samples; a source")
    found = answer(ranked(10, 60), assumptions=(batch,))
    assert "global batch 1,024 samples; a source (--global-batch sets another)" in found.notes[0]
    assert batch in found.evidence
    assert "assumed" not in answer(ranked(10, 60)).summary()
