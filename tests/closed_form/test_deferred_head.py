"""Does the deferred weight gradient of the head shorten the step as a formula says, and keep what it needs?"""

from __future__ import annotations

import pytest
from pipelines import US, run, stack

import trine
from trine.software import load_software
from trine.training.memory import rank_memory
from trine.workload.synthesis.model import synthesize

FORWARD, INPUT, WEIGHT = 30 * US, 30 * US, 20 * US


@pytest.mark.parametrize("count", [2, 3, 4, 9])
def test_two_stages_by_hand(count):
    """The last of two stages has only the head. Deferred, its passes take F + I, and its W follow the last of them.

    Rank 0 runs F and waits for the last stage's F + I. Then B and F alternate; before the last B, rank 0 waits for the
    last stage's F + I again, which began with the last F. All W follow, from B before the end of rank 0.
    """
    both = INPUT + WEIGHT
    plain = run(stack(2, FORWARD, INPUT, WEIGHT), count, pp=2, schedule="1f1b")
    deferred = run(stack(2, FORWARD, INPUT, WEIGHT), count, pp=2, schedule="1f1b", defer_head_gradient=0)
    first = FORWARD + (FORWARD + INPUT) + (count - 2) * FORWARD + count * both
    first += FORWARD + INPUT - both
    last = first - both + count * WEIGHT
    assert abs(plain.step_time_ps - (count + 1) * (FORWARD + both)) < 100
    assert abs(deferred.step_time_ps - max(first, last)) < 100
    assert deferred.rank_times.compute.tolist() == plain.rank_times.compute.tolist()


def test_a_limit_defers_so_many():
    """With a limit of N, N weight gradients come after all passes, and the others in theirs."""
    times = [
        run(stack(2, FORWARD, INPUT, WEIGHT), 6, pp=2, schedule="1f1b", defer_head_gradient=n).step_time_ps
        for n in (1, 3, 6, 100, 0)
    ]
    assert times[2] == times[3] == times[4]
    assert len(set(times[:3])) == 3


def test_deferred_micro_batches_keep_the_gradients_of_their_logits():
    """Each deferred micro-batch keeps 2 bytes a logit and the head's input until its weight gradient."""
    software = load_software("megatron-core")
    workload = synthesize("llama-3-8b", layers=4, sequence=1024, software=software)
    vocabulary, hidden, tokens = 128_256, 4096, 1024

    def peak(limit: int | None) -> int:
        plan = trine.Plan(pp=2, batch=8, micro_batch=1, defer_head_gradient=limit)
        return sum(rank_memory(workload, plan, software, stages=[1])[0].by_category.values())

    each = 2 * tokens * (vocabulary + hidden)
    rises = [peak(limit) - peak(1) for limit in (3, 5, 7)]
    assert rises == [2 * each, 4 * each, 6 * each]
    assert peak(None) <= peak(1)
