"""Are invalid collectives rejected, and does the checker catch wrong schedules?"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import trine
from trine.collectives import known_algorithms, known_kinds, make_schedule
from trine.collectives.expand import expand
from trine.collectives.schedule import Schedule, Sends
from trine.errors import InputError
from trine.testing.schedule_proof import check_schedule


def test_known_names() -> None:
    assert known_kinds()[:5] == ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce")
    assert known_algorithms("all_reduce")[0] == "ring"
    assert make_schedule("all_reduce", 4, 10).algorithm == "ring"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("all_reduse", 4, 10), "unknown collective 'all_reduse'; did you mean 'all_reduce'"),
        (("all_reduce", 4, 10, "rign"), "all_reduce has no algorithm 'rign'; did you mean 'ring'"),
        (("all_reduce", 0, 10), "at least one rank"),
        (("all_reduce", 4, -1), "must not be negative"),
        (("all_reduce", 4, 10, None, 0), "all_reduce has no root, got 0"),
        (("broadcast", 4, 10), "broadcast needs a root from 0 to 3, got -1"),
        (("broadcast", 4, 10, None, 4), "needs a root"),
        (("send_recv", 3, 10, None, 0), "send_recv has 2 ranks, not 3"),
    ],
)
def test_wrong_arguments_are_refused(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_schedule(*arguments)  # type: ignore[arg-type]


def test_ring_all_reduce_of_three_by_hand() -> None:
    """Ranks 0, 1, 2: six reduce-scatter and six all-gather transfers."""
    expanded = expand(make_schedule("all_reduce", 3, 10))
    rows = list(zip(expanded.src.tolist(), expanded.dst.tolist(), expanded.chunk.tolist(), strict=True))
    assert rows[:4] == [(0, 1, 2), (0, 1, 1), (0, 1, 0), (0, 1, 2)]
    assert expanded.reduce[:4].tolist() == [True, True, False, False]
    assert expanded.size_bytes.tolist() == [4] * 12
    # Rank 0's second send: after its first (0) and after rank 2's first (8), which brought chunk 1.
    assert expanded.predecessor_idx[expanded.predecessor_ptr[1] : expanded.predecessor_ptr[2]].tolist() == [0, 8]
    assert expanded.entry_src[:4].tolist() == [True, False, False, False]
    assert expanded.completion_idx[: expanded.completion_ptr[1]].tolist() == [3, 11]


def test_groups_of_one_transfer_nothing() -> None:
    expanded = expand(make_schedule("all_reduce", 1, 10))
    assert expanded.num_transfers == 0
    assert expanded.completion_ptr.tolist() == [0, 0]


def _changed(change: str) -> Schedule:
    good = make_schedule("all_reduce", 4, 100)

    def sends_of(position: int, num_ranks: int, num_chunks: int, root: int) -> Sends:
        sends = good.sends_of(position, num_ranks, num_chunks, root)
        if change == "reduce":  # adds instead of overwriting
            return dataclasses.replace(sends, reduce=np.ones_like(sends.reduce))
        if change == "copy":  # overwrites instead of adding
            return dataclasses.replace(sends, reduce=np.zeros_like(sends.reduce))
        if change == "short":  # leaves out the last step
            columns = ("step", "peer", "chunk", "reduce", "channel")
            return dataclasses.replace(sends, **{name: getattr(sends, name)[:-1] for name in columns})
        if change == "chunk":
            return dataclasses.replace(sends, chunk=(sends.chunk + (position == 1)) % num_chunks)
        if change == "steps":  # all sends at once: they no longer wait for the data to forward
            return dataclasses.replace(sends, step=np.zeros_like(sends.step))
        if change == "self":
            return dataclasses.replace(sends, peer=np.full_like(sends.peer, position))
        return dataclasses.replace(sends, peer=sends.peer + 4)

    return dataclasses.replace(good, sends_of=sends_of, shift_symmetric=False)


@pytest.mark.parametrize("change", ["reduce", "copy", "short", "chunk", "steps"])
def test_checker_finds_wrong_data(change: str) -> None:
    with pytest.raises(
        InputError, match=r"ring all_reduce of 4 ranks: chunk \d of rank \d ends with the data of ranks"
    ):
        check_schedule(_changed(change))


def test_checker_finds_sends_to_nobody() -> None:
    with pytest.raises(InputError, match="a send names a rank outside 0 to 3"):
        check_schedule(_changed("peer"))
    with pytest.raises(InputError, match="a rank sends to itself"):
        check_schedule(_changed("self"))


def test_checker_knows_its_kinds() -> None:
    schedule = dataclasses.replace(make_schedule("all_reduce", 4, 100), kind="all_sum")
    with pytest.raises(InputError, match="cannot check a 'all_sum'"):
        check_schedule(schedule)


def test_structure_is_shared_between_sizes() -> None:
    small, large = expand(make_schedule("all_reduce", 8, 10)), expand(make_schedule("all_reduce", 8, 10**9))
    assert small.predecessor_idx is large.predecessor_idx
    assert small.size_bytes[0] == 2
    assert large.size_bytes[0] == 125 * 10**6


@pytest.mark.parametrize("ask", [trine.collective, trine.loadstore_collective, trine.compare_fidelity])
def test_a_cluster_may_be_given_by_its_name(ask):
    by_name = ask("all_reduce", [4096], "dgx-h100")
    assert by_name.headline == ask("all_reduce", [4096], trine.load_cluster("dgx-h100")).headline
    with pytest.raises(trine.InputError, match=r"cluster: must be a cluster, or the name of one, got 8"):
        ask("all_reduce", [4096], 8)
    with pytest.raises(trine.SpecError, match="did you mean 'dgx-h100'"):
        ask("all_reduce", [4096], "dgx-h10")
