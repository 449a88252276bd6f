"""Is every damaged trace either read or rejected with a TraceError?"""

from __future__ import annotations

import tempfile
from pathlib import Path

from chakra_files import ALL_REDUCE, COMP, METADATA, collective, encoded, node, receive, send
from hypothesis import given, settings
from hypothesis import strategies as st

from trine.errors import TraceError
from trine.formats.chakra import read_chakra


def traces():
    """Return the traces of two ranks with a node of every kind."""
    groups = node(0, METADATA, name="## process_group:init ##")
    groups.inputs.values = '[\'[{"pg_name": "7", "ranks": [0, 1]}]\']'
    both = [groups, node(1, COMP, micros=300), collective(2, ALL_REDUCE, 2**20, [1], pg_name="7")]
    return [encoded([*both, send(3, 1, 99, [2])]), encoded([*both, receive(3, 0, 99), node(4, COMP, [3], micros=5)])]


GOOD = traces()


def refusal(files):
    """Return trine's error for these files (one per rank), or an empty string if it reads them."""
    with tempfile.TemporaryDirectory() as folder:
        for number, data in enumerate(files):
            (Path(folder) / f"x.{number}.et").write_bytes(data)
        try:
            read_chakra(Path(folder) / "x")
        except TraceError as error:
            return str(error)
    return ""


def test_the_traces_are_good():
    assert refusal(GOOD) == ""


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 1), st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4), st.integers(0, 99))
def test_changed_bytes_are_read_or_refused(rank, changes, cut):
    files = [bytearray(data) for data in GOOD]
    for place, byte in changes:
        files[rank][place % len(files[rank])] = byte
    if cut < 10:
        del files[rank][-cut:]
    said = refusal(files)
    assert not said or "/x." in said


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data):
    said = refusal([data])
    assert not said or "x.0.et" in said


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=40), st.text(max_size=60))
def test_any_text_as_groups_is_read_or_refused(name, values):
    head = node(0, METADATA, name="## process_group:init ##")
    head.inputs.values = f"['{values}']"
    said = refusal([encoded([head, collective(1, ALL_REDUCE, 8, pg_name=name)])])
    assert not said or "x.0.et" in said
