"""Does the reader return only rows that are in the log, even if the log is truncated or mixed with other output?"""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from nccl_logs import log

from trine.check.nccl_tests import LogRow, read_runs
from trine.errors import InputError

SIZES = st.lists(st.integers(2, 34), min_size=1, max_size=8, unique=True)
TIMES = st.floats(1.0, 999_999.0)


def rows_of(text: str) -> list[LogRow]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
        return [row for run in read_runs(path) for row in run.rows]


@settings(max_examples=60, deadline=None)
@given(powers=SIZES, time=TIMES, old=st.booleans(), share=st.floats(0, 1))
def test_a_log_cut_anywhere_gives_only_rows_of_the_whole(
    powers: list[int], time: float, old: bool, share: float
) -> None:
    text = log([(1 << power, time, time / 1.5) for power in sorted(powers)], old=old)
    whole = {row.size_bytes: row for row in rows_of(text)}
    try:
        part = rows_of(text[: round(share * len(text))])
    except InputError:
        return
    for found in part:
        said = whole[found.size_bytes]
        for mine, theirs in ((found.out_of_place, said.out_of_place), (found.in_place, said.in_place)):
            if mine is not None:
                assert theirs is not None
                assert (mine.time_ps, mine.busbw_bytes_per_s) == (theirs.time_ps, theirs.busbw_bytes_per_s)


@settings(max_examples=60, deadline=None)
@given(noise=st.lists(st.text(max_size=60), max_size=10), time=TIMES)
def test_lines_of_anything_else_change_nothing(noise: list[str], time: float) -> None:
    text = log([(1 << power, time, time) for power in (10, 20, 30)])
    lines = text.splitlines()
    clean = [line for extra in noise for line in extra.splitlines() if not line.strip()[:1].isdigit()]
    mixed = lines[:14] + clean + lines[14:]
    encoded = "\n".join(mixed).encode("utf-8", "replace").decode()
    assert [row.size_bytes for row in rows_of(encoded)] == [1 << 10, 1 << 20, 1 << 30]


@settings(max_examples=100, deadline=None)
@given(text=st.text(alphabet="0123456789 .-#()NA/\n\tfloatsumeE+xtime", max_size=400))
def test_no_text_does_worse_than_an_input_error(text: str) -> None:
    try:
        rows = rows_of(text)
    except InputError:
        return
    assert all(m is None or m.time_ps > 0 for row in rows for m in (row.out_of_place, row.in_place))
