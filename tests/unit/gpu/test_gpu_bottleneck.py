"""The bottleneck of a run, rule by rule, on records made by hand."""

from dataclasses import replace

import numpy as np
import pytest
from gpu_results import US, model, program, records, result

from trine.gpu.results import bottleneck


def busy(name, times):
    """Return a change of the records: resource ``name`` of GPU 0 was busy for ``times``."""
    found = records(model())
    table = found.resource_busy_ps.copy()
    table[0, found.resources.names.index(name)] = times
    return {"resource_busy_ps": table}


def states(*times):
    table = np.zeros((2, 8, 5), np.int64)
    table[:, :2] = times
    return {"state_ps": table}


def test_a_busy_resource_is_named_with_its_share_of_the_time_of_kernels():
    found = result(records_changes=busy("channel2", 6 * US)).bottleneck
    assert (found.what, found.name, found.share, found.hot_spot) == ("resource", "channel2", 0.75, True)
    assert found.sentence == (
        "memory channels: channel2 of rank 0 is busy 75.0 % of the kernel time (8 us); mean of all 12: 10.4 %; hot spot"
    )


def test_a_busy_lane():
    found = result(records_changes={"lane_busy_ps": np.full(5, 7 * US)}).bottleneck
    assert (found.what, found.name, found.hot_spot) == ("resource", "gpu0->gpu1 lane 0", False)


def test_a_launch_longer_than_the_kernels():
    changes = {"workgroup_start_ps": np.full(4, 6 * US), "end_ps": 12 * US}
    found = result(records_changes=changes).bottleneck
    assert found.what == "outside of kernels"
    assert found.sentence == (
        "launches: 66.7 % of the 12 us is outside kernels: 6 us before the first workgroup (a launch takes 2 us), "
        "2 us after the last"
    )


def test_issue():
    found = result(model(cycle_ps=500_000)).bottleneck
    assert found.what == "issue"
    assert found.share == pytest.approx((32 + 32 + 2) * 500_000 / (2 * 8 * US))
    assert "one every 1 cycle" in found.sentence


def test_latency_with_the_part_of_the_links():
    found = result().bottleneck
    assert (found.what, found.share) == ("latency", 0.625)
    assert "a load takes 2 us, 1 us of it link latency" in found.sentence


def test_the_limit_of_a_cu_and_that_of_wavefronts():
    # 2 us x 32 loads of two CUs occupied for 8 us: 4 in flight; 11 of 16 wavefront-us of each are waiting or issuing
    free = result().bottleneck
    assert free.sentence.startswith("latency bound: ")
    assert "; 4.0 of at most 5.5 loads in flight per CU; " in free.sentence
    limit = result(model(max_outstanding=4)).bottleneck
    assert limit.what == "limit"
    assert "; 4.0 of at most 4.0 loads in flight per CU (max-outstanding 4); " in limit.sentence
    unroll = result(model(unroll=3)).bottleneck
    assert unroll.what == "limit"
    assert " of at most 4.1 loads in flight per CU (unroll 3; a CU has room for 64); " in unroll.sentence


def test_stores_alone():
    nothing = {"loads": np.zeros(2, np.int64), "load_latency_ps": np.zeros(2, np.int64)}
    found = result(records_changes=nothing).bottleneck
    assert found.what == "latency"
    assert found.sentence.endswith("they wait for their stores")


@pytest.mark.parametrize(
    ("place", "what", "words"),
    [
        (0, "compute", "compute or wait for the ALU, 60.0 % of the time; "),
        (1, "issue", "wait for a turn to issue a request, 60.0 % of the time; "),
        (3, "semaphore", "; 4 operations acquire 'peer done', 2 us each"),
        (4, "barrier", "; 4 operations barrier, 2 us each"),
    ],
)
def test_waits(place, what, words):
    times = [2 * US] * 5
    times[place] = 12 * US
    found = result(records_changes=states(*times)).bottleneck
    assert found.what == what
    assert found.share == 0.6
    assert found.sentence.startswith(f"{what} bound: wavefronts ")
    assert "60.0 % of the time; nothing is above 62.5 % busy (gpu1->gpu0 lane 0)" in found.sentence
    assert words in found.sentence


def test_wires_are_weighted_by_lines():
    plain = program()
    own = plain.operand_rank.copy()
    own[0] = 0  # one of the four copies reads its own memory
    mixed = result(program=replace(plain, operand_rank=own))
    assert bottleneck.load_wires_ps(result()) == 1 * US
    assert bottleneck.load_wires_ps(mixed) == 0.75 * US
