"""Does the flight recorder's check name the rank that holds a job up?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from run_traces import dump, entry, write

from trine.errors import InputError, TraceError
from trine.runs.folder import check_folder
from trine.runs.hang import MISMATCH, MISSING, NO_DUMP, STUCK, Hang
from trine.runs.hang_result import HangCheck

NAME = "nccl_trace_rank_{}"


def hangs(folder: Path, contents: list[dict[str, Any]]) -> tuple[Hang, ...]:
    answer = check_folder(write(folder, contents, NAME))
    assert isinstance(answer, HangCheck)
    assert answer.is_healthy == (not answer.hangs)
    return answer.hangs


def test_the_rank_that_did_not_enter_is_named(tmp_path: Path) -> None:
    waiting = [entry(1), entry(2, "started", created_ns=5 * 10**9)]
    late = [entry(1, created_ns=8 * 10**9)]
    (hang,) = hangs(tmp_path, [dump(waiting), dump(waiting), dump(late), dump(waiting)])
    assert (hang.kind, hang.ranks, hang.waiting, hang.number) == (MISSING, (2,), (0, 1, 3), 2)
    assert hang.waited_ns == 3 * 10**9
    assert hang.operation == "all_reduce"


def test_completed_collectives_are_healthy(tmp_path: Path) -> None:
    assert hangs(tmp_path, [dump([entry(1), entry(2)])] * 4) == ()


def test_another_operation_is_a_mismatch(tmp_path: Path) -> None:
    usual = dump([entry(1, "started")])
    (hang,) = hangs(tmp_path, [usual, usual, usual, dump([entry(1, "started", operation="broadcast")])])
    assert (hang.kind, hang.ranks) == (MISMATCH, (3,))
    assert hang.detail == "broadcast [[8]] in place of all_reduce [[8]]"


def test_other_shapes_are_a_mismatch_but_not_in_an_all_to_all(tmp_path: Path) -> None:
    usual, other = dump([entry(1, "started")]), dump([entry(1, "started", shape=(9,))])
    (hang,) = hangs(tmp_path / "reduce", [usual, other, usual, usual])
    assert (hang.kind, hang.ranks) == (MISMATCH, (1,))
    usual = dump([entry(1, "started", operation="all_to_all")])
    other = dump([entry(1, "started", operation="all_to_all", shape=(9,))])
    (hang,) = hangs(tmp_path / "exchange", [usual, other, usual, usual])
    assert hang.kind == STUCK


def test_a_rank_without_a_dump_is_named(tmp_path: Path) -> None:
    (hang,) = hangs(tmp_path, [dump([entry(1, "started")])] * 3)
    assert (hang.kind, hang.ranks) == (NO_DUMP, (3,))


def test_a_collective_that_all_entered_is_stuck(tmp_path: Path) -> None:
    started, scheduled = dump([entry(1, "started")]), dump([entry(1, "scheduled")])
    (hang,) = hangs(tmp_path, [started, started, scheduled, started])
    assert (hang.kind, hang.ranks) == (STUCK, (2,))


def test_a_wait_leads_to_the_rank_that_waits_for_nobody(tmp_path: Path) -> None:
    """Ranks 0 and 1 wait for rank 2 in group a; rank 2 waits for rank 3 in group b; rank 3 is the reason."""
    groups = {"a": "[0, 1, 2]", "b": "[2, 3]"}
    first = dump([entry(4, "started", group="a")], groups)
    second = dump([entry(3, group="a"), entry(9, "started", group="b")], groups)
    third = dump([entry(8, group="b")], groups)
    root, *others = hangs(tmp_path, [first, first, second, third])
    assert (root.kind, root.group, root.ranks, root.waiting) == (MISSING, "b", (3,), (2,))
    assert [(each.group, each.ranks) for each in others] == [("a", (2,))]


def test_messages_between_two_ranks_do_not_count(tmp_path: Path) -> None:
    message = {**entry(7, "started"), "is_p2p": True}
    assert hangs(tmp_path, [dump([entry(1), message])] * 4) == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": "3.0"}, "version '3.0'"),
        ({"entries": {}}, "must be a list"),
        ({"entries": [5]}, "entries\\[0\\]: must be an object"),
        ({"entries": [{**entry(1), "state": "lost"}]}, "must be one of completed, started, scheduled"),
        ({"entries": [{**entry(1), "collective_seq_id": "x"}]}, "must be a number"),
        ({"entries": [{**entry(1), "process_group": "0"}]}, "must be a name and a description"),
    ],
)
def test_wrong_dumps_are_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    with pytest.raises(TraceError, match=words):
        check_folder(write(tmp_path, [{**dump([entry(1)]), **change}], NAME))


def test_dumps_of_two_jobs_are_refused(tmp_path: Path) -> None:
    one, other = dump([entry(1)]), dump([entry(1)], {"0": "[0, 1]"})
    with pytest.raises(InputError, match="is of another job"):
        check_folder(write(tmp_path, [one, other], NAME))


def test_a_dump_without_a_rank_in_its_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "dump.json").write_text(json.dumps(dump([entry(1)])))
    with pytest.raises(TraceError, match="names no rank"):
        check_folder(tmp_path)
