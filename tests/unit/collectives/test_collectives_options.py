"""Are algorithm parameters parsed and checked, and multi-chunk messages and switches expanded correctly?"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from cpu_time import computes_for_less_than

from trine.collectives import make_schedule
from trine.collectives.expand import expand
from trine.collectives.registry import ALGORITHMS
from trine.collectives.schedule import Schedule, Sends
from trine.collectives.sends import SendList, cut
from trine.errors import InputError, PlanError
from trine.testing.schedule_proof import check_schedule

# -- parameters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "given", "parameters"),
    [
        ("ring", {}, {"channels": 1}),
        ("ring:4", {}, {"channels": 4}),
        ("ring:channels=4", {}, {"channels": 4}),
        ("ring", {"channels": 4}, {"channels": 4}),
        ("hierarchical:2x4", {}, {"shape": (2, 4), "inner": "direct", "outer": "ring"}),
        ("hierarchical:4x2:ring:outer=tree", {}, {"shape": (4, 2), "inner": "ring", "outer": "tree"}),
        ("hierarchical", {"shape": (8, 1)}, {"shape": (8, 1), "inner": "direct", "outer": "ring"}),
        ("torus", {}, {"shape": (2, 4), "inner": "ring", "outer": "ring"}),
        ("sharp:4:chunks=3", {}, {"radix": 4, "chunks": 3}),
    ],
)
def test_parameters(algorithm: str, given: dict[str, object], parameters: dict[str, object]) -> None:
    schedule = make_schedule("all_reduce", 8, 1000, algorithm, **given)
    assert schedule.algorithm == algorithm.partition(":")[0]
    assert dict(schedule.parameters) == parameters


@pytest.mark.parametrize(
    ("algorithm", "given", "message"),
    [
        ("ring:0", {}, "channels: must be a whole number from 1 to 1,048,576, got 0"),
        ("ring:99999999", {}, "channels: must be a whole number"),
        ("ring:two", {}, "channels: must be a whole number .*, got 'two'"),
        ("ring:2:3", {}, r"all_reduce/ring takes 1 parameters \(channels\), got '2:3'"),
        ("ring:chanels=2", {}, "has no parameter 'chanels'; did you mean 'channels'"),
        ("ring:2", {"channels": 2}, "is given 'channels' twice"),
        ("direct:2", {}, "takes 0 parameters"),
        ("tree", {"chunks": True}, "chunks: must be a whole number"),
        ("hierarchical:3x3", {}, "shape: 3x3 is 9 ranks, but there are 8"),
        ("hierarchical:8", {}, "shape: must be groups x ranks, such as 2x8, got 8"),
        ("hierarchical:2x4:inner=tree", {}, "inner: no algorithm within a group is 'tree'"),
        ("hierarchical:2x4:outer=nvls", {}, "outer: all_reduce by 'nvls' cannot be a level"),
        ("hierarchical:2x4:outer=rign", {}, "no algorithm 'rign'; did you mean 'ring'"),
        ("sharp:0", {}, "radix: must be"),
        ("nvls:chunks=0", {}, "chunks: must be"),
    ],
)
def test_wrong_parameters_are_refused(algorithm: str, given: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_schedule("all_reduce", 8, 1000, algorithm, **given)


def test_halving_within_a_group_needs_a_power_of_two() -> None:
    with pytest.raises(InputError, match="inner: halving-doubling within a group needs a power of two, not 6 ranks"):
        make_schedule("all_reduce", 12, 1000, "hierarchical:2x6:inner=halving-doubling")


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ([[0, 1], [1, 0], [2, 2]], r"matrix: must be 2 x 2 whole numbers, got \(3, 2\)"),
        ([[0.5, 1], [1, 0]], "whole numbers"),
        ([[0, -1], [1, 0]], "must not be negative, got -1"),
        ([[0, 1], [1, 4]], "the largest row adds up to 5, but the size is given as 10"),
    ],
)
def test_wrong_matrices_are_refused(matrix: list[list[float]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_schedule("all_to_all_v", 2, 10, matrix=np.array(matrix))


# -- sends of several chunks -------------------------------------------------------------------------------------------


def pair(first: SendList, num_chunks: int, **fields: object) -> Schedule:
    """Return a broadcast from rank 0 to rank 1."""

    def sends_of(position: int, num_ranks: int, num_chunks: int, root: int) -> Sends:
        return (first if position == 0 else SendList()).build()

    return dataclasses.replace(cut("broadcast", "by hand", 2, 10 * num_chunks, num_chunks, sends_of), **fields)


def test_a_count_wraps_around() -> None:
    sends = SendList()
    sends.add_all(0, 1, 3, count=4)
    sends.add_all(1, 1, 2)
    schedule = pair(sends, 5)
    check_schedule(schedule)
    expanded = expand(schedule)
    assert expanded.size_bytes.tolist() == [40, 10]
    assert expanded.chunk_ranges is not None
    assert expanded.chunk_ranges.ptr.tolist() == [0, 1, 2]


def test_a_message_is_one_transfer() -> None:
    sends = SendList()
    sends.add(0, 1, [([4, 0], False), ([2], False)])
    sends.add(0, 1, [([1, 3], False)], channel=1)
    schedule = pair(sends, 5, chunk_sizes=(1, 20, 300, 4000, 50000))
    check_schedule(schedule)
    expanded = expand(schedule)
    assert expanded.size_bytes.tolist() == [50301, 4020]
    assert expanded.chunk.tolist() == [4, 1]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"count": [0, 1]}, "fewer than 1 or more than 2 chunks"),
        ({"count": [3, 1]}, "fewer than 1 or more than 2 chunks"),
        ({"message": [7, 7], "step": [0, 1]}, "the parts of one message have more than one step"),
        ({"message": [7, 7], "channel": [0, 1]}, "more than one channel"),
        ({"message": [7, 7], "chunk": [1, 1]}, "transfer 0 carries a chunk twice"),
        ({"chunk": [0, 2]}, "a send names a chunk outside 0 to 1"),
    ],
)
def test_malformed_sends_are_refused(columns: dict[str, list[int]], message: str) -> None:
    plain = {"step": [0, 0], "peer": [1, 1], "chunk": [0, 1], "channel": [0, 0]} | columns

    def sends_of(position: int, num_ranks: int, num_chunks: int, root: int) -> Sends:
        rows = slice(None) if position == 0 else slice(0)
        given = {name: np.array(column, dtype=np.int32)[rows] for name, column in plain.items()}
        return Sends(**given, reduce=np.zeros(2, np.bool_)[rows])

    with pytest.raises(InputError, match=message):
        check_schedule(cut("broadcast", "by hand", 2, 20, 2, sends_of))


def test_sizes_of_chunks_must_be_as_many_as_chunks() -> None:
    sends = SendList()
    sends.add_all(0, 1, np.arange(3))
    with pytest.raises(InputError, match="has 3 chunks, but 2 sizes of chunks"):
        expand(pair(sends, 3, chunk_sizes=(1, 2)))


def test_data_that_arrives_early_waits_only_where_a_schedule_is_staged() -> None:
    one_shot = make_schedule("all_reduce", 3, 10, "one-shot")
    check_schedule(one_shot, orders=20)
    with pytest.raises(InputError, match="ends with the data of ranks"):
        check_schedule(dataclasses.replace(one_shot, staged=False), orders=20)


# -- switches ----------------------------------------------------------------------------------------------------------


def test_switches_wait_for_data_and_enter_nothing() -> None:
    expanded = expand(make_schedule("all_reduce", 4, 1000, "nvls:1"))
    assert expanded.num_switches == 1
    up, down = expanded.dst == 4, expanded.src == 4
    assert not expanded.entry_dst[up].any()
    assert not expanded.entry_src[down].any()
    assert len(expanded.completion_ptr) == 5
    # Up: the switch reads 1000, a rank writes a quarter. Down: the sum of a quarter, and all written quarters.
    assert sorted(expanded.size_bytes[up].tolist()) == [250] * 4 + [1000] * 4
    assert sorted(expanded.size_bytes[down].tolist()) == [250] * 4 + [1000] * 4


def test_a_switch_cannot_start_by_itself() -> None:
    def sends_of(position: int, num_ranks: int, num_chunks: int, root: int) -> Sends:
        sends = SendList()
        if position == 2:
            sends.add_all(0, 1, 0)
        return sends.build()

    with pytest.raises(InputError, match="a switch sends data that it never received"):
        expand(cut("broadcast", "by hand", 2, 10, 1, sends_of, num_switches=1))


def test_layouts_of_training_refuse_switches() -> None:
    import trine

    cluster = trine.build_topology("full", "50 GB/s", "1 us", 2)
    with pytest.raises(PlanError, match="all_reduce by nvls needs switches that reduce"):
        trine.simulate("vgg13-h100-b128", trine.Plan(dp=2, algorithm=(("all_reduce", "nvls"),)), cluster=cluster)


# -- scale -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "transfers", "seconds"),
    [("ring", 2 * 1023 * 1024, 1.5), ("double-binary-tree:64", 2 * 2 * 1023 * 64, 4), ("hierarchical:128x8", None, 8)],
)
def test_1024_ranks_expand_fast(algorithm: str, transfers: int | None, seconds: float) -> None:
    with computes_for_less_than(seconds):
        expanded = expand(make_schedule("all_reduce", 1024, 2**26, algorithm))
    assert transfers is None or expanded.num_transfers == transfers


def test_too_many_dependencies_are_refused_before_they_are_built() -> None:
    with pytest.raises(InputError, match=r"1,072,693,248 dependencies between its transfers, more than"):
        expand(make_schedule("all_reduce", 1024, 2**26, "direct"))
    with pytest.raises(InputError, match="carry 2,145,386,496 chunks, more than"):
        expand(make_schedule("all_reduce", 1024, 2**26, "ring:1024"))


def test_every_algorithm_says_what_it_was_asked_for() -> None:
    for name in ALGORITHMS.built_in:
        kind, _, algorithm = name.partition("/")
        schedule = ALGORITHMS.get(name)(2, 100, 0)
        assert (schedule.kind, schedule.algorithm) == (kind, algorithm)


def test_every_algorithm_is_in_the_reference() -> None:
    text = (Path(__file__).parents[3] / "docs/reference/collectives.md").read_text()
    table = [line.split("|")[1:3] for line in text.splitlines() if line.startswith("| ")]
    for name in ALGORITHMS.built_in:
        kind, _, algorithm = name.partition("/")
        assert any(kind in row[0].replace(",", " ").split() and f"`{algorithm}`" in row[1] for row in table), name
