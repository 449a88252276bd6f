"""Are writes independent of their registration order and of their file format?"""

from __future__ import annotations

import random

from eidolon_cases import INPUT, all_flags, same, target_program
from hypothesis import given, settings
from hypothesis import strategies as st

from trine.gpu.replay.resolve import peer_writes
from trine.gpu.replay.write_files import read_writes, save_writes
from trine.gpu.replay.writes import WriteTable

PROGRAM = target_program()
data_writes = st.lists(
    st.tuples(
        st.sampled_from([0, 2, 3]),
        st.one_of(st.integers(INPUT, INPUT + 0x7F00), st.integers(0, 0x7F00).map(lambda at: f"input+{at}")),
        st.integers(1, 0x100),
        st.integers(0, 3),
        st.integers(0, 10**7),
    ),
    max_size=30,
)


def rows_with_flags(rows):
    flags = all_flags(WriteTable())
    columns = flags.columns
    numbers = zip(columns.peer.tolist(), columns.value.tolist(), columns.time_ps.tolist(), strict=True)
    named = [(peer, flags.address_text(row), 8, value, time) for row, (peer, value, time) in enumerate(numbers)]
    return rows + named


def table_of(rows, split=0):
    """Return a table of the rows: those before ``split`` registered one by one, the rest as arrays."""
    table = WriteTable()
    for peer, address, size_bytes, value, time_ps in rows[:split]:
        table.register_write(peer=peer, address=address, size_bytes=size_bytes, value=value, time_ps=time_ps)
    if rows[split:]:
        peer, address, size_bytes, value, time_ps = map(list, zip(*rows[split:], strict=True))
        table.register_writes(peer=peer, address=address, size_bytes=size_bytes, value=value, time_ps=time_ps)
    return table


@settings(max_examples=60, deadline=None)
@given(data_writes, st.integers(0, 2**32), st.integers(0, 36))
def test_any_order_gives_the_same_table(rows, seed, split):
    rows = rows_with_flags(rows)
    shuffled = list(rows)
    random.Random(seed).shuffle(shuffled)
    first = peer_writes(table_of(rows), PROGRAM, 1)
    second = peer_writes(table_of(shuffled, split), PROGRAM, 1)
    assert same(first.writes, second.writes)
    assert len(first.writes.peer) == len(rows)
    assert first.warnings == second.warnings


@settings(max_examples=20, deadline=None)
@given(data_writes, st.sampled_from(["csv", "json", "parquet"]))
def test_any_file_gives_the_same_table(tmp_path_factory, rows, suffix):
    table = table_of(rows_with_flags(rows))
    path = tmp_path_factory.mktemp("writes") / f"writes.{suffix}"
    save_writes(path, table)
    assert same(peer_writes(read_writes(path), PROGRAM, 1).writes, peer_writes(table, PROGRAM, 1).writes)
