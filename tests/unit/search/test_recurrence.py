"""The recurrence over passes against closed forms of pipelines."""

import numpy as np
import pytest

from trine.search.recurrence import StageMessages, pipeline_ps

FORWARD, BACKWARD = 100, 200


def durations(chunks, forward=FORWARD, backward=BACKWARD, further=(0, 0, 0)):
    rows = [forward, backward, backward // 2, backward - backward // 2, 0, *further]
    return np.repeat(np.array(rows, np.int64)[:, None], chunks, 1)


def messages(pp, time_ps=0, wait_ps=0):
    return StageMessages(np.full(pp, time_ps, np.int64), np.full(pp, wait_ps, np.int64))


def end(schedule, pp, micro_batches, virtual_stages=1, message=0, wait=0):
    return pipeline_ps(schedule, pp, micro_batches, durations(pp * virtual_stages), messages(pp, message, wait))


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("micro_batches", [4, 8, 500])
def test_equal_stages_wait_for_one_pass_of_each_other_stage(schedule, micro_batches):
    assert end(schedule, 4, micro_batches) == (micro_batches + 3) * (FORWARD + BACKWARD)


@pytest.mark.parametrize("micro_batches", [4, 8, 800])
def test_virtual_stages_divide_the_bubble(micro_batches):
    # chunks of the same time: twice the work, and the bubble of single passes
    assert end("interleaved", 4, micro_batches, 2) == (2 * micro_batches + 3) * (FORWARD + BACKWARD)


def test_messages_lengthen_the_way_through_the_pipeline():
    # one micro-batch: three messages forward and three back
    assert end("1f1b", 4, 1, message=7) == 4 * (FORWARD + BACKWARD) + 6 * 7


def test_zero_bubble_is_shorter_than_1f1b():
    assert 8 * (FORWARD + BACKWARD) < end("zb-h1", 4, 8) < end("1f1b", 4, 8)


def test_the_slowest_stage_sets_the_period():
    passes = durations(4)
    passes[:, 2] *= 2
    few, many = (pipeline_ps("1f1b", 4, count, passes, messages(4)) for count in (100, 101))
    assert many - few == 2 * (FORWARD + BACKWARD)


def test_a_sender_that_waits_for_its_messages_adds_them_to_each_micro_batch():
    # the slowest rank sends one message forward and one back per micro-batch, and waits for each
    passes = durations(4)
    passes[:, 2] *= 2
    few, many = (pipeline_ps("1f1b", 4, count, passes, messages(4, 7, 7)) for count in (100, 101))
    assert many - few == 2 * (FORWARD + BACKWARD) + 2 * 7


def test_the_sum_of_gradients_runs_beside_the_message():
    # after each backward pass of the slowest rank, either the sum of gradients (9) or the message (7) takes longer
    passes = durations(4)
    passes[:, 2] *= 2
    passes[4] = 9
    few, many = (pipeline_ps("1f1b", 4, count, passes, messages(4, 7, 7)) for count in (100, 101))
    assert many - few == 2 * (FORWARD + BACKWARD) + 7 + 9


def test_shapes_that_a_schedule_refuses_have_no_time():
    assert end("interleaved", 4, 6, 2) == 0
    assert end("dualpipe", 4, 8) == 0


@pytest.mark.parametrize("micro_batches", [4, 500])
def test_longer_last_backward_passes_follow_each_other(micro_batches):
    passes = durations(4, further=(0, 50, 0))
    assert pipeline_ps("1f1b", 4, micro_batches, passes, messages(4)) == end("1f1b", 4, micro_batches) + 4 * 50


def test_one_micro_batch_has_longer_first_and_last_passes():
    passes = durations(4, further=(30, 50, 0))
    assert pipeline_ps("1f1b", 4, 1, passes, messages(4)) == 4 * (FORWARD + BACKWARD + 30 + 50)


def test_the_last_round_of_virtual_stages_has_one_longer_pass_per_chunk_and_rank():
    passes = durations(8, further=(0, 0, 10))
    longer = pipeline_ps("interleaved", 4, 16, passes, messages(4)) - end("interleaved", 4, 16, 2)
    assert 2 * 10 <= longer <= 8 * 10  # at least once per chunk of a rank, at most once per chunk of the model
