"""Does every schedule have its published bubble, with equal stages and wires that take no time?"""

import pytest
from pipelines import US, run, stack

FORWARD, INPUT, WEIGHT = 30 * US, 30 * US, 20 * US  # gradients of activations, of weights


def bubbles(result):
    return result.rank_times.bubble.tolist(), result.rank_times.compute.tolist()


def near(found, expected, slack_ps):
    """Return whether all times are near ``expected``: each message takes a picosecond and may lengthen a bubble."""
    return all(expected - slack_ps <= one <= expected + slack_ps for one in found)


@pytest.mark.parametrize("ranks", range(2, 9))
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_flush_schedules_fill_and_drain(schedule, ranks):
    """(p - 1)(F + B): Narayanan et al. 2021, section 2.2."""
    for count in (1, ranks - 1, 2 * ranks + 1):
        bubble, compute = bubbles(run(stack(ranks, FORWARD, INPUT, WEIGHT), count, pp=ranks, schedule=schedule))
        assert near(bubble, (ranks - 1) * (FORWARD + INPUT + WEIGHT), 8 * (count + ranks))
        assert compute == [count * (FORWARD + INPUT + WEIGHT)] * ranks


@pytest.mark.parametrize(("ranks", "ways"), [(2, 2), (2, 5), (3, 2), (4, 2), (4, 4), (6, 3), (8, 2)])
def test_interleaving_divides_the_bubble_by_the_chunks_of_a_rank(ranks, ways):
    """(p - 1)(F + B) / v, with F and B of a rank's v chunks together: Narayanan et al. 2021, section 2.2."""
    for groups in (1, 3):
        count = groups * ranks
        result = run(
            stack(ranks * ways, FORWARD, INPUT, WEIGHT), count, pp=ranks, schedule="interleaved", virtual_stages=ways
        )
        bubble, compute = bubbles(result)
        assert near(bubble, (ranks - 1) * (FORWARD + INPUT + WEIGHT), 8 * ways * (count + ranks))
        assert compute == [count * ways * (FORWARD + INPUT + WEIGHT)] * ranks


@pytest.mark.parametrize("ranks", range(2, 9))
@pytest.mark.parametrize(
    ("forward", "of_input", "of_weight"), [(FORWARD, INPUT, WEIGHT), (30, 40, 10), (30, 20, 20), (7, 7, 7)]
)
def test_zero_bubble_h1_takes_twice_the_weight_gradient_off_each_stage(ranks, forward, of_input, of_weight):
    """(p - 1)(F + B - 2W), with B both gradients: Qi et al. 2024, section 2.3 (T_F + T_B - T_W there)."""
    times = [time * (1 if time >= US else US) for time in (forward, of_input, of_weight)]
    for count in (ranks, 3 * ranks + 1):
        bubble, compute = bubbles(run(stack(ranks, *times), count, pp=ranks, schedule="zb-h1"))
        both = times[1] + times[2]
        assert near(bubble, (ranks - 1) * (times[0] + both - 2 * times[2]), 8 * (count + ranks))
        assert compute == [count * sum(times)] * ranks


@pytest.mark.parametrize("ranks", [2, 4, 6, 8])
@pytest.mark.parametrize(("forward", "of_weight"), [(FORWARD, WEIGHT), (20, 20), (30, 0)])
def test_dualpipe_halves_the_stages_that_wait(ranks, forward, of_weight):
    """(p/2 - 1)(F&B + B - 3W): DeepSeek-V3 2024, Table 2. F&B = F + B without communication to hide, and F = B - W."""
    forward, of_weight = (time * (1 if time >= US else US) for time in (forward, of_weight))
    both = forward + of_weight
    for count in (2 * ranks, 3 * ranks):
        bubble, compute = bubbles(run(stack(ranks, forward, forward, of_weight), count, pp=ranks, schedule="dualpipe"))
        assert near(bubble, (ranks // 2 - 1) * (forward + both + both - 3 * of_weight), 8 * (count + ranks))
        assert compute == [count * (forward + both)] * ranks


def test_one_operator_for_both_gradients_is_run_in_halves():
    result = run(stack(4, FORWARD, INPUT, INPUT, fused=True), 8, pp=4, schedule="zb-h1")
    assert near(result.rank_times.bubble.tolist(), 3 * FORWARD, 100)
    assert result.rank_times.compute.tolist() == [8 * (FORWARD + 2 * INPUT)] * 4
    assumed = {row.kind: row.share for row in result.evidence if row.what == "operator time"}
    assert assumed["assumed"] == pytest.approx(2 / 3)
