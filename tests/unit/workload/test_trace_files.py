"""Are trace files read exactly, within bounds, and refused clearly?"""

from __future__ import annotations

import gzip
from decimal import Decimal
from pathlib import Path

import pytest
from cpu_time import computes_for_less_than

from trine.errors import TraceError
from trine.workload import files


def test_reads_fractions_exactly(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"ts": 1739425750454821.123}')
    assert files.read_json(path) == {"ts": Decimal("1739425750454821.123")}


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    "text",
    ["{", '{"a": 1', "[" * 100_000, '{"a": ' * 50_000, '{"a": 1e999999999}', '{"a": ' + "9" * 31 + "}", "", "nonsense"],
)
def test_refuses_what_is_not_json_within_bounds(tmp_path: Path, text: str, strict: bool) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(TraceError, match=r"a\.json"):
        files.read_json(path, strict=strict)


def test_reads_the_least_float32_that_masks_of_attention_hold(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"a": -340282346638528859811704183484516925440.000000}')
    assert files.read_json(path) == {"a": Decimal("-340282346638528859811704183484516925440")}


@pytest.mark.parametrize("text", ['{"a": NaN}', '{"a": -Infinity}', '{"a": 1, "a": 2}', '{"a": 1e400}'])
def test_strict_refuses_repeated_keys_and_numbers_that_json_lacks(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(TraceError):
        files.read_json(path, strict=True)


def test_names_the_line_of_broken_json(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{\n"a": 1,\n"b": }')
    with pytest.raises(TraceError, match=r"a\.json:3"):
        files.read_json(path)


def test_refuses_a_decompression_bomb_early(tmp_path: Path) -> None:
    path = tmp_path / "bomb.json.gz"
    with gzip.open(path, "wb", compresslevel=6) as file:
        for _ in range(40):
            file.write(b" " * 2**22)
    with computes_for_less_than(3), pytest.raises(TraceError, match="refused"):
        files.read_bytes(path)


def test_refuses_truncated_gzip(tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(b'{"a": 1}' * 1000)[:-20])
    with pytest.raises(TraceError, match="complete gzip"):
        files.read_bytes(path)


def test_refuses_other_encodings(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="UTF-8"):
        files.read_text(path)


def test_short_never_shows_much() -> None:
    for value in ("x" * 10**6, ["x"] * 10**6, {"x": 1}, 10**200, Decimal(1)):
        assert len(files.short(value)) <= 70
