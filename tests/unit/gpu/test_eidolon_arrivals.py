"""Does a record of arrivals survive a round trip through its file, and are invalid records refused?"""

from __future__ import annotations

import zipfile
from dataclasses import fields

import numpy as np
import pytest

from trine.errors import InputError
from trine.gpu.peers import RELEASE, STORE, Arrivals
from trine.gpu.replay.arrivals import load_arrivals, save_arrivals


def record(**changes):
    columns = {
        "time_ps": np.array([5, 5, 9], np.int64),
        "rank": np.array([0, 2, 0], np.int32),
        "place": np.array([0, 4, 0], np.int32),
        "number": np.array([0, 0, 1], np.int32),
        "kind": np.array([STORE, STORE, RELEASE], np.int8),
        "address": np.array([64, 128, 0], np.int64),
        "semaphore": np.array([-1, -1, 3], np.int32),
        "amount": np.array([0, 0, 1], np.int64),
        "answer_place": np.array([1], np.int32),
        "answer_number": np.array([0], np.int32),
        "answer_ps": np.array([70], np.int64),
        "answer_refused": np.array([0], np.int8),
        "task": np.array([2, 5], np.int32),
        "task_end_ps": np.array([900, 30], np.int64),
    }
    return Arrivals(**({"target": 1, "num_ranks": 3} | columns | changes))


def test_what_is_saved_is_loaded_again(tmp_path):
    path = tmp_path / "record.npz"
    save_arrivals(path, record())
    again = load_arrivals(path)
    for field in fields(Arrivals):
        expected, got = getattr(record(), field.name), getattr(again, field.name)
        assert np.array_equal(expected, got)
        assert getattr(expected, "dtype", int) == getattr(got, "dtype", int)


def test_a_record_of_before_there_were_tasks_is_read(tmp_path):
    path = tmp_path / "record.npz"
    save_arrivals(path, record())
    with np.load(path) as kept:
        columns = {name: kept[name] for name in kept.files if not name.startswith("task")}
    np.savez(path, **columns)
    again = load_arrivals(path)
    assert len(again.task) == len(again.task_end_ps) == 0
    assert len(again.time_ps) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": 3}, "target: must be from 0 to 2, got 3"),
        ({"time_ps": np.array([5, 4, 9], np.int64)}, r"time_ps: cannot be 4 \(row 1\)"),
        ({"rank": np.array([0, 1, 0], np.int32)}, r"rank: cannot be 1 \(row 1\)"),
        ({"kind": np.array([0, 2, 1], np.int8)}, r"kind: cannot be 2"),
        ({"amount": np.array([0, 0], np.int64)}, "amount: must be one row of int64, as long as the others"),
        ({"place": np.array([0, 4, 0], np.int64)}, "place: must be one row of int32"),
        ({"answer_refused": np.array([2], np.int8)}, "answer_refused: cannot be 2"),
        ({"answer_ps": np.array([2**62], np.int64)}, "answer_ps: cannot be 4611686018427387904"),
        ({"time_ps": np.array([5, 5, 2**62], np.int64)}, r"time_ps: cannot be 4611686018427387904 \(row 2\)"),
        ({"address": np.array([64, 2**62, 0], np.int64)}, r"address: cannot be 4611686018427387904 \(row 1\)"),
        ({"amount": np.array([0, 0, 2**31], np.int64)}, "amount: cannot be 2147483648"),
        ({"semaphore": np.array([-1, -1, -1], np.int32)}, r"semaphore: cannot be -1 \(row 2\)"),
        ({"task": np.array([5, 5], np.int32)}, r"task: cannot be 5 \(row 1\)"),
        ({"task": np.array([-1, 5], np.int32)}, r"task: cannot be -1 \(row 0\)"),
        ({"task_end_ps": np.array([0, -1], np.int64)}, r"task_end_ps: cannot be -1 \(row 1\)"),
        ({"task": np.array([5], np.int32)}, "task_end_ps: must be one row of int64, as long as the others"),
        ({"origin": "of my own"}, "origin: is not what 'trine eidolon record' writes: 'of my own'"),
    ],
)
def test_columns_that_do_not_fit_are_named(tmp_path, changes, message):
    path = tmp_path / "record.npz"
    save_arrivals(path, record(**changes))
    with pytest.raises(InputError, match=message):
        load_arrivals(path)


def test_other_files_are_no_records(tmp_path):
    path = tmp_path / "record.npz"
    for content in (b"", b"no zip", b"PK\x05\x06" + bytes(18)):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"is not a record|format: must be 'trine-arrivals'"):
            load_arrivals(path)
    with pytest.raises(InputError, match="cannot be read: No such file"):
        load_arrivals(tmp_path / "none.npz")
    with pytest.raises(InputError, match=r"is .npz, not '.csv'"):
        load_arrivals(tmp_path / "record.csv")


def test_nothing_in_a_file_is_run(tmp_path):
    path = tmp_path / "record.npz"
    with path.open("wb") as file:
        np.savez(file, time_ps=np.array([{"a": 1}], object))
    with pytest.raises(InputError, match=r"is not a record of arrivals: 'time_ps.npy' holds Python objects"):
        load_arrivals(path)


def test_unknown_and_other_versions_are_refused(tmp_path):
    path = tmp_path / "record.npz"
    columns = {field.name: getattr(record(), field.name) for field in fields(Arrivals)}
    for changes, message in (
        ({"tiem_ps": 3, "version": 2, "format": "trine-arrivals"}, "unknown column 'tiem_ps'; did you mean 'time_ps'"),
        ({"version": 1, "format": "trine-arrivals"}, r"version: is 1; this trine reads 2: record the run again"),
        ({"version": 2, "format": "x"}, "format: must be 'trine-arrivals'"),
        ({"version": 2}, "format: must be 'trine-arrivals'"),
        ({"format": "trine-arrivals"}, "version: must be one whole number"),
    ):
        np.savez(path, **(columns | changes))
        with pytest.raises(InputError, match=message):
            load_arrivals(path)


def test_a_file_of_too_many_parts_is_not_unpacked(tmp_path):
    path = tmp_path / "record.npz"
    with zipfile.ZipFile(path, "w") as parts:
        for number in range(100):
            parts.writestr(f"{number}.npy", b"")
    with pytest.raises(InputError, match="has more than 64 parts"):
        load_arrivals(path)


def test_a_column_that_lacks_is_named(tmp_path):
    path = tmp_path / "record.npz"
    columns = {field.name: getattr(record(), field.name) for field in fields(Arrivals)} | {"version": 2}
    for name in ("origin", "answer_ps"):
        np.savez(path, format="trine-arrivals", **{key: columns[key] for key in columns if key != name})
        with pytest.raises(InputError, match=f"{name}: is missing"):
            load_arrivals(path)
