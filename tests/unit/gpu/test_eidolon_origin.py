"""Is a record replayed only in the run it came from, and are manual changes to it detected?"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from trine.errors import InputError
from trine.gpu.peers import LOAD, RELEASE, STORE, Arrivals
from trine.gpu.replay.arrivals import differing, is_provenance, load_arrivals, save_arrivals
from trine.gpu.replay.options import EidolonOptions
from trine.gpu.replay.record import record_run, request_writes
from trine.gpu.replay.run import run_eidolon

SMALL = {"rows": 128, "cols": 1024, "peers": 2}
TURN = """program turn
ranks 3
line 64 B
buffer data 4 KiB
buffer packets 4 KiB
semaphores 8
kernel 'turn' ranks all wavefronts 1
  copy 4 lines own:data -> rank+{distance}:packets flagged sem 0
  load 4 lines own:packets flagged sem 0
"""


@pytest.fixture(scope="module")
def arrivals() -> Arrivals:
    return record_run(EidolonOptions(**SMALL)).arrivals


def replayed(record: Arrivals, **changes: object):
    return run_eidolon(EidolonOptions(**(SMALL | changes), arrivals=record))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sync": "mwait", "monitor_capacity": 1},
        {"fused": False},
        {"kernel": "gemm-allreduce", "inner": 16, "algorithm": "twoshot", "peers": 3},
        {"kernel": "gemm-reducescatter", "inner": 16, "flags": "single", "peers": 3},
        {"kernel": "gemm-alltoall", "inner": 16, "peers": 3},
        {"kernel": "embedding-alltoall", "cluster": "mi300x-node", "peers": 7},
    ],
)
def test_the_same_run_is_replayed(options: dict[str, object], tmp_path: Path) -> None:
    asked = SMALL | {"cols": 256} | options
    path = tmp_path / "record.npz"
    save_arrivals(path, record_run(EidolonOptions(**asked)).arrivals)
    again = run_eidolon(EidolonOptions(**asked, arrivals=path))
    assert again.end_ps == run_eidolon(EidolonOptions(**asked, symmetric=True)).end_ps


@pytest.mark.parametrize(
    ("changes", "differences"),
    [
        ({"cols": 512}, "the program"),
        (
            {"poll": "1 us"},
            r"the GPU model \(kernels.poll: 4 ns there, 1 us here, kernels.poll_turn: 16 ns there, none here\)",
        ),
        ({"issue_seed": 3}, r"the GPU model \(cus.issue_seed: none there, 3 here\)"),
        (
            {"sync": "mwait"},
            r"the GPU model \(monitor.capacity: none there, \d+ here, monitor.wakeup: none there, 100 ns here\)",
        ),
        ({"cluster": "mi300x-node"}, r"(the program and )?the GPU model \(.* and \d+ more\) and the cluster"),
    ],
)
def test_another_run_is_refused_and_says_in_what(
    arrivals: Arrivals, changes: dict[str, object], differences: str
) -> None:
    with pytest.raises(InputError, match=f"of another run: it differs in {differences}. Record this one .*--writes"):
        replayed(arrivals, **changes)


def test_the_target_of_operations_counts(tmp_path: Path) -> None:
    """The programs differ only in the rank whose memory is written."""
    files = [tmp_path / f"{distance}.txt" for distance in (1, 2)]
    for distance, path in enumerate(files, 1):
        path.write_text(TURN.format(distance=distance))
    record = record_run(EidolonOptions(kernel=files[0])).arrivals
    assert run_eidolon(EidolonOptions(kernel=files[0], arrivals=record)).finished
    with pytest.raises(InputError, match=r"differs in the program\. "):
        run_eidolon(EidolonOptions(kernel=files[1], arrivals=record))


def test_as_writes_a_record_is_replayed_in_another_model(arrivals: Arrivals) -> None:
    table, _ = request_writes(arrivals)
    found = run_eidolon(EidolonOptions(**SMALL, writes=table, sync="mwait"))
    assert found.work.way == "mwait"
    assert found.writes_delivered == replayed(arrivals).writes_delivered


def test_lines_that_carry_flags_are_flags_as_writes_too(tmp_path: Path) -> None:
    path = tmp_path / "turn.txt"
    path.write_text(TURN.format(distance=1))
    table, _ = request_writes(record_run(EidolonOptions(kernel=path)).arrivals)
    assert table.columns.value.tolist() == [1] * 4
    assert run_eidolon(EidolonOptions(kernel=path, writes=table)).finished


def test_a_record_that_does_not_say_of_which_run_is_refused(arrivals: Arrivals) -> None:
    with pytest.raises(InputError, match="does not name its run"):
        replayed(replace(arrivals, origin=""))


def test_files_keep_the_origin(arrivals: Arrivals, tmp_path: Path) -> None:
    save_arrivals(tmp_path / "record.npz", arrivals)
    assert load_arrivals(tmp_path / "record.npz").origin == arrivals.origin
    assert is_provenance(arrivals.origin)


def test_what_is_no_origin_is_seen(arrivals: Arrivals) -> None:
    parts = json.loads(arrivals.origin)
    for wrong in (
        {"program": "0"}, {"cluster": 3}, {"gpu_model": []}, {"gpu_model": {"clok": 1}}, {"gpu_model": {"clock": 0}},
        {"gpu_model": {"clock": 1.5}}, {"gpu_model": {"line": -1}}, {"gpu_model": {"line": 2**63}}, {"more": 1},
    ):  # fmt: skip
        assert not is_provenance(json.dumps(parts | wrong)), wrong
    for text in ("", "[]", "{", "[" * 5000, "1" * 20_000, "null"):
        assert not is_provenance(text)


def test_what_a_model_lacks_is_none(arrivals: Arrivals) -> None:
    other = json.loads(arrivals.origin)
    other["gpu_model"] = {path: value for path, value in other["gpu_model"].items() if not path.startswith("l2.")}
    assert "l2.ways: 16 there, none here" in differing(arrivals.origin, json.dumps(other))[0]


def edited(record: Arrivals, of_kind: int, **changes: int) -> Arrivals:
    """Return the record with new values in the first request of a kind."""
    row = int(np.flatnonzero(record.kind == of_kind)[0])
    columns = {name: getattr(record, name).copy() for name in changes}
    for name, value in changes.items():
        columns[name][row] = value
    return replace(record, **columns)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        (STORE, {"address": 1 << 50}, r"address: 0x4000000000000 is outside the buffers of the target: flags 0x0 to"),
        (STORE, {"kind": LOAD, "address": 1 << 50}, "is outside the buffers"),
        (
            RELEASE,
            {"amount": 0},
            r"rank 0 waits for 1 flag that no write satisfies: sem \d at flags\+0x\d lacks 1 of 2",
        ),
        (RELEASE, {"semaphore": 500}, r"semaphore: cannot be 500 \(row \d+\): the program has 2"),
        (RELEASE, {"semaphore": -1}, r"semaphore: cannot be -1"),
    ],
)
def test_a_record_that_was_changed_by_hand_is_refused(
    arrivals: Arrivals, kind: int, changes: dict[str, int], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        replayed(edited(arrivals, kind, **changes))


def test_what_is_more_than_waits_take_is_a_warning(arrivals: Arrivals) -> None:
    assert not replayed(arrivals).warnings
    (said,) = replayed(edited(arrivals, RELEASE, amount=5)).warnings
    assert "more comes to 1 flag than the waits of rank 0 take" in said
